//! The facts that a policy is shown of a request: those that its manifest asks for, where they
//! exist, and nothing else. Knows no limit.
//!
//! Each fact but `bearer` and `upstream-path` stands in one table here: [`SINGLE`] or [`FAMILIES`].
//! Policies are checked against these names.
//!
//! Bytes beyond ASCII are shown as Latin-1 code points, wherever they come from: nothing is
//! dropped, and no two values look alike. A value that upstreams read alike in several spellings is
//! shown in one of them, and one that they read in several ways is a repeated fact: `spelling`
//! knows about header fields, bearer tokens, cookies, and parameters of queries and forms (`+` is a
//! space, escapes are decoded, a broken escape is kept as it is). Path parameters have their
//! escapes decoded, so that `/users/%37` and `/users/7` are one user. `path` and `query` are what
//! is forwarded, with two exceptions: a route's `rewrite` is applied to `upstream-path` alone, and
//! a path's `;parameters` are left out, as in routing, unless `server.paths` says otherwise. Values
//! of a JSON body are shown as Unicode text.

use std::borrow::Cow;

use http::{HeaderName, Version};
use smallvec::SmallVec;

use super::content::{BodyType, ReadBody};
use crate::inspect::{Pointer, Selector};
use crate::listen::Peer;
use crate::policy::{FactNames, Member};
use crate::proxy::receive::call::DescriptorView;
use crate::proxy::receive::client::Client;
use crate::proxy::receive::path;
use crate::proxy::receive::target::Target;
use crate::proxy::receive::text::latin1;
use crate::proxy::route::rewrite::PathRewrite;
use crate::proxy::settings::Paths;
use crate::spelling::{self, Bearer, CookieName, FormName};
use crate::wire::{Fields, Known, Request};

/// How the one value of a fact is found; `None` where it does not exist.
type Find = for<'a> fn(&RequestView<'a>) -> Option<Cow<'a, str>>;

/// All facts with one value: the name in a manifest, and how the value is found.
const SINGLE: &[(&str, Find)] = &[
    ("method", |view| Some(Cow::Borrowed(view.request.method.as_str()))),
    ("scheme", |view| Some(Cow::Borrowed(view.client.scheme()))),
    ("authority", |view| {
        Some(Cow::Borrowed(view.target.authority.as_str())).filter(|text| !text.is_empty())
    }),
    ("host", |view| {
        Some(Cow::Borrowed(view.target.authority.host())).filter(|text| !text.is_empty())
    }),
    ("path", |view| Some(path::shown(view.target.path, view.target.paths))),
    ("query", |view| view.target.query.map(|query| latin1(query.as_bytes()))),
    ("client-ip", |view| {
        // The peer's address was written once for the whole connection.
        let trusted = view.client.trusted;
        Some(Cow::Borrowed(if trusted { view.client.text.as_str() } else { &*view.peer.ip }))
    }),
    (ROUTE, |view| Some(Cow::Borrowed(view.route))),
    ("request.length", |view| view.request.fields.get(Known::ContentLength).map(latin1)),
    ("upgrade", |view| view.upgrade.map(Cow::Borrowed)),
    ("http.version", |view| Some(Cow::Borrowed(version(view.request.version)))),
    // From the TLS handshake of this connection, never from a field that claims it.
    ("tls.sni", |view| view.peer.sni.as_deref().map(Cow::Borrowed)),
    ("tls.client.subject", |view| view.peer.client_subject.as_deref().map(Cow::Borrowed)),
    ("body.type", |view| view.body.map(|body| Cow::Borrowed(body.body_type.word()))),
    ("body.bytes", |view| view.body?.length.map(|bytes| Cow::Owned(bytes.to_string()))),
    ("rls.domain", |view| Some(Cow::Borrowed(view.descriptor?.domain))),
    ("rls.descriptor", |view| Some(Cow::Borrowed(&*view.descriptor?.descriptor.text))),
    ("rls.limit", |view| view.descriptor?.descriptor.limit.as_deref().map(Cow::Borrowed)),
    ("rls.limits", |view| view.descriptor?.descriptor.limits.as_deref().map(Cow::Borrowed)),
];

