//! `fixed_window`: a quota in each window of a period.

use crate::written::Written;
#[cfg(feature = "host")]
use crate::{
    Content,
    state::{Time, owed, used, used_and_owed, whole},
};
use crate::{Debt, Describe, Moment, NUMBERS_MAX, Program, Rate, Setting, ShapeExtra, shape};

/// At most `rate.amount` in each window of `rate.per_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FixedWindow {
    /// The quota of a window and its length.
    pub rate: Rate,
    /// Where a window starts.
    pub alignment: Alignment,
    /// How far charges may go beyond it.
    pub debt: Debt,
}

/// Where a fixed window starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Alignment {
    /// At the first request after the previous window's end.
    FirstRequest,
    /// At whole multiples of the period since 1970.
    Clock,
}

impl Alignment {
    /// All alignments with their names.
    pub const ALL: [(&'static str, Self); 2] =
        [("first_request", Self::FirstRequest), ("clock", Self::Clock)];
}

impl Describe for FixedWindow {
    const NAME: &'static str = "fixed_window";
    const CODE: &'static str = "fw2";
    const WINDOWS: bool = true;
    const SETTINGS: &'static [Setting] =
        &[Setting::Quota, Setting::Period, Setting::Alignment, Setting::Debt];

    fn program() -> Option<&'static Program> {
        crate::program::program!("fixed_window", Numbers, state 3, numbers 4)
    }

    fn read(written: &Written<'_>) -> Option<Self> {
        let alignment = written.alignment.unwrap_or(Alignment::FirstRequest);
        Some(Self { rate: written.rate()?, alignment, debt: written.debt() })
    }

    fn numbers(&self, _: Moment) -> [i64; NUMBERS_MAX] {
        let (quota, period) = (self.rate.amount as i64, self.rate.period_units() as i64);
        let aligned = i64::from(self.alignment == Alignment::Clock);
        [quota, period, aligned, self.debt.number(self.rate.amount), 0, 0, 0]
    }

    fn rate(&self) -> Option<Rate> {
        Some(self.rate)
    }

    fn debt(&self) -> Debt {
        self.debt
    }

    fn with_debt(self, debt: Debt) -> Option<Self> {
        Some(Self { debt, ..self })
    }

    fn with_rate(&self, rate: Rate, _: u64) -> Option<Self> {
        Some(Self { rate, ..*self })
    }

    fn of_shape(&self) -> Self {
        Self { rate: self.rate.of_shape(), debt: Debt::None, ..*self }
    }

    fn write_shape(&self, _: &ShapeExtra) -> String {
        let suffix = match self.alignment {
            Alignment::FirstRequest => 'f',
            Alignment::Clock => 'c',
        };
        format!("{}-{}{suffix}", Self::CODE, self.rate.per_ms)
    }

    fn read_shape(text: &str) -> Option<(Self, ShapeExtra)> {
        let (per_ms, suffix) = shape::after_code(text, Self::CODE)?;
        let alignment = match suffix {
            "f" => Alignment::FirstRequest,
            "c" => Alignment::Clock,
            _ => return None,
        };
        let rate = Rate { amount: 0, per_ms };
        Some((Self { rate, alignment, debt: Debt::None }, ShapeExtra::Nothing))
    }

    #[cfg(feature = "host")]
    fn state(&self, _: &ShapeExtra, content: &Content, at_us: u64, known: bool) -> Option<String> {
        let Content::Numbers([start, count, owing]) = *content else { return None };
        let (time, quota) = (Time::of(self.rate.per_ms, at_us), self.rate.amount);
        let (start, count) = (whole(start), whole(count));
        let period = time.units(self.rate.per_ms).max(1);
        let (ends, owed) = (start + period, owed(count, whole(owing), quota));
        let span = format!("the window from {} to {}", time.at(start), time.at(ends));
        if !known {
            return Some(match time.now >= ends {
                true => format!("{} ({span}, with {count}, is over)", used(0, None)),
                false => {
                    format!("{}, all back in {} ({span})", used(count, None), time.until(ends))
                }
            });
        }
        // What is owed counts in the windows after it, until it is paid.
        let back = |owed: u64, ends: u64| {
            ends.saturating_add(owed.div_ceil(quota.max(1)).saturating_mul(period))
        };
        if time.now >= ends {
            let windows = (time.now - start) / period;
            let carried = owed.saturating_sub(quota.saturating_mul(windows - 1));
            let (owed, ends) = (carried.saturating_sub(quota), start + (windows + 1) * period);
            let used = used_and_owed(carried, quota, owed);
            return Some(match carried {
                0 => format!("{used} ({span}, with {count}, is over)"),
                _ => format!(
                    "{used}, all back in {} ({span}, with {count}, is over)",
                    time.until(back(owed, ends))
                ),
            });
        }
        let (used, all) = (used_and_owed(count, quota, owed), time.until(back(owed, ends)));
        Some(format!("{used}, all back in {all} ({span})"))
    }
}
