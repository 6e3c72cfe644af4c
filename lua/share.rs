//! A share of a limit, for one of several proxies that can't count together for a while.

use crate::{Describe, Rate, common_factor};

/// A fraction above 0, at most 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    of: u32,
    all: u32,
}

impl Share {
    /// All of it.
    pub const WHOLE: Self = Self { of: 1, all: 1 };

    /// Parses `1/4`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (of, all) = text.split_once('/')?;
        let number = |digits: &str| {
            let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse().ok().filter(|number| plain && (1..=1_000_000).contains(number))
        };
        let (of, all) = (number(of)?, number(all)?);
        (of <= all).then_some(Self { of, all })
    }

    /// The share of `units`, rounded down; 1 of what is not 0.
    #[must_use]
    pub fn of(self, units: u64) -> u64 {
        let share = u128::from(units) * u128::from(self.of) / u128::from(self.all);
        u64::try_from(share).unwrap_or(u64::MAX).max(units.min(1))
    }

    /// This share of an algorithm's quota and burst; `None` if it has no rate, or if the share
    /// can't be counted exactly.
    pub(crate) fn of_algorithm<T: Describe>(self, whole: &T) -> Option<T> {
        if self == Self::WHOLE {
            let (rate, capacity) = (whole.rate()?, whole.capacity()?);
            return whole.with_rate(rate, capacity);
        }
        let (rate, burst) = (whole.rate()?, self.of(whole.capacity()?));
        let amount = self.of(rate.amount);
        // A bucket counts exactly if quota and period have enough in common. The whole quota has,
        // and so has what is a multiple of their common factor.
        let factor = common_factor(rate.amount, rate.period_units()).max(1);
        [amount, amount / factor * factor]
            .into_iter()
            .filter(|amount| *amount > 0 || rate.amount == 0)
            .filter_map(|amount| whole.with_rate(Rate { amount, ..rate }, burst))
            .find(|share| {
                let mut breaches = Vec::new();
                share.check(&mut breaches);
                let owed = share.debt().units(share.capacity().unwrap_or(0));
                breaches.is_empty() && (owed == 0 || owed <= share.debt_max())
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Algorithm, Concurrency, Debt, FixedWindow, Gcra, fixed_window::Alignment};

    fn share_of(text: &str, amount: u64, per_ms: u64, burst: u64) -> Option<(u64, u64)> {
        let rate = Rate { amount, per_ms };
        let gcra = Algorithm::from(Gcra { burst, rate, debt: Debt::None });
        let share = gcra.share(Share::parse(text).unwrap())?;
        Some((share.amount()?, share.capacity()?))
    }

    #[test]
    fn a_share_is_a_fraction_up_to_one() {
        assert_eq!(Share::parse("1/1"), Some(Share::WHOLE));
        assert_eq!(Share::parse("3/4").map(|share| share.of(10)), Some(7));
        for wrong in ["", "1", "1/0", "0/4", "5/4", "1/-4", "+1/4", "1/4/2", "0.25", "1/1000001"] {
            assert_eq!(Share::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn quota_and_burst_are_shared_and_at_least_one() {
        assert_eq!(share_of("1/4", 100, 60_000, 20), Some((25, 5)));
        assert_eq!(share_of("1/4", 2, 60_000, 1), Some((1, 1)));
        assert_eq!(share_of("1/4", 0, 60_000, 1), Some((0, 1)));
    }

    #[test]
    fn a_share_that_cannot_be_counted_exactly_is_a_little_smaller() {
        // A billion units a day have a factor of 1,600,000 with a day's milliseconds; their
        // seventh, 142,857,142, has 2, too few for a burst of as much.
        let (day, billion) = (86_400_000, 1_000_000_000);
        assert_eq!(share_of("1/7", billion, day, billion), Some((142_400_000, 142_857_142)));
        assert_eq!(share_of("1/7", billion, day, 700), Some((142_857_142, 100)));
    }

    #[test]
    fn a_share_can_be_in_debt_as_far_as_the_whole() {
        let rate = Rate { amount: 1_000_000_000, per_ms: 86_400_000 };
        let debt = Debt::Units(1_000_000_000);
        let whole = Algorithm::from(Gcra { burst: 700_000_000, rate, debt });
        let share = whole.share(Share::parse("1/7").unwrap()).unwrap();
        assert_eq!((share.amount(), share.capacity()), (Some(142_400_000), Some(100_000_000)));
        assert!(whole.breaches().is_empty() && share.breaches().is_empty());
    }

    #[test]
    fn algorithms_with_a_rate_have_a_share() {
        let rate = Rate { amount: 10, per_ms: 1_000 };
        let window = FixedWindow { rate, alignment: Alignment::FirstRequest, debt: Debt::None };
        let share = Algorithm::from(window).share(Share::parse("1/3").unwrap()).unwrap();
        assert_eq!(share.amount(), Some(3));
        let in_flight = Algorithm::from(Concurrency { amount: 10 });
        assert_eq!(in_flight.share(Share::WHOLE), None);
    }
}
