//! The leases of one worker's requests, and the permits that a take may have left behind. Knows
//! what is to be done with them (`leases` does it), and no call.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::engine::{Cell, Cells, Engine};

/// Renewals per lease length.
pub(super) const RENEWALS: u32 = 3;
/// Maximum number of takes with an unknown outcome whose permits one worker gives back. Those of
/// further ones end by themselves.
const UNKNOWN_MAX: usize = 4_096;

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

/// One lease.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) cells: Cells,
    /// The store's time, in microseconds since 1970.
    pub(super) taken_at_us: u64,
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

    /// Adds what `cell` took at `taken_at_us`. Returns its id, and whether the caller must start
    /// the renewal task; never so unless it `renews`.
    pub(super) fn add(&self, cell: Cell, taken_at_us: u64, renews: bool) -> (u64, bool) {
        let mut inner = self.lock();
        let id = inner.next_id;
        inner.next_id += 1;
        let cells = Cells::from_iter([cell]);
        inner.leases.insert(id, Lease { cells, taken_at_us, renewing: false, released: false });
        // The task is spawned without the lock: a runtime that is shutting down drops it at once,
        // which locks again.
        let starts = renews && !inner.task_runs;
        inner.task_runs |= starts;
        (id, starts)
    }

    /// Removes a lease, to be given back. `None` if that must wait until its renewal is over.
    pub(super) fn release(&self, id: u64) -> Option<Lease> {
        let mut inner = self.lock();
        if let Some(lease) = inner.leases.get_mut(&id).filter(|lease| lease.renewing) {
            lease.released = true;
            inner.pending_releases += 1;
            return None;
        }
        inner.leases.remove(&id)
    }

    /// The give-back of a lease that was released during its renewal is queued.
    pub(super) fn end_release(&self) {
        self.lock().pending_releases -= 1;
    }

    /// Begins a renewal of these cells. `None` if the lease was released, or is being renewed: its
    /// shard may be another one since.
    pub(super) fn begin_renewal(&self, id: u64) -> Option<Cells> {
        let mut inner = self.lock();
        let lease = inner.leases.get_mut(&id).filter(|lease| !lease.renewing)?;
        lease.renewing = true;
        Some(lease.cells.clone())
    }

    /// Ends a renewal. Returns the lease if it was released meanwhile.
    pub(super) fn end_renewal(&self, id: u64) -> Option<Lease> {
        let mut inner = self.lock();
        let lease = inner.leases.get_mut(&id)?;
        lease.renewing = false;
        if lease.released { inner.leases.remove(&id) } else { None }
    }

    /// The renewal task has ended, so another may start.
    pub(super) fn end_renewal_task(&self) {
        self.lock().task_runs = false;
    }

    /// Adds permits that may have been taken and end by themselves at `until`. Returns whether the
    /// caller must start the task that gives them back.
    pub(super) fn add_unknown(&self, permits: Cells, until: Instant) -> bool {
        let mut inner = self.lock();
        if permits.is_empty() || inner.unknown.len() >= UNKNOWN_MAX {
            return false;
        }
        inner.unknown.push_back((permits, until));
        !std::mem::replace(&mut inner.unknown_runs, true)
    }

    /// Permits that could not be given back yet.
    pub(super) fn put_back_unknown(&self, permits: Cells, until: Instant) {
        self.lock().unknown.push_back((permits, until));
    }

    /// The task that gives permits back has ended, so another may start.
    pub(super) fn end_unknown_task(&self) {
        self.lock().unknown_runs = false;
    }

    /// Takes the permits that may have been taken. If there are none, the calling task counts as
    /// ended.
    pub(super) fn take_unknown(&self) -> VecDeque<(Cells, Instant)> {
        let mut inner = self.lock();
        let due = std::mem::take(&mut inner.unknown);
        inner.unknown_runs = !due.is_empty();
        due
    }

    /// The ids of all leases, by the store's shards. `None` if there are none: then the calling
    /// task counts as ended.
    pub(super) fn to_renew(&self, engine: &Engine) -> Option<HashMap<usize, Vec<u64>>> {
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
