//! Binds, accepts connections, serves requests on them and drains. Knows nothing about routes or
//! limits: the request handler is passed in.
//!
//! Where to read on:
//!
//! - `accept`: a worker's accept loop
//! - `connection`: one connection, from its first byte to its close; `context`: what its requests
//!   share
//! - `proxied`: whom a proxy in front connects for
//! - `tls`: the certificates and which one a client is shown; `dates`: until when they are valid;
//!   `revocation`: those of clients that were revoked; `handshake`: one TLS handshake
//! - `http1`, with `client` (the socket), `upload` (a request's body) and `progress` (how fast the
//!   client takes its reply)
//! - `http2`
//! - `stream`: the byte stream of `http2` and `spop`, which gives up a client that reads nothing
//! - `spop`: what HAProxy's filter `spoe` asks, over a protocol of its own
//! - `state`: what a connection shares with the worker that drains it
//! - `permits`, with `addresses`: how many connections may be open, in total and per client

use std::future::Future;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::access;
use http::StatusCode;
use ipnet::IpNet;

use crate::http1::Scan;
use crate::telemetry::{Metrics, labels};
use crate::wire::{Body, Rate, Request, Response};
use weir_tls::{Identity, Pem};

mod accept;
mod addresses;
mod bind;
mod client;
mod connection;
mod context;
mod dates;
mod drain;
mod error;
mod handshake;
mod http1;
mod http2;
mod permits;
mod progress;
mod proxied;
mod revocation;
mod spop;
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
pub use rustls::sign::CertifiedKey;
pub use tls::{ChallengeCertificates, ServedCertificate, Tls};

/// One `[[listeners]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Its path in the configuration, used in error messages: `listeners[0]`.
    pub setting: String,
    /// The name by which routes refer to it.
    pub name: Option<String>,
    /// The address to listen on.
    pub address: SocketAddr,
    /// Empty for plain HTTP. The first is the default, for clients that send no SNI or an unknown
    /// name.
    pub certificates: Vec<Certificate>,
    /// Whether clients are asked for certificates.
    pub clients: Option<ClientCertificates>,
    /// Whether connections of trusted proxies begin with a header of the PROXY protocol.
    pub proxy_protocol: bool,
    /// The port of `https://` that all requests are redirected to.
    pub redirect_to_https: Option<u16>,
    /// What comes here.
    pub serves: Serves,
}

labels! {
    /// What comes to a listener: requests, or what other proxies and programs want to have decided.
    /// In the words of a configuration.
    #[derive(Default)]
    pub enum Serves {
        /// Requests.
        #[default]
        Requests = "requests",
        /// Questions of nginx: its directive `auth_request`.
        AuthRequest = "auth_request",
        /// Questions of Traefik and Caddy: their `forwardAuth` and `forward_auth`.
        ForwardAuth = "forward_auth",
        /// Questions of Envoy: its filter `ext_authz`, over HTTP.
        ExtAuthz = "ext_authz",
        /// The same over gRPC.
        ExtAuthzGrpc = "ext_authz_grpc",
        /// Questions of HAProxy: its filter `spoe`, which does not speak HTTP.
        Spoe = "spoe",
        /// Calls for decisions: Envoy's rate limit service and the HTTP API.
        Decisions = "decisions",
    }
}

impl Serves {
    /// Whether other proxies ask here about requests of theirs, and say what these are.
    #[must_use]
    pub fn is_about_requests(self) -> bool {
        match self {
            Self::Requests | Self::Decisions => false,
            Self::AuthRequest
            | Self::ForwardAuth
            | Self::ExtAuthz
            | Self::ExtAuthzGrpc
            | Self::Spoe => true,
        }
    }

    /// Whether its clients are proxies that may reset many calls at once, if they come too late.
    fn is_of_calls(self) -> bool {
        matches!(self, Self::Decisions | Self::ExtAuthzGrpc)
    }
}

/// A certificate of a listener, and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Certificate {
    /// The operator's own files.
    Files(Identity),
    /// An authority that it is ordered from.
    Ordered(OrderedCertificate),
}

/// A certificate that is ordered, and perhaps not issued yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderedCertificate {
    /// The names that it is for.
    pub names: Vec<String>,
    /// Where it is kept, with its key.
    pub file: PathBuf,
    /// What is shown: what the file holds, or until it is issued perhaps another certificate. None
    /// if there is neither.
    pub identity: Option<Identity>,
}

