//! The result of charging a plan, with the values that response fields need.

use super::{Limit, OnStoreError, Role};

/// The limiter's answer for a whole plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanOutcome {
    /// All enforced limits fitted and were charged, or were let through uncounted.
    pub admitted: bool,
    /// One for each limit, in the plan's order.
    pub limits: Vec<LimitOutcome>,
    /// If a counter could not be reached: why, as metrics and logs name it.
    pub store_failure: Option<&'static str>,
}

/// The limiter's answer for one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitOutcome {
    /// Whether the cost fitted.
    pub fits: bool,
    /// Units left after this request; if nothing was charged, the units there are.
    pub remaining: u64,
    /// Microseconds until the same request would fit this limit; `None` if waiting can't help. If
    /// the request fits and leaves nothing: the time until a unit is back, if the algorithm knows.
    pub retry_after_us: Option<u64>,
    /// Microseconds until the whole allowance is back. Until then no more than `remaining` is sure
    /// to fit.
    pub reset_us: u64,
    /// Microseconds that a leaky bucket delays the request.
    pub delay_us: u64,
    /// The counter could not be reached and this was done instead. The fields above were not
    /// measured.
    pub unmeasured: Option<OnStoreError>,
    /// After a refusal: the units that requests under way on this proxy have reserved, and give
    /// back as far as they don't use them.
    pub held: u64,
    /// The counter could not be reached, and this proxy counted its share of the limit by itself.
    pub is_local: bool,
    /// Its units came from a lease: `remaining` is what the lease has left, and `reset_us` its
    /// time.
    pub is_leased: bool,
}

impl LimitOutcome {
    /// Whether a refused request of this cost would fit if what is held were given back.
    #[must_use]
    #[inline]
    pub fn is_held(&self, cost: u64) -> bool {
        !self.fits && self.held > 0 && self.remaining.saturating_add(self.held) >= cost
    }
}

impl PlanOutcome {
    /// Whether the request is admitted although an enforced limit could not be counted.
    #[must_use]
    #[inline]
    pub fn is_uncounted(&self, limits: &[Limit]) -> bool {
        let mut all = limits.iter().zip(&self.limits);
        self.admitted
            && all.any(|(limit, outcome)| limit.is_enforced() && outcome.unmeasured.is_some())
    }

    /// Whether the request is admitted by counting an enforced limit in this proxy alone.
    #[must_use]
    #[inline]
    pub fn is_local(&self, limits: &[Limit]) -> bool {
        let mut all = limits.iter().zip(&self.limits);
        self.admitted && all.any(|(limit, outcome)| limit.is_enforced() && outcome.is_local)
    }

    /// Microseconds by which the admitted request is delayed.
    #[must_use]
    #[inline]
    pub fn delay_us(&self) -> u64 {
        self.limits.iter().map(|limit| limit.delay_us).max().unwrap_or(0)
    }

    /// The enforced limits that refused, with their outcomes.
    pub fn violated<'a>(
        &'a self,
        limits: &'a [Limit],
    ) -> impl Iterator<Item = (&'a Limit, &'a LimitOutcome)> {
        limits.iter().zip(&self.limits).filter(|(limit, outcome)| Self::is_violated(limit, outcome))
    }

    /// Whether an enforced limit refused with this outcome.
    #[must_use]
    pub fn is_violated(limit: &Limit, outcome: &LimitOutcome) -> bool {
        limit.is_enforced() && !outcome.fits
    }

    /// The names under which clients see the limits that refused, each once: a child's for its
    /// parent, and none of a limit that is not shown.
    pub fn refusing_names<'a>(&'a self, limits: &'a [Limit]) -> impl Iterator<Item = &'a str> {
        let is_refusing = |limit: &Limit, at: usize| {
            self.limits.get(at).is_some_and(|outcome| Self::is_violated(limit, outcome))
        };
        let is_refusing_earlier = move |limit: &Limit, index: usize| {
            let mut earlier = limits.iter().take(index).enumerate();
            earlier.any(|(at, other)| other.name == limit.name && is_refusing(other, at))
        };
        limits.iter().enumerate().filter_map(move |(index, limit)| {
            let by_parent = match limit.role {
                Role::Child { parent, .. } => limits
                    .get(usize::from(parent))
                    .is_some_and(|limit| is_refusing(limit, usize::from(parent))),
                Role::Parent | Role::Assured => return None,
                Role::Alone => false,
            };
            let refuses =
                by_parent || is_refusing(limit, index) && !is_refusing_earlier(limit, index);
            (refuses && !limit.is_hidden()).then_some(limit.name.as_str())
        })
    }

    /// What each child may have, from what was measured of its parts: no more than its ceiling, nor
    /// than what is left of its assured limit or of its parent, whichever is more. A parent that
    /// refuses fits as soon as one of the two does.
    pub fn join_children(&mut self, limits: &[Limit]) {
        for (index, limit) in limits.iter().enumerate() {
            let Role::Child { assured, parent } = limit.role else { continue };
            let (assured, parent) = (usize::from(assured), usize::from(parent));
            let part = |index: usize| self.limits.get(index).copied();
            let (Some(sure), Some(shared)) = (part(assured), part(parent)) else { continue };
            if sure.unmeasured.is_some() || shared.unmeasured.is_some() {
                continue;
            }
            if let Some(parent) = self.limits.get_mut(parent).filter(|parent| !parent.fits) {
                let waits = [sure.retry_after_us, shared.retry_after_us];
                parent.retry_after_us = waits.into_iter().flatten().min();
            }
            let key = |part: &LimitOutcome| (part.remaining, std::cmp::Reverse(part.reset_us));
            let most = if key(&sure) > key(&shared) { sure } else { shared };
            let refused = self.limits.get(parent).filter(|parent| !parent.fits).copied();
            if let Some(child) = self.limits.get_mut(index)
                && most.remaining < child.remaining
            {
                child.remaining = most.remaining;
                let own_us = if most.is_leased { 0 } else { child.reset_us };
                child.reset_us = own_us.max(most.reset_us);
                if most.is_leased && child.fits {
                    (child.is_leased, child.retry_after_us) = (true, most.retry_after_us);
                }
                if let Some(refused) = refused.filter(|_| child.fits) {
                    child.retry_after_us = refused.retry_after_us;
                }
            }
        }
    }

    /// Whether the request was refused only because of what requests under way hold.
    #[must_use]
    #[inline]
    pub fn is_held(&self, limits: &[Limit]) -> bool {
        let mut refusing = self.violated(limits).peekable();
        refusing.peek().is_some() && refusing.all(|(limit, outcome)| outcome.is_held(limit.cost))
    }

    /// Microseconds until all refusing limits would fit: the longest of them. `None` if one of them
    /// never will.
    #[must_use]
    pub fn retry_after_us(&self, limits: &[Limit]) -> Option<u64> {
        let mut longest = None;
        for (_, outcome) in self.violated(limits) {
            longest = longest.max(Some(outcome.retry_after_us?));
        }
        longest
    }
}
