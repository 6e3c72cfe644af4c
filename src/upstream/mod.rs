//! Sends a request to an upstream and brings back its reply: endpoints, connections, time limits. Knows no limit and no policy.

use std::time::Duration;

use crate::telemetry::{Metrics, Mistake};
use crate::wire::{Request, Response};

/// One `[upstreams.NAME]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The upstream's name in the configuration.
    pub name: String,
    /// `http://host:port`, one or more.
    pub endpoints: Vec<String>,
    /// Time to connect.
    pub connect: Duration,
    /// Time from the request's end to the reply's head.
    pub response_header: Duration,
    /// Time between two pieces of a body.
    pub idle: Duration,
    /// Idle connections that each worker keeps.
    pub pool_idle_per_worker: usize,
}

/// An upstream and, in each worker, its connections.
#[derive(Debug)]
pub struct Upstream;

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
    /// Too slow, to connect or to answer.
    Timeout,
    /// The connection was cut.
    Cut,
    /// The reply was not HTTP.
    Protocol,
    /// The request's own body failed.
    Body,
}

impl Upstream {
    /// Checks the settings; connects to nothing yet.
    ///
    /// # Errors
    /// Endpoints that are none (setting `upstreams.NAME.endpoints[0]`).
    pub fn build(_settings: &Settings, _metrics: &Metrics) -> Result<Self, Vec<Mistake>> {
        todo!()
    }

    /// Sends `request` (its URI in origin form, its `Host` set by the caller, hop-by-hop fields already stripped) and returns the reply's head
    /// with its body streaming. The connection goes back to the pool when that body has ended.
    ///
    /// # Errors
    /// See [`UpstreamError`].
    pub async fn send(&self, _request: Request) -> Result<Response, UpstreamError> {
        todo!()
    }
}
