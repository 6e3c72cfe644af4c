//! What a lease of some life means for each algorithm: the numbers that the store has to run with,
//! and for how long a holder may spend.
//!
//! Knows each algorithm by its numbers only. `lua/NAME.lua` says what they are. Next: `holder.rs`.

use std::fmt;

/// How much slower than the store's clock the clock of a holder may run, in parts per million. NTP
/// slews a clock by at most 500 ppm and usually by far less; the quartz of a server is within 100.
/// The bound is on the difference of two clocks.
pub const DRIFT_PPM: u64 = 200;

const MILLION: u128 = 1_000_000;

/// The most sub-windows that `sliding_window_buckets` can have.
const BUCKETS_MAX: u64 = 1_000;

/// An algorithm with the numbers that its program reads. Periods are in the limit's time unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Numbers {
    /// `gcra` and `token_bucket`: `quota` units every `period`, at most `burst` at once.
    Bucket {
        /// Units that come back each period.
        quota: u64,
        /// Time units.
        period: u64,
        /// Units.
        burst: u64,
    },
    /// `sliding_window_log` and `sliding_window_counter`.
    Sliding {
        /// Time units.
        period: u64,
    },
    /// `sliding_window_buckets`.
    SubWindows {
        /// The length of a sub-window, in time units.
        length: u64,
        /// Sub-windows in a period.
        buckets: u64,
    },
    /// `fixed_window`.
    Window {
        /// Time units.
        period: u64,
    },
    /// `quota`: periods of a calendar, or one that never ends.
    Calendar,
    /// `concurrency`.
    Places {
        /// How long the store counts a place that is not renewed, in time units.
        length: u64,
    },
    /// `leaky_bucket`.
    LeakyBucket,
    /// A program of the operator.
    Script,
}

/// Which bound leases keep on a bucket. All other algorithms have one choice only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Bound {
    /// The limit's own: at most burst + rate x T in any span T. The store runs with a burst that is
    /// smaller by what flows in during one life.
    #[default]
    Strict,
    /// At most burst + rate x (T + life) in any span T. The store runs with the whole burst, so
    /// that an idle key admits it at once.
    Loose,
}

/// The terms of a limit's leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// The numbers that the store has to run with, for leases and for requests that ask alone. They
    /// are part of what a counter's state means: processes that run one key with different periods
    /// remove what others still count.
    pub numbers: Numbers,
    /// How long a holder may spend, in microseconds of its own clock, from before its call.
    pub life_us: u64,
    /// The life as the store's clock may see it, in the limit's time unit: never shorter than what
    /// passes there until the holder's deadline.
    pub life_at_store: u64,
    /// Whether a lease also ends with the window that the store reported: see
    /// [`Terms::life_of_grant_us`].
    pub ends_with_window: bool,
    unit_us: u64,
}

/// Why a limit can't be leased as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TermsError {
    /// The life is out of range.
    Life {
        /// The life as written, in microseconds.
        found_us: u64,
        /// The shortest life that these numbers allow, in microseconds.
        least_us: u64,
        /// The longest, in microseconds. Below `least_us` if they allow none.
        most_us: u64,
        /// What a longer or shorter life would break.
        why: &'static str,
    },
    /// A number of the limit is out of range.
    Number {
        /// The setting.
        place: &'static str,
        /// Its value.
        found: u64,
        /// The values that are allowed.
        expected: &'static str,
    },
    /// The algorithm has no leases.
    NoLeases {
        /// Its name.
        algorithm: &'static str,
        /// Why it has none.
        why: &'static str,
    },
}

impl fmt::Display for TermsError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Life { found_us, least_us, most_us, why } => write!(
                out,
                "lease.life: found {found_us} us, expected {least_us} to {most_us} us: {why}"
            ),
            Self::Number { place, found, expected } => {
                write!(out, "{place}: found {found}, expected {expected}")
            }
            Self::NoLeases { algorithm, why } => write!(
                out,
                "lease: found on `{algorithm}`, expected on an algorithm with leases: {why}"
            ),
        }
    }
}

