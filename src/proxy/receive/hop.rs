//! Hop-by-hop fields, which are not forwarded (RFC 9110, 7.6.1). Knows no route.
//!
//! A request's are removed before the policy sees it: it must see what the upstream will see.
//! Otherwise `Connection: x-api-key` would show a key to the policy and hide it from the upstream,
//! and each invented key would have an allowance of its own.
//!
//! Most messages have none of these fields. The set of known names that are present shows that
//! without a search.

use http::HeaderMap;
use http::header::HeaderName;
use smallvec::SmallVec;

use crate::plan::is_reserved_field;
use crate::spelling::is_ambiguous;
use crate::wire::{Fields, Known, KnownSet};

/// A connection's own fields.
const HOP_BY_HOP: KnownSet = KnownSet::OF_CONNECTIONS.with(KnownSet::of(&[
    Known::Http2Settings,
    Known::ProxyAuthenticate,
    Known::ProxyAuthorization,
    // This proxy's own field. A client or upstream that sends it would seem to speak for us.
    Known::WeirDegraded,
]));

/// Fields that `Connection` can't remove: framing, the target, and what proxies tell each other
/// about the client. The same goes for all `X-Forwarded-*`.
const END_TO_END: KnownSet = KnownSet::of(&[
    Known::Host,
    Known::ContentLength,
    Known::ContentType,
    Known::CacheControl,
    Known::Forwarded,
    Known::Via,
    Known::RealIp,
    Known::RequestId,
    Known::ForwardedFor,
    Known::ForwardedProto,
    Known::ForwardedHost,
]);

/// What only a proxy may say about its client. The same goes for all `X-Forwarded-*`.
const CLIENT_FIELDS: KnownSet = KnownSet::of(&[
    Known::Forwarded,
    Known::RealIp,
    Known::ForwardedFor,
    Known::ForwardedProto,
    Known::ForwardedHost,
]);

/// Never accepted in a trailer: credentials and cookies, and what traces say.
const NOT_LATE: KnownSet = KnownSet::of(&[
    Known::Authorization,
    Known::Cookie,
    Known::SetCookie,
    Known::TraceParent,
    Known::Origin,
]);

/// Fields that are never accepted in another spelling of their names, besides the hop-by-hop ones:
/// framing, the target, and what Weir itself says.
const ONE_SPELLING: KnownSet = KnownSet::of(&[
    Known::Host,
    Known::ContentLength,
    Known::Trailer,
    Known::Expect,
    Known::RequestId,
    Known::TraceParent,
]);

/// A name or a protocol, copied out of fields that are being changed.
pub(in crate::proxy) type Text = SmallVec<[u8; 24]>;

/// Options that `Connection` may have, at most: each is looked for among all fields.
const CONNECTION_OPTIONS_MAX: usize = 32;
/// The message to a client that sends more.
pub(in crate::proxy) const TOO_MANY_OPTIONS: &str = "`Connection` has more than 32 options";

/// Whether `Connection` has so many options that the request is refused.
pub(in crate::proxy) fn has_too_many_options(fields: &Fields) -> bool {
    fields.present().has(Known::Connection)
        && fields.get_all(Known::Connection).flat_map(tokens).nth(CONNECTION_OPTIONS_MAX).is_some()
}

/// Removes the hop-by-hop fields of a request, and returns the protocol that the client wants to
/// switch to.
///
/// `TE` is kept only as `trailers`, which every hop here supports. It is kept without `Connection:
/// te`, which concerns the next connection: `upstream` writes those fields. Unless the client is a
/// trusted proxy, everything that only a proxy may say is removed: an upstream may trust all of
/// `X-Forwarded-*`, not only those that we set. Names that an upstream may read as others
/// ([`is_ambiguous`]) are removed too, unless `underscores` allows them.
pub(in crate::proxy) fn strip_request(
    fields: &mut Fields,
    trusted: bool,
    underscores: bool,
) -> Option<Text> {
    let trailers = fields
        .get_all(Known::Te)
        .flat_map(tokens)
        .any(|token| token.eq_ignore_ascii_case(b"trailers"));
    let upgrade = strip(fields);
    strip_untrusted(fields, trusted, underscores);
    if trailers {
        fields.append(Known::Te, "trailers");
    }
    upgrade
}

