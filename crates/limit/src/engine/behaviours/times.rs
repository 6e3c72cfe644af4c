//! What counters do over time: when to retry, at what rate units pass, and what happens when the
//! clock steps.

use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::FakeRelativeClock;
use governor::{Quota, RateLimiter};
use proptest::prelude::*;

use super::super::driver::Verb;
use super::super::testing::{
    CONCURRENCY, Event, FIXED_WINDOW, GCRA, LEAKY_BUCKET, QUOTA, RATES, SECOND_US,
    SLIDING_WINDOW_BUCKETS, SLIDING_WINDOW_COUNTER, SLIDING_WINDOW_LOG, START_US, TOKEN_BUCKET,
    TimedStore, cell, cost, one,
};
use super::super::{Cell, Cells};

const HOUR_US: i64 = 3_600_000_000;

#[test]
fn nine_hundred_a_second_for_an_hour_is_nine_hundred_a_second() {
    for program in [&TOKEN_BUCKET, &GCRA, &LEAKY_BUCKET] {
        let mut store = TimedStore::embedded();
        let limit = cell(program, "hour", 900, SECOND_US, 900);
        let mut admitted = store.drain(&limit);
        let begin_us = store.now_us;
        // For a minute, take as soon as one may fit. Then for an hour, take whatever is available
        // in each tenth of a second.
        while store.now_us <= begin_us + 60 * SECOND_US {
            let taken = store.take(&one(&limit));
            admitted += u64::from(taken.admitted);
            store.step(taken.cells[0].retry_units.unwrap_or(0) as i64);
        }
        while store.now_us < begin_us + HOUR_US as u64 {
            store.step(99_999.min(begin_us as i64 + HOUR_US - store.now_us as i64));
            let left = store.left(&limit);
            assert!(left == 0 || store.fits(&cost(&limit, left)));
            admitted += left;
        }
        assert_eq!(admitted, 900 + 900 * 3600, "{}", program.name);
    }
}

#[test]
fn five_thousand_in_a_second_are_all_in_the_log() {
    for (engine, mut store) in TimedStore::engines() {
        let limit = cell(&SLIDING_WINDOW_LOG, "log", 5_000, SECOND_US, 5_000);
        // Seven per microsecond, and one more once all have been taken.
        let take = |index: u64| Event {
            now_us: START_US + index / 7,
            verb: Verb::Take,
            cells: one(&Cell { member: (1 + u128::from(index)) << 32, ..limit.clone() }),
            taken_at_us: 0,
        };
        let events: Vec<Event> = (0..5_001).map(take).collect();
        let admitted: Vec<bool> =
            store.replay(&events).iter().map(|answer| answer.taken().unwrap().admitted).collect();
        assert!(admitted[..5_000].iter().all(|admitted| *admitted) && !admitted[5_000], "{engine}");
        // The first seven leave first.
        store.step(SECOND_US as i64 - 1);
        assert_eq!(store.left(&limit), 0, "{engine}");
        store.step(1);
        assert_eq!(store.left(&limit), 7, "{engine}");
    }
}

/// How many periods must pass until nothing of the present one counts.
fn periods(limit: &Cell) -> u64 {
    if limit.program.name == "sliding_window_counter" { 2 } else { 1 }
}

#[test]
fn a_clock_that_steps_back_gives_one_burst_and_recovers_within_a_period() {
    for (engine, mut store) in TimedStore::engines() {
        for (program, back_us) in RATES.iter().flat_map(|program| {
            [1, 499_999, 1_000_000, 1_500_001, HOUR_US].map(|us| (*program, us))
        }) {
            let limit = cell(program, &format!("back{back_us}"), 10, SECOND_US, 10);
            // In two parts, so that the state covers more than one instant.
            assert!(store.fits(&cost(&limit, 4)));
            store.step(10_000);
            store.drain(&limit);
            store.step(-back_us);
            let at = format!("{engine} {} {back_us} us back", program.name);
            let admitted = store.drain(&limit);
            assert!(admitted <= 10, "{at}: {admitted} at once");
            let told = store.take(&one(&limit)).cells[0].retry_units.unwrap();
            assert!(told <= periods(&limit) * SECOND_US, "{at}: told to wait {told} us");
            // Whatever retry time was reported: after a period (two for the weighted counter) all
            // is back, once.
            store.step((periods(&limit) * SECOND_US) as i64);
            if back_us <= SECOND_US as i64 {
                // Units taken before the step may lie in this period.
                store.step(back_us);
            }
            assert_eq!(store.left(&limit), 10, "{at}");
            assert_eq!(store.drain(&limit), 10, "{at}");
            // Forward again: at most one burst more.
            store.step(back_us);
            let admitted = store.drain(&limit);
            assert!(admitted <= 10, "{at}, then forward: {admitted}");
        }
    }
}

