//! Replies that are compressed on their way: every client decodes what the upstream sent, streams
//! are not held back, and what is cut stays cut.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use crate::harness::client::{Client, Reply, get};
use crate::harness::tls::Http2;
use crate::harness::toml::Toml;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;
use crate::harness::{TIMEOUT, eventually_async};

const JSON: (&str, &str) = ("content-type", "application/json");
const CODINGS: [&str; 3] = ["zstd", "br", "gzip"];

fn json(bytes: usize) -> Vec<u8> {
    let lines = (0..).flat_map(|n: u32| format!("{{\"id\":{n},\"of\":{}}}\n", n / 7).into_bytes());
    lines.take(bytes).collect()
}

/// All that can be decoded, and whether that is the whole.
fn decode(coding: &str, bytes: &[u8]) -> (Vec<u8>, bool) {
    let mut out = Vec::new();
    let end = match coding {
        "gzip" => flate2::read::GzDecoder::new(bytes).read_to_end(&mut out),
        "br" => brotli::Decompressor::new(bytes, 4_096).read_to_end(&mut out),
        "zstd" => zstd::stream::read::Decoder::new(bytes).unwrap().read_to_end(&mut out),
        _ => (&*bytes).read_to_end(&mut out),
    };
    (out, end.is_ok())
}

fn config(url: &str, lines: &str) -> String {
    let config = Toml::new()
        .upstream("api", url, "")
        .route(&format!("name = \"api\"\npath = \"/*\"\nupstream = \"api\"\n{lines}"));
    config.text().replace("access = \"off\"", "access = \"all\"")
}

async fn start(url: &str) -> Weir {
    let text = config(url, "compress = true");
    // The runtime must run while Weir starts.
    tokio::task::spawn_blocking(move || Weir::start(&text)).await.unwrap()
}

#[track_caller]
fn assert_coded(reply: &Reply, coding: &str, content: &[u8]) {
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.header("content-encoding"), coding, "{reply:?}");
    assert_eq!(reply.header("vary"), "Accept-Encoding", "{reply:?}");
    let (decoded, is_whole) = decode(coding, &reply.body);
    assert!(decoded == content && is_whole, "{coding}: {} bytes", decoded.len());
    if coding.is_empty() {
        assert_eq!(reply.header("etag"), "\"v1\"");
    } else {
        assert_eq!(reply.header("etag"), "W/\"v1\"");
        assert!(reply.body.len() < content.len() / 2, "{coding}: {}", reply.body.len());
    }
}

#[tokio::test]
async fn each_client_gets_what_it_can_decode_in_every_version_of_http() {
    let upstream = Upstream::start();
    let content = json(300_000);
    upstream.answer(200, &[JSON, ("etag", "\"v1\"")], content.clone());
    let weir = start(&upstream.url()).await;
    let mut client = Client::connect(weir.http).await.unwrap();
    let mut http2 = Http2::plain(weir.http).await.unwrap();
    for (accepted, coding) in [
        ("gzip", "gzip"),
        ("gzip, deflate, br", "br"),
        ("gzip, deflate, br, zstd", "zstd"),
        ("gzip;q=1.0, br;q=0.5, *;q=0", "gzip"),
        ("*;q=0.1", "zstd"),
        ("identity;q=0, gzip", "gzip"),
        ("deflate", ""),
        ("gzip;q=0", ""),
        ("identity", ""),
    ] {
        let fields = [("accept-encoding", accepted)];
        let reply = client.get("/", &fields).await.unwrap();
        assert_coded(&reply, coding, &content);
        assert_eq!(reply.header("content-length").is_empty(), !coding.is_empty(), "{accepted}");
        assert_coded(&http2.get("/", &fields).await.unwrap(), coding, &content);
        let head = client.send("HEAD", "/", &fields, Bytes::new()).await.unwrap();
        for name in ["content-encoding", "etag", "vary", "content-length"] {
            assert_eq!(head.header(name), reply.header(name), "{accepted}: {name}");
        }
    }
    let plain = client.get("/", &[]).await.unwrap();
    assert_coded(&plain, "", &content);
    // What a line and a policy count is what the upstream sent, whatever the client can decode.
    let lines = weir.output().await_events("request", 28);
    let counted = lines.iter().filter(|line| line["method"] == "GET");
    counted.for_each(|line| assert_eq!(line["bytes"], content.len(), "{line}"));
    assert_eq!(upstream.last().header("accept-encoding"), None);
}

/// The head of a reply, in lower case, and its body, which ends with the connection.
fn until_close(address: SocketAddr, request: &str) -> (String, Vec<u8>) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all);
    let end = all.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a head") + 4;
    (String::from_utf8_lossy(&all[..end]).to_lowercase(), all[end..].to_vec())
}

