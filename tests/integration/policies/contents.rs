//! Policies that look into bodies: what they are shown, and that bodies are forwarded as they came.

use crate::harness::TIMEOUT;
use crate::harness::client::{raw, statuses};
use crate::harness::contents::config;
use crate::harness::guest;
use crate::harness::toml::Toml;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

#[test]
fn unreadable_values_are_no_facts() {
    let upstream = Upstream::start();
    let weir = Weir::start(&config(&upstream).text());
    let post = |path: &str, fields: &str, body: &str| {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{fields}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        statuses(&raw(weir.http, head.as_bytes(), TIMEOUT)).pop()
    };
    let name = "{\"user\": {\"name\": \"x\"}}";
    assert_eq!(post("/json", "", name), Some(200));
    for (fields, body) in [
        ("", "{\"user\": {\"name\": \"x\"}"),
        ("", "{\"user\": {\"name\": \"x\", \"name\": \"y\"}}"),
        ("", "{\"user\": {\"name\": \"x\"}, \"user\": {\"name\": \"x\"}}"),
        ("", "{\"user\": \"x\"}"),
        ("", ""),
        ("Content-Encoding: gzip\r\n", name),
        ("Content-Type: application/x-www-form-urlencoded\r\n", name),
        // Express reads `+AG4-ame` as `name`.
        ("Content-Type: application/json; charset=utf-7\r\n", name),
        ("Content-Type: application/json; charset=\"utf-16le\"\r\n", name),
        ("Content-Type: application/json; charset=utf-8; charset=utf-7\r\n", name),
        ("Content-Type: application/json\r\nContent-Type: text/plain\r\n", name),
        (
            "Content-Type: application/json; charset=iso-8859-1\r\n",
            "{\"user\": {\"name\": \"\u{e9}\"}}",
        ),
    ] {
        assert_eq!(post("/json", fields, body), Some(400), "{fields} {body}");
    }
    let mut passed = 1;
    for charset in ["utf-8", "UTF-8", "\"utf-8\"", "us-ascii", "ISO-8859-1"] {
        let fields = format!("Content-Type: application/json; charset={charset}\r\n");
        let other = format!("{{\"user\": {{\"name\": \"x{passed}\"}}}}");
        assert_eq!(post("/json", &fields, &other), Some(200), "{charset}");
        passed += 1;
    }
    let form = "Content-Type: application/x-www-form-urlencoded\r\n";
    for body in ["user=a&user=b", "user=a&[user]=b", "{\"x\":\"&user=a&\"}"] {
        assert_eq!(post("/form", form, body), Some(400), "{body}");
    }
    assert_eq!(post("/form", "", "user=a"), Some(400));
    let utf7 = "Content-Type: application/x-www-form-urlencoded; charset=utf-7\r\n";
    assert_eq!(post("/form", utf7, "user=a"), Some(400));
    let head = format!(
        "POST /form HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{form}Content-Length: 10\r\n\r\n"
    );
    let bytes = [head.as_bytes(), b"user=a&z=\xff"].concat();
    assert_eq!(statuses(&raw(weir.http, &bytes, TIMEOUT)).pop(), Some(400));
    assert_eq!(post("/form", form, "user=a"), Some(200));
    assert_eq!(upstream.count(), passed + 1, "what was refused was not forwarded");
}

#[test]
fn a_body_that_is_too_long_is_refused_or_forwarded_unread() {
    let upstream = Upstream::start();
    let weir = Weir::start(&config(&upstream).text());
    let long = "x".repeat(200_000);
    let send = |path: &str, framing: &str, body: &str| {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{framing}\r\n\r\n{body}"
        );
        statuses(&raw(weir.http, head.as_bytes(), TIMEOUT)).pop()
    };
    let chunked = format!("{:x}\r\n{long}\r\n0\r\n\r\n", long.len());
    let declared = format!("Content-Length: {}", long.len());
    assert_eq!(send("/refuse", &declared, &long), Some(413));
    assert_eq!(send("/refuse", "Transfer-Encoding: chunked", &chunked), Some(413));
    assert_eq!(upstream.count(), 0);
    // Counted as what it is: of a type that is too large to be known.
    for (framing, body, status) in [
        (declared.as_str(), &long, 200),
        ("Transfer-Encoding: chunked", &chunked, 200),
        (declared.as_str(), &long, 429),
    ] {
        assert_eq!(send("/pass", framing, body), Some(status), "{framing}");
        assert_eq!(upstream.last().body, long.as_bytes(), "{framing}");
    }
    assert_eq!(send("/pass", "Content-Length: 2", "{}"), Some(200), "its own counter");
    assert_eq!(upstream.last().body, "{}");
}

