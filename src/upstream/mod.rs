//! Sends a request to an upstream and brings back its reply: endpoints, connections, time limits. Knows no limit and no policy.
//!
//! Read on in `send` (a request's way), `link` (one HTTP/1.1 connection), `multi` and `streams` (HTTP/2 connections), `pool` (a worker's
//! connections), `endpoint`, `connect` and `tls` (from an address to a stream), `outgoing` (a request's body), `patience` (how long to wait for an
//! answer), `framing` (how long a body is).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::telemetry::{Counter, Metrics, Mistake, names};
use crate::wire::{Request, Response};

mod connect;
mod endpoint;
mod framing;
mod head;
mod link;
mod multi;
mod outgoing;
mod patience;
mod pool;
mod send;
mod settings;
mod stream;
mod streams;
#[cfg(test)]
mod tests;
mod tls;

pub use settings::{Http2Settings, Protocol, Settings, TlsSettings};

/// An upstream and, in each worker, its connections. Dropping it closes the idle ones within a second or two; replies under way go on.
#[derive(Debug)]
pub struct Upstream(Arc<Inner>);

/// In a request's extensions, beside its `Connection` and `Upgrade`: what follows a 101 is wanted. Only where [`Upstream::takes_upgrades`].
#[derive(Clone, Copy, Debug)]
pub struct Upgrade;

/// Why there is no reply.
#[derive(Debug, thiserror::Error)]
#[error("{cause:?} (sent: {sent})")]
pub struct UpstreamError {
    /// What went wrong.
    pub cause: Cause,
    /// Whether the upstream may have got any of the request.
    pub sent: bool,
    /// The request's body was the fault, not the upstream: too large, stood still, or the client went away.
    pub body: Option<crate::wire::BodyError>,
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
    /// The request's own body failed.
    Body,
}

impl Cause {
    const ALL: [Self; 7] = [Self::Connect, Self::Tls, Self::Timeout, Self::Cut, Self::Protocol, Self::Overload, Self::Body];

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
            Self::Body => "body",
        }
    }
}

/// What the upstream's connections share with it.
#[derive(Debug)]
struct Inner {
    /// Tells this one from all others of the process, past ones included: the workers' pools are keyed by it.
    id: u64,
    /// As configured, for the log.
    name: String,
    endpoints: Vec<endpoint::Endpoint>,
    protocol: Protocol,
    tls: Option<tls::Tls>,
    http2: Http2Settings,
    connect: Duration,
    response_header: Duration,
    idle: Duration,
    pool_idle_per_worker: usize,
    errors: Vec<(Cause, Counter)>,
    /// The upstream itself is gone: connections are no longer kept.
    closed: AtomicBool,
}

impl Upstream {
    /// Checks the settings; connects to nothing yet.
    ///
    /// # Errors
    /// Endpoints that are none (setting `upstreams.NAME.endpoints[0]`); certificates and keys that can't be used (`upstreams.NAME.tls.key`).
    pub fn build(settings: &Settings, metrics: &Metrics) -> Result<Self, Vec<Mistake>> {
        static IDS: AtomicU64 = AtomicU64::new(0);
        let (endpoints, tls) = ends(settings)?;
        let count = |cause: Cause| (cause, metrics.counter(names::UPSTREAM_ERRORS, &[&settings.name, cause.label()]));
        Ok(Self(Arc::new(Inner {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            name: settings.name.clone(),
            endpoints,
            protocol: settings.protocol,
            tls,
            http2: settings.http2.clone(),
            connect: settings.connect,
            response_header: settings.response_header,
            idle: settings.idle,
            pool_idle_per_worker: settings.pool_idle_per_worker,
            errors: Cause::ALL.map(count).into(),
            closed: AtomicBool::new(false),
        })))
    }

    /// Sends `request` (its URI in origin form, its `Host` set by the caller, hop-by-hop fields already stripped) and returns the reply's head
    /// with its body streaming. The connection goes back to the pool when that body has ended.
    ///
    /// A request of which nothing was sent (the upstream had closed an idle connection, or refused a new one) is tried on another connection or
    /// endpoint; one of which anything may have been sent never is.
    ///
    /// With [`Upgrade`] among its extensions a 101 may come back: its connection in the reply's extensions (hyper's `OnUpgrade`), its place held with the
    /// reply's body.
    ///
    /// # Errors
    /// See [`UpstreamError`].
    pub async fn send(&self, request: Request) -> Result<Response, UpstreamError> {
        let reply = send::send(&self.0, request).await;
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

    /// How long there may be silence between two pieces of a body.
    #[must_use]
    pub fn idle(&self) -> Duration {
        self.0.idle
    }

    /// Whether its connections can become something else than HTTP, which HTTP/2 ones can't.
    #[must_use]
    pub fn takes_upgrades(&self) -> bool {
        self.0.protocol == Protocol::H1
    }
}

/// Where the upstream is, and how TLS is spoken there if it is; all mistakes of both.
fn ends(settings: &Settings) -> Result<(Vec<endpoint::Endpoint>, Option<tls::Tls>), Vec<Mistake>> {
    let setting = format!("upstreams.{}.tls", settings.name);
    let server_name = settings.tls.server_name.as_deref();
    if let Some(name) = server_name.filter(|name| rustls::pki_types::ServerName::try_from(*name).is_err()) {
        return Err(vec![Mistake::new(format!("{setting}.server_name"), format!("{name:?}"), "a host name or an address, without a port")]);
    }
    let endpoints = endpoint::parse_all(&settings.name, &settings.endpoints, server_name)?;
    if endpoints.iter().any(endpoint::Endpoint::is_tls) {
        let tls = tls::Tls::build(&setting, &settings.tls, settings.protocol)?;
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
    fn body(error: crate::wire::BodyError) -> Self {
        Self { cause: Cause::Body, sent: true, body: Some(error) }
    }
}