/// A clock-aligned window that started before the clock stepped back over its border continues: its
/// quota is not granted twice.
#[test]
fn a_window_by_the_clock_is_begun_once() {
    for (engine, mut store) in TimedStore::engines() {
        for (program, period_us) in [(&FIXED_WINDOW, SECOND_US), (&QUOTA, 3600 * SECOND_US)] {
            let mut limit = cell(program, "border", 10, period_us, 10);
            if program.name == "fixed_window" {
                limit.numbers[2] = 1;
            }
            let border_us = START_US / period_us * period_us;
            let to = |store: &mut TimedStore, us: i64| {
                store.now_us = border_us.checked_add_signed(us).unwrap()
            };
            to(&mut store, 10_000);
            assert_eq!(store.drain(&cost(&limit, 5)), 2, "{engine} {}", program.name);
            to(&mut store, -10_000);
            let taken = store.take(&one(&limit));
            assert!(!taken.admitted, "{engine} {}", program.name);
            assert_eq!(
                taken.cells[0].retry_units,
                Some(period_us + 10_000),
                "{engine} {}",
                program.name
            );
            assert_eq!(taken.cells[0].reset_units, period_us + 10_000, "{engine} {}", program.name);
            to(&mut store, 20_000);
            assert_eq!(store.drain(&limit), 0, "{engine} {}", program.name);
            to(&mut store, period_us as i64);
            assert_eq!(store.drain(&limit), 10, "{engine} {}", program.name);
        }
    }
}

#[test]
fn a_quota_counts_by_the_period_that_the_clock_shows() {
    for (engine, mut store) in TimedStore::engines() {
        let limit = cell(&QUOTA, "back", 10, 3600 * SECOND_US, 10);
        assert_eq!(store.drain(&limit), 10, "{engine}");
        // The next period is a new one.
        store.step(HOUR_US);
        assert_eq!(store.drain(&limit), 10, "{engine}");
        let until_the_end = limit.numbers[5] as u64 - store.now_us;
        assert_eq!(store.take(&one(&limit)).cells[0].retry_units, Some(until_the_end), "{engine}");
        // When the clock steps back from it, it remains the one to count in.
        store.step(-HOUR_US);
        let taken = store.take(&one(&limit));
        assert_eq!(
            (taken.admitted, taken.cells[0].retry_units),
            (false, Some(until_the_end + HOUR_US as u64)),
            "{engine}"
        );
        store.step(-HOUR_US);
        assert_eq!(store.drain(&limit), 10, "{engine}: two periods back");
        // An instant outside the periods named is not decided, whatever the limit.
        store.step(-HOUR_US);
        for limit in [&limit, &Cell { shadow: true, ..limit.clone() }] {
            let taken = store.take(&one(limit));
            assert!(
                !taken.admitted && taken.cells[0].outside && taken.cells[0].retry_units.is_none(),
                "{engine} {taken:?}"
            );
        }
    }
}

/// Periods of a calendar differ in length. If the caller's clock is behind, the end of the period
/// that pays a debt is not among those that it names.
#[test]
fn the_end_of_a_quotas_debt_is_reported_exactly_or_asked_again() {
    for (engine, mut store) in TimedStore::engines() {
        let hour = |number: i64| START_US as i64 / HOUR_US * HOUR_US + number * HOUR_US;
        // The period from 2 to 3 is followed by one that ends at 7.
        let mut limit = cell(&QUOTA, "paid", 10, HOUR_US as u64, 10);
        limit.numbers = [10, 1, hour(0), hour(1), hour(2), hour(3), 10];
        let named =
            Cell { numbers: [10, 1, hour(1), hour(2), hour(3), hour(7), 10], ..limit.clone() };
        store.step(hour(2) + HOUR_US / 2 - store.now_us as i64);
        assert_eq!(store.drain(&named), 10, "{engine}");
        // Nothing is owed yet, so nothing depends on what is not named.
        let retry = |store: &mut TimedStore, limit: &Cell| {
            let taken = store.take(&one(limit));
            assert!(!taken.admitted, "{engine}");
            (taken.cells[0].outside, taken.cells[0].retry_units)
        };
        assert_eq!(retry(&mut store, &limit), (false, Some(HOUR_US as u64 / 2)), "{engine}");
        assert_eq!(store.charge(&cost(&named, 4)), 4, "{engine}");
        assert_eq!(retry(&mut store, &limit), (true, None), "{engine}");
        let half = HOUR_US as u64 / 2;
        assert_eq!(retry(&mut store, &named), (false, Some(half)), "{engine}");
        // More than the next period leaves when it has paid.
        let end = half + 4 * HOUR_US as u64;
        assert_eq!(retry(&mut store, &cost(&named, 7)), (false, Some(end)), "{engine}");
        assert_eq!(store.take(&one(&named)).cells[0].reset_units, end, "{engine}");
    }
}

