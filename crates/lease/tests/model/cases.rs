//! The limits that are checked, one for each algorithm, and that each keeps its promise: alone and
//! with each fault.
//!
//! A life is a microsecond less than a tick, or than two, so that a slow clock reaches the tick
//! before the deadline and an exact one does not. Periods are chosen so that one microsecond
//! decides.

use std::sync::Arc;

use stateright::{Checker, Model};
use weir_lease::{Bound, Numbers, Terms};

use crate::programs::{
    CONCURRENCY, FIXED_WINDOW, GCRA, Program, QUOTA, SLIDING_WINDOW_BUCKETS,
    SLIDING_WINDOW_COUNTER, SLIDING_WINDOW_LOG, TOKEN_BUCKET,
};
use crate::promise::Promise;
use crate::store::{CALENDAR, Running};
use crate::world::{Case, Event, Faults, Seen};
use crate::{HOLDINGS, PROMISE, REACHED, TOGETHER};

pub const LIFE_US: u64 = 9_999;

/// A case with two processes, one of them with a slow clock. `ticks` ticks of `tick_us`.
pub fn case(running: Running, terms: Terms, promise: Promise, (ticks, tick_us): (u8, u64)) -> Case {
    Case {
        running,
        terms,
        promise,
        slow: vec![true, false],
        units: 2,
        tick_us,
        ticks,
        messages: 2,
        calls: 2,
        faults: Faults::default(),
        excuses: true,
        mutant: None,
        seen: Arc::new(Seen::default()),
    }
}

pub fn running(program: Program, numbers: Vec<i64>) -> Running {
    Running { program, numbers }
}

fn terms(numbers: Numbers, bound: Bound) -> Terms {
    Terms::new(numbers, 1, LIFE_US, bound).unwrap()
}

/// Three units at once, and one each life.
pub fn bucket(program: Program, bound: Bound) -> Case {
    let (quota, period, burst) = (1, 10_002, 3);
    let terms = terms(Numbers::Bucket { quota, period, burst }, bound);
    let Numbers::Bucket { burst: at_store, .. } = terms.numbers else { panic!("no bucket") };
    let (quota, period, burst) = (quota as i64, period as i64, burst as i64);
    let late = if bound == Bound::Strict { 0 } else { terms.life_at_store as i64 };
    let running = running(program, vec![quota, period, at_store as i64]);
    case(running, terms, Promise::Bucket { quota, period, burst, late }, (4, 5_000))
}

/// Two units in a little more than two ticks.
pub fn sliding(program: Program, most: i64) -> Case {
    let period = 20_001;
    let terms = terms(Numbers::Sliding { period }, Bound::Strict);
    let Numbers::Sliding { period: at_store } = terms.numbers else { panic!("no period") };
    let promise = Promise::Trailing { quota: most, span: period as i64 };
    case(running(program, vec![2, at_store as i64, 0]), terms, promise, (5, 10_000))
}

/// Two units in two sub-windows of one and a half ticks each. A span of one sub-window is exact,
/// since it touches two.
pub fn sub_windows() -> Case {
    let (length, buckets) = (15_000, 2);
    let terms = terms(Numbers::SubWindows { length, buckets }, Bound::Strict);
    let Numbers::SubWindows { buckets: at_store, .. } = terms.numbers else { panic!("no windows") };
    let promise = Promise::Trailing { quota: 2, span: length as i64 };
    let numbers = vec![2, length as i64, at_store as i64, 0];
    case(running(SLIDING_WINDOW_BUCKETS, numbers), terms, promise, (5, 10_000))
}

/// Four units in two ticks.
pub fn fixed_window() -> Case {
    window(true)
}

fn window(aligned: bool) -> Case {
    let period = 20_000;
    let terms = terms(Numbers::Window { period }, Bound::Strict);
    let promise = Promise::Windows { quota: 4, period: period as i64, aligned };
    let running = running(FIXED_WINDOW, vec![4, period as i64, i64::from(aligned), 0]);
    case(running, terms, promise, (3, 10_000))
}

/// The same by a calendar.
pub fn quota() -> Case {
    let terms = terms(Numbers::Calendar, Bound::Strict);
    let promise = Promise::Windows { quota: 4, period: CALENDAR, aligned: true };
    case(running(QUOTA, vec![4, 1]), terms, promise, (3, 10_000))
}

/// Two places.
pub fn concurrency() -> Case {
    let length = 10_002;
    let terms = terms(Numbers::Places { length }, Bound::Strict);
    let running = running(CONCURRENCY, vec![2, length as i64, 0]);
    case(running, terms, Promise::InUse { most: 2 }, (4, 5_000))
}

/// The events of every case.
const ALWAYS: [Event; 4] = [Event::Granted, Event::Refused, Event::GrantedLate, Event::SpentLast];

