//! A limiter's state: shared by its workers, its grants and the tasks that outlive a request.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use weir_algorithms::{
    LEASE_IN_MEMORY, Lease, Leased, Moment, Shape, ShapeExtra, Share, script_digest_of,
};

use super::Settings;
use super::held::HeldUnits;
use super::keys::Digests;
use super::lease_table::RENEWALS;
use super::ledger::Ledger;
use super::queue::{ByKind, Worker};
use super::refusals::{HELD_MAX, RefundableLimits};
use crate::clock::{Clock, LogThrottle};
use crate::engine::{
    self, Cell, Embedded, EmbeddedSettings, Engine, Kind, NUMBERS_MAX, Program, Scripts,
};
use crate::plan::{Algorithm, Limit, Role};
use crate::telemetry::{Counter, Metrics, names};

/// Maximum number of counters that are held while shards are away. When there are more, new ones
/// are denied.
const STANDBY_KEYS_MAX: usize = 1_000_000;

/// Maximum number of scopes whose ids are kept, and of scopes that a worker caches.
pub(super) const SCOPES_MAX: usize = 1_024;

/// Stands for a script that does not exist. It fails, and a script's error is a store error, so the
/// limit's `on_store_error` decides.
static NO_SUCH_SCRIPT: Program = Program {
    name: "no_such_script",
    text: "local function take() return error('there is no such script') end\n\
           local give_back = take\nreturn { take = take, give_back = give_back }",
    kind: Kind::Numbers,
    state: 3,
    numbers: 0,
};

/// The shape of `algorithm`'s counters. Leases have this length, and `text` is its program.
pub(super) fn shape(algorithm: &Algorithm, lease: Duration, text: &str) -> Shape {
    algorithm.shape(match algorithm {
        Algorithm::Script(_) => {
            let digest = blake3::hash(text.as_bytes());
            ShapeExtra::Script(script_digest_of(&digest.to_hex()))
        }
        _ if algorithm.holds() => ShapeExtra::Lease(lease),
        _ => ShapeExtra::Nothing,
    })
}

/// The length of a lease on such an engine.
pub(super) fn lease(settings: &super::Settings, engine: &engine::Settings) -> Duration {
    match engine {
        engine::Settings::Embedded(_) => LEASE_IN_MEMORY,
        engine::Settings::Redis(_) => settings.lease,
    }
}

/// What a [`super::Limiter`] points to.
#[derive(Debug)]
pub(super) struct Shared {
    /// Unique in the process.
    pub(super) id: u64,
    pub(super) engine: Arc<Engine>,
    pub(super) metrics: Metrics,
    /// Picks calendar periods, but decides nothing: the store's time does.
    pub(super) clock: Clock,
    pub(super) digests: Digests,
    pub(super) deadline: Duration,
    /// Counts while a shard is away, where `on_store_error` says `local`. Not used by the embedded
    /// engine.
    standby: Embedded,
    local_share: Share,
    /// How long a refusal is remembered.
    pub(super) refusals_held: Duration,
    /// How many counters were reset by hand, and how often `given_back` has grown: no refusal from
    /// before is remembered.
    pub(super) resets: AtomicU64,
    /// The limits whose refusals are not remembered.
    pub(super) given_back: RefundableLimits,
    /// What was counted there and is not yet charged on Redis.
    pub(super) ledger: Ledger,
    /// What requests under way may give back.
    pub(super) held: Arc<HeldUnits>,
    /// A lease's length.
    pub(super) lease: Duration,
    scripts: Scripts,
    /// Maximum number of requests that wait for a leaky bucket on one worker.
    pub(super) waiting_max: usize,
    pub(super) counters: Counters,
    /// For the log lines about adjustments that are ignored.
    pub(super) ignored: LogThrottle,
    /// One for each live thread that has charged here. Locked only at a thread's first use and in a
    /// drain.
    workers: Mutex<Vec<Weak<Worker>>>,
    /// How many tasks wait in [`Shared::drained`]. While there are none, `idle` is not notified.
    drainers: AtomicUsize,
    idle: Notify,
    /// This process' name among the holders of leases, and how many of its workers have one.
    instance: String,
    holders: AtomicUsize,
    /// An id for the name of each scope that charges here. Locked only at a scope's first use.
    scope_ids: Mutex<HashMap<String, u64>>,
}

