//! The facts that a policy sees of a request: those that its manifest asks for, where they exist.
//! Knows no limit.
//!
//! Bytes beyond ASCII are shown as Latin-1 code points, wherever they come from: nothing is
//! dropped, and no two values look alike. Header fields and cookies are shown unchanged, each
//! occurrence in order. Query parameters are read as HTML forms encode them
//! (`application/x-www-form-urlencoded`: `+` is a space, escapes are decoded, a broken escape is
//! kept as it is). Path parameters have their escapes decoded, so that `/users/%37` and `/users/7`
//! are one user. `path` and `query` are what is forwarded, with two exceptions: a route's `rewrite`
//! is applied later, and a path's `;parameters` are left out, as in routing, unless `server.paths`
//! says otherwise.

use std::borrow::Cow;

use http::{HeaderName, Version};
use smallvec::SmallVec;

use super::client::Client;
use super::hop;
use super::path;
use super::settings::{PathParameters, Paths};
use super::target::Target;
use crate::listen::Peer;
use crate::policy::{FactKind, FactName};
use crate::wire::{Known, Request};

/// A fact that a policy reads, ready to be looked up.
#[derive(Debug)]
pub(super) struct FactQuery {
    /// The name under which it is shown.
    name: String,
    source: FactSource,
}

#[derive(Debug)]
enum FactSource {
    Method,
    Scheme,
    Authority,
    Path,
    Query,
    ClientIp,
    Route,
    Header(HeaderName),
    Cookie(String),
    QueryParameter(String),
    /// By its index among the route's parameters.
    PathParameter(usize),
    RequestLength,
    HttpVersion,
    TlsSni,
    TlsClientSubject,
}

/// What facts are read from.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestView<'a> {
    pub(super) request: &'a Request,
    pub(super) target: Target<'a>,
    pub(super) client: &'a Client,
    pub(super) peer: &'a Peer,
    pub(super) route: &'a str,
    pub(super) parameters: &'a [&'a str],
}

/// Names and values, in the manifest's order.
#[derive(Debug)]
pub(super) struct Facts<'a>(SmallVec<[(&'a str, Cow<'a, str>); FACTS_INLINE]>);

/// The number of facts that most policies read.
const FACTS_INLINE: usize = 4;

impl FactQuery {
    /// `None` if this route can never have the fact: its path has no such parameter, or the field's
    /// name has an underscore and such fields are dropped.
    pub(super) fn new(fact: &FactName, parameters: &[&String], underscores: bool) -> Option<Self> {
        let source = match &fact.kind {
            FactKind::Method => FactSource::Method,
            FactKind::Scheme => FactSource::Scheme,
            FactKind::Authority => FactSource::Authority,
            FactKind::Path => FactSource::Path,
            FactKind::Query => FactSource::Query,
            FactKind::ClientIp => FactSource::ClientIp,
            FactKind::Route => FactSource::Route,
            FactKind::Header(name) if hop::is_ambiguous(name.as_bytes()) && !underscores => {
                return None;
            }
            FactKind::Header(name) => {
                FactSource::Header(HeaderName::from_bytes(name.as_bytes()).ok()?)
            }
            FactKind::Cookie(name) => FactSource::Cookie(name.clone()),
            FactKind::QueryParameter(name) => FactSource::QueryParameter(name.clone()),
            FactKind::PathParameter(name) => {
                FactSource::PathParameter(parameters.iter().position(|known| *known == name)?)
            }
            FactKind::RequestLength => FactSource::RequestLength,
            FactKind::HttpVersion => FactSource::HttpVersion,
            FactKind::TlsSni => FactSource::TlsSni,
            FactKind::TlsClientSubject => FactSource::TlsClientSubject,
        };
        Some(Self { name: fact.text.clone(), source })
    }
}

impl<'a> Facts<'a> {
    /// Looks up the facts.
    pub(super) fn gather(queries: &'a [FactQuery], view: RequestView<'a>) -> Self {
        let mut facts = Self(SmallVec::new());
        for query in queries {
            facts.look_up(query, view);
        }
        facts
    }

    /// The facts as [`Policy`](crate::policy::Policy) takes them.
    pub(super) fn pairs(&self) -> SmallVec<[(&str, &str); FACTS_INLINE]> {
        let mut pairs = SmallVec::new();
        self.0.iter().for_each(|(name, value)| pairs.push((*name, &**value)));
        pairs
    }

