//! Leases: the `concurrency` permits that requests hold. Each is renewed until its request drops
//! the guard, and then given back.
//!
//! On Redis one task per worker renews all leases three times per lease length, so that two
//! renewals may fail. A lease that is no longer renewed, because its proxy died or its thread
//! ended, expires. In memory a lease ends with its request or with the process, and is not renewed.
//!
//! A lease that is dropped during its renewal is given back after that call. In the opposite order
//! the renewal would take the permit again.
//!
//! A take whose outcome is unknown may have taken permits that no request holds. They were named
//! before the call, so they are given back by name, again and again until the store has answered or
//! they would have ended anyway.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::task::JoinHandle;

use super::queue::{Job, Worker};
use super::settle;
use super::shared::Shared;
use crate::clock::monotonic;
use crate::engine::{Cell, Cells, Engine, Kind};

/// Renewals per lease length.
const RENEWALS: u32 = 3;
/// Maximum number of renewals that one worker has in flight to one shard.
const RENEWING_MAX: usize = 1_024;

/// Maximum number of takes with an unknown outcome whose permits one worker gives back. Those of
/// further ones end by themselves.
const UNKNOWN_MAX: usize = 4_096;
/// Time between two attempts to give them back.
const UNKNOWN_EVERY: Duration = Duration::from_millis(100);

/// The leases of one worker's requests.
#[derive(Debug, Default)]
pub(super) struct Leases(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    leases: HashMap<u64, Lease>,
    next_id: u64,
    /// How many were released during a renewal that is still in flight.
    pending_releases: usize,
    /// Whether the renewal task is running.
    task_runs: bool,
    /// Permits that may have been taken, and when they end by themselves.
    unknown: VecDeque<(Cells, Instant)>,
    /// Whether the task that gives them back is running.
    unknown_runs: bool,
}

#[derive(Debug)]
struct Lease {
    cells: Cells,
    taken_at_us: u64,
    /// A renewal of it is in flight.
    renewing: bool,
    /// It was released during that renewal.
    released: bool,
}

impl Leases {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change is complete before the lock is released.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leases that will be given back after their renewal. A drain waits for them.
    pub(super) fn pending_releases(&self) -> usize {
        self.lock().pending_releases
    }

    /// Removes a lease, to be given back. `None` if that must wait until its renewal is over.
    fn release(&self, id: u64) -> Option<Lease> {
        let mut inner = self.lock();
        if let Some(lease) = inner.leases.get_mut(&id).filter(|lease| lease.renewing) {
            lease.released = true;
            inner.pending_releases += 1;
            return None;
        }
        inner.leases.remove(&id)
    }

    /// Ends a renewal. Returns the lease if it was released meanwhile.
    fn renewed(&self, id: u64) -> Option<Lease> {
        let mut inner = self.lock();
        let lease = inner.leases.get_mut(&id)?;
        lease.renewing = false;
        if lease.released { inner.leases.remove(&id) } else { None }
    }

    /// Takes the permits that may have been taken. If there are none, the calling task counts as
    /// ended.
    fn unknown(&self) -> VecDeque<(Cells, Instant)> {
        let mut inner = self.lock();
        let due = std::mem::take(&mut inner.unknown);
        inner.unknown_runs = !due.is_empty();
        due
    }

    /// The ids of all leases, by the store's shards. `None` if there are none: then the calling
    /// task counts as ended.
    fn to_renew(&self, engine: &Engine) -> Option<HashMap<usize, Vec<u64>>> {
        let mut inner = self.lock();
        inner.task_runs = !inner.leases.is_empty();
        let mut shards: HashMap<usize, Vec<u64>> = HashMap::new();
        for (id, lease) in &inner.leases {
            let shard = lease.cells.first().map_or(0, |cell| engine.shard_of(&cell.key));
            shards.entry(shard).or_default().push(*id);
        }
        inner.task_runs.then_some(shards)
    }
}

/// A request's permits in one `concurrency` limit. Gives them back when dropped.
#[derive(Debug)]
pub(super) struct LeaseGuard {
    shared: Arc<Shared>,
    worker: Arc<Worker>,
    id: u64,
}

impl LeaseGuard {
    /// Holds what `cell` took at `taken_at_us` (the store's time, microseconds since 1970).
    pub(super) fn new(
        shared: &Arc<Shared>,
        worker: &Arc<Worker>,
        cell: Cell,
        taken_at_us: u64,
    ) -> Self {
        let mut inner = worker.leases.lock();
        let id = inner.next_id;
        inner.next_id += 1;
        inner.leases.insert(
            id,
            Lease {
                cells: Cells::from_iter([cell]),
                taken_at_us,
                renewing: false,
                released: false,
            },
        );
        let runtime = tokio::runtime::Handle::try_current().ok();
        let runtime =
            runtime.filter(|_| matches!(*shared.engine, Engine::Redis(_)) && !inner.task_runs);
        inner.task_runs |= runtime.is_some();
        // Unlock before the spawn: a runtime that is shutting down drops the task at once, which
        // locks again.
        drop(inner);
        if let Some(runtime) = runtime {
            drop(runtime.spawn(renew(Arc::clone(shared), RenewalTask(Some(Arc::clone(worker))))));
        }
        Self { shared: Arc::clone(shared), worker: Arc::clone(worker), id }
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        let lease = self.worker.leases.release(self.id);
        give_back(&self.shared, &self.worker, lease);
    }
}