impl std::error::Error for TermsError {}

impl Terms {
    /// The terms of leases that live `life_us` microseconds, on a limit whose time unit has
    /// `unit_us` microseconds (1 or 1,000).
    ///
    /// # Errors
    /// If the algorithm has no leases, if a number is 0, or if the life is too long for it.
    pub fn new(
        numbers: Numbers,
        unit_us: u64,
        life_us: u64,
        bound: Bound,
    ) -> Result<Self, TermsError> {
        if unit_us == 0 {
            return Err(number("unit_us", 0, "1 or 1000"));
        }
        let longest_us = longest_life_us(numbers, unit_us, bound)?;
        if life_us == 0 || life_us > longest_us {
            let why = if life_us == 0 {
                "nothing can be spent before the deadline"
            } else {
                too_long_because(numbers, bound)
            };
            return Err(TermsError::Life {
                found_us: life_us,
                least_us: 1,
                most_us: longest_us,
                why,
            });
        }
        let life_at_store = life_at_store(life_us, unit_us);
        Ok(Self {
            numbers: numbers_at_store(numbers, life_at_store, bound),
            life_us,
            life_at_store,
            ends_with_window: matches!(numbers, Numbers::Window { .. } | Numbers::Calendar),
            unit_us,
        })
    }

    /// How long the units of one grant may be spent, in microseconds of the holder's clock from
    /// before its call. `window_left` is the time until the window ends, in the limit's time unit,
    /// as the store reported it with the grant. `None`: no window ends.
    ///
    /// The instant of the store is rounded down, so one time unit less is left, and the holder's
    /// clock may be slow.
    #[must_use]
    pub fn life_of_grant_us(&self, window_left: Option<u64>) -> u64 {
        let Some(left) = window_left.filter(|_| self.ends_with_window) else {
            return self.life_us;
        };
        let left_us = left.saturating_sub(1).saturating_mul(self.unit_us);
        self.life_us.min(on_slow_clock(left_us))
    }
}

/// The longest life that these numbers allow, in microseconds.
fn longest_life_us(numbers: Numbers, unit_us: u64, bound: Bound) -> Result<u64, TermsError> {
    let before = |place, period: u64| match period {
        0 => Err(number(place, 0, "at least 1")),
        period => Ok(on_slow_clock((period - 1).saturating_mul(unit_us))),
    };
    match numbers {
        Numbers::Bucket { quota: 0, .. } => Err(number("quota", 0, "at least 1")),
        Numbers::Bucket { burst: 0, .. } => Err(number("burst", 0, "at least 1")),
        Numbers::Bucket { period: 0, .. } => Err(number("period", 0, "at least 1")),
        Numbers::Bucket { quota, period, burst } => {
            // The period is what is left after dividing by common factors, so it says nothing
            // alone. This is the longest time in which at most so many units flow in.
            let inflow = if bound == Bound::Strict { burst - 1 } else { burst };
            let units = u128::from(inflow) * u128::from(period) / u128::from(quota);
            Ok(on_slow_clock(clamped(units).saturating_mul(unit_us)))
        }
        Numbers::Sliding { period } | Numbers::Window { period } => before("period", period),
        Numbers::SubWindows { buckets: 0, .. } => Err(number("buckets", 0, "at least 1")),
        Numbers::SubWindows { length, buckets } => {
            let longest_us = before("period", length.saturating_mul(buckets))?;
            let spare = BUCKETS_MAX.saturating_sub(buckets).saturating_mul(length);
            Ok(longest_us.min(on_slow_clock(spare.saturating_mul(unit_us))))
        }
        // Longer than any period of a calendar: a lease ends with its period anyway.
        Numbers::Calendar => Ok(u64::MAX / 2),
        Numbers::Places { length: 0 } => Err(number("store.lease", 0, "at least 1")),
        // A place is counted for its own length, which has to cover the holder's.
        Numbers::Places { length } => Ok(on_slow_clock(length.saturating_mul(unit_us))),
        Numbers::LeakyBucket => Err(TermsError::NoLeases {
            algorithm: "leaky_bucket",
            why: "each request has a turn of its own, which only the store can assign",
        }),
        Numbers::Script => Err(TermsError::NoLeases {
            algorithm: "script",
            why: "only the script knows for how long its units count",
        }),
    }
}

