//! Specific to the embedded engine: how many keys it holds, what counts as a key, and when it is
//! free again.

use std::time::Duration;

use proptest::prelude::*;

use super::super::testing::{
    ALL, CONCURRENCY, FIXED_WINDOW, GCRA, RATES, SECOND_US, SLIDING_WINDOW_BUCKETS,
    SLIDING_WINDOW_LOG, START_US, cell, cost, one,
};
use super::super::{Cause, Cell, Cells, Embedded, EmbeddedSettings, EngineError, Execution, Key};
use crate::clock::{self, Clock};
use crate::telemetry::{Metrics, names};

const FULL: EngineError = EngineError { cause: Cause::Full, ran: Execution::No };

fn embedded(keys_max: usize) -> (Embedded, Clock, Metrics) {
    let clock = Clock::virtual_at(START_US as i64);
    let metrics = Metrics::new(1);
    (Embedded::new(&EmbeddedSettings::new(keys_max), clock.clone(), &metrics), clock, metrics)
}

fn tagged(tag: u128) -> Cell {
    let mut cell = cell(&FIXED_WINDOW, "tagged", 5, SECOND_US, 5);
    cell.key.tag = tag;
    cell
}

#[test]
fn a_full_embedded_engine_serves_known_keys_and_refuses_new_ones_until_one_expires() {
    let (engine, clock, metrics) = embedded(3);
    let full = Err(FULL);
    for tag in 0..3 {
        assert!(engine.take(&one(&tagged(tag))).unwrap().admitted);
    }
    assert_eq!(engine.take(&one(&tagged(3))), full);
    assert!(engine.take(&one(&tagged(2))).unwrap().admitted);
    assert!(engine.take(&one(&cost(&tagged(3), 0))).unwrap().admitted, "a look needs no room");
    let shadow = Cell { shadow: true, ..cell(&GCRA, "new", 1, 1, 1) };
    let with_shadow =
        Cells::from_iter([tagged(2), Cell { key: Key { tag: 2, ..shadow.key.clone() }, ..shadow }]);
    assert!(engine.take(&with_shadow).unwrap().admitted, "a shadow without room refuses nobody");
    assert_eq!((engine.keys(), metrics.gauge(names::EMBEDDED_KEYS).get()), (3, 3));
    let text = metrics.encode();
    assert!(
        text.contains("weir_embedded_full_total 2")
            && text.contains("weir_store_errors_total{cause=\"full\"} 1"),
        "{text}"
    );
    // The tag's low bits select the shard: a call with a tag of the same shard finds the expired
    // counter.
    clock.step(3_100_000);
    assert!(engine.take(&one(&tagged(256))).unwrap().admitted);
}

#[test]
fn expired_counters_are_forgotten_by_the_calls_that_follow() {
    let (engine, clock, _) = embedded(1_000_000);
    for key in 0..5_000 {
        let mut cell = tagged(1);
        cell.key.key = key;
        engine.take(&one(&cell)).unwrap();
    }
    assert_eq!(engine.keys(), 5_000);
    clock.step(10_000_000);
    for _ in 0..1_500 {
        engine.take(&one(&cost(&tagged(1), 0))).unwrap();
    }
    assert_eq!(engine.keys(), 0);
}

#[test]
fn a_reset_counter_is_full_again() {
    let (engine, _, _) = embedded(10);
    assert!(engine.take(&one(&cost(&tagged(1), 5))).unwrap().admitted);
    engine.reset(&tagged(1).key);
    assert_eq!(engine.keys(), 0);
    assert!(engine.take(&one(&cost(&tagged(1), 5))).unwrap().admitted);
}

