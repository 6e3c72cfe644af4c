//! Reads a request's target: its form, its authority and its path, in their normal forms. Knows no
//! route.
//!
//! A request has one authority and one path. One that names two hosts, or none, is refused here,
//! before any other part could read it differently.

use std::borrow::Cow;

use http::{Method, Version};
use smallvec::SmallVec;

use super::path;
use super::text::ShortText;
use crate::listen::Peer;
use crate::proxy::refusal::{Check, Refusal};
use crate::proxy::settings::{Paths, Settings};
use crate::wire::{Fields, Known, Request};

/// Maximum bytes of a `Host` field or an authority: a name of RFC 1035 and a port.
const AUTHORITY_BYTES_MAX: usize = 260;
/// The highest number of a port.
const PORT_MAX: &[u8] = b"65535";
/// Maximum bytes of path and query: what the `http` crate holds, which writes them for HTTP/2.
pub(in crate::proxy) const PATH_AND_QUERY_BYTES_MAX: usize = 65_534;

/// A request's target in its normal form, after [`normalize`].
#[derive(Clone, Copy, Debug)]
pub(in crate::proxy) struct Target<'r> {
    /// The normal path, as it is forwarded.
    pub(in crate::proxy) path: &'r str,
    /// Which other spellings of it name the same resource.
    pub(in crate::proxy) paths: Paths,
    /// The query as it came.
    pub(in crate::proxy) query: Option<&'r str>,
    /// The host that the client asks for.
    pub(in crate::proxy) authority: &'r Authority,
    /// The number of the listener that the request came to.
    pub(in crate::proxy) listener: usize,
}

/// A host and perhaps a port: in lower case, without the scheme's default port, zeros before a port
/// and a final dot. Empty if an HTTP/1.0 client named none.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Authority {
    text: SmallVec<[u8; 64]>,
    host_bytes: usize,
}

impl<'r> Target<'r> {
    /// The target of a request that was normalized.
    pub(in crate::proxy) fn of(
        request: &'r Request,
        authority: &'r Authority,
        paths: Paths,
        peer: &Peer,
    ) -> Self {
        let (path, query) = split(request.target());
        Self { path, paths, query, authority, listener: peer.listener }
    }
}

/// Splits path and query.
pub(in crate::proxy) fn split(path_and_query: &str) -> (&str, Option<&str>) {
    let mark = path_and_query.bytes().position(|byte| byte == b'?');
    let halves =
        mark.and_then(|mark| Some((path_and_query.get(..mark)?, path_and_query.get(mark + 1..)?)));
    halves.map_or((path_and_query, None), |(path, query)| (path, Some(query)))
}

/// Methods that no route forwards: Weir is not a tunnel, and TRACE would echo what is set for the
/// upstream only.
pub(in crate::proxy) fn unsupported(method: &Method) -> bool {
    *method == Method::CONNECT || *method == Method::TRACE
}

/// A standard method in lower case is another method (RFC 9110, 9.1), but many servers read it as
/// the standard one. A limit on POST would not be checked for `post`.
fn is_misspelt(method: &Method) -> bool {
    const STANDARD: [&str; 9] =
        ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"];
    let text = method.as_str();
    text.bytes().any(|byte| byte.is_ascii_lowercase())
        && STANDARD.iter().any(|standard| standard.eq_ignore_ascii_case(text))
}

/// Brings the target into its normal form, leaves one `Host` that agrees with it, and returns the
/// authority.
///
/// # Errors
/// 400, 414 and 501; 204 for `OPTIONS *`.
pub(in crate::proxy) fn normalize(
    request: &mut Request,
    https: bool,
    peer: &Peer,
    settings: &Settings,
) -> Result<Authority, Refusal> {
    let &Settings { uri_bytes_max, paths, .. } = settings;
    if unsupported(&request.method) {
        return Err(Refusal::NotImplemented("this method is not forwarded"));
    }
    if is_misspelt(&request.method) {
        return Err(Refusal::NotImplemented("methods are written in capitals"));
    }
    let asked = request.target_bytes();
    if asked.len() + request.authority().map_or(0, str::len) > uri_bytes_max {
        return Err(Refusal::UriTooLong { limit_bytes: uri_bytes_max });
    }
    if asked == b"*" {
        return Err(asterisk_form(&request.method));
    }
    if !path::begins_normal(asked, paths)
        && let Some(changed) = normal(request.target(), request.authority().is_some(), paths)?
    {
        request.set_target(&changed);
    }
    authority(request, https, peer)
}

