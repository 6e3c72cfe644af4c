//! Takes a plan's limits, and settles them when the request ends.
//!
//! Turns a [`Plan`] into engine calls (keys, tags, order) and their replies into a [`PlanOutcome`].
//! A store failure becomes what the configuration says. Knows nothing of HTTP, Wasm or Redis'
//! protocol.
//!
//! In the order in which a plan passes through them:
//!
//! - `take` runs a plan's round. The request polls it; if the request goes away, the rest of a
//!   round on Redis goes on in a task.
//! - `round` is a pure state machine: which tag is called next, and what is given back.
//! - `prepared` caches what all takes of a plan have in common.
//! - `keys` names counters.
//! - `failure` decides what a failed store means for a limit.
//! - `holders` are a worker's units that were taken in advance, and who waits for them.
//! - `leased` takes several units from Redis in advance, of limits that have leases.
//! - `leases` holds and renews `concurrency` permits, which `lease_table` lists. `unknown` gives
//!   those back that a call may have taken.
//! - `settle` and `queue` give back and charge when a request ends.
//! - `local` is per worker, `shared` is common to all workers.
//! - `refusals` are remembered for a moment instead of asking Redis again.
//! - `ledger` is what was counted here while a shard was away, and `hand_back` charges it on Redis.
//! - `give_back` returns units that no grant of this process stands for.
//! - `look` finds and resets counters for `weir key`.
//! - `probe` tries whether the store can count, for `weir check --connect`.

mod calls;
mod failure;
mod finish;
mod give_back;
mod hand_back;
mod held;
mod holders;
mod keys;
mod lease_table;
mod leased;
mod leases;
mod ledger;
mod local;
mod look;
mod plenty;
mod prepared;
mod probe;
mod queue;
mod refusals;
mod round;
mod run;
mod settle;
mod shared;
mod take;
mod take_leased;
#[cfg(test)]
mod tests;
mod unknown;

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::clock::Clock;
use crate::engine::{self, Engine, EngineError, LeaseHolder, Scripts, Secret};
use crate::plan::{
    AMOUNT_MAX, Adjustment, Algorithm, Limit, MEMBERS_MAX, OnStoreError, Plan, PlanError,
    PlanOutcome,
};
use crate::telemetry::Metrics;

pub use keys::{Identities, Identity, KeyDigest, KeyDigestError, secret_id};
pub use look::{Counter, CounterName};
pub use weir_algorithms::{Shape, Share};

/// What the limiter needs besides its engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Time limit for one whole decision.
    pub deadline: Duration,
    /// How long a `concurrency` permit on Redis outlives its last renewal. It is renewed three
    /// times within that time. When a proxy dies its permits expire.
    pub lease: Duration,
    /// Maximum number of requests that wait for a leaky bucket on one worker, including those whose
    /// take is still in flight. Beyond it, a request that would have to wait is refused.
    pub waiting_max: usize,
    /// Secret for the digests of tags and keys. Must be the same on every proxy.
    pub key_secret: Option<Secret>,
    /// What this proxy admits of each limit while it counts alone, because the store failed.
    pub local_share: Share,
    /// How long a refusal of Redis is remembered, at most a second; zero for never.
    pub refusals_held: Duration,
    /// The operator's own algorithms. Editing one starts its counters afresh.
    pub scripts: Scripts,
    /// Names this process among those that hold leases of the same counters. Unique among them.
    pub instance: String,
}

impl Default for Settings {
    /// The configuration's defaults: 50 ms, 10 s, 1,000. The name is that of this process.
    fn default() -> Self {
        Self {
            deadline: Duration::from_millis(50),
            lease: Duration::from_secs(10),
            waiting_max: 1_000,
            key_secret: None,
            local_share: Share::WHOLE,
            refusals_held: refusals::HELD_MAX,
            scripts: Scripts::default(),
            instance: process_name().to_owned(),
        }
    }
}

/// `HOST:PID:RANDOM`: containers may have the host and the number in common.
fn process_name() -> &'static str {
    static NAME: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    NAME.get_or_init(|| {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        format!("{}:{}:{:04x}", host.trim(), std::process::id(), fastrand::u16(..))
    })
}

/// The names of the built-in algorithms. An operator's script can't use one of them.
#[must_use]
pub fn shipped_names() -> &'static [&'static str] {
    weir_algorithms::NAMES
}

