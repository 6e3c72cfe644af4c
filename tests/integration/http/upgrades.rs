//! Connections that switch to another protocol: what passes through a tunnel, when there is none,
//! and how it ends.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::harness::pki::Pki;
use crate::harness::redis::Redis;
use crate::harness::tls::{self, HOST, connect};
use crate::harness::toml::{Toml, simple};
use crate::harness::weir::Weir;
use crate::harness::{TIMEOUT, client, eventually};

pub(super) const MANY: &str =
    "name = \"day\", algorithm = \"fixed_window\", quota = 1000, period = \"1d\"";
const TWO: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 2, period = \"1d\"";

/// A reply with a length, which a 101 must not have.
pub(super) const AGREED: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\nContent-Length: 3\r\n\r\n";

/// An upstream of raw connections: it records the heads that it receives, answers each with the
/// same bytes, and passes the connection on.
pub(super) struct Raw {
    address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Raw {
    pub(super) fn start(answer: &'static str, then: fn(TcpStream)) -> Self {
        Self::answering(move |_| answer.to_owned(), then)
    }

    /// Answers with a text that depends on the request's head.
    pub(super) fn answering(
        answer: impl Fn(&str) -> String + Clone + Send + 'static,
        then: fn(TcpStream),
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let heads = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&heads);
        std::thread::spawn(move || {
            // It ends with the test's process.
            for mut stream in listener.incoming().map_while(Result::ok) {
                let (kept, answer) = (Arc::clone(&kept), answer.clone());
                std::thread::spawn(move || {
                    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
                    while let Some(head) = head(&mut stream) {
                        let answer = answer(&head);
                        kept.lock().unwrap().push(head);
                        stream.write_all(answer.as_bytes()).unwrap();
                        if answer.contains(" 101 ") {
                            return then(stream);
                        }
                    }
                });
            }
        });
        Self { address, heads }
    }

    pub(super) fn echo() -> Self {
        Self::start(AGREED, echo)
    }

    /// Knows WebSockets: it proves that by the key (RFC 6455, 4.2.2).
    pub(super) fn websocket() -> Self {
        Self::websocket_then(echo)
    }

    pub(super) fn websocket_then(then: fn(TcpStream)) -> Self {
        let answer = |head: &str| {
            let key = head.lines().find_map(|line| {
                let (name, key) = line.split_once(": ")?;
                name.eq_ignore_ascii_case("sec-websocket-key").then_some(key)
            });
            let proof = format!("{}258EAFA5-E914-47DA-95CA-C5AB0DC85B11", key.unwrap_or_default());
            let digest = aws_lc_rs::digest::digest(
                &aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY,
                proof.as_bytes(),
            );
            let accept = base64::engine::general_purpose::STANDARD.encode(digest);
            AGREED.replace("Sec-WebSocket-Accept: x", &format!("Sec-WebSocket-Accept: {accept}"))
        };
        Self::answering(answer, then)
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(super) fn last(&self) -> String {
        self.heads.lock().unwrap().last().expect("a request").to_lowercase()
    }

    /// Whether some head had this, in lower case.
    pub(super) fn saw(&self, part: &str) -> bool {
        self.heads.lock().unwrap().iter().any(|head| head.to_lowercase().contains(part))
    }

    fn count(&self) -> usize {
        self.heads.lock().unwrap().len()
    }
}

fn echo(mut stream: TcpStream) {
    let mut piece = [0; 1024];
    while let Ok(read @ 1..) = stream.read(&mut piece) {
        stream.write_all(&piece[..read]).unwrap();
    }
}

/// Byte by byte, so that nothing after the head is read.
fn head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    Some(String::from_utf8(head).unwrap())
}

/// Asks for an upgrade, and returns the response.
pub(super) fn ask(address: SocketAddr, protocol: &str) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let request = format!(
        "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: {protocol}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: k\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let head = head(&mut stream).expect("an answer").to_lowercase();
    (stream, head)
}

