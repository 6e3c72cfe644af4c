//! What the upstream is told about the client and the request's way here. Knows no upstream and no
//! limit.
//!
//! `Host` is the client's. `X-Forwarded-For`, `-Proto`, `-Host` and `Forwarded` are
//! continued if a trusted proxy sent them and replaced otherwise, so that an upstream may trust
//! them. `Via` is not added: gateways omit it (nginx, Envoy), since upstreams compress less when
//! they see it. `Expect` is met when the body is first read, which is when `listen` sends `100
//! Continue`: a refused request never gets one.

use smallvec::SmallVec;

use crate::listen::Peer;
use crate::proxy::receive::Received;
use crate::proxy::receive::client::Client;
use crate::proxy::receive::id::Id;
use crate::proxy::receive::target::Authority;
use crate::wire::{Fields, Known, KnownSet, Request};

/// Turns a client's request into the upstream's. Its target is already normal and its hop-by-hop
/// fields are gone.
pub(in crate::proxy) fn prepare(
    request: &mut Request,
    authority: &Authority,
    peer: &Peer,
    received: &Received,
) {
    if let Some(trace) = &received.trace {
        trace.pass_on(&mut request.fields);
    }
    forwarding(&mut request.fields, authority, &received.client, peer, &received.id);
}

/// Writes the fields about the client, the request's way here, and its id.
fn forwarding(fields: &mut Fields, authority: &Authority, client: &Client, peer: &Peer, id: &Id) {
    if !client.trusted {
        return replace_forwarding(fields, authority, client, peer, id);
    }
    let list = take_list(fields, Known::ForwardedFor);
    fields.append_with(Known::ForwardedFor, |out| {
        out.extend_from_slice(&list);
        out.extend_from_slice(peer.ip.as_bytes());
    });
    let list = take_list(fields, Known::Forwarded);
    fields.append_with(Known::Forwarded, |out| {
        out.extend_from_slice(&list);
        push_forwarded(out, peer, authority.as_bytes());
    });
    if !fields.has(Known::ForwardedProto) {
        fields.append(Known::ForwardedProto, client.scheme());
    }
    if !fields.has(Known::ForwardedHost) {
        fields.append_value_of(Known::ForwardedHost, Known::Host);
    }
    fields.set(Known::RequestId, id.as_bytes());
    fields.remove(Known::Expect);
}

/// Like [`forwarding`] for an untrusted client, whose own forwarding fields are replaced.
fn replace_forwarding(
    fields: &mut Fields,
    authority: &Authority,
    client: &Client,
    peer: &Peer,
    id: &Id,
) {
    const REPLACED: KnownSet = KnownSet::of(&[
        Known::ForwardedFor,
        Known::Forwarded,
        Known::ForwardedProto,
        Known::ForwardedHost,
        Known::RequestId,
        Known::Expect,
    ]);
    fields.remove_all(REPLACED);
    fields.append(Known::ForwardedFor, peer.ip.as_bytes());
    fields.append_with(Known::Forwarded, |out| push_forwarded(out, peer, authority.as_bytes()));
    fields.append(Known::ForwardedProto, client.scheme());
    fields.append_value_of(Known::ForwardedHost, Known::Host);
    fields.append(Known::RequestId, id.as_bytes());
}

/// Removes a list that is to be continued: all its lines as one, with a comma at the end.
fn take_list(fields: &mut Fields, name: Known) -> SmallVec<[u8; 64]> {
    let mut list = SmallVec::new();
    for value in fields.get_all(name).map(<[u8]>::trim_ascii).filter(|value| !value.is_empty()) {
        list.extend_from_slice(value);
        list.extend_from_slice(b", ");
    }
    fields.remove(name);
    list
}