#[test]
fn after_a_step_of_the_clock_leases_linger_for_one_length_at_most() {
    for (engine, mut store) in TimedStore::engines() {
        for back_us in [1, 500_000, 999_999, HOUR_US] {
            let limit = Cell {
                member: 7 << 32,
                ..cell(&CONCURRENCY, &format!("back{back_us}"), 1, SECOND_US, 1)
            };
            let other = Cell { member: 8 << 32, ..limit.clone() };
            assert!(store.fits(&limit));
            store.step(500_000);
            assert!(!store.fits(&other), "{engine}");
            store.renew(&one(&limit));
            store.step(-back_us);
            // The holder has died. Its lease may have ended with the step; otherwise it lasts until
            // the clock reaches its end again.
            store.step(SECOND_US as i64 + back_us.min(SECOND_US as i64));
            assert!(store.fits(&other), "{engine} {back_us}");
            store.give_back(&one(&other), 0);
            // A renewal after the step makes the lease count again.
            store.renew(&one(&limit));
            assert!(!store.fits(&other), "{engine} {back_us}");
        }
    }
}

/// Uses up a limit at several instants, so that its units do not all come back at one.
fn spend(store: &mut TimedStore, limit: &Cell) {
    for part in [3, 2, 1] {
        let units = store.left(limit).div_ceil(part);
        if units > 0 {
            assert!(store.fits(&cost(limit, units)));
        }
        let period = limit.numbers[1] * i64::from(limit.unit_us);
        store.step(if part > 1 { period / 97 } else { 0 });
    }
    let left = store.left(limit);
    if left > 0 {
        assert!(store.fits(&cost(limit, left)));
    }
}

#[test]
fn a_lone_client_is_refused_until_the_retry_time_and_admitted_at_it() {
    let numbers = [
        (7, SECOND_US, 3, 1),
        (3, 1_000_003, 20, 1),
        (900, SECOND_US, 900, 1),
        (10_000, SECOND_US, 5, 1),
        (1_000, 86_400_000, 50, 1_000),
    ];
    for (engine, mut store) in TimedStore::engines() {
        for program in RATES {
            for (quota, period, burst, unit_us) in numbers {
                let limit = Cell {
                    unit_us,
                    ..cell(program, &format!("retry{quota}-{period}"), quota, period, burst)
                };
                for amount in [1, 2, 3] {
                    let limit = cost(&limit, amount);
                    spend(&mut store, &limit);
                    let told = store.take(&one(&limit)).cells[0].retry_units.unwrap() as i64;
                    assert!(told > 0);
                    store.step((told - 1) * i64::from(unit_us));
                    assert!(!store.fits(&limit), "{engine} {}: one unit too early", program.name);
                    store.step(i64::from(unit_us));
                    assert!(store.fits(&limit), "{engine} {}: at the told time", program.name);
                }
            }
        }
    }
}

#[test]
fn the_take_of_the_last_unit_tells_when_the_next_is_there() {
    for (engine, mut store) in TimedStore::engines() {
        for program in [&SLIDING_WINDOW_LOG, &SLIDING_WINDOW_COUNTER, &SLIDING_WINDOW_BUCKETS] {
            for (quota, at_once, unit_us) in
                [(1, 1, 1), (3, 1, 1), (3, 3, 1), (7, 2, 1_000), (20, 3, 1)]
            {
                let limit = Cell {
                    unit_us,
                    ..cell(program, &format!("last{quota}-{at_once}"), quota, SECOND_US, 10)
                };
                let told = (0..200).find_map(|_| {
                    store.step(7_001);
                    let units = store.left(&limit).clamp(1, at_once);
                    let reply = store.take(&one(&cost(&limit, units))).cells[0];
                    assert!(
                        !reply.fits || reply.retry_units.is_some() == (reply.remaining == 0),
                        "{engine} {reply:?}"
                    );
                    reply.retry_units.filter(|_| reply.fits)
                });
                let told = told.unwrap() as i64;
                assert!(told > 0, "{engine} {}", program.name);
                store.step((told - 1) * i64::from(unit_us));
                assert!(
                    !store.fits(&limit),
                    "{engine} {} {quota}: one unit too early",
                    program.name
                );
                store.step(i64::from(unit_us));
                assert!(store.fits(&limit), "{engine} {} {quota}: at the told time", program.name);
            }
        }
    }
}