#[test]
fn threads_on_one_counter_admit_its_quota_exactly() {
    let (engine, _, _) = embedded(10_000);
    for program in RATES {
        let limit = cell(program, "threads", 1_000, 1_000 * SECOND_US, 1_000);
        let admitted: usize = std::thread::scope(|scope| {
            let work = || (0..500).filter(|_| engine.take(&one(&limit)).unwrap().admitted).count();
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(work)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(admitted, 1_000, "{}", program.name);
    }
}

/// Prints the cost, which is a measurement and no promise: `cargo test --lib
/// engine::behaviours::memory::the_cost -- --nocapture`. Fails only if it is far too high.
#[test]
fn the_cost_of_an_embedded_take_is_small() {
    let (engine, _, _) = embedded(1_000_000);
    for program in RATES {
        let cells: Vec<Cells> = (0..1_000_u128)
            .map(|tag| {
                let mut cell = cell(program, "cost", 10_000, 3_600 * SECOND_US, 10_000);
                cell.key.tag = tag.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c834);
                one(&cell)
            })
            .collect();
        let rounds = 200;
        let start = clock::monotonic();
        for cells in (0..rounds).flat_map(|_| &cells) {
            assert!(engine.take(cells).unwrap().admitted);
        }
        let each = start.elapsed() / (rounds * 1_000);
        println!("{}: {each:?} a take", program.name);
        assert!(each < Duration::from_micros(50), "{} {each:?}", program.name);
    }
}

fn named(limit: &Cell, member: u128) -> Cells {
    one(&Cell { member: member << 32, ..limit.clone() })
}

#[test]
fn a_log_is_a_key_for_each_take_and_a_full_engine_goes_on_when_some_are_given_back() {
    for program in [&SLIDING_WINDOW_LOG, &CONCURRENCY] {
        // And a quarter more for existing ones.
        let (engine, _, _) = embedded(4);
        let limit = cost(&cell(program, "members", 1_000, SECOND_US, 0), 3);
        for member in 0..5 {
            assert!(engine.take(&named(&limit, member)).unwrap().admitted);
            assert_eq!(
                engine.keys(),
                1 + member as usize,
                "{}: a take is one record, whatever it costs",
                program.name
            );
        }
        assert_eq!(engine.take(&named(&limit, 5)), Err(FULL), "{}", program.name);
        assert_eq!(engine.keys(), 5);
        // Nothing was charged, as a look shows.
        assert_eq!(engine.take(&one(&cost(&limit, 0))).unwrap().cells[0].remaining, 985);
        // Giving back part of a take leaves its record, giving back all of it frees the record, and
        // only once.
        engine.give_back(&named(&cost(&limit, 2), 1), START_US).unwrap();
        assert_eq!(engine.keys(), 5);
        for _ in 0..2 {
            engine.give_back(&named(&limit, 1), START_US).unwrap();
            assert_eq!(engine.keys(), 4);
        }
        assert!(engine.take(&named(&limit, 5)).unwrap().admitted, "{}", program.name);
        for member in 0..6 {
            engine.give_back(&named(&limit, member), START_US).unwrap();
        }
        assert_eq!(engine.keys(), 0, "{}", program.name);
    }
}

#[test]
fn eight_sub_windows_are_a_key_more() {
    let (engine, _, _) = embedded(20);
    let ring = |name: &str, buckets| {
        let mut limit = cell(&SLIDING_WINDOW_BUCKETS, name, 10, SECOND_US, 0);
        limit.numbers[2] = buckets;
        limit
    };
    for _ in 0..2 {
        assert!(
            engine.take(&one(&ring("few", 10))).unwrap().admitted
                && engine.take(&one(&ring("more", 60))).unwrap().admitted
        );
        assert_eq!(engine.keys(), (1 + 1) + (1 + 7));
    }
    assert_eq!(engine.take(&one(&ring("again", 100))), Err(FULL), "thirteen more find no room");
    assert_eq!(engine.keys(), (1 + 1) + (1 + 7));
    engine.reset(&ring("more", 60).key);
    assert_eq!(engine.keys(), 1 + 1);
    assert!(engine.take(&one(&ring("again", 100))).unwrap().admitted);
    assert_eq!(engine.keys(), (1 + 1) + (1 + 12));
}

/// New clients fill the engine; existing ones continue, whatever is stored for them.
#[test]
fn known_logs_and_leases_go_on_when_strangers_have_filled_the_engine() {
    for program in [&SLIDING_WINDOW_LOG, &CONCURRENCY] {
        let (engine, _, _) = embedded(100);
        let limit = cell(program, "known", 1_000, SECOND_US, 0);
        assert!(engine.take(&named(&limit, 0)).unwrap().admitted);
        let mut strangers = (0..).take_while(|tag| engine.take(&one(&tagged(*tag))).is_ok());
        assert_eq!(strangers.by_ref().count(), 99);
        for member in 1..=25 {
            assert!(
                engine.take(&named(&limit, member)).unwrap().admitted,
                "{} {member}",
                program.name
            );
        }
        assert_eq!(
            engine.take(&named(&limit, 26)),
            Err(FULL),
            "{}: there is an end to it",
            program.name
        );
        assert_eq!(engine.take(&one(&tagged(1_000))), Err(FULL), "{}", program.name);
    }
}

#[test]
fn a_full_log_makes_room_of_what_is_over() {
    let (engine, clock, _) = embedded(3);
    let limit = cell(&SLIDING_WINDOW_LOG, "over", 1_000, SECOND_US, 0);
    for member in 0..3 {
        assert!(engine.take(&named(&limit, member)).unwrap().admitted);
    }
    assert_eq!(engine.take(&named(&limit, 3)), Err(FULL));
    // One microsecond more than a period.
    clock.step(SECOND_US as i64 + 1);
    assert!(engine.take(&named(&limit, 5)).unwrap().admitted);
    assert_eq!(engine.keys(), 1);
}

#[test]
fn a_shadow_log_without_room_refuses_nobody() {
    let (engine, _, _) = embedded(2);
    let shadow = Cell { shadow: true, ..cell(&SLIDING_WINDOW_LOG, "shadow", 1_000, SECOND_US, 0) };
    let enforced = cell(&GCRA, "enforced", 1_000, SECOND_US, 1_000);
    for member in 0..4 {
        let cells = Cells::from_iter([Cell { member, ..shadow.clone() }, enforced.clone()]);
        assert!(engine.take(&cells).unwrap().admitted);
        assert_eq!(engine.keys(), 2);
    }
    assert_eq!(
        engine.take(&one(&cost(&shadow, 0))).unwrap().cells[0].remaining,
        999,
        "what had no room was not counted"
    );
}

#[test]
fn renewing_keeps_leases_only() {
    let (engine, _, _) = embedded(5);
    let lease = cell(&CONCURRENCY, "lease", 5, SECOND_US, 0);
    engine.renew(&Cells::from_iter([
        cell(&GCRA, "none", 1, 1, 1),
        cell(&SLIDING_WINDOW_LOG, "none", 1, 1, 1),
        lease.clone(),
    ]));
    assert_eq!(engine.keys(), 1, "a lease that had ended begins again; nothing else was made");
    engine.renew(&one(&lease));
    assert_eq!(engine.keys(), 1);
    engine.give_back(&one(&lease), 0).unwrap();
    assert_eq!(engine.keys(), 0);
}

proptest! {
    #[test]
    fn whatever_happened_all_keys_are_free_in_the_end(
        keys_max in 1_usize..60,
        steps in prop::collection::vec((0_u8..8, any::<usize>(), 0_u128..4, 1_u64..5, 0_i64..700_000), 1..200),
    ) {
        let (engine, clock, metrics) = embedded(keys_max);
        let mut taken: Vec<(u64, Cells)> = Vec::new();
        let mut renewed = 0;
        for (step, (what, which, key, units, us)) in steps.into_iter().enumerate() {
            clock.step(us);
            match what {
                0..5 => {
                    let some = (0..ALL.len()).filter(|index| which >> index & 1 == 1);
                    let cells: Cells = some.map(|index| {
                        let mut cell = cell(ALL[index], "free", 20, SECOND_US, 20);
                        cell.key.key = key;
                        Cell { cost: units, member: (step as u128) << 32, shadow: which >> 12 & 1 == 1, ..cell }
                    }).collect();
                    match engine.take(&cells) {
                        Ok(answer) if answer.admitted => taken.push((answer.at_us, cells)),
                        Ok(_) => {}
                        Err(error) => prop_assert_eq!(error, FULL),
                    }
                }
                5 | 6 if !taken.is_empty() => {
                    let (at_us, cells) = &taken[which % taken.len()];
                    let part: Cells = cells.iter().map(|cell| cost(cell, units)).collect();
                    engine.give_back(if what == 5 { cells } else { &part }, *at_us).unwrap();
                }
                7 if !taken.is_empty() => {
                    let (_, cells) = &taken[which % taken.len()];
                    engine.renew(cells);
                    // A lease that was forgotten and starts again may be one too many.
                    renewed += 1;
                }
                _ => {}
            }
            prop_assert!(engine.keys() <= keys_max + keys_max / 4 + renewed, "{} of {}", engine.keys(), keys_max);
        }
        clock.step(3_600 * SECOND_US as i64);
        for _ in 0..100 {
            engine.take(&one(&cost(&cell(&GCRA, "look", 1, 1, 1), 0))).unwrap();
        }
        prop_assert_eq!((engine.keys(), metrics.gauge(names::EMBEDDED_KEYS).get()), (0, 0));
    }
}
