//! Sends a request to an upstream and returns its reply: endpoints, connections, time limits. Knows
//! no limit and no policy.
//!
//! Read on in `send` (the path of a request), `pool` and `slots` (a worker's connections, and the
//! choice between hosts), `requests` (how many are under way), `host` and `hosts` (addresses, as
//! all workers see them), `concurrency` (how many requests an upstream has, and who waits), `http1`
//! (one HTTP/1.1 connection), `http2`, `streams` and `acquire` (HTTP/2 connections) with `head` and
//! `outgoing` (a request's head and body over HTTP/2), `phase` and `reply_timeout` (how long to
//! wait for a reply), `endpoint`, `dns`, `connect` with `budget`, `proxied`, `tls` and `stream`
//! (from a configured endpoint to a byte stream). `sender` has what a request brings with it, and
//! `status` what others are told.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::clock;
use crate::telemetry::{
    Counter, CounterSet, Histogram, Label as _, Metrics, SettingError, labels, names,
};
use crate::wire::{BodyEnd, BodyError, BodyFailure, BodyOutcome, Request, Response};

mod acquire;
mod budget;
mod concurrency;
mod connect;
mod dns;
mod endpoint;
mod hash;
mod head;
mod health;
mod host;
mod hosts;
mod http1;
mod http2;
mod http2_tunnel;
mod outgoing;
mod phase;
mod pool;
mod proxied;
mod reply_timeout;
mod requests;
mod send;
mod sender;
mod settings;
mod slots;
mod status;
mod stream;
mod streams;
#[cfg(test)]
mod tests;
mod tls;

pub use budget::Budget;
pub use concurrency::PlacePermit;
pub use endpoint::HostAddress;
pub use sender::{Affinity, Overrides, PRIORITY_DEFAULT, PRIORITY_MAX, Sender};
pub use settings::{
    CheckMethod, Concurrency, Dns, Ejection, EndpointSettings, HealthCheck, Http2Settings, Probe,
    Protocol, ProxyVersion, Retry, STATUSES_WELL, SameSite, Settings, StickyCookie,
};
pub use status::{ConcurrencyStatus, EndpointStatus, SendRecord};

use hosts::{Hosts, Resolver};

/// An upstream and each worker's connections to it. Dropping it closes the idle connections within
/// a second or two; replies under way continue.
#[derive(Debug)]
pub struct Upstream(Arc<Inner>);

/// Why there is no reply.
#[derive(Debug, thiserror::Error)]
#[error("{} (sent: {sent})", cause.label())]
pub struct UpstreamError {
    /// The kind of failure.
    pub cause: Cause,
    /// Whether any of the request may have reached the upstream.
    pub sent: bool,
    /// Set if the request's body failed rather than the upstream: it was too large or stalled, or
    /// the client went away.
    pub body: Option<BodyError>,
}

labels! {
    /// What went wrong: a metric's label.
    pub enum Cause {
        /// Nothing answers there.
        Connect = "connect",
        /// The TLS handshake failed: one side does not accept the other's certificate.
        Tls = "tls",
        /// Too slow, to connect or to answer.
        Timeout = "timeout",
        /// The connection was cut.
        Cut = "cut",
        /// The reply was not HTTP.
        Protocol = "protocol",
        /// This worker has too many requests at the upstream already; nothing was sent.
        Overload = "overload",
        /// The upstream has as many requests as it may, and too many wait for it, or this one has
        /// waited for too long; nothing was sent.
        Shed = "shed",
        /// This worker is busy there, and this client already has its share of the requests;
        /// nothing was sent.
        Share = "share",
        /// This process has no file descriptor left for another connection; nothing was sent.
        Descriptors = "descriptors",
        /// The request's own body failed.
        Body = "body",
    }
}

labels! {
    /// What became of a request that lost its connection: a metric's label.
    enum RetryResult {
        /// Sent to another endpoint.
        Sent = "sent",
        /// Sent again on a new connection, after a pooled one was closed.
        Reconnected = "reconnected",
        /// Not sent again: the budget for retries is used up.
        Held = "held",
    }
}

/// What is counted of an endpoint's health checks.
#[derive(Debug)]
struct CheckCounters {
    results: CounterSet<health::CheckResult>,
    /// How often one of its addresses was found unhealthy, and healthy again.
    changes: [Counter; 2],
}