#[test]
fn a_quotas_retry_time_is_the_next_periods_beginning() {
    for (engine, mut store) in TimedStore::engines() {
        let mut limit = cell(&QUOTA, "told", 10, SECOND_US, 10);
        store.step(123_456);
        assert!(store.fits(&cost(&limit, 10)));
        let taken = store.take(&one(&limit));
        assert_eq!(
            (taken.cells[0].retry_units, taken.cells[0].reset_units),
            (Some(876_544), 876_544),
            "{engine}"
        );
        store.step(876_543);
        assert!(!store.fits(&limit), "{engine}");
        store.step(1);
        assert!(store.fits(&limit), "{engine}");
        // A period without an end has no time to report.
        limit.numbers = [3, 1, 0, 0, 0, 0, 0];
        limit.key.key = 99;
        assert_eq!(store.drain(&limit), 3, "{engine}");
        assert_eq!(store.take(&one(&limit)).cells[0].retry_units, None, "{engine}");
    }
}

#[test]
fn a_leaky_bucket_lets_a_burst_pass_and_the_rest_in_its_turn() {
    for (engine, mut store) in TimedStore::engines() {
        // One per 100 ms, two at once, and 250 ms of waiting.
        let mut limit = cell(&LEAKY_BUCKET, "turns", 10, SECOND_US, 2);
        limit.numbers[3] = 250_000;
        let waits: Vec<_> = (0..5)
            .map(|_| store.take(&one(&limit)))
            .map(|taken| (taken.admitted, taken.cells[0].retry_units))
            .collect();
        let turns = [
            (true, None),
            (true, None),
            (true, Some(100_000)),
            (true, Some(200_000)),
            (false, Some(50_000)),
        ];
        assert_eq!(waits, turns, "{engine}");
        store.step(49_999);
        assert!(!store.fits(&limit), "{engine}");
        store.step(1);
        assert_eq!(store.take(&one(&limit)).cells[0].retry_units, Some(250_000), "{engine}");
        // A caller that can't hold one more waiting request is refused until it would pass at once.
        limit.numbers[4] = 0;
        let refused = store.take(&one(&limit));
        assert_eq!(
            (refused.admitted, refused.cells[0].retry_units),
            (false, Some(350_000)),
            "{engine}"
        );
        store.step(350_000);
        assert_eq!(store.take(&one(&limit)).cells[0].retry_units, None, "{engine}");
    }
}

proptest! {
    #[test]
    fn gcra_decides_as_governor_does_where_the_interval_is_whole(
        interval_us in prop_oneof![1_u64..20, 1_000_u64..20_000, 1_000_000_u64..4_000_000_000],
        quota in prop_oneof![1_u64..10, 100_u64..1_000],
        burst in prop_oneof![1_u32..20, 1_000_u32..2_000],
        steps in prop::collection::vec((0_usize..8, 0_u64..400, 1_u32..6), 1..400),
    ) {
        let clock = FakeRelativeClock::default();
        let rate = Quota::with_period(Duration::from_micros(interval_us)).unwrap().allow_burst(NonZeroU32::new(burst).unwrap());
        let oracle = RateLimiter::direct_with_clock(rate, clock.clone());
        let mut store = TimedStore::embedded();
        let limit = cell(&GCRA, "governor", quota, interval_us * quota, burst.into());
        let mut told_us = 0_u64;
        for (index, (how, percent, amount)) in steps.into_iter().enumerate() {
            let us = [0, 0, 1, told_us, told_us.saturating_sub(1), interval_us, interval_us * percent / 100, interval_us * percent][how];
            clock.advance(Duration::from_micros(us));
            store.step(us as i64);
            // Governor returns an error for a cost above the burst, so there is nothing to compare.
            let amount = amount.min(burst);
            let expected = oracle.check_n(NonZeroU32::new(amount).unwrap()).unwrap();
            let taken = store.take(&Cells::from_iter([cost(&limit, amount.into())]));
            prop_assert_eq!(taken.admitted, expected.is_ok(), "decision {}", index);
            told_us = taken.cells[0].retry_units.unwrap_or(0);
        }
    }
}

