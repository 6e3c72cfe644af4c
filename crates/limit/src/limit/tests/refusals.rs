//! A remembered refusal is what the store would answer.

use proptest::prelude::*;

use super::super::keys::Identities;
use super::super::prepared;
use super::super::refusals::{HELD_MAX, RefundableLimits, Refusals, may_hold};
use super::redis_server::Server;
use super::settling::algorithms;
use super::*;
use crate::clock::monotonic;
use crate::limit::Ending;
use crate::plan::{Algorithm, Debt, Gcra, Rate, SlidingWindowLog, TokenBucket};

fn limit(algorithm: Algorithm, cost: u64) -> Limit {
    Limit { cost, ..Limit::new("l", "k", algorithm) }
}

fn identities(rig: &Rig, limits: &[Limit]) -> Identities {
    prepared::with(&rig.limiter.shared, &rig.scope, &plan(limits), |prepared| {
        assert!(prepared.may_hold_refusal);
        prepared.identities.clone()
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
    fn a_remembered_refusal_is_the_stores_answer(
        which in 0_usize..6,
        steps in prop::collection::vec((0_i64..400, 1_u64..4), 1..60),
    ) {
        let (rig, runtime) = (Rig::embedded(), tokio::runtime::Builder::new_current_thread().build().unwrap());
        let (mut refusals, mut now) = (Refusals::default(), monotonic());
        for (ms, cost) in steps {
            rig.clock.step(ms * 1_000);
            now += Duration::from_millis(ms as u64);
            let limits = [limit(quick(which), cost)];
            let identities = identities(&rig, &limits);
            let remembered = refusals.find(&identities, &limits, now);
            let outcome = runtime.block_on(rig.outcome(&limits));
            match remembered {
                Some(remembered) => {
                    prop_assert!(!outcome.admitted, "{:?} {:?}", remembered, outcome);
                    prop_assert_eq!(remembered.limits[0].fits, false);
                }
                None if outcome.admitted => {}
                None => {
                    let rules = (HELD_MAX, &RefundableLimits::default());
                    refusals.add(&identities, &limits, &outcome, (now, now), rules);
                }
            }
        }
    }
}

/// A refusal of three units, of which two would fit, until this many milliseconds from now.
fn refused(retry_after_ms: u64) -> PlanOutcome {
    let limit = crate::plan::LimitOutcome {
        fits: false,
        remaining: 2,
        retry_after_us: Some(retry_after_ms * 1_000),
        reset_us: 60_000_000,
        ..crate::plan::LimitOutcome::default()
    };
    PlanOutcome { admitted: false, limits: vec![limit], store_failure: None }
}

#[test]
fn a_refusal_is_forgotten_after_a_second_and_answers_equal_costs_only() {
    let rig = Rig::embedded();
    let (mut refusals, now) = (Refusals::default(), monotonic());
    let at = |ms| now + Duration::from_millis(ms);
    let of = |cost| [limit(algorithms(10)[0].clone(), cost)];
    let outcome = refused(60_000);
    let rules = (HELD_MAX, &RefundableLimits::default());
    refusals.add(&identities(&rig, &of(3)), &of(3), &outcome, (at(0), at(10)), rules);
    let mut found = |cost, ms| refusals.find(&identities(&rig, &of(cost)), &of(cost), at(ms));
    assert_eq!(found(2, 20), None, "two would fit");
    assert_eq!(found(4, 20), None, "four have to wait longer");
    let remembered = found(3, 400).unwrap();
    assert_eq!(remembered.limits[0].retry_after_us, Some(59_600_000));
    assert_eq!((found(3, 899).is_some(), found(3, 1_000)), (true, None));
    let found = refusals.of(1).find(&identities(&rig, &of(3)), &of(3), at(20));
    assert_eq!(found, None, "reset by hand");
}

#[test]
fn before_a_refusal_is_forgotten_one_request_asks_again() {
    let rig = Rig::embedded();
    let (mut refusals, now) = (Refusals::default(), monotonic());
    let at = |ms| now + Duration::from_millis(ms);
    let limits = [limit(algorithms(10)[0].clone(), 3)];
    let identities = identities(&rig, &limits);
    let add = |refusals: &mut Refusals, outcome: &PlanOutcome, ms| {
        let rules = (HELD_MAX, &RefundableLimits::default());
        refusals.add(&identities, &limits, outcome, (at(ms), at(ms)), rules);
    };
    let mut asking = |from, outcome: &PlanOutcome| {
        add(&mut refusals, outcome, from);
        let times = [0, 899, 900, 901, 950, 999].map(|ms| at(from + ms));
        times.map(|now| refusals.find(&identities, &limits, now).is_none())
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

#[tokio::test]
async fn a_refusal_answers_no_plan_with_another_number_cost_or_order() {
    let server = Server::start();
    let rig = Rig::redis(server.port);
    let quota = |amount| {
        let calendar = crate::plan::Calendar::Forever;
        Algorithm::Quota(crate::plan::Quota {
            amount,
            calendar,
            conditional: true,
            debt: Debt::None,
        })
    };
    // Two classes of one customer's requests, of which one may use less.
    let [batch, interactive] = [3, 1_000].map(|amount| limit(quota(amount), 1));
    while rig.admits(&batch).await {}
    for _ in 0..10 {
        assert!(!rig.admits(&batch).await && rig.admits(&interactive).await);
    }
    // A dearer request waits longer.
    let bucket = |cost| {
        let rate = Rate { amount: 100, per_ms: 100_000 };
        let bucket = Gcra { burst: 100, rate, debt: Debt::None };
        Limit { cost, ..Limit::new("bucket", "k", Algorithm::Gcra(bucket)) }
    };
    assert!(rig.admits(&bucket(100)).await);
    let wait_s = async |cost| {
        let outcome = rig.outcome(&[bucket(cost)]).await;
        outcome.limits[0].retry_after_us.unwrap().div_ceil(SECOND_US)
    };
    assert_eq!((wait_s(1).await, wait_s(90).await, wait_s(1).await), (1, 90, 1));
    // Each limit has its own result, in whatever order a plan has them.
    let day = |name: &str, amount| Limit { key: "o".into(), ..daily(name, "o", amount) };
    let [first, second] = [day("first", 9), day("second", 1)];
    assert!(rig.outcome(&[first.clone(), second.clone()]).await.admitted);
    for order in [[&first, &second], [&second, &first], [&first, &second]] {
        let limits = order.map(Clone::clone);
        let outcome = rig.outcome(&limits).await;
        let fits =
            limits.iter().zip(&outcome.limits).map(|(it, found)| (it.name.as_str(), found.fits));
        for (name, fits) in fits {
            assert_eq!(fits, name == "first", "{outcome:?}");
        }
    }
}

#[tokio::test]
async fn no_refusal_is_remembered_of_a_limit_that_another_plan_gives_back() {
    let server = Server::start();
    let counted = |rig: &Rig| rig.count(crate::telemetry::names::REFUSALS_REMEMBERED, &[]);
    let of_two_tags = [daily("shared", "a", 1), daily("other", "b", 9)];
    let refunded = [refunded(daily("shared", "a", 1), Refund::Unsent)];
    for other in [&of_two_tags[..], &refunded] {
        let rig = Rig::redis(server.port);
        let alone = daily("shared", "a", 1);
        while rig.admits(&alone).await {}
        assert!(!rig.admits(&alone).await && !rig.admits(&alone).await);
        let before = counted(&rig);
        assert!(before > 0, "until it is known that units may come back");
        // As long as it holds or gives back units, it may be the reason for a refusal.
        assert!(!rig.outcome(other).await.admitted);
        for _ in 0..5 {
            assert!(!rig.admits(&alone).await);
        }
        assert_eq!(counted(&rig), before);
    }
}

#[tokio::test]
async fn no_refusal_outlives_what_is_withdrawn() {
    let server = Server::start();
    let rig = Rig::redis(server.port);
    let limit = daily("window", "k", 1);
    let grant = rig.grant(&limit).await;
    assert!(!rig.admits(&limit).await && !rig.admits(&limit).await);
    assert_eq!(rig.count(crate::telemetry::names::REFUSALS_REMEMBERED, &[]), 1);
    grant.settle(Ending::Withdrawn, &[]);
    let began = monotonic();
    while !rig.admits(&limit).await {
        assert!(began.elapsed() < TEST_TIMEOUT, "it does not come back");
    }
    assert_eq!(rig.count(crate::telemetry::names::REFUSALS_REMEMBERED, &[]), 1, "asked each time");
}

fn evalsha(server: &mut Server) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]);
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap();
    line.split(['=', ',']).nth(1).unwrap().parse().unwrap()
}