    fn look_up(&mut self, query: &'a FactQuery, view: RequestView<'a>) {
        let one = match &query.source {
            FactSource::Method => Some(Cow::Borrowed(view.request.method.as_str())),
            FactSource::Scheme => Some(Cow::Borrowed(view.client.scheme())),
            FactSource::Authority => Some(Cow::Borrowed(view.target.authority.as_str()))
                .filter(|authority| !authority.is_empty()),
            FactSource::Path => Some(path::shown(view.target.path, view.target.paths)),
            FactSource::Query => view.target.query.map(|query| latin1(query.as_bytes())),
            FactSource::ClientIp if !view.client.trusted => Some(Cow::Borrowed(&*view.peer.ip)),
            FactSource::ClientIp => Some(Cow::Borrowed(view.client.text.as_str())),
            FactSource::Route => Some(Cow::Borrowed(view.route)),
            FactSource::Header(name) => {
                return self.extend(query, view.request.fields.get_all(name).map(latin1));
            }
            FactSource::Cookie(name) => return self.extend(query, cookies(view.request, name)),
            FactSource::QueryParameter(name) => {
                return self.extend(query, query_parameters(view.target, name));
            }
            FactSource::PathParameter(index) => {
                view.parameters.get(*index).map(|value| path_parameter(value, view.target.paths))
            }
            FactSource::RequestLength => view.request.fields.get(Known::ContentLength).map(latin1),
            FactSource::HttpVersion => Some(Cow::Borrowed(version(view.request.version))),
            // Proved by TLS on this connection. A header field that says so would be anyone's
            // claim.
            FactSource::TlsSni => view.peer.sni.as_deref().map(Cow::Borrowed),
            FactSource::TlsClientSubject => view.peer.client_subject.as_deref().map(Cow::Borrowed),
        };
        if let Some(value) = one {
            self.0.push((query.name.as_str(), value));
        }
    }

    fn extend(&mut self, query: &'a FactQuery, values: impl IntoIterator<Item = Cow<'a, str>>) {
        self.0.extend(values.into_iter().map(|value| (query.name.as_str(), value)));
    }
}

/// Bytes as text, borrowed if they are ASCII.
pub(super) fn latin1(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) if text.is_ascii() => Cow::Borrowed(text),
        _ => Cow::Owned(bytes.iter().copied().map(char::from).collect()),
    }
}

/// Every cookie called `name` in all `Cookie` fields. Its quotes are kept (RFC 6265, 5.4 returns
/// them as they are).
fn cookies<'a>(request: &'a Request, name: &'a str) -> impl Iterator<Item = Cow<'a, str>> {
    let pairs =
        request.fields.get_all(Known::Cookie).flat_map(|field| field.split(|byte| *byte == b';'));
    pairs.filter_map(move |pair| {
        let mut halves = pair.splitn(2, |byte| *byte == b'=');
        let named = halves.next()?.trim_ascii() == name.as_bytes();
        let value = halves.next()?;
        named.then(|| latin1(value.trim_ascii()))
    })
}

fn query_parameters<'a>(target: Target<'a>, name: &'a str) -> impl Iterator<Item = Cow<'a, str>> {
    let pairs =
        target.query.into_iter().flat_map(|query| query.split('&')).filter(|pair| !pair.is_empty());
    pairs.filter_map(move |pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (form(key) == name).then(|| form(value))
    })
}

/// A segment's value, without what an upstream may ignore: otherwise `7;a` and `7;b` would be
/// counted apart from `7`.
fn path_parameter(segment: &str, paths: Paths) -> Cow<'_, str> {
    decoded(if paths.parameters == PathParameters::Ignore {
        path::without_parameters(segment)
    } else {
        segment
    })
}

fn form(text: &str) -> Cow<'_, str> {
    if text.contains('+') {
        Cow::Owned(decoded(&text.replace('+', " ")).into_owned())
    } else {
        decoded(text)
    }
}

fn decoded(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return latin1(text.as_bytes());
    }
    Cow::Owned(path::decode(text.as_bytes()).iter().copied().map(char::from).collect())
}