/// The shape that a limiter with these settings on such an engine gives the counters of
/// `algorithm`, for comparing: of a script, `text` stands for its program.
#[must_use]
pub fn shape_under(
    settings: &Settings,
    engine: &engine::Settings,
    algorithm: &Algorithm,
    text: &str,
) -> Shape {
    shared::shape(algorithm, shared::lease(settings, engine), text)
}

/// Charges plans. Shared by all workers. Each worker has its own caches and its own queue, so
/// nothing here is contended.
///
/// Keep one limiter for as long as its engine lives: grants and queued settling calls belong to the
/// limiter that made them.
#[derive(Debug)]
pub struct Limiter {
    shared: Arc<shared::Shared>,
}

/// A namespace of counters: a policy as configured, or that policy on one route. Made once for each
/// route when the configuration is loaded.
#[derive(Clone, Debug)]
pub struct Scope {
    /// `POLICY` or `POLICY@ROUTE`, as [`Scope::name_of`] makes it.
    pub name: String,
    /// The policy's name, for metrics.
    pub policy: String,
    /// What to do when a counter can't be reached and the limit does not say. `Local` means `Deny`
    /// for limits that can't be counted by each proxy alone, and in memory.
    pub on_store_error: OnStoreError,
    /// Whether a limit may be looser than `on_store_error`.
    pub limit_decides: bool,
    cached_id: CachedId,
}

/// The limiter's id and that limiter's id for the scope's name, set at the first look-up. A clone
/// starts empty.
#[derive(Debug, Default)]
struct CachedId(std::sync::OnceLock<(u64, u64)>);

impl Clone for CachedId {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// The result of [`Limiter::take`].
#[derive(Debug)]
pub enum Take {
    /// All enforced limits fitted and are charged, or were let through uncounted: `outcome` says
    /// which.
    Granted(PlanOutcome, Grant),
    /// One or more limits refused, and nothing is charged. Every limit was evaluated, so the
    /// longest `Retry-After` is known. The exception is an enforced limit with an amount or a burst
    /// of 0: then no counter was read, and the other limits show their whole allowance.
    Refused(PlanOutcome),
    /// A counter could not be reached, for this cause, and the configuration says to deny in that
    /// case.
    Unavailable(&'static str),
}

/// A shard that can't count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeError {
    /// Its master's address, as far as that is known.
    pub node: String,
    /// Why.
    pub error: EngineError,
}

/// What a request was granted. Settled once, when the request ends.
///
/// Dropping it without [`Grant::settle`] is the same as [`Ending::ClientGone`]: nothing is given
/// back except `concurrency` permits, which are held exactly as long as the grant.
#[derive(Debug)]
#[must_use = "a grant that is not settled gives nothing back"]
pub struct Grant {
    shared: Arc<shared::Shared>,
    scope: Arc<Scope>,
    plan: Arc<Plan>,
    charged: round::ChargeTimes,
    /// The limits that were counted in this process, since the store failed.
    local: calls::LimitSet,
    /// Those of them that were certainly not counted on Redis, which will be charged for them.
    owed: calls::LimitSet,
    /// The member's name in logs and leases, for algorithms that keep members.
    member: u128,
    /// Given back when the grant is dropped.
    _leases: Vec<leases::LeaseGuard>,
    /// What may be given back when it is settled.
    _holding: Option<Box<held::Hold>>,
    /// The units that came from leases and may be given back, by their limits' indices.
    leased: Vec<(usize, leased::LeasedUnits)>,
}

/// How a request ended, as far as its limits care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The upstream sent a complete response with a status below 500.
    Completed,
    /// The request was admitted and then turned away, before the upstream could get any of it.
    /// Whatever a limit's refund says, all of it is given back, but for a turn in a leaky bucket.
    Withdrawn,
    /// Nothing of the request reached the upstream.
    Unsent,
    /// The upstream failed, or answered 5xx.
    UpstreamFailed,
    /// The client went away, its body failed, or the request took longer than it may. Nothing is
    /// refunded.
    ClientGone,
}

impl Scope {
    /// A scope; see the fields.
    #[must_use]
    pub fn new(
        name: String,
        policy: String,
        on_store_error: OnStoreError,
        limit_decides: bool,
    ) -> Self {
        Self { name, policy, on_store_error, limit_decides, cached_id: CachedId::default() }
    }

    /// Identifies the pair of this limiter and this scope's name within the process.
    fn id(&self, shared: &shared::Shared) -> u64 {
        let look_up = || shared.scope_id(&self.name);
        match self.cached_id.0.get_or_init(|| (shared.id, look_up())) {
            (limiter, id) if *limiter == shared.id => *id,
            _ => look_up(),
        }
    }

