//! What each algorithm does at a request's end, on both engines: refunds, adjustments and resets.
//! Also a cost of 0, and shadow limits.

use super::super::Ending;
use super::redis_server::Server;
use super::*;
use crate::clock::monotonic;
use crate::plan::{Calendar, Debt, TimeZone};
use crate::plan::{
    Concurrency, Gcra, LeakyBucket, Quota, SlidingWindowBuckets, SlidingWindowCounter,
    SlidingWindowLog, TokenBucket,
};

const DAY_MS: u64 = 86_400_000;

/// Every algorithm, with an allowance of `amount`.
pub(super) fn algorithms(amount: u64) -> [Algorithm; 9] {
    let rate = Rate { amount, per_ms: 30 * DAY_MS };
    [
        window(amount, 30 * DAY_MS),
        Algorithm::SlidingWindowCounter(SlidingWindowCounter { rate, debt: Debt::None }),
        Algorithm::SlidingWindowLog(SlidingWindowLog { rate, debt: Debt::None }),
        Algorithm::SlidingWindowBuckets(SlidingWindowBuckets {
            rate,
            buckets: 30,
            debt: Debt::None,
        }),
        Algorithm::TokenBucket(TokenBucket { burst: amount, rate, debt: Debt::None }),
        Algorithm::Gcra(Gcra { burst: amount, rate, debt: Debt::None }),
        Algorithm::Quota(Quota {
            amount,
            calendar: Calendar::Month { time_zone: TimeZone::utc(), anchor_day: 1 },
            conditional: true,
            debt: Debt::None,
        }),
        Algorithm::Concurrency(Concurrency { amount }),
        Algorithm::LeakyBucket(LeakyBucket { burst: amount, rate, max_delay_ms: 0 }),
    ]
}

/// The algorithms that can be settled.
fn counted(algorithm: &Algorithm) -> bool {
    algorithm.settles()
}

/// What is left of 20 after a request that took 4 has ended.
fn after(algorithm: &Algorithm, back: u64) -> u64 {
    match algorithm {
        Algorithm::Concurrency(_) => 20,
        Algorithm::LeakyBucket(_) => 16,
        _ => 16 + back,
    }
}

fn change(units: i64) -> Adjustment {
    Adjustment { limit: "l".into(), change: Change::Units(units) }
}

fn reset() -> Adjustment {
    Adjustment { limit: "l".into(), change: Change::Reset }
}

async fn settled(rig: &Rig, limit: &Limit, ending: Ending, adjustments: &[Adjustment]) -> u64 {
    rig.grant(limit).await.settle(ending, adjustments);
    rig.limiter.drain(TEST_TIMEOUT).await;
    rig.remaining(limit).await
}

fn wrong(rig: &Rig) -> u64 {
    rig.count(names::POLICY_ERRORS, &["public", "answer"])
}

#[tokio::test]
async fn each_algorithm_refunds_as_its_limit_declares() {
    let server = Server::start();
    for rig in Rig::both(&server, &with_test_timeout()) {
        for (refund, ending, back) in [
            (Refund::Never, Ending::Unsent, 0),
            (Refund::Unsent, Ending::Unsent, 4),
            (Refund::Unsent, Ending::UpstreamFailed, 0),
            (Refund::UpstreamError, Ending::UpstreamFailed, 4),
            (Refund::UpstreamError, Ending::ClientGone, 0),
            (Refund::BySettle, Ending::Unsent, 0),
        ] {
            for algorithm in algorithms(20) {
                let key = format!("{refund:?} {ending:?}");
                let limit =
                    refunded(Limit { cost: 4, ..Limit::new("l", &key, algorithm.clone()) }, refund);
                let left = settled(&rig, &limit, ending, &[]).await;
                assert_eq!(
                    left,
                    after(&algorithm, back),
                    "{} {key} {}",
                    rig.name(),
                    algorithm.name()
                );
            }
        }
    }
}

