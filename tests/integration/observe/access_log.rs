//! The access log: which fields a line has, and what is in them.

use std::io::Write as _;

use serde_json::Value;

use crate::harness::client::{get, raw};
use crate::harness::eventually;
use crate::harness::toml::{Toml, simple};
use crate::harness::upstream::{Upstream, listener};
use crate::harness::weir::Weir;

const LIMIT: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 2, period = \"1d\"";

/// `toml` with an access log that has these fields.
fn logging(toml: &Toml, fields: &[&str]) -> String {
    let chosen = format!("access = \"all\"\naccess_fields = {fields:?}");
    toml.text().replace("access = \"off\"", &chosen)
}

/// The line of the request for `path`, once it is written.
fn line_of(weir: &Weir, path: &str) -> Value {
    eventually(path, || {
        let mut events = weir.output().events().into_iter();
        events.find(|event| event["path"] == path).ok_or_else(|| "not yet".to_owned())
    })
}

fn keys(line: &Value) -> Vec<&str> {
    line.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn a_line_has_the_fields_that_were_chosen_and_no_other() {
    let upstream = Upstream::start();
    let toml = simple(&upstream.url(), &[LIMIT]);
    let fields = [
        "path",
        "status",
        "host",
        "query",
        "referer",
        "user_agent",
        "protocol",
        "tls_version",
        "bytes_in",
        "upstream",
        "upstream_ms",
        "refused_by",
    ];
    let weir = Weir::start(&logging(&toml, &fields));
    let asked = "POST /a?token=%22x HTTP/1.1\r\nHost: Shop.Example\r\nUser-Agent: one \"two\" \t\u{e9}\r\n\
         Referer: http://elsewhere.example/?q\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
    raw(weir.http, asked.as_bytes(), crate::harness::TIMEOUT);
    let line = line_of(&weir, "/a");
    let expected = [
        "level",
        "message",
        "host",
        "path",
        "query",
        "protocol",
        "referer",
        "user_agent",
        "status",
        "bytes_in",
        "upstream",
        "upstream_ms",
    ];
    let mut sorted = expected.to_vec();
    sorted.sort_unstable();
    let mut found = keys(&line);
    found.sort_unstable();
    assert_eq!(found, sorted, "{line}");
    assert_eq!(line["host"], "Shop.Example");
    assert_eq!(line["query"], "token=%22x");
    assert_eq!(line["protocol"], "HTTP/1.1");
    assert_eq!(line["referer"], "http://elsewhere.example/?q");
    assert_eq!(line["user_agent"], "one \"two\" \t\u{e9}");
    assert_eq!((&line["status"], &line["bytes_in"]), (&200.into(), &5.into()));
    assert_eq!(format!("http://{}", line["upstream"].as_str().unwrap()), upstream.url());
    assert!(line["upstream_ms"].as_f64().unwrap() > 0.0, "{line}");

    // A refusal was sent nowhere, and nobody read its body.
    for path in ["/b", "/c"] {
        raw(weir.http, request(path).as_bytes(), crate::harness::TIMEOUT);
    }
    let refused = line_of(&weir, "/c");
    assert_eq!((&refused["status"], &refused["refused_by"][0]), (&429.into(), &"day".into()));
    assert_eq!(refused["user_agent"], "x".repeat(1_024), "cut");
    for absent in ["upstream", "upstream_ms", "bytes_in", "query", "referer", "tls_version"] {
        assert!(refused[absent].is_null(), "{absent}: {refused}");
    }
}

/// A request with a header field that is longer than what a line shows.
fn request(path: &str) -> String {
    let long = "x".repeat(3_000);
    format!("GET {path} HTTP/1.1\r\nHost: a\r\nUser-Agent: {long}\r\nConnection: close\r\n\r\n")
}

#[tokio::test]
async fn fields_that_show_more_of_a_client_are_in_no_line_by_default() {
    let upstream = Upstream::start();
    let text = simple(&upstream.url(), &[LIMIT]).text();
    let weir = Weir::start(&text.replace("access = \"off\"", "access = \"all\""));
    let headers = [("user-agent", "secret-agent"), ("referer", "http://secret.example/")];
    get(weir.http, "/a?token=secret", &headers).await;
    let line = line_of(&weir, "/a");
    assert!(!line.to_string().contains("secret"), "{line}");
    for absent in ["host", "protocol", "upstream", "upstream_ms", "bytes_in"] {
        assert!(line[absent].is_null(), "{absent}: {line}");
    }
    for present in ["timestamp", "request_id", "client", "method", "route", "duration_ms"] {
        assert!(!line[present].is_null(), "{present}: {line}");
    }
}

#[test]
fn a_question_about_the_server_is_answered_and_not_refused() {
    let upstream = Upstream::start();
    let toml = simple(&upstream.url(), &[LIMIT]);
    let options = "OPTIONS * HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let nowhere = "OPTIONS /%00 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let lines = |weir: &Weir| {
        let events = weir.output().events().into_iter();
        events.filter(|event| event["method"] == "OPTIONS").collect::<Vec<_>>()
    };
    for (access, expected) in [("refused", &[400][..]), ("all", &[204, 400])] {
        let text = toml.text().replace("access = \"off\"", &format!("access = \"{access}\""));
        let weir = Weir::start(&text);
        for (asked, status) in [(options, "HTTP/1.1 204 "), (nowhere, "HTTP/1.1 400 ")] {
            let reply = raw(weir.http, asked.as_bytes(), crate::harness::TIMEOUT);
            assert!(reply.starts_with(status), "{reply}");
        }
        // Lines are written in the order of the requests.
        let lines = eventually("the refused one is logged", || {
            let lines = lines(&weir);
            let is_last = lines.iter().any(|line| line["status"] == 400);
            if is_last { Ok(lines) } else { Err(weir.output().tail(5)) }
        });
        let statuses: Vec<_> = lines.iter().filter_map(|line| line["status"].as_u64()).collect();
        assert_eq!(statuses, expected, "{access}: {lines:?}");
    }
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn an_upstream_that_failed_is_named() {
    let nowhere = listener().local_addr().unwrap();
    let toml = simple(&format!("http://{nowhere}"), &[LIMIT]);
    let weir = Weir::start(&logging(&toml, &["path", "status", "upstream", "failure"]));
    assert_eq!(get(weir.http, "/a", &[]).await.status, 502);
    let line = line_of(&weir, "/a");
    assert_eq!(line["upstream"], nowhere.to_string());
    assert_eq!(line["failure"], "connect");
}

#[test]
fn a_field_that_does_not_exist_is_an_error_with_its_line() {
    let toml = simple("http://127.0.0.1:9", &[LIMIT]);
    let text = logging(&toml, &["path", "user-agent"]);
    let line = text.lines().position(|line| line.contains("access_fields")).unwrap() + 1;
    let (code, out, err) = Weir::check(Weir::build(&text));
    assert_eq!(code, 78, "{out}{err}");
    let told = out + &err;
    assert!(told.contains("log.access_fields[1]: found \"user-agent\""), "{told}");
    assert!(told.contains(&format!("proxy.toml:{line}:")), "{told}");
    assert!(told.contains("the nearest known name is `user_agent`"), "{told}");
}

#[test]
fn a_request_whose_time_is_over_says_so_and_how_long_it_waited() {
    let upstream = Upstream::start();
    let toml = Toml::new()
        .upstream("api", &upstream.url(), "")
        .route("name = \"api\"\npath = \"/*\"\nupstream = \"api\"\ntimeouts.request = \"200ms\"");
    let fields = ["path", "status", "failure", "upstream", "upstream_ms"];
    let weir = Weir::start(&logging(&toml, &fields));
    upstream.hold();
    let reply = raw(weir.http, request("/a").as_bytes(), crate::harness::TIMEOUT);
    assert!(reply.starts_with("HTTP/1.1 504 "), "{reply}");
    let line = line_of(&weir, "/a");
    assert_eq!((&line["status"], &line["failure"]), (&504.into(), &"request-timeout".into()));
    assert!(line["upstream_ms"].as_f64().unwrap() >= 150.0, "{line}");
}

#[test]
fn a_client_that_leaves_while_it_sends_its_body_is_no_failure_of_the_upstream() {
    let upstream = Upstream::start();
    let toml = simple(&upstream.url(), &[LIMIT]);
    let fields = ["path", "status", "failure", "bytes_in"];
    let weir = Weir::start(&logging(&toml, &fields));
    let mut stream = std::net::TcpStream::connect(weir.http).unwrap();
    stream.write_all(b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let line = line_of(&weir, "/a");
    assert_eq!((&line["status"], &line["failure"]), (&499.into(), &"client-gone".into()), "{line}");
    assert!(line["bytes_in"].is_null(), "not all of it came: {line}");
    assert_eq!(weir.metric("weir_upstream_errors_total{upstream=\"api\",cause=\"body\"}"), 0);
    drop(stream);
}
