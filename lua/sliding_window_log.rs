//! `sliding_window_log`: each unit is stored for one period.

use crate::written::Written;
use crate::{Breach, Debt, Describe, MEMBERS_MAX, Program, Rate, Setting, ShapeExtra, shape};
#[cfg(feature = "host")]
use crate::{
    Content,
    state::{Time, used},
};

/// At most `rate.amount`, up to [`MEMBERS_MAX`], in any span of `rate.per_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingWindowLog {
    /// The quota and the window's length.
    pub rate: Rate,
    /// How far charges may go beyond it.
    pub debt: Debt,
}

impl Describe for SlidingWindowLog {
    const NAME: &'static str = "sliding_window_log";
    const CODE: &'static str = "sl2";
    const SETTINGS: &'static [Setting] = &[Setting::Quota, Setting::Period, Setting::Debt];

    fn program() -> Option<&'static Program> {
        crate::program::program!("sliding_window_log", Log, state 0, numbers 3)
    }

    fn read(written: &Written<'_>) -> Option<Self> {
        Some(Self { rate: written.rate()?, debt: written.debt() })
    }

    fn check(&self, breaches: &mut Vec<Breach>) {
        let fits = self.check_rate(self.rate, breaches);
        if fits && self.rate.amount > MEMBERS_MAX {
            let expected = format!("at most {MEMBERS_MAX}: a log remembers each unit");
            breaches.push(Breach::new(Setting::Quota, self.rate.amount, expected));
        }
    }

    fn rate(&self) -> Option<Rate> {
        Some(self.rate)
    }

    fn debt_max(&self) -> u64 {
        MEMBERS_MAX
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
        let Content::Members(instants) = content else { return None };
        let time = Time::of(self.rate.per_ms, at_us);
        let period = time.units(self.rate.per_ms);
        let inside = time.now.saturating_sub(period) + 1..=time.now;
        let counted: Vec<u64> =
            instants.iter().copied().filter(|instant| inside.contains(instant)).collect();
        let used = used(counted.len() as u64, known.then_some(self.rate.amount));
        Some(match counted.as_slice() {
            [] => used,
            [one] => format!("{used}, back in {}", time.until(one + period)),
            [oldest, .., newest] => {
                let (one, all) = (time.until(oldest + period), time.until(newest + period));
                format!("{used}, 1 back in {one}, all in {all}")
            }
        })
    }
}
