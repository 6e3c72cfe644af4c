//! Describes counters' states in words, for several algorithms. It follows the same rules as the
//! Lua programs, but decides nothing and is never written back.

use crate::{NUMBERS_MAX, PERIOD_MS_MAX_FOR_MICROSECONDS, utc_text};

/// The present time in a counter's unit.
#[derive(Clone, Copy)]
pub(crate) struct Time {
    unit_us: u64,
    pub(crate) now: u64,
}

impl Time {
    /// The time for a counter with this period.
    pub(crate) fn of(period_ms: u64, at_us: u64) -> Self {
        let unit_us = if period_ms <= PERIOD_MS_MAX_FOR_MICROSECONDS { 1 } else { 1000 };
        Self { unit_us, now: at_us / unit_us }
    }

    /// The time for a counter in milliseconds.
    pub(crate) fn in_ms(at_us: u64) -> Self {
        Self { unit_us: 1000, now: at_us / 1000 }
    }

    /// Converts milliseconds to this unit.
    pub(crate) fn units(self, ms: u64) -> u64 {
        ms.saturating_mul(1000 / self.unit_us)
    }

    /// An instant as readable text.
    pub(crate) fn at(self, units: u64) -> String {
        utc_text(i64::try_from(units.saturating_mul(self.unit_us) / 1000).unwrap_or(i64::MAX))
    }

    /// The time from now until an instant.
    pub(crate) fn until(self, units: u64) -> String {
        self.span(units.saturating_sub(self.now))
    }

    fn span(self, units: u64) -> String {
        let us = units.saturating_mul(self.unit_us);
        format!("{}.{:03} s", us / 1_000_000, us / 1_000 % 1_000)
    }
}

/// Converts a state's number that is never below zero.
pub(crate) fn whole(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// `3 of 5 used`, or `3 used` if the allowance is not known.
pub(crate) fn used(count: u64, of: Option<u64>) -> String {
    of.map_or_else(|| format!("{count} used"), |amount| format!("{count} of {amount} used"))
}

/// How many of `count` units the next window has to pay, of those that were charged as owed.
pub(crate) fn owed(count: u64, owing: u64, quota: u64) -> u64 {
    count.saturating_sub(quota).min(owing)
}

/// `10 of 10 used and 5 owed`, for 15 units of which 5 are owed.
pub(crate) fn used_and_owed(count: u64, quota: u64, owed: u64) -> String {
    let used = used(count.min(quota), Some(quota));
    if owed > 0 { format!("{used} and {owed} owed") } else { used }
}

/// A bucket's numbers, in ticks of 1 / quota time units.
pub(crate) struct Bucket {
    unit: i128,
    back: i128,
    burst: u64,
    /// Which units there are below zero.
    below_zero: &'static str,
}

impl Bucket {
    /// Reads it from its program's numbers. `None` for a bucket that never refills.
    pub(crate) fn new(numbers: [i64; NUMBERS_MAX], below_zero: &'static str) -> Option<Self> {
        let [quota, period, burst, ..] = numbers;
        let (unit, back) = (period.into(), quota.into());
        (quota > 0).then_some(Self { unit, back, burst: whole(burst), below_zero })
    }

    pub(crate) fn full(&self) -> i128 {
        i128::from(self.burst) * self.unit
    }

    /// The level `elapsed` time units after it was this many whole tokens and ticks.
    pub(crate) fn level(&self, tokens: i64, ticks: i64, elapsed: i128) -> i128 {
        i128::from(tokens) * self.unit + i128::from(ticks) + elapsed * self.back
    }

    /// Describes a level in ticks; below zero there is a queue, or a debt.
    pub(crate) fn describe(&self, time: Time, level: i128) -> String {
        let level = level.min(self.full());
        let left = level.div_euclid(self.unit).max(0);
        let spent = self.burst.saturating_sub(u64::try_from(left).unwrap_or(u64::MAX));
        let used = used(spent, Some(self.burst));
        let after = |ticks: i128| {
            let units = (ticks + self.back - 1).div_euclid(self.back);
            time.span(u64::try_from(units).unwrap_or(u64::MAX))
        };
        let below = (-level + self.unit - 1).div_euclid(self.unit).max(0);
        let below =
            if below > 0 { format!(" and {below} {}", self.below_zero) } else { String::new() };
        let all = after(self.full() - level);
        match spent {
            0 => used,
            1 => format!("{used}{below}, back in {all}"),
            _ => {
                let one = after((left + 1) * self.unit - level);
                format!("{used}{below}, 1 back in {one}, all in {all}")
            }
        }
    }
}

/// Describes the state of `gcra` and `leaky_bucket`: the instant `empty` plus `rest` ticks, at
/// which nothing was or will be left. With `full`, the state means nothing at this time, and the
/// bucket is full.
pub(crate) fn emptied(
    time: Time,
    [empty, rest]: [i64; 2],
    bucket: Option<&Bucket>,
    full: bool,
) -> String {
    let since = i128::from(time.now) - i128::from(empty);
    let Some(bucket) = bucket else {
        if since < 0 {
            let empty = whole(empty);
            return format!("nothing left until {}, in {}", time.at(empty), time.until(empty));
        }
        let ago = time.span(u64::try_from(since).unwrap_or(u64::MAX));
        let empty = time.at(whole(empty));
        return format!("nothing left at {empty}, {ago} ago; at most a burst has come back since");
    };
    let level = since * bucket.back - i128::from(rest);
    bucket.describe(time, if full { bucket.full() } else { level })
}
