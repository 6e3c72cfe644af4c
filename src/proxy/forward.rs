//! The request as the upstream gets it: origin form, whose it is, what the policy adds. Knows no upstream and no limit.
//!
//! `Host` is the client's. `X-Forwarded-For`, `-Proto`, `-Host` and `Forwarded` are continued when a trusted proxy brought them and begun anew
//! otherwise, so that an upstream may believe them. `Via` is not added: gateways leave it off (nginx, Envoy), since upstreams compress less when they see it.
//! `Expect` has been met by whoever polls the body, which is when hyper sends `100 Continue`: a refused request never gets one.

use http::header::{EXPECT, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, SET_COOKIE, VARY};
use http::request::Parts;
use http::{Uri, Version};
use smallvec::SmallVec;

use super::client::{Client, FORWARDED_FOR, FORWARDED_PROTO};
use super::hop;
use super::id::REQUEST_ID;
use super::target::Target;
use crate::listen::Peer;

static FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// What `X-Forwarded-For` and `Forwarded` take as a rule.
const FORWARDED_BYTES: usize = 192;

/// Fields that a policy sets, checked.
pub(super) type PolicyFields = SmallVec<[(HeaderName, HeaderValue); 2]>;

/// Turns a client's request, its hop-by-hop fields gone already, into the upstream's. `more` fields will follow.
pub(super) fn prepare(head: &mut Parts, target: Target, client: &Client, peer: &Peer, id: &HeaderValue, more: usize) {
    let headers = &mut head.headers;
    headers.reserve(5 + more);
    let (forwarded_for, forwarded) = forwarded(headers, &target, client, peer);
    headers.insert(&FORWARDED_FOR, forwarded_for);
    headers.insert(FORWARDED, forwarded);
    if !client.trusted || !headers.contains_key(&FORWARDED_PROTO) {
        headers.insert(&FORWARDED_PROTO, HeaderValue::from_static(client.scheme()));
    }
    if (!client.trusted || !headers.contains_key(&FORWARDED_HOST))
        && let Some(host) = headers.get(HOST).cloned()
    {
        headers.insert(&FORWARDED_HOST, host);
    }
    headers.insert(&REQUEST_ID, id.clone());
    headers.remove(EXPECT);
    head.uri = Uri::from(target.path_and_query);
    head.version = Version::HTTP_11;
}

/// `X-Forwarded-For` and `Forwarded`, which share their memory.
fn forwarded(headers: &HeaderMap, target: &Target, client: &Client, peer: &Peer) -> (HeaderValue, HeaderValue) {
    let mut text: Vec<u8> = Vec::with_capacity(FORWARDED_BYTES);
    if client.trusted {
        continue_list(&mut text, headers, &FORWARDED_FOR);
    }
    let address = client.peer.as_bytes();
    text.extend_from_slice(address);
    let middle = text.len();
    if client.trusted {
        continue_list(&mut text, headers, &FORWARDED);
    }
    text.extend_from_slice(b"for=");
    push_node(&mut text, address);
    let authority = target.authority.as_bytes();
    if !authority.is_empty() {
        text.extend_from_slice(b";host=");
        push_quoted(&mut text, authority, authority.iter().any(|byte| matches!(byte, b':' | b'[')));
    }
    text.extend_from_slice(if peer.tls { b";proto=https" } else { b";proto=http" });
    let text = bytes::Bytes::from(text);
    let value = |bytes| HeaderValue::from_maybe_shared(bytes).unwrap_or_else(|_| HeaderValue::from_static("unknown"));
    (value(text.slice(..middle)), value(text.slice(middle..)))
}

/// A node's IPv6 address stands in brackets and quotes (RFC 7239, 6).
fn push_node(text: &mut Vec<u8>, address: &[u8]) {
    let (open, close): (&[u8], &[u8]) = if address.contains(&b':') { (b"\"[", b"]\"") } else { (b"", b"") };
    text.extend_from_slice(open);
    text.extend_from_slice(address);
    text.extend_from_slice(close);
}

fn push_quoted(text: &mut Vec<u8>, value: &[u8], quotes: bool) {
    // An authority was checked: it holds neither quotes nor backslashes.
    let mark: &[u8] = if quotes { b"\"" } else { b"" };
    text.extend_from_slice(mark);
    text.extend_from_slice(value);
    text.extend_from_slice(mark);
}

/// All lines of a list as one, with a comma after it for what follows.
fn continue_list(text: &mut Vec<u8>, headers: &HeaderMap, name: &HeaderName) {
    for value in headers.get_all(name) {
        let value = value.as_bytes().trim_ascii();
        if !value.is_empty() {
            text.extend_from_slice(value);
            text.extend_from_slice(b", ");
        }
    }
}

/// Checks fields that a policy wants set: Latin-1 as it was shown, no hop-by-hop field, no framing, no Host.
///
/// # Errors
/// The name of the first that can't be.
pub(super) fn policy_fields(wanted: &[(String, String)]) -> Result<PolicyFields, &str> {
    let mut fields = PolicyFields::new();
    for (name, value) in wanted {
        let header = HeaderName::from_bytes(name.as_bytes()).ok().filter(|header| !hop::is_reserved(header.as_str()));
        let bytes: Option<Vec<u8>> = value.chars().map(|point| u8::try_from(u32::from(point)).ok()).collect();
        match (header, bytes.and_then(|bytes| HeaderValue::from_maybe_shared(bytes::Bytes::from(bytes)).ok())) {
            (Some(header), Some(value)) => fields.push((header, value)),
            _ => return Err(name),
        }
    }
    Ok(fields)
}