#[test]
fn callers_with_different_numbers_do_not_reset_each_other() {
    // As happens while an edit reaches one proxy after another, or if a policy answers two bursts
    // for one key.
    for (engine, mut store) in TimedStore::engines() {
        for program in [&TOKEN_BUCKET, &GCRA] {
            let large = cell(program, "bursts apart", 100, 60 * SECOND_US, 100);
            let mut small = large.clone();
            small.numbers[2] = 99;
            let admitted = (0..300).filter(|turn| store.fits([&large, &small][turn % 2])).count();
            assert_eq!(admitted, 100, "{engine} {}: in one instant", program.name);
            // A burst at another rate covers another span of time: changing the rate may lose some
            // of it, but never gains any.
            let slow = cell(program, "rates apart", 100, 60 * SECOND_US, 100);
            let fast = cell(program, "rates apart", 200, 60 * SECOND_US, 100);
            let admitted = (0..300).filter(|turn| store.fits([&slow, &fast][turn % 2])).count();
            assert!(
                (50..=100).contains(&admitted),
                "{engine} {}: {admitted} in one instant",
                program.name
            );
        }
        // For gcra a burst of the slow one covers two of the fast one: half of it is beyond what
        // the fast one counts. Each keeps to its own limit.
        let slow = cell(&GCRA, "sum of both", 100, 60 * SECOND_US, 100);
        let fast = cell(&GCRA, "sum of both", 200, 60 * SECOND_US, 100);
        assert!(store.take(&one(&cost(&slow, 50))).admitted);
        assert_eq!((store.drain(&fast), store.drain(&slow)), (100, 0), "{engine}");
        let long = Cell {
            numbers: [10, SECOND_US as i64, 1, 10 * SECOND_US as i64, 1, 0, 0],
            ..cell(&LEAKY_BUCKET, "apart", 10, SECOND_US, 1)
        };
        let mut short = long.clone();
        short.numbers[3] = 5 * SECOND_US as i64;
        let admitted = (0..500).filter(|turn| store.fits([&long, &short][turn % 2])).count();
        assert_eq!(admitted, 101, "{engine}: what passes, and what waits for ten seconds at most");
    }
}

/// A bucket, or a window in debt, is full again later with a smaller quota.
#[test]
fn a_counter_that_refuses_after_an_edit_to_a_smaller_quota_is_kept_until_the_retry_time() {
    let redis = [("redis", TimedStore::redis())];
    for (engine, mut store) in [("embedded", TimedStore::forgetting())].into_iter().chain(redis) {
        for program in [&TOKEN_BUCKET, &GCRA, &FIXED_WINDOW] {
            let name = format!("{engine} {}", program.name);
            let mut large = cell(program, "to a smaller quota", 1_000, SECOND_US, 1_000);
            large.numbers[if program.name == "fixed_window" { 3 } else { 2 }] = 1_000;
            let mut small = large.clone();
            small.numbers[0] = 10;
            assert!(store.take(&one(&cost(&large, 1_000))).admitted, "{name}");
            if program.name == "fixed_window" {
                assert_eq!(store.charge(&cost(&large, 990)), 990, "{name}");
            }
            let told_us = store.take(&one(&small)).cells[0].retry_units.unwrap();
            let whole = if program.name == "fixed_window" { small } else { cost(&small, 1_000) };
            let told_us = store.take(&one(&whole)).cells[0].retry_units.unwrap().max(told_us);
            assert!((60..=200).contains(&(told_us / SECOND_US)), "{name}: {told_us}");
            if engine == "redis" {
                // The time is not Redis' own here, so nothing expires.
                let ends_ms = store.on_redis().lifetimes(std::slice::from_ref(&whole))[0];
                assert!(ends_ms as u64 >= (store.now_us + told_us) / 1_000, "{name}");
            }
            store.step(told_us as i64 - 1);
            for other in 0..10 {
                store.fits(&cell(&GCRA, &format!("{name} {other}"), 1, SECOND_US, 1));
            }
            assert!(!store.fits(&whole), "{name}: it was told {told_us}");
            store.step(1);
            assert!(store.fits(&whole), "{name}: it was told {told_us}");
        }
    }
}

#[test]
fn a_place_with_slack_is_held_however_far_the_clock_steps_back() {
    for (engine, mut store) in TimedStore::engines() {
        let mut place = cell(&CONCURRENCY, "slack", 2, HOUR_US as u64, 0);
        place.numbers[2] = 100 * HOUR_US;
        for back_us in [0, 1, 1_000_000, 50 * HOUR_US] {
            store.step(-back_us);
            let held = store
                .take(&Cells::from_iter([Cell {
                    member: (back_us as u128 + 1) << 32,
                    ..place.clone()
                }]))
                .admitted;
            assert_eq!(held, back_us <= 1, "{engine} {back_us}");
        }
    }
}