fn too_long_because(numbers: Numbers, bound: Bound) -> &'static str {
    match numbers {
        Numbers::Bucket { .. } if bound == Bound::Strict => {
            "the burst is reduced by what flows in during one life, and at least 1 must be left"
        }
        Numbers::Bucket { .. } => "at most a whole burst may flow in during one life",
        Numbers::SubWindows { .. } => {
            "it is shorter than the period, and both together have at most 1000 sub-windows"
        }
        Numbers::Places { .. } => "the store would count a place for less than its holder uses it",
        _ => "it is shorter than the period",
    }
}

/// What the store has to run with if units are spent up to `life` time units after they were taken.
fn numbers_at_store(numbers: Numbers, life: u64, bound: Bound) -> Numbers {
    match numbers {
        Numbers::Bucket { quota, period, burst } if bound == Bound::Strict => {
            let inflow = (u128::from(quota) * u128::from(life)).div_ceil(u128::from(period));
            Numbers::Bucket { quota, period, burst: burst.saturating_sub(clamped(inflow)) }
        }
        Numbers::Sliding { period } => Numbers::Sliding { period: period.saturating_add(life) },
        Numbers::SubWindows { length, buckets } => Numbers::SubWindows {
            length,
            buckets: buckets.saturating_add(life.div_ceil(length.max(1))),
        },
        unchanged => unchanged,
    }
}

/// What a clock that is [`DRIFT_PPM`] faster shows after less than `life_us`, in time units.
fn life_at_store(life_us: u64, unit_us: u64) -> u64 {
    let us = (u128::from(life_us) * MILLION).div_ceil(MILLION - u128::from(DRIFT_PPM));
    clamped(us).div_ceil(unit_us)
}

/// What a clock that is [`DRIFT_PPM`] slower shows after `us` microseconds, rounded down.
fn on_slow_clock(us: u64) -> u64 {
    clamped(u128::from(us) * (MILLION - u128::from(DRIFT_PPM)) / MILLION)
}

