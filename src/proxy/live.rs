//! The current snapshot, and each worker's own reference to it. Knows nothing of what a snapshot
//! does.
//!
//! A request keeps the snapshot it began with until its headers are sent. If all workers counted
//! these references on one `Arc`, its cache line would move between cores on every request. So each
//! worker holds the snapshot once, and counts its requests on an `Arc` of its own. A worker checks
//! for a new snapshot at each request. An idle worker keeps at most one old snapshot until its next
//! request.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::access::{self, Access as _};

use crate::otlp::{Sampling, Tracer};
use crate::proxy::decisions::state::CallState;
use crate::proxy::handle::RouteHandle;
use crate::proxy::record::remembered::Insight;
use crate::proxy::snapshot::Snapshot;

/// Each snapshot stored in any [`Live`] gets the next number.
static STAMPS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static CACHED: RefCell<Option<Arc<LocalSnapshot>>> = const { RefCell::new(None) };
}

/// The snapshot that serves now. Replaced on reload; a request keeps the one it began with until
/// its headers are out.
pub struct Live {
    source: SnapshotSource,
    /// Changes with the snapshot. The hot path only reads it, so its cache line stays shared.
    stamp: AtomicU64,
    /// The grace period of a shutdown is over.
    cut: Arc<AtomicBool>,
    observers: Observers,
    calls: CallState,
}

/// What requests leave behind for the operator.
#[derive(Clone, Debug)]
pub struct Observers {
    /// What is remembered of them.
    pub insight: Insight,
    /// Where their traces go.
    pub tracer: Tracer,
}

impl Observers {
    /// Requests leave nothing behind.
    #[must_use]
    pub fn none() -> Self {
        Self { insight: Insight::off(), tracer: Tracer::off() }
    }
}

/// Where the snapshot of now is found: it is replaced together with whatever else a reload changes.
pub type SnapshotSource = Arc<dyn access::DynAccess<Arc<Snapshot>> + Send + Sync>;

/// One worker's reference to a snapshot, counted by this worker's requests alone.
pub(super) struct LocalSnapshot {
    stamp: u64,
    snapshot: Arc<Snapshot>,
    /// What streams keep of each route when the snapshot is gone, in the order of the routes.
    handles: Vec<Arc<RouteHandle>>,
    no_route: Arc<RouteHandle>,
    sampling: Option<Sampling>,
}

impl Live {
    /// Serves the snapshot of `source`, and observes nothing.
    #[must_use]
    pub fn new(source: SnapshotSource) -> Arc<Self> {
        Self::observed(source, Observers::none())
    }

    /// Serves the snapshot of `source`. What requests leave behind goes to `observers`.
    #[must_use]
    pub fn observed(source: SnapshotSource, observers: Observers) -> Arc<Self> {
        let (stamp, cut) = (AtomicU64::new(next_stamp()), Arc::default());
        Arc::new(Self { source, stamp, cut, observers, calls: CallState::default() })
    }

    /// This process is about to end: who asks for decisions, and for its health, is told so, and
    /// can go elsewhere.
    pub fn announce_shutdown(&self) {
        self.calls.leave();
    }

    /// Makes requests that end before their replies do count as cut by the shutdown, not as given
    /// up by its client. Call it before closing connections.
    pub fn cut(&self) {
        self.cut.store(true, Ordering::Relaxed);
        self.calls.held.end_all();
    }

    /// Whether [`cut`](Self::cut) was called.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }

    /// Ends those decisions whose end this worker was to be told: it is told nothing any more.
    pub fn end_held(&self) {
        self.calls.held.end_of_worker();
    }

    /// Ends this worker's streams of quotas, which would go on for ever: their callers come back to
    /// another.
    pub fn end_streams(&self) {
        self.calls.streams.end_of_worker();
    }

    /// What calls for decisions leave behind.
    pub(super) fn calls(&self) -> &CallState {
        &self.calls
    }

    /// The source has a new snapshot: from now on, new requests see it.
    pub fn renew(&self) {
        // After the snapshot: a worker that sees the new stamp finds the new snapshot, or a newer
        // one.
        self.stamp.store(next_stamp(), Ordering::Release);
    }

    /// This worker's reference to the snapshot of now.
    pub(super) fn load(&self) -> Arc<LocalSnapshot> {
        let stamp = self.stamp.load(Ordering::Acquire);
        let cached = CACHED.with_borrow(|cached| {
            cached.as_ref().filter(|local| local.stamp == stamp).map(Arc::clone)
        });
        cached.unwrap_or_else(|| self.reload(stamp))
    }

    #[cold]
    fn reload(&self, stamp: u64) -> Arc<LocalSnapshot> {
        let snapshot = Arc::clone(&*self.source.load());
        let local = Arc::new(LocalSnapshot::new(stamp, snapshot, &self.cut, &self.observers));
        // The old one is dropped outside the borrow: a snapshot may own anything.
        let old = CACHED.with_borrow_mut(|cached| cached.replace(Arc::clone(&local)));
        drop(old);
        local
    }
}

impl LocalSnapshot {
    pub(super) fn new(
        stamp: u64,
        snapshot: Arc<Snapshot>,
        cut: &Arc<AtomicBool>,
        observers: &Observers,
    ) -> Self {
        let observers = (&observers.insight, &observers.tracer);
        let handles = snapshot.handles().map(|handle| handle.of_worker(cut, observers)).collect();
        let no_route = snapshot.no_route().of_worker(cut, observers);
        Self { stamp, snapshot, handles, no_route, sampling: observers.1.sampling() }
    }

    /// The snapshot.
    pub(super) fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// The share of requests that are traced. `None` while tracing is off.
    pub(super) fn sampling(&self) -> Option<Sampling> {
        self.sampling
    }

    /// The handle of the route at `index`.
    pub(super) fn handle(&self, index: usize) -> Option<&Arc<RouteHandle>> {
        self.handles.get(index)
    }

    /// The handle for requests that match no route.
    pub(super) fn no_route(&self) -> &Arc<RouteHandle> {
        &self.no_route
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