/// Tries all orders of events: the promise is always kept, what is `reached` is reached by some
/// order, and so are the `events`.
fn holds(case: Case, reached: &[&'static str], events: &[Event]) {
    let name = case.running.program.name;
    let checker = case.checker().threads(1).spawn_bfs().join();
    println!("{name}: {} states", checker.unique_state_count());
    checker.assert_no_discovery(PROMISE);
    checker.assert_no_discovery(HOLDINGS);
    for property in reached {
        checker.assert_any_discovery(property);
    }
    for event in ALWAYS.iter().chain(events) {
        assert!(checker.model().seen.has(*event), "{name}: nothing led to {event:?}");
    }
}

/// Alone requests that are admitted and refused.
const ALONE: [Event; 2] = [Event::AdmittedAlone, Event::RefusedAlone];

#[test]
fn gcra_with_a_reduced_burst_keeps_its_bound() {
    holds(bucket(GCRA, Bound::Strict), &[REACHED], &ALONE);
}

#[test]
fn gcra_with_its_whole_burst_exceeds_it_by_what_flows_in_during_a_life() {
    holds(bucket(GCRA, Bound::Loose), &[REACHED], &ALONE);
}

#[test]
fn token_bucket_with_a_reduced_burst_keeps_its_bound() {
    holds(bucket(TOKEN_BUCKET, Bound::Strict), &[REACHED], &ALONE);
}

#[test]
fn sliding_window_log_that_keeps_units_a_life_longer_is_exact() {
    holds(sliding(SLIDING_WINDOW_LOG, 2), &[REACHED], &ALONE);
}

#[test]
fn sliding_window_counter_admits_at_most_twice_its_quota() {
    holds(sliding(SLIDING_WINDOW_COUNTER, 4), &[], &ALONE);
}

#[test]
fn sliding_window_buckets_with_more_sub_windows_keeps_its_bound() {
    holds(sub_windows(), &[REACHED], &ALONE);
}

#[test]
fn fixed_window_is_exact_in_each_window() {
    holds(fixed_window(), &[REACHED, TOGETHER], &ALONE);
}

#[test]
fn fixed_window_that_starts_with_its_first_request_is_exact() {
    let faults = Faults { left: 1, ..Faults::default() };
    holds(Case { faults, ..window(false) }, &[REACHED, TOGETHER], &[Event::GivenBack]);
}

#[test]
fn quota_is_exact_in_each_period() {
    holds(quota(), &[REACHED, TOGETHER], &ALONE);
}

#[test]
fn concurrency_never_has_more_places_in_use() {
    holds(concurrency(), &[REACHED], &[Event::Finished]);
}

#[test]
fn three_processes_are_no_more_than_two() {
    let slow = vec![true, true, false];
    let case = Case { slow, ticks: 3, ..bucket(GCRA, Bound::Strict) };
    holds(case, &[REACHED], &ALONE);
}

/// One fault on an algorithm of one instant, one of members and one of windows. The log makes
/// `log_ticks` ticks: with four of them units leave it, with three only if its clock steps.
fn with(faults: Faults, log_ticks: u8, events: &[Event]) {
    let log = Case { ticks: log_ticks + 1, ..sliding(SLIDING_WINDOW_LOG, 2) };
    for case in [bucket(GCRA, Bound::Strict), log, fixed_window()] {
        let ticks = case.ticks - 1;
        // Faults of the store are many more orders, and need one lease of each process only.
        let calls = if faults.failovers + faults.steps > 0 { 1 } else { case.calls };
        holds(Case { faults, ticks, calls, ..case }, &[REACHED], events);
    }
}

#[test]
fn a_call_that_timed_out_may_still_take_and_answer() {
    let events = [Event::Unknown, Event::GrantedUnexpected];
    with(Faults { timeouts: 1, ..Faults::default() }, 4, &events);
}

#[test]
fn a_lease_may_be_left_early() {
    with(Faults { left: 1, ..Faults::default() }, 4, &[Event::GivenBack]);
    for case in [bucket(TOKEN_BUCKET, Bound::Strict), sub_windows(), quota()] {
        let faults = Faults { left: 1, ..Faults::default() };
        holds(Case { faults, ticks: case.ticks.min(4) - 1, ..case }, &[], &[Event::GivenBack]);
    }
}

#[test]
fn a_spent_unit_may_be_rolled_back() {
    let events = [Event::RolledBack, Event::RolledBackLate];
    with(Faults { rolled_back: 1, ..Faults::default() }, 4, &events);
}

#[test]
fn a_process_may_be_killed_and_started_again() {
    with(Faults { killed: 1, ..Faults::default() }, 4, &[Event::Killed]);
}

#[test]
fn a_failover_that_forgets_a_lease_admits_at_most_its_units_more() {
    with(Faults { failovers: 1, ..Faults::default() }, 3, &[Event::Forgotten]);
}

#[test]
fn a_step_of_the_stores_clock_admits_at_most_one_allowance_more() {
    with(Faults { steps: 1, ..Faults::default() }, 3, &[Event::Stepped]);
}