fn say(stream: &mut TcpStream, text: &str) -> String {
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = vec![0; text.len()];
    stream.read_exact(&mut answer).unwrap();
    String::from_utf8(answer).unwrap()
}

pub(super) fn open(weir: &Weir, count: u64) {
    eventually("the number of open tunnels", || match weir.metric("weir_tunnels_open") {
        open if open == count => Ok(()),
        open => Err(format!("{open} open, not {count}")),
    });
}

pub(super) fn logged(config: &Toml) -> String {
    config.text().replace("access = \"off\"", "access = \"all\"")
}

#[test]
fn a_websocket_passes_both_ways_and_is_reported_at_its_end() {
    let upstream = Raw::echo();
    let weir = Weir::start(&logged(&simple(&upstream.url(), &[MANY])));
    let (mut stream, answer) = ask(weir.http, "websocket");
    assert!(answer.starts_with("http/1.1 101 "), "{answer}");
    for field in [
        "connection: upgrade",
        "upgrade: websocket",
        "sec-websocket-accept: x",
        "ratelimit: \"day\";r=999",
    ] {
        assert!(answer.contains(&format!("\r\n{field}")), "{field}: {answer}");
    }
    assert!(!answer.contains("content-length"), "{answer}");
    let seen = upstream.last();
    for field in [
        "connection: upgrade",
        "upgrade: websocket",
        "sec-websocket-key: k",
        "x-forwarded-for: 127.0.0.1",
        "host: a",
    ] {
        assert!(seen.contains(&format!("\r\n{field}\r\n")), "{field}: {seen}");
    }
    open(&weir, 1);
    for text in ["hello", "\u{0}\u{1}binary", &"x".repeat(300)] {
        assert_eq!(say(&mut stream, text), text);
    }
    assert!(!weir.output().says("request"), "not over yet");
    // The client closes its side, and the upstream's end comes back.
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    open(&weir, 0);
    assert_eq!(weir.metric("weir_tunnels_total{ending=\"closed\"}"), 1);
    assert_eq!(weir.metric("weir_requests_total{route=\"api\",code=\"101\"}"), 1);
    let line = eventually("the access line", || {
        weir.output()
            .events()
            .into_iter()
            .find(|event| event["message"] == "request")
            .ok_or_else(|| weir.output().tail(5))
    });
    let bytes = 5 + 8 + 300;
    assert_eq!(
        (&line["status"], &line["bytes"], &line["bytes_up"]),
        (&101.into(), &bytes.into(), &bytes.into()),
        "{line}"
    );
    assert_eq!(
        (&line["decision"], &line["failure"]),
        (&"admitted".into(), &serde_json::Value::Null),
        "{line}"
    );
}

#[tokio::test]
async fn over_tls_it_passes_too_and_ends_as_tls_ends() {
    let (pki, upstream) = (Pki::new(), Raw::echo());
    let config = simple(&upstream.url(), &[MANY]).secured(&["api"]);
    let weir = Weir::build(&config.text()).identity("api", &pki.server(&[HOST])).start();
    let mut stream = connect(weir.http, &tls::config(&pki.ca, &[b"http/1.1"])).await.unwrap();
    let asked = format!(
        "GET /chat HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nearly"
    );
    stream.write_all(asked.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"early") {
        assert_ne!(
            timeout(TIMEOUT, stream.read_buf(&mut answer)).await.unwrap().unwrap(),
            0,
            "{}",
            String::from_utf8_lossy(&answer)
        );
    }
    assert!(answer.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&answer));
    stream.shutdown().await.unwrap();
    // Not cut off: TLS was closed properly.
    assert_eq!(timeout(TIMEOUT, stream.read_to_end(&mut answer)).await.unwrap().unwrap(), 0);
    assert!(upstream.last().contains("x-forwarded-proto: https"), "{}", upstream.last());
}

