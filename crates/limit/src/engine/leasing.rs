//! Leases on a real Redis: a lease of some units is a take of as many, and how many they are is
//! what `weir_lease::units_granted` says.

use std::collections::HashMap;

use proptest::prelude::*;
use weir_lease::{Action, Holder, Want, units_granted};

use super::testing::{
    ALL, FIXED_WINDOW, GCRA, SECOND_US, SLIDING_WINDOW_LOG, START_US, Store, TimedStore, cell,
    cost, one,
};
use super::{Cell, LeaseCall, LeaseReply, Program};

const LIFE_MS: u64 = 300;
const NAMES: [&str; 3] = ["a", "b", "c"];

/// Programs whose units can be leased.
fn leasable() -> impl Iterator<Item = &'static Program> {
    ALL.into_iter().filter(|program| program.name != "leaky_bucket")
}

fn lease(store: &mut TimedStore, cell: &Cell, lease: LeaseCall<'_>) -> LeaseReply {
    let now_us = store.now_us;
    match &mut store.store {
        Store::Redis(redis) => redis.lease(now_us, cell, lease),
        Store::Embedded(..) => panic!("there are no leases in memory"),
    }
}

/// A call of holder `holder`.
fn call(holder: &'static str, needed: u64, units: u64) -> LeaseCall<'static> {
    LeaseCall { needed, units, life_ms: LIFE_MS, holder }
}

#[derive(Clone, Debug)]
struct Asked {
    /// Before it.
    pause_us: u64,
    holder: usize,
    least: u64,
    waiting: u64,
    units: u64,
}

fn asked() -> impl Strategy<Value = Asked> {
    let pause_us = prop_oneof![Just(0), 1..400_000_u64];
    (pause_us, 0..NAMES.len(), 1..4_u64, 0..5_u64, 0..40_u64).prop_map(
        |(pause_us, holder, least, waiting, units)| Asked {
            pause_us,
            holder,
            least,
            waiting,
            units,
        },
    )
}

/// What the crate says of this call.
fn expected(asked: &Asked, left: u64, holders: u64) -> Option<u64> {
    let want = Want { cost: asked.least, waiting: asked.waiting, units: asked.units };
    // A holder that asks alone needs no more than this.
    let want = Want { units: want.units.max(asked.least + 1), ..want };
    let mut holder = Holder::new(SECOND_US);
    let Action::Ask { call, .. } = holder.want(0, want) else { panic!("{want:?}") };
    units_granted(call, left, holders)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    #[test]
    fn a_lease_takes_a_fair_share_and_is_a_take_of_as_many(
        calls in prop::collection::vec(asked(), 1..25)
    ) {
        let mut store = TimedStore::redis();
        for program in leasable() {
            store.now_us = START_US;
            let leased = cell(program, "leased", 60, SECOND_US, 60);
            let taken = cell(program, "taken", 60, SECOND_US, 60);
            let mut ends: HashMap<usize, u64> = HashMap::new();
            for (number, asked) in calls.iter().enumerate() {
                store.step(asked.pause_us as i64);
                let now_ms = store.now_us / 1_000;
                ends.retain(|_, ends_ms| *ends_ms > now_ms);
                let member = (number as u128 + 1) << 32;
                let look = store.look(&one(&cost(&taken, asked.least)));
                let others = ends.keys().filter(|holder| **holder != asked.holder).count();
                let holders = others as u64 + 1;
                let left = look.cells[0].remaining;
                let expected = expected(asked, left, holders).filter(|_| look.admitted);
                let needed = asked.least + asked.waiting;
                let units = asked.units.max(asked.least + 1).max(needed);
                let name = NAMES[asked.holder];
                let reply = lease(
                    &mut store,
                    &Cell { cost: asked.least, member, ..leased.clone() },
                    call(name, needed, units),
                );
                prop_assert_eq!((reply.units > 0).then_some(reply.units), expected, "{}: {:?}", program.name, asked);
                let Some(granted) = expected else {
                    prop_assert_eq!(reply.cell, look.cells[0], "{}: a refusal is that of a take", program.name);
                    continue;
                };
                ends.insert(asked.holder, now_ms + LIFE_MS);
                prop_assert_eq!(reply.holders, holders);
                let same = store.take(&one(&Cell { cost: granted, member, ..taken.clone() }));
                prop_assert!(same.admitted);
                prop_assert_eq!(reply.cell.remaining, same.cells[0].remaining);
                prop_assert_eq!(reply.cell.reset_units, same.cells[0].reset_units);
                if reply.cell.remaining < asked.least && asked.least == 1 {
                    let next = store.look(&one(&taken));
                    prop_assert_eq!(reply.cell.retry_units, next.cells[0].retry_units, "{}", program.name);
                }
                for cost_of_look in [0, 1] {
                    let look = |store: &mut TimedStore, of| store.look(&one(&cost(of, cost_of_look)));
                    prop_assert_eq!(look(&mut store, &leased).cells, look(&mut store, &taken).cells);
                }
            }
            store.on_redis().use_new_prefix();
        }
    }
}

#[test]
fn a_lease_is_given_back_as_a_take_is() {
    for program in [&GCRA, &FIXED_WINDOW, &SLIDING_WINDOW_LOG] {
        let mut store = TimedStore::redis();
        let counter = Cell { member: 7 << 32, ..cell(program, "c", 60, SECOND_US, 60) };
        let reply = lease(&mut store, &counter, call("a", 1, 20));
        assert_eq!((reply.units, reply.cell.remaining), (20, 40), "{}", program.name);
        store.give_back(&one(&cost(&counter, 15)), reply.at_us);
        assert_eq!(store.left(&counter), 55, "{}", program.name);
    }
}

#[test]
fn holders_are_counted_until_their_leases_end_and_leave_no_key() {
    let mut store = TimedStore::redis();
    let counter = cell(&GCRA, "c", 600, SECOND_US, 600);
    let holders = |store: &mut TimedStore, name| lease(store, &counter, call(name, 1, 2)).holders;
    assert_eq!(holders(&mut store, "a"), 1);
    assert_eq!(holders(&mut store, "b"), 2);
    store.step(299_000);
    assert_eq!(holders(&mut store, "a"), 2);
    store.step(1_000);
    assert_eq!(holders(&mut store, "a"), 1, "b has ended");
    // A refusal is no lease.
    let none = cell(&GCRA, "none", 600, SECOND_US, 1);
    let reply = lease(&mut store, &cost(&none, 2), call("a", 2, 5));
    assert_eq!((reply.units, reply.holders), (0, 0));
    let all = store.on_redis();
    let [counter, none] = [counter, none].map(|cell| all.lifetimes(&[cell])[0]);
    assert!(counter > 0 && none == -2, "{counter} {none}");
    assert_eq!(all.keys(), 3, "the counter, its holders and their units");
}
