//! What requests in flight hold is reported to those that are refused.

use super::super::Ending;
use super::redis_server::Server;
use super::settling::algorithms;
use super::*;
use crate::plan::LeakyBucket;

/// A limit of 10 units, reserving `cost`.
fn reserving(algorithm: Algorithm, cost: u64) -> Limit {
    Limit { cost, refund: Refund::BySettle, ..Limit::new("l", "k", algorithm) }
}

async fn refuses(rig: &Rig, limit: &Limit) -> (bool, LimitOutcome) {
    match rig.take(std::slice::from_ref(limit)).await {
        Take::Refused(outcome) => (outcome.is_held(std::slice::from_ref(limit)), outcome.limits[0]),
        other => panic!("{}: {other:?}", rig.name()),
    }
}

fn counted(rig: &Rig) -> u64 {
    rig.count(names::LIMIT_REFUSALS_HELD, &["public", "l"])
}

#[tokio::test]
async fn a_refusal_tells_units_that_are_reserved_from_units_that_are_spent() {
    let server = Server::start();
    for rig in Rig::both(&server, &with_test_timeout()) {
        for algorithm in algorithms(10).into_iter().filter(Algorithm::settles) {
            let name = format!("{} {}", rig.name(), algorithm.name());
            let limit = |cost| reserving(algorithm.clone(), cost);
            let before = counted(&rig);
            let (first, second) = (rig.grant(&limit(4)).await, rig.grant(&limit(3)).await);
            let (held, outcome) = refuses(&rig, &limit(6)).await;
            assert_eq!((held, outcome.held, counted(&rig)), (true, 7, before + 1), "{name}");
            assert!(outcome.retry_after_us.is_some_and(|us| us <= SECOND_US), "{name}");
            // All four were used, and one of the three.
            first.settle(Ending::Completed, &[]);
            let back = Adjustment { limit: "l".into(), change: Change::Units(-2) };
            second.settle(Ending::Completed, &[back]);
            rig.limiter.drain(TEST_TIMEOUT).await;
            let (held, outcome) = refuses(&rig, &limit(6)).await;
            assert_eq!((held, outcome.held, counted(&rig)), (false, 0, before + 1), "{name}");
            assert!(outcome.retry_after_us.is_none_or(|us| us > SECOND_US), "{name}");
            let third = rig.grant(&limit(5)).await;
            // Even with all of it back there would not be enough.
            let (held, outcome) = refuses(&rig, &limit(8)).await;
            assert_eq!((held, outcome.held), (false, 5), "{name}");
            // A grant that is dropped holds nothing, although what it took stays taken.
            drop(third);
            assert_eq!(refuses(&rig, &limit(1)).await.1.held, 0, "{name}");
        }
    }
}

#[tokio::test]
async fn units_of_a_quota_for_ever_are_held_until_they_are_settled() {
    let rig = Rig::embedded();
    let forever = Algorithm::Quota(crate::plan::Quota {
        amount: 10,
        calendar: crate::plan::Calendar::Forever,
        conditional: true,
        debt: Debt::None,
    });
    let limit = |cost| reserving(forever.clone(), cost);
    let first = rig.grant(&limit(10)).await;
    // What is held is kept by whole seconds of the monotonic clock.
    let began = crate::clock::monotonic();
    while began.elapsed() < Duration::from_millis(2_100) {
        let (held, outcome) = refuses(&rig, &limit(4)).await;
        assert_eq!((held, outcome.held), (true, 10), "after {:?}", began.elapsed());
        assert!(outcome.retry_after_us.is_some());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    drop(first);
    assert_eq!(refuses(&rig, &limit(4)).await.1.held, 0);
}

#[tokio::test]
async fn units_that_cannot_be_given_back_are_not_held() {
    let rig = Rig::embedded();
    for refund in [Refund::Never, Refund::Unsent, Refund::UpstreamError] {
        let limit = Limit { refund, ..reserving(algorithms(10)[0].clone(), 6) };
        let limit = Limit { key: format!("{refund:?}"), ..limit };
        let grant = rig.grant(&limit).await;
        assert_eq!(refuses(&rig, &limit).await.1.held, 0, "{refund:?}");
        drop(grant);
    }
}

/// Nothing was sent, and no policy will be asked: what it reserved is back.
#[tokio::test]
async fn a_client_that_leaves_while_it_waits_for_its_turn_gives_its_reservation_back() {
    let rig = Rig::embedded();
    let rate = Rate { amount: 1, per_ms: 60_000 };
    let queue = LeakyBucket { burst: 1, rate, max_delay_ms: 600_000 };
    let limits = [
        reserving(algorithms(10)[0].clone(), 4),
        Limit::new("turns", "k", Algorithm::LeakyBucket(queue)),
    ];
    let (_, first) = granted(rig.take(&limits).await);
    let waiting = tokio::time::timeout(Duration::from_millis(20), rig.take(&limits)).await;
    assert!(waiting.is_err(), "{waiting:?}");
    let look = reserving(algorithms(10)[0].clone(), 0);
    let outcome = rig.outcome(&[look]).await;
    assert_eq!(remaining(&outcome), [6], "of 10, 4 are reserved by the first");
    drop(first);
}
