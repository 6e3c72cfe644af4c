//! A remembered refusal is what the store would answer.

use proptest::prelude::*;

use super::super::prepared;
use super::super::refusals::{HELD_MAX, Refusals, may_hold};
use super::redis_server::Server;
use super::settling::algorithms;
use super::*;
use crate::clock::monotonic;
use crate::engine::Cells;
use crate::plan::{Algorithm, Debt, Gcra, Rate, SlidingWindowLog, TokenBucket};

fn limit(algorithm: Algorithm, cost: u64) -> Limit {
    Limit { cost, ..Limit::new("l", "k", algorithm) }
}

fn cells(rig: &Rig, limits: &[Limit]) -> Cells {
    prepared::with(&rig.limiter.shared, &rig.scope, &plan(limits), |prepared| {
        assert!(prepared.may_hold_refusal);
        prepared.calls.only().cloned().unwrap()
    })
}

/// Algorithms that refill in less than the time for which refusals are remembered.
fn quick(which: usize) -> Algorithm {
    let rate = Rate { amount: 5, per_ms: 1_200 };
    let debt = Debt::None;
    match which {
        0 => Algorithm::Gcra(Gcra { burst: 3, rate, debt }),
        1 => Algorithm::TokenBucket(TokenBucket { burst: 3, rate, debt }),
        2 => Algorithm::SlidingWindowLog(SlidingWindowLog { rate, debt }),
        3 => Algorithm::from(crate::plan::SlidingWindowCounter { rate, debt }),
        4 => Algorithm::from(crate::plan::SlidingWindowBuckets { rate, buckets: 6, debt }),
        _ => Algorithm::from(crate::plan::FixedWindow {
            rate,
            alignment: crate::plan::Alignment::Clock,
            debt,
        }),
    }
}

proptest! {
    #[test]
    fn what_is_remembered_is_what_the_store_would_answer(
        which in 0_usize..6,
        steps in prop::collection::vec((0_i64..400, 1_u64..4), 1..60),
    ) {
        let (rig, runtime) = (Rig::embedded(), tokio::runtime::Builder::new_current_thread().build().unwrap());
        let (mut refusals, mut now) = (Refusals::default(), monotonic());
        for (ms, cost) in steps {
            rig.clock.step(ms * 1_000);
            now += Duration::from_millis(ms as u64);
            let limits = [limit(quick(which), cost)];
            let cells = cells(&rig, &limits);
            let remembered = refusals.find(&cells, now);
            let outcome = runtime.block_on(rig.outcome(&limits));
            match remembered {
                Some(remembered) => {
                    prop_assert!(!outcome.admitted, "{:?} {:?}", remembered, outcome);
                    prop_assert_eq!(remembered.limits[0].fits, false);
                }
                None if outcome.admitted => {}
                None => refusals.add(&cells, &limits, &outcome, (now, now), HELD_MAX),
            }
        }
    }
}

/// A refusal of three units, of which two would fit, until this many milliseconds from now.
fn refused(retry_after_ms: u64) -> Outcome {
    let limit = crate::plan::LimitOutcome {
        fits: false,
        remaining: 2,
        retry_after_us: Some(retry_after_ms * 1_000),
        reset_us: 60_000_000,
        ..crate::plan::LimitOutcome::default()
    };
    Outcome { admitted: false, limits: vec![limit], store_failure: None }
}

#[test]
fn a_refusal_is_forgotten_after_a_second_and_for_smaller_costs() {
    let rig = Rig::embedded();
    let (mut refusals, now) = (Refusals::default(), monotonic());
    let at = |ms| now + Duration::from_millis(ms);
    let of = |cost| [limit(algorithms(10)[0].clone(), cost)];
    let outcome = refused(60_000);
    refusals.add(&cells(&rig, &of(3)), &of(3), &outcome, (at(0), at(10)), HELD_MAX);
    let mut found = |cost, ms| refusals.find(&cells(&rig, &of(cost)), at(ms));
    assert_eq!(found(2, 20), None, "two would fit");
    let remembered = found(4, 400).unwrap();
    assert_eq!(remembered.limits[0].retry_after_us, Some(59_600_000));
    assert_eq!((found(3, 899).is_some(), found(3, 1_000)), (true, None));
    assert_eq!(refusals.of(1).find(&cells(&rig, &of(3)), at(20)), None, "reset by hand");
}

