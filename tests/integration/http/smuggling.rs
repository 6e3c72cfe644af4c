//! Requests that two parsers could read differently: they are refused, or forwarded with exactly
//! one meaning. Nothing hidden in a body ever arrives as a request.

use std::time::Duration;

use crate::harness::client::{raw, statuses};
use crate::harness::toml::simple;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

const LIMIT: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 1000, period = \"1d\"";
/// How long a raw client waits for more. Each case ends earlier, because the proxy must close the
/// connection.
const SILENCE: Duration = Duration::from_secs(30);
/// What must never arrive.
const HIDDEN: &str = "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n";

fn upstream_and_proxy() -> (Upstream, Weir) {
    let upstream = Upstream::start();
    let weir = Weir::start(&simple(&upstream.url(), &[LIMIT]).text());
    (upstream, weir)
}

#[test]
fn ambiguous_framing_is_refused_and_the_connection_closed() {
    let (upstream, weir) = upstream_and_proxy();
    let long = HIDDEN.len();
    for (name, head) in [
        ("two lengths", format!("Content-Length: 0\r\nContent-Length: {long}\r\n")),
        ("a list of two lengths", format!("Content-Length: 0, {long}\r\n")),
        ("a negative length", "Content-Length: -1\r\n".to_owned()),
        ("a length with a sign", format!("Content-Length: +{long}\r\n")),
        ("a length that is no number", "Content-Length: 0x10\r\n".to_owned()),
        ("a length beyond numbers", "Content-Length: 99999999999999999999\r\n".to_owned()),
        ("an unknown coding", "Transfer-Encoding: xchunked\r\n".to_owned()),
        ("chunked that is not last", "Transfer-Encoding: chunked, identity\r\n".to_owned()),
        ("a space before the colon", "Transfer-Encoding : chunked\r\n".to_owned()),
        ("a control in a name", "Transfer-Encoding\x0b: chunked\r\n".to_owned()),
        ("a control in a value", "X: a\x00b\r\n".to_owned()),
        ("a bare CR in a value", "X: a\rb\r\n".to_owned()),
        ("a field without a name", ": x\r\n".to_owned()),
    ] {
        let answer = raw(
            weir.http,
            format!("POST / HTTP/1.1\r\nHost: a\r\n{head}\r\n{HIDDEN}").as_bytes(),
            SILENCE,
        );
        assert_eq!(statuses(&answer), [400], "{name}: {answer:?}");
    }
    assert_eq!(upstream.count(), 0);
}

#[test]
fn chunked_beats_a_length_or_is_refused_and_the_connection_serves_nothing_more() {
    let (upstream, weir) = upstream_and_proxy();
    let request = format!(
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{HIDDEN}"
    );
    let answer = raw(weir.http, request.as_bytes(), SILENCE);
    // RFC 9112, 6.3: a server may use the chunks, and then must close. Either way, /hidden is not
    // part of any request.
    let statuses = statuses(&answer);
    assert!(statuses == [400] || statuses == [200], "{answer:?}");
    for seen in upstream.seen() {
        assert_eq!(seen.target, "/");
        assert!(
            !(seen.header("content-length").is_some()
                && seen.header("transfer-encoding").is_some()),
            "both framings were passed on: {seen:?}"
        );
        assert!(seen.body.is_empty());
    }
}

#[test]
fn broken_chunks_end_the_request_on_both_sides() {
    let (upstream, weir) = upstream_and_proxy();
    for (name, body) in [
        ("a size that is no number", format!("zz\r\n{HIDDEN}")),
        ("a size beyond numbers", format!("fffffffffffffffff\r\n{HIDDEN}")),
        ("a piece longer than its size", format!("1\r\nab\r\n0\r\n\r\n{HIDDEN}")),
        ("a bare LF after a size", format!("1;\nx\r\n0\r\n\r\n{HIDDEN}")),
    ] {
        let request =
            format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}");
        let answer = raw(weir.http, request.as_bytes(), SILENCE);
        assert!(statuses(&answer).iter().all(|status| *status >= 400), "{name}: {answer:?}");
        assert!(statuses(&answer).len() <= 1, "{name}: what came after was served: {answer:?}");
    }
    assert!(
        upstream.seen().is_empty(),
        "a broken body arrived as a whole one: {:?}",
        upstream.seen()
    );
}

#[test]
fn a_host_is_named_once_or_refused() {
    let (upstream, weir) = upstream_and_proxy();
    for (name, head) in [
        ("none", "GET / HTTP/1.1\r\nConnection: close\r\n\r\n"),
        ("two", "GET / HTTP/1.1\r\nConnection: close\r\nHost: a\r\nHost: b\r\n\r\n"),
        ("with a path", "GET / HTTP/1.1\r\nConnection: close\r\nHost: a/b\r\n\r\n"),
        ("with a user", "GET / HTTP/1.1\r\nConnection: close\r\nHost: u@a\r\n\r\n"),
        ("with a space", "GET / HTTP/1.1\r\nConnection: close\r\nHost: a b\r\n\r\n"),
    ] {
        let answer = raw(weir.http, head.as_bytes(), SILENCE);
        assert_eq!(statuses(&answer), [400], "{name}: {answer:?}");
    }
    assert_eq!(upstream.count(), 0);
}

#[test]
fn a_target_in_absolute_form_names_the_host_that_counts() {
    let (upstream, weir) = upstream_and_proxy();
    let answer = raw(weir.http, b"GET http://named.example/x?y HTTP/1.1\r\nHost: other.example\r\nConnection: close\r\n\r\n", SILENCE);
    assert_eq!(statuses(&answer), [200], "{answer:?}");
    let seen = upstream.only();
    assert_eq!(
        (seen.target.as_str(), seen.header("host").as_deref()),
        ("/x?y", Some("named.example")),
        "RFC 9112, 3.2.2: {seen:?}"
    );
}

#[test]
fn tunnels_and_folded_lines_are_refused() {
    let (upstream, weir) = upstream_and_proxy();
    for (name, request) in [
        ("connect", "CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\nConnection: close\r\n\r\n"),
        ("a folded line", "GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n"),
        ("no request line", "\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n"),
        ("another version", "GET / HTTP/3.0\r\nHost: a\r\n\r\n"),
    ] {
        let answer = raw(weir.http, request.as_bytes(), SILENCE);
        assert!(
            statuses(&answer).iter().all(|status| (400..=505).contains(status)),
            "{name}: {answer:?}"
        );
    }
    assert_eq!(upstream.count(), 0);
}

#[test]
fn pipelined_requests_are_each_counted_and_answered_in_order() {
    let (upstream, weir) = upstream_and_proxy();
    let mut request = String::new();
    for number in 0..5 {
        request.push_str(&format!(
            "POST /{number} HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"
        ));
    }
    request.push_str("GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let answer = raw(weir.http, request.as_bytes(), Duration::from_secs(20));
    assert_eq!(statuses(&answer), [200; 6], "{answer:?}");
    let targets: Vec<String> = upstream.seen().into_iter().map(|seen| seen.target).collect();
    assert_eq!(targets, ["/0", "/1", "/2", "/3", "/4", "/last"]);
    assert_eq!(weir.metric("weir_decisions_total{policy=\"public\",decision=\"admitted\"}"), 6);
}
