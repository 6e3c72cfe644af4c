//! Takes a plan's limits and settles them afterwards.
//!
//! Turns a [`Plan`] into engine calls (keys, tags, order), replies into an [`Outcome`], and store
//! failures into what the configuration says. Knows nothing of HTTP, Wasm or Redis' protocol.
//!
//! In the order of a plan's way: `take` runs its round, `round` says who is asked next and what is
//! given back, `prepared` keeps what each take of a plan has in common, `keys` says
//! what a limit is for the engine, `failure` what a failed store means, `settle` and `queue` what
//! happens at the end, `leases` what is held until then. `local` is each worker's memory, `shared`
//! what they have in common. `look` finds counters for a person who asks.

mod failure;
mod keys;
mod leases;
mod local;
mod look;
mod prepared;
mod queue;
mod round;
mod settle;
mod shared;
mod take;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::engine::{Engine, EngineError, Scripts, Secret};
use crate::plan::{Adjustment, Algorithm, OnStoreError, Outcome, Plan};
use crate::telemetry::Metrics;

pub use look::{Counter, Wanted};

/// What the limiter needs beside its engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Of one whole decision.
    pub deadline: Duration,
    /// How long a `concurrency` limit on Redis holds a place whose proxy says nothing any more.
    /// Renewed three times in it.
    pub lease: Duration,
    /// Requests that may wait for their turn in a leaky bucket on one worker, at most; those whose
    /// take is under way count as well. Beyond, one that would have to wait is refused.
    pub waiting_max: usize,
    /// Keys the digests of tags and keys; the same on every proxy.
    pub key_secret: Option<Secret>,
    /// Algorithms of the operator's own. Editing one starts its counters afresh.
    pub scripts: Scripts,
}

impl Default for Settings {
    /// What holds where nothing is configured: 50 ms, 10 s, 1,000.
    fn default() -> Self {
        Self {
            deadline: Duration::from_millis(50),
            lease: Duration::from_secs(10),
            waiting_max: 1_000,
            key_secret: None,
            scripts: Scripts::default(),
        }
    }
}

/// The names of the algorithms that ship: no script of an operator's may have one.
#[must_use]
pub fn shipped_names() -> &'static [&'static str] {
    weir_algorithms::NAMES
}

/// Charges plans. Shared by all workers; each keeps its own memory of names and its own queue, so
/// nothing here is contended.
///
/// Build one for as long as its engine lives: a grant and the queue of settling calls belong to the
/// limiter that made them.
#[derive(Debug)]
pub struct Limiter {
    shared: Arc<shared::Shared>,
}

/// Whose counters: a policy as configured, or that policy on one route. Made once for each route
/// when the house is built.
#[derive(Clone, Debug)]
pub struct Scope {
    /// `POLICY` or `POLICY@ROUTE`, as [`Scope::name_of`] makes it.
    pub name: String,
    /// For metrics.
    pub policy: String,
    /// What to do when a counter can't be reached and the limit itself says nothing. `Local` is not
    /// built yet and means `Deny`.
    pub on_store_error: OnStoreError,
    /// Whether a limit may be looser than `on_store_error`.
    pub limit_decides: bool,
    owner: Owner,
}

/// A limiter's number for a scope's name, with the limiter's own id, once it was looked up. A clone
/// starts empty.
#[derive(Debug, Default)]
struct Owner(std::sync::OnceLock<(u64, u64)>);

impl Clone for Owner {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// What came of a plan.
#[derive(Debug)]
pub enum Take {
    /// All enforced limits fitted and are charged (or were let through uncounted, which `outcome`
    /// says for each).
    Granted(Outcome, Grant),
    /// One or more refused; nothing is charged. Each limit was evaluated all the same, so the
    /// longest `Retry-After` is known, except where an enforced limit has an amount or a burst of
    /// 0: then no counter was asked, and the others show their whole allowance.
    Refused(Outcome),
    /// A counter could not be reached, and the configuration denies then.
    Unavailable,
}

/// What a request holds: settled once at its end.
///
/// Dropped without [`Grant::settle`] it is the same as [`Ending::ClientGone`]: nothing is given
/// back but a place in a `concurrency` limit, which is held exactly as long as the grant.
#[derive(Debug)]
#[must_use = "a grant that is not settled gives nothing back"]
pub struct Grant {
    shared: Arc<shared::Shared>,
    scope: Arc<Scope>,
    plan: Arc<Plan>,
    charged: round::Charged,
    /// Names what was taken, where that is kept by name.
    member: u128,
    /// Given back when the grant goes.
    _held: Vec<leases::Held>,
}

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

impl Scope {
    /// A scope of this name, for a policy's metrics; see the fields for the rest.
    #[must_use]
    pub fn new(
        name: String,
        policy: String,
        on_store_error: OnStoreError,
        limit_decides: bool,
    ) -> Self {
        Self { name, policy, on_store_error, limit_decides, owner: Owner::default() }
    }

