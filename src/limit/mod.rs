//! Takes a plan's limits and settles them afterwards.
//!
//! Turns a [`Plan`] into engine calls (keys, tags, order), replies into an [`Outcome`], and store failures into what the configuration says.
//! Knows nothing of HTTP, Wasm or Redis' protocol.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::engine::{Engine, Secret};
use crate::plan::{Fallback, Outcome, Plan};
use crate::telemetry::Metrics;

/// What the limiter needs beside its engine.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Of one whole decision.
    pub deadline: Duration,
    /// Keys the digests of tags and keys; the same on every proxy.
    pub key_secret: Option<Secret>,
}

/// Charges plans. Shared by all workers.
#[derive(Debug)]
pub struct Limiter;

/// Whose counters: a policy as configured, or that policy on one route. Made once for each route when the house is built.
#[derive(Debug)]
pub struct Scope {
    /// `POLICY` or `POLICY@ROUTE`.
    pub name: String,
    /// For metrics.
    pub policy: String,
    /// What to do when a counter can't be reached and the limit itself says nothing.
    pub on_store_error: Fallback,
    /// Whether a limit may be looser than `on_store_error`.
    pub limit_decides: bool,
}

/// What came of a plan.
#[derive(Debug)]
pub enum Take {
    /// All enforced limits fitted and are charged (or were let through uncounted, which `outcome` says for each).
    Granted(Outcome, Grant),
    /// One or more refused; nothing is charged.
    Refused(Outcome),
    /// A counter could not be reached, and the configuration denies then.
    Unavailable,
}

/// What a request holds: settled once at its end, or by itself when it is dropped.
#[derive(Debug)]
pub struct Grant;

/// How a request ended, as far as its limits care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The upstream answered whole, below 500.
    Completed,
    /// The upstream got nothing of the request.
    Unsent,
    /// The upstream failed, or answered 5xx.
    UpstreamFailed,
    /// The client went away: refunds nothing.
    ClientGone,
}

/// Changes what a limit took: above zero charges more, below zero gives back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adjustment {
    /// The limit's name.
    pub limit: String,
    /// Units.
    pub units: i64,
}

impl Limiter {
    /// A limiter on `engine`.
    #[must_use]
    pub fn new(_settings: Settings, _engine: Arc<Engine>, _metrics: Metrics) -> Self {
        todo!()
    }

    /// Charges all limits of `plan`, or none. Dropping the future neither loses nor doubles a charge.
    pub async fn take(&self, _scope: &Arc<Scope>, _plan: &Arc<Plan>) -> Take {
        todo!()
    }

    /// Waits until every settling call so far is done, at most `grace`.
    pub async fn drain(&self, _grace: Duration) {
        todo!()
    }
}

impl Grant {
    /// Gives back what each limit's `refund` declares for `ending`; `adjustments` are a policy's own words for limits that are settled so.
    /// Returns at once: the work is queued.
    pub fn settle(self, _ending: Ending, _adjustments: &[Adjustment]) {
        todo!()
    }
}

#[allow(dead_code)]
fn skeleton(_: Clock) {}
