//! The ranges of the algorithms' settings. Within them every sum and product in a program is a
//! whole number that a double represents exactly.

use crate::{Rate, Setting};

/// Largest amount, burst, cost and adjustment that all engines count exactly.
pub const AMOUNT_MAX: u64 = 1 << 52;
/// Longest period: 400 days.
pub const PERIOD_MS_MAX: u64 = 400 * 24 * 3600 * 1000;
/// Periods up to this long are counted in microseconds, longer ones in milliseconds.
pub const PERIOD_MS_MAX_FOR_MICROSECONDS: u64 = 3600 * 1000;
/// Maximum number of units that a `sliding_window_log` holds, and that one request takes from a log
/// or a `concurrency`: each is stored as its own member.
pub const MEMBERS_MAX: u64 = 10_000;
/// Maximum number of sub-windows of a `sliding_window_buckets`.
pub const BUCKETS_MAX: u32 = 1_000;
/// Maximum number of arguments of an operator's script.
pub const ARGUMENTS_MAX: usize = 6;
/// Largest absolute value of such an argument: what a double represents exactly.
pub const ARGUMENT_MAX: u64 = 1 << 53;
/// Maximum of `burst x period` of a bucket in the limit's time unit, once quota and period are
/// divided by what they have in common, so that products and their quotients stay exact whole
/// numbers in a double. A debt counts as a larger burst.
pub const BURST_PERIOD_MAX: u64 = 1 << 52;

/// A setting that is out of range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// The setting.
    pub setting: Setting,
    /// The value found.
    pub found: String,
    /// The expected range.
    pub expected: String,
    /// Whether the range depends on the period, which then completes the message.
    pub with_period: bool,
}

impl Breach {
    pub(crate) fn new(setting: Setting, found: impl ToString, expected: impl Into<String>) -> Self {
        let (found, expected) = (found.to_string(), expected.into());
        Self { setting, found, expected, with_period: false }
    }
}

/// Adds a breach if an amount is above its range; returns whether it is in range.
pub(crate) fn amount(setting: Setting, amount: u64, breaches: &mut Vec<Breach>) -> bool {
    if amount > AMOUNT_MAX {
        breaches.push(Breach::new(setting, amount, format!("0 to {AMOUNT_MAX}")));
    }
    amount <= AMOUNT_MAX
}

/// Checks the quota, the period, and the burst of a bucket; returns whether all are in range.
pub(crate) fn rate(rate: Rate, burst: Option<u64>, breaches: &mut Vec<Breach>) -> bool {
    let quota_fits = amount(Setting::Quota, rate.amount, breaches);
    let burst_fits = burst.is_none_or(|burst| amount(Setting::Burst, burst, breaches));
    if rate.per_ms == 0 || rate.per_ms > PERIOD_MS_MAX {
        let expected = "a duration from \"1ms\" to \"400d\", such as \"10s\", \"1m\" or \"1h30m\"";
        breaches.push(Breach::new(Setting::Period, format!("{} ms", rate.per_ms), expected));
        return false;
    }
    if !quota_fits || !burst_fits {
        return false;
    }
    let most = burst_max(rate);
    let Some(burst) = burst.filter(|burst| *burst > most) else { return true };
    let expected = format!(
        "a burst (by default the quota) of 0 to {most}, or a rounder quota, with a period of"
    );
    let breach = Breach::new(Setting::Burst, burst, expected);
    breaches.push(Breach { with_period: true, ..breach });
    false
}

/// The largest burst of a bucket of this rate, debt included.
pub(crate) fn burst_max(rate: Rate) -> u64 {
    BURST_PERIOD_MAX / rate.ticking().period.max(1)
}