#[test]
fn a_side_that_ends_leaves_the_other_one_talking() {
    // The upstream continues to send after its client has closed its side.
    let upstream = Raw::start(AGREED, |mut stream| {
        let mut all = String::new();
        stream.read_to_string(&mut all).unwrap();
        stream.write_all(format!("got {all}").as_bytes()).unwrap();
    });
    let weir = Weir::start(&simple(&upstream.url(), &[MANY]).text());
    let (mut stream, _) = ask(weir.http, "WebSocket");
    stream.write_all(b"all of it").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "got all of it");
    // The other way round: the upstream closes first, and still receives what its client sends.
    let upstream = Raw::start(AGREED, |mut stream| {
        stream.write_all(b"bye").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut all = String::new();
        stream.read_to_string(&mut all).unwrap();
        assert_eq!(all, "still here");
    });
    let weir = Weir::start(&simple(&upstream.url(), &[MANY]).text());
    let (mut stream, _) = ask(weir.http, "websocket");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "bye");
    stream.write_all(b"still here").unwrap();
    drop(stream);
    open(&weir, 0);
    assert_eq!(weir.metric("weir_tunnels_total{ending=\"closed\"}"), 1);
}

#[test]
fn an_upstream_that_does_not_agree_answers_as_ever() {
    let upstream = Raw::start("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno", |_| {});
    let weir = Weir::start(&simple(&upstream.url(), &[MANY]).text());
    let (mut stream, answer) = ask(weir.http, "websocket");
    assert!(answer.starts_with("http/1.1 200 ") && !answer.contains("upgrade"), "{answer}");
    let mut body = [0; 2];
    stream.read_exact(&mut body).unwrap();
    // Both connections continue.
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert!(head(&mut stream).unwrap().starts_with("HTTP/1.1 200 "));
    assert_eq!((upstream.count(), weir.metric("weir_tunnels_total{ending=\"closed\"}")), (2, 0));
}

#[test]
fn a_101_that_nobody_asked_for_or_to_something_else_is_a_502() {
    let upstream = Raw::echo();
    let config = simple(&upstream.url(), &[MANY])
        .route("path = \"/chat\"\nupstream = \"api\"\nupgrade.protocols = [\"other\"]");
    let weir = Weir::start(&config.text());
    let (_, answer) = ask(weir.http, "other");
    assert!(answer.starts_with("http/1.1 502 "), "{answer}");
    let answer =
        client::raw(weir.http, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", TIMEOUT);
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
}

#[test]
fn limits_come_first_and_a_refusal_is_a_plain_429() {
    let upstream = Raw::echo();
    let weir = Weir::start(&simple(&upstream.url(), &[TWO]).text());
    let tunnels = [ask(weir.http, "websocket"), ask(weir.http, "websocket")];
    assert!(tunnels.iter().all(|(_, answer)| answer.starts_with("http/1.1 101 ")));
    let (_, answer) = ask(weir.http, "websocket");
    assert!(answer.starts_with("http/1.1 429 ") && answer.contains("retry-after"), "{answer}");
    assert_eq!(upstream.count(), 2);
}

#[test]
fn an_upgrade_that_the_route_does_not_pass_on_is_removed_from_the_request() {
    let upstream = Raw::start("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", |_| {});
    let config = simple(&upstream.url(), &[MANY])
        .route("path = \"/chat\"\nupstream = \"api\"\nupgrade.protocols = []");
    let weir = Weir::start(&config.text());
    for protocol in ["websocket", "h2c", "websocket, x"] {
        let (_, answer) = ask(weir.http, protocol);
        assert!(answer.starts_with("http/1.1 200 "), "{protocol}: {answer}");
        assert!(!upstream.last().contains("upgrade"), "{protocol}: {}", upstream.last());
    }
    let weir = Weir::start(&simple(&upstream.url(), &[MANY]).text());
    for request in [
        "GET / HTTP/1.0\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nUpgrade: websocket\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: close, upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n\r\n",
    ] {
        assert_eq!(
            client::statuses(&client::raw(weir.http, request.as_bytes(), TIMEOUT)).len()
                + usize::from(request.contains("1.0")),
            1,
            "{request}"
        );
        assert!(!upstream.last().contains("upgrade"), "{request}: {}", upstream.last());
    }
}

#[test]
fn silence_ends_a_tunnel() {
    let upstream = Raw::echo();
    let config = simple(&upstream.url(), &[MANY])
        .route("path = \"/chat\"\nupstream = \"api\"\nupgrade.idle = \"300ms\"");
    let weir = Weir::start(&config.text());
    let (mut stream, answer) = ask(weir.http, "websocket");
    assert!(answer.starts_with("http/1.1 101 "), "{answer}");
    assert_eq!(say(&mut stream, "hello"), "hello");
    // Closed, or reset.
    assert!(matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_)));
    open(&weir, 0);
    assert_eq!(weir.metric("weir_tunnels_total{ending=\"idle\"}"), 1);
}