impl OrderedCertificate {
    /// What its own file holds, and not the one of a certificate that serves until it is issued.
    #[must_use]
    pub fn own(&self) -> Option<&Identity> {
        self.identity.as_ref().filter(|identity| identity.certificate.path == self.file)
    }
}

impl Settings {
    /// Plain HTTP.
    #[must_use]
    pub fn plain(address: SocketAddr) -> Self {
        Self {
            setting: "listeners[0]".to_owned(),
            name: None,
            address,
            certificates: Vec::new(),
            clients: None,
            proxy_protocol: false,
            redirect_to_https: None,
            serves: Serves::Requests,
        }
    }
}

/// `client_ca` and `client_certificates`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificates {
    /// The authority that must have issued client certificates.
    pub ca: Pem,
    /// Whether the handshake fails for clients without a certificate.
    pub required: bool,
    /// Lists of certificates that were revoked: one of each authority of a chain.
    pub crl: Option<Pem>,
}

/// The parts of `[server.limits]` and `[server.timeouts]` that concern connections. A reload may
/// change them; new connections use the new values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionSettings {
    /// Maximum open connections over all workers and over all listeners that share these settings.
    pub connections_max: usize,
    /// Maximum open connections of one client network.
    pub connections_per_address_max: usize,
    /// How many leading bits of an IPv6 address identify a client network.
    pub ipv6_prefix: u8,
    /// Connections from these proxies carry many clients' requests, so they don't count towards the
    /// limit per network.
    pub trusted_proxies: Vec<IpNet>,
    /// Maximum bytes of a request's head; a larger one is answered 431.
    pub header_bytes_max: usize,
    /// HTTP/2: maximum concurrent streams of one connection.
    pub streams_max: u32,
    /// Time limit for a TLS handshake.
    pub tls_handshake: Duration,
    /// Time limit for a request's head.
    pub request_header: Duration,
    /// How long a connection may stay idle between two requests.
    pub keep_alive: Duration,
    /// How long a client may read nothing of a reply that is ready to be sent.
    pub send_idle: Duration,
    /// The minimum rate at which a client must read a reply over HTTP/1. Over HTTP/2 it must take
    /// each piece within `send_idle`, which is at least as strict.
    pub send_rate: Option<Rate>,
    /// How long a request is still processed after its client has closed its sending side (HTTP/1).
    pub half_close: Duration,
}

impl Default for ConnectionSettings {
    /// The defaults of `proxy.toml`.
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
    /// Whether connections from `client` count towards the limit per network.
    fn counts(&self, client: IpAddr) -> bool {
        let client = client.to_canonical();
        !self.trusted_proxies.iter().any(|network| network.contains(&client))
    }
}

/// What new connections are served with, over all listeners that share it. Read once for each
/// connection, so that a reload is seen whole.
#[derive(Clone, Debug, Default)]
pub struct ListenConfig {
    /// The settings of all listeners' connections.
    pub settings: Arc<ConnectionSettings>,
    /// The TLS settings by the listener's index; plain where there are none.
    pub tls: Vec<Option<Arc<Tls>>>,
    /// Whether there is a header of the PROXY protocol, by the listener's index.
    pub proxy_protocol: Vec<bool>,
}

/// Where listeners find the configuration of their next connection. Listeners that share a source
/// count their connections together.
pub type ConfigSource = Arc<dyn access::DynAccess<ListenConfig> + Send + Sync>;

impl From<ConnectionSettings> for ListenConfig {
    /// The configuration without TLS.
    fn from(settings: ConnectionSettings) -> Self {
        Self { settings: Arc::new(settings), tls: Vec::new(), proxy_protocol: Vec::new() }
    }
}

