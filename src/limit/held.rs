//! Units that requests under way hold and may give back: what they reserved and have not settled.
//! Known for this process only. So a refusal can tell "try again in a second" from "try again
//! tomorrow".

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;

use super::shared::Shared;
use crate::engine::Key;
use crate::plan::{LimitOutcome, Plan, Refund};

/// When a refused request should come again if what it needs is held: some of it may be back then.
const RETRY_US: u64 = 1_000_000;
/// Parts of the table, each with a lock of its own, so that workers rarely wait for each other.
const PARTS: usize = 16;

/// The units held, by counter. An entry exists while a grant holds something.
#[derive(Debug, Default)]
pub(super) struct Held([Mutex<HashMap<Key, u64>>; PARTS]);

impl Held {
    fn part(&self, key: &Key) -> &Mutex<HashMap<Key, u64>> {
        let [first, ..] = &self.0;
        let part = usize::try_from(key.key % PARTS as u128).unwrap_or(0);
        self.0.get(part).unwrap_or(first)
    }

    fn of(&self, key: &Key) -> u64 {
        let part = self.part(key).lock().unwrap_or_else(PoisonError::into_inner);
        part.get(key).copied().unwrap_or(0)
    }

    fn add(&self, key: &Key, units: u64) {
        let mut part = self.part(key).lock().unwrap_or_else(PoisonError::into_inner);
        let held = part.entry(key.clone()).or_default();
        *held = held.saturating_add(units);
    }

    fn remove(&self, key: &Key, units: u64) {
        let mut part = self.part(key).lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = part.get_mut(key) {
            *held = held.saturating_sub(units);
            if *held == 0 {
                part.remove(key);
            }
        }
    }
}

/// What one grant holds. Given up when the grant is settled or dropped.
#[derive(Debug)]
pub(super) struct Holding {
    shared: Arc<Shared>,
    units: SmallVec<[(Key, u64); 2]>,
}

impl Holding {
    /// Of a plan that was charged. `None` if it can't give anything back by settling.
    pub(super) fn new<'k>(
        shared: &Arc<Shared>,
        plan: &Plan,
        key: impl Fn(usize) -> Option<&'k Key>,
    ) -> Option<Box<Self>> {
        let units: SmallVec<[(Key, u64); 2]> =
            reserved(plan).filter_map(|(index, cost)| Some((key(index)?.clone(), cost))).collect();
        if units.is_empty() {
            return None;
        }
        units.iter().for_each(|(key, cost)| shared.held.add(key, *cost));
        Some(Box::new(Self { shared: Arc::clone(shared), units }))
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.units.iter().for_each(|(key, cost)| self.shared.held.remove(key, *cost));
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
pub(super) fn tell<'k>(
    shared: &Shared,
    plan: &Plan,
    outcomes: &mut [LimitOutcome],
    key: impl Fn(usize) -> Option<&'k Key>,
) {
    for (index, cost) in reserved(plan) {
        let Some(outcome) = outcomes.get_mut(index).filter(|outcome| !outcome.fits) else {
            continue;
        };
        outcome.held = key(index).map_or(0, |key| shared.held.of(key));
        if outcome.is_held(cost) {
            let wait_us = outcome.retry_after_us.unwrap_or(RETRY_US);
            outcome.retry_after_us = Some(wait_us.min(RETRY_US));
        }
    }
}
