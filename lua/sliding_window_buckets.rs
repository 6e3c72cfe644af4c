//! `sliding_window_buckets`: counts of a period's sub-windows, in a ring.

use crate::written::Written;
use crate::{
    BUCKETS_MAX, Breach, Debt, Describe, Moment, NUMBERS_MAX, Program, Rate, Setting, ShapeExtra,
    shape,
};
#[cfg(feature = "host")]
use crate::{
    Content,
    state::{Time, used},
};

const BUCKETS_DEFAULT: u64 = 60;

/// At most `rate.amount` in the last `buckets` sub-windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingWindowBuckets {
    /// The quota and the window's length.
    pub rate: Rate,
    /// Number of sub-windows, 1 to [`BUCKETS_MAX`], and at most one per time unit of the limit's
    /// period.
    pub buckets: u32,
    /// How far charges may go beyond it.
    pub debt: Debt,
}

impl Describe for SlidingWindowBuckets {
    const NAME: &'static str = "sliding_window_buckets";
    const CODE: &'static str = "sb2";
    const SETTINGS: &'static [Setting] =
        &[Setting::Quota, Setting::Period, Setting::Buckets, Setting::Debt];

    fn program() -> Option<&'static Program> {
        crate::program::program!("sliding_window_buckets", Buckets, state 0, numbers 4)
    }

    fn read(written: &Written<'_>) -> Option<Self> {
        // A value above the range must not be truncated to one inside it.
        let buckets = written.buckets.unwrap_or(BUCKETS_DEFAULT).min(u64::from(u32::MAX)) as u32;
        Some(Self { rate: written.rate()?, buckets, debt: written.debt() })
    }

    fn check(&self, breaches: &mut Vec<Breach>) {
        let fits = self.check_rate(self.rate, breaches);
        if !(1..=BUCKETS_MAX).contains(&self.buckets) {
            let expected = format!("1 to {BUCKETS_MAX} sub-windows");
            breaches.push(Breach::new(Setting::Buckets, self.buckets, expected));
        } else if fits && u64::from(self.buckets) > self.rate.period_units() {
            let expected = "sub-windows of at least a microsecond (a millisecond above an hour)";
            breaches.push(Breach::new(Setting::Buckets, self.buckets, expected));
        }
    }

    fn numbers(&self, _: Moment) -> [i64; NUMBERS_MAX] {
        // Rounded up, so that all sub-windows together cover the period.
        let length = self.rate.period_units().div_ceil(u64::from(self.buckets.max(1)));
        let debt = self.debt.number(self.rate.amount);
        [self.rate.amount as i64, length as i64, i64::from(self.buckets), debt, 0, 0, 0]
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
        format!("{}-{}x{}", Self::CODE, self.rate.per_ms, self.buckets)
    }

    fn read_shape(text: &str) -> Option<(Self, ShapeExtra)> {
        let (per_ms, suffix) = shape::after_code(text, Self::CODE)?;
        let buckets = suffix.strip_prefix('x')?.parse().ok()?;
        let rate = Rate { amount: 0, per_ms };
        Some((Self { rate, buckets, debt: Debt::None }, ShapeExtra::Nothing))
    }

    #[cfg(feature = "host")]
    fn state(&self, _: &ShapeExtra, content: &Content, at_us: u64, known: bool) -> Option<String> {
        let Content::Buckets { last, counts } = content else { return None };
        let time = Time::of(self.rate.per_ms, at_us);
        let (last, buckets) = (*last, counts.len().max(1) as u64);
        let length = time.units(self.rate.per_ms).div_ceil(buckets).max(1);
        let this = time.now / length;
        let counted: Vec<(u64, u64)> = (last.saturating_sub(buckets - 1)..=last)
            .filter(|window| last <= this && window + buckets > this)
            .filter_map(|window| {
                let count = *counts.get((window % buckets) as usize)?;
                Some((window, count))
            })
            .filter(|(_, count)| *count > 0)
            .collect();
        let units = counted.iter().map(|(_, count)| count).sum();
        let used = used(units, known.then_some(self.rate.amount));
        let leaves = |window: u64| time.until((window + buckets) * length);
        Some(match counted.as_slice() {
            [] => used,
            [(one, _)] => format!("{used}, all back in {}", leaves(*one)),
            [(oldest, count), .., (newest, _)] => {
                format!("{used}, {count} back in {}, all in {}", leaves(*oldest), leaves(*newest))
            }
        })
    }
}
