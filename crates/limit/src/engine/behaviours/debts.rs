//! Charges at the end of a request, which may go into debt: on both engines.

use super::super::testing::{
    FIXED_WINDOW, GCRA, QUOTA, SECOND_US, SLIDING_WINDOW_BUCKETS, SLIDING_WINDOW_COUNTER,
    SLIDING_WINDOW_LOG, START_US, TOKEN_BUCKET, TimedStore, cell, cost, one,
};
use super::super::{Cell, Program};

/// Every algorithm whose units may be owed.
static OWING: [&Program; 7] = [
    &FIXED_WINDOW,
    &SLIDING_WINDOW_COUNTER,
    &SLIDING_WINDOW_LOG,
    &SLIDING_WINDOW_BUCKETS,
    &TOKEN_BUCKET,
    &GCRA,
    &QUOTA,
];
const MINUTE_US: u64 = 60 * SECOND_US;

/// A limit of `quota` in a period, with a debt.
fn owing(program: &'static Program, name: &str, quota: u64, period_us: u64, debt: i64) -> Cell {
    let mut cell = cell(program, name, quota, period_us, quota);
    cell.numbers[program.numbers - 1] = debt;
    cell
}

/// The cell with the calendar's periods around `now_us`, as the limiter names them.
fn named(cell: &Cell, period_us: u64, now_us: u64) -> Cell {
    let mut cell = cell.clone();
    if cell.program.name == "quota" {
        let period = period_us as i64;
        let this = now_us as i64 / period * period;
        cell.numbers[2..6].copy_from_slice(&[-1, 0, 1, 2].map(|n| this + n * period));
    }
    cell
}

#[test]
fn a_charge_takes_what_is_left_and_then_what_may_be_owed() {
    for (engine, mut store) in TimedStore::engines() {
        for program in OWING {
            let limit = owing(program, "owed", 10, MINUTE_US, 5);
            let name = program.name;
            assert!(store.fits(&cost(&limit, 4)), "{engine} {name}");
            assert_eq!(store.charge(&cost(&limit, 3)), 3, "{engine} {name}: it fits");
            assert_eq!(store.left(&limit), 3, "{engine} {name}");
            assert_eq!(store.charge(&cost(&limit, 6)), 6, "{engine} {name}: 3 are owed");
            assert_eq!(store.left(&limit), 0, "{engine} {name}");
            assert_eq!(store.charge(&cost(&limit, 6)), 2, "{engine} {name}: no more than the debt");
            assert_eq!(store.charge(&cost(&limit, 1)), 0, "{engine} {name}");
            assert!(!store.fits(&limit), "{engine} {name}");
        }
    }
}

#[test]
fn a_debtor_is_told_when_a_unit_fits_and_it_fits_then_and_not_before() {
    for (engine, mut store) in TimedStore::engines() {
        for program in OWING {
            for debt in [1, 7, 10] {
                let name = format!("{engine} {} {debt}", program.name);
                let limit = owing(program, &format!("told{debt}"), 10, MINUTE_US, debt);
                let now = |store: &TimedStore| named(&limit, MINUTE_US, store.now_us);
                assert_eq!(store.charge(&cost(&now(&store), 999)), 10 + debt as u64, "{name}");
                let refused = store.take(&one(&now(&store)));
                let retry = refused.cells[0].retry_units.unwrap();
                assert_eq!(refused.cells[0].remaining, 0, "{name}");
                store.step(retry as i64 - 1);
                assert!(!store.fits(&now(&store)), "{name}");
                store.step(1);
                assert!(store.fits(&now(&store)), "{name}");
                // What it says about the time until all is back is right, too.
                let reset = store.look(&one(&now(&store))).cells[0].reset_units;
                store.step(reset as i64);
                assert_eq!(store.left(&now(&store)), 10, "{name}");
            }
        }
    }
}

#[test]
fn windows_pay_a_debt_one_after_another_or_forget_it() {
    for (engine, mut store) in TimedStore::engines() {
        for program in [&FIXED_WINDOW, &QUOTA] {
            let name = program.name;
            for (debt, left) in [(10, [0, 5, 10]), (-10, [10, 10, 10])] {
                let limit = owing(program, &format!("paid{debt}"), 10, MINUTE_US, debt);
                let now = |store: &TimedStore| named(&limit, MINUTE_US, store.now_us);
                assert_eq!(store.charge(&cost(&now(&store), 25)), 20, "{engine} {name} {debt}");
                for (window, left) in left.into_iter().enumerate() {
                    store.step(MINUTE_US as i64);
                    assert_eq!(store.left(&now(&store)), left, "{engine} {name} {debt} {window}");
                    if debt > 0 && window == 0 {
                        assert_eq!(store.charge(&cost(&now(&store), 5)), 5, "{engine} {name}");
                    }
                }
            }
        }
        // Several windows may pass in between, and the chain of windows goes on without a gap.
        let limit = owing(&FIXED_WINDOW, "chain", 10, MINUTE_US, 35);
        assert_eq!(store.charge(&cost(&limit, 99)), 45, "{engine}");
        store.step(3 * MINUTE_US as i64 + 1);
        assert_eq!(store.left(&limit), 0, "{engine}");
        assert_eq!(
            store.take(&one(&limit)).cells[0].retry_units,
            Some(MINUTE_US - 1),
            "{engine}: the fourth window has 15 of it left, the fifth 5"
        );
        store.step(MINUTE_US as i64 - 1);
        assert_eq!(store.left(&limit), 5, "{engine}");
    }
}

