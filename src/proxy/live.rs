//! The snapshot that serves now, and each worker's own reference to it. Knows nothing of what a
//! snapshot does.
//!
//! A request keeps the snapshot it began with until its headers are out. If all workers counted
//! those references on one `Arc`, its cache line would travel between cores on every request. So
//! each worker holds the snapshot once and counts its requests on an `Arc` of its own. A worker
//! looks for a new snapshot at each request: an idle one keeps the old snapshot, at most one, until
//! then.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::access::{self, Access as _};

use super::house::{House, Tail};

/// Each snapshot of any [`Live`] gets the next number.
static STAMPS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static KEPT: RefCell<Option<Arc<Local>>> = const { RefCell::new(None) };
}

/// The snapshot that serves now. Replaced on reload; a request keeps the one it began with until
/// its headers are out.
pub struct Live {
    source: SnapshotSource,
    /// Changes with the snapshot. The hot path only reads it, so its cache line stays shared.
    stamp: AtomicU64,
    /// The grace of a shutdown is over.
    cut: Arc<AtomicBool>,
}

/// Where the snapshot of now is found: it is replaced together with whatever else a reload changes.
pub type SnapshotSource = Arc<dyn access::DynAccess<Arc<House>> + Send + Sync>;

/// One worker's reference to a snapshot, counted by this worker's requests alone.
pub(super) struct Local {
    stamp: u64,
    house: Arc<House>,
    /// What streams keep of each route when the snapshot is gone, in the order of the routes.
    tails: Vec<Arc<Tail>>,
    nowhere: Arc<Tail>,
}

impl Live {
    /// Serves the snapshot of `source`.
    #[must_use]
    pub fn new(source: SnapshotSource) -> Arc<Self> {
        Arc::new(Self { source, stamp: AtomicU64::new(next_stamp()), cut: Arc::default() })
    }

    /// From now on, a request that ends before its reply does is cut by the shutdown and not given
    /// up by its client. To be said before connections are closed.
    pub fn cut(&self) {
        self.cut.store(true, Ordering::Relaxed);
    }

    /// The source has a new snapshot: from now on, new requests see it.
    pub fn renew(&self) {
        // After the snapshot: a worker that sees the new stamp finds the new snapshot, or a newer
        // one.
        self.stamp.store(next_stamp(), Ordering::Release);
    }

    /// This worker's reference to the snapshot of now.
    pub(super) fn load(&self) -> Arc<Local> {
        let stamp = self.stamp.load(Ordering::Acquire);
        let kept = KEPT
            .with_borrow(|kept| kept.as_ref().filter(|local| local.stamp == stamp).map(Arc::clone));
        kept.unwrap_or_else(|| self.reload(stamp))
    }

    #[cold]
    fn reload(&self, stamp: u64) -> Arc<Local> {
        let local = Arc::new(Local::new(stamp, Arc::clone(&*self.source.load()), &self.cut));
        // The old one is dropped outside the borrow: a snapshot may own anything.
        let old = KEPT.with_borrow_mut(|kept| kept.replace(Arc::clone(&local)));
        drop(old);
        local
    }
}

impl Local {
    pub(super) fn new(stamp: u64, house: Arc<House>, cut: &Arc<AtomicBool>) -> Self {
        let tails = house.tails().map(|tail| tail.of_worker(cut)).collect();
        let nowhere = house.nowhere().of_worker(cut);
        Self { stamp, house, tails, nowhere }
    }

    /// The house.
    pub(super) fn house(&self) -> &House {
        &self.house
    }

    /// Of route number `index`.
    pub(super) fn tail(&self, index: usize) -> Option<&Arc<Tail>> {
        self.tails.get(index)
    }

    /// Of requests that no route takes.
    pub(super) fn nowhere(&self) -> &Arc<Tail> {
        &self.nowhere
    }
}

fn next_stamp() -> u64 {
    STAMPS.fetch_add(1, Ordering::Relaxed)
}

impl fmt::Debug for Live {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Live").field("stamp", &self.stamp).finish_non_exhaustive()
    }
}
