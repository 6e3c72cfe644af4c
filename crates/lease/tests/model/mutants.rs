//! Mistakes that the model has to find: each is one change of how a lease is used, or of the
//! numbers that the store runs with, and breaks the promise or the bound of holdings.

use std::collections::BTreeSet;

use stateright::{Checker, HasDiscoveries, Model};
use weir_lease::Bound;

use crate::cases::{LIFE_US, bucket, concurrency, fixed_window, quota, sliding, sub_windows};
use crate::programs::{GCRA, SLIDING_WINDOW_LOG, TOKEN_BUCKET};
use crate::world::{Case, Faults};
use crate::{HOLDINGS, PROMISE};

/// A mistake in how a lease is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// The deadline counts from the reply.
    FromReply,
    /// A request that should wait for the call in flight sends another one.
    NoGuard,
    /// Unused units are given back as if they had been taken when they come back.
    GiveBackUndated,
    /// A lease does not end with the window that the store reported.
    OutlivesWindow,
}

/// Some order of events breaks `property`.
fn breaks(case: Case, property: &'static str) {
    let (name, mutant) = (case.running.program.name, case.mutant);
    let found = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    let checker = case.checker().threads(1).finish_when(found).spawn_bfs().join();
    let Some(path) = checker.discovery(property) else {
        panic!("{name} with {mutant:?}: nothing breaks \"{property}\"");
    };
    println!(
        "{name}, {mutant:?}: {} states, {:?}",
        checker.unique_state_count(),
        path.into_actions()
    );
}

fn with(mutant: Mutant, case: Case) -> Case {
    Case { mutant: Some(mutant), ..case }
}

/// The case with another number at the store.
fn at_store(mut case: Case, number: usize, value: u64) -> Case {
    case.running.numbers[number] = value as i64;
    case
}

/// One tick longer: a bucket has to fill.
fn longer(case: Case) -> Case {
    Case { ticks: case.ticks + 1, ..case }
}

fn may_leave(case: Case) -> Case {
    Case { faults: Faults { left: 1, ..Faults::default() }, ..case }
}

#[test]
fn a_deadline_that_counts_from_the_reply_admits_too_much() {
    for case in [
        longer(bucket(GCRA, Bound::Strict)),
        longer(bucket(GCRA, Bound::Loose)),
        longer(bucket(TOKEN_BUCKET, Bound::Strict)),
        sliding(SLIDING_WINDOW_LOG, 2),
        sub_windows(),
        fixed_window(),
        quota(),
        concurrency(),
    ] {
        breaks(with(Mutant::FromReply, case), PROMISE);
    }
}

/// The limit's own promise is kept: the store has counted both. But what a failover forgets, a dead
/// process wastes and one process keeps from the others is no longer bounded by one lease.
#[test]
fn without_a_guard_for_the_call_in_flight_a_process_holds_two_leases() {
    let case = with(Mutant::NoGuard, fixed_window());
    breaks(case, HOLDINGS);
}

#[test]
fn a_log_that_keeps_units_for_its_period_alone_admits_too_much() {
    breaks(at_store(sliding(SLIDING_WINDOW_LOG, 2), 1, 20_001), PROMISE);
}

#[test]
fn a_log_that_ignores_drift_admits_too_much() {
    breaks(at_store(sliding(SLIDING_WINDOW_LOG, 2), 1, 20_001 + LIFE_US), PROMISE);
}

#[test]
fn sub_windows_of_the_period_alone_admit_too_much() {
    breaks(at_store(sub_windows(), 2, 2), PROMISE);
}

#[test]
fn a_whole_burst_admits_more_than_a_strict_limit() {
    for program in [GCRA, TOKEN_BUCKET] {
        breaks(at_store(bucket(program, Bound::Strict), 2, 3), PROMISE);
    }
}

#[test]
fn a_lease_that_outlives_its_window_admits_too_much() {
    for case in [fixed_window(), quota()] {
        breaks(with(Mutant::OutlivesWindow, case), PROMISE);
    }
}

#[test]
fn places_that_the_store_counts_for_a_life_without_drift_are_used_twice() {
    breaks(at_store(concurrency(), 1, LIFE_US), PROMISE);
}

/// A give-back needs the instant of the take: a bucket has refilled since, a window has ended.
#[test]
fn a_late_give_back_without_the_instant_of_the_take_admits_too_much() {
    let gcra = longer(bucket(GCRA, Bound::Strict));
    let token_bucket = longer(bucket(TOKEN_BUCKET, Bound::Strict));
    for case in [gcra, token_bucket, fixed_window()] {
        breaks(may_leave(with(Mutant::GiveBackUndated, case)), PROMISE);
    }
}

/// With that instant the programs give back only what has not come back by itself, however late
/// that is.
#[test]
fn a_late_give_back_with_the_instant_of_the_take_is_harmless() {
    for case in [bucket(GCRA, Bound::Strict), sliding(SLIDING_WINDOW_LOG, 2), fixed_window()] {
        let case = Case { ticks: 3, ..may_leave(case) };
        let checker = case.checker().threads(1).spawn_bfs().join();
        checker.assert_no_discovery(PROMISE);
        checker.assert_no_discovery(HOLDINGS);
    }
}

/// No mistake, but it shows that these faults do what they are excused for.
#[test]
fn a_failover_and_a_step_of_the_stores_clock_do_admit_more() {
    let (failovers, steps) = (1, 1);
    for faults in [Faults { failovers, ..Faults::default() }, Faults { steps, ..Faults::default() }]
    {
        for case in [longer(bucket(GCRA, Bound::Strict)), sliding(SLIDING_WINDOW_LOG, 2)] {
            breaks(Case { faults, excuses: false, ..case }, PROMISE);
        }
    }
}
