//! How much a limit lets through at most, and whether another limit can ever refuse that.
//!
//! All bounds are safe: where the exact one is hard to compute, the larger is used, so that a limit
//! is called useless only if it is.

use crate::plan::{Algorithm, Calendar, Rate};

const HOUR_MS: u128 = 3_600_000;
/// A calendar's periods, the shortest and the longest, with a clock change of an hour.
const DAY_MS: (u128, u128) = (23 * HOUR_MS, 25 * HOUR_MS);
const WEEK_MS: (u128, u128) = (7 * 24 * HOUR_MS - HOUR_MS, 7 * 24 * HOUR_MS + HOUR_MS);
const MONTH_MS: (u128, u128) = (28 * 24 * HOUR_MS - HOUR_MS, 31 * 24 * HOUR_MS + HOUR_MS);

/// The most that a limit lets through in any time: `at_once`, and `quota` for each `per_ms` after
/// that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UpperBound {
    at_once: u128,
    quota: u128,
    per_ms: u128,
    /// Whether the quota comes at once at the end of each period, or bit by bit.
    in_steps: bool,
}

impl UpperBound {
    /// `None` if it can't be said: of scripts, of requests in flight, and of limits that never
    /// refuse.
    pub(super) fn of(algorithm: &Algorithm) -> Option<Self> {
        let steps = |times: u128, rate: Rate| Self {
            at_once: times * u128::from(rate.amount),
            quota: u128::from(rate.amount),
            per_ms: u128::from(rate.per_ms.max(1)),
            in_steps: true,
        };
        let bucket = |burst: u64, rate: Rate| Self {
            at_once: u128::from(burst),
            in_steps: false,
            ..steps(1, rate)
        };
        Some(match algorithm {
            // Two windows' quotas around a border.
            Algorithm::FixedWindow(it) => steps(2, it.rate),
            Algorithm::SlidingWindowCounter(it) => steps(2, it.rate),
            Algorithm::SlidingWindowLog(it) => steps(1, it.rate),
            // A bucket more than the quota, and that may be the whole quota.
            Algorithm::SlidingWindowBuckets(it) => {
                let once = steps(2, it.rate);
                Self { quota: once.at_once, ..once }
            }
            Algorithm::Gcra(it) => bucket(it.burst, it.rate),
            Algorithm::TokenBucket(it) => bucket(it.burst, it.rate),
            Algorithm::LeakyBucket(it) => bucket(algorithm.cost_max()?, it.rate),
            Algorithm::Quota(it) if it.conditional => {
                let amount = u128::from(it.amount);
                match calendar_ms(&it.calendar) {
                    Some((shortest, _)) => Self {
                        at_once: 2 * amount,
                        quota: amount,
                        per_ms: shortest,
                        in_steps: true,
                    },
                    None => Self { at_once: amount, quota: 0, per_ms: 1, in_steps: true },
                }
            }
            Algorithm::Quota(_) | Algorithm::Concurrency(_) | Algorithm::Script(_) => return None,
        })
    }

    /// The units in any span of this length, its last instant excluded.
    fn within(&self, ms: u128) -> u128 {
        let later = match self.in_steps {
            true => self.quota * (ms.div_ceil(self.per_ms).saturating_sub(1)),
            false => (self.quota * ms).div_ceil(self.per_ms),
        };
        self.at_once + later
    }

    /// Whether it is never faster than this rate, but for what comes at once. Of a bucket with this
    /// rate, only what comes at once then takes anything from the burst.
    pub(super) fn is_within(&self, rate: Rate) -> bool {
        self.quota * u128::from(rate.per_ms) <= u128::from(rate.amount) * self.per_ms
    }
}

/// Whether `loose` never refuses what `strict` lets through, both charged the same. `together`:
/// they are charged by the same requests, so windows of the same kind begin together.
pub(super) fn never_refuses(loose: &Algorithm, strict: &Algorithm, together: bool) -> bool {
    if let (Algorithm::Concurrency(loose), Algorithm::Concurrency(strict)) = (loose, strict) {
        return strict.amount <= loose.amount;
    }
    if together && is_alike(loose, strict) {
        return strict.amount() <= loose.amount();
    }
    let Some(most) = UpperBound::of(strict) else { return false };
    let fits = |amount: u64, ms: u128| most.within(ms) <= u128::from(amount);
    match loose {
        Algorithm::FixedWindow(it) => fits(it.rate.amount, u128::from(it.rate.per_ms)),
        Algorithm::SlidingWindowLog(it) => fits(it.rate.amount, u128::from(it.rate.per_ms)),
        // The last window counts in proportion, wherever in it the units came.
        Algorithm::SlidingWindowCounter(it) => fits(it.rate.amount, 2 * u128::from(it.rate.per_ms)),
        // The oldest sub-window counts as a whole.
        Algorithm::SlidingWindowBuckets(it) => fits(it.rate.amount, 2 * u128::from(it.rate.per_ms)),
        Algorithm::Gcra(it) => most.at_once <= u128::from(it.burst) && most.is_within(it.rate),
        Algorithm::TokenBucket(it) => {
            most.at_once <= u128::from(it.burst) && most.is_within(it.rate)
        }
        Algorithm::Quota(it) => match calendar_ms(&it.calendar) {
            Some((_, longest)) => fits(it.amount, longest),
            None => most.quota == 0 && most.at_once <= u128::from(it.amount),
        },
        // It delays as well, and of these nobody knows.
        Algorithm::LeakyBucket(_) | Algorithm::Concurrency(_) | Algorithm::Script(_) => false,
    }
}

/// Whether both count in the same windows: of the same algorithm, length and alignment.
fn is_alike(one: &Algorithm, other: &Algorithm) -> bool {
    match (one, other) {
        (Algorithm::FixedWindow(one), Algorithm::FixedWindow(other)) => {
            one.rate.per_ms == other.rate.per_ms && one.alignment == other.alignment
        }
        (Algorithm::SlidingWindowCounter(one), Algorithm::SlidingWindowCounter(other)) => {
            one.rate.per_ms == other.rate.per_ms
        }
        (Algorithm::SlidingWindowBuckets(one), Algorithm::SlidingWindowBuckets(other)) => {
            one.rate.per_ms == other.rate.per_ms && one.buckets == other.buckets
        }
        (Algorithm::Quota(one), Algorithm::Quota(other)) => {
            one.conditional && other.conditional && one.calendar == other.calendar
        }
        _ => false,
    }
}

/// The shortest and the longest of a calendar's periods; `None` if there is one without an end.
fn calendar_ms(calendar: &Calendar) -> Option<(u128, u128)> {
    match calendar {
        // A day's last hour may be short. None is longer than two, whatever the zone does.
        Calendar::Hour(_) => Some((1, 2 * HOUR_MS)),
        Calendar::Day(_) => Some(DAY_MS),
        Calendar::Week(_) => Some(WEEK_MS),
        Calendar::Month { .. } => Some(MONTH_MS),
        Calendar::Forever => None,
    }
}
