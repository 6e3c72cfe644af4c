//! Fields that belong to one connection and are not forwarded (RFC 9110, 7.6.1). Knows no route.
//!
//! A request's are taken off before the policy looks: it must see what the upstream will see. Otherwise `Connection: x-api-key` would show a key
//! to the policy and hide it from the upstream, and each invented key would have an allowance of its own.

use http::header::{CONNECTION, COOKIE, FORWARDED, HeaderMap, HeaderName, HeaderValue, TE, TRAILER, TRANSFER_ENCODING, UPGRADE};
use smallvec::SmallVec;

use super::refusal::Refusal;

/// Takes the connection's own fields off a request.
///
/// `TE` is left only as `trailers`, which every hop here can do; without `Connection: te`, as that would concern the next connection, whose
/// fields are the upstream room's. What a client that is no trusted proxy says in a proxy's name goes too: an upstream may believe all of
/// `X-Forwarded-*`, not only those that we set.
///
/// Says which protocol the client would rather speak.
///
/// # Errors
/// 501 for a transfer coding other than `chunked`: its bytes would be forwarded as if they were the content.
pub(super) fn strip_request(headers: &mut HeaderMap, trusted: bool) -> Result<Option<HeaderValue>, Refusal> {
    let (mut codings, mut known) = (0, true);
    for coding in headers.get_all(TRANSFER_ENCODING) {
        codings += 1;
        known &= coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
    }
    if !known {
        return Err(Refusal::NotImplemented("only the transfer coding chunked is known"));
    }
    if codings > 1 {
        // RFC 9112, 6.1: never twice. A proxy before us may have read it as nested.
        return Err(Refusal::BadRequest("chunked stands twice"));
    }
    let trailers = headers.get_all(TE).iter().any(|value| tokens(value).any(|token| token.eq_ignore_ascii_case(b"trailers")));
    let upgrade = strip(headers);
    if !trusted {
        disbelieve(headers);
    }
    // A trailer is sent on only where it is announced. One of these would reach an upstream that merges trailers into fields, past us.
    if headers
        .get_all(TRAILER)
        .iter()
        .flat_map(tokens)
        .any(|name| HeaderName::from_bytes(name).is_ok_and(|name| is_end_to_end(name.as_str())))
    {
        headers.remove(TRAILER);
    }
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    Ok(upgrade)
}

/// HTTP/2 clients may send a cookie field in crumbs, which nobody else understands (RFC 9113, 8.2.3).
pub(super) fn join_cookies(headers: &mut HeaderMap) {
    let mut crumbs = headers.get_all(COOKIE).iter();
    if crumbs.next().is_none() || crumbs.next().is_none() {
        return;
    }
    let whole: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    // Of field values, with visible bytes between them.
    if let Ok(whole) = HeaderValue::from_maybe_shared(bytes::Bytes::from(whole.join(b"; ".as_slice()))) {
        headers.insert(COOKIE, whole);
    }
}

/// Takes off what only a proxy may say of its client.
fn disbelieve(headers: &mut HeaderMap) {
    let said = |name: &&HeaderName| *name == FORWARDED || name.as_str() == "x-real-ip" || name.as_str().starts_with("x-forwarded-");
    let doomed: SmallVec<[HeaderName; 4]> = headers.keys().filter(said).cloned().collect();
    for name in doomed {
        headers.remove(name);
    }
}

/// Takes the connection's own fields off a reply, or off what is left of a request, and says which protocol it would change to. `Trailer` stays: trailers
/// are forwarded.
pub(super) fn strip(headers: &mut HeaderMap) -> Option<HeaderValue> {
    let mut doomed: SmallVec<[HeaderName; 4]> = SmallVec::new();
    for name in headers.keys() {
        if is_hop_by_hop(name.as_str()) {
            doomed.push(name.clone());
        }
    }
    if doomed.is_empty() {
        return None;
    }
    let upgrade = upgrade(headers);
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
    upgrade
}

/// The one protocol in `Upgrade`, where `Connection` says that it is meant. A choice of several is left alone, as it may be (RFC 9110, 7.8).
fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut wishes = headers.get_all(UPGRADE).iter();
    let wish = wishes.next().filter(|wish| !wish.is_empty() && !wish.as_bytes().contains(&b','))?;
    let meant = headers.get_all(CONNECTION).iter().flat_map(tokens).any(|token| token.eq_ignore_ascii_case(b"upgrade"));
    (meant && wishes.next().is_none()).then(|| wish.clone())
}