/// Sets a policy's fields: the first of a name replaces what was there, further ones are added to it. Cookies and `Vary` only ever grow.
pub(super) fn set(headers: &mut HeaderMap, fields: &PolicyFields) {
    for (place, (name, value)) in fields.iter().enumerate() {
        let grows = *name == SET_COOKIE || *name == VARY || fields.iter().take(place).any(|(earlier, _)| earlier == name);
        if grows {
            headers.append(name, value.clone());
        } else {
            headers.insert(name, value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(from: &str, fields: &[(&str, &str)], wanted: &[(&str, &str)]) -> Parts {
        let mut request = http::Request::builder().uri("/%61?q").version(Version::HTTP_10).header("host", "Api.example:8080");
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let (mut head, ()) = request.body(()).unwrap().into_parts();
        let address = from.parse().unwrap();
        let peer = Peer::plain(address, address);
        let client = Client::of(&head.headers, &peer, &["10.0.0.0/8".parse().unwrap()]);
        let target = super::super::target::read(&mut head, false, &peer, 100).unwrap();
        let wanted: Vec<_> = wanted.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let fields = policy_fields(&wanted).unwrap();
        prepare(&mut head, target, &client, &peer, &HeaderValue::from_static("id-1"), fields.len());
        set(&mut head.headers, &fields);
        head
    }

    #[track_caller]
    fn has(head: &Parts, name: &str, expected: &[&str]) {
        let found: Vec<&str> = head.headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect();
        assert_eq!(found, expected, "{name}");
    }

    #[test]
    fn a_strangers_word_about_itself_is_replaced() {
        let head = prepared(
            "192.0.2.1:5",
            &[
                ("x-forwarded-for", "1.1.1.1"),
                ("x-forwarded-proto", "https"),
                ("x-forwarded-host", "evil"),
                ("forwarded", "for=1.1.1.1"),
                ("x-request-id", "mine"),
                ("expect", "100-continue"),
            ],
            &[],
        );
        assert_eq!(head.uri, "/a?q");
        assert_eq!(head.version, Version::HTTP_11);
        has(&head, "host", &["Api.example:8080"]);
        has(&head, "x-forwarded-for", &["192.0.2.1"]);
        has(&head, "x-forwarded-proto", &["http"]);
        has(&head, "x-forwarded-host", &["Api.example:8080"]);
        has(&head, "forwarded", &["for=192.0.2.1;host=\"api.example:8080\";proto=http"]);
        has(&head, "x-request-id", &["id-1"]);
        has(&head, "expect", &[]);
    }

    #[test]
    fn a_trusted_proxys_word_is_continued() {
        let head = prepared(
            "10.0.0.9:5",
            &[
                ("x-forwarded-for", "1.1.1.1"),
                ("x-forwarded-for", "10.0.0.1"),
                ("x-forwarded-proto", "https"),
                ("x-forwarded-host", "shop.example"),
                ("forwarded", "for=1.1.1.1"),
            ],
            &[],
        );
        has(&head, "x-forwarded-for", &["1.1.1.1, 10.0.0.1, 10.0.0.9"]);
        has(&head, "x-forwarded-proto", &["https"]);
        has(&head, "x-forwarded-host", &["shop.example"]);
        has(&head, "forwarded", &["for=1.1.1.1, for=10.0.0.9;host=\"api.example:8080\";proto=http"]);
    }

    #[test]
    fn an_ipv6_node_is_bracketed_and_quoted() {
        let head = prepared("[2001:db8::1]:5", &[], &[]);
        has(&head, "x-forwarded-for", &["2001:db8::1"]);
        has(&head, "forwarded", &["for=\"[2001:db8::1]\";host=\"api.example:8080\";proto=http"]);
    }

    #[test]
    fn a_policys_fields_are_set_byte_for_byte() {
        let head = prepared("192.0.2.1:5", &[("x-plan", "forged")], &[("X-Plan", "gold"), ("x-plan", "caf\u{e9}")]);
        let found: Vec<&[u8]> = head.headers.get_all("x-plan").iter().map(HeaderValue::as_bytes).collect();
        assert_eq!(found, [b"gold".as_slice(), b"caf\xE9"]);
    }

    #[test]
    fn a_policy_sets_no_framing_and_nothing_that_is_no_field() {
        for (name, value) in [("host", "a"), ("Content-Length", "1"), ("connection", "x"), ("a b", "x"), ("x", "a\r\nb"), ("x", "\u{20ac}")]
        {
            assert_eq!(policy_fields(&[(name.into(), value.into())]).map(|_| ()), Err(name));
        }
    }

    #[test]
    fn cookies_only_grow() {
        let mut headers = HeaderMap::new();
        headers.insert(SET_COOKIE, HeaderValue::from_static("a=1"));
        set(&mut headers, &policy_fields(&[("set-cookie".into(), "b=2".into())]).unwrap());
        assert_eq!(headers.get_all(SET_COOKIE).iter().count(), 2);
    }
}
