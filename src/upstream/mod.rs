//! Sends a request to an upstream and brings back its reply: endpoints, connections, time limits.
//! Knows no limit and no policy.
//!
//! Read on in `send` (a request's way), `pool` and `slots` (a worker's connections, and the choice
//! between hosts), `host` and `hosts` (addresses, as all workers see them), `link` (one HTTP/1.1
//! connection), `multi` and `streams` (HTTP/2 connections) with `head`, `outgoing` and `patience`
//! (a request's head and body over HTTP/2, and how long to wait for its answer), `endpoint`,
//! `connect` with `budget`, `tls` and `stream` (from what is written to a stream).

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::clock;
use crate::telemetry::{Counter, Metrics, Mistake, names};
use crate::wire::{BodyEnd, BodyError, BodyFailure, BodyOutcome, Network, Request, Response};

mod budget;
mod connect;
mod endpoint;
mod head;
mod host;
mod hosts;
mod link;
mod multi;
mod outgoing;
mod patience;
mod pool;
mod send;
mod settings;
mod slots;
mod stream;
mod streams;
#[cfg(test)]
mod tests;
mod tls;

pub use budget::Budget;
pub use settings::{Ejection, Http2Settings, Protocol, Retry, Settings, TlsSettings};

use hosts::{Hosts, Resolve};

/// An upstream and, in each worker, its connections. Dropping it closes the idle ones within a
/// second or two; replies under way go on.
#[derive(Debug)]
pub struct Upstream(Arc<Inner>);

/// Why there is no reply.
#[derive(Debug, thiserror::Error)]
#[error("{cause:?} (sent: {sent})")]
pub struct UpstreamError {
    /// What went wrong.
    pub cause: Cause,
    /// Whether the upstream may have got any of the request.
    pub sent: bool,
    /// The request's body was the fault, not the upstream: too large, stood still, or the client
    /// went away.
    pub body: Option<BodyError>,
}

/// What went wrong, closed: a metric's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Nobody answers there.
    Connect,
    /// Somebody answers whom we don't believe, or who doesn't believe us.
    Tls,
    /// Too slow, to connect or to answer.
    Timeout,
    /// The connection was cut.
    Cut,
    /// The reply was not HTTP.
    Protocol,
    /// This worker has too many requests at the upstream already; nothing was sent.
    Overload,
    /// This worker has much to do there, and as much of it is this client's as one may have;
    /// nothing was sent.
    Share,
    /// This process has no file descriptor left for another connection; nothing was sent.
    Descriptors,
    /// The request's own body failed.
    Body,
}

impl Cause {
    const ALL: [Self; 9] = [
        Self::Connect,
        Self::Tls,
        Self::Timeout,
        Self::Cut,
        Self::Protocol,
        Self::Overload,
        Self::Share,
        Self::Descriptors,
        Self::Body,
    ];

    /// The metric's label.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Tls => "tls",
            Self::Timeout => "timeout",
            Self::Cut => "cut",
            Self::Protocol => "protocol",
            Self::Overload => "overload",
            Self::Share => "share",
            Self::Descriptors => "descriptors",
            Self::Body => "body",
        }
    }
}

/// One address of an endpoint, as it stands at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointStatus {
    /// As it was written.
    pub endpoint: String,
    /// Itself, or one of its name's.
    pub address: SocketAddr,
    /// It failed, and is left alone for a while.
    pub ejected: bool,
}

/// What the upstream's connections share with it.
#[derive(Debug)]
struct Inner {
    /// Tells this one from all others of the process, past ones included: the workers' pools are
    /// keyed by it.
    id: u64,
    /// As configured, for the log.
    name: String,
    endpoints: Vec<endpoint::Endpoint>,
    protocol: Protocol,
    budget: Budget,
    tls: Option<tls::Tls>,
    hosts: Hosts,
    http2: Http2Settings,
    connect: Duration,
    response_header: Duration,
    idle: Duration,
    pool_idle_per_worker: usize,
    requests_per_worker: usize,
    resolve_every: Duration,
    retry: Retry,
    retry_percent: usize,
    ejection: Ejection,
    born: Instant,
    errors: Vec<(Cause, Counter)>,
    /// For each endpoint.
    ejections: Vec<Counter>,
    retries: Counter,
    reconnected: Counter,
    retries_held: Counter,
    /// The upstream itself is gone: connections are no longer kept.
    closed: AtomicBool,
}

impl Upstream {
    /// Checks the settings; connects to nothing yet.
    ///
    /// # Errors
    /// Endpoints that are none (setting `upstreams.NAME.endpoints[0]`); certificates and keys that
    /// can't be used (`upstreams.NAME.tls.key`).
    pub fn build(settings: &Settings, metrics: &Metrics) -> Result<Self, Vec<Mistake>> {
        Self::build_within(settings, metrics, &Budget::unlimited())
    }