/// The singles among them that need the body.
const OF_BODIES: [&str; 2] = ["body.type", "body.bytes"];

/// What facts of calls for decisions begin with. Requests never have them.
const OF_CALLS: &str = "rls.";
/// How facts of values of bodies begin: as texts, and as JSON.
const OF_BODY: &str = "body:";
const OF_JSON_BODY: &str = "body.json:";
/// The route's name, which no caller gives either.
const ROUTE: &str = "route";

/// The token of `Authorization: Bearer`, which needs no other name.
const BEARER: &str = "bearer";
/// The path after the route's `rewrite`. Routes without one don't have it.
const UPSTREAM_PATH: &str = "upstream-path";

/// How a fact of a family is prepared for a route, from what follows the family's beginning.
/// `None` where the route can never answer it.
type Prepare = fn(&str, RouteTraits<'_>) -> Option<FactSource>;

/// All families of facts: how their names begin in a manifest, what may follow, and how a fact is
/// prepared.
const FAMILIES: &[(&str, Member, Prepare)] = &[
    ("header.", Member::Token, |name, route| {
        let dropped = spelling::is_ambiguous(name.as_bytes()) && !route.underscores;
        let name = HeaderName::from_bytes(name.as_bytes()).ok().filter(|_| !dropped)?;
        Some(if route.underscores { FactSource::AnyHeader(name) } else { FactSource::Header(name) })
    }),
    ("cookie.", Member::Token, |name, _| Some(FactSource::Cookie(CookieName::new(name)))),
    ("query.", Member::Text, |name, _| Some(FactSource::QueryParameter(FormName::new(name)))),
    ("path.", Member::Text, |name, route| {
        let index = route.parameters.iter().position(|known| *known == name);
        index.map(FactSource::PathParameter)
    }),
    ("form.", Member::Text, |name, _| Some(FactSource::FormField(FormName::new(name)))),
    ("rls.entry.", Member::Text, |key, route| {
        route.decides.then(|| FactSource::Entry(key.to_owned()))
    }),
    (OF_BODY, Member::Pointer, |pointer, _| value_of_body(pointer, false)),
    (OF_JSON_BODY, Member::Pointer, |pointer, _| value_of_body(pointer, true)),
];

fn value_of_body(pointer: &str, as_json: bool) -> Option<FactSource> {
    let wanted = Selector { pointer: Pointer::parse(pointer).ok()?, as_json };
    Some(FactSource::BodyValue { wanted, index: 0 })
}

/// The names of all facts of a request.
pub(in crate::proxy) fn names() -> FactNames {
    FactNames {
        single: SINGLE.iter().map(|(name, _)| *name).chain([BEARER, UPSTREAM_PATH]).collect(),
        families: FAMILIES.iter().map(|(name, member, _)| (*name, *member)).collect(),
    }
}

/// What of a route decides whether it can answer a fact.
#[derive(Clone, Copy, Debug)]
pub(in crate::proxy) struct RouteTraits<'a> {
    /// The names of its path parameters.
    pub(in crate::proxy) parameters: &'a [&'a String],
    /// Whether fields are kept whose names an upstream may read as others.
    pub(in crate::proxy) underscores: bool,
    /// How it makes the upstream's path.
    pub(in crate::proxy) rewriting: Option<&'a PathRewrite>,
    /// Whether it is for calls for decisions.
    pub(in crate::proxy) decides: bool,
}

/// A fact that a policy asks to see, prepared for a route.
#[derive(Debug)]
pub(in crate::proxy) struct FactQuery {
    /// The name under which it is shown.
    name: String,
    source: FactSource,
}

