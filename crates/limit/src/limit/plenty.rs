//! Whether the limits of a plan had plenty a moment ago, so that looking at them before they are
//! taken would be of no use.
//!
//! A wrong answer costs a roll-back, and never admits or refuses a request. So it may be remembered
//! loosely: for each plan and worker that prepared it, with one atomic.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::clock::monotonic;
use crate::plan::{Limit, LimitOutcome, PlanOutcome};

/// For how long it is taken for granted.
const FRESH: Duration = Duration::from_millis(100);
/// A limit has plenty if this part of its allowance is left, one in so many ...
const PART: u64 = 2;
/// ... and so many times what the request cost.
const TIMES: u64 = 8;

/// What a plan's limits had. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Plenty(Arc<AtomicU64>);

/// Microseconds since the first call.
fn now_us() -> u64 {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    let now = monotonic();
    let since = now.saturating_duration_since(*BEGIN.get_or_init(|| now));
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

impl Plenty {
    /// Whether all limits had plenty a moment ago.
    pub(super) fn is_likely(&self) -> bool {
        now_us() < self.0.load(Ordering::Relaxed)
    }

    /// Notes what became of a request.
    pub(super) fn note(&self, limits: &[Limit], outcome: &PlanOutcome) {
        let all = limits.iter().zip(&outcome.limits).all(has_plenty);
        let until = if outcome.admitted && all { now_us() + FRESH.as_micros() as u64 } else { 0 };
        self.0.store(until, Ordering::Relaxed);
    }
}

fn has_plenty((limit, outcome): (&Limit, &LimitOutcome)) -> bool {
    let least = limit
        .algorithm
        .capacity()
        .map(|all| all.div_ceil(PART).max(limit.cost.saturating_mul(TIMES)));
    let is_measured = outcome.unmeasured.is_none() && !outcome.is_local && !outcome.is_leased;
    is_measured && least.is_some_and(|least| outcome.remaining >= least)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Algorithm, Debt, Gcra, Rate};

    fn plenty(remaining: u64, change: impl Fn(&mut LimitOutcome)) -> bool {
        let rate = Rate { amount: 100, per_ms: 1_000 };
        let bucket = Algorithm::from(Gcra { burst: 100, rate, debt: Debt::None });
        let limits = [Limit { cost: 7, ..Limit::new("a", "k", bucket) }];
        let mut outcome = LimitOutcome { fits: true, remaining, ..LimitOutcome::default() };
        change(&mut outcome);
        let admitted = outcome.fits;
        let outcome = PlanOutcome { admitted, limits: vec![outcome], store_failure: None };
        let plenty = Plenty::default();
        plenty.note(&limits, &outcome);
        plenty.clone().is_likely()
    }

    #[test]
    fn half_of_it_and_eight_times_the_cost_is_plenty() {
        assert!(plenty(56, |_| ()));
        assert!(!plenty(55, |_| ()), "eight times 7 is 56");
        assert!(!plenty(49, |_| ()));
        assert!(!plenty(100, |outcome| outcome.fits = false));
        assert!(!plenty(100, |outcome| outcome.is_local = true));
        assert!(!plenty(100, |outcome| outcome.unmeasured = Some(crate::plan::OnStoreError::Allow)));
        assert!(!Plenty::default().is_likely());
    }
}
