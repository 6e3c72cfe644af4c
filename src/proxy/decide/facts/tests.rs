//! What a policy is shown of a request.

use super::*;
use crate::proxy::settings::Rewrite;
use crate::proxy::tests::settings;
use crate::wire::{Body, Fields};

fn plain_route() -> RouteTraits<'static> {
    RouteTraits { parameters: &[], underscores: false, rewriting: None, decides: false }
}

fn facts(
    uri: &str,
    fields: &[(&str, &[u8])],
    parameters: &[&str],
    asked: &[&str],
) -> Vec<(String, String)> {
    all_facts(uri, fields, parameters, asked).0
}

/// Also whether there are too many.
fn all_facts(
    uri: &str,
    fields: &[(&str, &[u8])],
    parameters: &[&str],
    asked: &[&str],
) -> (Vec<(String, String)>, bool) {
    let names: Vec<String> = (0..parameters.len()).map(|place| format!("p{place}")).collect();
    let parameter_names: Vec<&String> = names.iter().collect();
    let route = RouteTraits { parameters: &parameter_names, ..plain_route() };
    let queries: Vec<FactQuery> =
        asked.iter().filter_map(|name| FactQuery::new(name, route)).collect();
    shown(uri, fields, parameters, &queries)
}

fn shown(
    uri: &str,
    fields: &[(&str, &[u8])],
    parameters: &[&str],
    queries: &[FactQuery],
) -> (Vec<(String, String)>, bool) {
    let mut request = http::Request::builder().uri(uri).header("host", "API.example:8080");
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    let mut request = Request::from(request.body(Body::empty()).unwrap());
    let address = "192.0.2.1:5".parse().unwrap();
    let peer = Peer {
        sni: Some("api.example".into()),
        client_subject: Some("CN=alice".into()),
        ..Peer::plain(address, address)
    };
    let client = Client::of(&Fields::new(), &peer, &[]);
    let authority =
        crate::proxy::receive::target::normalize(&mut request, false, &peer, &settings()).unwrap();
    let target = Target::of(&request, &authority, Paths::default(), &peer);
    let view = RequestView {
        request: &request,
        target,
        client: &client,
        peer: &peer,
        route: "api",
        parameters,
        upgrade: Some("websocket"),
        body: None,
        descriptor: None,
    };
    let facts = Facts::gather(queries, view);
    let pairs = facts.pairs();
    let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    (pairs.collect(), facts.are_too_many())
}

#[test]
fn values_of_one_fact_are_bounded() {
    let cookies = |count: usize| "sid=a; ".repeat(count);
    for (count, too_many) in [(1, false), (VALUES_MAX, false), (VALUES_MAX + 1, true)] {
        let cookies = cookies(count);
        let fields = [("cookie", cookies.as_bytes())];
        // Each fact is counted for itself.
        let found = all_facts("/?q=1&q=2", &fields, &[], &["cookie.sid", "query.q"]);
        let shown = count.min(VALUES_MAX) + 2;
        assert_eq!((found.0.len(), found.1), (shown, too_many), "{count}");
    }
    let cookies = cookies(5_000);
    let others = all_facts("/", &[("cookie", cookies.as_bytes())], &[], &["cookie.other"]);
    assert_eq!(others, (Vec::new(), false), "nobody reads them");
}

#[track_caller]
fn is(found: &[(String, String)], expected: &[(&str, &str)]) {
    let found: Vec<(&str, &str)> =
        found.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(found, expected);
}

#[test]
fn only_what_was_asked_for_is_shown_and_only_where_it_exists() {
    let asked = [
        "path",
        "method",
        "client-ip",
        "authority",
        "host",
        "scheme",
        "route",
        "upgrade",
        "query",
        "http.version",
        "request.length",
        "header.x",
        "path.p9",
        "tls.sni",
        "tls.client.subject",
    ];
    let expected = [
        ("path", "/a/c"),
        ("method", "GET"),
        ("client-ip", "192.0.2.1"),
        ("authority", "api.example:8080"),
        ("host", "api.example"),
        ("scheme", "http"),
        ("route", "api"),
        ("upgrade", "websocket"),
        ("http.version", "1.1"),
        ("tls.sni", "api.example"),
        ("tls.client.subject", "CN=alice"),
    ];
    is(&facts("/a/b/../c", &[], &[], &asked), &expected);
    is(&facts("/a;x=1/c%3by", &[], &[], &asked), &expected);
    is(
        &facts("/?a=%41", &[("content-length", b"17")], &[], &["query", "request.length"]),
        &[("query", "a=%41"), ("request.length", "17")],
    );
}