#[tokio::test]
async fn each_algorithm_is_adjusted_up_and_down_or_says_that_it_is_not() {
    let server = Server::start();
    for rig in Rig::both(&server, &with_test_timeout()) {
        for (units, left) in [(-1, 17), (-4, 20), (-9, 20), (3, 13), (16, 0), (17, 16)] {
            for algorithm in algorithms(20) {
                let limit = refunded(
                    Limit { cost: 4, ..Limit::new("l", format!("{units}"), algorithm.clone()) },
                    Refund::BySettle,
                );
                let before = wrong(&rig);
                let found = settled(&rig, &limit, Ending::Completed, &[change(units)]).await;
                let expected = if counted(&algorithm) { left } else { after(&algorithm, 0) };
                assert_eq!(found, expected, "{} {units} {}", rig.name(), algorithm.name());
                assert_eq!(wrong(&rig) - before, u64::from(!counted(&algorithm)));
            }
        }
        let refused = algorithms(1).iter().filter(|algorithm| counted(algorithm)).count();
        assert_eq!(
            rig.count(names::SETTLES_FAILED, &["charge_refused"]),
            refused as u64,
            "{}",
            rig.name()
        );
    }
}

#[tokio::test]
async fn a_reset_forgets_what_anybody_took_under_that_key_and_nothing_else() {
    let server = Server::start();
    for rig in Rig::both(&server, &with_test_timeout()) {
        for algorithm in algorithms(20) {
            let limit = refunded(
                Limit { cost: 4, ..Limit::new("l", "k", algorithm.clone()) },
                Refund::BySettle,
            );
            let neighbour = Limit { key: "neighbour".into(), ..limit.clone() };
            let kept =
                [rig.grant(&limit).await, rig.grant(&limit).await, rig.grant(&neighbour).await];
            let before = wrong(&rig);
            let left = settled(&rig, &limit, Ending::Completed, &[reset()]).await;
            let name = algorithm.name();
            if counted(&algorithm) {
                assert_eq!((left, wrong(&rig) - before), (20, 0), "{} {name}", rig.name());
            } else {
                // Concurrency permits and leaky bucket slots are not adjusted.
                assert_eq!(
                    (left, wrong(&rig) - before),
                    (after(&algorithm, 0) - 8, 1),
                    "{} {name}",
                    rig.name()
                );
            }
            assert_eq!(rig.remaining(&neighbour).await, 16, "{} {name}", rig.name());
            drop(kept);
            rig.limiter.drain(TEST_TIMEOUT).await;
        }
    }
}

#[tokio::test]
async fn a_reset_is_for_limits_that_are_settled_so_and_stands_alone() {
    let rig = Rig::embedded();
    for refund in [Refund::Never, Refund::Unsent, Refund::UpstreamError] {
        let limit = refunded(Limit { cost: 4, ..daily("l", &format!("{refund:?}"), 20) }, refund);
        assert_eq!(settled(&rig, &limit, Ending::Completed, &[reset()]).await, 16);
    }
    assert_eq!(wrong(&rig), 3);
    let limit = refunded(Limit { cost: 4, ..daily("l", "k", 20) }, Refund::BySettle);
    for (index, changes) in [[change(5), reset()], [reset(), change(5)]].iter().enumerate() {
        assert_eq!(settled(&rig, &limit, Ending::Completed, changes).await, 20);
        assert_eq!(wrong(&rig), 3 + index as u64);
    }
}

#[tokio::test]
async fn a_reset_that_the_store_does_not_answer_is_counted() {
    let server = Server::start();
    let rig = Rig::redis(server.port);
    let grant = rig.grant(&refunded(daily("l", "k", 5), Refund::BySettle)).await;
    drop(server);
    grant.settle(Ending::Completed, &[reset()]);
    rig.limiter.drain(TEST_TIMEOUT).await;
    assert_eq!(rig.count(names::SETTLES_FAILED, &["reset"]), 1);
}

#[tokio::test]
async fn a_cost_of_0_looks_and_is_decided_as_1() {
    let server = Server::start();
    for rig in Rig::both(&server, &with_test_timeout()) {
        for algorithm in algorithms(2) {
            let limit = refunded(Limit::new("l", "k", algorithm.clone()), Refund::UpstreamError);
            let look = Limit { cost: 0, ..limit.clone() };
            for left in [2, 1, 0] {
                for _ in 0..2 {
                    let take = rig.take(std::slice::from_ref(&look)).await;
                    assert_eq!(
                        matches!(take, Take::Granted(..)),
                        left > 0,
                        "{} {}",
                        rig.name(),
                        algorithm.name()
                    );
                    let (Take::Granted(outcome, _) | Take::Refused(outcome)) = &take else {
                        panic!()
                    };
                    assert_eq!(remaining(outcome), [left], "{} {}", rig.name(), algorithm.name());
                    if let Take::Granted(_, grant) = take {
                        grant.settle(Ending::Unsent, &[]);
                    }
                    rig.limiter.drain(TEST_TIMEOUT).await;
                }
                if left > 0 {
                    std::mem::forget(rig.grant(&limit).await);
                }
            }
        }
    }
}