/// The state that an upstream shares with its connections.
#[derive(Debug)]
struct Inner {
    /// Unique in this process, past upstreams included. The workers' pools are keyed by it.
    id: u64,
    settings: Settings,
    endpoints: Vec<endpoint::Endpoint>,
    budget: Budget,
    tls: Option<tls::Tls>,
    hosts: Hosts,
    /// Present if `concurrency` is set.
    places: Option<Arc<concurrency::Places>>,
    created: Instant,
    errors: CounterSet<Cause>,
    /// Counters of ejections, by endpoint.
    ejections: Vec<Counter>,
    /// Counters of health checks, by endpoint; none if there are no checks.
    checks: Vec<CheckCounters>,
    retries: CounterSet<RetryResult>,
    /// The time from handing over a request to the head of its reply.
    seconds: Histogram,
    /// How many streams the last connection over HTTP/2 may have, as the upstream said.
    streams_announced: AtomicUsize,
    /// The upstream itself is gone: connections are no longer kept.
    closed: AtomicBool,
}

impl Upstream {
    /// Checks the settings. Connects to nothing yet.
    ///
    /// # Errors
    /// Endpoints that are not URLs (setting `endpoints[0]`); certificates and keys that can't be
    /// used (`tls.key`); a path or a host of health checks that is none (`health.path`).
    pub fn build(settings: &Settings, metrics: &Metrics) -> Result<Self, Vec<SettingError>> {
        Self::build_within(settings, metrics, &Budget::unlimited(), None)
    }

    /// Like [`build`](Self::build), for an upstream that shares `budget` with others. It takes over
    /// what is known from the upstream `before` of the same name: the state of addresses that are
    /// still there, and how many requests they can take.
    ///
    /// # Errors
    /// As for [`build`](Self::build).
    pub fn build_within(
        settings: &Settings,
        metrics: &Metrics,
        budget: &Budget,
        before: Option<&Self>,
    ) -> Result<Self, Vec<SettingError>> {
        let resolver: Arc<dyn Resolver> = match &settings.dns {
            Some(dns) => Arc::new(dns::DnsResolver::new(dns.clone())),
            None => Arc::new(hosts::SystemResolver),
        };
        Self::build_of(settings, metrics, budget, before, resolver)
    }

    /// Like [`build`](Self::build), with another resolver.
    #[cfg(test)]
    fn build_with(
        settings: &Settings,
        metrics: &Metrics,
        resolver: Arc<dyn Resolver>,
    ) -> Result<Self, Vec<SettingError>> {
        Self::build_of(settings, metrics, &Budget::unlimited(), None, resolver)
    }

    fn build_of(
        settings: &Settings,
        metrics: &Metrics,
        budget: &Budget,
        before: Option<&Self>,
        resolver: Arc<dyn Resolver>,
    ) -> Result<Self, Vec<SettingError>> {
        static IDS: AtomicU64 = AtomicU64::new(0);
        let (endpoints, tls) = endpoints_and_tls(settings)?;
        settings.health.as_ref().map_or(Ok(()), health::check_settings)?;
        let name = &settings.name;
        let ejections = endpoints
            .iter()
            .map(|endpoint| metrics.counter(names::UPSTREAM_EJECTIONS, &[name, &endpoint.text]));
        let checks = endpoints.iter().filter(|_| settings.health.is_some()).map(|endpoint| {
            let change =
                |to| metrics.counter(names::UPSTREAM_HEALTH_CHANGES, &[name, &endpoint.text, to]);
            CheckCounters {
                results: metrics.counters(names::UPSTREAM_HEALTH_CHECKS, &[name, &endpoint.text]),
                changes: ["unhealthy", "healthy"].map(change),
            }
        });
        let checks = checks.collect();
        // Unless it is another server by the same name.
        let before = before.map(|before| &before.0).filter(|before| {
            let same = |endpoint: &endpoint::Endpoint| endpoint.is_also_in(&before.endpoints);
            endpoints.iter().any(same)
        });
        let hosts = Hosts::new(&endpoints, settings, resolver, before);
        Ok(Self(Arc::new(Inner {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            settings: settings.clone(),
            ejections: ejections.collect(),
            checks,
            hosts,
            endpoints,
            places: settings.concurrency.as_ref().map(|written| {
                let before = before.and_then(|before| before.places.as_ref());
                concurrency::Places::new(name, written, metrics, before)
            }),
            budget: budget.clone(),
            tls,
            created: before.map_or_else(clock::monotonic, |before| before.created),
            errors: metrics.counters(names::UPSTREAM_ERRORS, &[name]),
            retries: metrics.counters(names::UPSTREAM_RETRIES, &[name]),
            seconds: metrics.times_of(names::UPSTREAM_SECONDS, &[name]),
            streams_announced: AtomicUsize::new(usize::MAX),
            closed: AtomicBool::new(false),
        })))
    }

