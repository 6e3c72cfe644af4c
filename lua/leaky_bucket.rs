//! `leaky_bucket`: a bucket in which requests wait for their turn.

use crate::written::{self, Written};
use crate::{
    BURST_PERIOD_MAX, Breach, Describe, Moment, NUMBERS_MAX, PERIOD_MS_MAX, Program, Rate, Setting,
    ShapeExtra, Ticking, shape,
};
#[cfg(feature = "host")]
use crate::{
    Content,
    state::{Bucket, Time, emptied},
};

/// Shaped requests pass one by one by default.
const BURST_DEFAULT: u64 = 1;

/// Shapes traffic: `burst` units pass at once, requests that are early by at most `max_delay_ms`
/// wait for their turn, the rest is refused. A plan has at most one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeakyBucket {
    /// How many units may pass at once.
    pub burst: u64,
    /// The rate at which the others pass.
    pub rate: Rate,
    /// The longest wait in milliseconds; 0: requests never wait.
    pub max_delay_ms: u64,
}

impl LeakyBucket {
    /// The index of `may_wait` among the program's numbers; 0 there means that no request may wait.
    pub const MAY_WAIT: usize = 4;
}

impl Describe for LeakyBucket {
    const NAME: &'static str = "leaky_bucket";
    const CODE: &'static str = "lb2";
    const QUEUES: bool = true;
    const BUCKET: bool = true;
    const SETTINGS: &'static [Setting] =
        &[Setting::Quota, Setting::Period, Setting::Burst, Setting::MaxDelay];
    const NEEDED: &'static [(Setting, &'static str)] = &[
        written::QUOTA,
        written::PERIOD,
        (Setting::MaxDelay, "the longest that a request may wait, such as `max_delay = \"500ms\"`"),
    ];

    fn program() -> Option<&'static Program> {
        crate::program::program!("leaky_bucket", Numbers, state 3, numbers 5)
    }

    fn read(written: &Written<'_>) -> Option<Self> {
        let burst = written.burst.unwrap_or(BURST_DEFAULT);
        Some(Self { burst, rate: written.rate()?, max_delay_ms: written.max_delay_ms? })
    }

    fn check(&self, breaches: &mut Vec<Breach>) {
        let Self { burst, rate, max_delay_ms } = *self;
        let fits = self.check_rate(rate, breaches);
        if max_delay_ms > PERIOD_MS_MAX {
            let expected = "a duration from \"0ms\" to \"400d\", such as \"500ms\" or \"2s\"";
            breaches.push(Breach::new(Setting::MaxDelay, format!("{max_delay_ms} ms"), expected));
        } else if fits {
            // Waiting units are debt, as the burst is: both together must stay an exact whole
            // number.
            let units_a_ms = 1000 / rate.unit_us();
            let Ticking { amount, period } = rate.ticking();
            let room = BURST_PERIOD_MAX - burst * period;
            let most_ms = room / (units_a_ms * amount.max(1));
            if max_delay_ms > most_ms {
                let expected =
                    format!("\"0ms\" to \"{most_ms}ms\" with this quota, burst and a period of");
                let found = format!("{max_delay_ms} ms");
                let breach = Breach::new(Setting::MaxDelay, found, expected);
                breaches.push(Breach { with_period: true, ..breach });
            }
        }
    }

    fn numbers(&self, _: Moment) -> [i64; NUMBERS_MAX] {
        let max_delay = self.max_delay_ms * (1000 / self.rate.unit_us());
        let Ticking { amount, period } = self.rate.ticking();
        [amount as i64, period as i64, self.burst as i64, max_delay as i64, 1, 0, 0]
    }

    fn rate(&self) -> Option<Rate> {
        Some(self.rate)
    }

    fn capacity(&self) -> Option<u64> {
        Some(self.burst)
    }

    fn cost_max(&self) -> Option<u64> {
        // The products are below 2^52 x 2^36, so 128 bits hold them.
        let waiting = u128::from(self.max_delay_ms) * u128::from(self.rate.amount)
            / u128::from(self.rate.per_ms.max(1));
        Some(self.burst.saturating_add(u64::try_from(waiting).unwrap_or(u64::MAX)))
    }

    fn cost_max_text(&self) -> &'static str {
        "the burst and what may wait"
    }

    fn refuses_all(&self) -> bool {
        self.rate.amount == 0 || self.cost_max() == Some(0)
    }

    /// No: later requests already have their turns, and a returned turn would let two pass in one.
    fn settles(&self) -> bool {
        false
    }

    fn with_rate(&self, rate: Rate, burst: u64) -> Option<Self> {
        Some(Self { burst, rate, ..*self })
    }

    fn of_shape(&self) -> Self {
        Self { burst: 0, rate: self.rate.of_shape(), max_delay_ms: 0 }
    }

    fn read_shape(text: &str) -> Option<(Self, ShapeExtra)> {
        let rate = Rate { amount: 0, per_ms: shape::period_after(text, Self::CODE)? };
        Some((Self { burst: 0, rate, max_delay_ms: 0 }, ShapeExtra::Nothing))
    }

    #[cfg(feature = "host")]
    fn state(&self, _: &ShapeExtra, content: &Content, at_us: u64, known: bool) -> Option<String> {
        let Content::Numbers([empty, rest, last]) = *content else { return None };
        let time = Time::of(self.rate.per_ms, at_us);
        let bucket = Bucket::new(self.numbers(Moment::ANY), "waiting").filter(|_| known);
        // A last write in the future: the clock stepped back, and the bucket starts again full.
        let full = last <= 0 || i128::from(last) > i128::from(time.now);
        Some(emptied(time, [empty, rest], bucket.as_ref(), full))
    }
}