#[test]
fn a_client_or_an_upstream_that_goes_away_ends_both() {
    let upstream = Raw::start(AGREED, |mut stream| {
        let mut piece = [0; 4];
        // A connection that is closed with unread bytes is reset.
        let _ = stream.read_exact(&mut piece);
    });
    let weir = Weir::start(&simple(&upstream.url(), &[MANY]).text());
    let (mut stream, _) = ask(weir.http, "websocket");
    stream.write_all(&[b'x'; 64]).unwrap();
    assert!(matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_)));
    drop(stream);
    open(&weir, 0);
    let (stream, _) = ask(weir.http, "websocket");
    drop(stream);
    open(&weir, 0);
}

#[test]
fn a_tunnel_survives_a_reload_and_is_waited_for_at_a_shutdown() {
    let upstream = Raw::echo();
    let config = simple(&upstream.url(), &[MANY]);
    let mut weir = Weir::start(&config.text());
    let (mut stream, _) = ask(weir.http, "websocket");
    weir.reload(&config.clone().timeout("keep_alive = \"7s\"").text(), "applied");
    assert_eq!(say(&mut stream, "after the reload"), "after the reload");
    weir.signal(Signal::TERM);
    eventually("nobody is accepted any more", || {
        TcpStream::connect(weir.http).map_or(Ok(()), |_| Err("connected".into()))
    });
    assert_eq!(say(&mut stream, "while draining"), "while draining");
    assert!(weir.running());
    drop(stream);
    assert_eq!(weir.exit().code(), Some(0));
}

#[test]
fn a_tunnel_does_not_outlast_the_grace_period() {
    let upstream = Raw::echo();
    let mut weir =
        Weir::start(&simple(&upstream.url(), &[MANY]).server("shutdown_grace = \"200ms\"").text());
    let (mut stream, _) = ask(weir.http, "websocket");
    assert_eq!(say(&mut stream, "hello"), "hello");
    weir.signal(Signal::TERM);
    assert!(matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_)));
    assert_eq!(weir.exit().code(), Some(1));
}