fn give_back(shared: &Arc<Shared>, worker: &Arc<Worker>, lease: Option<Lease>) {
    if let Some(Lease { cells, taken_at_us, .. }) = lease {
        settle::run(shared, worker, Job::GiveBack { cells, taken_at_us });
    }
}

/// Gives back the permits among `cells`, of which a take may have taken some.
pub(super) fn give_back_unknown(shared: &Arc<Shared>, worker: &Arc<Worker>, cells: &Cells) {
    let permits: Cells =
        cells.iter().filter(|cell| cell.program.kind == Kind::Leases).cloned().collect();
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    let mut inner = worker.leases.lock();
    if permits.is_empty() || inner.unknown.len() >= UNKNOWN_MAX {
        return;
    }
    inner.unknown.push_back((permits, monotonic() + shared.lease));
    let runs = std::mem::replace(&mut inner.unknown_runs, true);
    drop(inner);
    if !runs {
        let task = UnknownTask(Some(Arc::clone(worker)));
        runtime.spawn(give_back_all_unknown(Arc::clone(shared), task));
    }
}

/// Marks the task that gives permits back as ended when dropped, even if the runtime drops it.
struct UnknownTask(Option<Arc<Worker>>);

impl Drop for UnknownTask {
    fn drop(&mut self) {
        if let Some(worker) = &self.0 {
            worker.leases.lock().unknown_runs = false;
        }
    }
}

async fn give_back_all_unknown(shared: Arc<Shared>, mut task: UnknownTask) {
    while let Some(worker) = task.0.clone() {
        let due = worker.leases.unknown();
        if due.is_empty() {
            // Another task may have started already: don't mark that one as ended.
            task.0 = None;
            return;
        }
        let mut away: Vec<usize> = Vec::new();
        for (cells, until) in due {
            let shard = cells.first().map_or(0, |cell| shared.engine.shard_of(&cell.key));
            let given = !away.contains(&shard) && shared.engine.give_back(&cells, 0).await.is_ok();
            if !given && monotonic() < until {
                away.push(shard);
                worker.leases.lock().unknown.push_back((cells, until));
            }
        }
        if !away.is_empty() {
            tokio::time::sleep(UNKNOWN_EVERY).await;
        }
    }
}

/// Marks the renewal task as ended when dropped, so that another may start: also when the runtime
/// drops the task.
struct RenewalTask(Option<Arc<Worker>>);

impl Drop for RenewalTask {
    fn drop(&mut self) {
        if let Some(worker) = &self.0 {
            worker.leases.lock().task_runs = false;
        }
    }
}

/// The renewal of one lease, in flight.
struct Renewal {
    shared: Arc<Shared>,
    worker: Arc<Worker>,
    id: u64,
}

impl Renewal {
    /// `None` if the lease was released.
    fn begin(shared: &Arc<Shared>, worker: &Arc<Worker>, id: u64) -> Option<(Self, Cells)> {
        let mut inner = worker.leases.lock();
        let lease = inner.leases.get_mut(&id)?;
        lease.renewing = true;
        Some((
            Self { shared: Arc::clone(shared), worker: Arc::clone(worker), id },
            lease.cells.clone(),
        ))
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        let lease = self.worker.leases.renewed(self.id);
        if lease.is_some() {
            give_back(&self.shared, &self.worker, lease);
            // Only after it is queued: in between, a drain counts it twice, but never misses it.
            self.worker.leases.lock().pending_releases -= 1;
        }
    }
}

/// Renews all leases periodically until there are none. Each shard has its own rounds: a shard that
/// does not answer delays no other, and is skipped until its last round is over.
async fn renew(shared: Arc<Shared>, mut task: RenewalTask) {
    let mut rounds: HashMap<usize, JoinHandle<()>> = HashMap::new();
    while let Some(worker) = task.0.clone() {
        tokio::time::sleep(shared.lease / RENEWALS).await;
        let Some(shards) = worker.leases.to_renew(&shared.engine) else {
            // Another task may have started already: don't mark that one as ended.
            task.0 = None;
            return;
        };
        rounds.retain(|_, round| !round.is_finished());
        for (shard, ids) in shards {
            rounds.entry(shard).or_insert_with(|| {
                tokio::spawn(renew_all(Arc::clone(&shared), Arc::clone(&worker), ids))
            });
        }
    }
}

/// One round of renewals for one shard.
async fn renew_all(shared: Arc<Shared>, worker: Arc<Worker>, ids: Vec<u64>) {
    let share = ids.len().div_ceil(RENEWING_MAX).max(1);
    let calls = ids.chunks(share).map(async |share| {
        for id in share {
            let Some((renewal, cells)) = Renewal::begin(&shared, &worker, *id) else { continue };
            if shared.engine.renew(&cells).await.is_err() {
                shared.counters.failed_renewals.inc();
            }
            drop(renewal);
        }
    });
    join_all(calls).await;
}