/// HTTP/2 clients may split a cookie field, which only HTTP/2 servers understand (RFC 9113, 8.2.3).
pub(in crate::proxy) fn join_cookies(fields: &mut Fields) {
    if fields.get_all(Known::Cookie).nth(1).is_none() {
        return;
    }
    let mut whole: SmallVec<[u8; 512]> = SmallVec::new();
    for (index, crumb) in fields.get_all(Known::Cookie).enumerate() {
        whole.extend_from_slice(if index == 0 { b"" } else { b"; " });
        whole.extend_from_slice(crumb);
    }
    fields.set(Known::Cookie, whole);
}

/// Removes what only a proxy may say about its client, unless the client is trusted, and ambiguous
/// names, unless they are allowed.
fn strip_untrusted(fields: &mut Fields, trusted: bool, underscores: bool) {
    // Names without a number of their own are all under `Other`.
    if fields.present().has(Known::Other) {
        fields.retain(|known, name, _| match known {
            Known::Other if is_ambiguous(name) => underscores && is_kept(name, trusted),
            Known::Other => trusted || !is_forwarded(name),
            known => trusted || !CLIENT_FIELDS.has(known),
        });
    } else if !trusted {
        fields.remove_all(CLIENT_FIELDS);
    }
}

/// Whether a field with an ambiguous name is kept where these are: not if it may be read as one
/// that this client may not send.
#[cold]
fn is_kept(name: &[u8], trusted: bool) -> bool {
    let hyphen = |byte: &u8| if byte.is_ascii_alphanumeric() { *byte } else { b'-' };
    let hyphens: Text = name.iter().map(hyphen).collect();
    let known = Known::of(&hyphens);
    let of_proxies = CLIENT_FIELDS.has(known) || is_forwarded(&hyphens);
    !HOP_BY_HOP.has(known) && !ONE_SPELLING.has(known) && (trusted || !of_proxies)
}

/// Removes the hop-by-hop fields of a reply, or the remaining ones of a request, and returns the
/// protocol to switch to. `Trailer` is kept: trailers are forwarded.
pub(in crate::proxy) fn strip(fields: &mut Fields) -> Option<Text> {
    if !fields.present().meets(HOP_BY_HOP) {
        return None;
    }
    let upgrade = upgrade(fields);
    if fields
        .get_all(Known::Connection)
        .flat_map(tokens)
        .take(CONNECTION_OPTIONS_MAX)
        .any(|token| removed_by_connection(fields, token).is_some())
    {
        strip_named(fields);
    }
    fields.remove_all(HOP_BY_HOP);
    upgrade
}

/// The name in `token`, a member of `Connection`, if such a field is present and may be removed by
/// it.
fn removed_by_connection<'t>(fields: &Fields, token: &'t [u8]) -> Option<&'t str> {
    let known = Known::of(token);
    if !fields.present().has(known) || HOP_BY_HOP.has(known) || is_end_to_end(token) {
        return None;
    }
    std::str::from_utf8(token).ok().filter(|name| known != Known::Other || fields.has(*name))
}

/// Removes the fields that `Connection` names.
#[cold]
fn strip_named(fields: &mut Fields) {
    let named = fields
        .get_all(Known::Connection)
        .flat_map(tokens)
        .take(CONNECTION_OPTIONS_MAX)
        .filter_map(|token| removed_by_connection(fields, token));
    let named: SmallVec<[Text; 4]> = named.map(|name| Text::from_slice(name.as_bytes())).collect();
    for name in named {
        fields.remove(std::str::from_utf8(&name).unwrap_or_default());
    }
}

/// The protocol in `Upgrade`, if `Connection` confirms it. A choice of several is ignored, which is
/// allowed (RFC 9110, 7.8).
fn upgrade(fields: &Fields) -> Option<Text> {
    let mut offers = fields.get_all(Known::Upgrade);
    let offer = offers.next().filter(|offer| !offer.is_empty() && !offer.contains(&b','))?;
    let confirmed = fields
        .get_all(Known::Connection)
        .flat_map(tokens)
        .any(|token| token.eq_ignore_ascii_case(b"upgrade"));
    (confirmed && offers.next().is_none()).then(|| Text::from_slice(offer))
}

/// Whether a field may follow the content: not what framing, routing and credentials need. An
/// upstream that merges trailers into fields would otherwise get them past all checks.
pub(in crate::proxy) fn may_be_trailer(name: &[u8]) -> bool {
    let reserved = std::str::from_utf8(name).map_or(true, is_reserved_field);
    !(reserved || is_end_to_end(name) || NOT_LATE.has(Known::of(name)))
}