    /// The same for one that shares `budget` with others.
    ///
    /// # Errors
    /// As above.
    pub fn build_within(
        settings: &Settings,
        metrics: &Metrics,
        budget: &Budget,
    ) -> Result<Self, Vec<Mistake>> {
        Self::build_of(settings, metrics, budget, Arc::new(hosts::System))
    }

    /// The same with another way to look up names.
    #[cfg(test)]
    fn build_with(
        settings: &Settings,
        metrics: &Metrics,
        resolver: Arc<dyn Resolve>,
    ) -> Result<Self, Vec<Mistake>> {
        Self::build_of(settings, metrics, &Budget::unlimited(), resolver)
    }

    fn build_of(
        settings: &Settings,
        metrics: &Metrics,
        budget: &Budget,
        resolver: Arc<dyn Resolve>,
    ) -> Result<Self, Vec<Mistake>> {
        static IDS: AtomicU64 = AtomicU64::new(0);
        let (endpoints, tls) = ends(settings)?;
        let name = &settings.name;
        let count =
            |cause: Cause| (cause, metrics.counter(names::UPSTREAM_ERRORS, &[name, cause.label()]));
        let ejections = endpoints
            .iter()
            .map(|endpoint| metrics.counter(names::UPSTREAM_EJECTIONS, &[name, &endpoint.text]));
        Ok(Self(Arc::new(Inner {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            name: name.clone(),
            ejections: ejections.collect(),
            hosts: Hosts::new(&endpoints, resolver),
            endpoints,
            protocol: settings.protocol,
            budget: budget.clone(),
            tls,
            http2: settings.http2.clone(),
            connect: settings.connect,
            response_header: settings.response_header,
            idle: settings.idle,
            pool_idle_per_worker: settings.pool_idle_per_worker,
            requests_per_worker: settings.requests_per_worker,
            resolve_every: settings.resolve_every,
            retry: settings.retry,
            retry_percent: settings.retry_percent,
            ejection: settings.ejection.clone(),
            born: clock::monotonic(),
            errors: Cause::ALL.map(count).into(),
            retries: metrics.counter(names::UPSTREAM_RETRIES, &[name, "sent"]),
            reconnected: metrics.counter(names::UPSTREAM_RETRIES, &[name, "reconnected"]),
            retries_held: metrics.counter(names::UPSTREAM_RETRIES, &[name, "held"]),
            closed: AtomicBool::new(false),
        })))
    }

    /// All addresses that are known at the moment; none of a name that was not needed yet.
    #[must_use]
    pub fn status(&self) -> Vec<EndpointStatus> {
        let status = |host: &Arc<host::Host>| EndpointStatus {
            endpoint: self.0.text_of(host).to_owned(),
            address: host.address,
            ejected: host.is_ejected(),
        };
        self.0.hosts.current().iter().map(status).collect()
    }

    /// Sends `request` (its target in origin form, its `Host` set by the caller, hop-by-hop fields
    /// already stripped) and returns the reply's head with its body streaming. The connection goes
    /// back to the pool when that body has ended.
    ///
    /// A request of which nothing was sent (the upstream had closed an idle connection, or refused
    /// a new one) is tried on another connection or endpoint. One of which anything may have been
    /// sent is tried once more where [`Retry`] says so: on a new connection where the upstream has
    /// closed a pooled one before it answered, else on another endpoint.
    ///
    /// To a request that may be upgraded a 101 may come back: its connection is in the reply, and
    /// its place is held as long as that lives.
    ///
    /// # Errors
    /// See [`UpstreamError`].
    pub async fn send(&self, request: Request) -> Result<Response, UpstreamError> {
        self.send_for(request, None).await
    }

    /// The same for a request of `client`: while the worker has much to do, no client has more than
    /// a share of its places.
    ///
    /// # Errors
    /// See [`UpstreamError`].
    pub async fn send_for(
        &self,
        request: Request,
        client: Option<Network>,
    ) -> Result<Response, UpstreamError> {
        let reply = send::send(&self.0, request, client).await;
        if let Err(error) = &reply {
            self.0.count(error.cause);
        }
        reply
    }

    /// A reply that means nothing to who asked for it: counted, and an error like any other.
    #[must_use]
    pub fn misunderstood(&self) -> UpstreamError {
        self.0.count(Cause::Protocol);
        UpstreamError::sent(Cause::Protocol)
    }

    /// The error for a request whose time was over before its reply began. `uploading`: the client
    /// had not sent all of it.
    #[must_use]
    pub fn overdue(&self, uploading: bool) -> UpstreamError {
        let error = if uploading {
            UpstreamError::body(BodyError::Overdue)
        } else {
            UpstreamError::sent(Cause::Timeout)
        };
        self.0.count(error.cause);
        error
    }

    /// How long there may be silence between two pieces of a body.
    #[must_use]
    pub fn idle(&self) -> Duration {
        self.0.idle
    }
}

