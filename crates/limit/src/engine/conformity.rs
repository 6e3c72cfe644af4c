//! After any history the admitted requests alone must conform to the limit: the promise of each
//! exact algorithm, checked only on what was admitted. Units that were given back count as never
//! taken from then on. With charges at the end, what was admitted and charged exceeds the promise
//! by the debt at most.

use std::collections::HashMap;

use proptest::prelude::*;

use super::testing::{
    CONCURRENCY, FIXED_WINDOW, GCRA, LEAKY_BUCKET, QUOTA, SLIDING_WINDOW_BUCKETS,
    SLIDING_WINDOW_COUNTER, SLIDING_WINDOW_LOG, START_US, TOKEN_BUCKET, TimedStore, cell, one,
};
use super::{Cell, Program};

/// An admitted take.
#[derive(Debug)]
struct Admission {
    at: i128,
    /// The instant when its wait was over.
    passed: i128,
    units: i128,
    /// The step of the history that gave some units back, and how many.
    back: Option<(usize, i128)>,
    /// The step of the history that it was.
    step: usize,
}

impl Admission {
    /// The units that count at `step`.
    fn units_at(&self, step: usize) -> i128 {
        self.units - self.back.filter(|(back, _)| *back < step).map_or(0, |(_, units)| units)
    }
}

/// The time to the next step: nothing, a unit, until the reported time or just before it, or
/// hundredths of the period.
type Pause = (u8, u64);
/// A pause, a cost, and perhaps, before the take, a give-back of quarters of an earlier one. The
/// last says whether it is a charge instead, where there are charges.
type Steps = Vec<(Pause, u64, Option<(usize, u64)>, bool)>;

fn steps() -> impl Strategy<Value = Steps> {
    let give_back = prop_oneof![3 => Just(None), 1 => (any::<usize>(), 1_u64..5).prop_map(Some)];
    prop::collection::vec(
        (
            (0_u8..8, 0_u64..130),
            prop_oneof![6 => 1_u64..2, 2 => 2_u64..5, 1 => 5_u64..30],
            give_back,
            prop::bool::weighted(0.3),
        ),
        1..120,
    )
}

fn numbers() -> impl Strategy<Value = (u64, u64, u64)> {
    let periods = prop_oneof![
        2_u64..40,
        1_000_u64..2_000,
        Just(1_000_000),
        Just(1_000_003),
        Just(3_600_000_000)
    ];
    (prop_oneof![4 => 1_u64..20, 1 => 100_u64..5_000], periods, 1_u64..20)
}

/// Runs a history on the embedded engine; returns what was admitted.
fn history(limit: &Cell, steps: &Steps) -> Vec<Admission> {
    run(limit, steps, false)
}

/// The same with charges, as admissions of the units that were charged.
fn history_with_charges(limit: &Cell, steps: &Steps) -> Vec<Admission> {
    run(limit, steps, true)
}

fn run(limit: &Cell, steps: &Steps, charges: bool) -> Vec<Admission> {
    let (mut store, mut told) = (TimedStore::embedded(), 0_u64);
    let mut admitted: Vec<Admission> = Vec::new();
    for (step, ((pause, hundredths), units, give_back, owes)) in steps.iter().enumerate() {
        let period = limit.numbers[1].unsigned_abs();
        let parts = [
            0,
            0,
            1,
            told,
            told.saturating_sub(1),
            period * hundredths / 100,
            period / 7,
            period * hundredths / 1_000,
        ];
        store.step(parts[usize::from(*pause)] as i64);
        if let Some((which, quarters)) = give_back
            && !admitted.is_empty()
        {
            let which = which % admitted.len();
            let earlier = &mut admitted[which];
            if earlier.back.is_none() {
                let units = earlier.units * i128::from(*quarters) / 4;
                let cell = Cell {
                    cost: units as u64,
                    member: (1 + earlier.step as u128) << 32,
                    ..limit.clone()
                };
                store.give_back(&one(&cell), earlier.at as u64);
                earlier.back = Some((step, units));
            }
        }
        if charges && *owes {
            let at = i128::from(store.now_us);
            let units = store.charge(&Cell { cost: 5 * units, ..limit.clone() });
            // A charge is never given back.
            let (units, back) = (i128::from(units), Some((step, 0)));
            admitted.push(Admission { at, passed: at, units, back, step });
            continue;
        }
        let taken = store.take(&one(&Cell {
            cost: *units,
            member: (1 + step as u128) << 32,
            ..limit.clone()
        }));
        let retry = taken.cells[0].retry_units;
        told = retry.filter(|_| !taken.admitted).unwrap_or(0);
        if taken.admitted {
            let at = i128::from(taken.at_us);
            let passed = at + retry.map_or(0, i128::from);
            // What is taken and given back before the next step belongs to this one: a step's
            // give-back comes before its take.
            admitted.push(Admission { at, passed, units: i128::from(*units), back: None, step });
        }
    }
    admitted
}