#[test]
fn an_http_1_0_client_gets_it_until_the_connection_closes() {
    let upstream = Upstream::start();
    upstream.answer(200, &[JSON], json(100_000));
    let weir = Weir::start(&config(&upstream.url(), "compress = { encodings = [\"gzip\"] }"));
    let request = "GET / HTTP/1.0\r\nConnection: keep-alive\r\nAccept-Encoding: gzip, br\r\n\r\n";
    let (head, body) = until_close(weir.http, request);
    assert!(
        head.contains("content-encoding: gzip") && head.contains("connection: close"),
        "{head}"
    );
    assert!(!head.contains("content-length") && !head.contains("transfer-encoding"), "{head}");
    assert!(decode("gzip", &body) == (json(100_000), true));
}

#[tokio::test]
async fn a_route_without_it_and_what_it_is_not_for_stay_as_they_are() {
    let upstream = Upstream::start();
    let text = config(&upstream.url(), "compress = { types = [\"text/*\"], min_bytes = \"100B\" }")
        + "\n[[routes]]\nname = \"plain\"\npath = \"/plain\"\nupstream = \"api\"\n";
    let weir = tokio::task::spawn_blocking(move || Weir::start(&text)).await.unwrap();
    let accepts = [("accept-encoding", "gzip")];
    let body = vec![b'x'; 1_000];
    const TEXT: (&str, &str) = ("content-type", "text/plain; charset=utf-8");
    for (status, target, fields, body, coding, vary) in [
        (200, "/", vec![TEXT], body.clone(), "gzip", "Accept-Encoding"),
        (200, "/plain", vec![TEXT], body.clone(), "", ""),
        (200, "/", vec![JSON], body.clone(), "", ""),
        (200, "/", vec![TEXT], vec![b'x'; 99], "", ""),
        (404, "/", vec![TEXT], body.clone(), "", ""),
        (200, "/", vec![TEXT, ("cache-control", "no-transform")], body.clone(), "", ""),
        (206, "/", vec![TEXT, ("content-range", "bytes 0-999/5000")], body.clone(), "", ""),
        (
            200,
            "/",
            vec![TEXT, ("content-encoding", "br"), ("vary", "Accept")],
            body,
            "br",
            "Accept",
        ),
    ] {
        upstream.answer(status, &fields, body.clone());
        let reply = get(weir.http, target, &accepts).await;
        let found = (reply.status, reply.header("content-encoding"), reply.header("vary"));
        assert_eq!(found, (status, coding.to_owned(), vary.to_owned()), "{fields:?}");
        if coding != "gzip" {
            assert!(reply.body == body);
            assert_eq!(reply.header("content-length"), body.len().to_string());
        }
    }
}

/// An upstream that sends these pieces to each connection, the next one each time it is told to,
/// and then closes.
fn pieces(pieces: &[&str]) -> (SocketAddr, mpsc::Sender<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let (next, told) = mpsc::channel();
    let pieces: Vec<String> = pieces.iter().map(|piece| (*piece).to_owned()).collect();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            let mut stream = stream;
            for (index, piece) in pieces.iter().enumerate() {
                if index > 0 && told.recv().is_err() {
                    return;
                }
                if stream.write_all(piece.as_bytes()).is_err() {
                    break;
                }
            }
        }
    });
    (address, next)
}

fn chunk(content: &str) -> String {
    format!("{:x}\r\n{content}\r\n", content.len())
}

const EVENTS: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

/// A reply whose body is read piece by piece, over HTTP/1.1.
async fn open(address: SocketAddr, coding: &str) -> http::Response<hyper::body::Incoming> {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::get("/")
        .header("host", "a")
        .header("accept-encoding", coding)
        .body(Empty::<Bytes>::new())
        .unwrap();
    timeout(TIMEOUT, sender.send_request(request)).await.expect("a head").unwrap()
}

#[tokio::test]
async fn an_event_arrives_while_its_stream_stays_open() {
    for coding in CODINGS {
        let first = EVENTS.to_owned() + &chunk("data: 1\n\n");
        let (address, next) = pieces(&[&first, &chunk("data: 2\n\n"), "0\r\n\r\n"]);
        let weir = start(&format!("http://{address}")).await;
        let mut reply = open(weir.http, coding).await;
        assert_eq!(reply.headers()["content-encoding"], coding);
        let mut body = Vec::new();
        for expected in ["data: 1\n\n", "data: 1\n\ndata: 2\n\n"] {
            while decode(coding, &body).0 != expected.as_bytes() {
                let frame = timeout(TIMEOUT, reply.body_mut().frame()).await;
                let frame = frame.unwrap_or_else(|_| panic!("{coding}: held back: {expected:?}"));
                body.extend(frame.expect("the stream is open").unwrap().into_data().unwrap());
            }
            next.send(()).unwrap();
        }
        body.extend(timeout(TIMEOUT, reply.collect()).await.unwrap().unwrap().to_bytes());
        assert_eq!(decode(coding, &body), (b"data: 1\n\ndata: 2\n\n".to_vec(), true), "{coding}");
    }
}

