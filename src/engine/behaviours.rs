//! What counters do, as one list that every engine is held to; and what is the embedded engine's own.

use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::FakeRelativeClock;
use governor::{Quota, RateLimiter};

use super::testing::{RATES, FIXED_WINDOW, GCRA, SECOND_US, START_US, TOKEN_BUCKET, Timed, cell, cost, one};
use super::{Cause, Cell, Cells, Embedded, EmbeddedSettings, EngineError, Program, Ran};
use crate::clock::{self, Clock};
use crate::telemetry::Metrics;

const HOUR_US: i64 = 3_600_000_000;

fn buckets() -> [&'static Program; 2] {
    [&TOKEN_BUCKET, &GCRA]
}

#[test]
fn a_fresh_counter_is_full_and_admits_exactly_its_capacity() {
    for (engine, mut store) in Timed::engines() {
        for program in RATES {
            let limit = cell(program, "fresh", 7, SECOND_US, 7);
            assert_eq!(store.left(&limit), 7, "{engine} {}", program.name);
            assert_eq!(store.drain(&limit), 7, "{engine} {}", program.name);
        }
    }
}

#[test]
fn nine_hundred_a_second_for_an_hour_is_nine_hundred_a_second() {
    for program in buckets() {
        let mut store = Timed::embedded();
        let limit = cell(program, "hour", 900, SECOND_US, 900);
        let mut admitted = store.drain(&limit);
        // Asked as soon as one may fit, for a simulated hour.
        let end = store.now_us + HOUR_US as u64;
        while store.now_us <= end {
            let taken = store.take(&one(&limit));
            admitted += u64::from(taken.admitted);
            store.step(taken.cells[0].retry_units.unwrap_or(0) as i64);
        }
        assert_eq!(admitted, 900 + 900 * 3600, "{}", program.name);
    }
}

#[test]
fn a_give_back_after_a_refill_gives_nothing_twice() {
    for (engine, mut store) in Timed::engines() {
        for program in buckets() {
            let limit = cell(program, "twice", 10, SECOND_US, 10);
            let taken_at = store.now_us;
            assert!(store.fits(&cost(&limit, 10)));
            store.step(SECOND_US as i64);
            // All has flowed back by itself: the give-back must not make 20 of it.
            assert!(store.fits(&cost(&limit, 10)));
            store.give_back(&one(&cost(&limit, 10)), taken_at);
            assert_eq!(store.drain(&limit), 0, "{engine} {}", program.name);
        }
    }
}

#[test]
fn a_give_back_returns_what_has_not_flowed_back() {
    for (engine, mut store) in Timed::engines() {
        for program in buckets() {
            let limit = cell(program, "half", 10, SECOND_US, 10);
            let taken_at = store.now_us;
            assert!(store.fits(&cost(&limit, 10)));
            store.step(300_000);
            assert_eq!(store.left(&limit), 3, "{engine} {}", program.name);
            store.give_back(&one(&cost(&limit, 5)), taken_at);
            assert_eq!(store.left(&limit), 5, "{engine} {}", program.name);
            store.give_back(&one(&cost(&limit, 10)), taken_at);
            assert_eq!(store.left(&limit), 10, "{engine} {}: never above full", program.name);
        }
    }
}

#[test]
fn a_fixed_window_takes_back_only_into_the_window_that_was_charged() {
    for (engine, mut store) in Timed::engines() {
        for alignment in [0, 1] {
            let mut limit = cell(&FIXED_WINDOW, &format!("window{alignment}"), 10, SECOND_US, 10);
            limit.numbers[3] = alignment;
            let taken_at = store.now_us;
            assert!(store.fits(&cost(&limit, 8)));
            store.give_back(&one(&cost(&limit, 3)), taken_at);
            assert_eq!(store.left(&limit), 5, "{engine}");
            store.step(SECOND_US as i64);
            assert!(store.fits(&cost(&limit, 8)));
            store.give_back(&one(&cost(&limit, 5)), taken_at);
            assert_eq!(store.left(&limit), 2, "{engine}: the window of that take is gone");
            let taken_at = store.now_us;
            store.give_back(&one(&cost(&limit, 100)), taken_at);
            assert_eq!(store.left(&limit), 10, "{engine}: floored at zero");
        }
    }
}

#[test]
fn a_fixed_windows_end_is_not_moved_by_later_hits() {
    for (engine, mut store) in Timed::engines() {
        let limit = cell(&FIXED_WINDOW, "fixed", 3, SECOND_US, 3);
        assert!(store.fits(&limit));
        store.step(999_998);
        assert!(store.fits(&cost(&limit, 2)));
        store.step(1);
        assert!(!store.fits(&limit), "{engine}: the last microsecond of the window");
        store.step(1);
        assert_eq!(store.drain(&limit), 3, "{engine}: the first of the next");
    }
}