    /// The scope's name for a policy, or for that policy on one route. `@` inside either name is
    /// escaped, so that two scopes never get the same name.
    #[must_use]
    pub fn name_of(policy: &str, route: Option<&str>) -> String {
        let plain = |name: &str| name.replace('%', "%25").replace('@', "%40");
        route.map_or_else(|| plain(policy), |route| format!("{}@{}", plain(policy), plain(route)))
    }
}

impl Limiter {
    /// A limiter on `engine`. `clock` is this process' idea of the date: it picks the calendar
    /// period that a quota asks for first. The store's time decides.
    #[must_use]
    pub fn new(settings: Settings, engine: Arc<Engine>, clock: Clock, metrics: Metrics) -> Self {
        Self { shared: Arc::new(shared::Shared::new(settings, engine, clock, metrics)) }
    }

    /// Charges all limits of `plan`, or none.
    ///
    /// Dropping the future neither loses nor doubles a charge. On Redis it must run inside a tokio
    /// runtime: a task there completes the calls that were sent, and then settles them as
    /// [`Ending::Unsent`].
    ///
    /// Returns after the wait for a leaky bucket, which needs a tokio runtime with its timer
    /// enabled, in memory too. A future that is dropped during the wait is settled as
    /// [`Ending::Unsent`] as well; its slot in the bucket stays taken.
    pub fn take(&self, scope: &Arc<Scope>, plan: &Arc<Plan>) -> impl Future<Output = Take> {
        take::take(&self.shared, scope, plan, None)
    }

    /// [`take`](Self::take) that also returns in `identities`, if wanted, what each limit counts
    /// under, which is cheaper than [`identities`](Self::identities) after it.
    pub fn take_identified(
        &self,
        scope: &Arc<Scope>,
        plan: &Arc<Plan>,
        identities: Option<&mut Identities>,
    ) -> impl Future<Output = Take> {
        take::take(&self.shared, scope, plan, identities)
    }

    /// Gives back the cost of each limit of `plan`, whoever took it, as if that had been just now:
    /// a window that has ended gets nothing, and no limit more than was taken of it. One limit
    /// after another; those that know their units by name, a log's, get nothing.
    ///
    /// # Errors
    /// The store does not answer. Limits before the one that failed have their units back.
    pub async fn give_back(&self, scope: &Arc<Scope>, plan: &Plan) -> Result<(), EngineError> {
        give_back::give_back(&self.shared, scope, plan).await
    }

    /// A grant of which nothing was taken: what [`Grant::settle`] is told to charge after a
    /// refusal.
    #[must_use = "a grant that is not settled charges nothing"]
    pub fn empty_grant(&self, scope: &Arc<Scope>, plan: &Arc<Plan>) -> Grant {
        Grant {
            shared: Arc::clone(&self.shared),
            scope: Arc::clone(scope),
            plan: Arc::clone(plan),
            charged: plan.limits().iter().map(|_| None).collect(),
            local: calls::LimitSet::default(),
            owed: calls::LimitSet::default(),
            member: 0,
            _leases: Vec::new(),
            _holding: None,
            leased: Vec::new(),
        }
    }

    /// An error of the store for an operator: see [`Engine::explain`].
    #[must_use]
    pub fn explain(&self, error: &EngineError) -> String {
        self.shared.engine.explain(error)
    }

