//! `gcra`: virtual scheduling, the instant at which nothing was left.

use crate::written::{self, Written};
use crate::{
    ShapeExtra, Breach, Describe, Moment, NUMBERS_MAX, Program, Rate, Setting, bucket, check, shape,
};
#[cfg(feature = "host")]
use crate::{
    Content,
    state::{Bucket, Time, emptied},
};

const CODE: &str = "gcra2";

/// Virtual scheduling (ITU-T I.371): the guarantee of a token bucket, stored as one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gcra {
    /// How many units may pass at once.
    pub burst: u64,
    /// The sustained rate.
    pub rate: Rate,
}

impl Describe for Gcra {
    const NAME: &'static str = "gcra";
    const SETTINGS: &'static [Setting] = &[Setting::Quota, Setting::Period, Setting::Burst];
    const NEEDED: &'static [(Setting, &'static str)] = &[written::QUOTA, written::PERIOD];

    fn program() -> Option<&'static Program> {
        crate::program::program!("gcra", Numbers, state 2, numbers 3)
    }

    fn read(written: &Written<'_>) -> Option<Self> {
        let rate = written.rate()?;
        Some(Self { burst: written.burst.unwrap_or(rate.amount), rate })
    }

    fn check(&self, breaches: &mut Vec<Breach>) {
        check::rate(self.rate, (Setting::Burst, self.burst), breaches);
    }

    fn numbers(&self, _: Moment) -> [i64; NUMBERS_MAX] {
        let [quota, period] = self.rate.numbers();
        [quota, period, self.burst as i64, 0, 0, 0]
    }

    fn rate(&self) -> Option<Rate> {
        Some(self.rate)
    }

    fn capacity(&self) -> Option<u64> {
        Some(self.burst)
    }

    fn cost_max_text(&self) -> &'static str {
        bucket::COST_MAX_TEXT
    }

    fn refuses_all(&self) -> bool {
        self.burst == 0 || self.rate.amount == 0
    }

    fn policy(&self) -> Option<(u64, Option<u64>)> {
        Some(bucket::policy(self.burst, self.rate))
    }

    fn unit_back_us(&self, reset_us: u64) -> u64 {
        bucket::unit_back_us(self.burst, self.rate, reset_us)
    }

    fn of_shape(&self) -> Self {
        Self { burst: 0, rate: self.rate.of_shape() }
    }

    fn write_shape(&self, _: &ShapeExtra) -> String {
        format!("{CODE}-{}", self.rate.per_ms)
    }

    fn read_shape(text: &str) -> Option<(Self, ShapeExtra)> {
        let per_ms = shape::period_after(text, CODE)?;
        Some((Self { burst: 0, rate: Rate { amount: 0, per_ms } }, ShapeExtra::Nothing))
    }

    #[cfg(feature = "host")]
    fn state(&self, _: &ShapeExtra, content: &Content, at_us: u64, known: bool) -> Option<String> {
        let Content::Numbers([empty, rest, _]) = *content else { return None };
        let time = Time::of(self.rate.per_ms, at_us);
        let bucket = Bucket::new(self.burst, self.rate).filter(|_| known);
        // An instant in the future: the clock stepped back, and the bucket starts again full.
        let full = i128::from(empty) > i128::from(time.now) || (empty == 0 && rest == 0);
        Some(emptied(time, [empty, rest], bucket.as_ref(), full))
    }
}