    /// All addresses known at the moment. A name that was not needed yet has none.
    #[must_use]
    pub fn status(&self) -> Vec<EndpointStatus> {
        let mut hosts = self.0.hosts.current().to_vec();
        hosts.sort_by_key(|host| host.endpoint);
        let status = |host: &Arc<host::Host>| EndpointStatus {
            endpoint: self.0.text_of(host).to_owned(),
            address: host.address.clone(),
            ejected: host.is_ejected(),
            healthy: self.0.settings.health.as_ref().map(|_| host.is_healthy()),
            check_failed: host.last_check().and_then(Result::err),
        };
        hosts.iter().map(status).collect()
    }

    /// Checks each host at an interval, for as long as this runs; at once over if
    /// the settings have no health checks. To be run once, in any runtime with time and I/O.
    pub async fn check_health(&self) {
        if let Some(check) = &self.0.settings.health {
            health::watch(&self.0, check).await;
        }
    }

    /// Connects once to each address of each endpoint, as a request would. Returns what was asked,
    /// and why it can't be reached.
    pub async fn reach(&self) -> Vec<(String, Result<(), String>)> {
        Hosts::resolve_now(&self.0).await;
        let hosts = self.0.hosts.current();
        let mut all = Vec::new();
        for (index, endpoint) in self.0.endpoints.iter().enumerate() {
            let of_endpoint: Vec<_> = hosts.iter().filter(|host| host.endpoint == index).collect();
            if of_endpoint.is_empty() {
                all.push((endpoint.text.clone(), Err("its name has no address".to_owned())));
            }
            for host in of_endpoint {
                let what = format!("{} at {}", endpoint.text, host.address);
                all.push((what, connect::reach(&self.0, host).await));
            }
        }
        all
    }

    /// Sends `request` and returns the reply's head, its body still streaming. The caller has put
    /// the target into origin form, set `Host` and removed hop-by-hop fields. The connection
    /// returns to the pool when the reply's body has ended.
    ///
    /// A request of which nothing was sent (the upstream had closed an idle connection, or refused
    /// a new one) is tried on another connection or endpoint. A request of which anything may have
    /// been sent is tried once more if [`Retry`] allows it: on a new connection if the upstream
    /// closed a pooled one before it answered, otherwise on another endpoint.
    ///
    /// A request that may be upgraded can be answered by a 101. The reply then holds the
    /// connection, and the request's permit is held as long as the connection lives.
    ///
    /// # Errors
    /// See [`UpstreamError`].
    pub async fn send(&self, request: Request) -> Result<Response, UpstreamError> {
        self.send_from(request, &Sender::default()).await
    }

    /// The same for a request of `sender`.
    ///
    /// # Errors
    /// See [`UpstreamError`].
    pub async fn send_from(
        &self,
        request: Request,
        sender: &Sender<'_>,
    ) -> Result<Response, UpstreamError> {
        self.send_noting(request, sender, None, clock::monotonic(), None).await
    }

    /// Like [`send`](Self::send), for a request of `sender` that began at `began`, which its time
    /// counts from. Records in `reached` where it was sent. While the worker is busy, each client
    /// is limited to a share of its requests. Where there is `concurrency`, it uses `place`, or
    /// waits for one.
    ///
    /// # Errors
    /// See [`UpstreamError`].
    pub async fn send_noting(
        &self,
        request: Request,
        sender: &Sender<'_>,
        place: Option<PlacePermit>,
        began: Instant,
        mut reached: Option<&mut SendRecord>,
    ) -> Result<Response, UpstreamError> {
        if let Some(reached) = &mut reached {
            reached.began = Some(began);
        }
        let reply = pin!(send::send(&self.0, request, sender, place, reached.as_deref_mut())).await;
        let took = clock::monotonic().saturating_duration_since(began);
        match &reply {
            Ok(_) => self.0.seconds.observe(took),
            // Its client has gone away, and nothing has failed.
            Err(error) if error.is_client_gone() => {}
            Err(error) => self.0.count(error.cause),
        }
        if let Some(reached) = reached {
            reached.took = Some(took);
        }
        reply
    }

