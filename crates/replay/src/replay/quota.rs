//! A limit with another quota: the same algorithm and period.

use crate::plan::{
    Algorithm, Concurrency, FixedWindow, Gcra, LeakyBucket, Quota, Rate, SlidingWindowBuckets,
    SlidingWindowCounter, SlidingWindowLog, TokenBucket,
};

/// The same algorithm with this quota, and with its burst in the same proportion, rounded up.
/// `None` for scripts, for what refuses everything, and where it would be out of range.
#[must_use]
pub fn with_quota(algorithm: &Algorithm, quota: u64) -> Option<Algorithm> {
    let now = algorithm.amount().filter(|amount| *amount > 0)?;
    let rate = |rate: Rate| Rate { amount: quota, ..rate };
    let burst = |burst: u64| {
        let burst = (u128::from(burst) * u128::from(quota)).div_ceil(u128::from(now));
        u64::try_from(burst).unwrap_or(u64::MAX)
    };
    let other: Algorithm = match algorithm {
        Algorithm::FixedWindow(it) => FixedWindow { rate: rate(it.rate), ..*it }.into(),
        Algorithm::SlidingWindowCounter(it) => {
            SlidingWindowCounter { rate: rate(it.rate), ..*it }.into()
        }
        Algorithm::SlidingWindowLog(it) => SlidingWindowLog { rate: rate(it.rate), ..*it }.into(),
        Algorithm::SlidingWindowBuckets(it) => {
            SlidingWindowBuckets { rate: rate(it.rate), ..*it }.into()
        }
        Algorithm::TokenBucket(it) => {
            TokenBucket { rate: rate(it.rate), burst: burst(it.burst), ..*it }.into()
        }
        Algorithm::Gcra(it) => Gcra { rate: rate(it.rate), burst: burst(it.burst), ..*it }.into(),
        Algorithm::LeakyBucket(it) => {
            LeakyBucket { rate: rate(it.rate), burst: burst(it.burst), ..*it }.into()
        }
        Algorithm::Concurrency(_) => Concurrency { amount: quota }.into(),
        Algorithm::Quota(it) => Quota { amount: quota, ..it.clone() }.into(),
        Algorithm::Script(_) => return None,
    };
    Some(other).filter(|other| other.breaches().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Debt;

    #[test]
    fn the_burst_follows_the_quota() {
        let rate = Rate { amount: 10, per_ms: 1_000 };
        let gcra = Algorithm::from(Gcra { rate, burst: 15, debt: Debt::None });
        let other = with_quota(&gcra, 25).unwrap();
        assert_eq!((other.amount(), other.capacity()), (Some(25), Some(38)));
        assert_eq!(other.rate().unwrap().per_ms, 1_000);
        assert_eq!(with_quota(&gcra, 1 << 60), None);
        let none = Algorithm::from(Concurrency { amount: 0 });
        assert_eq!(with_quota(&none, 5), None);
        assert_eq!(with_quota(&Concurrency { amount: 3 }.into(), 5).unwrap().amount(), Some(5));
    }
}