#[test]
fn before_a_refusal_is_forgotten_one_request_asks_again() {
    let rig = Rig::embedded();
    let (mut refusals, now) = (Refusals::default(), monotonic());
    let at = |ms| now + Duration::from_millis(ms);
    let limits = [limit(algorithms(10)[0].clone(), 3)];
    let cells = cells(&rig, &limits);
    let add = |refusals: &mut Refusals, outcome: &Outcome, ms| {
        refusals.add(&cells, &limits, outcome, (at(ms), at(ms)), HELD_MAX);
    };
    let mut asking = |from, outcome: &Outcome| {
        add(&mut refusals, outcome, from);
        let times = [0, 899, 900, 901, 950, 999].map(|ms| at(from + ms));
        times.map(|now| refusals.find(&cells, now).is_none())
    };
    let once = [false, false, true, false, false, false];
    assert_eq!(asking(0, &refused(60_000)), once);
    assert_eq!(asking(950, &refused(60_000)), once, "its answer is remembered as long");
    let forgotten = [false, false, false, false, true, true];
    assert_eq!(asking(2_000, &refused(950)), forgotten, "units are back by then");
}

#[test]
fn only_refusals_that_last_are_remembered() {
    let held = |limit: Limit| may_hold(&[limit]);
    for algorithm in algorithms(5) {
        let lasts = !algorithm.queues() && !algorithm.holds();
        assert_eq!(held(Limit::new("l", "k", algorithm.clone())), lasts, "{algorithm:?}");
        let refunded = Limit { refund: Refund::Unsent, ..Limit::new("l", "k", algorithm) };
        assert!(!held(refunded));
    }
}

#[tokio::test]
async fn an_attacker_costs_redis_a_few_calls_a_second() {
    let mut server = Server::start();
    let rig = Rig::redis(server.port);
    let limit = limit(algorithms(5)[0].clone(), 1);
    for _ in 0..5 {
        assert!(rig.admits(&limit).await);
    }
    let (before, began, mut asked) = (evalsha(&mut server), monotonic(), 0_u64);
    while began.elapsed() < Duration::from_millis(2_500) {
        assert!(!rig.admits(&limit).await);
        asked += 1;
    }
    let cost = evalsha(&mut server) - before;
    assert!(asked > 1_000 && cost <= 5, "{cost} calls for {asked} requests");
    assert_eq!(rig.count(crate::telemetry::names::REFUSALS_REMEMBERED, &[]), asked - cost);
}

#[tokio::test]
async fn an_attacker_with_many_connections_costs_redis_no_more() {
    let mut server = Server::start();
    let rig = Rig::redis(server.port);
    let limit = limit(algorithms(5)[0].clone(), 1);
    while rig.admits(&limit).await {}
    let before = evalsha(&mut server);
    let client = async || {
        let (began, mut asked) = (monotonic(), 0_u64);
        while began.elapsed() < Duration::from_millis(2_500) {
            assert!(!rig.admits(&limit).await);
            asked += 1;
            tokio::task::yield_now().await;
        }
        asked
    };
    let asked: u64 = futures_util::future::join_all((0..64).map(|_| client())).await.iter().sum();
    let cost = evalsha(&mut server) - before;
    assert!(asked > 1_000 && cost <= 5, "{cost} calls for {asked} requests");
}

fn evalsha(server: &mut Server) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]);
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap();
    line.split(['=', ',']).nth(1).unwrap().parse().unwrap()
}
