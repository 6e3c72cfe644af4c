//! An upstream that keeps its own counts: what arrived, what it failed, and how much was in flight
//! at once, by path and by tenant. A request's `x-do` says how to answer: `fail` gets a 500, `hold`
//! waits until it is released, `slow` takes some milliseconds.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::TIMEOUT;
use super::server::Server;

/// How long a `slow` request takes.
const SLOW: Duration = Duration::from_millis(20);

/// The count of one path, or of one path and one tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub arrived: u64,
    /// Those that were answered with 500.
    pub failed: u64,
    pub in_flight: u64,
    pub in_flight_most: u64,
    /// The maximum of `arrived - failed` over time.
    pub kept_most: u64,
}

impl Count {
    /// Requests that arrived and were not failed.
    pub fn kept(&self) -> u64 {
        self.arrived - self.failed
    }
}

#[derive(Default)]
struct Book {
    counts: BTreeMap<String, Count>,
    /// The `x-id` of each request.
    arrived: BTreeSet<String>,
    /// Notified whenever `arrived` grows.
    news: watch::Sender<()>,
}

type Shared = Arc<Mutex<Book>>;

/// A running upstream; ends when it is dropped.
pub struct Counting {
    pub address: SocketAddr,
    book: Shared,
    hold: watch::Sender<bool>,
    _server: Server,
}

impl Counting {
    pub fn start() -> Self {
        let (hold, held) = watch::channel(true);
        let book = Shared::default();
        let serving = Arc::clone(&book);
        let server = Server::start(super::upstream::listener(), move |stream| {
            serve(stream, Arc::clone(&serving), held.clone())
        });
        Self { address: server.address, book, hold, _server: server }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The count of a path, `PATH`, or of a tenant there, `PATH TENANT`.
    pub fn of(&self, name: &str) -> Count {
        lock(&self.book).counts.get(name).copied().unwrap_or_default()
    }

    /// Waits until the request with this `x-id` has arrived.
    pub async fn arrival(&self, id: &str) {
        let mut news = lock(&self.book).news.subscribe();
        while !lock(&self.book).arrived.contains(id) {
            news.changed().await.expect("the book's own sender");
        }
    }

    /// Answers all requests that `hold`; later ones are answered at once.
    pub fn release(&self) {
        self.hold.send_replace(false);
    }
}

fn lock(book: &Shared) -> MutexGuard<'_, Book> {
    book.lock().expect("no panic while it is held")
}

async fn serve(stream: TcpStream, book: Shared, held: watch::Receiver<bool>) {
    let service = service_fn(move |request| reply(request, Arc::clone(&book), held.clone()));
    // A proxy whose client goes away closes in the middle of a request, and the response's future
    // is dropped.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

/// A request in flight, until it is answered or its proxy is gone.
struct InFlight {
    book: Shared,
    names: Vec<String>,
}

impl InFlight {
    fn begin(book: Shared, names: Vec<String>, id: Option<String>) -> Self {
        {
            let mut book = lock(&book);
            if let Some(id) = id {
                book.arrived.insert(id);
                book.news.send_replace(());
            }
            for name in &names {
                let count = book.counts.entry(name.clone()).or_default();
                count.arrived += 1;
                count.in_flight += 1;
                count.in_flight_most = count.in_flight_most.max(count.in_flight);
                count.kept_most = count.kept_most.max(count.kept());
            }
        }
        Self { book, names }
    }

    fn fail(&self) {
        let mut book = lock(&self.book);
        self.names.iter().for_each(|name| book.counts.entry(name.clone()).or_default().failed += 1);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut book = lock(&self.book);
        self.names
            .iter()
            .for_each(|name| book.counts.entry(name.clone()).or_default().in_flight -= 1);
    }
}

async fn reply(
    request: http::Request<Incoming>,
    book: Shared,
    mut held: watch::Receiver<bool>,
) -> Result<http::Response<Full<Bytes>>, http::Error> {
    let field = |name: &str| {
        request.headers().get(name).and_then(|value| value.to_str().ok()).map(ToOwned::to_owned)
    };
    let path = request.uri().path().trim_start_matches('/').to_owned();
    let mut names: Vec<String> =
        field("x-tenant").map(|tenant| format!("{path} {tenant}")).into_iter().collect();
    names.push(path);
    let in_flight = InFlight::begin(book, names, field("x-id"));
    let mut status = 200;
    match field("x-do").as_deref() {
        Some("fail") => {
            in_flight.fail();
            status = 500;
        }
        Some("slow") => tokio::time::sleep(SLOW).await,
        // An error means that the upstream is being dropped.
        Some("hold") => drop(held.wait_for(|held| !*held).await),
        _ => {}
    }
    // No longer in flight before anybody can know that it is answered.
    drop(in_flight);
    http::Response::builder().status(status).body(Full::new(Bytes::from_static(b"counted\n")))
}

/// Sends a request, and reads nothing.
pub async fn write(address: SocketAddr, target: &str, fields: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    stream
        .write_all(format!("GET {target} HTTP/1.1\r\nhost: weir\r\n{fields}\r\n").as_bytes())
        .await
        .expect("a connection");
    stream
}

/// Sends a request that the upstream holds. Waits until it has arrived, or returns the status of
/// the response that came instead.
pub async fn held(
    address: SocketAddr,
    target: &str,
    tenant: &str,
    id: &str,
    upstream: &Counting,
) -> Result<TcpStream, u16> {
    let mut stream =
        write(address, target, &format!("x-tenant: {tenant}\r\nx-do: hold\r\nx-id: {id}\r\n"))
            .await;
    tokio::select! {
        () = upstream.arrival(id) => Ok(stream),
        status = status(&mut stream) => Err(status),
    }
}

/// The status of the next response.
pub async fn status(stream: &mut TcpStream) -> u16 {
    let mut answer = [0; 4096];
    let read = tokio::time::timeout(TIMEOUT, stream.read(&mut answer))
        .await
        .expect("an answer in time")
        .expect("an answer");
    let text = String::from_utf8_lossy(&answer[..read]).into_owned();
    text.strip_prefix("HTTP/1.1 ")
        .and_then(|rest| rest.get(..3)?.parse().ok())
        .unwrap_or_else(|| panic!("{text:?}"))
}
