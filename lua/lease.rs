//! Leases of a limit: what it has to run with at the store so that units may be spent later than
//! they were taken. The arithmetic is that of `weir-lease`; here an algorithm's settings become its
//! numbers, and the answer becomes settings again.

use weir_lease::{Bound, Numbers, Terms, TermsError};

use crate::{Algorithm, Breach, Debt, Rate};

/// Longest life of a lease, in milliseconds: what a proxy that dies may leave unused for as long.
pub const LEASE_MS_MAX: u64 = 60_000;

/// The shortest life of a lease that is handed to callers, in milliseconds: they count whole
/// seconds, and what they are told and report is under way for nearly another one
/// ([`DELIVERY_US`](weir_lease::DELIVERY_US)).
const LEASE_TO_CALLERS_MS_MIN: u64 = 2_000;

/// For how long the store counts a place at least, in milliseconds: more than the longest life, as
/// a clock may be slow.
const PLACE_MS: u64 = 2 * LEASE_MS_MAX;

/// How units of a limit are leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// How long a proxy may spend what it took, in milliseconds: 1 to [`LEASE_MS_MAX`].
    pub life_ms: u64,
    /// The most units of one lease, at least 1. `None`: what the proxy wants in one life.
    pub units_max: Option<u64>,
    /// Which bound it keeps on a bucket.
    pub bound: Bound,
    /// Units are handed to those who ask for quotas, such as Envoy, and to no worker. Then counters
    /// in memory are leased, too.
    pub to_callers: bool,
}

impl Lease {
    /// Leases of this life that keep the limit's own bound.
    #[must_use]
    pub fn of_ms(life_ms: u64) -> Self {
        Self { life_ms, units_max: None, bound: Bound::Strict, to_callers: false }
    }
}

/// A limit with its leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leased {
    /// What the store runs with, for leases and for requests that ask alone.
    pub at_store: Algorithm,
    /// For how long units may be spent.
    pub terms: Terms,
}

impl Algorithm {
    /// This algorithm with leases.
    ///
    /// # Errors
    /// It has none, or none of this life: what is expected instead of it.
    pub fn leased(&self, lease: Lease) -> Result<Leased, String> {
        let Lease { life_ms, bound, to_callers, .. } = lease;
        if to_callers && !(LEASE_TO_CALLERS_MS_MIN..=LEASE_MS_MAX).contains(&life_ms) {
            return Err("a duration from \"2s\" to \"1m\", as callers count whole seconds".into());
        }
        if life_ms == 0 || life_ms > LEASE_MS_MAX {
            return Err("a duration from \"1ms\" to \"1m\", such as \"200ms\"".into());
        }
        if to_callers && matches!(self, Self::Concurrency(_)) {
            return Err(
                "nothing: a place is given back when its request ends, which no quota says".into(),
            );
        }
        let terms = Terms::new(self.lease_numbers(), self.unit_us(), life_ms * 1_000, bound);
        let terms = terms.map_err(|error| self.expected(&error))?;
        let none = || format!("nothing: {} has no leases", self.name());
        let at_store = self.with_numbers(terms.numbers).ok_or_else(none)?;
        match at_store.breaches().first() {
            None => Ok(Leased { at_store, terms }),
            Some(Breach { setting, found, expected, .. }) => Err(format!(
                "less: with it the store would run with a `{}` of {found}, and expects {expected}",
                setting.key()
            )),
        }
    }

    fn expected(&self, error: &TermsError) -> String {
        match error {
            TermsError::Life { most_us, why, .. } if *most_us < 1_000 => {
                format!("nothing: {why}")
            }
            TermsError::Life { most_us, why, .. } => {
                format!("at most {}.{:03} ms: {why}", most_us / 1_000, most_us % 1_000)
            }
            TermsError::Number { place, expected, .. } => {
                format!("nothing, or a `{place}` of {expected}")
            }
            TermsError::NoLeases { why, .. } => {
                format!("nothing: {} has no leases, because {why}", self.name())
            }
        }
    }

