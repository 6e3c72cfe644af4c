//! `sliding_window_counter`: two counters, the older one weighted by the part of its window that
//! the period still covers.

use crate::written::Written;
#[cfg(feature = "host")]
use crate::{
    Content,
    state::{Time, used, whole},
};
use crate::{Debt, Describe, Program, Rate, Setting, ShapeExtra, shape};

/// About `rate.amount` in each trailing `rate.per_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingWindowCounter {
    /// The quota and the window's length.
    pub rate: Rate,
    /// How far charges may go beyond it.
    pub debt: Debt,
}

impl Describe for SlidingWindowCounter {
    const NAME: &'static str = "sliding_window_counter";
    const CODE: &'static str = "sc1";
    const SETTINGS: &'static [Setting] = &[Setting::Quota, Setting::Period, Setting::Debt];

    fn program() -> Option<&'static Program> {
        crate::program::program!("sliding_window_counter", Numbers, state 3, numbers 3)
    }

    fn read(written: &Written<'_>) -> Option<Self> {
        Some(Self { rate: written.rate()?, debt: written.debt() })
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
        Self { rate: self.rate.of_shape(), debt: Debt::None }
    }

    fn read_shape(text: &str) -> Option<(Self, ShapeExtra)> {
        let per_ms = shape::period_after(text, Self::CODE)?;
        let rate = Rate { amount: 0, per_ms };
        Some((Self { rate, debt: Debt::None }, ShapeExtra::Nothing))
    }

    #[cfg(feature = "host")]
    fn state(&self, _: &ShapeExtra, content: &Content, at_us: u64, known: bool) -> Option<String> {
        let Content::Numbers([start, current, previous]) = *content else { return None };
        let time = Time::of(self.rate.per_ms, at_us);
        let period = time.units(self.rate.per_ms).max(1);
        let now = time.now - time.now % period;
        let (current, previous) = match whole(start) {
            start if start == now => (whole(current), whole(previous)),
            start if start + period == now => (0, whole(current)),
            _ => (0, 0),
        };
        let ends = now + period;
        let inside = u128::from(previous) * u128::from(ends - time.now);
        let inside = u64::try_from(inside.div_ceil(u128::from(period))).unwrap_or(u64::MAX);
        let counted = current.saturating_add(inside);
        let back = match (current, previous) {
            (0, 0) => String::new(),
            (0, _) => format!(", all back in {}", time.until(ends)),
            _ => format!(", all back in {}", time.until(ends + period)),
        };
        let windows = format!(
            "{current} in the window from {} to {}, {previous} in the one before it",
            time.at(now),
            time.at(ends)
        );
        let used = used(counted, known.then_some(self.rate.amount));
        Some(format!("{used}{back} ({windows}, which counts by the share that is still inside)"))
    }
}
