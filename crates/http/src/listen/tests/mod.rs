//! The tests of `listen`, with real sockets, raw bytes, and a handler whose answer depends on the
//! path.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::*;
use crate::wire::{self, Body, Request};

mod certificates;
mod draining;
mod flood;
mod http2;
mod permits;
mod proxied;
mod serving;
mod spop;
mod tls;
mod upgrades;

/// Bytes of a `/long` reply: more than sockets and windows buffer for a client that does not read.
const LONG: usize = 32 << 20;

/// Bytes of a `/wait-much` reply: few enough for the sockets' buffers.
const MUCH: usize = 256 << 10;

/// No step should take this long. A test that would hang fails instead.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Clone, Default)]
struct TestHandler(Arc<Seen>);

#[derive(Default)]
struct Seen {
    calls: AtomicUsize,
    speaks_spop: AtomicBool,
    /// Notified when a `/wait` has begun.
    begun: Notify,
    /// Lets a `/wait` reply.
    go: Notify,
    /// Notified when a `/wait` is dropped before it has replied.
    dropped: Notify,
}

struct Dropped<'a>(&'a Seen, bool);

impl Drop for Dropped<'_> {
    fn drop(&mut self) {
        if !self.1 {
            self.0.dropped.notify_one();
        }
    }
}

