//! Policies that look into bodies: what they are shown, and that bodies are forwarded as they came.

use crate::harness::TIMEOUT;
use crate::harness::client::{raw, statuses};
use crate::harness::contents::config;
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
    ] {
        assert_eq!(post("/json", fields, body), Some(400), "{fields} {body}");
    }
    let form = "Content-Type: application/x-www-form-urlencoded\r\n";
    assert_eq!(post("/form", form, "user=a&user=b"), Some(400));
    assert_eq!(post("/form", "", "user=a"), Some(400));
    assert_eq!(post("/form", form, "user=a"), Some(200));
    assert_eq!(upstream.count(), 2, "what was refused was not forwarded");
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