/// In `gcra` a debt is an instant in the future, and so is what a clock that stepped back leaves.
#[test]
fn a_debt_is_no_refill_and_a_clock_that_steps_back_is_one() {
    for (engine, mut store) in TimedStore::engines() {
        for program in [&GCRA, &TOKEN_BUCKET] {
            let name = program.name;
            let limit = owing(program, "back", 60, MINUTE_US, 60);
            assert_eq!(store.charge(&cost(&limit, 120)), 120, "{engine} {name}");
            assert_eq!(store.left(&limit), 0, "{engine} {name}: owed, not refilled");
            store.step(MINUTE_US as i64);
            assert_eq!(store.left(&limit), 0, "{engine} {name}: paid");
            store.step(10 * SECOND_US as i64);
            assert_eq!(store.left(&limit), 10, "{engine} {name}");
            // To before the last write: full from now, as without a debt.
            store.step(-71 * SECOND_US as i64);
            assert_eq!(store.left(&limit), 60, "{engine} {name}");
            store.step(71 * SECOND_US as i64);
        }
    }
}

/// As while an edit of `debt` is rolled out, or if a policy allows it for some requests only.
#[test]
fn a_caller_without_a_debt_neither_erases_nor_refills_that_of_another() {
    for (engine, mut store) in TimedStore::engines() {
        for program in [&GCRA, &TOKEN_BUCKET, &FIXED_WINDOW] {
            let name = program.name;
            let owing_one = owing(program, "mixed", 10, MINUTE_US, 10);
            let plain = owing(program, "mixed", 10, MINUTE_US, 0);
            let mut units = 0;
            for _ in 0..5 {
                units += store.drain(&plain) + store.charge(&cost(&owing_one, 10));
            }
            assert_eq!(units, 20, "{engine} {name}");
            store.step(MINUTE_US as i64);
            assert_eq!(store.drain(&plain), 0, "{engine} {name}: it pays for the other");
        }
    }
}

#[test]
fn units_above_a_quota_that_was_edited_to_less_are_not_owed() {
    for (engine, mut store) in TimedStore::engines() {
        for program in [&FIXED_WINDOW, &QUOTA] {
            let name = program.name;
            let limit = owing(program, "edited", 1_000, MINUTE_US, 1_000);
            let less = owing(program, "edited", 100, MINUTE_US, 100);
            let now = |limit: &Cell, store: &TimedStore| named(limit, MINUTE_US, store.now_us);
            assert!(store.fits(&cost(&now(&limit, &store), 900)), "{engine} {name}");
            let refused = store.take(&one(&now(&less, &store))).cells[0];
            store.step(refused.retry_units.unwrap() as i64);
            assert_eq!(store.left(&now(&less, &store)), 100, "{engine} {name}");
        }
    }
}

#[test]
fn a_debtor_gets_back_what_is_given_back() {
    for (engine, mut store) in TimedStore::engines() {
        for program in [&GCRA, &TOKEN_BUCKET, &FIXED_WINDOW] {
            let limit = owing(program, "given", 10, 3_600 * SECOND_US, 10);
            let taken_at = store.now_us;
            assert!(store.fits(&cost(&limit, 8)));
            assert_eq!(store.charge(&cost(&limit, 7)), 7);
            store.give_back(&one(&cost(&limit, 8)), taken_at);
            assert_eq!(store.left(&limit), 3, "{engine} {}", program.name);
        }
    }
}

