//! Accepts connections and serves requests on them, until told to drain. Knows no route and no
//! limit: its handler is handed in.
//!
//! Read on in `accept` (a worker's loop), `connection` (one connection, from its first byte to its
//! close), `tls` (certificates, and which of them a client sees), `handshake`, `http1` with
//! `client`, `upload` and `progress` (its socket, a request's body, how it takes a reply), `http2`
//! with `stream` (what hyper reads and writes), `state` (what a worker tells its connections),
//! `permits` with `addresses` (how many there may be, in all and of one client).

use std::future::Future;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use http::StatusCode;
use ipnet::IpNet;

use crate::telemetry::Metrics;
use crate::wire::{Body, Identity, Pem, Rate, Request, Response};

mod accept;
mod addresses;
mod bind;
mod client;
mod connection;
mod drain;
mod error;
mod handshake;
mod http1;
mod http2;
mod http2_reply;
mod permits;
mod progress;
mod state;
mod stream;
mod subject;
#[cfg(test)]
mod tests;
mod tls;
mod transport;
mod upgraded;
mod upload;

pub use drain::Drain;
pub use tls::{Security, Tls};

/// One `[[listeners]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Its path in the configuration, for mistakes: `listeners[0]`.
    pub setting: String,
    /// Where to listen.
    pub address: SocketAddr,
    /// Plain without any. The first is shown to clients that name no host, or one that is in none.
    pub certificates: Vec<Identity>,
    /// Whether clients show certificates too.
    pub clients: Option<ClientCertificates>,
}

impl Settings {
    /// Plain HTTP.
    #[must_use]
    pub fn plain(address: SocketAddr) -> Self {
        Self {
            setting: "listeners[0]".to_owned(),
            address,
            certificates: Vec::new(),
            clients: None,
        }
    }
}

/// `client_ca`, `client_certificates`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificates {
    /// Who is believed to have issued them.
    pub ca: Pem,
    /// A client without one is not served.
    pub required: bool,
}

/// `[server.limits]` and `[server.timeouts]`, as far as connections care. They may change on
/// reload: new connections see the new ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionSettings {
    /// Connections at once over all workers, at most: over all listeners that are served with these
    /// very settings.
    pub connections_max: usize,
    /// And of one client network.
    pub connections_per_address_max: usize,
    /// Bits of an IPv6 address that make a client network.
    pub ipv6_prefix: u8,
    /// Their connections are many clients', and count under no address.
    pub trusted_proxies: Vec<IpNet>,
    /// Bytes of a request's head, at most: above, 431.
    pub header_bytes_max: usize,
    /// HTTP/2: requests at once on one connection, at most.
    pub streams_max: u32,
    /// Time for a TLS handshake.
    pub tls_handshake: Duration,
    /// Time for a request's head.
    pub request_header: Duration,
    /// Time between two requests of a connection.
    pub keep_alive: Duration,
    /// Time for which a client may take nothing of a reply that waits for it.
    pub send_idle: Duration,
    /// How slowly a client may take a reply that waits for it (HTTP/1): over HTTP/2 it has to take
    /// whole pieces within `send_idle`, which is no less.
    pub send_rate: Option<Rate>,
    /// Time for which a client that has closed its sending side is still worked for (HTTP/1).
    pub half_close: Duration,
}

impl Default for ConnectionSettings {
    /// What holds where `proxy.toml` says nothing.
    fn default() -> Self {
        Self {
            connections_max: 20_000,
            connections_per_address_max: 2_000,
            ipv6_prefix: 64,
            trusted_proxies: Vec::new(),
            header_bytes_max: 32 << 10,
            streams_max: 100,
            tls_handshake: Duration::from_secs(5),
            request_header: Duration::from_secs(10),
            keep_alive: Duration::from_secs(75),
            send_idle: Duration::from_secs(60),
            send_rate: Rate::new(240, Duration::from_secs(10)),
            half_close: Duration::from_secs(1),
        }
    }
}

impl ConnectionSettings {
    /// Whether the connections of `client` count under its address.
    fn counts(&self, client: IpAddr) -> bool {
        let client = client.to_canonical();
        !self.trusted_proxies.iter().any(|network| network.contains(&client))
    }
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The socket's own far end. An IPv4 client of an IPv6 socket is shown as IPv4.
    pub address: SocketAddr,
    /// That address without its port, as RFC 5952 writes it: written once for all requests of the
    /// connection.
    pub ip: Box<str>,
    /// The near end.
    pub local: SocketAddr,
    /// Whether the connection is TLS.
    pub tls: bool,
    /// The host that the client named in its TLS hello, in lower case.
    pub sni: Option<Box<str>>,
    /// The subject of the client's certificate, which was verified, as RFC 4514 writes it.
    pub client_subject: Option<Box<str>>,
}

impl Peer {
    /// Over plain TCP. An IPv4 address that came through an IPv6 socket is shown as IPv4: it is one
    /// client, whichever socket it came through.
    #[must_use]
    pub fn plain(address: SocketAddr, local: SocketAddr) -> Self {
        let canonical =
            |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        let address = canonical(address);
        Self {
            address,
            ip: address.ip().to_string().into(),
            local: canonical(local),
            tls: false,
            sni: None,
            client_subject: None,
        }
    }
}

/// Answers requests. Cloned for each connection.
pub trait Handler: Clone + Send + Sync + 'static {
    /// Answers one request. Dropped when the client goes away.
    fn call(&self, request: Request, peer: &Arc<Peer>) -> impl Future<Output = Response> + Send;

    /// Answers what is no request: its head can't be read (400, 501), or is too large (431). The
    /// status is the caller's; the body has to be whole.
    fn unreadable(&self, status: StatusCode, _peer: &Arc<Peer>) -> Response {
        Response::new(status, Body::empty())
    }
}

/// A bound address: every worker accepts on a socket of its own (`SO_REUSEPORT`).
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    security: Security,
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
        Ok(Self { socket, address, security: Security::default() })
    }

    /// Speaks TLS as `security` says, from connection to connection.
    #[must_use]
    pub fn secured(self, security: &Security) -> Self {
        Self { security: security.clone(), ..self }
    }

    /// Where it is bound.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts and serves until `drain` says so, then until the last connection is done. Runs on a
    /// worker's own runtime. Dropping it ends its connections at once: so a caller bounds the drain
    /// by its grace.
    pub async fn serve<H: Handler>(
        self,
        handler: H,
        settings: Arc<ArcSwap<ConnectionSettings>>,
        drain: Drain,
        metrics: Metrics,
    ) {
        accept::serve(self, handler, settings, drain, metrics).await;
    }
}
