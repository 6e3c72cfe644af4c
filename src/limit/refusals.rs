//! Refusals of Redis that are remembered for a moment, so that a client who keeps asking although
//! it was refused costs Redis next to nothing.
//!
//! A refusal holds as long as it says itself: units come back with time alone, other requests can
//! only take more. So only limits are remembered whose units nobody gives back. Each worker
//! remembers its own, for at most [`HELD_MAX`]: a counter may also be reset by hand.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;

use crate::engine::{Cell, Cells};
use crate::plan::{Enforcement, Limit, Outcome, Refund};

/// Refusals remembered on one worker, at most. When there are more, all are forgotten.
const REFUSALS_MAX: usize = 4_096;
/// A refusal is remembered at most this long.
pub(super) const HELD_MAX: Duration = Duration::from_secs(1);
/// In the last part of that time, one in so many, one request asks again.
const RENEWED_IN: u32 = 10;

/// One worker's remembered refusals. By the first counter of a plan: its tag, key and space.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    by_counter: HashMap<(u128, u128, u128), Refusal, RandomState>,
    /// See [`Refusals::of`].
    version: u64,
}

#[derive(Debug)]
struct Refusal {
    cells: Cells,
    outcome: Outcome,
    /// Just before Redis was asked.
    from: Instant,
    until: Instant,
    /// From then on one request asks Redis, so that not every request of a client that sends many
    /// at once does when this is forgotten. `None` if one has asked, or if units are back by then.
    renewed_from: Option<Instant>,
}

/// Whether refusals of these limits may be remembered, if they share a tag.
pub(super) fn may_hold(limits: &[Limit]) -> bool {
    limits.iter().all(|limit| {
        limit.algorithm.program().is_some()
            && limit.refund == Refund::Never
            && !limit.algorithm.holds()
            && !limit.algorithm.queues()
    })
}

impl Refusals {
    /// The refusals of a limiter whose counters were reset by hand `version` times.
    pub(super) fn of(&mut self, version: u64) -> &mut Self {
        if self.version != version {
            self.by_counter.clear();
            self.version = version;
        }
        self
    }

    /// The outcome of a refusal of the same counters that still holds for `cells`: as it would be
    /// answered now. `None` as well for the one request that asks again before it is forgotten.
    pub(super) fn find(&mut self, cells: &Cells, now: Instant) -> Option<Outcome> {
        if self.by_counter.is_empty() {
            return None;
        }
        let refusal = self.by_counter.get_mut(&counter(cells)?)?;
        if now >= refusal.until || !covers(&refusal.cells, cells) {
            return None;
        }
        if refusal.renewed_from.is_some_and(|from| now >= from) {
            refusal.renewed_from = None;
            return None;
        }
        let passed_us = now.duration_since(refusal.from).as_micros() as u64;
        let mut outcome = refusal.outcome.clone();
        for limit in &mut outcome.limits {
            limit.reset_us = limit.reset_us.saturating_sub(passed_us);
            limit.retry_after_us = limit.retry_after_us.map(|us| us.saturating_sub(passed_us));
        }
        Some(outcome)
    }

    /// Remembers that `limits`, called with `cells`, were refused with `outcome`.
    pub(super) fn add(
        &mut self,
        cells: &Cells,
        limits: &[Limit],
        outcome: &Outcome,
        (from, now): (Instant, Instant),
        held_max: Duration,
    ) {
        let refusing = limits
            .iter()
            .zip(&outcome.limits)
            .filter(|(limit, outcome)| limit.enforcement == Enforcement::Enforce && !outcome.fits);
        // The request is refused until the last of them fits.
        let held = refusing.map(|(_, outcome)| {
            outcome.retry_after_us.map_or(held_max, Duration::from_micros).min(held_max)
        });
        let (Some(held), Some(counter)) = (held.max(), counter(cells)) else { return };
        let until = from + held;
        if until <= now || outcome.limits.iter().any(|limit| limit.is_local) {
            return;
        }
        if self.by_counter.len() >= REFUSALS_MAX {
            self.by_counter.retain(|_, refusal| refusal.until > now);
            if self.by_counter.len() >= REFUSALS_MAX {
                self.by_counter.clear();
            }
        }
        let renewed_from = (held == held_max).then(|| until - held / RENEWED_IN);
        let refusal =
            Refusal { cells: cells.clone(), outcome: outcome.clone(), from, until, renewed_from };
        self.by_counter.insert(counter, refusal);
    }
}

fn counter(cells: &Cells) -> Option<(u128, u128, u128)> {
    let key = &cells.first()?.key;
    Some((key.tag, key.key, key.space.digest))
}

/// Whether what was refused for `refused` is refused for `asked`: the same counters, read with the
/// same numbers, for at least as many units.
fn covers(refused: &Cells, asked: &Cells) -> bool {
    let same = |(a, b): (&Cell, &Cell)| {
        a.key == b.key && a.numbers == b.numbers && a.shadow == b.shadow && a.cost <= b.cost
    };
    refused.len() == asked.len() && refused.iter().zip(asked).all(same)
}