/// A proxy whose policy sets values in bodies, on a route that sets a digest of its own.
fn editing(upstream: &Upstream) -> Weir {
    let policy = "[policies.guest]\nwasm = \"guest.wasm\"\nconfig.facts = [\"body.type\"]";
    let route = "name = \"api\"\npath = \"/*\"\nupstream = \"api\"\npolicy = \"guest\"\n\
                 request_headers.set = { digest = \"sha-256=AA==\", x-set = \"yes\" }";
    let config = Toml::new().upstream("api", &upstream.url(), "").more(policy).route(route);
    let module = std::fs::read(guest::misbehaving()).expect("the module");
    Weir::build(&config.text()).file("guest.wasm", &module).start()
}

fn post(weir: &Weir, query: &str, body: &str) -> Option<u16> {
    let head = format!(
        "POST /?{query} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-MD5: AA==\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    statuses(&raw(weir.http, head.as_bytes(), TIMEOUT)).pop()
}

/// What the counters of the guest's limit say.
fn counted(weir: &Weir) -> String {
    weir.admin_page("/counters?policy=guest&limit=edits&key=k").text()
}

#[test]
fn an_edited_body_has_no_digest_whoever_set_it() {
    let upstream = Upstream::start();
    let weir = editing(&upstream);
    let digests = ["content-digest", "repr-digest", "digest", "content-md5"];
    let sent = || digests.map(|name| upstream.last().header(name).is_some());
    assert_eq!(post(&weir, "digests", "{\"max_tokens\":9}"), Some(200));
    assert_eq!((upstream.last().body.as_ref(), sent()), (&b"{\"max_tokens\":9}"[..], [true; 4]));
    assert_eq!(post(&weir, "edits", "{\"max_tokens\":9}"), Some(200));
    let last = upstream.last();
    assert_eq!((last.body.as_ref(), sent()), (&b"{\"max_tokens\":5}"[..], [false; 4]));
    assert_eq!(last.header("content-length").as_deref(), Some("16"));
    assert_eq!(last.header("x-set").as_deref(), Some("yes"));
}

#[test]
fn a_body_that_has_no_place_for_a_value_costs_nothing() {
    let upstream = Upstream::start();
    let weir = editing(&upstream);
    for body in ["[1]", "{\"Max_Tokens\":9}"] {
        assert_eq!(post(&weir, "edits", body), Some(400), "{body}");
    }
    assert!(counted(&weir).contains("\"counters\":[]"), "{}", counted(&weir));
    // Eight of ten are taken, and then less than that is left.
    assert_eq!(post(&weir, "lowers", "no JSON"), Some(200), "nothing need be said in it");
    assert!(counted(&weir).contains("\"8 used"), "{}", counted(&weir));
    for body in ["no JSON", "", "[1]", "{\"Max_Tokens\":9}"] {
        assert_eq!(post(&weir, "lowers", body), Some(400), "{body}");
    }
    assert!(counted(&weir).contains("\"8 used"), "{}", counted(&weir));
    assert_eq!(upstream.count(), 1);
    assert_eq!(post(&weir, "lowers", "{\"max_tokens\":9}"), Some(200));
    assert_eq!(upstream.last().body, "{\"max_tokens\":2}");
    assert!(counted(&weir).contains("\"10 used"), "{}", counted(&weir));
    assert_eq!(post(&weir, "lowers", "{\"max_tokens\":9}"), Some(429));
}
