//! `gcra`: virtual scheduling, the instant at which nothing was left.

use crate::written::Written;
#[cfg(feature = "host")]
use crate::{
    Content, Moment,
    state::{Bucket, Time, emptied},
};
use crate::{Debt, Describe, Program, Rate, Setting, ShapeExtra, shape};

/// Virtual scheduling (ITU-T I.371): the guarantee of a token bucket, stored as one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gcra {
    /// How many units may pass at once.
    pub burst: u64,
    /// The sustained rate.
    pub rate: Rate,
    /// How far charges may go beyond it.
    pub debt: Debt,
}

impl Describe for Gcra {
    const NAME: &'static str = "gcra";
    const CODE: &'static str = "gcra3";
    const BUCKET: bool = true;
    const SETTINGS: &'static [Setting] =
        &[Setting::Quota, Setting::Period, Setting::Burst, Setting::Debt];

    fn program() -> Option<&'static Program> {
        crate::program::program!("gcra", Numbers, state 3, numbers 4)
    }

    fn read(written: &Written<'_>) -> Option<Self> {
        let rate = written.rate()?;
        let burst = written.burst.unwrap_or(rate.amount);
        Some(Self { burst, rate, debt: written.debt() })
    }

    fn rate(&self) -> Option<Rate> {
        Some(self.rate)
    }

    fn capacity(&self) -> Option<u64> {
        Some(self.burst)
    }

    fn debt(&self) -> Debt {
        self.debt
    }

    fn with_debt(self, debt: Debt) -> Option<Self> {
        Some(Self { debt, ..self })
    }

    fn with_rate(&self, rate: Rate, burst: u64) -> Option<Self> {
        Some(Self { burst, rate, ..*self })
    }

    fn of_shape(&self) -> Self {
        Self { burst: 0, rate: self.rate.of_shape(), debt: Debt::None }
    }

    fn read_shape(text: &str) -> Option<(Self, ShapeExtra)> {
        let per_ms = shape::period_after(text, Self::CODE)?;
        let rate = Rate { amount: 0, per_ms };
        Some((Self { burst: 0, rate, debt: Debt::None }, ShapeExtra::Nothing))
    }

    #[cfg(feature = "host")]
    fn state(&self, _: &ShapeExtra, content: &Content, at_us: u64, known: bool) -> Option<String> {
        let Content::Numbers([empty, rest, last]) = *content else { return None };
        let time = Time::of(self.rate.per_ms, at_us);
        let bucket = Bucket::new(self.numbers(Moment::ANY), "owed").filter(|_| known);
        // A last write in the future: the clock stepped back, and the bucket starts again full.
        let full = last <= 0 || i128::from(last) > i128::from(time.now);
        Some(emptied(time, [empty, rest], bucket.as_ref(), full))
    }
}
