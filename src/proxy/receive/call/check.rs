//! Checks of Envoy's external authorization (`envoy.service.auth.v3`): reads which request a check
//! is about.

use http::{Method, Version};
use prost::Message as _;

use super::check_messages::{CheckRequest, HttpRequest, RawHeader};
use super::read_all;
use super::rls::unframed;
use crate::proxy::refusal::{Check, Refusal};
use crate::wire::{Body, Fields, Known, Request};

/// The path of the one call of the service.
pub(in crate::proxy) const CHECK: &str = "/envoy.service.auth.v3.Authorization/Check";
/// Maximum bytes of a check: a MiB of the request's body, and the largest head.
const CHECK_BYTES_MAX: usize = (1 << 20) + (256 << 10);

/// The request that a check is about.
///
/// # Errors
/// It came too slowly, is too long, or is none; or the request that it is about is wrong, which is
/// a [`Refusal::BadRequest`].
pub(in crate::proxy) async fn read(body: Body, buffered_max: usize) -> Result<Request, Refusal> {
    let (framed, _charge) = read_all(body, CHECK_BYTES_MAX, buffered_max).await?;
    let http = of(&framed).map_err(|found| Refusal::malformed(found.to_owned()))?;
    asked(http).map_err(|found| Refusal::BadRequest(Check::Call.wrong(found)))
}

fn of(framed: &[u8]) -> Result<HttpRequest, &'static str> {
    let check = CheckRequest::decode(unframed(framed)?).map_err(|_| "no CheckRequest")?;
    let http = check.attributes.and_then(|attributes| attributes.request?.http);
    http.ok_or("a check without a request")
}

fn asked(http: HttpRequest) -> Result<Request, &'static str> {
    let method = Method::from_bytes(&http.method).map_err(|_| "no method of a request")?;
    let target = std::str::from_utf8(&http.path).ok().filter(|target| {
        let is_odd = |byte: u8| byte <= b' ' || byte == b'#' || byte == 0x7f;
        target.starts_with('/') && !target.bytes().any(is_odd)
    });
    let target = target.ok_or("no path of a request")?;
    let mut fields = Fields::new();
    let mut add = |name: &str, value: &[u8]| -> Result<(), &'static str> {
        // Those that begin with a colon are parts of the request line. Envoy has read the framing.
        if name.starts_with(':') || name == "content-length" || name == "transfer-encoding" {
            return Ok(());
        }
        let name = http::HeaderName::from_bytes(name.as_bytes());
        let name = name.map_err(|_| "a name that is none of a field")?;
        http::HeaderValue::from_bytes(value).map_err(|_| "a value that is none of a field")?;
        fields.append(&name, value);
        Ok(())
    };
    match &http.header_map {
        Some(map) => {
            for RawHeader { key, value, raw_value } in &map.headers {
                add(key, if raw_value.is_empty() { value } else { raw_value })?;
            }
        }
        None => http.headers.iter().try_for_each(|(name, value)| add(name, value))?,
    }
    fields.set(Known::Host, &http.host);
    let body = if http.raw_body.is_empty() { http.body } else { http.raw_body };
    if !body.is_empty() {
        fields.set(Known::ContentLength, body.len().to_string());
    }
    let mut request = Request::for_target(method, Version::HTTP_11, fields, target);
    if !body.is_empty() {
        request.body = Body::full(body);
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use bytes::Bytes;

    use super::super::check_messages::{Attributes, AttributesRequest, HeaderMap};
    use super::super::rls::framed;
    use super::*;

    fn check(http: HttpRequest) -> Bytes {
        let request = Some(AttributesRequest { http: Some(http) });
        framed(&CheckRequest { attributes: Some(Attributes { request }) })
    }

    fn get(path: &str) -> HttpRequest {
        HttpRequest {
            method: b"GET".to_vec(),
            path: path.as_bytes().to_vec(),
            host: b"api.example".to_vec(),
            ..HttpRequest::default()
        }
    }

    #[test]
    fn a_request_is_what_the_check_says() {
        let headers = [(":path", "/other"), ("x-key", "a"), ("content-length", "7"), ("host", "b")];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec()));
        let http = HttpRequest {
            headers: HashMap::from(headers),
            raw_body: Bytes::from_static(b"{}"),
            ..get("/a?b=c")
        };
        let request = asked(of(&check(http)).unwrap()).unwrap();
        assert_eq!((request.method.as_str(), request.target()), ("GET", "/a?b=c"));
        let field = |name: &str| request.fields.get(name).map(<[u8]>::to_vec);
        assert_eq!(field("x-key").as_deref(), Some(&b"a"[..]));
        assert_eq!(field("host").as_deref(), Some(&b"api.example"[..]));
        assert_eq!(field("content-length").as_deref(), Some(&b"2"[..]));
        assert_eq!(request.body.data(), b"{}");
        let raw = |key: &str, raw: &[u8]| RawHeader {
            key: key.to_owned(),
            value: Vec::new(),
            raw_value: raw.to_vec(),
        };
        let headers = vec![raw("cookie", b"a=\xe9"), raw("cookie", b"b=2")];
        let http = HttpRequest { header_map: Some(HeaderMap { headers }), ..get("/") };
        let request = asked(of(&check(http)).unwrap()).unwrap();
        assert_eq!(request.fields.get_all("cookie").collect::<Vec<_>>(), [&b"a=\xe9"[..], b"b=2"]);
        assert!(request.body.data().is_empty());
    }

    #[test]
    fn what_envoy_never_sends_is_refused() {
        for (http, expected) in [
            (HttpRequest { method: b"G ET".to_vec(), ..get("/") }, "no method"),
            (get(""), "no path"),
            (get("//a b"), "no path"),
            (get("/#a"), "no path"),
            (
                HttpRequest {
                    headers: HashMap::from([("a b".to_owned(), Vec::new())]),
                    ..get("/")
                },
                "a name",
            ),
            (
                HttpRequest {
                    headers: HashMap::from([("a".to_owned(), b"b\r\nc: d".to_vec())]),
                    ..get("/")
                },
                "a value",
            ),
        ] {
            let Err(found) = asked(of(&check(http)).unwrap()) else { panic!("{expected}") };
            assert!(found.contains(expected), "{found}");
        }
        assert!(of(&framed(&CheckRequest::default())).is_err());
        assert!(of(b"").is_err());
    }
}
