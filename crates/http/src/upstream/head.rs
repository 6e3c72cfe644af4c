//! Converts a request's head to HTTP/2. Knows nothing of connections.

use http::header::{HOST, TE};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, Uri, Version};

use super::endpoint::Endpoint;
use super::outgoing::Outgoing;
use crate::wire::Request;

/// Fields that only HTTP/1.1 has (RFC 9113, 8.2.2).
const CONNECTION_FIELDS: [&str; 6] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
];

/// Converts origin form and `Host` to HTTP/2's scheme and authority. Without a `Host`, the
/// authority is the endpoint's.
pub(super) fn to_h2(
    request: &Request,
    body: Outgoing,
    endpoint: &Endpoint,
) -> http::Request<Outgoing> {
    let mut headers = request.fields.to_map();
    let authority = headers
        .remove(HOST)
        .and_then(|host| Authority::from_maybe_shared(bytes::Bytes::from_owner(host)).ok());
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(if endpoint.is_tls() { Scheme::HTTPS } else { Scheme::HTTP });
    parts.authority = Some(authority.unwrap_or_else(|| endpoint.authority.clone()));
    parts.path_and_query = request
        .target()
        .parse::<PathAndQuery>()
        .ok()
        .or_else(|| Some(PathAndQuery::from_static("/")));
    strip(&mut headers);
    let mut sent = http::Request::new(body);
    *sent.version_mut() = Version::HTTP_2;
    *sent.method_mut() = request.method.clone();
    *sent.headers_mut() = headers;
    if let Ok(uri) = Uri::from_parts(parts) {
        *sent.uri_mut() = uri;
    }
    sent
}

fn strip(headers: &mut HeaderMap) {
    for name in CONNECTION_FIELDS {
        headers.remove(name);
    }
    if headers.get(TE).is_some_and(|te| te != "trailers") {
        headers.remove(TE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Body;

    #[test]
    fn host_becomes_authority_and_what_belongs_to_a_connection_is_left_behind() {
        for (host, authority) in [
            (Some("api.example:8443"), "api.example:8443"),
            (None, "10.0.0.1:99"),
            (Some("not a host"), "10.0.0.1:99"),
        ] {
            let endpoint =
                super::super::endpoint::parse_all(&["https://10.0.0.1:99".to_owned().into()], None)
                    .unwrap()
                    .remove(0);
            let mut request = http::Request::get("/a?b=c")
                .header("te", "trailers")
                .header("transfer-encoding", "chunked")
                .header("x-a", "1");
            if let Some(host) = host {
                request = request.header("host", host);
            }
            let request = Request::from(request.body(Body::empty()).unwrap());
            let request = to_h2(&request, Outgoing::new(Body::empty()).0, &endpoint);
            assert_eq!(request.uri().to_string(), format!("https://{authority}/a?b=c"));
            let names: Vec<&str> = request.headers().keys().map(http::HeaderName::as_str).collect();
            assert_eq!(names, ["te", "x-a"]);
        }
    }
}