    /// A place for a request of `sender`, perhaps after a wait. Nothing is sent meanwhile. `None`
    /// without `concurrency`.
    ///
    /// # Errors
    /// There is none in time ([`Cause::Shed`]).
    pub async fn place(&self, sender: &Sender<'_>) -> Result<Option<PlacePermit>, UpstreamError> {
        let Some(places) = &self.0.places else { return Ok(None) };
        let place = places.acquire(sender).await.map_err(|_| {
            self.0.count(Cause::Shed);
            UpstreamError::unsent(Cause::Shed)
        })?;
        Ok(Some(PlacePermit::new(place)))
    }

    /// The error for a request whose time ran out while it waited for a place.
    #[must_use]
    pub fn overdue_unsent(&self) -> UpstreamError {
        self.0.count(Cause::Timeout);
        UpstreamError::unsent(Cause::Timeout)
    }

    /// What it has under way; `None` without `concurrency`.
    #[must_use]
    pub fn concurrency(&self) -> Option<ConcurrencyStatus> {
        self.0.places.as_ref().map(|places| places.status())
    }

    /// The fact by which requests are spread over its hosts, if there is one.
    #[must_use]
    pub fn hash_fact(&self) -> Option<&str> {
        self.0.settings.hash.as_deref()
    }

    /// Whether its connections say whose they are, so that [`Sender::ends`] matters.
    #[must_use]
    pub fn names_clients(&self) -> bool {
        self.0.settings.proxy_protocol.is_some()
    }

    /// The cookie that says which host a client's requests go to, if there is one.
    #[must_use]
    pub fn sticky(&self) -> Option<&StickyCookie> {
        self.0.settings.sticky.as_ref()
    }

    /// Whether requests may have to wait for it, so that [`Sender::priority`] and
    /// [`Sender::fair_key`] matter.
    #[must_use]
    pub fn may_queue(&self) -> bool {
        self.0.places.is_some()
    }

    /// The error for a reply that makes no sense to the caller. Counted like any other.
    #[must_use]
    pub fn protocol_error(&self) -> UpstreamError {
        self.0.count(Cause::Protocol);
        UpstreamError::sent(Cause::Protocol)
    }

    /// The error for a request whose time ran out before its reply began. `uploading`: the client
    /// had not sent all of the body.
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

    /// Whether it is sent requests over HTTP/2.
    #[must_use]
    pub fn is_http2(&self) -> bool {
        self.0.settings.protocol == Protocol::H2
    }

    /// How long a body may pause between two pieces.
    #[must_use]
    pub fn idle(&self) -> Duration {
        self.0.settings.idle
    }
}

/// Where the upstream is, and how TLS is spoken there if it is; all errors of both.
fn endpoints_and_tls(
    settings: &Settings,
) -> Result<(Vec<endpoint::Endpoint>, Option<tls::Tls>), Vec<SettingError>> {
    let setting = "tls";
    let server_name = settings.tls.server_name.as_deref();
    if let Some(name) =
        server_name.filter(|name| rustls::pki_types::ServerName::try_from(*name).is_err())
    {
        return Err(vec![SettingError::new(
            format!("{setting}.server_name"),
            format!("{name:?}"),
            "a host name or an address, without a port",
        )]);
    }
    let endpoints = endpoint::parse_all(&settings.endpoints, server_name)?;
    if settings.dns.is_none() {
        let services = endpoints.iter().enumerate();
        let services = services.filter(|(_, endpoint)| endpoint.is_service());
        let error = |(index, endpoint): (usize, &endpoint::Endpoint)| {
            let expected = "`dns = {}` with a service: the system does not find them";
            SettingError::new(
                format!("endpoints[{index}]"),
                format!("{:?}", endpoint.text),
                expected,
            )
        };
        let errors: Vec<_> = services.map(error).collect();
        if !errors.is_empty() {
            return Err(errors);
        }
    }
    if endpoints.iter().any(endpoint::Endpoint::is_tls) {
        let tls = tls::Tls::build(setting, &settings.tls)?;
        return Ok((endpoints, Some(tls)));
    }
    if settings.tls.is_empty() {
        return Ok((endpoints, None));
    }
    Err(vec![SettingError::new(setting, "TLS settings", "endpoints that begin with https://")])
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::Relaxed);
    }
}

impl Inner {
    fn count(&self, cause: Cause) {
        self.errors.inc(cause);
    }