#[test]
fn amounts_of_any_size_are_counted_to_the_unit() {
    const HUGE: u64 = 1 << 51;
    let day_us = 86_400 * SECOND_US;
    for (engine, mut store) in TimedStore::engines() {
        for program in [&FIXED_WINDOW, &SLIDING_WINDOW_COUNTER, &SLIDING_WINDOW_BUCKETS, &QUOTA] {
            let name = program.name;
            let mut limit = owing(program, "huge", HUGE, day_us, HUGE as i64);
            limit.unit_us = 1_000;
            let period = limit.numbers[1] as u64;
            if name != "quota" {
                limit.numbers[1] = period.div_ceil(1_000) as i64;
            }
            let now = |store: &TimedStore| {
                let mut limit = limit.clone();
                if limit.program.name == "quota" {
                    let (this, day) = ((store.now_us / day_us * 86_400_000) as i64, 86_400_000);
                    limit.numbers[2..6].copy_from_slice(&[-1, 0, 1, 2].map(|n| this + n * day));
                }
                limit
            };
            assert!(store.fits(&cost(&now(&store), HUGE - 1)), "{engine} {name}");
            assert_eq!(store.left(&now(&store)), 1, "{engine} {name}");
            assert!(!store.fits(&cost(&now(&store), 2)), "{engine} {name}");
            assert!(store.fits(&now(&store)), "{engine} {name}");
            assert_eq!(store.charge(&cost(&now(&store), 2 * HUGE)), HUGE, "{engine} {name}");
            let refused = store.take(&one(&now(&store))).cells[0];
            store.step(1_000 * refused.retry_units.unwrap() as i64);
            assert!(store.fits(&now(&store)), "{engine} {name}");
        }
    }
}

/// 1,000 tokens a minute, replies that cost 500, reported at their end, 64 callers at once. `debt`
/// covers what may be in flight, so that each reply is charged whole.
#[test]
fn replies_whose_cost_is_reported_at_their_end_are_charged_whole_and_paid_back() {
    const QUOTA_TOKENS: i128 = 1_000;
    const REPLY_TOKENS: u64 = 500;
    const CALLERS: u64 = 64;
    const MINUTES: u64 = 80;
    let debt = (CALLERS * REPLY_TOKENS) as i128;
    for (engine, mut store) in TimedStore::engines() {
        for program in [&FIXED_WINDOW, &TOKEN_BUCKET, &GCRA] {
            let limit = owing(program, "replies", 1_000, MINUTE_US, debt as i64);
            let mut limit = limit;
            if program.name == "fixed_window" {
                limit.numbers[2] = 1;
            }
            store.now_us = START_US / MINUTE_US * MINUTE_US;
            let (name, began) = (program.name, store.now_us);
            // Each caller's next step: when, and whether its reply ends then.
            let mut callers: Vec<(u64, bool)> = (0..CALLERS).map(|n| (began + n, false)).collect();
            let mut spent: Vec<(u64, u64)> = Vec::new();
            let mut replies = 0;
            loop {
                let next = callers.iter_mut().min_by_key(|(at, _)| *at).unwrap();
                if next.0 > began + MINUTES * MINUTE_US {
                    break;
                }
                store.now_us = next.0;
                if next.1 {
                    let charged = store.charge(&cost(&limit, REPLY_TOKENS - 1));
                    assert_eq!(charged, REPLY_TOKENS - 1, "{engine} {name}: charged whole");
                    spent.push((next.0, charged));
                    *next = (next.0 + 1, false);
                    continue;
                }
                let taken = store.take(&one(&limit));
                if taken.admitted {
                    replies += 1;
                    spent.push((next.0, 1));
                    // Replies take three seconds.
                    *next = (next.0 + 3 * SECOND_US, true);
                } else {
                    assert_eq!(taken.cells[0].remaining, 0, "{engine} {name}");
                    // All are told the same instant, so only some of them get their turn.
                    *next = (next.0 + taken.cells[0].retry_units.unwrap().max(1), false);
                }
            }
            // Never more than the quota and the debt in any window, and in the long run the quota.
            for (index, (last, _)) in spent.iter().enumerate() {
                let mut tokens = 0;
                for (first, units) in spent[..=index].iter().rev() {
                    tokens += i128::from(*units);
                    let span = i128::from(last - first);
                    let windows = i128::from(last / MINUTE_US - first / MINUTE_US) + 1;
                    let most = if name == "fixed_window" {
                        windows * QUOTA_TOKENS + debt
                    } else {
                        let flowed = span * QUOTA_TOKENS / i128::from(MINUTE_US);
                        QUOTA_TOKENS + debt + flowed + 1
                    };
                    assert!(tokens <= most, "{engine} {name}: {tokens} of {most} in {span} us");
                }
            }
            // The first 64 pass at once and owe 31 minutes. After that everybody is admitted again
            // as the debt is paid: nothing is lost for ever.
            assert!(replies > CALLERS, "{engine} {name}: {replies}");
            let tokens: u64 = spent.iter().map(|(_, units)| units).sum();
            assert!(tokens >= MINUTES * 1_000, "{engine} {name}: {tokens}");
            store.now_us = began + 10 * MINUTES * MINUTE_US;
            assert_eq!(store.left(&limit), 1_000, "{engine} {name}");
        }
    }
}