/// `OPTIONS *` concerns the server as a whole, which is no route.
fn asterisk_form(method: &Method) -> Refusal {
    if *method == Method::OPTIONS {
        Refusal::ServerOptions
    } else {
        Refusal::BadRequest(Check::Target.wrong("only OPTIONS may ask for `*`"))
    }
}

/// The normal form of path and query, if it differs from what came. After an authority an empty
/// path is `/`.
fn normal(asked: &str, after_authority: bool, paths: Paths) -> Result<Option<String>, Refusal> {
    let (path, query) = split(asked);
    let path =
        match path::normal(if path.is_empty() && after_authority { "/" } else { path }, paths)
            .map_err(|found| Refusal::BadRequest(Check::Path.wrong(found)))?
        {
            Cow::Borrowed(_) if !path.is_empty() => return Ok(None),
            normal => normal,
        };
    let text = match query {
        None => path.into_owned(),
        Some(query) => [&*path, "?", query].concat(),
    };
    // Escaping can triple a path's length.
    if text.len() > PATH_AND_QUERY_BYTES_MAX {
        return Err(Refusal::BadRequest(
            Check::Path.wrong("the path is too long when it is escaped"),
        ));
    }
    Ok(Some(text))
}

/// The target's own authority takes precedence over `Host` (RFC 9112, 3.2.2), which is made to
/// agree.
fn authority(request: &mut Request, https: bool, peer: &Peer) -> Result<Authority, Refusal> {
    if let Some(named) = request.authority() {
        let authority = Authority::read(named.as_bytes(), https)?;
        let named: SmallVec<[u8; 64]> = SmallVec::from_slice(named.as_bytes());
        request.fields.set(Known::Host, named);
        return Ok(authority);
    }
    if let Some(host) = only_host(&request.fields)? {
        return Authority::read(host, https);
    }
    if request.version != Version::HTTP_10 {
        return Err(Refusal::BadRequest(Check::Host.wrong("there is no Host field")));
    }
    // The upstream is asked in HTTP/1.1, which requires a Host: the address that the client
    // reached.
    request.fields.append(Known::Host, ShortText::<64>::of(peer.local).as_bytes());
    Ok(Authority::default())
}

fn only_host(fields: &Fields) -> Result<Option<&[u8]>, Refusal> {
    let mut hosts = fields.get_all(Known::Host);
    let first = hosts.next();
    if hosts.next().is_some() {
        Err(Refusal::BadRequest(Check::Host.wrong("there is more than one Host field")))
    } else {
        Ok(first)
    }
}

impl Authority {
    fn read(raw: &[u8], https: bool) -> Result<Self, Refusal> {
        const REFUSED: Refusal =
            Refusal::BadRequest(Check::Host.wrong("the Host field is not a host"));
        if raw.len() > AUTHORITY_BYTES_MAX {
            return Err(REFUSED);
        }
        if let Some(host_bytes) = plain(raw, https) {
            return Ok(Self { text: SmallVec::from_slice(raw), host_bytes });
        }
        // An IPv6 address is in brackets. The port's colon comes after them.
        let host_bytes = match raw.iter().position(|byte| *byte == b']') {
            Some(end) => end + 1,
            None => raw.iter().position(|byte| *byte == b':').unwrap_or(raw.len()),
        };
        let (host, port) = raw.split_at_checked(host_bytes).ok_or(REFUSED)?;
        let bracketed = host.first() == Some(&b'[');
        let fits = if bracketed {
            host.get(1..host.len() - 1).is_some_and(|inner| {
                inner.iter().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.'))
            })
        } else {
            host.iter()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'))
        };
        let digits = match port {
            [] => port,
            [b':', digits @ ..]
                if digits.len() <= PORT_MAX.len()
                    && digits.iter().all(u8::is_ascii_digit)
                    && !host.is_empty() =>
            {
                let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
                // The port 0 keeps one of them.
                let zeros = zeros.min(digits.len().saturating_sub(1));
                digits.get(zeros..).filter(|digits| is_port(digits)).ok_or(REFUSED)?
            }
            _ => return Err(REFUSED),
        };
        if !fits {
            return Err(REFUSED);
        }
        let host = host.strip_suffix(b".").unwrap_or(host);
        let mut text = SmallVec::from_slice(host);
        text.make_ascii_lowercase();
        if !digits.is_empty() && digits != default_port(https) {
            text.push(b':');
            text.extend_from_slice(digits);
        }
        Ok(Self { text, host_bytes: host.len() })
    }

