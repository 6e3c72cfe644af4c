//! What counters do: one list of behaviours that every engine must show.
//!
//! `times` has their behaviour over time, `debts` charges beyond what is left, `hierarchies`
//! parents and their children, `memory` what is specific to the embedded engine.

mod debts;
mod hierarchies;
mod memory;
mod times;

use super::testing::{
    ALL, FIXED_WINDOW, GCRA, RATES, SECOND_US, START_US, TOKEN_BUCKET, TimedStore, cell, cost, one,
};
use super::{Cell, Cells, Program};

fn buckets() -> [&'static Program; 2] {
    [&TOKEN_BUCKET, &GCRA]
}

#[test]
fn a_fresh_counter_is_full_and_admits_exactly_its_capacity() {
    for (engine, mut store) in TimedStore::engines() {
        for program in RATES {
            let limit = cell(program, "fresh", 7, SECOND_US, 7);
            assert_eq!(store.left(&limit), 7, "{engine} {}", program.name);
            assert_eq!(store.drain(&limit), 7, "{engine} {}", program.name);
        }
    }
}

#[test]
fn a_give_back_after_a_refill_gives_nothing_twice() {
    for (engine, mut store) in TimedStore::engines() {
        for program in buckets() {
            let limit = cell(program, "twice", 10, SECOND_US, 10);
            let taken_at = store.now_us;
            assert!(store.fits(&cost(&limit, 10)));
            store.step(SECOND_US as i64);
            // All units have come back by themselves, and the give-back must not double them.
            assert!(store.fits(&cost(&limit, 10)));
            store.give_back(&one(&cost(&limit, 10)), taken_at);
            assert_eq!(store.drain(&limit), 0, "{engine} {}", program.name);
        }
    }
}

