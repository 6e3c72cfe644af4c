//! Which node owns each slot, as all workers know it, and when that is to be read again. Of two
//! different views, the one with the later epoch is right: a master that was cut off still believes
//! that it owns its slots. Must not know how the owners are read (`owners`).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, watch as version};

use super::connector::Connector;
use super::topology::Topology;
use crate::clock;
use crate::engine::{Cause, RedisMode};

/// Pause between two readings.
pub(super) const READ_EVERY: Duration = Duration::from_millis(100);
/// Pause between two readings of the sentinels while no call fails.
const SENTINELS_EVERY: Duration = Duration::from_secs(1);
/// Readings go on for this long after the last failed call.
const READ_FOR: Duration = Duration::from_secs(3);
/// A view with an earlier epoch is accepted when only such views were seen for this long: the
/// cluster was made anew.
const EPOCH_TRUSTED_FOR: Duration = Duration::from_secs(5);

/// What is known about the owners of slots.
pub(super) struct Watch {
    topology: ArcSwapOption<Topology>,
    /// A call failed while the task pauses.
    wake: Notify,
    /// Changes with the topology, and when no node could be asked.
    changed: version::Sender<u64>,
    state: Mutex<State>,
    /// A single server owns all slots, whatever happens.
    is_fixed: bool,
    /// Sentinels are asked all the time: a master that was replaced may still answer.
    is_always_read: bool,
}

#[derive(Default)]
struct State {
    is_running: bool,
    /// Something was learned since the last reading began.
    is_wanted: bool,
    is_closed: bool,
    /// When a call last failed, or found that nothing is known.
    failed: Option<Instant>,
    /// Why no node could be asked the last time.
    refused: Option<Cause>,
    /// The time since which only views with earlier epochs have been seen.
    doubted: Option<Instant>,
    /// Counts the nodes asked, so that each time another one comes first.
    turn: usize,
}

impl Watch {
    pub(super) fn new(mode: RedisMode, connector: &Connector) -> Self {
        let fixed = (mode == RedisMode::Single).then(|| {
            let nodes: Vec<String> = connector.nodes().collect();
            Arc::new(Topology::single(nodes.join(", "), 0))
        });
        Self {
            is_fixed: fixed.is_some(),
            is_always_read: mode == RedisMode::Sentinel,
            topology: ArcSwapOption::new(fixed),
            wake: Notify::new(),
            changed: version::Sender::new(0),
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The topology, if it is known.
    pub(super) fn topology(&self) -> Option<Arc<Topology>> {
        self.topology.load_full()
    }

    /// A receiver that is told of each change, from now on.
    pub(super) fn changes(&self) -> version::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Why no node could be asked the last time.
    pub(super) fn refused(&self) -> Option<Cause> {
        self.lock().refused
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// A node has redirected: `slot` is owned by the node at `address`. Returns whether the caller
    /// must start the task that reads.
    #[must_use]
    pub(super) fn moved(&self, slot: u16, address: &str) -> bool {
        if self.is_fixed {
            return false;
        }
        // Another worker may change it in the same moment; the next redirection corrects that.
        let Some(moved) = self.topology().and_then(|known| known.move_slot(slot, address)) else {
            return false;
        };
        self.topology.store(Some(Arc::new(moved)));
        self.read_again(|state| state.is_wanted = true)
    }

    /// A call failed: the owners are read again and again until no call has failed for a while.
    /// Returns whether the caller must start the task that reads.
    #[must_use]
    pub(super) fn failed(&self) -> bool {
        let now = clock::monotonic();
        !self.is_fixed && self.read_again(|state| state.failed = Some(now))
    }

    fn read_again(&self, why: impl FnOnce(&mut State)) -> bool {
        let mut state = self.lock();
        why(&mut state);
        if state.is_running {
            drop(state);
            self.wake.notify_one();
            return false;
        }
        state.is_running = !state.is_closed;
        state.is_running
    }

    /// The task begins to read: it will learn what is wanted by now.
    pub(super) fn begin_reading(&self) {
        self.lock().is_wanted = false;
    }

    /// The task has ended, so another may start.
    pub(super) fn end_task(&self) {
        self.lock().is_running = false;
    }

    /// A number that is one higher each time.
    pub(super) fn next_turn(&self) -> usize {
        let mut state = self.lock();
        state.turn = state.turn.wrapping_add(1);
        state.turn
    }

    /// Ready when a call fails while the task pauses.
    pub(super) fn woken(&self) -> Notified<'_> {
        self.wake.notified()
    }

    /// The pause before the next reading; `None` if the task is over.
    pub(super) fn pause(&self) -> Option<Duration> {
        let mut state = self.lock();
        let now = clock::monotonic();
        let failing = state.failed.is_some_and(|at| now.duration_since(at) < READ_FOR);
        let pause = match failing || state.is_wanted {
            _ if state.is_closed => None,
            true => Some(READ_EVERY),
            false if self.is_always_read => Some(SENTINELS_EVERY),
            false => None,
        };
        state.is_running = pause.is_some();
        if pause != Some(READ_EVERY) {
            // The next call waits for an attempt of its own.
            state.refused = None;
        }
        pause
    }

    /// Replaces the known topology with a view, unless the view is older than what is known.
    pub(super) fn accept(&self, seen: Topology) {
        let now = clock::monotonic();
        let mut state = self.lock();
        state.refused = None;
        if let Some(known) = self.topology() {
            let earlier = seen.epoch() < known.epoch();
            let since = *state.doubted.get_or_insert(now);
            if earlier && now.duration_since(since) < EPOCH_TRUSTED_FOR {
                return;
            }
        }
        state.doubted = None;
        drop(state);
        self.topology.store(Some(Arc::new(seen)));
        self.changed.send_modify(|version| *version += 1);
    }

    pub(super) fn refuse(&self, cause: Cause) {
        self.lock().refused = Some(cause);
        self.changed.send_modify(|version| *version += 1);
    }

    /// Ends the task, and the waits for it, for good.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.send_modify(|version| *version += 1);
    }
}