/// One element of `Forwarded` (RFC 7239).
fn push_forwarded(out: &mut Vec<u8>, peer: &Peer, authority: &[u8]) {
    out.extend_from_slice(b"for=");
    push_node(out, peer.ip.as_bytes());
    if !authority.is_empty() {
        out.extend_from_slice(b";host=");
        push_quoted(out, authority, authority.iter().any(|byte| matches!(byte, b':' | b'[')));
    }
    out.extend_from_slice(if peer.tls { b";proto=https" } else { b";proto=http" });
}

/// An IPv6 address is written in brackets and quotes (RFC 7239, 6).
fn push_node(text: &mut Vec<u8>, address: &[u8]) {
    let (open, close): (&[u8], &[u8]) =
        if address.contains(&b':') { (b"\"[", b"]\"") } else { (b"", b"") };
    text.extend_from_slice(open);
    text.extend_from_slice(address);
    text.extend_from_slice(close);
}

fn push_quoted(text: &mut Vec<u8>, value: &[u8], quotes: bool) {
    // An authority was checked: it contains neither quotes nor backslashes.
    let mark: &[u8] = if quotes { b"\"" } else { b"" };
    text.extend_from_slice(mark);
    text.extend_from_slice(value);
    text.extend_from_slice(mark);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::decide::policy_fields;
    use crate::proxy::tests::settings;
    use crate::wire::Body;

    fn prepared(from: &str, fields: &[(&str, &str)], wanted: &[(&str, &str)]) -> Request {
        let mut request = http::Request::builder().uri("/%61?q").header("host", "Api.example:8080");
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let mut request = Request::from(request.body(Body::empty()).unwrap());
        let address = from.parse().unwrap();
        let peer = Peer::plain(address, address);
        let client = Client::of(&request.fields, &peer, &["10.0.0.0/8".parse().unwrap()]);
        let authority =
            crate::proxy::receive::target::normalize(&mut request, false, &peer, &settings())
                .unwrap();
        let wanted: Vec<_> =
            wanted.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let wanted = policy_fields::parse(&wanted).unwrap();
        forwarding(&mut request.fields, &authority, &client, &peer, &Id::fresh());
        policy_fields::set(&mut request.fields, &wanted, false);
        request
    }

    #[track_caller]
    fn has(request: &Request, name: &str, expected: &[&str]) {
        let found: Vec<&str> =
            request.fields.get_all(name).map(|value| std::str::from_utf8(value).unwrap()).collect();
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
        assert_eq!(head.target(), "/a?q");
        has(&head, "host", &["Api.example:8080"]);
        has(&head, "x-forwarded-for", &["192.0.2.1"]);
        has(&head, "x-forwarded-proto", &["http"]);
        has(&head, "x-forwarded-host", &["Api.example:8080"]);
        has(&head, "forwarded", &["for=192.0.2.1;host=\"api.example:8080\";proto=http"]);
        let ids: Vec<&[u8]> = head.fields.get_all(Known::RequestId).collect();
        assert!(ids.len() == 1 && ids[0].len() == 32, "{ids:?}");
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
        has(
            &head,
            "forwarded",
            &["for=1.1.1.1, for=10.0.0.9;host=\"api.example:8080\";proto=http"],
        );
    }

    #[test]
    fn an_ipv6_node_is_bracketed_and_quoted() {
        let head = prepared("[2001:db8::1]:5", &[], &[]);
        has(&head, "x-forwarded-for", &["2001:db8::1"]);
        has(&head, "forwarded", &["for=\"[2001:db8::1]\";host=\"api.example:8080\";proto=http"]);
    }

    #[test]
    fn a_policys_fields_are_set_byte_for_byte() {
        let head = prepared(
            "192.0.2.1:5",
            &[("x-plan", "forged")],
            &[("X-Plan", "gold"), ("x-plan", "caf\u{e9}")],
        );
        let found: Vec<&[u8]> = head.fields.get_all("x-plan").collect();
        assert_eq!(found, [b"gold".as_slice(), b"caf\xE9"]);
    }
}
