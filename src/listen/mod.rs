//! Accepts connections and serves requests on them, until told to drain. Knows no route and no limit: its handler is handed in.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::telemetry::Metrics;
use crate::wire::Response;

/// One `[[listeners]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where to listen.
    pub address: SocketAddr,
}

/// `[server.limits]` and `[server.timeouts]`, as far as connections care. They may change on reload: new connections see the new ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionSettings {
    /// Connections at once over all workers, at most.
    pub connections_max: usize,
    /// Bytes of a request's head, at most: above, 431.
    pub header_bytes_max: usize,
    /// Time for a request's head.
    pub request_header: Duration,
    /// Time between two requests of a connection.
    pub keep_alive: Duration,
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The socket's own far end.
    pub address: SocketAddr,
    /// The near end.
    pub local: SocketAddr,
    /// Whether the connection is TLS.
    pub tls: bool,
}

/// Answers requests. Cloned for each connection.
pub trait Handler: Clone + Send + Sync + 'static {
    /// Answers one request. Dropped when the client goes away.
    fn call(&self, request: http::Request<hyper::body::Incoming>, peer: &Arc<Peer>) -> impl Future<Output = Response> + Send;
}

/// A bound address: every worker accepts on a socket of its own (`SO_REUSEPORT`).
#[derive(Debug)]
pub struct Listener;

/// Stops the accepting and waits for what is under way.
#[derive(Clone, Debug)]
pub struct Drain;

impl Listener {
    /// Binds one socket for each of `workers`. Port 0 takes a free one, the same for all.
    ///
    /// # Errors
    /// The address is taken, or not ours.
    pub fn bind(_settings: &Settings, _workers: usize) -> std::io::Result<Vec<Self>> {
        todo!()
    }

    /// Where it is bound.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        todo!()
    }

    /// Accepts and serves until `drain` says so, then until the last connection is done. Runs on a worker's own runtime.
    pub async fn serve<H: Handler>(
        self,
        _handler: H,
        _settings: Arc<arc_swap::ArcSwap<ConnectionSettings>>,
        _drain: Drain,
        _metrics: Metrics,
    ) {
        todo!()
    }
}

impl Drain {
    /// One for a whole process.
    #[must_use]
    pub fn new() -> Self {
        todo!()
    }

    /// Says it: accepting stops, idle connections close, busy ones finish what they do.
    pub fn start(&self) {
        todo!()
    }

    /// Whether it was said.
    #[must_use]
    pub fn started(&self) -> bool {
        todo!()
    }
}