    /// Host and port.
    pub(in crate::proxy) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.text).unwrap_or_default()
    }

    /// The same as bytes, without the check for UTF-8.
    pub(in crate::proxy) fn as_bytes(&self) -> &[u8] {
        &self.text
    }

    /// The host without the port.
    pub(in crate::proxy) fn host(&self) -> &str {
        self.as_str().get(..self.host_bytes).unwrap_or_default()
    }
}

/// Whether digits without leading zeros, at most five, are the number of a port. Texts of equal
/// length are ordered as their numbers.
fn is_port(digits: &[u8]) -> bool {
    // The first digit tells it of most.
    digits.len() < PORT_MAX.len() || digits.first() < PORT_MAX.first() || digits <= PORT_MAX
}

/// The scheme's default port.
fn default_port(https: bool) -> &'static [u8] {
    if https { b"443" } else { b"80" }
}

/// The host's length in an authority that is in its normal form already, as nearly all are: a name
/// in lower case, or an address, and perhaps a port that is not the scheme's default. `None` for
/// anything else.
fn plain(raw: &[u8], https: bool) -> Option<usize> {
    let stands = |byte: &u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.' | b'_')
    };
    let host = raw.iter().position(|byte| !stands(byte)).unwrap_or(raw.len());
    let (name, port) = raw.split_at_checked(host)?;
    let named = name.last().is_some_and(|last| *last != b'.');
    let is_normal = match port {
        [] => true,
        [b':', digits @ ..] => {
            (1..=PORT_MAX.len()).contains(&digits.len())
                && digits.iter().all(u8::is_ascii_digit)
                && digits.first() != Some(&b'0')
                && is_port(digits)
                && digits != default_port(https)
        }
        _ => false,
    };
    (named && is_normal).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::tests::settings;
    use crate::wire::Body;

    fn peer() -> Peer {
        let address = "192.0.2.1:5".parse().unwrap();
        Peer::plain(address, "192.0.2.9:8080".parse().unwrap())
    }

    fn ask(
        method: &str,
        uri: &str,
        hosts: &[&str],
        version: Version,
    ) -> (Result<Authority, Refusal>, Request) {
        let mut request = http::Request::builder().method(method).uri(uri).version(version);
        for host in hosts {
            request = request.header("host", *host);
        }
        let mut request = Request::from(request.body(Body::empty()).unwrap());
        let settings = Settings { uri_bytes_max: 100, ..settings() };
        (normalize(&mut request, false, &peer(), &settings), request)
    }

    fn get(uri: &str, hosts: &[&str]) -> Result<(Authority, Request), Refusal> {
        let (authority, request) = ask("GET", uri, hosts, Version::HTTP_11);
        authority.map(|authority| (authority, request))
    }

    fn path(uri: &str, hosts: &[&str]) -> String {
        get(uri, hosts).unwrap().1.target().to_owned()
    }

    fn host(request: &Request) -> Vec<&str> {
        request.fields.get_all(Known::Host).map(|host| std::str::from_utf8(host).unwrap()).collect()
    }

    #[test]
    fn a_standard_method_is_written_in_capitals() {
        for (method, forwarded) in [
            ("POST", true),
            ("post", false),
            ("pOSt", false),
            ("purge", true),
            ("PURGE", true),
            ("connect", false),
        ] {
            let read = ask(method, "/", &["h"], Version::HTTP_11).0;
            assert_eq!(read.is_ok(), forwarded, "{method}");
            assert!(forwarded || matches!(read, Err(Refusal::NotImplemented(_))), "{method}");
        }
    }

    #[test]
    fn the_path_is_made_normal_and_the_query_kept() {
        assert_eq!(path("/a?x=%61/../&y", &["h"]), "/a?x=%61/../&y");
        assert_eq!(path("/%61//b/?x=%61/../&y", &["h"]), "/a/b/?x=%61/../&y");
        let (authority, request) = get("/a?x=?&y", &["h"]).unwrap();
        let target = Target::of(&request, &authority, Paths::default(), &peer());
        assert_eq!(
            (target.path, target.query, target.authority.as_str()),
            ("/a", Some("x=?&y"), "h")
        );
    }

    #[test]
    fn the_authority_is_lower_case_without_the_schemes_port() {
        let authority = |host| get("/", &[host]).unwrap().0;
        assert_eq!(authority("Example.COM.").as_str(), "example.com");
        assert_eq!(authority("example.com:80").as_str(), "example.com");
        assert_eq!((authority("a:8080").as_str(), authority("a:8080").host()), ("a:8080", "a"));
        assert_eq!(
            (authority("[::1]:443").as_str(), authority("[::1]:443").host()),
            ("[::1]:443", "[::1]")
        );
        assert_eq!(authority("").as_str(), "");
        let ports = [("a:080", "a"), ("a:0443", "a:443"), ("a:00", "a:0"), ("a:65535", "a:65535")];
        for (host, normal) in ports {
            assert_eq!(authority(host).as_str(), normal, "{host}");
        }
        assert!(get("/", &["a:65536"]).is_err() && get("/", &["a:99999"]).is_err());
    }

    #[test]
    fn an_authority_in_its_normal_form_is_read_as_any_other() {
        for https in [false, true] {
            for raw in [
                "a",
                "a.b",
                "a:8080",
                "a:80",
                "a:443",
                "a:080",
                "a.:8080",
                "a.",
                ".",
                "",
                ":80",
                "a:",
                "A",
                "a_b-c.9:1",
                "a:0",
                "a:00",
                "a:08080",
                "a:65535",
                "a:65536",
                "a:123456",
                "a:x",
                "[::1]:8",
            ] {
                let read = Authority::read(raw.as_bytes(), https)
                    .ok()
                    .map(|read| (read.as_str().to_owned(), read.host().to_owned()));
                // No upper case name is in its normal form.
                let capitals = Authority::read(raw.to_ascii_uppercase().as_bytes(), https).ok();
                assert_eq!(
                    read,
                    capitals.map(|read| (read.as_str().to_owned(), read.host().to_owned())),
                    "{raw} {https}"
                );
                if let Some(host_bytes) = plain(raw.as_bytes(), https) {
                    assert_eq!(
                        read,
                        Some((raw.to_owned(), raw[..host_bytes].to_owned())),
                        "{raw} {https}"
                    );
                }
            }
        }
        assert!(
            plain(b"a.b", false).is_some()
                && plain(b"a:8080", true).is_some()
                && plain(b"a:80", false).is_none()
        );
    }

    #[test]
    fn an_absolute_target_counts_more_than_host() {
        let (authority, request) =
            ask("GET", "http://Real.example/x", &["other", "another"], Version::HTTP_11);
        assert_eq!(authority.unwrap().as_str(), "real.example");
        assert_eq!(host(&request), ["Real.example"]);
        for (empty, expected) in
            [("http://a", "/"), ("http://a#x", "/"), ("http://a?x", "/?x"), ("http://a?x#y", "/?x")]
        {
            assert_eq!(path(empty, &[]), expected, "{empty}");
        }
        // HTTP/1 leaves it like this if there is no path.
        assert_eq!(
            (
                normal("", true, Paths::default()).unwrap().as_deref(),
                normal("", false, Paths::default()).is_err()
            ),
            (Some("/"), true)
        );
        assert!(matches!(get("http://user@a/", &[]), Err(Refusal::BadRequest(_))));
    }

    #[test]
    fn one_host_and_only_a_host() {
        for hosts in [
            &[][..],
            &["a", "a"],
            &["a b"],
            &["a,b"],
            &["a/b"],
            &["u@a"],
            &["a:"],
            &["a:x"],
            &["a:123456"],
            &[":80"],
            &["[::1"],
            &["[g]"],
            &["a%00"],
        ] {
            let asked = get("/", hosts);
            if hosts == ["a:"] {
                assert_eq!(
                    asked.unwrap().0.as_str(),
                    "a",
                    "an empty port is allowed (RFC 3986, 3.2.3)"
                );
            } else {
                assert!(matches!(asked, Err(Refusal::BadRequest(_))), "{hosts:?}");
            }
        }
        let (authority, request) = ask("GET", "/", &[], Version::HTTP_10);
        assert_eq!(authority.unwrap().host(), "");
        assert_eq!(host(&request), ["192.0.2.9:8080"]);
    }

    #[test]
    fn other_forms_and_long_targets_have_their_own_answers() {
        let refused = |method, uri: &str| ask(method, uri, &["h"], Version::HTTP_11).0.unwrap_err();
        assert!(matches!(refused("CONNECT", "a:80"), Refusal::NotImplemented(_)));
        assert!(matches!(refused("TRACE", "/"), Refusal::NotImplemented(_)));
        assert!(matches!(refused("OPTIONS", "*"), Refusal::ServerOptions));
        assert!(matches!(refused("GET", "*"), Refusal::BadRequest(_)));
        assert!(matches!(
            refused("GET", &format!("/{}", "a".repeat(100))),
            Refusal::UriTooLong { limit_bytes: 100 }
        ));
        assert!(get(&format!("/{}", "a".repeat(99)), &["h"]).is_ok());
    }
}
