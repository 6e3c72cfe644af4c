//! Leases: the `concurrency` permits that requests hold. Each is renewed until its request drops
//! the guard, and then given back.
//!
//! On Redis one task per worker renews all leases three times per lease length, so that one renewal
//! may fail. A lease that is no longer renewed, because its proxy died or its thread
//! ended, expires. In memory a lease ends with its request or with the process, and is not renewed.
//!
//! A lease that is dropped during its renewal is given back after that call. In the opposite order
//! the renewal would take the permit again.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::join_all;
use tokio::task::JoinHandle;

use super::lease_table::{Lease, RENEWALS};
use super::leased::LeasedUnits;
use super::queue::{Job, Worker};
use super::settle;
use super::shared::Shared;
use crate::engine::{Cell, Cells, Engine};

/// Maximum number of renewals that one worker has in flight to one shard.
const RENEWING_MAX: usize = 1_024;

/// A request's permits in one `concurrency` limit. Gives them back when dropped.
#[derive(Debug)]
pub(super) struct LeaseGuard {
    shared: Arc<Shared>,
    worker: Arc<Worker>,
    id: u64,
    /// Where its permit was taken in advance, so that it returns there.
    place: Option<LeasedUnits>,
}

impl LeaseGuard {
    /// Holds what `cell` took at `taken_at_us` (the store's time, microseconds since 1970).
    pub(super) fn new(
        shared: &Arc<Shared>,
        worker: &Arc<Worker>,
        cell: Cell,
        taken_at_us: u64,
    ) -> Self {
        Self::begin(shared, worker, (cell, taken_at_us), None)
    }

    /// Holds a permit that was taken in advance.
    pub(super) fn of_place(shared: &Arc<Shared>, place: LeasedUnits) -> Self {
        let (worker, cell) = (Arc::clone(place.worker()), place.cell());
        Self::begin(shared, &worker, (cell, place.taken_at_us()), Some(place))
    }

    fn begin(
        shared: &Arc<Shared>,
        worker: &Arc<Worker>,
        (cell, taken_at_us): (Cell, u64),
        place: Option<LeasedUnits>,
    ) -> Self {
        let runtime = tokio::runtime::Handle::try_current().ok();
        let runtime = runtime.filter(|_| matches!(*shared.engine, Engine::Redis(_)));
        let (id, task) = worker.leases.add(cell, taken_at_us, runtime.is_some());
        if let Some(runtime) = runtime.filter(|_| task) {
            drop(runtime.spawn(renew(Arc::clone(shared), RenewalTask(Some(Arc::clone(worker))))));
        }
        Self { shared: Arc::clone(shared), worker: Arc::clone(worker), id, place }
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        let lease = self.worker.leases.release(self.id);
        // If a renewal is in flight, it goes to the store once that is over.
        if lease.is_some() && self.place.as_ref().is_some_and(LeasedUnits::put_back) {
            return;
        }
        give_back(&self.shared, &self.worker, lease);
    }
}

fn give_back(shared: &Arc<Shared>, worker: &Arc<Worker>, lease: Option<Lease>) {
    if let Some(Lease { cells, taken_at_us, .. }) = lease {
        settle::run(shared, worker, Job::GiveBack { cells, taken_at_us });
    }
}

/// Marks the renewal task as ended when dropped, so that another may start: also when the runtime
/// drops the task.
struct RenewalTask(Option<Arc<Worker>>);

impl Drop for RenewalTask {
    fn drop(&mut self) {
        if let Some(worker) = &self.0 {
            worker.leases.end_renewal_task();
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
        let cells = worker.leases.begin_renewal(id)?;
        Some((Self { shared: Arc::clone(shared), worker: Arc::clone(worker), id }, cells))
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        let lease = self.worker.leases.end_renewal(self.id);
        if lease.is_some() {
            give_back(&self.shared, &self.worker, lease);
            // Only after it is queued: in between, a drain counts it twice, but never misses it.
            self.worker.leases.end_release();
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