#[test]
fn a_place_in_flight_is_held_until_the_tunnels_end() {
    let redis = Redis::start();
    let config = simple(
        "http://127.0.0.1:9",
        &["name = \"in-flight\", algorithm = \"concurrency\", quota = 1"],
    );
    // The lease is shorter than the tunnel, so it is renewed.
    let shared = config.clone().redis("single", &[redis.address]).text().replacen(
        "[store]",
        "[store]\nlease = \"1s\"",
        1,
    );
    for config in [config.text(), shared] {
        let upstream = Raw::echo();
        let weir = Weir::start(&config.replace("http://127.0.0.1:9", &upstream.url()));
        let (mut stream, answer) = ask(weir.http, "websocket");
        assert!(answer.starts_with("http/1.1 101 "), "{answer}");
        let began = std::time::Instant::now();
        while began.elapsed() < std::time::Duration::from_millis(1_500) {
            assert_eq!(say(&mut stream, "hello"), "hello");
            let (_, refused) = ask(weir.http, "websocket");
            assert!(refused.starts_with("http/1.1 429 "), "{refused}");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        drop(stream);
        let next = eventually("the place is free", || {
            let (stream, answer) = ask(weir.http, "websocket");
            if answer.starts_with("http/1.1 101 ") { Ok(stream) } else { Err(answer) }
        });
        drop(next);
        open(&weir, 0);
    }
    eventually("no lease is left", || match redis.connect().ask(&["KEYS", "*"]).list() {
        [] => Ok(()),
        keys => Err(format!("{keys:?}")),
    });
}

#[test]
fn a_tunnel_that_a_shutdown_cuts_leaves_no_lease() {
    let (redis, upstream) = (Redis::start(), Raw::echo());
    let config =
        simple(&upstream.url(), &["name = \"in-flight\", algorithm = \"concurrency\", quota = 9"]);
    let config = config.server("shutdown_grace = \"200ms\"").redis("single", &[redis.address]);
    let mut weir = Weir::start(&config.text());
    let mut streams: Vec<TcpStream> = (0..3).map(|_| ask(weir.http, "websocket").0).collect();
    streams.iter_mut().for_each(|stream| assert_eq!(say(stream, "hello"), "hello"));
    let mut connection = redis.connect();
    let key = connection.ask(&["KEYS", "*"]).list()[0].text();
    assert_eq!(connection.ask(&["ZCARD", &key]).number(), 3);
    weir.signal(Signal::TERM);
    assert_eq!(weir.exit().code(), Some(1), "they were cut");
    assert_eq!(connection.ask(&["KEYS", "*"]).list(), []);
}

/// The same for a client in the test's own runtime.
pub(super) async fn open_now(weir: &Weir, count: u64) {
    crate::harness::eventually_async("the number of open tunnels", async || {
        match weir.metric("weir_tunnels_open") {
            open if open == count => Ok(()),
            open => Err(format!("{open} open, not {count}")),
        }
    })
    .await;
}

/// A client over HTTP/2 that knows what the server can do.
pub(super) async fn over_http2(weir: &Weir) -> tls::Http2 {
    let mut client = tls::Http2::plain(weir.http).await.unwrap();
    client.send("OPTIONS", "/", &[], bytes::Bytes::new()).await.unwrap();
    client
}

#[tokio::test]
async fn a_websocket_over_http2_is_the_same_request_and_passes_both_ways() {
    let upstream = Raw::websocket();
    let config = simple(&upstream.url(), &[TWO])
        .route("path = \"/\"\nmethods = [\"OPTIONS\"]\nrespond = { status = 204 }");
    let weir = Weir::start(&logged(&config));
    let mut client = over_http2(&weir).await;
    let headers = [("sec-websocket-version", "13"), ("cookie", "a=1"), ("cookie", "b=2")];
    let (reply, stream) = client.tunnel("/chat", "websocket", &headers).await.unwrap();
    assert_eq!(reply.status, 200);
    assert_eq!(reply.remaining("day"), 1);
    for field in ["connection", "upgrade", "sec-websocket-accept", "content-length"] {
        assert!(!reply.headers.contains_key(field), "{reply:?}");
    }
    let seen = upstream.last();
    for field in [
        "get /chat http/1.1",
        "connection: upgrade",
        "upgrade: websocket",
        "sec-websocket-version: 13",
        "cookie: a=1; b=2",
    ] {
        assert!(seen.contains(&format!("{field}\r\n")), "{field}: {seen}");
    }
    let mut stream = stream.unwrap();
    let large = vec![b'x'; 300_000];
    let (mut read, mut write) = tokio::io::split(&mut stream);
    let mut answer = vec![0; large.len()];
    let (wrote, got) =
        tokio::join!(async { timeout(TIMEOUT, write.write_all(&large)).await.unwrap() }, async {
            timeout(TIMEOUT, read.read_exact(&mut answer)).await.unwrap()
        },);
    wrote.unwrap();
    got.unwrap();
    assert!(answer == large);
    open_now(&weir, 1).await;
    // Beside another one and ordinary requests on the same connection.
    let (second, other) = client.tunnel("/chat", "websocket", &[]).await.unwrap();
    assert_eq!((second.status, second.remaining("day")), (200, 0));
    assert_eq!(client.send("OPTIONS", "/", &[], bytes::Bytes::new()).await.unwrap().status, 204);
    let (refused, none) = client.tunnel("/chat", "websocket", &[]).await.unwrap();
    assert_eq!((refused.status, none.is_none()), (429, true));
    assert_eq!(refused.json()["status"], 429);
    drop(other);
    open_now(&weir, 1).await;
    stream.shutdown().await.unwrap();
    let mut rest = Vec::new();
    timeout(TIMEOUT, stream.read_to_end(&mut rest)).await.unwrap().unwrap();
    open_now(&weir, 0).await;
    let line = weir.output().await_events("request", 3);
    let ended = line.iter().find(|line| line["bytes_up"] == large.len()).expect("its line");
    assert_eq!((&ended["method"], &ended["status"]), (&"GET".into(), &101.into()));
}

#[tokio::test]
async fn over_http2_there_is_no_tunnel_without_a_server_that_agrees() {
    let plain = Raw::start("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", |_| {});
    let liar = Raw::echo();
    let refusing = Raw::start("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno", |_| {});
    let route = |path: &str, upstream: &str, more: &str| {
        format!("path = \"{path}\"\nupstream = \"{upstream}\"\n{more}")
    };
    let config = Toml::new()
        .upstream("plain", &plain.url(), "")
        .upstream("liar", &liar.url(), "")
        .upstream("refusing", &refusing.url(), "")
        .route(&route("/plain", "plain", ""))
        .route(&route("/liar", "liar", ""))
        .route(&route("/refusing", "refusing", ""))
        .route(&route("/none", "plain", "upgrade.protocols = []"))
        .route("path = \"/\"\nrespond = { status = 204 }");
    let weir = Weir::start(&config.text());
    let mut client = over_http2(&weir).await;
    for (target, protocol, status) in [
        // A success would mean that there is a tunnel.
        ("/plain", "websocket", 501),
        ("/none", "websocket", 501),
        ("/plain", "h2c", 501),
        // It does not know the key.
        ("/liar", "websocket", 502),
        ("/refusing", "websocket", 403),
        ("/nowhere", "websocket", 404),
    ] {
        let (reply, stream) = client.tunnel(target, protocol, &[]).await.unwrap();
        assert_eq!((reply.status, stream.is_none()), (status, true), "{target} {protocol}");
    }
    assert!(!plain.last().contains("upgrade"), "h2c is never asked for");
    open_now(&weir, 0).await;
}

#[tokio::test]
async fn a_shutdown_waits_for_a_tunnel_over_http2_and_then_cuts_it() {
    let upstream = Raw::websocket();
    let config = simple(&upstream.url(), &[MANY]).server("shutdown_grace = \"300ms\"");
    let mut weir = Weir::start(&config.text());
    let mut client = tls::Http2::plain(weir.http).await.unwrap();
    // Something is answered, whatever it is.
    let _ = client.tunnel("/", "none", &[]).await;
    let (reply, stream) = client.tunnel("/", "websocket", &[]).await.unwrap();
    assert_eq!(reply.status, 200);
    let mut stream = stream.unwrap();
    weir.signal(Signal::TERM);
    // It is still there.
    stream.write_all(b"hello").await.unwrap();
    let mut heard = [0; 5];
    timeout(TIMEOUT, stream.read_exact(&mut heard)).await.unwrap().unwrap();
    assert_eq!(&heard, b"hello");
    let end = timeout(TIMEOUT, stream.read(&mut heard)).await.unwrap();
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
    assert_eq!(weir.exit().code(), Some(1));
}
