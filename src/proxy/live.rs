//! The house that serves now, and each worker's own hold on it. Knows nothing of what a house does.
//!
//! A request keeps the house it began with until its headers are out. If all workers counted those
//! holds on one `Arc`, its cache line would travel between cores on every request; so each worker
//! holds the house once and counts its requests on an `Arc` of its own. A worker looks for a new
//! house at each request: an idle one keeps the old house, at most one, until its next.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;

use super::house::{House, Tail};

/// Each house that is put into any [`Live`] gets the next number.
static STAMPS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static KEPT: RefCell<Option<Arc<Local>>> = const { RefCell::new(None) };
}

/// The house that serves now. Swapped on reload; a request keeps the one it began with until its
/// headers are out.
pub struct Live {
    house: ArcSwap<House>,
    /// Changes with the house. Only read on the hot path, so its cache line is shared without a
    /// fight.
    stamp: AtomicU64,
    /// The grace of a shutdown is over.
    cut: Arc<AtomicBool>,
}

/// One worker's hold on a house: counted by this worker's requests alone.
pub(super) struct Local {
    stamp: u64,
    house: Arc<House>,
    /// What streams keep of each route when the house is gone, in the order of the routes.
    tails: Vec<Arc<Tail>>,
    nowhere: Arc<Tail>,
}

impl Live {
    /// Begins with `house`.
    #[must_use]
    pub fn new(house: House) -> Arc<Self> {
        let (house, stamp) = (ArcSwap::from_pointee(house), AtomicU64::new(next_stamp()));
        Arc::new(Self { house, stamp, cut: Arc::default() })
    }

    /// From now on, a request that ends before its reply does is cut by the shutdown and not given
    /// up by its client. To be said before connections are closed.
    pub fn cut(&self) {
        self.cut.store(true, Ordering::Relaxed);
    }

    /// From now on, new requests see `house`.
    pub fn swap(&self, house: House) {
        self.house.store(Arc::new(house));
        // After the house: whoever sees the new stamp finds the new house, or a newer one.
        self.stamp.store(next_stamp(), Ordering::Release);
    }

    /// This worker's hold on the house of now.
    pub(super) fn load(&self) -> Arc<Local> {
        let stamp = self.stamp.load(Ordering::Acquire);
        let kept = KEPT
            .with_borrow(|kept| kept.as_ref().filter(|local| local.stamp == stamp).map(Arc::clone));
        kept.unwrap_or_else(|| self.renew(stamp))
    }

    #[cold]
    fn renew(&self, stamp: u64) -> Arc<Local> {
        let local = Arc::new(Local::new(stamp, self.house.load_full(), &self.cut));
        // The old one is dropped outside the borrow: what a house owns may be anything.
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
