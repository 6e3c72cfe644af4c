//! How many connections to upstreams this process may have open, over all upstreams and workers.
//! Touched when a connection opens or closes, and by no request. Knows nothing of what the
//! connections do.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The connections to upstreams that file descriptors are reserved for. Clones share it.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    open: OpenCount,
    max: AtomicUsize,
    per_worker: AtomicUsize,
}

/// The count of open connections, on a cache line of its own, since requests read the fields next
/// to it.
#[derive(Debug)]
#[repr(align(128))]
struct OpenCount(AtomicUsize);

/// One connection's share of the budget. Returned on drop.
#[derive(Debug)]
pub(super) struct ConnectionPermit(Arc<Inner>);

impl Budget {
    /// A budget without a limit.
    #[must_use]
    pub fn unlimited() -> Self {
        let unlimited = || AtomicUsize::new(usize::MAX);
        Self(Arc::new(Inner {
            open: OpenCount(AtomicUsize::new(0)),
            max: unlimited(),
            per_worker: unlimited(),
        }))
    }

    /// Sets the limit to `max` for all of `workers`. Open connections stay open.
    pub fn set(&self, max: usize, workers: usize) {
        self.0.max.store(max, Ordering::Relaxed);
        self.0.per_worker.store((max / workers.max(1)).max(1), Ordering::Relaxed);
    }

    /// Takes a permit for one connection, if one is left.
    pub(super) fn open(&self) -> Option<ConnectionPermit> {
        let permit = ConnectionPermit(Arc::clone(&self.0));
        let open = self.0.open.0.fetch_add(1, Ordering::Relaxed);
        // If none is left, dropping the permit subtracts it again.
        (open < self.0.max.load(Ordering::Relaxed)).then_some(permit)
    }

    /// Whether more than half is in use. Idle connections are then not kept, since another worker
    /// may need their permits.
    pub(super) fn is_tight(&self) -> bool {
        self.0.open.0.load(Ordering::Relaxed) > self.0.max.load(Ordering::Relaxed) / 2
    }

    /// One worker's part of it, if all need the same.
    pub(super) fn per_worker(&self) -> usize {
        self.0.per_worker.load(Ordering::Relaxed)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.open.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_taken_and_given_back() {
        let budget = Budget::unlimited();
        assert!(budget.open().is_some() && !budget.is_tight());
        budget.set(4, 2);
        let held: Vec<_> = (0..4).map(|_| budget.open().unwrap()).collect();
        assert!(budget.open().is_none() && budget.open().is_none() && budget.is_tight());
        drop(held);
        assert!(budget.open().is_some() && !budget.is_tight());
        assert_eq!(budget.per_worker(), 2);
    }
}
