//! An upstream's settings and their defaults. Knows no file and no connection.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use weir_tls::ClientTls;

/// One `[upstreams.NAME]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The upstream's name in the configuration.
    pub name: String,
    /// Where requests go: one or more, with TLS to all or to none.
    pub endpoints: Vec<EndpointSettings>,
    /// Requests for which this fact is equal go to the same host, as far as it is not too busy.
    /// `None`: each goes to the less busy of two.
    pub hash: Option<String>,
    /// The cookie by which a client's requests stay at one host. `None`: there is none.
    pub sticky: Option<StickyCookie>,
    /// The zone that this process is in. Endpoints in it are preferred.
    pub zone: Option<String>,
    /// How many of a hundred endpoints of that zone, by weight, must be able to take requests for
    /// all requests to stay in it.
    pub zone_min: u32,
    /// The protocol spoken there.
    pub protocol: Protocol,
    /// How connections say whose they are. `None`: they don't. Otherwise each request has a
    /// connection of its own, over HTTP/1.1.
    pub proxy_protocol: Option<ProxyVersion>,
    /// `[upstreams.NAME.tls]`.
    pub tls: ClientTls,
    /// `[upstreams.NAME.http2]`.
    pub http2: Http2Settings,
    /// Time to connect, including TLS.
    pub connect: Duration,
    /// Time from the request's end to the reply's head.
    pub response_header: Duration,
    /// Time between two pieces of a body. Also how long an unused connection is kept.
    pub idle: Duration,
    /// Idle connections that each worker keeps.
    pub pool_idle_per_worker: usize,
    /// Maximum requests that each worker has there at once, streaming replies included.
    pub requests_per_worker: usize,
    /// How often the names of endpoints are resolved while the upstream is in use, if the system
    /// resolves them.
    pub resolve_every: Duration,
    /// The servers that are asked for names. `None`: the system is.
    pub dns: Option<Dns>,
    /// Which requests are tried again.
    pub retry: Retry,
    /// How many of a hundred requests may be sent a second time.
    pub retry_percent: usize,
    /// `[upstreams.NAME.ejection]`.
    pub ejection: Ejection,
    /// `[upstreams.NAME.concurrency]`. `None`: only `requests_per_worker` limits requests.
    pub concurrency: Option<Concurrency>,
    /// `[upstreams.NAME.health]`. `None`: hosts are not asked.
    pub health: Option<HealthCheck>,
    /// Whether failures to connect or to resolve a name are logged as warnings, or only for
    /// debugging because the sender reports them.
    pub logs_failures: bool,
}

/// `[upstreams.NAME] dns`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dns {
    /// The addresses of the servers. Empty: those that the system's configuration names.
    pub servers: Vec<SocketAddr>,
    /// The shortest time that an answer is taken to hold, and the longest.
    pub ttl: RangeInclusive<Duration>,
}

/// One element of `endpoints`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSettings {
    /// `http://host:port`, `https://host:port`, `http+srv://service`, `https+srv://service` or
    /// `unix:/path`.
    pub url: String,
    /// How much of the requests it gets, compared with the others.
    pub weight: u32,
    /// Where it is.
    pub zone: Option<String>,
    /// Whether it gets requests only while no other can take any.
    pub backup: bool,
}

/// A cookie that says which host a client's requests go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StickyCookie {
    /// Its name.
    pub name: String,
    /// How long the client keeps it. `None`: as long as its session lasts.
    pub max_age: Option<Duration>,
    /// Whether it is sent with requests that come from other sites.
    pub same_site: SameSite,
}

/// `SameSite` of a cookie (RFC 6265bis, 5.6.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SameSite {
    /// With none but links.
    #[default]
    Lax,
    /// With none.
    Strict,
    /// With all, over https.
    None,
}

impl From<String> for EndpointSettings {
    /// With the same weight as all others that have none of their own.
    fn from(url: String) -> Self {
        Self { url, weight: 1, zone: None, backup: false }
    }
}

/// Which requests are tried again. A request of which nothing was sent was certainly not carried
/// out. An idempotent one may be carried out twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retry {
    /// Nothing is tried again.
    Off,
    /// Requests of which nothing was sent.
    Unsent,
    /// Also idempotent requests without a body that lost their connection before they were
    /// answered.
    #[default]
    Idempotent,
}