/// The two ends of a connection, and what its TLS handshake revealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The remote address. An IPv4 client of an IPv6 socket is shown as IPv4.
    pub address: SocketAddr,
    /// The remote IP address as RFC 5952 writes it. Formatted once per connection, since every
    /// request needs it.
    pub ip: Box<str>,
    /// The local address.
    pub local: SocketAddr,
    /// Whether the connection is TLS.
    pub tls: bool,
    /// The number of the listener that it came to, counted from 0.
    pub listener: usize,
    /// The version of TLS: `TLSv1.2` or `TLSv1.3`.
    pub tls_version: Option<&'static str>,
    /// The host name that the client sent in its TLS hello (SNI), in lower case and without a dot
    /// at its end.
    pub sni: Option<Box<str>>,
    /// The subject of the client's verified certificate, as RFC 4514 writes it.
    pub client_subject: Option<Box<str>>,
    /// It is a proxy that was to name its client, by the PROXY protocol, and did not. The requests
    /// may be anybody's, and so may what their fields say of the client.
    pub is_unnamed: bool,
}

impl Peer {
    /// A plain TCP connection. An IPv4 address that arrived on an IPv6 socket is shown as IPv4, so
    /// that a client is the same one on both kinds of socket.
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
            listener: 0,
            tls_version: None,
            sni: None,
            client_subject: None,
            is_unnamed: false,
        }
    }
}

/// Handles requests. Cloned for each connection.
pub trait Handler: Clone + Send + Sync + 'static {
    /// Handles one request. The future is dropped when the client goes away.
    fn call(&self, request: Request, peer: &Arc<Peer>) -> impl Future<Output = Response> + Send;

    /// What comes to a listener.
    fn serves(&self, _listener: usize) -> Serves {
        Serves::Requests
    }

    /// Builds the reply to a head that can't be parsed (400, 501) or is too large (431). `why` says
    /// what is wrong, for the operator. `status` is sent as given. The reply's body must be
    /// complete, not a stream.
    fn unreadable(&self, status: StatusCode, _why: &'static str, _peer: &Arc<Peer>) -> Response {
        Response::new(status, Body::empty())
    }
}

/// Reads a request's head as connections over HTTP/1.1 do, for one that comes over none. It has no
/// body.
///
/// # Errors
/// The status that a client would be sent, and why.
pub fn read_head(head: &[u8]) -> Result<Request, (StatusCode, &'static str)> {
    match Scan::default().request(head) {
        Ok(Some((read, length))) if length == head.len() => Ok(read.request),
        Ok(Some(_)) => Err((StatusCode::BAD_REQUEST, "something follows the head")),
        Ok(None) => Err((StatusCode::BAD_REQUEST, "the head does not end")),
        Err(error) => Err((error.status(), error.why())),
    }
}

/// A bound address. Each worker accepts on its own socket (`SO_REUSEPORT`).
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    /// Another handle of the socket, for as long as connections are accepted on it.
    handle: Arc<TcpListener>,
    address: SocketAddr,
    /// Which of the configuration's TLS settings apply.
    index: usize,
}

impl Listener {
    /// Binds one socket for each of `workers`. Port 0 picks a free port, which all of them share.
    ///
    /// # Errors
    /// The address is in use or is not a local one.
    pub fn bind(settings: &Settings, workers: usize) -> std::io::Result<Vec<Self>> {
        bind::bind(settings.address, workers)
    }

    /// Serves on a socket that is already bound and listening.
    ///
    /// # Errors
    /// The socket has no address or can't be made non-blocking.
    pub fn from_std(socket: TcpListener) -> std::io::Result<Self> {
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        let handle = Arc::new(socket.try_clone()?);
        Ok(Self { socket, handle, address, index: 0 })
    }

    /// Makes it listener number `index`, counted from 0: it speaks TLS as [`ListenConfig::tls`]
    /// says there, and its connections are told apart by it ([`Peer::listener`]).
    #[must_use]
    pub fn numbered(self, index: usize) -> Self {
        Self { index, ..self }
    }

    /// The address that it is bound to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The socket, to pass it to another process. Gone when no connections are accepted on it any
    /// more.
    #[must_use]
    pub fn handle(&self) -> Weak<TcpListener> {
        Arc::downgrade(&self.handle)
    }

    /// Accepts and serves until `drain` starts, then waits until the last connection has closed.
    /// Must run on a worker's own runtime. Dropping the future closes its connections at once, so a
    /// caller can bound the drain by a deadline.
    pub async fn serve<H: Handler>(
        self,
        handler: H,
        config: ConfigSource,
        drain: Drain,
        metrics: Metrics,
    ) {
        accept::serve(self, handler, config, drain, metrics).await;
    }
}
