//! What the listeners of a process share: the words that end accepting and then everything, and the number of open connections. Also a worker's own list of its
//! connections, so that they can be told. Knows nothing of HTTP.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use arc_swap::ArcSwap;
use tokio::sync::{Notify, watch};

use super::ConnectionSettings;
use super::pulse::Pulse;
use crate::telemetry::Gauge;

/// Stops the accepting and waits for what is under way.
#[derive(Clone, Debug, Default)]
pub struct Drain(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    stage: watch::Sender<Stage>,
    counts: Mutex<Vec<Count>>,
}

/// What was said so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    #[default]
    Open,
    Draining,
    Over,
}

/// Listeners with the same settings count together; the admin's, with its own, is not shut out by a full house.
#[derive(Debug)]
struct Count {
    settings: Weak<ArcSwap<ConnectionSettings>>,
    open: Arc<AtomicUsize>,
}

impl Drain {
    /// One for a whole process.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Says it: accepting stops, idle connections close, busy ones finish what they do.
    pub fn start(&self) {
        self.reach(Stage::Draining);
    }

    /// Says that the grace is over: connections end at once, whatever they do.
    pub fn cut(&self) {
        self.reach(Stage::Over);
    }

    fn reach(&self, stage: Stage) {
        self.0.stage.send_if_modified(|now| {
            let later = *now < stage;
            *now = stage.max(*now);
            later
        });
    }

    /// Whether [`start`](Self::start) was said.
    #[must_use]
    pub fn started(&self) -> bool {
        *self.0.stage.borrow() >= Stage::Draining
    }

    /// Waits until it is said.
    pub async fn wait(&self) {
        self.reached(Stage::Draining).await;
    }

    /// Waits until the grace is over.
    pub(super) async fn wait_cut(&self) {
        self.reached(Stage::Over).await;
    }

    async fn reached(&self, stage: Stage) {
        // An error would mean that the sender is gone, and we hold it.
        let _ = self.0.stage.subscribe().wait_for(|now| *now >= stage).await;
    }

    /// The number of connections that are open under `settings`.
    pub(super) fn open_under(&self, settings: &Arc<ArcSwap<ConnectionSettings>>) -> Arc<AtomicUsize> {
        let mut counts = self.0.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.retain(|count| count.settings.strong_count() > 0);
        if let Some(count) = counts.iter().find(|count| std::ptr::eq(count.settings.as_ptr(), Arc::as_ptr(settings))) {
            return Arc::clone(&count.open);
        }
        let open = Arc::new(AtomicUsize::new(0));
        counts.push(Count { settings: Arc::downgrade(settings), open: Arc::clone(&open) });
        open
    }
}

/// The connections that one `serve` has open.
#[derive(Clone)]
pub(super) struct Connections(Arc<Open>);

struct Open {
    pulses: Mutex<HashMap<usize, Arc<Pulse>>>,
    all: Arc<AtomicUsize>,
    gauge: Gauge,
    emptied: Notify,
}

/// A connection's place in the count; given back when dropped.
pub(super) struct Place {
    open: Arc<Open>,
    key: usize,
}

impl Connections {
    pub(super) fn new(all: Arc<AtomicUsize>, gauge: Gauge) -> Self {
        Self(Arc::new(Open { pulses: Mutex::default(), all, gauge, emptied: Notify::new() }))
    }

    /// A place for one more connection, unless `max` are open over all workers.
    pub(super) fn enter(&self, pulse: &Arc<Pulse>, max: usize) -> Option<Place> {
        if self.0.all.fetch_add(1, Ordering::Relaxed) >= max {
            self.0.all.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        self.0.gauge.add(1);
        let key = Arc::as_ptr(pulse) as usize;
        self.0.pulses().insert(key, Arc::clone(pulse));
        Some(Place { open: Arc::clone(&self.0), key })
    }

    /// Tells each to close: now where it is idle, else after the reply that is under way.
    pub(super) fn drain(&self) {
        self.0.pulses().values().for_each(|pulse| pulse.drain());
    }

    /// Ends each at once.
    pub(super) fn abandon(&self) {
        self.0.pulses().values().for_each(|pulse| pulse.abandon());
    }

    /// Waits until none is left.
    pub(super) async fn emptied(&self) {
        while !self.0.pulses().is_empty() {
            self.0.emptied.notified().await;
        }
    }
}

impl Open {
    fn pulses(&self) -> MutexGuard<'_, HashMap<usize, Arc<Pulse>>> {
        self.pulses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.open.all.fetch_sub(1, Ordering::Relaxed);
        self.open.gauge.add(-1);
        let mut pulses = self.open.pulses();
        pulses.remove(&self.key);
        if pulses.is_empty() {
            // Stored when nobody waits yet; waking for nothing is what the loop in `emptied` is for.
            self.open.emptied.notify_one();
        }
    }
}