    /// The counters of one key, one for each shape that its limit has or had. For administration.
    /// In memory, only limits that were used since the engine was created are found.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn find(&self, name: &CounterName) -> Result<Vec<Counter>, EngineError> {
        let CounterName { scope, limit, key, tag } = name;
        self.find_by_digest(scope, limit, self.digest(key, tag.as_deref())).await
    }

    /// Like [`find`](Self::find), for a key that is known by its digest.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn find_by_digest(
        &self,
        scope: &str,
        limit: &str,
        digest: KeyDigest,
    ) -> Result<Vec<Counter>, EngineError> {
        look::find(&self.shared, scope, limit, digest).await
    }

    /// Whether limits may be leased: their counters are not in this process.
    #[must_use]
    pub fn may_lease(&self) -> bool {
        matches!(*self.shared.engine, Engine::Redis(_))
    }

    /// The digest by which a key's counters are found. In memory and without a `key_secret`, it
    /// differs in each process.
    #[must_use]
    pub fn digest(&self, key: &str, tag: Option<&str>) -> KeyDigest {
        self.shared.digests.of_key(key, tag)
    }

    /// Whether digests are keyed, so that nobody can find a text by trying those that are likely.
    #[must_use]
    pub fn has_keyed_digests(&self) -> bool {
        self.shared.digests.is_keyed()
    }

    /// The one of `algorithms` that a counter belongs to: the one with the counter's shape. `None`
    /// if several have that shape and differ in their numbers.
    #[must_use]
    pub fn algorithm_of<'a>(
        &self,
        counter: &Counter,
        algorithms: &'a [Algorithm],
    ) -> Option<&'a Algorithm> {
        let mut same = algorithms.iter().filter(|one| self.shared.shape(one) == counter.shape);
        let first = same.next()?;
        same.all(|other| other == first).then_some(first)
    }

    /// Who holds units of a counter that were taken in advance: as far as the store knows, which
    /// does not see how many of them are spent.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn lease_holders(&self, counter: &Counter) -> Result<Vec<LeaseHolder>, EngineError> {
        look::lease_holders(&self.shared, counter).await
    }

    /// Whether each shard of the store can count as `algorithm` does: takes a unit, gives it back
    /// and deletes the counter, which no request has.
    ///
    /// # Errors
    /// The first shard that can't.
    pub async fn probe(&self, algorithm: &Algorithm) -> Result<(), ProbeError> {
        probe::probe(&self.shared, algorithm).await
    }

    /// How many units of `limit` may pass at once while this process counts alone; `None` if it
    /// can't, or if only a script knows.
    #[must_use]
    pub fn local_allowance(&self, limit: &Limit) -> Option<u64> {
        self.shared.counting_here(limit)?.capacity()
    }

    /// What each limit of `plan` counts under. Cheap after a take.
    #[must_use]
    pub fn identities(&self, scope: &Arc<Scope>, plan: &Plan) -> Identities {
        prepared::with(&self.shared, scope, plan, |prepared| prepared.identities.clone())
    }

    /// Deletes a counter, which restores its whole allowance. Concurrency permits that are still
    /// held reappear when they are renewed.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn forget(&self, counter: &Counter) -> Result<(), EngineError> {
        look::forget(&self.shared, counter).await
    }

    /// Gives back what was taken in advance, and waits until all takes and settling calls so far
    /// are done, on all workers, for at most `grace`. The workers' runtimes must still be running.
    /// From then on each request asks for itself.
    pub async fn drain(&self, grace: Duration) {
        drain(&self.shared, grace).await;
    }

    /// Drops expired counters in memory, a part of them with each call: of the embedded engine, and
    /// of those that were counted here while Redis was away.
    pub fn sweep(&self) {
        self.shared.sweep();
    }

    /// A handle for draining this limiter after it was replaced: requests in flight settle with the
    /// limiter that charged them.
    #[must_use]
    pub fn retire(&self) -> RetiredLimiter {
        RetiredLimiter(Arc::downgrade(&self.shared))
    }
}

/// A limiter that no longer receives new requests.
#[derive(Clone, Debug)]
pub struct RetiredLimiter(Weak<shared::Shared>);

impl RetiredLimiter {
    /// Whether no grant of it is held and no call of it is in flight.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.strong_count() == 0
    }

    /// Does the same as [`Limiter::drain`].
    pub async fn drain(&self, grace: Duration) {
        if let Some(shared) = self.0.upgrade() {
            drain(&shared, grace).await;
        }
    }
}

async fn drain(shared: &shared::Shared, grace: Duration) {
    shared.end_leases();
    if tokio::time::timeout(grace, shared.drained()).await.is_err() {
        tracing::warn!(
            calls = shared.pending(),
            "settling calls were not done within the grace period"
        );
    }
}

impl Grant {
    /// The units that were to be taken of the limit called `name`.
    #[must_use]
    pub fn cost_of(&self, name: &str) -> Option<u64> {
        self.plan.limits().iter().find(|limit| limit.name == name).map(|limit| limit.cost)
    }

    /// Gives back what each limit's `refund` declares for `ending`, and applies the policy's
    /// `adjustments`:
    ///
    /// - Negative units and resets need [`crate::plan::Refund::BySettle`]. At most what was taken
    ///   is given back.
    /// - Positive units work for any limit, as a best effort: a charge that no longer fits is
    ///   dropped and counted.
    /// - `concurrency` permits are released with the grant, and slots in a leaky bucket stay taken:
    ///   neither can be adjusted.
    ///
    /// Returns at once. On Redis the work is queued.
    #[inline]
    pub fn settle(self, ending: Ending, adjustments: &[Adjustment]) {
        settle::settle(&self, ending, adjustments);
    }