fn version(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        Version::HTTP_3 => "3",
        _ => "1.1",
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::settings;
    use super::*;
    use crate::wire::{Body, Fields};

    fn facts(
        uri: &str,
        fields: &[(&str, &[u8])],
        parameters: &[&str],
        asked: &[(&str, FactKind)],
    ) -> Vec<(String, String)> {
        let mut request = http::Request::builder().uri(uri).header("host", "API.example:80");
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let mut request = Request::from(request.body(Body::empty()).unwrap());
        let address = "192.0.2.1:5".parse().unwrap();
        let peer = Peer {
            sni: Some("api.example".into()),
            client_subject: Some("CN=alice".into()),
            ..Peer::plain(address, address)
        };
        let client = Client::of(&Fields::new(), &peer, &[]);
        let authority =
            super::super::target::normalize(&mut request, false, &peer, &settings()).unwrap();
        let target = Target::of(&request, &authority, Paths::default());
        let names: Vec<String> = (0..parameters.len()).map(|index| format!("p{index}")).collect();
        let queries: Vec<FactQuery> = asked
            .iter()
            .filter_map(|(text, kind)| {
                FactQuery::new(
                    &FactName { text: (*text).to_owned(), kind: kind.clone() },
                    &names.iter().collect::<Vec<_>>(),
                    false,
                )
            })
            .collect();
        let view = RequestView {
            request: &request,
            target,
            client: &client,
            peer: &peer,
            route: "api",
            parameters,
        };
        let facts = Facts::gather(&queries, view);
        facts
            .pairs()
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[track_caller]
    fn is(found: &[(String, String)], expected: &[(&str, &str)]) {
        let found: Vec<(&str, &str)> =
            found.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn only_what_was_asked_for_is_shown_and_only_where_it_exists() {
        let asked = [
            ("path", FactKind::Path),
            ("method", FactKind::Method),
            ("client-ip", FactKind::ClientIp),
            ("authority", FactKind::Authority),
            ("scheme", FactKind::Scheme),
            ("route", FactKind::Route),
            ("query", FactKind::Query),
            ("http.version", FactKind::HttpVersion),
            ("request.length", FactKind::RequestLength),
            ("header.x", FactKind::Header("x".into())),
            ("path.p9", FactKind::PathParameter("p9".into())),
            ("tls.sni", FactKind::TlsSni),
            ("tls.client.subject", FactKind::TlsClientSubject),
        ];
        let expected = [
            ("path", "/a/c"),
            ("method", "GET"),
            ("client-ip", "192.0.2.1"),
            ("authority", "api.example"),
            ("scheme", "http"),
            ("route", "api"),
            ("http.version", "1.1"),
            ("tls.sni", "api.example"),
            ("tls.client.subject", "CN=alice"),
        ];
        is(&facts("/a/b/../c", &[], &[], &asked), &expected);
        is(&facts("/a;x=1/c%3by", &[], &[], &asked), &expected);
        is(
            &facts(
                "/?a=%41",
                &[("content-length", b"17")],
                &[],
                &[asked[6].clone(), asked[8].clone()],
            ),
            &[("query", "a=%41"), ("request.length", "17")],
        );
    }

    #[test]
    fn repeated_fields_are_repeated_and_bytes_are_never_lost() {
        let fields: &[(&str, &[u8])] = &[("x-key", b"one"), ("x-key", b"\xE9\xFF"), ("x-key", b"")];
        is(
            &facts("/", fields, &[], &[("header.x-key", FactKind::Header("x-key".into()))]),
            &[("header.x-key", "one"), ("header.x-key", "\u{e9}\u{ff}"), ("header.x-key", "")],
        );
    }

    #[test]
    fn cookies_are_found_in_all_fields() {
        let fields: &[(&str, &[u8])] = &[
            ("cookie", b"a=1; id=\"x=y\" ;id2=3"),
            ("cookie", b"b; id=\xE9"),
            ("cookie", b"ID=9; id"),
        ];
        is(
            &facts("/", fields, &[], &[("cookie.id", FactKind::Cookie("id".into()))]),
            &[("cookie.id", "\"x=y\""), ("cookie.id", "\u{e9}")],
        );
    }

    #[test]
    fn parameters_are_decoded_one_way() {
        let asked = [
            ("query.k", FactKind::QueryParameter("k".into())),
            ("path.p0", FactKind::PathParameter("p0".into())),
        ];
        is(
            &facts("/x?k=a+b&%6b=%C3%A9&k&kk=no&k=%zz&&k=a=b", &[], &["%37%2F+;a=%31"], &asked),
            &[
                ("query.k", "a b"),
                ("query.k", "\u{c3}\u{a9}"),
                ("query.k", ""),
                ("query.k", "%zz"),
                ("query.k", "a=b"),
                ("path.p0", "7/+"),
            ],
        );
    }
}