    fn lease_numbers(&self) -> Numbers {
        let bucket = |rate: Rate, burst| {
            let ticking = rate.ticking();
            Numbers::Bucket { quota: ticking.amount, period: ticking.period, burst }
        };
        match self {
            Self::FixedWindow(it) => Numbers::Window { period: it.rate.period_units() },
            Self::SlidingWindowCounter(it) => Numbers::Sliding { period: it.rate.period_units() },
            Self::SlidingWindowLog(it) => Numbers::Sliding { period: it.rate.period_units() },
            Self::SlidingWindowBuckets(it) => {
                let buckets = u64::from(it.buckets.max(1));
                Numbers::SubWindows { length: it.rate.period_units().div_ceil(buckets), buckets }
            }
            Self::TokenBucket(it) => bucket(it.rate, it.burst),
            Self::Gcra(it) => bucket(it.rate, it.burst),
            Self::Quota(_) => Numbers::Calendar,
            Self::LeakyBucket(_) => Numbers::LeakyBucket,
            // The store counts a place for `store.lease`, of which a limiter allows a part.
            Self::Concurrency(_) => Numbers::Places { length: PLACE_MS },
            Self::Script(_) => Numbers::Script,
        }
    }

    /// The same with numbers that a store needs for leases. Where they can't be written as settings
    /// to the last time unit, windows are a little longer, which is stricter.
    fn with_numbers(&self, numbers: Numbers) -> Option<Self> {
        let unit_us = self.unit_us();
        let ms = |units: u64| units.saturating_mul(unit_us).div_ceil(1_000);
        let longer = |rate: Rate, period| Rate { per_ms: ms(period), ..rate };
        // A whole allowance may be owed: that of the limit as it is written.
        let debt = |debt: Debt| match debt {
            Debt::Allowance => Debt::Units(self.capacity().unwrap_or(0)),
            other => other,
        };
        Some(match (self.clone(), numbers) {
            (Self::TokenBucket(it), Numbers::Bucket { burst, .. }) => {
                crate::TokenBucket { burst, debt: debt(it.debt), ..it }.into()
            }
            (Self::Gcra(it), Numbers::Bucket { burst, .. }) => {
                crate::Gcra { burst, debt: debt(it.debt), ..it }.into()
            }
            (Self::SlidingWindowCounter(it), Numbers::Sliding { period }) => {
                crate::SlidingWindowCounter { rate: longer(it.rate, period), ..it }.into()
            }
            (Self::SlidingWindowLog(it), Numbers::Sliding { period }) => {
                crate::SlidingWindowLog { rate: longer(it.rate, period), ..it }.into()
            }
            (Self::SlidingWindowBuckets(it), Numbers::SubWindows { length, buckets }) => {
                let rate = longer(it.rate, length.saturating_mul(buckets));
                let buckets = u32::try_from(buckets).unwrap_or(u32::MAX);
                crate::SlidingWindowBuckets { rate, buckets, ..it }.into()
            }
            (Self::FixedWindow(_) | Self::Quota(_) | Self::Concurrency(_), _) => self.clone(),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Alignment, Concurrency, FixedWindow, Gcra, LeakyBucket, SlidingWindowBuckets,
        SlidingWindowCounter, SlidingWindowLog, TokenBucket,
    };

    const SECOND: Rate = Rate { amount: 1_000, per_ms: 1_000 };

    fn at_store(algorithm: impl Into<Algorithm>, life_ms: u64) -> Algorithm {
        algorithm.into().leased(Lease::of_ms(life_ms)).unwrap().at_store
    }

    #[test]
    fn a_bucket_has_a_smaller_burst_at_the_store() {
        let gcra = |burst| Gcra { burst, rate: SECOND, debt: Debt::None };
        assert_eq!(at_store(gcra(300), 200), gcra(99).into());
        let bucket = |burst, debt| TokenBucket { burst, rate: SECOND, debt };
        let owing = bucket(99, Debt::Units(300));
        assert_eq!(at_store(bucket(300, Debt::Allowance), 200), owing.into());
        let loose = Lease { bound: Bound::Loose, ..Lease::of_ms(200) };
        assert_eq!(Algorithm::from(gcra(300)).leased(loose).unwrap().at_store, gcra(300).into());
    }

    #[test]
    fn a_sliding_window_is_longer_at_the_store() {
        let rate = |per_ms| Rate { per_ms, ..SECOND };
        let log = |per_ms| SlidingWindowLog { rate: rate(per_ms), debt: Debt::None };
        assert_eq!(at_store(log(1_000), 200), log(1_201).into());
        let counter = |per_ms| SlidingWindowCounter { rate: rate(per_ms), debt: Debt::None };
        assert_eq!(at_store(counter(7_200_000), 200), counter(7_200_201).into());
        let ring = |per_ms, buckets| SlidingWindowBuckets {
            rate: rate(per_ms),
            buckets,
            debt: Debt::None,
        };
        assert_eq!(at_store(ring(1_000, 10), 200), ring(1_300, 13).into());
        // Sub-windows of 16,667 us, which can't be written as a period in milliseconds.
        assert_eq!(at_store(ring(1_000, 60), 200), ring(1_217, 73).into());
    }

    #[test]
    fn windows_with_an_end_and_places_are_the_same_at_the_store() {
        let window =
            FixedWindow { rate: SECOND, alignment: Alignment::FirstRequest, debt: Debt::None };
        assert_eq!(at_store(window, 200), window.into());
        let places = Concurrency { amount: 5 };
        assert_eq!(at_store(places, LEASE_MS_MAX), places.into());
    }

    #[test]
    fn what_is_not_possible_says_why() {
        let error =
            |algorithm: Algorithm, life_ms| algorithm.leased(Lease::of_ms(life_ms)).unwrap_err();
        let gcra = |burst| Gcra { burst, rate: SECOND, debt: Debt::None }.into();
        let why =
            "the burst is reduced by what flows in during one life, and at least 1 must be left";
        assert_eq!(error(gcra(100), 200), format!("at most 98.980 ms: {why}"));
        assert_eq!(error(gcra(1), 200), format!("nothing: {why}"));
        let leaky = LeakyBucket { burst: 5, rate: SECOND, max_delay_ms: 100 };
        assert!(error(leaky.into(), 200).starts_with("nothing: leaky_bucket has no leases,"));
        for life_ms in [0, LEASE_MS_MAX + 1] {
            assert!(error(gcra(100), life_ms).starts_with("a duration from \"1ms\" to \"1m\""));
        }
        let to_callers = Lease { to_callers: true, ..Lease::of_ms(1_999) };
        let short = Algorithm::from(Gcra { burst: 9_000, rate: SECOND, debt: Debt::None });
        assert!(short.leased(to_callers).unwrap_err().starts_with("a duration from \"2s\""));
        let of_callers = Lease { life_ms: 2_000, ..to_callers };
        assert!(short.leased(of_callers).is_ok());
        let places = Algorithm::from(Concurrency { amount: 5 });
        assert!(places.leased(of_callers).unwrap_err().starts_with("nothing: a place is given"));
        let rate = Rate { per_ms: crate::PERIOD_MS_MAX, ..SECOND };
        let longest = SlidingWindowLog { rate, debt: Debt::None };
        assert!(error(longest.into(), 200).starts_with("less: with it the store would run with"));
    }

    /// Whatever the settings, the store runs with windows at least as long as the terms say.
    #[test]
    fn rounding_makes_windows_longer_only() {
        for (per_ms, buckets, life_ms) in [(2, 1, 1), (7, 3, 5), (3_599_999, 999, 1), (999, 997, 1)]
        {
            let rate = Rate { amount: 5, per_ms };
            let ring = Algorithm::from(SlidingWindowBuckets { rate, buckets, debt: Debt::None });
            let leased = ring.leased(Lease::of_ms(life_ms)).unwrap();
            let Numbers::SubWindows { length, buckets } = leased.terms.numbers else { panic!() };
            let (Numbers::SubWindows { length: found, buckets: number }, unit_us) =
                (leased.at_store.lease_numbers(), leased.at_store.unit_us())
            else {
                panic!()
            };
            assert_eq!(number, buckets);
            assert!(found * unit_us >= length * ring.unit_us(), "{leased:?}");
        }
    }
}