/// How many requests an upstream has at once, over all workers and endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Concurrency {
    /// Whether the limit follows the time that the upstream takes, between `min` and `max`.
    /// Otherwise it is `max`.
    pub adaptive: bool,
    /// The least that the limit can be.
    pub min: usize,
    /// The most.
    pub max: usize,
    /// Requests that wait for a place at most.
    pub queue: usize,
    /// How long one waits at most.
    pub max_wait: Duration,
}

/// When a failing endpoint is ejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ejection {
    /// The number of failures in a row that eject it. 0: it is never ejected.
    pub failures: u32,
    /// The first ejection time. It doubles with each further ejection.
    pub time: Duration,
    /// The longest ejection time.
    pub time_max: Duration,
    /// How many of a hundred hosts may be ejected at once, rounded down, but at least one.
    pub max_percent: usize,
}

/// How hosts are checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// What is asked.
    pub probe: Probe,
    /// The `Host` of the request. `None`: that of the endpoint.
    pub host: Option<String>,
    /// Time between two checks of a host, give or take a tenth.
    pub interval: Duration,
    /// How long an answer may take, connecting included.
    pub timeout: Duration,
    /// Checks in a row that an unhealthy host has to pass to be healthy again.
    pub rise: u32,
    /// Checks in a row that a healthy host has to fail to be unhealthy.
    pub fall: u32,
    /// While fewer of a hundred hosts are healthy, all get requests: it is more likely that the
    /// checks are wrong, and the few would break down, too.
    pub healthy_min: usize,
    /// The time in which a host that is healthy again gets its full share of the requests.
    pub slow_start: Option<Duration>,
}

/// The method of a health check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CheckMethod {
    /// GET.
    #[default]
    Get,
    /// HEAD.
    Head,
    /// OPTIONS.
    Options,
}

/// The statuses of healthy hosts, unless others are written.
pub const STATUSES_WELL: RangeInclusive<u16> = 200..=399;

/// What is asked of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// A request over HTTP.
    Http {
        /// Its method.
        method: CheckMethod,
        /// Its path and query.
        path: String,
        /// The statuses of healthy hosts.
        statuses: Vec<RangeInclusive<u16>>,
    },
    /// gRPC's health protocol, over HTTP/2.
    Grpc {
        /// The service; empty for the whole server.
        service: String,
    },
}

/// The protocol spoken to an upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    #[default]
    H1,
    /// HTTP/2: negotiated by ALPN over TLS, by prior knowledge otherwise.
    H2,
}

/// The version of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyVersion {
    /// A line of text.
    V1,
    /// Binary.
    V2,
}

/// Limits of HTTP/2 connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Http2Settings {
    /// Maximum connections that each worker opens to one endpoint.
    pub connections_per_worker: usize,
    /// Maximum requests on one connection at once. The upstream may allow fewer.
    pub streams_per_connection: usize,
    /// How long a connection with requests on it may be silent before it is pinged. `None`: never.
    pub ping_interval: Option<Duration>,
    /// How long the upstream may take to answer a ping.
    pub ping_timeout: Duration,
}

impl Settings {
    /// Whether connections are made in the same way.
    pub(super) fn connects_like(&self, other: &Self) -> bool {
        (&self.tls, self.protocol, self.proxy_protocol)
            == (&other.tls, other.protocol, other.proxy_protocol)
    }

    /// Settings for these endpoints, with the configuration's defaults for everything else.
    #[must_use]
    pub fn new(name: impl Into<String>, endpoints: Vec<String>) -> Self {
        Self {
            name: name.into(),
            endpoints: endpoints.into_iter().map(EndpointSettings::from).collect(),
            hash: None,
            sticky: None,
            zone: None,
            zone_min: 50,
            protocol: Protocol::default(),
            proxy_protocol: None,
            tls: ClientTls::default(),
            http2: Http2Settings::default(),
            connect: Duration::from_secs(3),
            response_header: Duration::from_secs(30),
            idle: Duration::from_secs(60),
            pool_idle_per_worker: 64,
            requests_per_worker: 16_384,
            resolve_every: Duration::from_secs(5),
            dns: None,
            retry: Retry::default(),
            retry_percent: 20,
            ejection: Ejection::default(),
            concurrency: None,
            health: None,
            logs_failures: true,
        }
    }
}

impl Default for Concurrency {
    fn default() -> Self {
        Self {
            adaptive: false,
            min: 4,
            max: 1_000,
            queue: 128,
            max_wait: Duration::from_millis(100),
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
