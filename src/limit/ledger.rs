//! What was admitted in this process while a shard was away, to be charged on Redis when the shard
//! is back: otherwise its limits would begin again with what they had before.
//!
//! Best effort: what does not fit any more is not charged, units leave as the limit refills, and a
//! charge whose outcome is unknown is not repeated.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::shared::Shared;
use crate::clock::monotonic;
use crate::engine::{Cell, Cells, EngineError, Key, Ran};
use crate::plan::Algorithm;

/// Counters remembered, at most. The units of others are not charged later.
const COUNTERS_MAX: usize = 65_536;
/// Minimum time between two attempts to charge what is owed ...
const ATTEMPT_EVERY: Duration = Duration::from_millis(250);
/// ... and counters charged in one attempt, at most.
const ATTEMPT_MAX: usize = 1_024;
/// Counters after which an attempt lets other tasks run.
const YIELD_EVERY: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Ledger {
    any: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    owed: HashMap<Key, Owed>,
    /// The order in which they are charged. Has each counter of `owed` once.
    order: VecDeque<Key>,
    is_running: bool,
    attempted: Option<Instant>,
}

#[derive(Debug)]
struct Owed {
    /// As on Redis, with all units as its cost.
    cell: Cell,
    /// The limit's allowance: no more than this is owed.
    most: u64,
    per_ms: u64,
    /// Until when units that came back in the meantime are accounted for.
    at: Instant,
}

impl Owed {
    /// Takes off what has come back since the last time.
    fn refill(&mut self, now: Instant) {
        let passed_ms = now.duration_since(self.at).as_millis();
        let back = u128::from(self.most) * passed_ms / u128::from(self.per_ms.max(1));
        if back > 0 {
            self.cell.cost = self.cell.cost.saturating_sub(u64::try_from(back).unwrap_or(u64::MAX));
            self.at = now;
        }
    }

    fn add(&mut self, units: u64, now: Instant) {
        self.refill(now);
        self.cell.cost = self.cell.cost.saturating_add(units).min(self.most);
    }
}

impl State {
    fn insert(&mut self, owed: Owed, now: Instant) {
        if let Some(known) = self.owed.get_mut(&owed.cell.key) {
            known.add(owed.cell.cost, now);
        } else if self.owed.len() < COUNTERS_MAX {
            self.order.push_back(owed.cell.key.clone());
            self.owed.insert(owed.cell.key.clone(), owed);
        }
    }
}

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what was admitted or charged. `cell` is the counter as on Redis.
    pub(super) fn add(&self, algorithm: &Algorithm, cell: &Cell) {
        let (Some(rate), Some(most)) = (algorithm.rate(), algorithm.capacity()) else { return };
        // A leaky bucket's turns are over with their requests.
        if algorithm.queues() || cell.cost == 0 {
            return;
        }
        let now = monotonic();
        let owed = Owed { cell: cell.clone(), most, per_ms: rate.per_ms, at: now };
        self.lock().insert(owed, now);
        self.any.store(true, Ordering::Relaxed);
    }

    /// Takes back what was given back.
    pub(super) fn remove(&self, key: &Key, units: u64) {
        if let Some(owed) = self.lock().owed.get_mut(key) {
            owed.cell.cost = owed.cell.cost.saturating_sub(units);
        }
    }

    /// Takes the next counters, if it is time for an attempt.
    fn begin(&self) -> Option<Vec<Owed>> {
        let (mut state, now) = (self.lock(), monotonic());
        let recent = state.attempted.is_some_and(|at| now.duration_since(at) < ATTEMPT_EVERY);
        if state.is_running || recent {
            return None;
        }
        (state.is_running, state.attempted) = (true, Some(now));
        let count = state.order.len().min(ATTEMPT_MAX);
        let keys: Vec<Key> = state.order.drain(..count).collect();
        let mut taken: Vec<Owed> = keys.iter().filter_map(|key| state.owed.remove(key)).collect();
        self.any.store(!state.owed.is_empty(), Ordering::Relaxed);
        drop(state);
        taken.iter_mut().for_each(|owed| owed.refill(now));
        taken.retain(|owed| owed.cell.cost > 0);
        Some(taken)
    }

    /// The shard is still away.
    fn put_back(&self, owed: Owed) {
        self.lock().insert(owed, monotonic());
        self.any.store(true, Ordering::Relaxed);
    }
}

/// A call to Redis has succeeded: charges what is owed, in a task. A shard that does not answer is
/// asked once an attempt.
pub(super) fn hand_back(shared: &Arc<Shared>) {
    if !shared.ledger.any.load(Ordering::Relaxed) {
        return;
    }
    let Some(taken) = shared.ledger.begin() else { return };
    let running = Running(Arc::clone(shared));
    tokio::spawn(async move {
        let shared = &running.0;
        let mut away: SmallVec<[usize; 4]> = SmallVec::new();
        for (nth, mut owed) in (1..).zip(taken) {
            let shard = shared.engine.shard_of(&owed.cell.key);
            if away.contains(&shard) {
                shared.ledger.put_back(owed);
            } else {
                owed.cell.member = fastrand::u128(..);
                match shared.engine.charge(&Cells::from_iter([owed.cell.clone()])).await {
                    Ok(_) => {}
                    Err(EngineError { ran: Ran::No, .. }) => {
                        away.push(shard);
                        shared.ledger.put_back(owed);
                    }
                    Err(EngineError { ran: Ran::Unknown, .. }) => {
                        away.push(shard);
                        shared.counters.failed.charge.inc();
                    }
                }
            }
            if nth % YIELD_EVERY == 0 {
                tokio::task::yield_now().await;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{NUMBERS_MAX, Space};
    use crate::plan::{Debt, Gcra, Rate};

    #[test]
    fn what_is_owed_leaves_as_the_limit_refills_and_is_never_more_than_its_allowance() {
        let gcra = Gcra { burst: 10, rate: Rate { amount: 10, per_ms: 1_000 }, debt: Debt::None };
        let start = monotonic();
        let at = |ms| start + Duration::from_millis(ms);
        let space = Arc::new(Space { text: "a/b/c".into(), digest: 3 });
        let cell = Cell {
            program: Algorithm::Gcra(gcra).program().unwrap(),
            key: Key { tag: 1, key: 2, space },
            unit_us: 1,
            shadow: false,
            cost: 4,
            numbers: [0; NUMBERS_MAX],
            member: 0,
        };
        let mut owed = Owed { cell, most: 10, per_ms: 1_000, at: start };
        owed.add(4, at(250));
        assert_eq!(owed.cell.cost, 6, "two of four had come back");
        owed.add(9, at(250));
        assert_eq!(owed.cell.cost, 10);
        owed.refill(at(2_000));
        assert_eq!(owed.cell.cost, 0);
    }
}