fn clamped(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

fn number(place: &'static str, found: u64, expected: &'static str) -> TermsError {
    TermsError::Number { place, found, expected }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_US: u64 = 1_000_000;

    fn terms(numbers: Numbers, life_us: u64) -> Result<Terms, TermsError> {
        Terms::new(numbers, 1, life_us, Bound::Strict)
    }

    #[test]
    fn a_strict_bucket_gives_up_what_flows_in_during_a_life() {
        // 1,000 a second, 100 at once.
        let bucket = Numbers::Bucket { quota: 1, period: 1_000, burst: 100 };
        let strict = terms(bucket, 50_000).unwrap();
        assert_eq!(strict.life_at_store, 50_011);
        assert_eq!(strict.numbers, Numbers::Bucket { quota: 1, period: 1_000, burst: 49 });
        let loose = Terms::new(bucket, 1, 50_000, Bound::Loose).unwrap();
        assert_eq!((loose.numbers, loose.life_at_store), (bucket, 50_011));
    }

    #[test]
    fn windows_that_slide_keep_units_a_life_longer() {
        let sliding = terms(Numbers::Sliding { period: SECOND_US }, 200_000).unwrap();
        assert_eq!(sliding.numbers, Numbers::Sliding { period: SECOND_US + 200_041 });
        let sub_windows = Numbers::SubWindows { length: 100_000, buckets: 10 };
        let more = Numbers::SubWindows { length: 100_000, buckets: 13 };
        assert_eq!(terms(sub_windows, 200_000).unwrap().numbers, more);
    }

    #[test]
    fn a_life_in_milliseconds_is_rounded_up() {
        let day_ms = 24 * 3600 * 1000;
        let day = Numbers::Sliding { period: day_ms };
        let terms = Terms::new(day, 1_000, 200_000, Bound::Strict).unwrap();
        assert_eq!(terms.numbers, Numbers::Sliding { period: day_ms + 201 });
    }

    #[test]
    fn a_lease_ends_before_the_window_that_the_store_reported() {
        let terms = terms(Numbers::Window { period: SECOND_US }, 200_000).unwrap();
        assert_eq!(terms.life_of_grant_us(None), 200_000);
        assert_eq!(terms.life_of_grant_us(Some(900_000)), 200_000);
        // One unit less, and 200 ppm.
        assert_eq!(terms.life_of_grant_us(Some(100_000)), 99_979);
        assert_eq!(terms.life_of_grant_us(Some(1)), 0);
        assert_eq!(terms.life_of_grant_us(Some(0)), 0);
        let calendar = Terms::new(Numbers::Calendar, 1_000, 200_000, Bound::Strict).unwrap();
        assert_eq!(calendar.life_of_grant_us(Some(100)), 98_980);
    }

    #[test]
    fn the_longest_life_that_an_error_names_is_allowed_and_no_longer_one() {
        let all = [
            Numbers::Bucket { quota: 9, period: 10_000, burst: 20 },
            Numbers::Bucket { quota: 7, period: 3, burst: 1_000 },
            Numbers::Sliding { period: SECOND_US },
            Numbers::SubWindows { length: 16_667, buckets: 60 },
            Numbers::SubWindows { length: 1_000, buckets: 999 },
            Numbers::Window { period: 3 * SECOND_US },
            Numbers::Places { length: 10 * SECOND_US },
        ];
        for numbers in all {
            for (unit_us, bound) in [(1, Bound::Strict), (1, Bound::Loose), (1_000, Bound::Strict)]
            {
                let too_long = Terms::new(numbers, unit_us, u64::MAX / 4, bound);
                let Err(TermsError::Life { most_us, .. }) = too_long else {
                    panic!("{numbers:?}: {too_long:?}");
                };
                let longest = Terms::new(numbers, unit_us, most_us, bound).unwrap();
                assert!(keeps_sense(longest), "{longest:?}");
                let more = Terms::new(numbers, unit_us, most_us + 1, bound);
                assert!(matches!(more, Err(TermsError::Life { .. })), "{more:?}");
            }
        }
    }

    /// Whether something can still be taken, and is counted for long enough.
    fn keeps_sense(terms: Terms) -> bool {
        match terms.numbers {
            Numbers::Bucket { burst, .. } => burst > 0,
            Numbers::SubWindows { buckets, .. } => buckets <= BUCKETS_MAX,
            Numbers::Places { length } => terms.life_at_store <= length,
            _ => true,
        }
    }

    #[test]
    fn a_bucket_of_one_unit_has_no_strict_lease() {
        let bucket = Numbers::Bucket { quota: 1, period: 1_000, burst: 1 };
        let error = terms(bucket, 1_000).unwrap_err();
        assert_eq!(
            error.to_string(),
            "lease.life: found 1000 us, expected 1 to 0 us: the burst is reduced by what flows in \
             during one life, and at least 1 must be left"
        );
    }

    #[test]
    fn algorithms_without_leases_say_so() {
        for (numbers, name) in [(Numbers::LeakyBucket, "leaky_bucket"), (Numbers::Script, "script")]
        {
            let error = terms(numbers, 1_000).unwrap_err();
            assert!(matches!(error, TermsError::NoLeases { algorithm, .. } if algorithm == name));
        }
    }

    #[test]
    fn a_number_that_is_zero_is_named() {
        let empty = Numbers::Bucket { quota: 1, period: 1_000, burst: 0 };
        let error = terms(empty, 1_000).unwrap_err();
        assert_eq!(error.to_string(), "burst: found 0, expected at least 1");
        assert!(terms(Numbers::Sliding { period: 0 }, 1_000).is_err());
        assert!(terms(Numbers::SubWindows { length: 10, buckets: 0 }, 1).is_err());
        assert!(terms(Numbers::Places { length: 0 }, 1).is_err());
    }
}