/// Takes off trailers what may not come after the content: where a message ends, whom it is for, who asks. An upstream that merges trailers into
/// fields would else get it past whoever looked at those.
pub(super) fn sift_trailers(trailers: &mut HeaderMap) {
    let late = |name: &&HeaderName| {
        let name = name.as_str();
        is_reserved(name) || is_end_to_end(name) || matches!(name, "authorization" | "cookie" | "set-cookie")
    };
    let doomed: SmallVec<[HeaderName; 4]> = trailers.keys().filter(late).cloned().collect();
    for name in doomed {
        trailers.remove(name);
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
            // What this proxy says of itself: another one's word would be taken for ours.
            | "weir-degraded"
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
        strip_request(&mut found, true).unwrap();
        assert_eq!(found, headers(&[("trailer", "x-sum"), ("accept", "*/*")]));
    }

    #[test]
    fn connection_names_neither_framing_nor_what_proxies_say() {
        let kept =
            [("host", "a"), ("content-length", "1"), ("x-forwarded-for", "1.1.1.1"), ("forwarded", "for=1.1.1.1"), ("x-request-id", "i")];
        let mut found = headers(&kept);
        found.insert(CONNECTION, "host, content-length, x-forwarded-for, forwarded, x-request-id".parse().unwrap());
        strip_request(&mut found, true).unwrap();
        assert_eq!(found, headers(&kept));
    }

    #[test]
    fn of_te_only_trailers_is_left() {
        let mut found = headers(&[("te", "gzip, Trailers"), ("connection", "te")]);
        strip_request(&mut found, true).unwrap();
        assert_eq!(found, headers(&[("te", "trailers")]));
        let mut found = headers(&[("te", "gzip")]);
        strip_request(&mut found, true).unwrap();
        assert!(found.is_empty());
    }

    #[test]
    fn a_coding_that_we_would_not_undo_is_refused() {
        for coding in ["gzip, chunked", "identity", "chunked, chunked"] {
            assert!(strip_request(&mut headers(&[("transfer-encoding", coding)]), true).is_err(), "{coding}");
        }
        assert!(strip_request(&mut headers(&[("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")]), true).is_err());
        assert!(strip_request(&mut headers(&[("transfer-encoding", "Chunked ")]), true).is_ok());
    }

    #[test]
    fn only_a_trusted_proxy_speaks_of_its_client() {
        let said = [
            ("x-forwarded-for", "1.1.1.1"),
            ("x-forwarded-port", "443"),
            ("x-forwarded-prefix", "/admin"),
            ("x-real-ip", "1.1.1.1"),
            ("forwarded", "for=1.1.1.1"),
            ("accept", "*/*"),
        ];
        let mut found = headers(&said);
        strip_request(&mut found, true).unwrap();
        assert_eq!(found, headers(&said));
        strip_request(&mut found, false).unwrap();
        assert_eq!(found, headers(&said[5..]));
    }

    #[test]
    fn a_wish_for_another_protocol_is_told_where_it_is_meant_and_clear() {
        for (fields, expected) in [
            (&[("connection", "Upgrade"), ("upgrade", "WebSocket")][..], Some("WebSocket")),
            (&[("connection", "keep-alive, upgrade"), ("upgrade", "x/1")], Some("x/1")),
            (&[("upgrade", "websocket")], None),
            (&[("connection", "close"), ("upgrade", "websocket")], None),
            (&[("connection", "upgrade"), ("upgrade", "websocket, x")], None),
            (&[("connection", "upgrade"), ("upgrade", "websocket"), ("upgrade", "x")], None),
            (&[("connection", "upgrade"), ("upgrade", "")], None),
            (&[("connection", "upgrade")], None),
        ] {
            let mut found = headers(fields);
            assert_eq!(strip_request(&mut found, false).unwrap().as_ref().map(|value| value.to_str().unwrap()), expected, "{fields:?}");
            assert!(found.is_empty(), "{found:?}");
        }
    }

    #[test]
    fn trailers_say_nothing_that_must_be_known_before() {
        let mut found = headers(&[
            ("grpc-status", "0"),
            ("x-forwarded-for", "1"),
            ("content-length", "1"),
            ("connection", "x"),
            ("cookie", "a"),
            ("x-sum", "1"),
        ]);
        sift_trailers(&mut found);
        assert_eq!(found, headers(&[("grpc-status", "0"), ("x-sum", "1")]));
    }

    #[test]
    fn what_we_say_of_a_client_is_no_trailer() {
        for (announced, kept) in [("x-sum", true), ("x-sum, X-Forwarded-For", false), ("host", false), ("x-request-id", false)] {
            let mut found = headers(&[("trailer", announced)]);
            strip_request(&mut found, true).unwrap();
            assert_eq!(found.contains_key(TRAILER), kept, "{announced}");
        }
    }
}