/// Where the upstream is, and how TLS is spoken there if it is; all mistakes of both.
fn ends(settings: &Settings) -> Result<(Vec<endpoint::Endpoint>, Option<tls::Tls>), Vec<Mistake>> {
    let setting = format!("upstreams.{}.tls", settings.name);
    let server_name = settings.tls.server_name.as_deref();
    if let Some(name) =
        server_name.filter(|name| rustls::pki_types::ServerName::try_from(*name).is_err())
    {
        return Err(vec![Mistake::new(
            format!("{setting}.server_name"),
            format!("{name:?}"),
            "a host name or an address, without a port",
        )]);
    }
    let endpoints = endpoint::parse_all(&settings.name, &settings.endpoints, server_name)?;
    if endpoints.iter().any(endpoint::Endpoint::is_tls) {
        let tls = tls::Tls::build(&setting, &settings.tls)?;
        return Ok((endpoints, Some(tls)));
    }
    if settings.tls.is_empty() {
        return Ok((endpoints, None));
    }
    Err(vec![Mistake::new(setting, "TLS settings", "endpoints that begin with https://")])
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::Relaxed);
    }
}

impl Inner {
    fn count(&self, cause: Cause) {
        if let Some((_, counter)) = self.errors.iter().find(|(of, _)| *of == cause) {
            counter.inc();
        }
    }

    /// How a reply's body has ended, for the request of `seat`.
    fn ended(&self, seat: &pool::Seat, end: &BodyEnd) {
        match end.outcome {
            // The host has answered. An event stream may be quiet for long, and any client can ask
            // for one: that is no reason to leave its host alone.
            BodyOutcome::Failed(BodyFailure::Idle) => self.count(Cause::Timeout),
            BodyOutcome::Failed(BodyFailure::Cut) => {
                self.count(Cause::Cut);
                seat.failed(self, Cause::Cut);
            }
            BodyOutcome::Complete
            | BodyOutcome::Failed(BodyFailure::TooLarge | BodyFailure::Overdue)
            | BodyOutcome::Dropped => {}
        }
    }

    /// The upstream's own time.
    fn now_ms(&self) -> u64 {
        self.at_us(clock::monotonic()) / 1_000
    }

    /// The upstream's own time at `instant`, in microseconds.
    fn at_us(&self, instant: Instant) -> u64 {
        u64::try_from(instant.saturating_duration_since(self.born).as_micros()).unwrap_or(u64::MAX)
    }

    /// The endpoint of `host` as it was written.
    fn text_of(&self, host: &host::Host) -> &str {
        self.endpoints.get(host.endpoint).map_or("", |endpoint| &endpoint.text)
    }

    fn count_ejection(&self, host: &host::Host) {
        if let Some(counter) = self.ejections.get(host.endpoint) {
            counter.inc();
        }
    }

    fn warn_unejected(&self, host: &host::Host) {
        if let Some(endpoint) = self.endpoints.get(host.endpoint)
            && let Some(held_back) = endpoint.warned.due()
        {
            let (upstream, endpoint, max_percent) =
                (&self.name, &endpoint.text, self.ejection.max_percent);
            let address = host.address;
            tracing::warn!(upstream, endpoint, %address, max_percent, held_back, "an endpoint fails, but no more may be left alone");
        }
    }

    fn warn_unconnected(&self, host: &host::Host, error: &dyn std::fmt::Display) {
        if let Some(endpoint) = self.endpoints.get(host.endpoint)
            && let Some(held_back) = endpoint.warned.due()
        {
            let (upstream, endpoint) = (&self.name, &endpoint.text);
            tracing::warn!(upstream, endpoint, address = %host.address, %error, held_back, "can't connect to an upstream");
        }
    }

    fn warn_exhausted(&self, host: &host::Host) {
        if let Some(endpoint) = self.endpoints.get(host.endpoint)
            && let Some(held_back) = endpoint.warned.due()
        {
            let upstream = &self.name;
            tracing::warn!(
                upstream,
                held_back,
                "no file descriptor is left for another connection to an upstream"
            );
        }
    }

    fn warn_unresolved(&self, endpoint: usize, error: &dyn std::fmt::Display) {
        if let Some(endpoint) = self.endpoints.get(endpoint)
            && let Some(held_back) = endpoint.warned.due()
        {
            tracing::warn!(upstream = self.name, endpoint = endpoint.text, %error, held_back, "can't resolve an upstream's name");
        }
    }

    /// Requests that one worker can have there at once, on `hosts` hosts.
    fn places(&self, hosts: usize) -> usize {
        let connections = match self.protocol {
            Protocol::H1 => self.budget.per_worker(),
            Protocol::H2 => self
                .http2
                .connections_per_worker
                .saturating_mul(self.http2.streams_per_connection)
                .saturating_mul(hosts.max(1)),
        };
        self.requests_per_worker.min(connections)
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}

impl UpstreamError {
    fn unsent(cause: Cause) -> Self {
        Self { cause, sent: false, body: None }
    }

    fn sent(cause: Cause) -> Self {
        Self { cause, sent: true, body: None }
    }

    /// The request's own body was the fault.
    fn body(error: BodyError) -> Self {
        Self { cause: Cause::Body, sent: true, body: Some(error) }
    }
}