#[test]
fn a_give_back_returns_what_has_not_flowed_back() {
    for (engine, mut store) in TimedStore::engines() {
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

/// A give-back must not rely on the level that the take found: units charged by another take before
/// that may have come back since, so that the bucket overflowed.
#[test]
fn give_backs_that_cross_make_no_second_burst() {
    for (engine, mut store) in TimedStore::engines() {
        for program in buckets() {
            let limit = cell(program, "cross", 10, 10 * SECOND_US, 10);
            let half = cost(&limit, 5);
            let taken_at = store.now_us;
            assert!(store.fits(&half) && store.fits(&half));
            store.step(2 * SECOND_US as i64);
            store.give_back(&one(&half), taken_at);
            store.step(3 * SECOND_US as i64);
            let before = store.drain(&limit);
            store.give_back(&one(&half), taken_at);
            let after = store.drain(&limit);
            assert!(
                before + after <= 10,
                "{engine} {}: {before} and {after} in one instant",
                program.name
            );
        }
    }
}

#[test]
fn a_counter_that_is_given_back_whole_leaves_no_key() {
    for (engine, mut store) in TimedStore::engines() {
        for program in ALL.into_iter().filter(|program| program.name != "leaky_bucket") {
            let limit = Cell { member: 7 << 32, ..cell(program, "whole", 10, SECOND_US, 10) };
            let taken_at = store.now_us;
            assert!(store.fits(&cost(&limit, 3)));
            store.give_back(&one(&cost(&limit, 2)), taken_at);
            // In memory a ring counts as more than one.
            assert_ne!(store.keys(), 0, "{engine} {}", program.name);
            // Logs and leases store units by number, and the first ones are given back first.
            store.give_back(&one(&cost(&limit, 3)), taken_at);
            assert_eq!(store.keys(), 0, "{engine} {}", program.name);
        }
    }
}

#[test]
fn a_look_says_what_a_take_would_and_writes_nothing() {
    for (engine, mut store) in TimedStore::engines() {
        for program in ALL {
            let (limit, keys) = (cell(program, "looked-at", 5, SECOND_US, 5), store.keys());
            let looked = store.look(&one(&cost(&limit, 3)));
            assert!(looked.admitted && looked.cells[0].fits, "{engine} {}", program.name);
            assert_eq!(
                (looked.cells[0].remaining, store.keys()),
                (5, keys),
                "{engine} {}",
                program.name
            );
            assert!(store.fits(&cost(&limit, 3)));
            let looked = store.look(&one(&cost(&limit, 3)));
            let taken = store.take(&one(&cost(&limit, 3)));
            assert!(!looked.admitted, "{engine} {}", program.name);
            assert_eq!(looked, taken, "{engine} {}", program.name);
        }
    }
}

#[test]
fn a_fixed_window_takes_back_only_into_the_window_that_was_charged() {
    for (engine, mut store) in TimedStore::engines() {
        for alignment in [0, 1] {
            let mut limit = cell(&FIXED_WINDOW, &format!("window{alignment}"), 10, SECOND_US, 10);
            limit.numbers[2] = alignment;
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
    for (engine, mut store) in TimedStore::engines() {
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
    for (engine, mut store) in TimedStore::engines() {
        let mut limit = cell(&FIXED_WINDOW, "aligned", 3, SECOND_US, 3);
        limit.numbers[2] = 1;
        store.step(999_999 - (START_US % SECOND_US) as i64);
        assert_eq!(store.drain(&limit), 3, "{engine}");
        store.step(1);
        assert_eq!(store.drain(&limit), 3, "{engine}");
    }
}

#[test]
fn one_cell_that_refuses_leaves_the_other_uncharged() {
    for (engine, mut store) in TimedStore::engines() {
        for (first, second) in
            RATES.iter().flat_map(|first| RATES.iter().map(move |second| (*first, *second)))
        {
            let wide =
                cell(first, &format!("wide-{}-{}", first.name, second.name), 100, SECOND_US, 100);
            let tight =
                cell(second, &format!("tight-{}-{}", first.name, second.name), 3, SECOND_US, 3);
            let cells = Cells::from_iter([wide.clone(), tight.clone()]);
            let taken: Vec<_> = (0..10).map(|_| store.take(&cells)).collect();
            assert_eq!(taken.iter().filter(|taken| taken.admitted).count(), 3, "{engine}");
            assert!(
                taken[9].cells[0].fits && !taken[9].cells[1].fits,
                "{engine}: every cell is asked"
            );
            assert_eq!((store.left(&wide), store.left(&tight)), (97, 0), "{engine}");
        }
    }
}

#[test]
fn a_shadow_cell_refuses_nobody_and_is_charged_only_with_the_others() {
    for (engine, mut store) in TimedStore::engines() {
        let enforced = cell(&GCRA, "enforced", 5, SECOND_US, 5);
        let shadow = Cell { shadow: true, ..cell(&FIXED_WINDOW, "shadow", 3, SECOND_US, 3) };
        let wide = Cell { shadow: true, ..cell(&FIXED_WINDOW, "wide", 100, SECOND_US, 100) };
        let cells = Cells::from_iter([shadow, enforced, wide.clone()]);
        let taken: Vec<_> = (0..8).map(|_| store.take(&cells)).collect();
        assert_eq!(
            taken.iter().map(|taken| taken.admitted).collect::<Vec<_>>(),
            [true, true, true, true, true, false, false, false]
        );
        assert_eq!(taken.iter().filter(|taken| taken.cells[0].fits).count(), 3, "{engine}");
        assert_eq!(store.left(&wide), 95, "{engine}: not charged with a refused request");
    }
}

#[test]
fn cost_zero_is_decided_as_one_and_charges_nothing() {
    for (engine, mut store) in TimedStore::engines() {
        for program in RATES {
            let limit = cell(program, "look", 2, SECOND_US, 2);
            let look = one(&cost(&limit, 0));
            for _ in 0..5 {
                let taken = store.take(&look);
                assert!(
                    taken.admitted
                        && taken.cells[0].remaining == 2
                        && taken.cells[0].reset_units == 0,
                    "{engine} {taken:?}"
                );
            }
            store.drain(&limit);
            assert!(!store.take(&look).admitted, "{engine} {}", program.name);
        }
    }
}

#[test]
fn a_cost_above_the_burst_never_fits_and_has_no_retry_time() {
    for (engine, mut store) in TimedStore::engines() {
        for program in RATES {
            let limit = cell(program, "above", 5, SECOND_US, 5);
            let taken = store.take(&one(&cost(&limit, 6)));
            assert!(!taken.admitted && taken.cells[0].retry_units.is_none(), "{engine} {taken:?}");
            assert_eq!(store.left(&limit), 5, "{engine} {}", program.name);
        }
    }
}

#[test]
fn an_edited_limit_applies_at_once() {
    for (engine, mut store) in TimedStore::engines() {
        for program in RATES {
            let small = cell(program, "edited", 10, SECOND_US, 10);
            let large = cell(program, "edited", 1000, SECOND_US, 1000);
            store.drain(&large);
            // For the counter of two windows, the previous one still counts in the next.
            let periods = if program.name == "sliding_window_counter" { 2 } else { 1 };
            // The small limit can't have written this state: it is at most full again, and never
            // waits for ever.
            assert!(
                store.take(&one(&small)).cells[0].retry_units.unwrap_or(0) <= periods * SECOND_US,
                "{engine} {}",
                program.name
            );
            store.step((periods * SECOND_US) as i64);
            assert_eq!(store.drain(&small), 10, "{engine} {}", program.name);
        }
    }
}

#[test]
fn longer_limits_count_in_milliseconds() {
    let day_ms = 24 * 3_600_000;
    for (engine, mut store) in TimedStore::engines() {
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
