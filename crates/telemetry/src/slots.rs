//! Numbers that cost a load and a store: each worker has a slot of its own, on its own cache line,
//! and a scrape sums the slots. Threads that are not workers share one more slot and add to it
//! atomically.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum number of workers with a slot of their own; further threads share one, which costs speed
/// but no counts.
pub const WORKERS_MAX: usize = 64;

thread_local! {
    static WORKER: Cell<usize> = const { Cell::new(NO_WORKER) };
}

const NO_WORKER: usize = usize::MAX;

/// Makes the calling thread the worker `index`, counted from 0, of the metrics that it counts in.
/// No two threads may be the same worker of the same metrics at a time: they would overwrite each
/// other's counts.
pub fn enter_worker(index: usize) {
    WORKER.with(|worker| worker.set(index));
}

/// The calling thread's index among the workers. `None` if it is not a worker.
#[must_use]
#[inline]
pub fn worker() -> Option<usize> {
    Some(WORKER.with(Cell::get)).filter(|index| *index != NO_WORKER)
}

/// The calling thread's slot, and whether this thread alone writes to it. The last slot is shared.
#[inline]
pub(super) fn slot<T>(slots: &[T]) -> Option<(&T, bool)> {
    let (shared, own) = slots.split_last()?;
    own.get(WORKER.with(Cell::get)).map_or(Some((shared, false)), |slot| Some((slot, true)))
}

/// A slot for each of `workers`, and the shared one.
pub(super) fn slots<T: Default>(workers: usize) -> Arc<[T]> {
    (0..=workers.clamp(1, WORKERS_MAX)).map(|_| T::default()).collect()
}

/// Adds to a number; `alone` says that only this thread writes it.
#[inline]
pub(super) fn add(number: &AtomicU64, n: u64, alone: bool) {
    if alone {
        number.store(number.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    } else {
        number.fetch_add(n, Ordering::Relaxed);
    }
}