/// A body that is cut after these bytes.
struct CutBody(&'static [u8]);

impl wire::Source for CutBody {
    fn poll_fill(&mut self, _: &mut Context<'_>) -> Poll<Result<(), wire::BodyError>> {
        let is_cut = self.0.is_empty();
        Poll::Ready(if is_cut { Err(wire::BodyError::Reset) } else { Ok(()) })
    }

    fn data(&self) -> &[u8] {
        self.0
    }

    fn consume(&mut self, bytes: usize) {
        self.0 = &self.0[bytes..];
    }

    fn remaining(&self) -> Option<u64> {
        None
    }

    fn is_end(&self) -> bool {
        false
    }

    fn take_trailers(&mut self) -> Option<http::HeaderMap> {
        None
    }

    fn poll_background(&mut self, _: &mut Context<'_>) {}

    fn finish(self: Box<Self>, _: &wire::BodyEnd) {}
}

impl Handler for TestHandler {
    fn unreadable(&self, status: StatusCode, _: &'static str, _: &Arc<Peer>) -> Response {
        Response::new(status, wire::full(format!("unreadable: {status}")))
    }

    fn serves(&self, _: usize) -> Serves {
        if self.0.speaks_spop.load(Ordering::SeqCst) { Serves::Spoe } else { Serves::Requests }
    }

    async fn call(&self, request: Request, peer: &Arc<Peer>) -> Response {
        self.0.calls.fetch_add(1, Ordering::SeqCst);
        let ok = |body| Response::new(StatusCode::OK, body);
        match request.target() {
            "/hello" => ok(wire::full("hello")),
            "/empty" => ok(Body::empty()),
            "/cut" => ok(Body::source(Box::new(CutBody("begun".as_bytes())))),
            "/fields" => {
                let mut reply = ok(Body::empty());
                for name in ["host", "x-forwarded-for", "x-forwarded-proto", "accept"] {
                    for value in request.fields.get_all(name) {
                        reply.fields.append(format!("X-{name}").as_str(), value);
                    }
                }
                reply
            }
            "/bare" => Response::new(StatusCode::NOT_FOUND, Body::empty()),
            "/peer" => ok(wire::full(peer.address.to_string())),
            "/tls" => ok(wire::full(format!(
                "{} {:?} {:?} {:?}",
                peer.tls, peer.sni, peer.client_subject, request.version
            ))),
            "/long" => ok(wire::full(vec![b'x'; LONG])),
            "/upgrade" => {
                let seen = Arc::clone(&self.0);
                let echo = |mut stream: Box<dyn wire::Stream>| {
                    tokio::spawn(async move {
                        let (mut reading, mut writing) = tokio::io::split(&mut stream);
                        if tokio::io::copy(&mut reading, &mut writing).await.is_ok() {
                            let _ = writing.shutdown().await;
                        }
                        drop(stream);
                        seen.dropped.notify_one();
                    });
                };
                let mut reply = Response::new(StatusCode::SWITCHING_PROTOCOLS, Body::empty());
                reply.fields.append("connection", "upgrade");
                reply.fields.append("upgrade", "echo");
                reply.upgrade = Some(wire::Upgrade::Callback(Box::new(echo)));
                reply
            }
            "/echo" => {
                let mut reply = ok(Body::empty());
                if let Some(names) = request.fields.get("trailer") {
                    reply.fields.append("trailer", names);
                }
                reply.body = request.body;
                reply
            }
            "/upload" | "/upload-later" | "/hints" | "/hop" | "/dated" | "/last-words"
            | "/no-content" | "/lengths" => self.http2(request).await,
            path @ ("/wait" | "/wait-much") => {
                let mut answered = Dropped(&self.0, false);
                self.0.begun.notify_one();
                self.0.go.notified().await;
                answered.1 = true;
                let much = path == "/wait-much";
                ok(wire::full(if much { vec![b'x'; MUCH] } else { b"waited".to_vec() }))
            }
            // Does not read the request's body.
            _ => Response::new(StatusCode::TOO_MANY_REQUESTS, wire::full("no")),
        }
    }
}

impl TestHandler {
    /// What the tests of HTTP/2 ask for.
    async fn http2(&self, request: Request) -> Response {
        let mut reply = Response::new(StatusCode::OK, Body::empty());
        match request.target() {
            "/hints" => {
                let interim = request.interim.unwrap();
                for number in 0..100 {
                    let mut hint = wire::Fields::new();
                    hint.append("link", format!("{:x<1000}", format!("<{number}>; ")));
                    interim.send(StatusCode::EARLY_HINTS, &hint);
                }
            }
            "/hop" => {
                reply.body = wire::full("hop");
                for name in ["connection", "keep-alive", "te", "transfer-encoding", "x-kept"] {
                    reply.fields.append(name, "x-kept");
                }
            }
            "/dated" => reply.fields.append("date", "then"),
            "/no-content" => {
                reply.status = StatusCode::NO_CONTENT;
                reply.fields.append("content-length", "5");
                reply.body = wire::full("hello");
            }
            "/lengths" => {
                let lengths = request.fields.get_all("content-length").count();
                reply.body = wire::full(lengths.to_string());
            }
            "/last-words" => {
                let goes = |mut stream: Box<dyn wire::Stream>| {
                    tokio::spawn(async move { stream.write_all(b"goodbye").await });
                };
                reply.status = StatusCode::SWITCHING_PROTOCOLS;
                reply.upgrade = Some(wire::Upgrade::Callback(Box::new(goes)));
            }
            path => {
                if path == "/upload-later" {
                    self.0.begun.notify_one();
                    self.0.go.notified().await;
                }
                let whole = http_body_util::BodyExt::collect(request.body).await.unwrap();
                assert_eq!(whole.to_bytes(), "a body");
            }
        }
        reply
    }
}

struct TestServer {
    address: std::net::SocketAddr,
    handler: TestHandler,
    config: Arc<ArcSwap<ListenConfig>>,
    drain: Drain,
    metrics: Metrics,
    serving: JoinHandle<()>,
}

fn settings() -> ConnectionSettings {
    ConnectionSettings {
        connections_max: 100,
        header_bytes_max: 16 << 10,
        keep_alive: Duration::from_secs(10),
        ..ConnectionSettings::default()
    }
}

fn start(settings: ConnectionSettings) -> TestServer {
    start_tls(settings, None)
}

/// A server that speaks TLS if `tls` is given.
fn start_tls(settings: ConnectionSettings, tls: Option<Arc<Tls>>) -> TestServer {
    let listener =
        Listener::bind(&Settings::plain(([127, 0, 0, 1], 0).into()), 1).unwrap().remove(0);
    let address = listener.address();
    let config =
        ListenConfig { settings: Arc::new(settings), tls: vec![tls], ..ListenConfig::default() };
    let (handler, config) = (TestHandler::default(), Arc::new(ArcSwap::from_pointee(config)));
    let (drain, metrics) = (Drain::new(), Metrics::new(1));
    let source: ConfigSource = Arc::clone(&config) as _;
    let serving =
        tokio::spawn(listener.serve(handler.clone(), source, drain.clone(), metrics.clone()));
    TestServer { address, handler, config, drain, metrics, serving }
}

impl TestServer {
    /// Reloads with other TLS.
    fn set_tls(&self, tls: Option<Arc<Tls>>) {
        let settings = Arc::clone(&self.config.load_full().settings);
        self.config.store(Arc::new(ListenConfig {
            settings,
            tls: vec![tls],
            ..ListenConfig::default()
        }));
    }

    /// Reloads with other settings.
    fn set(&self, settings: ConnectionSettings) {
        let tls = self.config.load_full().tls.clone();
        self.config.store(Arc::new(ListenConfig {
            settings: Arc::new(settings),
            tls,
            ..ListenConfig::default()
        }));
    }

    async fn connect(&self) -> Client {
        Client(TcpStream::connect(self.address).await.unwrap())
    }

    fn shows(&self, line: &str) -> bool {
        self.metrics.encode().lines().any(|shown| shown == line)
    }

    /// Waits until `/metrics` shows a line.
    async fn await_shown(&self, line: &str) {
        let shown = async {
            while !self.shows(line) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, shown)
            .await
            .unwrap_or_else(|_| panic!("{line}\n{}", self.metrics.encode()));
    }
}

struct Client(TcpStream);

impl Client {
    async fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    /// Reads until the text ends with `end`.
    async fn read_to(&mut self, end: &str) -> String {
        let mut text = String::new();
        while !text.ends_with(end) {
            let mut piece = [0; 4096];
            let read = tokio::time::timeout(TEST_TIMEOUT, self.0.read(&mut piece))
                .await
                .unwrap_or_else(|_| panic!("only {text:?}"))
                .unwrap();
            assert!(read > 0, "closed after {text:?}");
            text.push_str(std::str::from_utf8(&piece[..read]).unwrap());
        }
        text
    }

    /// Reads until the server closes. A reset is an error.
    async fn read_all(&mut self) -> String {
        let mut text = String::new();
        tokio::time::timeout(TEST_TIMEOUT, self.0.read_to_string(&mut text))
            .await
            .expect("not closed in time")
            .unwrap();
        text
    }

    async fn get(&mut self, path: &str, end: &str) -> String {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n")).await;
        self.read_to(end).await
    }
}
