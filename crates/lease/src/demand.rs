//! How many units a call asks for, what the process needs for one life; and how many of them the
//! store grants, no more than a fair part of what is left.
//!
//! Integers only, and no state but one counter. Next: `holder.rs`.

use crate::Call;

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

    /// The units that will be wanted in the next life if the rate stays, rounded to the nearest.
    #[must_use]
    pub fn units(&self, now_us: u64) -> u64 {
        self.decayed(now_us).saturating_add(UNIT / 2) / UNIT
    }

    fn decayed(&self, now_us: u64) -> u64 {
        let passed_us = now_us.saturating_sub(self.at_us);
        let whole = u128::from(self.life_us) + u128::from(passed_us);
        let count = u128::from(self.count) * u128::from(self.life_us) / whole;
        u64::try_from(count).unwrap_or(u64::MAX)
    }
}

/// The units that are worth a call: those that will be wanted in one life, and at least the `cost`
/// of the request that asks. If it is no more than that, nothing is to be leased. `demand` is
/// [`Demand::units`], and `units_max` the most units of one lease, if the operator has set it.
#[must_use]
pub fn units_to_ask(demand: u64, cost: u64, units_max: Option<u64>) -> u64 {
    demand.min(units_max.unwrap_or(u64::MAX)).max(cost)
}

/// The units that a store grants of a call when `left` are left and `holders` processes held a
/// lease during the last life: what the requests that wait need as far as it is there, or half of
/// the caller's share of what is left, whichever is more. `None`: fewer than the first request
/// needs are left.
///
/// Half of a share each time is the loop scheduling of Polychronopoulos and Kuck (guided
/// self-scheduling, 1987) and Hummel, Schonberg and Flynn (factoring, 1992): calls are few while
/// much is left, the last units are taken one by one, and nobody holds much when others find
/// nothing.
///
/// On Redis this is the script of `lua/driver/frame.lua`; a test compares the two.
#[must_use]
pub fn units_granted(call: Call, left: u64, holders: u64) -> Option<u64> {
    let Call { least, needed, units, .. } = call;
    if left < least {
        return None;
    }
    let share = left / holders.max(1).saturating_mul(2);
    Some(units.min(share).max(needed).min(left))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Action, Holder, Want};

    const LIFE_US: u64 = 200_000;

    /// The demand after requests of one unit each `every_us` for `lives` lives.
    fn steady(every_us: u64, lives: u64) -> (Demand, u64) {
        let mut demand = Demand::new(LIFE_US);
        let mut now_us = 7_000_000;
        for _ in 0..(lives * LIFE_US / every_us).max(1) {
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
        assert!(demand.units(now_us + 1_000 * LIFE_US) <= 1);
        assert_eq!(Demand::new(LIFE_US).units(1), 0);
    }

    #[test]
    fn requests_that_come_less_often_than_once_in_a_life_want_one_unit() {
        let (demand, now_us) = steady(5 * LIFE_US, 50);
        assert_eq!(demand.units(now_us), 1);
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
    fn what_is_wanted_in_one_life_is_asked_for() {
        assert_eq!(units_to_ask(1_000, 1, None), 1_000);
        assert_eq!(units_to_ask(1_000, 1, Some(20)), 20);
        assert_eq!(units_to_ask(5, 9, Some(3)), 9);
        assert_eq!(units_to_ask(0, 0, None), 0);
    }

    fn call(least: u64, needed: u64, units: u64) -> Call {
        let mut holder = Holder::new(LIFE_US);
        let want = Want { cost: least, waiting: needed - least, units };
        match holder.want(0, want) {
            Action::Ask { call, .. } => call,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn half_a_share_of_what_is_left_is_granted() {
        let granted = |units, left, holders| units_granted(call(1, 1, units), left, holders);
        assert_eq!(granted(1_000, 600, 3), Some(100));
        assert_eq!(granted(40, 600, 3), Some(40));
        assert_eq!(granted(1_000, 600, 0), Some(300));
        // The last units are taken one by one.
        assert_eq!(granted(1_000, 5, 3), Some(1));
        assert_eq!(granted(1_000, 600, u64::MAX), Some(1));
        assert_eq!(granted(1_000, 0, 1), None);
    }

    #[test]
    fn what_waiting_requests_need_is_granted_as_far_as_it_is_there() {
        assert_eq!(units_granted(call(2, 90, 100), 100, 3), Some(90));
        assert_eq!(units_granted(call(2, 90, 100), 50, 3), Some(50));
        assert_eq!(units_granted(call(2, 90, 100), 2, 3), Some(2));
        assert_eq!(units_granted(call(2, 90, 100), 1, 3), None);
    }

    /// Six processes that together want ten times the limit take all of it, in few calls, and
    /// nobody takes more than half of its share of what is left.
    #[test]
    fn a_limit_is_used_up_in_calls_that_grow_with_its_logarithm() {
        let (mut left, mut calls) = (400_000, 0);
        while let Some(units) = units_granted(call(1, 1, 4_000_000), left, 6) {
            assert!(units <= (left / 12).max(1), "{units} of {left}");
            left -= units;
            calls += 1;
        }
        assert_eq!(left, 0);
        assert!(calls < 150, "{calls} calls");
    }
}
