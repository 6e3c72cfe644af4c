//! HTTP/1 as old, minimal and strict clients speak it.

use std::time::Duration;

use crate::harness::client::{raw, statuses};
use crate::harness::toml::simple;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

const SILENCE: Duration = Duration::from_millis(700);

fn day(quota: u32) -> String {
    format!("name = \"day\", algorithm = \"fixed_window\", quota = {quota}, period = \"1d\"")
}

#[tokio::test]
async fn a_client_of_http_1_0_is_answered_in_its_way() {
    let upstream = Upstream::start();
    let weir = Weir::start(&simple(&upstream.url(), &[&day(100)]).text());
    let once = raw(weir.http, b"GET / HTTP/1.0\r\nhost: a\r\n\r\n", SILENCE);
    assert!(
        once.starts_with("HTTP/1.0 200 OK\r\n")
            && once.ends_with("from upstream\n")
            && !once.contains("chunked"),
        "{once}"
    );
    let kept = b"GET / HTTP/1.0\r\nhost: a\r\nconnection: keep-alive\r\n\r\n".repeat(2);
    let twice = raw(weir.http, &kept, SILENCE);
    assert_eq!(twice.matches("HTTP/1.0 200 OK").count(), 2, "{twice}");
    assert_eq!(twice.matches("connection: keep-alive").count(), 2, "{twice}");
    // Without a length the body ends with the connection: this client does not know chunks.
    upstream.answer(200, &[("transfer-encoding", "chunked")], "piece");
    let unknown =
        raw(weir.http, b"GET / HTTP/1.0\r\nhost: a\r\nconnection: keep-alive\r\n\r\n", SILENCE);
    assert!(unknown.ends_with("\r\n\r\npiece") && !unknown.contains("chunked"), "{unknown}");
}

#[tokio::test]
async fn replies_without_a_body_do_not_put_the_next_one_out_of_step() {
    let upstream = Upstream::start();
    let weir = Weir::start(&simple(&upstream.url(), &[&day(100)]).text());
    for (method, status) in [("HEAD", 200), ("GET", 204), ("GET", 304), ("HEAD", 404)] {
        upstream.answer(
            status,
            &[("etag", "\"x\"")],
            if method == "HEAD" { "not to be seen" } else { "" },
        );
        let text = format!(
            "{method} / HTTP/1.1\r\nhost: a\r\n\r\nGET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
        );
        let both = raw(weir.http, text.as_bytes(), SILENCE);
        assert_eq!(statuses(&both), [status, status], "{method} {status}: {both}");
        assert!(!both.contains("transfer-encoding"), "{both}");
        if status == 204 {
            assert!(!both.contains("content-length"), "RFC 9110, 8.6: {both}");
        }
    }
}

#[tokio::test]
async fn unreadable_lines_are_reported_and_can_be_found_again() {
    let upstream = Upstream::start();
    let weir = Weir::start(&simple(&upstream.url(), &[&day(100)]).text());
    for (text, status) in [
        ("what is this\r\n\r\n".to_owned(), 400),
        (format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n", "y".repeat(40_000)), 431),
    ] {
        let reply = raw(weir.http, text.as_bytes(), SILENCE);
        assert_eq!(statuses(&reply), [status], "{reply}");
        assert!(
            reply.contains("x-request-id: ")
                && reply.contains("content-type: application/problem+json"),
            "{reply}"
        );
        assert!(
            reply.contains(&format!("\"status\":{status}")) && reply.contains("The request's head"),
            "{reply}"
        );
        let page = weir.admin_page("/metrics").text();
        assert!(
            page.lines().any(|line| line.starts_with("weir_requests_total")
                && line.contains(&format!("code=\"{status}\"}} 1"))),
            "{page}"
        );
    }
    assert_eq!(upstream.count(), 0);
}