#[test]
fn an_aligned_window_begins_at_whole_periods() {
    for (engine, mut store) in Timed::engines() {
        let mut limit = cell(&FIXED_WINDOW, "aligned", 3, SECOND_US, 3);
        limit.numbers[3] = 1;
        store.step(999_999 - (START_US % SECOND_US) as i64);
        assert_eq!(store.drain(&limit), 3, "{engine}");
        store.step(1);
        assert_eq!(store.drain(&limit), 3, "{engine}");
    }
}

#[test]
fn a_clock_one_hour_back_recovers_within_a_period() {
    for (engine, mut store) in Timed::engines() {
        for program in RATES {
            let limit = cell(program, "back", 10, SECOND_US, 10);
            store.drain(&limit);
            store.step(-HOUR_US);
            let taken = store.take(&one(&limit));
            let waits = taken.cells[0].retry_units.unwrap_or(0);
            assert!(waits <= SECOND_US, "{engine} {}: {waits} us", program.name);
            store.step(waits as i64);
            let admitted = store.drain(&limit) + u64::from(taken.admitted);
            assert!((1..=10).contains(&admitted), "{engine} {}: {admitted}", program.name);
            // And forward again: at most one burst more.
            store.step(HOUR_US);
            assert!(store.drain(&limit) <= 10, "{engine} {}", program.name);
        }
    }
}

#[test]
fn one_cell_that_refuses_leaves_the_other_uncharged() {
    for (engine, mut store) in Timed::engines() {
        for (first, second) in RATES.iter().flat_map(|first| RATES.iter().map(move |second| (*first, *second))) {
            let wide = cell(first, &format!("wide-{}-{}", first.name, second.name), 100, SECOND_US, 100);
            let tight = cell(second, &format!("tight-{}-{}", first.name, second.name), 3, SECOND_US, 3);
            let cells = Cells::from_iter([wide.clone(), tight.clone()]);
            let taken: Vec<_> = (0..10).map(|_| store.take(&cells)).collect();
            assert_eq!(taken.iter().filter(|taken| taken.admitted).count(), 3, "{engine}");
            assert!(taken[9].cells[0].fits && !taken[9].cells[1].fits, "{engine}: every cell is asked");
            assert_eq!((store.left(&wide), store.left(&tight)), (97, 0), "{engine}");
        }
    }
}

#[test]
fn a_shadow_cell_refuses_nobody_and_is_charged_only_with_the_others() {
    for (engine, mut store) in Timed::engines() {
        let enforced = cell(&GCRA, "enforced", 5, SECOND_US, 5);
        let shadow = Cell { shadow: true, ..cell(&FIXED_WINDOW, "shadow", 3, SECOND_US, 3) };
        let wide = Cell { shadow: true, ..cell(&FIXED_WINDOW, "wide", 100, SECOND_US, 100) };
        let cells = Cells::from_iter([shadow, enforced, wide.clone()]);
        let taken: Vec<_> = (0..8).map(|_| store.take(&cells)).collect();
        assert_eq!(taken.iter().map(|taken| taken.admitted).collect::<Vec<_>>(), [true, true, true, true, true, false, false, false]);
        assert_eq!(taken.iter().filter(|taken| taken.cells[0].fits).count(), 3, "{engine}");
        assert_eq!(store.left(&wide), 95, "{engine}: not charged with a refused request");
    }
}

#[test]
fn cost_zero_is_decided_as_one_and_charges_nothing() {
    for (engine, mut store) in Timed::engines() {
        for program in RATES {
            let limit = cell(program, "look", 2, SECOND_US, 2);
            let look = one(&cost(&limit, 0));
            for _ in 0..5 {
                let taken = store.take(&look);
                assert!(taken.admitted && taken.cells[0].remaining == 2 && taken.cells[0].reset_units == 0, "{engine} {taken:?}");
            }
            store.drain(&limit);
            assert!(!store.take(&look).admitted, "{engine} {}", program.name);
        }
    }
}

#[test]
fn a_cost_above_the_burst_never_fits_and_has_no_retry_time() {
    for (engine, mut store) in Timed::engines() {
        for program in RATES {
            let limit = cell(program, "above", 5, SECOND_US, 5);
            let taken = store.take(&one(&cost(&limit, 6)));
            assert!(!taken.admitted && taken.cells[0].retry_units.is_none(), "{engine} {taken:?}");
            assert_eq!(store.left(&limit), 5, "{engine} {}", program.name);
        }
    }
}

#[test]
fn the_told_retry_time_is_exact() {
    for (engine, mut store) in Timed::engines() {
        for program in RATES {
            for (quota, period, burst) in [(7, SECOND_US, 3), (3, 1_000_003, 20), (900, SECOND_US, 900), (700_000, SECOND_US, 5)] {
                let limit = cell(program, &format!("retry{quota}-{period}"), quota, period, burst);
                for amount in [1, 2, 3] {
                    store.drain(&cost(&limit, amount));
                    let told = store.take(&one(&cost(&limit, amount))).cells[0].retry_units.unwrap() as i64;
                    assert!(told > 0);
                    store.step(told - 1);
                    assert!(!store.fits(&cost(&limit, amount)), "{engine} {}: one unit too early", program.name);
                    store.step(1);
                    assert!(store.fits(&cost(&limit, amount)), "{engine} {}: at the told time", program.name);
                }
            }
        }
    }
}

