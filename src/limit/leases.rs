//! What requests under way hold of `concurrency` limits: given back when the request lets go of it,
//! and renewed until then.
//!
//! On Redis one task a worker renews all that is held there, three times in a lease's length, so
//! that two renewals may fail. What is not renewed - its proxy died, its thread is gone - ends by
//! itself. In memory a lease ends with its request or with the process, and is not renewed.
//!
//! A place that is let go of while it is being renewed is given back when that call is over: the
//! other way round the renewal would take it again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::join_all;
use tokio::task::JoinHandle;

use super::queue::{Job, Worker};
use super::settle;
use super::shared::Shared;
use crate::engine::{Cell, Cells, Engine};

/// Renewals in a lease's length.
const RENEWALS: u32 = 3;
/// Renewing calls to one shard that one worker has under way at once, at most.
const RENEWING_MAX: usize = 1_024;

/// What one worker's requests hold.
#[derive(Debug, Default)]
pub(super) struct Leases(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    held: HashMap<u64, Lease>,
    next: u64,
    /// How many are let go of and still being renewed.
    released: usize,
    /// Whether there is a task that renews.
    renews: bool,
}

#[derive(Debug)]
struct Lease {
    cells: Cells,
    taken_at_us: u64,
    /// A call that renews it is under way.
    renewing: bool,
    /// It was let go of while that call was.
    released: bool,
}

impl Leases {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Each change is whole before the lock is left.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Places that are to be given back once they are renewed: whoever drains waits for them.
    pub(super) fn released(&self) -> usize {
        self.lock().released
    }

    /// Lets go of a place; `None` where that must wait until it is renewed.
    fn release(&self, id: u64) -> Option<Lease> {
        let mut inner = self.lock();
        if let Some(lease) = inner.held.get_mut(&id).filter(|lease| lease.renewing) {
            lease.released = true;
            inner.released += 1;
            return None;
        }
        inner.held.remove(&id)
    }

    /// A renewal is over: what was let go of meanwhile.
    fn renewed(&self, id: u64) -> Option<Lease> {
        let mut inner = self.lock();
        let lease = inner.held.get_mut(&id)?;
        lease.renewing = false;
        if lease.released { inner.held.remove(&id) } else { None }
    }

    /// What is held now, by the store's shards; without any there is nothing left to renew, and the
    /// task that asks has ended.
    fn to_renew(&self, engine: &Engine) -> Option<HashMap<usize, Vec<u64>>> {
        let mut inner = self.lock();
        inner.renews = !inner.held.is_empty();
        let mut shards: HashMap<usize, Vec<u64>> = HashMap::new();
        for (id, lease) in &inner.held {
            let shard = lease.cells.first().map_or(0, |cell| engine.shard_of(&cell.key));
            shards.entry(shard).or_default().push(*id);
        }
        inner.renews.then_some(shards)
    }
}

/// A request's place in a limit. Dropping it gives it back.
#[derive(Debug)]
pub(super) struct Held {
    shared: Arc<Shared>,
    worker: Arc<Worker>,
    id: u64,
}

impl Held {
    /// Holds what `cell` took at `taken_at_us`.
    pub(super) fn new(
        shared: &Arc<Shared>,
        worker: &Arc<Worker>,
        cell: Cell,
        taken_at_us: u64,
    ) -> Self {
        let mut inner = worker.leases.lock();
        let id = inner.next;
        inner.next += 1;
        inner.held.insert(
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
            runtime.filter(|_| matches!(*shared.engine, Engine::Redis(_)) && !inner.renews);
        inner.renews |= runtime.is_some();
        // Before the task is made: a runtime that is going down drops it at once.
        drop(inner);
        if let Some(runtime) = runtime {
            drop(runtime.spawn(renew(Arc::clone(shared), Renewing(Some(Arc::clone(worker))))));
        }
        Self { shared: Arc::clone(shared), worker: Arc::clone(worker), id }
    }
}

impl Drop for Held {
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

/// The task that renews; when it is torn down with its runtime, another may begin.
struct Renewing(Option<Arc<Worker>>);

impl Drop for Renewing {
    fn drop(&mut self) {
        if let Some(worker) = &self.0 {
            worker.leases.lock().renews = false;
        }
    }
}

/// A call that renews one lease.
struct Renewal {
    shared: Arc<Shared>,
    worker: Arc<Worker>,
    id: u64,
}

impl Renewal {
    /// `None`: it has been let go of.
    fn begin(shared: &Arc<Shared>, worker: &Arc<Worker>, id: u64) -> Option<(Self, Cells)> {
        let mut inner = worker.leases.lock();
        let lease = inner.held.get_mut(&id)?;
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
            // Only now that it is queued: a drain that looks in between sees it twice, and never
            // misses it.
            self.worker.leases.lock().released -= 1;
        }
    }
}

/// Renews, again and again, until nothing is held. Each shard has rounds of its own: one that does
/// not answer holds up no other's, and is left out while its last round lasts.
async fn renew(shared: Arc<Shared>, mut task: Renewing) {
    let mut rounds: HashMap<usize, JoinHandle<()>> = HashMap::new();
    while let Some(worker) = task.0.clone() {
        tokio::time::sleep(shared.lease / RENEWALS).await;
        let Some(shards) = worker.leases.to_renew(&shared.engine) else {
            // Another task may have begun already.
            task.0 = None;
            return;
        };
        rounds.retain(|_, round| !round.is_finished());
        for (shard, held) in shards {
            rounds.entry(shard).or_insert_with(|| {
                tokio::spawn(renew_all(Arc::clone(&shared), Arc::clone(&worker), held))
            });
        }
    }
}

/// One round of one shard.
async fn renew_all(shared: Arc<Shared>, worker: Arc<Worker>, held: Vec<u64>) {
    let share = held.len().div_ceil(RENEWING_MAX).max(1);
    let calls = held.chunks(share).map(async |share| {
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