#[test]
fn the_upstreams_path_is_the_one_after_rewriting() {
    let pattern = crate::proxy::route::routes::pattern("/ask/{model}/*", Paths::default()).unwrap();
    let written = Rewrite::Template("/v1/{model}/*".to_owned());
    let rewriting = PathRewrite::build(&written, &pattern, "rewrite").unwrap();
    let model = "model".to_owned();
    let rewritten =
        RouteTraits { parameters: &[&model], rewriting: Some(&rewriting), ..plain_route() };
    let plain = RouteTraits { rewriting: None, ..rewritten };
    let of = |route: RouteTraits<'_>| {
        let query = FactQuery::new(UPSTREAM_PATH, route).unwrap();
        shown("/ask/gpt;x/chat?a=b", &[], &["gpt;x"], &[query]).0
    };
    is(&of(rewritten), &[(UPSTREAM_PATH, "/v1/gpt/chat")]);
    is(&of(plain), &[]);
    let query = FactQuery::new(UPSTREAM_PATH, rewritten).unwrap();
    assert!(!agree(&[query], [&["a"], &["a"]], Paths::default()), "it has the path in it");
}

#[test]
fn repeated_fields_are_repeated_and_bytes_are_never_lost() {
    let fields: &[(&str, &[u8])] = &[("x-key", b"one"), ("x-key", b"\xE9\xFF"), ("x-key", b"")];
    is(
        &facts("/", fields, &[], &["header.x-key"]),
        &[("header.x-key", "one"), ("header.x-key", "\u{e9}\u{ff}"), ("header.x-key", "")],
    );
}

#[test]
fn cookies_are_found_in_all_fields() {
    let fields: &[(&str, &[u8])] = &[
        ("cookie", b"a=1; id=\"x=y\" ;id2=3"),
        ("cookie", b"b; id=\xE9"),
        ("cookie", b"ID=9; id"),
    ];
    is(
        &facts("/", fields, &[], &["cookie.id"]),
        &[("cookie.id", "x=y"), ("cookie.id", "\u{e9}"), ("cookie.id", "9")],
    );
}

#[test]
fn a_bearer_token_is_shown_without_its_scheme_and_twice_where_it_is_read_in_two_ways() {
    let of = |values: &[&[u8]]| {
        let fields: Vec<(&str, &[u8])> =
            values.iter().map(|value| ("authorization", *value)).collect();
        let shown = facts("/", &fields, &[], &["bearer"]);
        shown.into_iter().map(|(_, value)| value).collect::<Vec<_>>()
    };
    assert_eq!(of(&[b"bEaReR   abc "]), ["abc"]);
    assert_eq!(of(&[b"Basic abc"]), Vec::<String>::new());
    assert_eq!(of(&[b"Bearer abc", b"Bearer def"]), ["abc", "def"]);
    assert_eq!(of(&[b"Bearer abc def"]).len(), 2);
}

#[test]
fn ambiguous_names_that_are_kept_are_found_under_all_their_readings() {
    let route = RouteTraits { underscores: true, ..plain_route() };
    let query = FactQuery::new("header.x-key", route).unwrap();
    let FactSource::AnyHeader(name) = query.source else { panic!("{query:?}") };
    assert_eq!(name, "x-key");
    let route = RouteTraits { underscores: false, ..route };
    assert!(FactQuery::new("header.x.key", route).is_none());
}

#[test]
fn parameters_are_decoded_one_way() {
    let asked = ["query.k", "path.p0"];
    is(
        &facts("/x?k=a+b&%6b=%C3%A9&k&kk=no&k=%zz&&k=a=b", &[], &["%37%2F+;a=%31"], &asked),
        &[
            ("query.k", "a b"),
            ("query.k", "\u{c3}\u{a9}"),
            ("query.k", ""),
            ("query.k", "%zz"),
            ("query.k", "a=b"),
            ("path.p0", "7/+"),
        ],
    );
}