/// The largest sum of units, over all admissions, of the admission and the earlier ones that are
/// the `same`.
fn worst(admitted: &[Admission], same: impl Fn(&Admission, &Admission) -> bool) -> i128 {
    let sums = admitted.iter().enumerate().map(|(index, last)| {
        admitted[..=index]
            .iter()
            .filter(|earlier| same(earlier, last))
            .map(|earlier| earlier.units_at(last.step + 1))
            .sum()
    });
    sums.max().unwrap_or(0)
}

/// Every span from one admission to a later one, as of the later one: its units, its length, and
/// the first one's units.
fn spans(admitted: &[Admission]) -> impl Iterator<Item = (i128, i128, i128)> {
    admitted.iter().enumerate().flat_map(move |(index, last)| {
        let mut units = 0;
        admitted[..=index].iter().rev().map(move |first| {
            units += first.units_at(last.step + 1);
            (units, last.passed - first.passed, first.units)
        })
    })
}

proptest! {
    #[test]
    fn a_fixed_window_holds_its_quota((quota, period, _) in numbers(), aligned in any::<bool>(), steps in steps()) {
        let mut limit = cell(&FIXED_WINDOW, "window", quota, period, quota);
        limit.numbers[2] = i64::from(aligned);
        let (admitted, period) = (history(&limit, &steps), i128::from(period));
        let mut begins: Vec<i128> = Vec::new();
        for (index, this) in admitted.iter().enumerate() {
            let last = begins.last().copied();
            // The first unit starts a window; if all of it was given back there is none.
            let lasts = |last: &i128| {
                let held = |(at, before): (usize, &Admission)| begins[at] == *last && before.units_at(this.step + 1) > 0;
                this.at < last + period && admitted[..index].iter().enumerate().any(held)
            };
            begins.push(if aligned { this.at / period * period } else { last.filter(lasts).unwrap_or(this.at) });
        }
        let begins: HashMap<usize, i128> = admitted.iter().map(|this| this.step).zip(begins).collect();
        let worst = worst(&admitted, |earlier, last| begins[&earlier.step] == begins[&last.step]);
        prop_assert!(worst <= i128::from(quota), "{worst} in a window of {quota}");
    }

    #[test]
    fn every_span_of_a_log_holds_its_quota((quota, period, _) in numbers(), steps in steps()) {
        let admitted = history(&cell(&SLIDING_WINDOW_LOG, "log", quota, period, quota), &steps);
        let worst = worst(&admitted, |earlier, last| earlier.at > last.at - i128::from(period));
        prop_assert!(worst <= i128::from(quota), "{worst} in a span of {quota}");
    }

    #[test]
    fn a_span_of_sub_windows_is_over_by_the_one_that_it_touches((quota, period, buckets) in numbers(), steps in steps()) {
        let buckets = buckets.min(period);
        let length = period.div_ceil(buckets);
        let mut limit = cell(&SLIDING_WINDOW_BUCKETS, "buckets", quota, period, quota);
        limit.numbers[1..3].copy_from_slice(&[length as i64, buckets as i64]);
        let (admitted, length, buckets) = (history(&limit, &steps), i128::from(length), i128::from(buckets));
        let whole = worst(&admitted, |earlier, last| earlier.at / length > last.at / length - buckets);
        prop_assert!(whole <= i128::from(quota), "{whole} in whole sub-windows of {quota}");
        // A span of one period lies in these sub-windows and one more.
        let spans_more = |earlier: &Admission, last: &Admission| earlier.at > last.at - i128::from(period) && earlier.at / length < last.at / length - buckets;
        prop_assert_eq!(worst(&admitted, spans_more), 0);
    }

    #[test]
    fn two_windows_hold_twice_the_quota_at_worst((quota, period, _) in numbers(), steps in steps()) {
        let admitted = history(&cell(&SLIDING_WINDOW_COUNTER, "counter", quota, period, quota), &steps);
        let period = i128::from(period);
        let in_one = worst(&admitted, |earlier, last| earlier.at / period == last.at / period);
        prop_assert!(in_one <= i128::from(quota), "{in_one} in a window of {quota}");
        let trailing = worst(&admitted, |earlier, last| earlier.at > last.at - period);
        prop_assert!(trailing <= 2 * i128::from(quota), "{trailing} in a span of {quota}");
    }

    #[test]
    fn no_span_of_a_bucket_holds_more_than_the_burst_and_what_flowed_in(
        (quota, period, burst) in numbers(), gcra in any::<bool>(), steps in steps()
    ) {
        let program: &'static Program = if gcra { &GCRA } else { &TOKEN_BUCKET };
        let admitted = history(&cell(program, "bucket", quota, period, burst), &steps);
        let [quota, period, burst] = [quota, period, burst].map(i128::from);
        for (units, length, _) in spans(&admitted) {
            prop_assert!(units * period <= burst * period + length * quota, "{units} units in {length} us");
        }
    }

    #[test]
    fn a_bucket_is_over_by_its_debt_at_most(
        (quota, period, burst) in numbers(), debt in 0_i64..40, gcra in any::<bool>(), steps in steps()
    ) {
        let program: &'static Program = if gcra { &GCRA } else { &TOKEN_BUCKET };
        let mut limit = cell(program, "bucket", quota, period, burst);
        limit.numbers[3] = debt;
        let admitted = history_with_charges(&limit, &steps);
        let [quota, period, most] = [i128::from(quota), i128::from(period), i128::from(burst) + i128::from(debt)];
        for (units, length, _) in spans(&admitted) {
            prop_assert!(units * period <= most * period + length * quota, "{units} units in {length} us");
        }
    }

    #[test]
    fn fixed_windows_are_over_by_their_debt_at_most(
        (quota, period, _) in numbers(), aligned in any::<bool>(), debt in 0_i64..40, cut in any::<bool>(), steps in steps()
    ) {
        let mut limit = cell(&FIXED_WINDOW, "window", quota, period, quota);
        limit.numbers[2] = i64::from(aligned);
        limit.numbers[3] = if cut { -debt } else { debt };
        let admitted = history_with_charges(&limit, &steps);
        let [quota, period, debt] = [i128::from(quota), i128::from(period), i128::from(debt)];
        for (index, last) in admitted.iter().enumerate() {
            let mut units = 0;
            for first in admitted[..=index].iter().rev() {
                units += first.units_at(last.step + 1);
                let windows = if aligned {
                    last.at / period - first.at / period + 1
                } else {
                    (last.at - first.at) / period + 2
                };
                // A debt that is not carried over may be made again in each window.
                let most = windows * quota + debt * if cut { windows } else { 1 };
                prop_assert!(units <= most, "{units} in {windows} windows of {quota}");
            }
        }
    }

    #[test]
    fn a_sliding_window_is_over_by_its_debt_at_most(
        (quota, period, buckets) in numbers(), debt in 0_i64..40, steps in steps()
    ) {
        let most = i128::from(quota) + i128::from(debt);
        let mut log = cell(&SLIDING_WINDOW_LOG, "log", quota, period, quota);
        log.numbers[2] = debt;
        let admitted = history_with_charges(&log, &steps);
        let units = worst(&admitted, |earlier, last| earlier.at > last.at - i128::from(period));
        prop_assert!(units <= most, "a log: {units} in a span of {quota}");

        let (buckets, whole) = (buckets.min(period), i128::from(buckets.min(period)));
        let length = period.div_ceil(buckets);
        let mut limit = cell(&SLIDING_WINDOW_BUCKETS, "buckets", quota, period, quota);
        limit.numbers[1..4].copy_from_slice(&[length as i64, buckets as i64, debt]);
        let (admitted, length) = (history_with_charges(&limit, &steps), i128::from(length));
        let units = worst(&admitted, |earlier, last| earlier.at / length > last.at / length - whole);
        prop_assert!(units <= most, "sub-windows: {units} in a span of {quota}");

        let mut limit = cell(&SLIDING_WINDOW_COUNTER, "counter", quota, period, quota);
        limit.numbers[2] = debt;
        let (admitted, period) = (history_with_charges(&limit, &steps), i128::from(period));
        let units = worst(&admitted, |earlier, last| earlier.at / period == last.at / period);
        prop_assert!(units <= most, "a counter: {units} in a window of {quota}");
        let units = worst(&admitted, |earlier, last| earlier.at > last.at - period);
        prop_assert!(units <= 2 * most, "a counter: {units} in a span of {quota}");
    }

    #[test]
    fn calendar_periods_are_over_by_their_debt_at_most(
        (quota, period, _) in numbers(), share in 0_u64..5, cut in any::<bool>(), steps in steps()
    ) {
        let mut limit = cell(&QUOTA, "quota", quota, period, quota);
        let (this, length) = (START_US as i64, 3 * period as i64);
        let debt = (quota * share / 4) as i64;
        let owed = if cut { -debt } else { debt };
        limit.numbers = [quota as i64, 1, this - length, this, this + length, this + 2 * length, owed];
        let admitted: Vec<Admission> = history_with_charges(&limit, &steps);
        let number = |at: i128| (at - i128::from(this)).div_euclid(i128::from(length));
        let [quota, debt] = [quota, debt as u64].map(i128::from);
        for (index, last) in admitted.iter().enumerate() {
            let mut units = 0;
            for first in admitted[..=index].iter().rev() {
                units += first.units_at(last.step + 1);
                let periods = number(last.at) - number(first.at) + 1;
                let most = periods * quota + debt * if cut { periods } else { 1 };
                prop_assert!(units <= most, "{units} in {periods} periods of {quota}");
            }
        }
    }

    #[test]
    fn requests_that_pass_a_leaky_bucket_in_their_turn_conform(
        (quota, period, burst) in numbers(), delay in 0_u64..300, steps in steps()
    ) {
        let mut limit = cell(&LEAKY_BUCKET, "leaky", quota, period, burst);
        let delay = period * delay / 100;
        limit.numbers[3] = delay as i64;
        let mut admitted = history(&limit, &steps);
        // Turns are not given back.
        admitted.iter_mut().for_each(|admission| admission.back = None);
        let [quota, period, burst] = [quota, period, burst].map(i128::from);
        // Waits are whole time units, rounded up.
        let rounded = i128::from(period % quota != 0);
        for (units, length, first) in spans(&admitted) {
            let at_once = burst.max(first);
            prop_assert!(length >= 0 && units * period <= at_once * period + (length + rounded) * quota, "{units} units in {length} us");
        }
        prop_assert!(admitted.iter().all(|admission| admission.passed - admission.at <= i128::from(delay)));
    }

    #[test]
    fn a_calendars_period_holds_its_amount((quota, period, _) in numbers(), conditional in any::<bool>(), steps in steps()) {
        let mut limit = cell(&QUOTA, "quota", quota, period, quota);
        // Four periods around the start; what comes after them is not admitted.
        let this = START_US as i64;
        let length = 3 * period as i64;
        limit.numbers = [quota as i64, i64::from(conditional), this - length, this, this + length, this + 2 * length, 0];
        let admitted = history(&Cell { numbers: limit.numbers, ..limit.clone() }, &steps);
        let number = |at: i128| (at - i128::from(this)).div_euclid(i128::from(length));
        prop_assert!(admitted.iter().all(|admission| (-1..2).contains(&number(admission.at))));
        let worst = worst(&admitted, |earlier, last| number(earlier.at) == number(last.at));
        prop_assert!(!conditional || worst <= i128::from(quota), "{worst} in a period of {quota}");
    }

    #[test]
    fn never_more_are_in_flight_than_may_be(
        most in 1_u64..20, length in 2_u64..1_000, steps in prop::collection::vec((0_u8..4, 0_u64..600, 1_u64..5, any::<usize>()), 1..200)
    ) {
        let limit = cell(&CONCURRENCY, "flight", most, length, most);
        let mut store = TimedStore::embedded();
        // Name, units, the end of the lease.
        let mut held: Vec<(u128, u64, u64)> = Vec::new();
        for (step, (what, pause, units, which)) in steps.into_iter().enumerate() {
            store.step((length * pause / 1_000) as i64);
            let now_us = store.now_us;
            let member = (1 + step as u128) << 32;
            // A holder that has not renewed in time has lost its lease, and knows it.
            held.retain(|(_, _, ends)| *ends > now_us);
            let chosen = if held.is_empty() { None } else { Some(which % held.len()) };
            match (what, chosen) {
                (2, Some(chosen)) => {
                    let (member, units, _) = held.remove(chosen);
                    store.give_back(&one(&Cell { member, cost: units, ..limit.clone() }), 0);
                }
                (3, Some(chosen)) => {
                    let (member, units, ends) = &mut held[chosen];
                    store.renew(&one(&Cell { member: *member, cost: *units, ..limit.clone() }));
                    *ends = now_us + length;
                }
                _ => {
                    let taken = store.take(&one(&Cell { member, cost: units, ..limit.clone() }));
                    if taken.admitted {
                        held.push((member, units, now_us + length));
                    }
                    let in_flight: u64 = held.iter().map(|(_, units, _)| units).sum();
                    prop_assert!(in_flight <= most, "{in_flight} of {most} in flight");
                    // No unit is lost either: a refused request really does not fit.
                    prop_assert!(taken.admitted || in_flight + units > most, "refused with {in_flight} of {most} in flight");
                    prop_assert_eq!(taken.cells[0].remaining, most - in_flight);
                }
            }
        }
    }
}
