//! What a limiter is made of: shared by its workers, its grants and the tasks that outlive a
//! request.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use weir_algorithms::{LEASE_IN_MEMORY, Moment, Shape, ShapeExtra, script_digest_of};

use super::Settings;
use super::keys::Digests;
use super::local::SCOPES_MAX;
use super::queue::{ByKind, Worker};
use crate::clock::Clock;
use crate::engine::{Engine, Kind, NUMBERS_MAX, Program, Scripts};
use crate::plan::Algorithm;
use crate::telemetry::{Counter, Metrics, names};

/// Fails: what a plan asks for that nobody has. A script's error is a store error, so that the
/// limit's own fallback decides.
static NO_SUCH_SCRIPT: Program = Program {
    name: "no_such_script",
    text: "local function take() return error('there is no such script') end\n\
           local give_back = take\nreturn { take = take, give_back = give_back }",
    kind: Kind::Numbers,
    state: 3,
    numbers: 0,
};

/// The inside of a limiter.
#[derive(Debug)]
pub(super) struct Shared {
    /// Unique in the process.
    pub(super) id: u64,
    pub(super) engine: Arc<Engine>,
    pub(super) metrics: Metrics,
    /// Names a calendar's periods, and decides nothing.
    pub(super) clock: Clock,
    pub(super) digests: Digests,
    pub(super) deadline: Duration,
    /// A lease's length.
    pub(super) lease: Duration,
    scripts: Scripts,
    /// Requests that may wait for their turn on one worker, at most.
    pub(super) waiting_max: usize,
    pub(super) counters: Counters,
    /// Of each thread that ever charged here and still lives. Locked only when a thread comes and
    /// when somebody drains.
    workers: Mutex<Vec<Weak<Worker>>>,
    /// How many wait in [`Shared::drain`]: while nobody does, nobody is told.
    drainers: AtomicUsize,
    idle: Notify,
    /// A number for the name of each scope that charges here. Locked only when a thread meets a
    /// scope.
    owners: Mutex<HashMap<String, u64>>,
}

/// The next number of an owner: unique in the process, so that it tells limiters apart as well.
static OWNERS: AtomicU64 = AtomicU64::new(1);

/// Counters that are looked up once.
#[derive(Debug)]
pub(super) struct Counters {
    /// The queue was full.
    pub(super) dropped: ByKind,
    /// The store gave no answer.
    pub(super) failed: ByKind,
    /// A charge that did not fit any more.
    pub(super) charge_refused: Counter,
    /// A lease that was not renewed.
    pub(super) failed_renewals: Counter,
    /// Too many takes under way.
    pub(super) overload: Counter,
}

impl Shared {
    pub(super) fn new(settings: Settings, engine: Arc<Engine>, metrics: Metrics) -> Self {
        let by_kind = |name| {
            let of = |kind| metrics.counter(name, &[kind]);
            ByKind { give_back: of("give_back"), charge: of("charge"), reset: of("reset") }
        };
        let counters = Counters {
            dropped: by_kind(names::SETTLES_DROPPED),
            failed: by_kind(names::SETTLES_FAILED),
            charge_refused: metrics.counter(names::SETTLES_FAILED, &["charge_refused"]),
            failed_renewals: metrics.counter(names::SETTLES_FAILED, &["renewal"]),
            overload: metrics.counter(names::STORE_ERRORS, &["overload"]),
        };
        let secret = settings.key_secret.as_ref();
        let (lease, digests) = match *engine {
            Engine::Embedded(_) => (LEASE_IN_MEMORY, Digests::of_process(secret)),
            Engine::Redis(_) => (settings.lease, Digests::new(secret)),
        };
        Self {
            id: OWNERS.fetch_add(1, Ordering::Relaxed),
            engine,
            metrics,
            clock: Clock::system(),
            digests,
            deadline: settings.deadline,
            lease,
            scripts: settings.scripts,
            waiting_max: settings.waiting_max,
            counters,
            workers: Mutex::default(),
            drainers: AtomicUsize::new(0),
            idle: Notify::new(),
            owners: Mutex::default(),
        }
    }

    /// A number for this limiter and the scopes of one name, as what is prepared of a plan is known
    /// by.
    pub(super) fn owner(&self, scope: &str) -> u64 {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(owner) = owners.get(scope) {
            return *owner;
        }
        // Names come with reloads. What is prepared under a number that is forgotten is prepared
        // once more.
        if owners.len() >= SCOPES_MAX {
            owners.clear();
        }
        let owner = OWNERS.fetch_add(1, Ordering::Relaxed);
        owners.insert(scope.to_owned(), owner);
        owner
    }

    /// The Lua that decides `algorithm`.
    pub(super) fn program(&self, algorithm: &Algorithm) -> &'static Program {
        let of_operator = || self.scripts.find(algorithm.name());
        algorithm.program().or_else(of_operator).unwrap_or(&NO_SUCH_SCRIPT)
    }

    /// The numbers that `algorithm`'s program reads around `now_us`, in microseconds since 1970.
    pub(super) fn numbers(&self, algorithm: &Algorithm, now_us: i64) -> [i64; NUMBERS_MAX] {
        algorithm.numbers(Moment { lease: self.lease, now_us })
    }

    /// The shape of `algorithm`'s counters here.
    pub(super) fn shape(&self, algorithm: &Algorithm) -> Shape {
        algorithm.shape(match algorithm {
            Algorithm::Script(_) => {
                let digest = blake3::hash(self.program(algorithm).text.as_bytes());
                ShapeExtra::Script(script_digest_of(&digest.to_hex()))
            }
            _ if algorithm.holds() => ShapeExtra::Lease(self.lease),
            _ => ShapeExtra::Nothing,
        })
    }

    /// The state of one more thread.
    pub(super) fn new_worker(&self) -> Arc<Worker> {
        let worker = Arc::new(Worker::new(self.counters.dropped.clone()));
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        workers.retain(|worker| worker.strong_count() > 0);
        workers.push(Arc::downgrade(&worker));
        worker
    }

    /// Takes and settling calls under way on all threads.
    pub(super) fn pending(&self) -> usize {
        let workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        workers.iter().filter_map(Weak::upgrade).map(|worker| worker.pending()).sum()
    }

    /// Something was done: tells those who wait for the last of it.
    pub(super) fn done(&self) {
        if self.drainers.load(Ordering::SeqCst) > 0 {
            self.idle.notify_waiters();
        }
    }

    /// Waits until nothing is under way.
    pub(super) async fn drained(&self) {
        let _waiting = Waiting::begin(&self.drainers);
        loop {
            let mut idle = std::pin::pin!(self.idle.notified());
            // Registered before the look, so that what ends between the look and the wait is not
            // missed.
            idle.as_mut().enable();
            if self.pending() == 0 {
                return;
            }
            idle.await;
        }
    }
}

/// Counts a waiter for as long as it lives: a drain that is given up counts no longer.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
