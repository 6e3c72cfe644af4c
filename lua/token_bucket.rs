//! `token_bucket`: tokens and the instant of the last write.

use crate::written::Written;
#[cfg(feature = "host")]
use crate::{
    Content, Moment,
    state::{Bucket, Time, whole},
};
use crate::{Debt, Describe, Program, Rate, Setting, ShapeExtra, shape};

/// A bucket of `burst` tokens, refilled at `rate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenBucket {
    /// The bucket's capacity.
    pub burst: u64,
    /// How fast it refills.
    pub rate: Rate,
    /// How far charges may go beyond it.
    pub debt: Debt,
}

impl Describe for TokenBucket {
    const NAME: &'static str = "token_bucket";
    const CODE: &'static str = "tb2";
    const BUCKET: bool = true;
    const SETTINGS: &'static [Setting] =
        &[Setting::Quota, Setting::Period, Setting::Burst, Setting::Debt];

    fn program() -> Option<&'static Program> {
        crate::program::program!("token_bucket", Numbers, state 3, numbers 4)
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
        let Content::Numbers([tokens, rest, last]) = *content else { return None };
        let time = Time::of(self.rate.per_ms, at_us);
        let numbers = self.numbers(Moment::ANY);
        let Some(bucket) = Bucket::new(numbers, "owed").filter(|_| known) else {
            let last = time.at(whole(last));
            return Some(format!("{tokens} tokens left at {last}, and what was refilled since"));
        };
        let elapsed = i128::from(time.now) - i128::from(last);
        // A write in the future: the clock stepped back, and the bucket starts again full.
        let known = last > 0 && elapsed >= 0;
        let rest = if rest < numbers[1] { rest } else { 0 };
        let level = if known { bucket.level(tokens, rest, elapsed) } else { bucket.full() };
        Some(bucket.describe(time, level))
    }
}