#[derive(Debug)]
enum FactSource {
    Single(Find),
    Bearer,
    UpstreamPath(Option<PathRewrite>),
    Header(HeaderName),
    /// All fields whose names an upstream may read as this one.
    AnyHeader(HeaderName),
    Cookie(CookieName),
    QueryParameter(FormName),
    /// A parameter, by its index among the route's.
    PathParameter(usize),
    FormField(FormName),
    /// The values of a descriptor's entries with this key.
    Entry(String),
    /// A fact that only somebody who calls for a decision may give.
    Given,
    /// A value of the body, by its index among those that are wanted.
    BodyValue {
        wanted: Selector,
        index: usize,
    },
}

/// What facts are read from.
#[derive(Clone, Copy, Debug)]
pub(in crate::proxy) struct RequestView<'a> {
    pub(in crate::proxy) request: &'a Request,
    pub(in crate::proxy) target: Target<'a>,
    pub(in crate::proxy) client: &'a Client,
    pub(in crate::proxy) peer: &'a Peer,
    pub(in crate::proxy) route: &'a str,
    pub(in crate::proxy) parameters: &'a [&'a str],
    /// The protocol that it asks to switch to, if it would be sent on with it.
    pub(in crate::proxy) upgrade: Option<&'a str>,
    /// If the policy asks for facts of it.
    pub(in crate::proxy) body: Option<&'a ReadBody>,
    /// If it is a call for a decision.
    pub(in crate::proxy) descriptor: Option<DescriptorView<'a>>,
}

/// Names and values, in the manifest's order.
#[derive(Debug)]
pub(in crate::proxy) struct Facts<'a> {
    all: SmallVec<[(&'a str, Cow<'a, str>); FACTS_INLINE]>,
    /// One of them has more than [`VALUES_MAX`] values. The rest are left out.
    too_many: bool,
}

/// Values of one fact, at most: as many as a request has fields. Each costs a guest thousands of
/// instructions and a client seven bytes.
pub(in crate::proxy) const VALUES_MAX: usize = 100;

/// The number of facts that most policies read.
const FACTS_INLINE: usize = 4;

impl FactQuery {
    /// The query for the fact `name`, which is one of [`names`]. `None` where this route can
    /// never answer it: it has no such path parameter, or the field's name is ambiguous and such
    /// fields are dropped.
    pub(in crate::proxy) fn new(name: &str, route: RouteTraits<'_>) -> Option<Self> {
        let single = SINGLE.iter().find(|(known, _)| *known == name);
        let source = match single {
            Some((name, _)) if name.starts_with(OF_CALLS) && !route.decides => return None,
            Some((_, find)) => FactSource::Single(*find),
            None if name == BEARER => FactSource::Bearer,
            None if name == UPSTREAM_PATH => FactSource::UpstreamPath(route.rewriting.cloned()),
            None => {
                let mut families = FAMILIES.iter();
                let (member, prepare) = families
                    .find_map(|(start, _, prepare)| Some((name.strip_prefix(start)?, prepare)))?;
                prepare(member, route).or_else(|| route.decides.then_some(FactSource::Given))?
            }
        };
        Some(Self { name: name.to_owned(), source })
    }
}

/// The header field that the fact `name` is read from, if it is read from one.
pub(in crate::proxy) fn field_of(name: &str) -> Option<HeaderName> {
    let field = match name.split_once('.') {
        Some(("header", field)) => field,
        Some(("cookie", _)) => "cookie",
        _ if name == BEARER => "authorization",
        _ => return None,
    };
    HeaderName::from_bytes(field.as_bytes()).ok()
}

/// The values of bodies that these queries ask for. `None` if they need no body.
pub(in crate::proxy) fn wanted_of_bodies(queries: &mut [FactQuery]) -> Option<Vec<Selector>> {
    let mut needed = false;
    let mut all = Vec::new();
    for query in queries {
        needed |= OF_BODIES.contains(&query.name.as_str())
            || matches!(query.source, FactSource::FormField(_) | FactSource::BodyValue { .. });
        if let FactSource::BodyValue { wanted, index } = &mut query.source {
            *index = all.len();
            all.push(wanted.clone());
        }
    }
    needed.then_some(all)
}

