//! What came of a plan, in the words that a reply's fields need.

use super::{Enforcement, Limit, OnStoreError};

/// What the limiter answered for a whole plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// All enforced limits fitted, and all were charged.
    pub admitted: bool,
    /// One for each limit, in the plan's order.
    pub limits: Vec<LimitOutcome>,
}

/// What one limit answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitOutcome {
    /// Whether the cost fitted.
    pub fits: bool,
    /// Units left after this request; what is there where nothing was charged.
    pub remaining: u64,
    /// Microseconds until the same request would fit, alone; `None` where waiting cannot help.
    /// Where it fits and leaves nothing: until a unit is back, of an algorithm that tells.
    pub retry_after_us: Option<u64>,
    /// Microseconds until the whole allowance is back: spend no more than `remaining` within it.
    pub reset_us: u64,
    /// Microseconds that the request must wait before it goes on: its turn in a leaky bucket.
    pub delay_us: u64,
    /// The counter could not be reached, and this was done instead: nothing above was measured.
    pub unmeasured: Option<OnStoreError>,
}

impl Outcome {
    /// Whether an enforced limit could not be counted, and the request goes on all the same.
    #[must_use]
    pub fn is_uncounted(&self, limits: &[Limit]) -> bool {
        let enforced = |limit: &Limit| limit.enforcement == Enforcement::Enforce;
        let mut all = limits.iter().zip(&self.limits);
        self.admitted && all.any(|(limit, outcome)| enforced(limit) && outcome.unmeasured.is_some())
    }

    /// Microseconds that the admitted request must wait before it goes on.
    #[must_use]
    pub fn delay_us(&self) -> u64 {
        self.limits.iter().map(|limit| limit.delay_us).max().unwrap_or(0)
    }

    /// The enforced limits which refused, with their outcomes.
    pub fn violated<'a>(
        &'a self,
        limits: &'a [Limit],
    ) -> impl Iterator<Item = (&'a Limit, &'a LimitOutcome)> {
        limits
            .iter()
            .zip(&self.limits)
            .filter(|(limit, outcome)| limit.enforcement == Enforcement::Enforce && !outcome.fits)
    }

    /// Microseconds after which all refusing limits would fit: the longest of them, `None` where
    /// one of them never will.
    #[must_use]
    pub fn retry_after_us(&self, limits: &[Limit]) -> Option<u64> {
        let mut longest = None;
        for (_, outcome) in self.violated(limits) {
            longest = longest.max(Some(outcome.retry_after_us?));
        }
        longest
    }
}
