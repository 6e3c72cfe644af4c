//! The path of one request. Read `serve` first, which takes it to the head of the reply, then
//! `context`, which takes it from there to its end.
//!
//! A folder for each phase, in the order in which a request meets them: `receive` (authority, path,
//! fields, client), `route`, `decide` (facts, policy, limits), `forward`, `reply`, `settle` and
//! `record`. Each folder's `mod.rs` says what the phase does and does not know, and has the type of
//! what is known after it: [`Received`](receive::Received), [`Routed`](route::Routed),
//! [`Decided`](decide::Decided), [`Sent`](forward::Sent), [`Answer`](reply::Answer),
//! [`SettlementReport`](settle::SettlementReport) and, at the end, one [`Record`](record::Record)
//! for all who observe requests. A phase names those before it and none after it; what later phases
//! have built for a route, such as its counters and its changes to replies, it reaches by the
//! route's `handle`.
//!
//! `context` holds these parts while the request is under way. `refusal` and `verdict` are the
//! words of all phases. `snapshot` holds what they work with, built from `settings`; of it, a
//! request keeps its route's `handle` with the counters in `tally`. `live` swaps the snapshot under
//! load, and `overload` turns requests away where a worker has too many. `trial` takes requests
//! through the same phases without a connection. `decisions` answers calls for a decision alone,
//! from whoever has a token of `callers`, and `check` answers Envoy's checks of requests.
//!
//! For other modules: listeners call [`Proxy`], [`Live`] has the [`Snapshot`] that serves now, and
//! [`Observers`] get what requests leave behind. A snapshot is built from [`settings`]; [`account`]
//! is how a request was decided, and [`trial`] runs requests in virtual time.

mod receive;

mod route;

mod decide;

mod forward;

mod reply;

mod settle;

mod record;

mod callers;
mod check;
mod context;
mod decisions;
mod handle;
mod live;
mod overload;
mod refusal;
mod serve;
pub mod settings;
mod snapshot;
mod tally;
pub mod trial;
mod verdict;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use http::StatusCode;

use crate::listen::{Handler, Peer, Serves};
use crate::policy::KnownFacts;
use crate::telemetry::Metrics;
use crate::wire::{Request, Response};

use context::RequestContext;
use refusal::Refusal;

pub use live::{Live, Observers, SnapshotSource};
pub use record::remembered::Insight;
pub use route::trie::{UnreachedCause, UnreachedRoute};
pub use settings::Settings;
pub use snapshot::Snapshot;

/// How requests were decided, for people: of a trial, or remembered by the running proxy.
pub mod account {
    pub use super::record::account::{Account, LimitAccount};
    pub use super::record::remembered::{ExplainedRequest, RememberedRequest, ShownFact};
    pub use super::verdict::{Cause, Rejection, Verdict};
}

/// The facts that a policy may ask to see, of a request and of its response.
#[must_use]
pub fn fact_names() -> KnownFacts {
    KnownFacts { request: decide::facts::names(), response: settle::names() }
}

/// Watches how late this worker is, for ever, and has it turn requests away while it is too late.
pub async fn watch_load(live: Arc<Live>, metrics: Metrics) {
    let lag_max = || live.load().snapshot().settings.worker_lag_max;
    overload::watch(lag_max, &metrics).await;
}

/// What listeners call.
#[derive(Clone, Debug)]
pub struct Proxy(Arc<Live>);

impl Proxy {
    /// A handler for listeners.
    #[must_use]
    pub fn new(live: Arc<Live>) -> Self {
        Self(live)
    }
}

impl Handler for Proxy {
    async fn call(&self, request: Request, peer: &Arc<Peer>) -> Response {
        // One snapshot until the headers are sent.
        let local = self.0.load();
        if decisions::are_served(&local, peer.listener) {
            return Box::pin(decisions::handle(&local, &self.0, request, peer)).await;
        }
        if check::are_served(&local, peer.listener) {
            return Box::pin(check::handle(&local, request, peer)).await;
        }
        serve::handle(&local, request, peer).await
    }

    fn serves(&self, listener: usize) -> Serves {
        self.0.load().snapshot().settings.serves(listener)
    }

    fn unreadable(&self, status: StatusCode, why: &'static str, peer: &Arc<Peer>) -> Response {
        RequestContext::unreadable(&self.0.load(), peer).refuse(&Refusal::Unreadable(status, why))
    }
}
