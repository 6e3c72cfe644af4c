//! Fields that belong to one connection and are not forwarded (RFC 9110, 7.6.1). Knows no route.
//!
//! A request's are taken off before the policy looks: it must see what the upstream will see. Otherwise `Connection: x-api-key` would show a key
//! to the policy and hide it from the upstream, and each invented key would have an allowance of its own.

use http::header::{CONNECTION, HeaderMap, HeaderName, HeaderValue, TE, TRANSFER_ENCODING};
use smallvec::SmallVec;

use super::refusal::Refusal;

/// Takes the connection's own fields off a request.
///
/// `TE` is left only as `trailers`, which every hop here can do; without `Connection: te`, as that would concern the next connection, whose
/// fields are the upstream room's.
///
/// # Errors
/// 501 for a transfer coding other than `chunked`: its bytes would be forwarded as if they were the content.
pub(super) fn strip_request(headers: &mut HeaderMap) -> Result<(), Refusal> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    if codings.any(|coding| !coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked")) {
        return Err(Refusal::NotImplemented("only the transfer coding chunked is known"));
    }
    let trailers = headers.get_all(TE).iter().any(|value| tokens(value).any(|token| token.eq_ignore_ascii_case(b"trailers")));
    strip(headers);
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    Ok(())
}

/// Takes the connection's own fields off a reply, or off what is left of a request. `Trailer` stays: trailers are forwarded.
pub(super) fn strip(headers: &mut HeaderMap) {
    let mut doomed: SmallVec<[HeaderName; 4]> = SmallVec::new();
    for name in headers.keys() {
        if is_hop_by_hop(name.as_str()) {
            doomed.push(name.clone());
        }
    }
    if doomed.is_empty() {
        return;
    }
    for token in headers.get_all(CONNECTION).iter().flat_map(tokens) {
        // What is no name names no field.
        if let Ok(name) = HeaderName::from_bytes(token)
            && !is_end_to_end(name.as_str())
        {
            doomed.push(name);
        }
    }
    for name in doomed {
        headers.remove(name);
    }
}

/// Fields that a policy may not set: those of a connection, and those that say where a message ends or whom it is for.
pub(super) fn is_reserved(name: &str) -> bool {
    is_hop_by_hop(name) || matches!(name, "host" | "content-length" | "trailer" | "expect")
}

fn is_hop_by_hop(name: &str) -> bool {
    matches!(
        name,
        "connection"
            | "keep-alive"
            | "proxy-connection"
            | "te"
            | "transfer-encoding"
            | "upgrade"
            | "http2-settings"
            | "proxy-authenticate"
            | "proxy-authorization"
    )
}

/// Fields that `Connection` can't take away: framing, the target, and what proxies tell each other about the client.
fn is_end_to_end(name: &str) -> bool {
    matches!(name, "host" | "content-length" | "content-type" | "cache-control" | "forwarded" | "via" | "x-real-ip" | "x-request-id")
        || name.starts_with("x-forwarded-")
}

fn tokens(value: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn the_connections_own_fields_and_those_it_names_are_taken_off() {
        let mut found = headers(&[
            ("connection", "close, X-Secret, é"),
            ("Connection", "x-other ,keep-alive"),
            ("keep-alive", "timeout=5"),
            ("x-secret", "1"),
            ("x-other", "1"),
            ("x-other", "2"),
            ("upgrade", "websocket"),
            ("proxy-authorization", "Basic x"),
            ("transfer-encoding", "chunked"),
            ("trailer", "x-sum"),
            ("accept", "*/*"),
        ]);
        strip_request(&mut found).unwrap();
        assert_eq!(found, headers(&[("trailer", "x-sum"), ("accept", "*/*")]));
    }

    #[test]
    fn connection_names_neither_framing_nor_what_proxies_say() {
        let kept =
            [("host", "a"), ("content-length", "1"), ("x-forwarded-for", "1.1.1.1"), ("forwarded", "for=1.1.1.1"), ("x-request-id", "i")];
        let mut found = headers(&kept);
        found.insert(CONNECTION, "host, content-length, x-forwarded-for, forwarded, x-request-id".parse().unwrap());
        strip_request(&mut found).unwrap();
        assert_eq!(found, headers(&kept));
    }

    #[test]
    fn of_te_only_trailers_is_left() {
        let mut found = headers(&[("te", "gzip, Trailers"), ("connection", "te")]);
        strip_request(&mut found).unwrap();
        assert_eq!(found, headers(&[("te", "trailers")]));
        let mut found = headers(&[("te", "gzip")]);
        strip_request(&mut found).unwrap();
        assert!(found.is_empty());
    }

    #[test]
    fn a_coding_that_we_would_not_undo_is_refused() {
        for coding in ["gzip, chunked", "identity", "chunked, chunked"] {
            assert!(strip_request(&mut headers(&[("transfer-encoding", coding)])).is_err(), "{coding}");
        }
        assert!(strip_request(&mut headers(&[("transfer-encoding", "Chunked ")])).is_ok());
    }
}