    /// Records how a reply's body ended, for the request of `permit`.
    fn reply_ended(&self, permit: &requests::RequestPermit, end: &BodyEnd) {
        match end.outcome {
            // The host has answered. An event stream may be quiet for long, and any client can ask
            // for one, so this does not count against the host.
            BodyOutcome::Failed(BodyFailure::Idle) => self.count(Cause::Timeout),
            BodyOutcome::Failed(BodyFailure::Cut) => {
                self.count(Cause::Cut);
                permit.failed(self, Cause::Cut);
            }
            BodyOutcome::Complete
            | BodyOutcome::Failed(BodyFailure::TooLarge | BodyFailure::Overdue)
            | BodyOutcome::Dropped => {}
        }
    }

    /// Milliseconds since the upstream was created.
    fn now_ms(&self) -> u64 {
        self.at_us(clock::monotonic()) / 1_000
    }

    /// Microseconds from the upstream's creation to `instant`.
    fn at_us(&self, instant: Instant) -> u64 {
        u64::try_from(instant.saturating_duration_since(self.created).as_micros())
            .unwrap_or(u64::MAX)
    }

    /// The endpoint of `host` as configured.
    fn text_of(&self, host: &host::Host) -> &str {
        self.endpoints.get(host.endpoint).map_or("", |endpoint| &endpoint.text)
    }

    fn count_ejection(&self, host: &host::Host) {
        if let Some(counter) = self.ejections.get(host.endpoint) {
            counter.inc();
        }
    }

    fn count_check(&self, host: &host::Host, result: health::CheckResult) {
        if let Some(counters) = self.checks.get(host.endpoint) {
            counters.results.inc(result);
        }
    }

    fn count_change(&self, host: &host::Host, is_well: bool) {
        if let Some(counters) = self.checks.get(host.endpoint)
            && let Some(counter) = counters.changes.get(usize::from(is_well))
        {
            counter.inc();
        }
    }

    fn warn_unejected(&self, host: &host::Host) {
        if let Some(endpoint) = self.endpoints.get(host.endpoint)
            && let Some(held_back) = endpoint.warned.due()
        {
            let (upstream, endpoint, max_percent) =
                (&self.settings.name, &endpoint.text, self.settings.ejection.max_percent);
            let address = &host.address;
            tracing::warn!(upstream, endpoint, %address, max_percent, held_back, "an endpoint fails repeatedly, but no more may be ejected");
        }
    }

    fn warn_unconnected(&self, host: &host::Host, error: &dyn std::fmt::Display) {
        if let Some(endpoint) = self.endpoints.get(host.endpoint)
            && let Some(held_back) = endpoint.warned.due()
        {
            let (upstream, endpoint) = (&self.settings.name, &endpoint.text);
            if self.settings.logs_failures {
                tracing::warn!(upstream, endpoint, address = %host.address, %error, held_back, "can't connect to an upstream");
            } else {
                tracing::debug!(upstream, endpoint, address = %host.address, %error, held_back, "can't connect");
            }
        }
    }

    fn warn_exhausted(&self, host: &host::Host) {
        if let Some(endpoint) = self.endpoints.get(host.endpoint)
            && let Some(held_back) = endpoint.warned.due()
        {
            let upstream = &self.settings.name;
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
            let (upstream, endpoint) = (&self.settings.name, &endpoint.text);
            if self.settings.logs_failures {
                tracing::warn!(upstream, endpoint, %error, held_back, "can't resolve an upstream's name");
            } else {
                tracing::debug!(upstream, endpoint, %error, held_back, "can't resolve a name");
            }
        }
    }

    /// How many requests one worker can have under way at `hosts` hosts.
    fn request_capacity(&self, hosts: usize) -> usize {
        let connections = match self.settings.protocol {
            Protocol::H1 => self.budget.per_worker(),
            Protocol::H2 => self
                .settings
                .http2
                .connections_per_worker
                .saturating_mul(self.streams_per_connection())
                .saturating_mul(hosts.max(1)),
        };
        self.settings.requests_per_worker.min(connections)
    }

    /// How many streams a connection over HTTP/2 has, as far as is known: an upstream may allow
    /// fewer than the settings.
    fn streams_per_connection(&self) -> usize {
        let most = self.settings.http2.streams_per_connection;
        most.min(self.streams_announced.load(Ordering::Relaxed).max(1))
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

    /// Whether it is the request's client that went away.
    fn is_client_gone(&self) -> bool {
        matches!(self.body, Some(BodyError::Cut(_) | BodyError::Reset))
    }

    /// The request's own body failed.
    fn body(error: BodyError) -> Self {
        Self { cause: Cause::Body, sent: true, body: Some(error) }
    }
}
