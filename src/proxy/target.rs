//! What a request asks for: its target's form, its authority and its path, in their normal forms. Knows no route.
//!
//! One authority and one path, or nothing: a request that names two hosts, or none, is refused here, before anyone could read it otherwise.

use http::header::HOST;
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, Version};
use smallvec::SmallVec;

use super::path;
use super::refusal::Refusal;
use crate::listen::Peer;

/// Bytes of a `Host` field or an authority, at most: a name of RFC 1035 and a port.
const AUTHORITY_BYTES_MAX: usize = 260;

/// A request's target.
#[derive(Debug)]
pub(super) struct Target {
    /// The normal path, and the query as it came.
    pub(super) path_and_query: PathAndQuery,
    /// Whom the client wants to talk to.
    pub(super) authority: Authority,
}

/// A host and perhaps a port: in lower case, without the scheme's own port and a final dot. Empty where an HTTP/1.0 client named none.
#[derive(Debug, Default)]
pub(super) struct Authority {
    text: SmallVec<[u8; 64]>,
    host_bytes: usize,
}

/// Methods that no route takes: a tunnel is not what Weir is, and an echo would show what is set for the upstream only.
pub(super) fn unsupported(method: &Method) -> bool {
    *method == Method::CONNECT || *method == Method::TRACE
}

/// A standard method in small letters is another method (RFC 9110, 9.1), which many a server takes for the standard one all the same: a limit on POST would
/// not be asked about `post`.
fn is_misspelt(method: &Method) -> bool {
    const STANDARD: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"];
    let text = method.as_str();
    text.bytes().any(|byte| byte.is_ascii_lowercase()) && STANDARD.iter().any(|standard| standard.eq_ignore_ascii_case(text))
}

/// Reads the target and leaves one `Host` that agrees with it.
///
/// # Errors
/// 400, 414 and 501.
pub(super) fn read(head: &mut Parts, https: bool, peer: &Peer, uri_bytes_max: usize) -> Result<Target, Refusal> {
    if unsupported(&head.method) {
        return Err(Refusal::NotImplemented("this method is not forwarded"));
    }
    if is_misspelt(&head.method) {
        return Err(Refusal::NotImplemented("methods are written in capitals"));
    }
    let Some(asked) = head.uri.path_and_query() else { return Err(Refusal::BadRequest("the target is no path")) };
    if asked.as_str().len() + head.uri.authority().map_or(0, |authority| authority.as_str().len()) > uri_bytes_max {
        return Err(Refusal::UriTooLong { limit_bytes: uri_bytes_max });
    }
    let path_and_query = if asked.as_str() == "*" { star(&head.method)? } else { normal(asked)? };
    let authority = authority(head, https, peer)?;
    Ok(Target { path_and_query, authority })
}

/// `OPTIONS *` asks about the server as a whole, which is no route.
fn star(method: &Method) -> Result<PathAndQuery, Refusal> {
    if *method == Method::OPTIONS { Err(Refusal::ServerOptions) } else { Err(Refusal::BadRequest("only OPTIONS may ask for `*`")) }
}

fn normal(asked: &PathAndQuery) -> Result<PathAndQuery, Refusal> {
    let normal = match path::normal(asked.path()).map_err(Refusal::BadRequest)? {
        // `http://host#x` has an empty path that says `/` when it is asked and is written as nothing.
        std::borrow::Cow::Borrowed("/") if asked.query().is_none() => return Ok(PathAndQuery::from_static("/")),
        std::borrow::Cow::Borrowed(_) if asked.as_str().starts_with('/') => return Ok(asked.clone()),
        normal => normal.into_owned(),
    };
    let text = match asked.query() {
        None => normal,
        Some(query) => [&normal, "?", query].concat(),
    };
    // Escaping can make a path three times as long, and longer than the crate holds.
    PathAndQuery::from_maybe_shared(bytes::Bytes::from(text)).map_err(|_| Refusal::BadRequest("the path is too long when it is escaped"))
}

/// The target's own authority counts more than `Host` (RFC 9112, 3.2.2), which is then made to agree.
fn authority(head: &mut Parts, https: bool, peer: &Peer) -> Result<Authority, Refusal> {
    if let Some(authority) = head.uri.authority() {
        let value = HeaderValue::from_str(authority.as_str()).map_err(|_| Refusal::BadRequest("the authority is no host"))?;
        let authority = Authority::read(value.as_bytes(), https)?;
        head.headers.insert(HOST, value);
        return Ok(authority);
    }
    if let Some(host) = only_host(&head.headers)? {
        return Authority::read(host.as_bytes(), https);
    }
    if head.version != Version::HTTP_10 {
        return Err(Refusal::BadRequest("there is no Host field"));
    }
    // The upstream is asked in HTTP/1.1, where there must be one: the address that the client reached.
    let local = super::text::Short::<64>::of(peer.local);
    if let Ok(value) = HeaderValue::from_str(local.as_str()) {
        head.headers.insert(HOST, value);
    }
    Ok(Authority::default())
}

fn only_host(headers: &HeaderMap) -> Result<Option<&HeaderValue>, Refusal> {
    let mut hosts = headers.get_all(HOST).iter();
    let first = hosts.next();
    if hosts.next().is_some() { Err(Refusal::BadRequest("there is more than one Host field")) } else { Ok(first) }
}

