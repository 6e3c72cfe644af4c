//! A request's head in the words of the protocol that it leaves by. Knows nothing of connections.

use http::header::{HOST, TE};
use http::request::Parts;
use http::uri::{Authority, Scheme};
use http::{HeaderMap, Uri, Version};

use super::endpoint::Endpoint;

/// Fields that only HTTP/1.1 has (RFC 9113, 8.2.2).
const CONNECTION_FIELDS: [&str; 6] = ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade", "http2-settings"];

/// From origin form and `Host` to HTTP/2's scheme and authority. Without a `Host` the endpoint itself is asked for.
pub(super) fn to_h2(head: &mut Parts, endpoint: &Endpoint) {
    head.version = Version::HTTP_2;
    let headers = &mut head.headers;
    let authority = headers.remove(HOST).and_then(|host| Authority::from_maybe_shared(bytes::Bytes::from_owner(host)).ok());
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(if endpoint.is_tls() { Scheme::HTTPS } else { Scheme::HTTP });
    parts.authority = Some(authority.unwrap_or_else(|| endpoint.authority.clone()));
    parts.path_and_query = head.uri.path_and_query().cloned().or_else(|| Some(http::uri::PathAndQuery::from_static("/")));
    if let Ok(uri) = Uri::from_parts(parts) {
        head.uri = uri;
    }
    strip(headers);
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

    #[test]
    fn host_becomes_authority_and_what_belongs_to_a_connection_is_left_behind() {
        for (host, authority) in
            [(Some("api.example:8443"), "api.example:8443"), (None, "10.0.0.1:99"), (Some("not a host"), "10.0.0.1:99")]
        {
            let endpoint = super::super::endpoint::parse_all("api", &["https://10.0.0.1:99".to_owned()], None).unwrap().remove(0);
            let mut request =
                http::Request::get("/a?b=c").header("te", "trailers").header("transfer-encoding", "chunked").header("x-a", "1");
            if let Some(host) = host {
                request = request.header("host", host);
            }
            let mut head = request.body(()).unwrap().into_parts().0;
            to_h2(&mut head, &endpoint);
            assert_eq!(head.uri.to_string(), format!("https://{authority}/a?b=c"));
            let names: Vec<&str> = head.headers.keys().map(http::HeaderName::as_str).collect();
            assert_eq!(names, ["te", "x-a"]);
        }
    }
}