/// The next id of a limiter or a scope. Unique in the process, so scope ids differ between
/// limiters.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Metrics that are looked up once.
#[derive(Debug)]
pub(super) struct Counters {
    /// The queue was full.
    pub(super) dropped: ByKind,
    /// The store did not answer.
    pub(super) failed: ByKind,
    /// A charge no longer fitted.
    pub(super) charge_refused: Counter,
    /// A debt had no room for a whole charge.
    pub(super) debt_full: Counter,
    /// A lease could not be renewed.
    pub(super) failed_renewals: Counter,
    /// Too many takes were in flight.
    pub(super) overload: Counter,
    /// A remembered refusal was answered.
    pub(super) refusals_remembered: Counter,
    pub(super) leased: LeaseCounters,
}

/// Metrics of leases.
#[derive(Debug)]
pub(super) struct LeaseCounters {
    /// Calls that brought units, calls that the store refused, and calls that failed.
    pub(super) granted: Counter,
    pub(super) refused: Counter,
    pub(super) failed: Counter,
    /// Units that were taken, and those of them that were given back unused.
    pub(super) taken: Counter,
    pub(super) given_back: Counter,
}

impl Shared {
    pub(super) fn new(
        settings: Settings,
        engine: Arc<Engine>,
        clock: Clock,
        metrics: Metrics,
    ) -> Self {
        let by_kind = |name| {
            let of = |kind| metrics.counter(name, &[kind]);
            ByKind { give_back: of("give_back"), charge: of("charge"), reset: of("reset") }
        };
        let counters = Counters {
            dropped: by_kind(names::SETTLES_DROPPED),
            failed: by_kind(names::SETTLES_FAILED),
            charge_refused: metrics.counter(names::SETTLES_FAILED, &["charge_refused"]),
            debt_full: metrics.counter(names::SETTLES_FAILED, &["debt_full"]),
            failed_renewals: metrics.counter(names::SETTLES_FAILED, &["renewal"]),
            refusals_remembered: metrics.counter(names::REFUSALS_REMEMBERED, &[]),
            overload: metrics.counter(names::STORE_ERRORS, &["overload"]),
            leased: LeaseCounters {
                granted: metrics.counter(names::LEASE_CALLS, &["granted"]),
                refused: metrics.counter(names::LEASE_CALLS, &["refused"]),
                failed: metrics.counter(names::LEASE_CALLS, &["failed"]),
                taken: metrics.counter(names::LEASE_UNITS, &["taken"]),
                given_back: metrics.counter(names::LEASE_UNITS, &["given_back"]),
            },
        };
        let secret = settings.key_secret.as_ref();
        let (lease, digests) = match *engine {
            Engine::Embedded(ref engine) => {
                (LEASE_IN_MEMORY, Digests::salted(secret, engine.salt()))
            }
            Engine::Redis(_) => (settings.lease, Digests::new(secret)),
        };
        let standby = EmbeddedSettings::new(STANDBY_KEYS_MAX);
        let standby = Embedded::new(&standby, clock.clone(), &metrics);
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            engine,
            metrics,
            clock,
            digests,
            deadline: settings.deadline,
            standby,
            local_share: settings.local_share,
            refusals_held: settings.refusals_held.min(HELD_MAX),
            resets: AtomicU64::new(0),
            given_back: RefundableLimits::default(),
            ledger: Ledger::default(),
            held: Arc::default(),
            lease,
            scripts: settings.scripts,
            waiting_max: settings.waiting_max,
            counters,
            ignored: LogThrottle::default(),
            workers: Mutex::default(),
            drainers: AtomicUsize::new(0),
            idle: Notify::new(),
            instance: settings.instance,
            holders: AtomicUsize::new(0),
            scope_ids: Mutex::default(),
        }
    }

    /// The id of this limiter's scopes of one name: identifies what is prepared of a plan.
    pub(super) fn scope_id(&self, scope: &str) -> u64 {
        let mut ids = self.scope_ids.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(id) = ids.get(scope) {
            return *id;
        }
        // New names come with reloads. Plans that were prepared under an old id are prepared again.
        if ids.len() >= SCOPES_MAX {
            ids.clear();
        }
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        ids.insert(scope.to_owned(), id);
        id
    }

    /// The Lua program of `algorithm`.
    pub(super) fn program(&self, algorithm: &Algorithm) -> &'static Program {
        let of_operator = || self.scripts.find(algorithm.name());
        algorithm.program().or_else(of_operator).unwrap_or(&NO_SUCH_SCRIPT)
    }

    /// The numbers that `algorithm`'s program reads for the time `now_us`, in microseconds since
    /// 1970.
    pub(super) fn numbers(&self, algorithm: &Algorithm, now_us: i64) -> [i64; NUMBERS_MAX] {
        algorithm.numbers(Moment { lease: self.lease, now_us })
    }

    /// Remembers what was admitted or charged in this process while the shard was away. `cell` is
    /// the counter as on Redis.
    pub(super) fn owe(&self, algorithm: &Algorithm, cell: &Cell) {
        self.ledger.add(algorithm, cell, |algorithm| self.numbers(algorithm, 0));
    }

    /// Drops expired counters in memory, a part of them with each call.
    pub(super) fn sweep(&self) {
        self.engine.sweep();
        self.standby.sweep();
    }

    /// The engine that counts in this process while a shard is away.
    pub(super) fn standby(&self) -> &Embedded {
        &self.standby
    }

    /// Whether `limit` can be counted in this process while its shard is away.
    pub(super) fn counts_here(&self, limit: &Limit) -> bool {
        matches!(*self.engine, Engine::Redis(_)) && self.local_numbers(limit).is_some()
    }

    /// The numbers of this proxy's share of `limit`; `None` if it can't be counted by each
    /// proxy alone.
    pub(super) fn local_numbers(&self, limit: &Limit) -> Option<[i64; NUMBERS_MAX]> {
        self.counting_here(limit).map(|share| self.numbers(&share, 0))
    }

    /// What the limit's counter in this process runs with while the store fails, if it can.
    pub(super) fn counting_here(&self, limit: &Limit) -> Option<Algorithm> {
        self.counting(limit).share(self.local_share)
    }

    /// The shape of `algorithm`'s counters in this limiter.
    pub(super) fn shape(&self, algorithm: &Algorithm) -> Shape {
        shape(algorithm, self.lease, self.program(algorithm).text)
    }

    /// Registers one more worker.
    pub(super) fn new_worker(&self) -> Arc<Worker> {
        let number = self.holders.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}/{number}", self.instance);
        let worker = Arc::new(Worker::new(name, self.counters.dropped.clone()));
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        workers.retain(|worker| worker.strong_count() > 0);
        workers.push(Arc::downgrade(&worker));
        worker
    }

    /// The number of takes and settling calls in flight, on all threads.
    pub(super) fn pending(&self) -> usize {
        self.workers().iter().map(|worker| worker.pending()).sum()
    }

    /// Ends all leases: their units are given back, and no more are taken in advance.
    pub(super) fn end_leases(&self) {
        self.workers().iter().for_each(|worker| worker.holders.close());
    }

    /// The workers that are there.
    pub(super) fn workers(&self) -> Vec<Arc<Worker>> {
        let workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        workers.iter().filter_map(Weak::upgrade).collect()
    }

    /// What the store runs with for `limit`: with leases that is more than the limit says. In
    /// memory there are only those that are handed to callers.
    pub(super) fn leased(&self, limit: &Limit) -> Option<Leased> {
        let in_memory = matches!(*self.engine, Engine::Embedded(_));
        let lease = self.lease_of(limit).filter(|_| !limit.algorithm.refuses_all())?;
        if in_memory && !lease.to_callers {
            return None;
        }
        limit.algorithm.leased(lease).ok()
    }

    /// How `limit` is leased. A request may get a place at the end of its lease's life, and it is
    /// renewed one or two renewals later: if the first fails, the second must still come before the
    /// store stops counting the place.
    pub(super) fn lease_of(&self, limit: &Limit) -> Option<Lease> {
        let lease = limit.lease?;
        if !limit.algorithm.holds() {
            return Some(lease);
        }
        let most_ms = (self.lease / (2 * RENEWALS)).as_millis() as u64;
        Some(Lease { life_ms: lease.life_ms.min(most_ms.max(1)), ..lease })
    }

    /// The algorithm that counts `limit`.
    pub(super) fn counting<'l>(&self, limit: &'l Limit) -> Cow<'l, Algorithm> {
        let alone = match self.leased(limit) {
            Some(leased) => Cow::Owned(leased.at_store),
            None => Cow::Borrowed(&limit.algorithm),
        };
        if limit.role == Role::Parent {
            return alone.as_parent().map_or(alone, Cow::Owned);
        }
        alone
    }

    /// Wakes the tasks in [`Shared::drained`], because a take or a settling call has ended.
    pub(super) fn done(&self) {
        if self.drainers.load(Ordering::SeqCst) > 0 {
            self.idle.notify_waiters();
        }
    }

    /// Waits until nothing is in flight.
    pub(super) async fn drained(&self) {
        let _guard = DrainGuard::begin(&self.drainers);
        loop {
            let mut idle = std::pin::pin!(self.idle.notified());
            // Registered before the check, so that a call which ends between the check and the wait
            // is not missed.
            idle.as_mut().enable();
            if self.pending() == 0 {
                return;
            }
            idle.await;
        }
    }
}

/// Counts a drain for as long as it runs, even if its future is dropped.
struct DrainGuard<'a>(&'a AtomicUsize);

impl<'a> DrainGuard<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for DrainGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