    /// Tells this limiter, and this scope's name, from all others.
    fn owner(&self, shared: &shared::Shared) -> u64 {
        let ask = || shared.owner(&self.name);
        match self.owner.0.get_or_init(|| (shared.id, ask())) {
            (id, owner) if *id == shared.id => *owner,
            _ => ask(),
        }
    }

    /// A scope's name: the policy's, or that policy on one route. `@` inside either is escaped, so
    /// that no two scopes share counters by their names.
    #[must_use]
    pub fn name_of(policy: &str, route: Option<&str>) -> String {
        let plain = |name: &str| name.replace('%', "%25").replace('@', "%40");
        route.map_or_else(|| plain(policy), |route| format!("{}@{}", plain(policy), plain(route)))
    }
}

impl Limiter {
    /// A limiter on `engine`.
    #[must_use]
    pub fn new(settings: Settings, engine: Arc<Engine>, metrics: Metrics) -> Self {
        Self { shared: Arc::new(shared::Shared::new(settings, engine, metrics)) }
    }

    /// Charges all limits of `plan`, or none. Dropping the future neither loses nor doubles a
    /// charge: on Redis it must run inside a tokio runtime, where what was sent is seen through to
    /// its end and then settled as [`Ending::Unsent`].
    ///
    /// A leaky bucket's wait is over when this returns: it needs a tokio runtime with a clock, in
    /// memory too. A future that is dropped while it waits is settled as [`Ending::Unsent`] as
    /// well, and its turn stays taken.
    pub async fn take(&self, scope: &Arc<Scope>, plan: &Arc<Plan>) -> Take {
        take::take(&self.shared, scope, plan).await
    }

    /// The counters of one key, one for each shape that its limit has or had: for a person who
    /// asks. In memory, those of limits that were asked since the engine was made.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn find(&self, wanted: &Wanted) -> Result<Vec<Counter>, EngineError> {
        look::find(&self.shared, wanted).await
    }

    /// Which of `algorithms` a counter belongs to: the one of its shape, where all that have it
    /// agree on their numbers.
    #[must_use]
    pub fn owner_of<'a>(
        &self,
        counter: &Counter,
        algorithms: &'a [Algorithm],
    ) -> Option<&'a Algorithm> {
        let mut same = algorithms.iter().filter(|one| self.shared.shape(one) == counter.shape);
        let first = same.next()?;
        same.all(|other| other == first).then_some(first)
    }

    /// Forgets a counter that was found: its whole allowance is back. Places in flight that are
    /// still held come back when they are renewed.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn forget(&self, counter: &Counter) -> Result<(), EngineError> {
        look::forget(&self.shared, counter).await
    }

    /// Waits until every take and settling call so far is done, on all workers, at most `grace`.
    /// Their runtimes must still run.
    pub async fn drain(&self, grace: Duration) {
        drain(&self.shared, grace).await;
    }

    /// What is left of this limiter once another has taken its place: requests under way settle
    /// where they were charged.
    #[must_use]
    pub fn retire(&self) -> Retired {
        Retired(Arc::downgrade(&self.shared))
    }
}

/// A limiter that new requests do not charge any more.
#[derive(Clone, Debug)]
pub struct Retired(Weak<shared::Shared>);

impl Retired {
    /// Whether nobody holds anything of it, and nothing of it is under way.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.strong_count() == 0
    }

    /// As [`Limiter::drain`].
    pub async fn drain(&self, grace: Duration) {
        if let Some(shared) = self.0.upgrade() {
            drain(&shared, grace).await;
        }
    }
}

async fn drain(shared: &shared::Shared, grace: Duration) {
    if tokio::time::timeout(grace, shared.drained()).await.is_err() {
        tracing::warn!(
            calls = shared.pending(),
            "settling calls were not done within the grace period"
        );
    }
}

impl Grant {
    /// Gives back what each limit's `refund` declares for `ending`; `adjustments` are a policy's
    /// own words: units below zero and resets for limits that are settled so
    /// ([`crate::plan::Refund::BySettle`]; at most what was taken is given back), units above zero
    /// for any (best effort: what does not fit any more is not charged, and counted). Places in a
    /// `concurrency` limit go with the grant and turns in a leaky bucket stay taken: neither is
    /// adjusted. Returns at once: on Redis the work is queued.
    pub fn settle(self, ending: Ending, adjustments: &[Adjustment]) {
        settle::settle(&self, ending, adjustments);
    }
}
