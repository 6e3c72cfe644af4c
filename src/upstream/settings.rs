//! What the configuration says of an upstream, with the defaults of what it leaves out. Knows no
//! file and no connection.

use std::time::Duration;

use crate::wire::{Identity, Pem};

/// One `[upstreams.NAME]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The upstream's name in the configuration.
    pub name: String,
    /// `http://host:port` or `https://host:port`, one or more, all of one scheme.
    pub endpoints: Vec<String>,
    /// What is spoken there.
    pub protocol: Protocol,
    /// `[upstreams.NAME.tls]`.
    pub tls: TlsSettings,
    /// `[upstreams.NAME.http2]`.
    pub http2: Http2Settings,
    /// Time to connect, TLS included.
    pub connect: Duration,
    /// Time from the request's end to the reply's head.
    pub response_header: Duration,
    /// Time between two pieces of a body; also how long an unused connection is kept.
    pub idle: Duration,
    /// Idle connections that each worker keeps.
    pub pool_idle_per_worker: usize,
    /// Requests that each worker has there at once, at most, replies that still stream included.
    pub requests_per_worker: usize,
    /// How often the names of endpoints are resolved while the upstream is in use.
    pub resolve_every: Duration,
    /// What is tried again.
    pub retry: Retry,
    /// Of a hundred requests, how many may be sent a second time.
    pub retry_percent: usize,
    /// `[upstreams.NAME.ejection]`.
    pub ejection: Ejection,
}

/// Which requests are tried again. One of which nothing was sent to anybody can't have been done;
/// one that can be done twice may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retry {
    /// Nothing is tried again.
    Off,
    /// Those of which nothing was sent.
    Unsent,
    /// Those too that are idempotent, have no body, and lost their connection before they were
    /// answered.
    #[default]
    Idempotent,
}

/// When an endpoint that fails is left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ejection {
    /// After this many failures without a success between; never where it is 0.
    pub failures: u32,
    /// For how long at first; each further time twice as long.
    pub time: Duration,
    /// For how long at most.
    pub time_max: Duration,
    /// Of a hundred hosts, how many are left alone at once; of few, one at least.
    pub max_percent: usize,
}

/// What is spoken to an upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    #[default]
    H1,
    /// HTTP/2: agreed by ALPN over TLS, by prior knowledge without.
    H2,
}

/// How an `https://` upstream is known, and how it knows us.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsSettings {
    /// Authorities that are believed instead of the system's.
    pub ca: Option<Pem>,
    /// Our own certificate, for upstreams that ask for one.
    pub identity: Option<Identity>,
    /// The name asked for (SNI) and verified; each endpoint's host where it is none.
    pub server_name: Option<String>,
}

/// Bounds of HTTP/2 connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Http2Settings {
    /// Connections that each worker opens to one endpoint, at most.
    pub connections_per_worker: usize,
    /// Requests on one connection at once, at most; the upstream may allow fewer.
    pub streams_per_connection: usize,
    /// How long a connection with requests on it may be silent before it is asked whether it lives;
    /// never where it is none.
    pub ping_interval: Option<Duration>,
    /// How long it may take to answer that.
    pub ping_timeout: Duration,
}

impl Settings {
    /// Endpoints under a name; all else as the configuration's defaults are.
    #[must_use]
    pub fn new(name: impl Into<String>, endpoints: Vec<String>) -> Self {
        Self {
            name: name.into(),
            endpoints,
            protocol: Protocol::default(),
            tls: TlsSettings::default(),
            http2: Http2Settings::default(),
            connect: Duration::from_secs(1),
            response_header: Duration::from_secs(30),
            idle: Duration::from_secs(60),
            pool_idle_per_worker: 64,
            requests_per_worker: 16_384,
            resolve_every: Duration::from_secs(5),
            retry: Retry::default(),
            retry_percent: 20,
            ejection: Ejection::default(),
        }
    }
}

impl Default for Ejection {
    fn default() -> Self {
        Self {
            failures: 3,
            time: Duration::from_secs(10),
            time_max: Duration::from_secs(300),
            max_percent: 50,
        }
    }
}

impl Default for Http2Settings {
    fn default() -> Self {
        Self {
            connections_per_worker: 8,
            streams_per_connection: 100,
            ping_interval: None,
            ping_timeout: Duration::from_secs(10),
        }
    }
}

impl TlsSettings {
    /// Whether anything of it was written.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