#[tokio::test]
async fn a_shadow_of_each_algorithm_counts_and_refuses_nobody() {
    let server = Server::start();
    for rig in Rig::both(&server, &with_test_timeout()) {
        for algorithm in algorithms(2) {
            let limit = shadow(Limit::new(algorithm.name(), "k", algorithm.clone()));
            let mut held = Vec::new();
            for fits in [true, true, false, false] {
                let (outcome, grant) = granted(rig.take(std::slice::from_ref(&limit)).await);
                assert_eq!(outcome.limits[0].fits, fits, "{} {}", rig.name(), algorithm.name());
                held.push(grant);
            }
            assert_eq!(rig.count(names::LIMIT_WOULD_REFUSE, &["public", algorithm.name()]), 2);
            assert_eq!(rig.count(names::LIMIT_REFUSALS, &["public", algorithm.name()]), 0);
        }
    }
}

#[tokio::test]
async fn a_log_gives_back_the_takes_own_units_by_name() {
    let server = Server::start();
    for rig in Rig::both(&server, &with_test_timeout()) {
        let rate = Rate { amount: 6, per_ms: DAY_MS };
        let limit = refunded(
            Limit {
                cost: 2,
                ..Limit::new(
                    "l",
                    "k",
                    Algorithm::SlidingWindowLog(SlidingWindowLog { rate, debt: Debt::None }),
                )
            },
            Refund::Unsent,
        );
        let first = rig.grant(&limit).await;
        let [second, third] = [rig.grant(&limit).await, rig.grant(&limit).await];
        assert!(!rig.admits(&limit).await);
        first.settle(Ending::Unsent, &[]);
        rig.limiter.drain(TEST_TIMEOUT).await;
        assert_eq!(rig.remaining(&limit).await, 2, "{}", rig.name());
        drop((second, third));
        assert!(rig.admits(&limit).await && !rig.admits(&limit).await, "{}", rig.name());
    }
}

#[tokio::test]
async fn a_sub_window_that_no_longer_counts_takes_nothing_back() {
    let rig = Rig::embedded();
    let rate = Rate { amount: 5, per_ms: 4_000 };
    let limit = refunded(
        Limit::new(
            "l",
            "k",
            Algorithm::SlidingWindowBuckets(SlidingWindowBuckets {
                rate,
                buckets: 4,
                debt: Debt::None,
            }),
        ),
        Refund::Unsent,
    );
    let (early, late) = (rig.grant(&limit).await, rig.grant(&limit).await);
    rig.clock.step(3_000_000);
    drop(rig.grant(&limit).await);
    early.settle(Ending::Unsent, &[]);
    assert_eq!(rig.remaining(&limit).await, 3, "its sub-window counts still");
    rig.clock.step(1_000_000);
    assert_eq!(rig.remaining(&limit).await, 4);
    late.settle(Ending::Unsent, &[]);
    assert_eq!(rig.remaining(&limit).await, 4, "what has left is not given back again");
}

#[tokio::test]
async fn on_redis_a_sub_window_that_no_longer_counts_takes_nothing_back_either() {
    let server = Server::start();
    let rig = Rig::redis(server.port);
    let rate = Rate { amount: 5, per_ms: 800 };
    for attempt in 0..10 {
        let algorithm = Algorithm::SlidingWindowBuckets(SlidingWindowBuckets {
            rate,
            buckets: 4,
            debt: Debt::None,
        });
        let limit = refunded(Limit::new("l", format!("{attempt}"), algorithm), Refund::Unsent);
        let grants = [rig.grant(&limit).await, rig.grant(&limit).await];
        let began = monotonic();
        while rig.remaining(&limit).await < 5 {
            assert!(began.elapsed() < TEST_TIMEOUT);
        }
        let since = monotonic();
        let kept = rig.grant(&limit).await;
        for grant in grants {
            grant.settle(Ending::Unsent, &[]);
        }
        rig.limiter.drain(TEST_TIMEOUT).await;
        let left = rig.remaining(&limit).await;
        drop(kept);
        // Valid only while the kept grant certainly still counts.
        if since.elapsed() < Duration::from_millis(600) {
            assert_eq!(left, 4);
            return;
        }
    }
    panic!("this machine is too slow to tell");
}
