//! How many units a call should ask for: what the process needs for one life, and no more than a
//! fair part of what is left.
//!
//! Integers only, and no state but one counter. Next: `holder.rs`.

/// One unit of a [`Demand`], which counts in fractions.
const UNIT: u64 = 1 << 16;

/// The most units that a [`Demand`] counts.
const UNITS_MAX: u64 = 1 << 40;

/// The units that one process wants during one life: a counter that decays with a time constant of
/// one life, so that at a steady rate it is rate x life.
///
/// The average is the exponentially weighted one of Linux' load average and of RFC 6298, for events
/// at any distance (Cormode, Shkapenyuk, Srivastava and Xu, "Forward decay", 2009). A step of
/// length t divides by 1 + t / life, the implicit Euler form of the exponential: the same for steps
/// that are short against a life, and slower after a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Demand {
    life_us: u64,
    at_us: u64,
    /// In [`UNIT`]s.
    count: u64,
}

impl Demand {
    /// No demand so far. `life_us` is that of the limit's leases, in microseconds.
    #[must_use]
    pub fn new(life_us: u64) -> Self {
        Self { life_us: life_us.max(1), at_us: 0, count: 0 }
    }

    /// Counts `units` that requests want at `now_us`, whether they are admitted or not. A caller
    /// may add those of several requests at once.
    pub fn add(&mut self, now_us: u64, units: u64) {
        let count = self.decayed(now_us).saturating_add(units.min(UNITS_MAX) * UNIT);
        self.count = count.min(UNITS_MAX * UNIT);
        self.at_us = self.at_us.max(now_us);
    }

    /// The units that will be wanted in the next life if the rate stays, rounded up.
    #[must_use]
    pub fn units(&self, now_us: u64) -> u64 {
        self.decayed(now_us).div_ceil(UNIT)
    }

    fn decayed(&self, now_us: u64) -> u64 {
        let passed_us = now_us.saturating_sub(self.at_us);
        let whole = u128::from(self.life_us) + u128::from(passed_us);
        let count = u128::from(self.count) * u128::from(self.life_us) / whole;
        u64::try_from(count).unwrap_or(u64::MAX)
    }
}

/// What the number of units to ask for depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Asking {
    /// The units that this request needs.
    pub cost: u64,
    /// The units that the process will want in one life: [`Demand::units`].
    pub demand: u64,
    /// The units left at the store, as it last said; `None` if it has not said yet.
    pub left: Option<u64>,
    /// The processes that held a lease of this key during the last life, as the store counts them.
    pub holders: u64,
    /// The most units of one lease, if the operator has set it.
    pub units_max: Option<u64>,
}

/// The units to ask for: the smaller of the demand and half of this process' share of what is left,
/// and at least the cost. If it is the cost, nothing is to be leased.
///
/// Half of a share each time is the loop scheduling of Polychronopoulos and Kuck (guided
/// self-scheduling, 1987) and Hummel, Schonberg and Flynn (factoring, 1992): calls are few while
/// much is left, the last units are taken one by one, and nobody holds much when others find
/// nothing.
#[must_use]
pub fn units_to_ask(asking: Asking) -> u64 {
    let Asking { cost, demand, left, holders, units_max } = asking;
    let share = left.unwrap_or(0) / holders.max(1).saturating_mul(2);
    let units = demand.min(share).min(units_max.unwrap_or(u64::MAX));
    units.max(cost)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE_US: u64 = 200_000;

    /// The demand after requests of one unit each `every_us` for `lives` lives.
    fn steady(every_us: u64, lives: u64) -> (Demand, u64) {
        let mut demand = Demand::new(LIFE_US);
        let mut now_us = 7_000_000;
        for _ in 0..lives * LIFE_US / every_us {
            now_us += every_us;
            demand.add(now_us, 1);
        }
        (demand, now_us)
    }

    #[test]
    fn a_steady_rate_is_wanted_for_one_life() {
        for every_us in [5, 100, 1_000, 10_000] {
            let (demand, now_us) = steady(every_us, 10);
            let (found, expected) = (demand.units(now_us), LIFE_US / every_us);
            let within = expected / 50 + 1;
            assert!(found.abs_diff(expected) <= within, "{every_us}: {found} for {expected}");
        }
    }

    #[test]
    fn two_thirds_of_a_new_rate_are_seen_after_one_life() {
        let (demand, now_us) = steady(1_000, 1);
        assert!((120..=135).contains(&demand.units(now_us)), "{}", demand.units(now_us));
    }

    #[test]
    fn a_pause_ends_demand() {
        let (demand, now_us) = steady(1_000, 10);
        assert!(demand.units(now_us + LIFE_US) <= 101);
        assert!(demand.units(now_us + 9 * LIFE_US) <= 21);
        assert_eq!(demand.units(now_us + 1_000 * LIFE_US), 1);
        assert_eq!(Demand::new(LIFE_US).units(1), 0);
    }

    #[test]
    fn any_numbers_are_counted() {
        let mut demand = Demand::new(0);
        for now_us in [5, 3, u64::MAX, 0] {
            demand.add(now_us, u64::MAX);
            assert!(demand.units(now_us) <= UNITS_MAX);
        }
    }

    #[test]
    fn half_a_share_of_what_is_left_is_asked_for() {
        let asking =
            Asking { cost: 1, demand: 1_000, left: Some(600), holders: 3, units_max: None };
        assert_eq!(units_to_ask(asking), 100);
        assert_eq!(units_to_ask(Asking { demand: 40, ..asking }), 40);
        assert_eq!(units_to_ask(Asking { units_max: Some(20), ..asking }), 20);
        // The last units are taken one by one, and so are the first.
        assert_eq!(units_to_ask(Asking { left: Some(5), ..asking }), 1);
        assert_eq!(units_to_ask(Asking { left: None, ..asking }), 1);
        assert_eq!(units_to_ask(Asking { cost: 150, ..asking }), 150);
        assert_eq!(units_to_ask(Asking { holders: 0, ..asking }), 300);
        assert_eq!(units_to_ask(Asking { holders: u64::MAX, ..asking }), 1);
    }

    /// Three processes that together want ten times the limit take all of it, in few calls, and
    /// nobody takes more than half of what is left.
    #[test]
    fn a_limit_is_used_up_in_calls_that_grow_with_its_logarithm() {
        let (mut left, mut calls) = (400_000, 0);
        while left > 0 {
            let asking = Asking {
                cost: 1,
                demand: 4_000_000,
                left: Some(left),
                holders: 6,
                units_max: None,
            };
            let units = units_to_ask(asking);
            assert!(units <= (left / 12).max(1), "{units} of {left}");
            left -= units;
            calls += 1;
        }
        assert!(calls < 150, "{calls} calls");
    }
}
