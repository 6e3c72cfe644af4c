//! Units that requests under way hold and may give back: what they reserved and have not settled.
//! Known for this process only, and for as long as they could be given back. So a refusal can tell
//! "try again in a second" from "try again tomorrow".

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::round::ChargeTimes;
use crate::clock::monotonic;
use crate::engine::Key;
use crate::plan::{LimitOutcome, Plan, Refund};

/// When a refused request should come again if what it needs is held: some of it may be back then.
const RETRY_US: u64 = 1_000_000;
/// Parts of the table, each with a lock of its own, so that workers rarely wait for each other.
const PARTS: usize = 16;

/// The units held, by counter. An entry exists while a grant holds something.
#[derive(Debug, Default)]
pub(super) struct HeldUnits([Mutex<Table>; PARTS]);

type Table = HashMap<Key, SmallVec<[Units; 1]>>;

/// Units that can be given back until the same time.
#[derive(Debug)]
struct Units {
    /// The end in seconds of [`seconds`], when the whole allowance is back without them.
    until_s: u64,
    units: u64,
}

impl HeldUnits {
    fn part(&self, key: &Key) -> MutexGuard<'_, Table> {
        let [first, ..] = &self.0;
        let part = usize::try_from(key.key % PARTS as u128).unwrap_or(0);
        self.0.get(part).unwrap_or(first).lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, key: &Key) -> u64 {
        let now_s = seconds(Duration::ZERO);
        let part = self.part(key);
        let held = part.get(key).into_iter().flatten().filter(|held| held.until_s >= now_s);
        held.fold(0, |sum, held| sum.saturating_add(held.units))
    }

    fn add(&self, key: &Key, until_s: u64, units: u64) {
        let mut part = self.part(key);
        let entry = part.entry(key.clone()).or_default();
        match entry.iter_mut().find(|held| held.until_s == until_s) {
            Some(held) => held.units = held.units.saturating_add(units),
            None => entry.push(Units { until_s, units }),
        }
    }

    fn remove(&self, key: &Key, until_s: u64, units: u64) {
        let mut part = self.part(key);
        if let Some(entry) = part.get_mut(key) {
            for held in entry.iter_mut().filter(|held| held.until_s == until_s) {
                held.units = held.units.saturating_sub(units);
            }
            entry.retain(|held| held.units > 0);
            if entry.is_empty() {
                part.remove(key);
            }
        }
    }
}

/// The time after this long, as whole seconds since the first call.
fn seconds(ahead: Duration) -> u64 {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    let now = monotonic();
    let since = now.saturating_duration_since(*BEGIN.get_or_init(|| now));
    since.saturating_add(ahead).as_secs()
}

/// What one grant holds. Given up when the grant is settled or dropped.
#[derive(Debug)]
pub(super) struct Hold {
    all: Arc<HeldUnits>,
    /// The units that each counter holds, and until when.
    units: SmallVec<[(Key, u64, u64); 2]>,
}

impl Hold {
    /// Holds in `all` what a plan was charged. `None` if it can't give anything back by settling.
    pub(super) fn new<'k>(
        all: &Arc<HeldUnits>,
        plan: &Plan,
        (outcomes, charged): (&[LimitOutcome], &ChargeTimes),
        key: impl Fn(usize) -> Option<&'k Key>,
    ) -> Option<Box<Self>> {
        let held = |(index, cost): (usize, u64)| {
            // Let through uncounted, it holds nothing.
            (*charged.get(index)?)?;
            let (outcome, limit) = (outcomes.get(index)?, plan.limits().get(index)?);
            let until = match limit.algorithm.rate() {
                // A lease says nothing about the counter, which holds units for a period at most.
                Some(rate) if outcome.is_leased => Duration::from_millis(rate.per_ms),
                _ => Duration::from_micros(outcome.reset_us),
            };
            // A quota that lasts for ever never comes back by itself.
            let until_s = if limit.algorithm.refills() { seconds(until) } else { u64::MAX };
            Some((key(index)?.clone(), until_s, cost))
        };
        let units: SmallVec<[(Key, u64, u64); 2]> = reserved(plan).filter_map(held).collect();
        if units.is_empty() {
            return None;
        }
        units.iter().for_each(|(key, until_s, cost)| all.add(key, *until_s, *cost));
        Some(Box::new(Self { all: Arc::clone(all), units }))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.units.iter().for_each(|(key, until_s, cost)| self.all.remove(key, *until_s, *cost));
    }
}

/// The limits whose units may be given back by settling, with their costs.
fn reserved(plan: &Plan) -> impl Iterator<Item = (usize, u64)> {
    let limits = plan.limits().iter().enumerate();
    limits
        .filter(|(_, limit)| limit.refund == Refund::BySettle && limit.algorithm.settles())
        .map(|(index, limit)| (index, limit.cost))
}

/// Tells the limits that refused what of them is held. Where that would be enough, the request may
/// come again soon.
pub(super) fn report<'k>(
    all: &HeldUnits,
    plan: &Plan,
    outcomes: &mut [LimitOutcome],
    key: impl Fn(usize) -> Option<&'k Key>,
) {
    for (index, cost) in reserved(plan) {
        let Some(outcome) = outcomes.get_mut(index).filter(|outcome| !outcome.fits) else {
            continue;
        };
        outcome.held = key(index).map_or(0, |key| all.of(key));
        if outcome.is_held(cost) {
            let wait_us = outcome.retry_after_us.unwrap_or(RETRY_US);
            outcome.retry_after_us = Some(wait_us.min(RETRY_US));
        }
    }
}