#[test]
fn an_edited_limit_applies_at_once() {
    for (engine, mut store) in Timed::engines() {
        for program in RATES {
            let small = cell(program, "edited", 10, SECOND_US, 10);
            let large = Cell { numbers: [1000, SECOND_US as i64, 1000, 0, 0, 0], ..small.clone() };
            store.drain(&large);
            // A state that the small limit can't have written: full again at most, never an endless wait.
            assert!(store.take(&one(&small)).cells[0].retry_units.unwrap_or(0) <= SECOND_US, "{engine} {}", program.name);
            store.step(SECOND_US as i64);
            assert_eq!(store.drain(&small), 10, "{engine} {}", program.name);
        }
    }
}

#[test]
fn longer_limits_count_in_milliseconds() {
    let day_ms = 24 * 3_600_000;
    for (engine, mut store) in Timed::engines() {
        for program in RATES {
            let limit = Cell { unit_us: 1000, ..cell(program, "day", 1000, day_ms, 1000) };
            assert_eq!(store.drain(&limit), 1000, "{engine} {}", program.name);
            let told = store.take(&one(&limit)).cells[0].retry_units.unwrap() as i64;
            store.step((told - 1) * 1000);
            assert!(!store.fits(&limit), "{engine} {}", program.name);
            store.step(1000);
            assert!(store.fits(&limit), "{engine} {}", program.name);
        }
    }
}

#[test]
fn gcra_decides_as_governor_does_where_the_interval_is_whole() {
    let clock = FakeRelativeClock::default();
    let quota = Quota::with_period(Duration::from_millis(10)).unwrap().allow_burst(NonZeroU32::new(20).unwrap());
    let oracle = RateLimiter::direct_with_clock(quota, clock.clone());
    let mut store = Timed::embedded();
    let limit = cell(&GCRA, "governor", 100, SECOND_US, 20);
    let random = fastrand::Rng::with_seed(42);
    let mut random = random;
    for index in 0..20_000 {
        let us = [0, 0, 1, 9_999, 10_000, 10_001, random.u64(0..30_000), 500_000][random.usize(0..8)];
        clock.advance(Duration::from_micros(us));
        store.step(us as i64);
        let amount = random.u32(1..4);
        let expected = oracle.check_n(NonZeroU32::new(amount).unwrap()).unwrap().is_ok();
        assert_eq!(store.fits(&cost(&limit, amount.into())), expected, "decision {index}");
    }
}

fn embedded(keys_max: usize) -> (Embedded, Clock, Metrics) {
    let clock = Clock::virtual_at(START_US as i64);
    let metrics = Metrics::new(1);
    (Embedded::new(&EmbeddedSettings { keys_max }, clock.clone(), &metrics), clock, metrics)
}

fn tagged(tag: u128) -> Cell {
    let mut cell = cell(&FIXED_WINDOW, "tagged", 5, SECOND_US, 5);
    cell.key.tag = tag;
    cell
}

#[test]
fn a_full_embedded_engine_serves_known_keys_and_refuses_new_ones_until_one_expires() {
    let (engine, clock, metrics) = embedded(3);
    let full = Err(EngineError { cause: Cause::Full, ran: Ran::No });
    for tag in 0..3 {
        assert!(engine.take(&one(&tagged(tag))).unwrap().admitted);
    }
    assert_eq!(engine.take(&one(&tagged(3))), full);
    assert!(engine.take(&one(&tagged(2))).unwrap().admitted);
    assert!(engine.take(&one(&cost(&tagged(3), 0))).unwrap().admitted, "a look needs no room");
    let shadow = Cell { shadow: true, ..cell(&GCRA, "new", 1, 1, 1) };
    let with_shadow = Cells::from_iter([tagged(2), Cell { key: super::Key { tag: 2, ..shadow.key.clone() }, ..shadow }]);
    assert!(engine.take(&with_shadow).unwrap().admitted, "a shadow without room refuses nobody");
    assert_eq!((engine.keys(), metrics.gauge(crate::telemetry::names::EMBEDDED_KEYS).get()), (3, 3));
    let text = metrics.encode();
    assert!(text.contains("weir_embedded_full_total 2") && text.contains("weir_store_errors_total{cause=\"full\"} 1"), "{text}");
    // Shards are chosen by the tag's low bits: a tag of the same shard finds the expired one.
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
    let (engine, _, _) = embedded(10);
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

/// No promise, a figure: `cargo test --lib engine::behaviours::the_cost -- --nocapture` prints it.
#[test]
fn the_cost_of_an_embedded_take_is_small() {
    let (engine, _, _) = embedded(1_000_000);
    for program in RATES {
        let cells: Vec<Cells> = (0..1_000_u128)
            .map(|tag| {
                let mut cell = cell(program, "cost", 1_000_000, 3_600 * SECOND_US, 1_000_000);
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
        assert!(each < Duration::from_micros(50), "{each:?}");
    }
}
