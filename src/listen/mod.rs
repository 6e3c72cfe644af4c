//! Accepts connections and serves requests on them, until told to drain. Knows no route and no limit: its handler is handed in.
//!
//! Read on in `accept` (a worker's loop), `connection` (one connection), `head_timer` (its two waits), `stream` (what hyper reads and writes).

use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;

use crate::telemetry::Metrics;
use crate::wire::Response;

mod accept;
mod bind;
mod connection;
mod drain;
mod head_timer;
mod stream;
#[cfg(test)]
mod tests;

pub use drain::Drain;

/// One `[[listeners]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where to listen.
    pub address: SocketAddr,
}

/// `[server.limits]` and `[server.timeouts]`, as far as connections care. They may change on reload: new connections see the new ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionSettings {
    /// Connections at once over all workers, at most: over all listeners that are served with these very settings.
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
    /// The socket's own far end. An IPv4 client of an IPv6 socket is shown as IPv4.
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
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Binds one socket for each of `workers`. Port 0 takes a free one, the same for all.
    ///
    /// # Errors
    /// The address is taken, or not ours.
    pub fn bind(settings: &Settings, workers: usize) -> std::io::Result<Vec<Self>> {
        bind::bind(settings.address, workers)
    }

    /// Serves on a socket that the caller has bound and on which it listens.
    ///
    /// # Errors
    /// The socket has no address, or can't be made non-blocking.
    pub fn from_std(socket: TcpListener) -> std::io::Result<Self> {
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        Ok(Self { socket, address })
    }

    /// Where it is bound.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts and serves until `drain` says so, then until the last connection is done. Runs on a worker's own runtime. Dropping it ends its
    /// connections at once: so a caller bounds the drain by its grace.
    pub async fn serve<H: Handler>(self, handler: H, settings: Arc<ArcSwap<ConnectionSettings>>, drain: Drain, metrics: Metrics) {
        accept::serve(self.socket, handler, settings, drain, metrics).await;
    }
}
