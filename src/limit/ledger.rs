//! What was admitted in this process while a shard was away, to be charged on Redis when the shard
//! is back: otherwise its limits would begin again with what they had before.
//!
//! Best effort: what does not fit any more is not charged, units of a period that is over are
//! forgotten, and a charge whose outcome is unknown is not repeated.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::shared::Shared;
use crate::clock::monotonic;
use crate::engine::{Cell, Cells, EngineError, Key, Ran};
use crate::plan::Limit;

/// Counters remembered, at most. The units of others are not charged later.
const COUNTERS_MAX: usize = 65_536;
/// Minimum time between two attempts to charge what is owed.
const ATTEMPT_EVERY: Duration = Duration::from_millis(250);

#[derive(Debug, Default)]
pub(super) struct Ledger {
    any: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    owed: HashMap<Key, Owed>,
    is_running: bool,
    attempted: Option<Instant>,
}

#[derive(Debug)]
struct Owed {
    /// As on Redis, with all units as its cost.
    cell: Cell,
    /// No unit is worth charging after this.
    until: Instant,
}

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what was admitted. `cell` is the counter as on Redis.
    pub(super) fn add(&self, limit: &Limit, cell: &Cell) {
        let (Some(rate), Some(most)) = (limit.algorithm.rate(), limit.algorithm.capacity()) else {
            return;
        };
        // A leaky bucket's turns are over with their requests.
        if limit.algorithm.queues() {
            return;
        }
        let until = monotonic() + Duration::from_millis(rate.per_ms);
        let mut state = self.lock();
        if let Some(owed) = state.owed.get_mut(&cell.key) {
            owed.cell.cost = (owed.cell.cost + cell.cost).min(most);
            owed.until = until;
        } else if state.owed.len() < COUNTERS_MAX {
            state.owed.insert(cell.key.clone(), Owed { cell: cell.clone(), until });
            self.any.store(true, Ordering::Relaxed);
        }
    }

    /// Takes back what was given back.
    pub(super) fn remove(&self, key: &Key, units: u64) {
        if let Some(owed) = self.lock().owed.get_mut(key) {
            owed.cell.cost = owed.cell.cost.saturating_sub(units);
        }
    }

    /// The counters that are worth charging, if it is time for an attempt.
    fn begin(&self) -> Option<Vec<Owed>> {
        let (mut state, now) = (self.lock(), monotonic());
        let recent = state.attempted.is_some_and(|at| now.duration_since(at) < ATTEMPT_EVERY);
        if state.is_running || recent {
            return None;
        }
        (state.is_running, state.attempted) = (true, Some(now));
        let owed = std::mem::take(&mut state.owed);
        self.any.store(false, Ordering::Relaxed);
        Some(owed.into_values().filter(|owed| owed.until > now && owed.cell.cost > 0).collect())
    }

    /// The shard is still away.
    fn put_back(&self, owed: Owed) {
        let mut state = self.lock();
        match state.owed.get_mut(&owed.cell.key) {
            Some(newer) => newer.cell.cost += owed.cell.cost,
            None => _ = state.owed.insert(owed.cell.key.clone(), owed),
        }
        self.any.store(true, Ordering::Relaxed);
    }
}

/// A call to Redis has succeeded: charges what is owed, in a task.
pub(super) fn hand_back(shared: &Arc<Shared>) {
    if !shared.ledger.any.load(Ordering::Relaxed) {
        return;
    }
    let Some(owed) = shared.ledger.begin() else { return };
    let running = Running(Arc::clone(shared));
    tokio::spawn(async move {
        let shared = &running.0;
        for mut owed in owed {
            owed.cell.member = fastrand::u128(..);
            let cells = Cells::from_iter([owed.cell.clone()]);
            match shared.engine.charge(&cells).await {
                Ok(_) => {}
                Err(EngineError { ran: Ran::No, .. }) => shared.ledger.put_back(owed),
                Err(EngineError { ran: Ran::Unknown, .. }) => shared.counters.failed.charge.inc(),
            }
        }
    });
}

/// An attempt. It is over however its task ends.
struct Running(Arc<Shared>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.ledger.lock().is_running = false;
    }
}
