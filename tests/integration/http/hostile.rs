//! Peers that break the rules, on both sides: each costs one request or one connection, and
//! everybody gets a correct response.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::client::{get, raw, statuses};
use crate::harness::toml::simple;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;
use crate::harness::{TIMEOUT, eventually};

const LIMIT: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 1000, period = \"1d\"";
const SILENCE: Duration = Duration::from_secs(2);

#[test]
fn a_client_whose_chunks_are_broken_is_told_400() {
    let upstream = Upstream::start();
    let weir = Weir::start(&simple(&upstream.url(), &[LIMIT]).text());
    for body in [
        "zz\r\n",
        "-5\r\nhello\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "5\nhello\n0\n\n",
        "3\r\nhello\r\n",
    ] {
        let answer = raw(
            weir.http,
            format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}")
                .as_bytes(),
            SILENCE,
        );
        assert_eq!(statuses(&answer), [400], "{body:?}: {answer}");
        assert!(answer.contains("application/problem+json"), "{answer}");
    }
    assert!(upstream.seen().is_empty());
}

#[test]
fn every_form_of_an_empty_path_is_forwarded_as_the_root() {
    let upstream = Upstream::start();
    let weir = Weir::start(&simple(&upstream.url(), &[LIMIT]).text());
    for (target, expected) in
        [("http://a", "/"), ("http://a#x", "/"), ("http://a?q#x", "/?q"), ("/#x", "/")]
    {
        let answer = raw(
            weir.http,
            format!("GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").as_bytes(),
            SILENCE,
        );
        assert_eq!(statuses(&answer), [200], "{target}: {answer}");
        assert_eq!(upstream.last().target, expected, "{target}");
    }
}

#[test]
fn a_body_goes_with_every_method() {
    let upstream = Upstream::start();
    let weir = Weir::start(&simple(&upstream.url(), &[LIMIT]).text());
    for method in ["GET", "HEAD", "DELETE", "OPTIONS", "SEARCH", "POST"] {
        let request = format!(
            "{method} / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
        );
        assert_eq!(statuses(&raw(weir.http, request.as_bytes(), SILENCE)), [200], "{method}");
        assert_eq!(upstream.last().body, "hello", "{method}");
    }
}

#[tokio::test]
async fn forwarding_fields_of_untrusted_clients_are_ignored() {
    let upstream = Upstream::start();
    let weir = Weir::start(&simple(&upstream.url(), &[LIMIT]).text());
    let forged = [
        ("x-forwarded-port", "1"),
        ("x-forwarded-prefix", "/admin"),
        ("x-forwarded-server", "x"),
        ("x-real-ip", "10.0.0.1"),
    ];
    assert_eq!(get(weir.http, "/", &forged).await.status, 200);
    for (name, _) in forged {
        assert_eq!(upstream.last().header(name), None, "{name}");
    }
}

/// Answers at once, without reading the body, and closes only when the test ends.
fn hasty_upstream() -> (String, std::thread::JoinHandle<Vec<TcpStream>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").unwrap();
        vec![stream]
    });
    (url, thread)
}

#[test]
fn an_upload_that_its_upstream_has_answered_and_takes_no_more_of_is_let_go() {
    let (url, hasty) = hasty_upstream();
    let weir = Weir::start(&simple(&url, &[LIMIT]).text());
    let mut client = TcpStream::connect(weir.http).unwrap();
    client.set_read_timeout(Some(TIMEOUT)).unwrap();
    client.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n").unwrap();
    let mut sender = client.try_clone().unwrap();
    let sending = std::thread::spawn(move || {
        let piece = [b'x'; 64 << 10];
        // As long as it is read. A pause, so that this does not occupy two cores until then.
        while sender.write_all(&piece).is_ok() {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let mut answer = Vec::new();
    let _ = client.read_to_end(&mut answer);
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    drop(client);
    sending.join().unwrap();
    let held = hasty.join().unwrap();
    eventually("only the admin's own connection is open", || {
        let open = weir.metric("weir_connections_open");
        if open <= 1 { Ok(()) } else { Err(format!("{open} are open")) }
    });
    drop(held);
}

#[test]
fn a_request_that_is_cut_at_the_end_of_the_grace_period_has_its_log_line() {
    let upstream = Upstream::start();
    let config = simple(&upstream.url(), &[LIMIT]).server("shutdown_grace = \"200ms\"").text();
    let mut weir = Weir::start(&config.replace("access = \"off\"", "access = \"all\""));
    upstream.hold();
    let mut client = TcpStream::connect(weir.http).unwrap();
    client.write_all(b"GET /held HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    eventually("the request waits at the upstream", || {
        if upstream.count() == 1 { Ok(()) } else { Err("not yet".into()) }
    });
    weir.signal(Signal::TERM);
    assert_eq!(weir.exit().code(), Some(1));
    eventually("its line is written", || {
        let lines = weir.output().events();
        let found =
            lines.iter().find(|line| line["path"] == "/held").map(|line| line["status"] == 503);
        if found == Some(true) { Ok(()) } else { Err(weir.output().tail(10)) }
    });
}

#[test]
fn an_answer_that_its_upstream_gave_before_it_cut_the_upload_arrives() {
    const TURNS: usize = 30;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let refusing = std::thread::spawn(move || {
        for _ in 0..TURNS {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]);
            // Closed with most of the body unread, so the kernel resets the connection.
            let _ = stream.write_all(b"HTTP/1.1 413 Content Too Large\r\nconnection: close\r\ncontent-length: 3\r\n\r\nbig");
        }
    });
    let weir = Weir::start(&simple(&url, &[LIMIT]).text());
    let mut request =
        b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 3000000\r\n\r\n"
            .to_vec();
    request.resize(request.len() + 3_000_000, b'x');
    let told: Vec<Vec<u16>> =
        (0..TURNS).map(|_| statuses(&raw(weir.http, &request, TIMEOUT))).collect();
    assert!(told.iter().all(|statuses| *statuses == [413]), "{told:?}");
    refusing.join().unwrap();
}