    /// Gives back `part` of the `whole` that was taken, rounded down, whatever its limits' `refund`
    /// says: units that were handed to somebody who did not use them.
    pub fn give_back_part(self, part: u64, whole: u64) {
        settle::give_back_part(&self, part, whole);
    }

    /// The limits of its plan.
    #[must_use]
    #[inline]
    pub fn limits(&self) -> &[Limit] {
        self.plan.limits()
    }

    /// Settles like [`Grant::settle`], and reports to `each` what every limit came to, in the
    /// plan's order.
    pub fn settle_with_report(
        self,
        ending: Ending,
        adjustments: &[Adjustment],
        mut each: impl FnMut(&Limit, Identity, SettledUnits),
    ) {
        let settlements = settle::settle(&self, ending, adjustments);
        let Self { shared, scope, plan, charged, .. } = &self;
        prepared::with(shared, scope, plan, |prepared| {
            let limits = plan.limits().iter().zip(&prepared.identities);
            for (index, (limit, identity)) in limits.enumerate() {
                let settlement = settlements.get(index).copied().unwrap_or_default();
                let is_charged = charged.get(index).is_some_and(Option::is_some);
                let settled = SettledUnits {
                    taken: if is_charged { limit.cost } else { 0 },
                    given_back: settlement.give_back,
                    charged: settlement.charge.saturating_add(settlement.owe),
                };
                each(limit, *identity, settled);
            }
        });
    }
}

/// What a limit of a grant came to when it was settled, in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettledUnits {
    /// What was taken with the decision.
    pub taken: u64,
    /// What was given back of that.
    pub given_back: u64,
    /// What was to be charged in addition. It is known later, if at all, whether it fitted.
    pub charged: u64,
}

impl Grant {
    /// Settles a grant of which nothing came: its request was never sent. What only a policy could
    /// give back is given back, too, as the policy can't know about it.
    fn cancel(self) {
        settle::cancel(&self);
    }
}

/// Takes another plan of a grant's scope, as often as it is asked to.
#[derive(Clone, Debug)]
pub struct ExtraTakes {
    shared: Arc<shared::Shared>,
    scope: Arc<Scope>,
    plan: Arc<Plan>,
}

impl ExtraTakes {
    /// Takes of `plan` in the scope of `grant`.
    #[must_use]
    pub fn new(grant: &Grant, plan: Plan) -> Self {
        Self {
            shared: Arc::clone(&grant.shared),
            scope: Arc::clone(&grant.scope),
            plan: Arc::new(plan),
        }
    }

    /// Takes all of the plan's limits or none.
    pub fn take(&self) -> impl Future<Output = Take> + Send + use<> {
        let Self { shared, scope, plan } = self.clone();
        async move { take::take(&shared, &scope, &plan, None).await }
    }

    /// The same with this many units of each limit instead of its cost.
    ///
    /// # Errors
    /// The limits can't be asked for so many.
    pub fn take_units(
        &self,
        units: u64,
    ) -> Result<impl Future<Output = Take> + Send + use<>, PlanError> {
        let limits = self.plan.limits().iter();
        let limits = limits.map(|limit| Limit { cost: units, ..limit.clone() });
        let plan = Arc::new(Plan::new(limits.collect())?.quiet());
        Ok(Self { plan, ..self.clone() }.take())
    }

    /// The most units that can be taken of each limit at once.
    #[must_use]
    pub fn most(&self) -> u64 {
        let most = |limit: &Limit| {
            let most = if limit.algorithm.keeps_members() { MEMBERS_MAX } else { AMOUNT_MAX };
            let own = limit.algorithm.cost_max().filter(|_| limit.is_enforced());
            own.map_or(most, |own| own.min(most))
        };
        self.plan.limits().iter().map(most).min().unwrap_or(0)
    }

    /// What a refusal says is left of each limit.
    #[must_use]
    pub fn left(&self, outcome: &PlanOutcome) -> u64 {
        let limits = self.plan.limits().iter().zip(&outcome.limits);
        let limits = limits.filter(|(limit, _)| limit.is_enforced());
        limits.map(|(_, outcome)| outcome.remaining).min().unwrap_or(0)
    }
}