impl<'a> Facts<'a> {
    /// Looks up what the queries ask for.
    pub(in crate::proxy) fn gather(queries: &'a [FactQuery], view: RequestView<'a>) -> Self {
        let mut facts = Self { all: SmallVec::new(), too_many: false };
        for query in queries {
            facts.look_up(query, view);
        }
        facts
    }

    /// The pairs that a policy takes.
    pub(in crate::proxy) fn pairs(&self) -> SmallVec<[(&str, &str); FACTS_INLINE]> {
        let mut pairs = SmallVec::new();
        self.all.iter().for_each(|(name, value)| pairs.push((*name, &**value)));
        pairs
    }

    fn look_up(&mut self, query: &'a FactQuery, view: RequestView<'a>) {
        let given = view.descriptor.and_then(|view| view.descriptor.facts.as_deref());
        if let Some(given) = given.filter(|_| is_given(&query.name)) {
            let own = given.iter().filter_map(|pair| given_value(pair, &query.name));
            return self.extend(query, own);
        }
        let one = match &query.source {
            FactSource::Single(find) => find(&view),
            FactSource::Bearer => return self.extend(query, bearer_tokens(&view.request.fields)),
            FactSource::Header(name) => {
                return self.extend(query, view.request.fields.get_all(name).map(field_value));
            }
            FactSource::AnyHeader(name) => {
                let name = name.as_str().as_bytes();
                let fields = view.request.fields.iter();
                let same = fields.filter(|(other, _)| spelling::is_same(name, other));
                return self.extend(query, same.map(|(_, value)| field_value(value)));
            }
            FactSource::Cookie(name) => {
                let fields = view.request.fields.get_all(Known::Cookie);
                return self.extend(query, fields.flat_map(|field| name.values(field)).map(text));
            }
            FactSource::QueryParameter(name) => {
                let query_text = view.target.query.unwrap_or_default();
                return self.extend(query, name.values(query_text).map(text));
            }
            FactSource::FormField(name) => {
                let form = view.body.filter(|body| body.body_type == BodyType::Form);
                let form = form.and_then(|body| std::str::from_utf8(&body.bytes).ok());
                return self.extend(query, name.values(form.unwrap_or_default()).map(text));
            }
            FactSource::Entry(key) => {
                let entries = view.descriptor.map(|view| view.descriptor.entries.as_slice());
                let own = entries.unwrap_or_default().iter().filter(|(name, _)| name == key);
                return self.extend(query, own.map(|(_, value)| Cow::Borrowed(value.as_str())));
            }
            FactSource::Given => None,
            FactSource::BodyValue { index, .. } => {
                let values = view.body.into_iter().flat_map(|body| body.values.iter());
                let own = values.filter(|(of, _)| of == index);
                return self.extend(query, own.map(|(_, value)| Cow::Borrowed(value.as_str())));
            }
            FactSource::UpstreamPath(rewriting) => {
                rewriting.as_ref().and_then(|rewriting| upstream_path(rewriting, &view))
            }
            FactSource::PathParameter(index) => {
                view.parameters.get(*index).map(|value| path_parameter(value, view.target.paths))
            }
        };
        if let Some(value) = one {
            self.all.push((query.name.as_str(), value));
        }
    }

    /// Whether one of them has more than [`VALUES_MAX`] values.
    pub(in crate::proxy) fn are_too_many(&self) -> bool {
        self.too_many
    }

    fn extend(&mut self, query: &'a FactQuery, values: impl IntoIterator<Item = Cow<'a, str>>) {
        let mut values = values.into_iter();
        self.all.extend(values.by_ref().take(VALUES_MAX).map(|value| (query.name.as_str(), value)));
        self.too_many |= values.next().is_some();
    }
}