#[tokio::test]
async fn a_client_that_leaves_ends_the_upstreams_stream() {
    let first = EVENTS.to_owned() + &chunk("data: 1\n\n");
    let (address, next) = pieces(&[&first, &chunk("data: 2\n\n")]);
    let weir = start(&format!("http://{address}")).await;
    let mut reply = open(weir.http, "gzip").await;
    assert!(timeout(TIMEOUT, reply.body_mut().frame()).await.unwrap().is_some());
    drop(reply);
    eventually_async("the request has ended", async || {
        let events = weir.output().events();
        let line = events.iter().find(|event| event["message"] == "request");
        let line = line.ok_or("no line")?;
        assert_eq!(
            (&line["failure"], &line["bytes"]),
            (&"client-gone".into(), &9.into()),
            "{line}"
        );
        Ok(())
    })
    .await;
    drop(next);
}

#[tokio::test]
async fn a_cut_reply_is_never_a_complete_one() {
    let content = String::from_utf8(json(60_000)).unwrap();
    let chunked =
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    let declared =
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 90000\r\n\r\n";
    for coding in CODINGS {
        for first in [chunked.to_owned() + &chunk(&content), declared.to_owned() + &content] {
            let (address, _next) = pieces(&[&first]);
            let weir = start(&format!("http://{address}")).await;
            let reply = open(weir.http, coding).await;
            assert_eq!(reply.headers()["content-encoding"], coding);
            let (mut body, mut received) = (reply.into_body(), Vec::new());
            let end = loop {
                match timeout(TIMEOUT, body.frame()).await.expect("an end") {
                    Some(Ok(frame)) => received.extend(frame.into_data().unwrap()),
                    end => break end,
                }
            };
            assert!(end.is_some_and(|end| end.is_err()), "{coding}: the body is not cut");
            let (decoded, is_whole) = decode(coding, &received);
            assert!(content.as_bytes().starts_with(&decoded) && !is_whole, "{coding}");
            let address = weir.http;
            let old = format!("GET / HTTP/1.0\r\nAccept-Encoding: {coding}\r\n\r\n");
            let (head, body) =
                tokio::task::spawn_blocking(move || until_close(address, &old)).await.unwrap();
            assert!(head.contains(&format!("content-encoding: {coding}")), "{head}");
            assert!(!decode(coding, &body).1, "{coding}: complete for an HTTP/1.0 client");
            let lines = weir.output().await_events("request", 2);
            lines.iter().for_each(|line| assert_eq!(line["failure"], "reply-cut", "{line}"));
        }
    }
}

#[test]
fn trailers_follow_a_compressed_reply() {
    let reply = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n".to_owned()
        + &chunk(&"hello ".repeat(500))
        + "0\r\nX-Sum: 7\r\nContent-Digest: sha-256=:AA==:\r\n\r\n";
    let (address, _next) = pieces(&[&reply]);
    let weir = Weir::start(&config(&format!("http://{address}"), "compress = true"));
    let request = "GET / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: close, te\r\nAccept-Encoding: gzip\r\n\r\n";
    let (head, body) = until_close(weir.http, request);
    assert!(head.contains("content-encoding: gzip"), "{head}");
    let end = String::from_utf8_lossy(&body[body.len() - 40..]).to_lowercase();
    assert!(end.contains("\r\n0\r\nx-sum: 7\r\n\r\n"), "{end:?}");
}

#[test]
fn meters_read_the_reply_as_the_upstream_sent_it() {
    let upstream = Upstream::start();
    let text = "word ".repeat(1_000);
    let usage = r#""usage":{"prompt_tokens":7,"completion_tokens":5,"total_tokens":12}"#;
    let answer = format!("{{\"choices\":[{{\"message\":{{\"content\":\"{text}\"}}}}],{usage}}}");
    upstream.answer(200, &[JSON], answer.clone());
    let config = Toml::new()
        .upstream("model", &upstream.url(), "")
        .more(
            "[policies.llm]\nuse = \"llm-budget\"\n[policies.llm.config]\napi = \"openai\"\n\
             tokens = [{ name = \"tokens\", algorithm = \"fixed_window\", quota = 100000, period = \"1d\", key = \"{authority}\" }]",
        )
        .route("path = \"/*\"\nupstream = \"model\"\npolicy = \"llm\"\ncompress = true");
    let weir = Weir::start(&config.text());
    let body = "{\"model\":\"m\",\"max_tokens\":1000}";
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {}\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let (head, _) = until_close(weir.http, &request);
    assert!(head.contains("content-encoding: gzip"), "{head}");
    crate::harness::eventually("what was reported is charged", || {
        let page = weir.admin_page("/counters?policy=llm&limit=tokens&key=a").text();
        if page.contains("12 of ") { Ok(()) } else { Err(page) }
    });
}