/// Removes from a reply's trailers what may not follow the content.
pub(in crate::proxy) fn filter_trailers(trailers: &mut HeaderMap) {
    let late = |name: &&HeaderName| !may_be_trailer(name.as_str().as_bytes());
    let removed: SmallVec<[HeaderName; 4]> = trailers.keys().filter(late).cloned().collect();
    for name in removed {
        trailers.remove(name);
    }
}

fn is_end_to_end(name: &[u8]) -> bool {
    END_TO_END.has(Known::of(name)) || is_forwarded(name)
}

/// Whether `name` is one of `X-Forwarded-*`.
fn is_forwarded(name: &[u8]) -> bool {
    const FAMILY: &[u8] = b"x-forwarded-";
    name.get(..FAMILY.len()).is_some_and(|start| start.eq_ignore_ascii_case(FAMILY))
}

/// The members of a list.
pub(in crate::proxy) fn tokens(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&str, &str)]) -> HeaderMap {
        self::fields(fields).to_map()
    }

    fn fields(pairs: &[(&str, &str)]) -> Fields {
        let mut fields = Fields::new();
        for (name, value) in pairs {
            fields.append(*name, value);
        }
        fields
    }

    #[test]
    fn the_connections_own_fields_and_those_it_names_are_taken_off() {
        let mut found = fields(&[
            ("connection", "close, X-Secret, é"),
            ("Connection", "x-other ,keep-alive, Authorization"),
            ("keep-alive", "timeout=5"),
            ("x-secret", "1"),
            ("X-Other", "1"),
            ("x-other", "2"),
            ("upgrade", "websocket"),
            ("proxy-authorization", "Basic x"),
            ("authorization", "Basic x"),
            ("transfer-encoding", "chunked"),
            ("trailer", "x-sum"),
            ("accept", "*/*"),
        ]);
        strip_request(&mut found, true, false);
        assert_eq!(found.to_map(), headers(&[("trailer", "x-sum"), ("accept", "*/*")]));
    }

    #[test]
    fn fields_of_a_connection_can_be_set_by_nobody() {
        let own = [
            "connection",
            "keep-alive",
            "proxy-connection",
            "te",
            "transfer-encoding",
            "upgrade",
            "http2-settings",
            "proxy-authenticate",
            "proxy-authorization",
            "weir-degraded",
        ];
        for name in own {
            assert!(
                HOP_BY_HOP.has(Known::of(name.as_bytes())) && is_reserved_field(name),
                "{name}"
            );
        }
        let kept = crate::plan::reserved_fields()
            .filter(|name| !HOP_BY_HOP.has(Known::of(name.as_bytes())));
        assert_eq!(kept.collect::<Vec<_>>(), ["host", "content-length", "trailer", "expect"]);
    }

    #[test]
    fn connection_names_neither_framing_nor_what_proxies_say() {
        let kept = [
            ("host", "a"),
            ("content-length", "1"),
            ("x-forwarded-for", "1.1.1.1"),
            ("x-forwarded-port", "1"),
            ("forwarded", "for=1.1.1.1"),
            ("x-request-id", "i"),
        ];
        let mut found = fields(&kept);
        found.append(
            Known::Connection,
            "host, content-length, x-forwarded-for, X-Forwarded-Port, forwarded, x-request-id",
        );
        strip_request(&mut found, true, false);
        assert_eq!(found.to_map(), headers(&kept));
    }

    #[test]
    fn of_te_only_trailers_is_left() {
        let mut found = fields(&[("te", "gzip, Trailers"), ("connection", "te")]);
        strip_request(&mut found, true, false);
        assert_eq!(found.to_map(), headers(&[("te", "trailers")]));
        let mut found = fields(&[("te", "gzip")]);
        strip_request(&mut found, true, false);
        assert!(found.is_empty());
    }

    #[test]
    fn only_a_trusted_proxy_speaks_of_its_client() {
        let said = [
            ("x-forwarded-for", "1.1.1.1"),
            ("X-Forwarded-Port", "443"),
            ("x-forwarded-prefix", "/admin"),
            ("x-real-ip", "1.1.1.1"),
            ("forwarded", "for=1.1.1.1"),
            ("accept", "*/*"),
        ];
        let mut found = fields(&said);
        strip_request(&mut found, true, false);
        assert_eq!(found.to_map(), headers(&said));
        strip_request(&mut found, false, false);
        assert_eq!(found.to_map(), headers(&said[5..]));
        // Fields that are all known by number.
        let mut found = fields(&[said[0], said[3], said[4], said[5]]);
        strip_request(&mut found, false, false);
        assert_eq!(found.to_map(), headers(&said[5..]));
    }

    #[test]
    fn names_with_an_underscore_are_taken_off_unless_they_are_kept() {
        let said = [
            ("X_Forwarded_For", "1.1.1.1"),
            ("x-forwarded_port", "443"),
            ("x_real-ip", "1.1.1.1"),
            ("X_Plan", "gold"),
            ("x-plan", "free"),
            ("accept", "*/*"),
        ];
        for trusted in [true, false] {
            let mut found = fields(&said);
            strip_request(&mut found, trusted, false);
            assert_eq!(found.to_map(), headers(&said[4..]), "{trusted}");
        }
        let mut found = fields(&said);
        strip_request(&mut found, true, true);
        assert_eq!(found.to_map(), headers(&said));
        strip_request(&mut found, false, true);
        assert_eq!(
            found.to_map(),
            headers(&said[3..]),
            "as good as `X-Forwarded-For` where it is read"
        );
    }

    #[test]
    fn names_that_cgi_reads_as_one_with_hyphens_are_removed_too() {
        let said = [
            ("X.Real.IP", "1.1.1.1"),
            ("X.Forwarded-Port", "443"),
            ("X~Internal", "1"),
            ("x-internal", "2"),
        ];
        let mut found = fields(&said);
        strip_request(&mut found, true, false);
        assert_eq!(found.to_map(), headers(&said[3..]));
        let mut found = fields(&said);
        strip_request(&mut found, false, true);
        assert_eq!(found.to_map(), headers(&said[2..]));
    }

    #[test]
    fn a_connection_has_few_options() {
        let options = |count: usize| fields(&[("connection", &vec!["a"; count].join(","))]);
        assert!(!has_too_many_options(&options(CONNECTION_OPTIONS_MAX)));
        assert!(has_too_many_options(&options(CONNECTION_OPTIONS_MAX + 1)));
        let mut several = fields(&[("connection", "close")]);
        (0..CONNECTION_OPTIONS_MAX).for_each(|_| several.append(Known::Connection, "x"));
        assert!(has_too_many_options(&several));
        assert!(!has_too_many_options(&fields(&[("accept", "*/*")])));
    }

    #[test]
    fn framing_and_what_weir_says_have_one_spelling() {
        let said = [
            "Transfer_Encoding",
            "Content_Length",
            "X_Request_Id",
            "weir.degraded",
            "TE_",
            "Host_",
        ];
        let mut found = Fields::new();
        said.iter().for_each(|name| found.append(*name, "1"));
        strip_request(&mut found, true, true);
        assert_eq!(found.to_map(), headers(&[("te_", "1"), ("host_", "1")]));
    }

    #[test]
    fn a_request_for_another_protocol_is_recognized_where_it_is_meant_and_clear() {
        for (pairs, expected) in [
            (&[("connection", "Upgrade"), ("upgrade", "WebSocket")][..], Some("WebSocket")),
            (&[("connection", "keep-alive, upgrade"), ("upgrade", "x/1")], Some("x/1")),
            (&[("upgrade", "websocket")], None),
            (&[("connection", "close"), ("upgrade", "websocket")], None),
            (&[("connection", "upgrade"), ("upgrade", "websocket, x")], None),
            (&[("connection", "upgrade"), ("upgrade", "websocket"), ("upgrade", "x")], None),
            (&[("connection", "upgrade"), ("upgrade", "")], None),
            (&[("connection", "upgrade")], None),
        ] {
            let mut found = fields(pairs);
            assert_eq!(
                strip_request(&mut found, false, false).as_deref(),
                expected.map(str::as_bytes),
                "{pairs:?}"
            );
            assert!(found.is_empty(), "{found:?}");
        }
    }

    #[test]
    fn trailers_say_nothing_that_must_be_known_before() {
        let mut found = headers(&[
            ("grpc-status", "0"),
            ("x-forwarded-for", "1"),
            ("x-forwarded-port", "1"),
            ("content-length", "1"),
            ("connection", "x"),
            ("cookie", "a"),
            ("x-sum", "1"),
        ]);
        filter_trailers(&mut found);
        assert_eq!(found, headers(&[("grpc-status", "0"), ("x-sum", "1")]));
    }

    #[test]
    fn crumbs_of_cookies_become_one_field() {
        let mut found = fields(&[("cookie", "a=1"), ("accept", "*/*"), ("cookie", "b=2; c=3")]);
        join_cookies(&mut found);
        assert_eq!(found.to_map(), headers(&[("accept", "*/*"), ("cookie", "a=1; b=2; c=3")]));
    }
}
