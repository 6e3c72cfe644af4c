//! Upstreams as real sockets that do exactly what a test says.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::wire::{Body, Request};

mod bodies;
mod choosing;
mod concurrency;
mod connections;
mod dns;
mod ejection;
mod failures;
mod health;
mod hosts;

mod multiplexed;
mod reconnecting;
mod reloading;
mod tls;

const TEST_TIMEOUT: Duration = Duration::from_secs(20);
const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// An upstream that accepts, counts, and hands each connection to `script`.
struct ScriptedUpstream {
    address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl ScriptedUpstream {
    async fn new<F, R>(script: F) -> Self
    where
        F: Fn(Stream, usize) -> R + Send + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let accepted = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&accepted);
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                let number = counted.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(script(Stream(stream), number));
            }
        });
        Self { address, accepted, task }
    }

    /// Answers every request with `reply`.
    async fn answering(reply: &'static str) -> Self {
        Self::new(move |mut stream, _| async move {
            while stream.head().await.is_some() {
                stream.send(reply).await;
            }
        })
        .await
    }

    fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for ScriptedUpstream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The upstream's side of a connection.
struct Stream(TcpStream);

impl Stream {
    /// A request's head. `None` once the proxy has closed.
    async fn head(&mut self) -> Option<String> {
        self.read_to("\r\n\r\n").await
    }

    /// Reads until `end`, byte by byte so that nothing more is read.
    async fn read_to(&mut self, end: &str) -> Option<String> {
        let mut text = String::new();
        while !text.ends_with(end) {
            text.push(char::from(self.0.read_u8().await.ok()?));
        }
        Some(text)
    }

    async fn send(&mut self, text: &str) {
        // The proxy may be gone. What it does then is what the test checks.
        let _ = self.0.write_all(text.as_bytes()).await;
    }

    /// Waits until the proxy closes.
    async fn closed(&mut self) {
        let mut rest = Vec::new();
        let _ = self.0.read_to_end(&mut rest).await;
    }
}

fn settings(endpoints: &[SocketAddr]) -> Settings {
    Settings {
        connect: Duration::from_secs(5),
        response_header: Duration::from_secs(5),
        idle: Duration::from_secs(5),
        pool_idle_per_worker: 8,
        ..Settings::new(
            "api",
            endpoints.iter().map(|address| format!("http://{address}")).collect(),
        )
    }
}

fn upstream(scripted: &ScriptedUpstream) -> Upstream {
    Upstream::build(&settings(&[scripted.address]), &Metrics::new(1)).unwrap()
}

fn get() -> Request {
    http::Request::get("/").header("host", "a").body(Body::empty()).unwrap().into()
}

fn post(body: Body) -> Request {
    http::Request::post("/").header("host", "a").body(body).unwrap().into()
}

async fn text(reply: Response) -> String {
    String::from_utf8(reply.body.collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

/// An address where nothing listens.
async fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TEST_TIMEOUT, future).await.expect("not in time")
}

/// Waits until `condition` holds.
async fn until(condition: impl Fn() -> bool) {
    in_time(async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

/// Like [`until`], for an async condition.
async fn until_async(mut condition: impl AsyncFnMut() -> bool) {
    in_time(async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}