impl Authority {
    fn read(raw: &[u8], https: bool) -> Result<Self, Refusal> {
        const REFUSED: Refusal = Refusal::BadRequest("the Host field is no host");
        if raw.len() > AUTHORITY_BYTES_MAX {
            return Err(REFUSED);
        }
        // An IPv6 address stands in brackets; the port's colon comes after.
        let host_bytes = match raw.iter().position(|byte| *byte == b']') {
            Some(end) => end + 1,
            None => raw.iter().position(|byte| *byte == b':').unwrap_or(raw.len()),
        };
        let (host, port) = raw.split_at_checked(host_bytes).ok_or(REFUSED)?;
        let bracketed = host.first() == Some(&b'[');
        let fits = if bracketed {
            host.get(1..host.len() - 1)
                .is_some_and(|inner| inner.iter().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.')))
        } else {
            host.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'))
        };
        let digits = match port {
            [] => port,
            [b':', digits @ ..] if digits.len() <= 5 && digits.iter().all(u8::is_ascii_digit) && !host.is_empty() => digits,
            _ => return Err(REFUSED),
        };
        if !fits {
            return Err(REFUSED);
        }
        let host = host.strip_suffix(b".").unwrap_or(host);
        let mut text = SmallVec::from_slice(host);
        text.make_ascii_lowercase();
        if !digits.is_empty() && digits != if https { b"443".as_slice() } else { b"80" } {
            text.push(b':');
            text.extend_from_slice(digits);
        }
        Ok(Self { text, host_bytes: host.len() })
    }

    /// Host and port.
    pub(super) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.text).unwrap_or_default()
    }

    /// The same, where nobody need know again that it is text.
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.text
    }

    /// Without the port.
    pub(super) fn host(&self) -> &str {
        self.as_str().get(..self.host_bytes).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer() -> Peer {
        let address = "192.0.2.1:5".parse().unwrap();
        Peer::plain(address, "192.0.2.9:8080".parse().unwrap())
    }

    fn ask(method: &str, uri: &str, hosts: &[&str], version: Version) -> (Result<Target, Refusal>, HeaderMap) {
        let mut request = http::Request::builder().method(method).uri(uri).version(version);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        let (mut head, ()) = request.body(()).unwrap().into_parts();
        (read(&mut head, false, &peer(), 100), head.headers)
    }

    fn get(uri: &str, hosts: &[&str]) -> Result<Target, Refusal> {
        ask("GET", uri, hosts, Version::HTTP_11).0
    }

    #[test]
    fn a_standard_method_is_written_in_capitals() {
        for (method, forwarded) in [("POST", true), ("post", false), ("pOSt", false), ("purge", true), ("PURGE", true), ("connect", false)]
        {
            let read = ask(method, "/", &["h"], Version::HTTP_11).0;
            assert_eq!(read.is_ok(), forwarded, "{method}");
            assert!(forwarded || matches!(read, Err(Refusal::NotImplemented(_))), "{method}");
        }
    }

    #[test]
    fn the_path_is_made_normal_and_the_query_kept() {
        assert_eq!(get("/a?x=%61/../&y", &["h"]).unwrap().path_and_query.as_str(), "/a?x=%61/../&y");
        assert_eq!(get("/%61//b/?x=%61/../&y", &["h"]).unwrap().path_and_query.as_str(), "/a/b/?x=%61/../&y");
    }

    #[test]
    fn the_authority_is_lower_case_without_the_schemes_port() {
        let authority = |host| get("/", &[host]).unwrap().authority;
        assert_eq!(authority("Example.COM.").as_str(), "example.com");
        assert_eq!(authority("example.com:80").as_str(), "example.com");
        assert_eq!((authority("a:8080").as_str(), authority("a:8080").host()), ("a:8080", "a"));
        assert_eq!((authority("[::1]:443").as_str(), authority("[::1]:443").host()), ("[::1]:443", "[::1]"));
        assert_eq!(authority("").as_str(), "");
    }

    #[test]
    fn an_absolute_target_counts_more_than_host() {
        let (target, headers) = ask("GET", "http://real.example/x", &["other"], Version::HTTP_11);
        assert_eq!(target.unwrap().authority.as_str(), "real.example");
        assert_eq!(headers.get(HOST).unwrap(), "real.example");
        for (empty, path) in [("http://a", "/"), ("http://a#x", "/"), ("http://a?x", "/?x"), ("http://a?x#y", "/?x")] {
            // As it will be written: alone, an empty path is shown as `/`.
            assert_eq!(http::Uri::from(get(empty, &[]).unwrap().path_and_query).to_string(), path, "{empty}");
        }
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
                assert_eq!(asked.unwrap().authority.as_str(), "a", "an empty port is allowed (RFC 3986, 3.2.3)");
            } else {
                assert!(matches!(asked, Err(Refusal::BadRequest(_))), "{hosts:?}");
            }
        }
        let (target, headers) = ask("GET", "/", &[], Version::HTTP_10);
        assert_eq!(target.unwrap().authority.host(), "");
        assert_eq!(headers.get(HOST).unwrap(), "192.0.2.9:8080");
    }

    #[test]
    fn other_forms_and_long_targets_have_their_own_answers() {
        let refused = |method, uri: &str| ask(method, uri, &["h"], Version::HTTP_11).0.unwrap_err();
        assert!(matches!(refused("CONNECT", "a:80"), Refusal::NotImplemented(_)));
        assert!(matches!(refused("TRACE", "/"), Refusal::NotImplemented(_)));
        assert!(matches!(refused("OPTIONS", "*"), Refusal::ServerOptions));
        assert!(matches!(refused("GET", "*"), Refusal::BadRequest(_)));
        assert!(matches!(refused("GET", &format!("/{}", "a".repeat(100))), Refusal::UriTooLong { limit_bytes: 100 }));
        assert!(get(&format!("/{}", "a".repeat(99)), &["h"]).is_ok());
    }
}
