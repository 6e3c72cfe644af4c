//! The ranges of algorithms' settings. In them every sum and product that a program forms is a
//! whole number that a double holds.

use crate::{Rate, Setting};

/// Largest amount, burst, cost and adjustment: what all engines count exactly.
pub const AMOUNT_MAX: u64 = 1 << 31;
/// Longest period: 400 days.
pub const PERIOD_MS_MAX: u64 = 400 * 24 * 3600 * 1000;
/// Periods up to this long are counted in microseconds, longer ones in milliseconds.
pub const PERIOD_MS_MAX_FOR_MICROSECONDS: u64 = 3600 * 1000;
/// Units that a `sliding_window_log` holds, at most, and that one request takes from a log or a
/// `concurrency`: each is a member of its own.
pub const MEMBERS_MAX: u64 = 10_000;
/// Sub-windows of a `sliding_window_buckets`, at most.
pub const BUCKETS_MAX: u32 = 1_000;
/// Numbers that a script of the operator's own is given, at most.
pub const ARGUMENTS_MAX: usize = crate::NUMBERS_MAX;
/// Largest of such numbers, either way: what a double holds exactly.
pub const ARGUMENT_MAX: u64 = 1 << 53;
/// `burst x period` in the limit's time unit, at most: products stay whole numbers in a double, and
/// so do their quotients.
pub const BURST_PERIOD_MAX: u64 = 1 << 52;

/// A setting that is out of range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// Which.
    pub setting: Setting,
    /// What stands there.
    pub found: String,
    /// What may stand there.
    pub expected: String,
    /// The range depends on the period, which completes the message.
    pub with_period: bool,
}

impl Breach {
    pub(crate) fn new(setting: Setting, found: impl ToString, expected: impl Into<String>) -> Self {
        let (found, expected) = (found.to_string(), expected.into());
        Self { setting, found, expected, with_period: false }
    }
}

/// Adds a breach where an amount is above its range; whether it keeps it.
pub(crate) fn amount(setting: Setting, amount: u64, breaches: &mut Vec<Breach>) -> bool {
    if amount > AMOUNT_MAX {
        breaches.push(Breach::new(setting, amount, format!("0 to {AMOUNT_MAX}")));
    }
    amount <= AMOUNT_MAX
}

/// The quota, the period and their product with `capacity`, which is set by `setting`; whether all
/// keep their ranges.
pub(crate) fn rate(
    rate: Rate,
    (setting, capacity): (Setting, u64),
    breaches: &mut Vec<Breach>,
) -> bool {
    let quota_fits = amount(Setting::Quota, rate.amount, breaches);
    let capacity_fits = setting == Setting::Quota || amount(setting, capacity, breaches);
    if rate.per_ms == 0 || rate.per_ms > PERIOD_MS_MAX {
        let expected = "a duration from \"1ms\" to \"400d\", such as \"10s\", \"1m\" or \"1h30m\"";
        breaches.push(Breach::new(Setting::Period, format!("{} ms", rate.per_ms), expected));
        return false;
    }
    if !quota_fits || !capacity_fits {
        return false;
    }
    let most = BURST_PERIOD_MAX / rate.period_units();
    if capacity > most {
        let breach = Breach::new(setting, capacity, format!("0 to {most} with a period of"));
        breaches.push(Breach { with_period: true, ..breach });
    }
    capacity <= most
}
