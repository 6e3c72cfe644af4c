//! An upstream inside the test: it records requests, and answers as configured.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::sync::watch;

use super::server::Server;

/// Maximum number of requests that are recorded.
const SEEN_MAX: usize = 10_000;

/// The response to send.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Bytes,
}

/// A request as the upstream saw it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: String,
    pub target: String,
    pub headers: http::HeaderMap,
    pub body: Bytes,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<String> {
        let values: Vec<&str> =
            self.headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
        (!values.is_empty()).then(|| values.join(", "))
    }
}

#[derive(Debug, Default)]
struct Book {
    count: u64,
    connections: u64,
    seen: Vec<Seen>,
}

struct State {
    answer: Mutex<Answer>,
    book: Mutex<Book>,
    held: watch::Receiver<bool>,
}

/// A running upstream; ends when it is dropped.
pub struct Upstream {
    pub address: SocketAddr,
    state: Arc<State>,
    hold: watch::Sender<bool>,
    _server: Server,
}

impl Upstream {
    /// Answers with 200 and a short text.
    pub fn start() -> Self {
        Self::on(listener())
    }

    /// The same on a socket of the test's own.
    pub fn on(listener: std::net::TcpListener) -> Self {
        let (hold, held) = watch::channel(false);
        let answer = Answer {
            status: 200,
            headers: Vec::new(),
            body: Bytes::from_static(b"from upstream\n"),
        };
        let state = Arc::new(State { answer: Mutex::new(answer), book: Mutex::default(), held });
        let serving = Arc::clone(&state);
        let server = Server::start(listener, move |stream| serve(stream, Arc::clone(&serving)));
        Self { address: server.address, state, hold, _server: server }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn answer(&self, status: u16, headers: &[(&'static str, &str)], body: impl Into<Bytes>) {
        let headers = headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        *self.state.answer.lock().expect("no panic while it is held") =
            Answer { status, headers, body: body.into() };
    }

    /// Makes requests wait for [`Upstream::release`] before they are answered.
    pub fn hold(&self) {
        self.hold.send_replace(true);
    }

    pub fn release(&self) {
        self.hold.send_replace(false);
    }

    /// Requests whose head has arrived.
    pub fn count(&self) -> u64 {
        self.state.book.lock().expect("no panic while it is held").count
    }

    /// Connections accepted so far.
    pub fn connections(&self) -> u64 {
        self.state.book.lock().expect("no panic while it is held").connections
    }

    /// Requests that arrived completely.
    pub fn seen(&self) -> Vec<Seen> {
        self.state.book.lock().expect("no panic while it is held").seen.clone()
    }

    /// The one request that has arrived.
    pub fn only(&self) -> Seen {
        let seen = self.seen();
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen[0].clone()
    }

    pub fn last(&self) -> Seen {
        self.seen().last().expect("a request").clone()
    }
}

/// Its queue holds a whole storm. The standard library's holds 128, and a client that doesn't fit
/// waits a second before it retries.
pub fn listener() -> std::net::TcpListener {
    let socket =
        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).expect("a free port");
    socket.listen(4096).expect("a queue");
    socket.into()
}

async fn serve(stream: tokio::net::TcpStream, state: Arc<State>) {
    state.book.lock().expect("no panic while it is held").connections += 1;
    let service = service_fn(move |request| reply(request, Arc::clone(&state)));
    // In some tests, a proxy that goes away in the middle of a request is the point.
    let _ = http1::Builder::new()
        .max_buf_size(1 << 20)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn reply(
    request: http::Request<Incoming>,
    state: Arc<State>,
) -> Result<http::Response<Full<Bytes>>, http::Error> {
    state.book.lock().expect("no panic while it is held").count += 1;
    let (head, body) = request.into_parts();
    if let Ok(body) = body.collect().await {
        let mut book = state.book.lock().expect("no panic while it is held");
        if book.seen.len() < SEEN_MAX {
            let seen = Seen {
                method: head.method.to_string(),
                target: head.uri.to_string(),
                headers: head.headers,
                body: body.to_bytes(),
            };
            book.seen.push(seen);
        }
    }
    let mut held = state.held.clone();
    // An error means that the upstream is being dropped.
    let _ = held.wait_for(|held| !*held).await;
    let answer = state.answer.lock().expect("no panic while it is held").clone();
    let mut response = http::Response::builder().status(answer.status);
    for (name, value) in &answer.headers {
        response = response.header(*name, value);
    }
    response.body(Full::new(answer.body))
}