/// Whether a fact of a call of the HTTP API is one that its caller gives.
fn is_given(name: &str) -> bool {
    name != ROUTE && !name.starts_with(OF_CALLS)
}

/// What a fact of a caller's says of the fact that is asked for. A text of a body is also one in
/// JSON.
fn given_value<'a>((given, value): &'a (String, String), name: &str) -> Option<Cow<'a, str>> {
    if is_same_fact(given, name) {
        return Some(Cow::Borrowed(value.as_str()));
    }
    let (text, json) = (given.strip_prefix(OF_BODY)?, name.strip_prefix(OF_JSON_BODY)?);
    (text == json).then(|| Cow::Owned(serde_json::Value::from(value.as_str()).to_string()))
}

/// Whether a caller means this fact. The case of a header field's name does not matter.
pub(in crate::proxy) fn is_same_fact(given: &str, name: &str) -> bool {
    let of_fields = ["header.", "trailer."].iter().any(|start| name.starts_with(start));
    given == name || (of_fields && given.eq_ignore_ascii_case(name))
}

/// Checks that a caller may give a fact.
///
/// # Errors
/// What was found and what was expected.
pub(in crate::proxy) fn check_given(name: &str) -> Result<(), String> {
    if !is_given(name) {
        return Err(format!("the fact {name:?}, which callers do not give"));
    }
    match names().check("fact", name) {
        Ok(_) => Ok(()),
        Err((found, expected)) => Err(format!("{found} in `facts`; expected {expected}")),
    }
}

/// Bytes of a value as text.
fn text(value: Cow<'_, [u8]>) -> Cow<'_, str> {
    match value {
        Cow::Borrowed(value) => latin1(value),
        Cow::Owned(value) => Cow::Owned(latin1(&value).into_owned()),
    }
}

fn field_value(value: &[u8]) -> Cow<'_, str> {
    latin1(spelling::trimmed(value))
}

/// The tokens of all `Authorization` fields. One that upstreams read in different ways is two.
fn bearer_tokens(fields: &Fields) -> impl Iterator<Item = Cow<'_, str>> {
    let values = fields.get_all(Known::Authorization).flat_map(|value| {
        let (one, other) = match spelling::bearer(value) {
            Bearer::None => (None, None),
            Bearer::One(token) => (Some(token), None),
            Bearer::Either(one, other) => (Some(one), Some(other)),
        };
        one.into_iter().chain(other)
    });
    values.map(latin1)
}

/// The path that the upstream gets. `None` if it would be too long: such a request is refused.
fn upstream_path<'a>(rewriting: &PathRewrite, view: &RequestView<'a>) -> Option<Cow<'a, str>> {
    let path =
        rewriting.apply((view.target.path, view.target.paths), None, view.parameters).ok()?;
    Some(Cow::Owned(path::shown(&path, view.target.paths).into_owned()))
}

/// A segment's value, without what an upstream may ignore: otherwise `7;a` and `7;b` would be
/// counted apart from `7`.
fn path_parameter(segment: &str, paths: Paths) -> Cow<'_, str> {
    path::decoded(path::significant(segment, paths))
}

/// Whether a policy sees the same of two readings of one path, each with its parameters.
pub(in crate::proxy) fn agree(
    queries: &[FactQuery],
    [one, other]: [&[&str]; 2],
    paths: Paths,
) -> bool {
    let value = |parameters: &[&str], index: usize| {
        parameters.get(index).map(|value| path_parameter(value, paths).into_owned())
    };
    queries.iter().all(|query| match &query.source {
        FactSource::PathParameter(index) => value(one, *index) == value(other, *index),
        // The path itself is never the same.
        _ => query.name != "path" && query.name != UPSTREAM_PATH,
    })
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
mod tests;
