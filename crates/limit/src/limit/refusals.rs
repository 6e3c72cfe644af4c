//! Refusals of Redis that are remembered for a moment, so that a client who keeps asking although
//! it was refused costs Redis next to nothing.
//!
//! A refusal holds as long as it says itself: units come back with time alone, other requests can
//! only take more. So only limits are remembered whose units nobody gives back (see
//! [`RefundableLimits`]). Each worker remembers its own, for at most [`HELD_MAX`]: a counter may
//! also be reset by hand.
//!
//! It is the answer to one question: the same limits on the same counters, with the same costs. A
//! plan with another number, cost or order of limits asks Redis.

use std::collections::{HashMap, HashSet};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;

use super::keys::Identities;
use crate::plan::{Limit, PlanOutcome, Refund};

/// Maximum number of refusals remembered on one worker. When there are more, all are forgotten.
const REFUSALS_MAX: usize = 4_096;
/// A refusal is remembered at most this long.
pub(super) const HELD_MAX: Duration = Duration::from_secs(1);
/// One request asks again in the last part of that time: one in this many.
const RENEWED_IN: u32 = 10;

/// Maximum number of limits known to give units back. When there are more, no refusal is
/// remembered.
const GIVEN_BACK_MAX: usize = 4_096;

/// The limits, by their digests, whose units some plan gives back: one with a refund, or one with
/// several tags, which may be rolled back. What another plan was refused for in between may be
/// there again a moment later. A process learns of a limit from its first such plan, and forgets
/// all refusals then.
#[derive(Debug, Default)]
pub(super) struct RefundableLimits(RwLock<HashSet<u128>>);

impl RefundableLimits {
    /// Adds a limit. Returns whether it is new.
    pub(super) fn add(&self, limit: u128) -> bool {
        let mut limits = self.0.write().unwrap_or_else(PoisonError::into_inner);
        limits.len() < GIVEN_BACK_MAX && limits.insert(limit)
    }

    fn has_any(&self, identities: &Identities) -> bool {
        let limits = self.0.read().unwrap_or_else(PoisonError::into_inner);
        limits.len() >= GIVEN_BACK_MAX
            || identities.iter().any(|identity| limits.contains(&identity.limit))
    }
}

/// One worker's remembered refusals, by the counters of a plan.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    by_counters: HashMap<Identities, Refusal, RandomState>,
    /// See [`Refusals::of`].
    version: u64,
}

#[derive(Debug)]
struct Refusal {
    limits: Box<[Limit]>,
    outcome: PlanOutcome,
    /// Just before Redis was asked.
    from: Instant,
    until: Instant,
    /// The time from which one request asks Redis, so that not every request of a client that sends
    /// many at once does when this is forgotten. `None` if one has asked, or if units are back by
    /// then.
    renewed_from: Option<Instant>,
}

/// Whether refusals of these limits may be remembered, if they share a tag.
pub(super) fn may_hold(limits: &[Limit]) -> bool {
    limits.iter().all(|limit| {
        limit.algorithm.program().is_some()
            && limit.refund == Refund::Never
            // What is leased comes back at any time.
            && limit.lease.is_none()
            && !limit.algorithm.holds()
            && !limit.algorithm.queues()
    })
}

impl Refusals {
    /// The refusals of a limiter whose counters were reset by hand `version` times.
    pub(super) fn of(&mut self, version: u64) -> &mut Self {
        if self.version != version {
            self.by_counters.clear();
            self.version = version;
        }
        self
    }

    /// The outcome of a refusal of the same limits on the same counters that still holds: as it
    /// would be answered now. `None` as well for the one request that asks again before it is
    /// forgotten.
    pub(super) fn find(
        &mut self,
        identities: &Identities,
        limits: &[Limit],
        now: Instant,
    ) -> Option<PlanOutcome> {
        if self.by_counters.is_empty() {
            return None;
        }
        let refusal = self.by_counters.get_mut(identities)?;
        if now >= refusal.until || !are_same(&refusal.limits, limits) {
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

    /// Remembers that `limits`, on these counters, were refused with `outcome`.
    pub(super) fn add(
        &mut self,
        identities: &Identities,
        limits: &[Limit],
        outcome: &PlanOutcome,
        (from, now): (Instant, Instant),
        (held_max, given_back): (Duration, &RefundableLimits),
    ) {
        let refusing = limits
            .iter()
            .zip(&outcome.limits)
            .filter(|(limit, outcome)| limit.is_enforced() && !outcome.fits);
        // The request is refused until the last of them fits.
        let held = refusing.map(|(_, outcome)| {
            outcome.retry_after_us.map_or(held_max, Duration::from_micros).min(held_max)
        });
        let Some(held) = held.max() else { return };
        let until = from + held;
        if until <= now
            || outcome.limits.iter().any(|limit| limit.is_local)
            || given_back.has_any(identities)
        {
            return;
        }
        if self.by_counters.len() >= REFUSALS_MAX {
            self.by_counters.retain(|_, refusal| refusal.until > now);
            if self.by_counters.len() >= REFUSALS_MAX {
                self.by_counters.clear();
            }
        }
        let renewed_from = (held == held_max).then(|| until - held / RENEWED_IN);
        let refusal =
            Refusal { limits: limits.into(), outcome: outcome.clone(), from, until, renewed_from };
        self.by_counters.insert(identities.clone(), refusal);
    }
}

/// Whether the limits ask the same of their counters.
fn are_same(refused: &[Limit], asked: &[Limit]) -> bool {
    let same = |(a, b): (&Limit, &Limit)| {
        a.algorithm == b.algorithm
            && a.cost == b.cost
            && (a.enforcement, a.role) == (b.enforcement, b.role)
    };
    refused.len() == asked.len() && refused.iter().zip(asked).all(same)
}
