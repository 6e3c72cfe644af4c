//! Boundaries between windows: where a fixed one admits twice its quota, and what the sliding ones
//! guarantee there.

use std::collections::BTreeMap;

use weir::plan::{
    Algorithm, Alignment, Debt, FixedWindow, Gcra, Rate, SlidingWindowBuckets,
    SlidingWindowCounter, SlidingWindowLog, TokenBucket,
};

use super::{BEGIN_S, held};
use crate::harness::held::HeldTime;
use crate::harness::nodes::{Node, one};
use crate::harness::redis::Connection;

const QUOTA: u64 = 10;
const PERIOD_S: i64 = 100;
const RATE: Rate = Rate { amount: QUOTA, per_ms: PERIOD_S as u64 * 1000 };
/// The length of each is ten seconds.
const BUCKETS: u32 = 10;

fn sliding() -> [Algorithm; 6] {
    [
        Algorithm::SlidingWindowLog(SlidingWindowLog { rate: RATE, debt: Debt::None }),
        Algorithm::SlidingWindowBuckets(SlidingWindowBuckets {
            rate: RATE,
            buckets: BUCKETS,
            debt: Debt::None,
        }),
        Algorithm::SlidingWindowCounter(SlidingWindowCounter { rate: RATE, debt: Debt::None }),
        Algorithm::TokenBucket(TokenBucket { burst: QUOTA, rate: RATE, debt: Debt::None }),
        Algorithm::Gcra(Gcra { burst: QUOTA, rate: RATE, debt: Debt::None }),
        Algorithm::Gcra(Gcra { burst: 1, rate: RATE, debt: Debt::None }),
    ]
}

/// What passes in each second from the last one of a window on, when a client takes as much as it
/// can.
async fn greedy(
    node: &Node,
    time: &HeldTime,
    algorithm: &Algorithm,
    seconds: i64,
) -> BTreeMap<i64, u64> {
    // Each has its own counter, even those of the same shape.
    let plan = one(&format!("greedy for {seconds} s of {algorithm:?}"), algorithm.clone());
    let mut passed = BTreeMap::new();
    for second in PERIOD_S - 1..PERIOD_S - 1 + seconds {
        time.set(BEGIN_S + second);
        let mut count = 0;
        while node.ask(&plan).await.admitted {
            count += 1;
            assert!(count <= 10 * QUOTA, "it refuses nobody: {algorithm:?}");
        }
        passed.insert(second, count);
    }
    passed
}

/// The largest number that passed in any `span_s` seconds, the first one included and the last one
/// not.
fn most(passed: &BTreeMap<i64, u64>, span_s: i64) -> u64 {
    passed
        .keys()
        .map(|from| passed.range(from..&(from + span_s)).map(|(_, count)| count).sum())
        .max()
        .unwrap_or(0)
}

#[tokio::test]
async fn a_fixed_window_lets_twice_its_quota_through_within_a_second_of_its_border_and_the_sliding_ones_do_not()
 {
    let (time, redis) = held();
    let node = Node::single(redis.address);
    let fixed = Algorithm::FixedWindow(FixedWindow {
        rate: RATE,
        alignment: Alignment::Clock,
        debt: Debt::None,
    });
    let passed = greedy(&node, &time, &fixed, 2).await;
    assert_eq!(passed, BTreeMap::from([(99, QUOTA), (100, QUOTA)]), "as its header says");
    for algorithm in sliding() {
        let passed = greedy(&node, &time, &algorithm, 2).await;
        let first = algorithm.capacity().unwrap();
        assert_eq!(passed, BTreeMap::from([(99, first), (100, 0)]), "{algorithm:?}");
    }
}

#[tokio::test]
async fn every_span_of_one_period_is_within_each_sliding_algorithms_bound() {
    let (time, redis) = held();
    let node = Node::single(redis.address);
    for algorithm in sliding() {
        // Three windows of a client that takes as much as it can as soon as it can: the worst case.
        let passed = greedy(&node, &time, &algorithm, 3 * PERIOD_S).await;
        let in_all: u64 = passed.values().sum();
        let held = most(&passed, PERIOD_S);
        let bound = match algorithm {
            Algorithm::SlidingWindowLog(_) => QUOTA,
            // The count of one sub-window, the first of each round, is found again while its start
            // is still inside.
            Algorithm::SlidingWindowBuckets(_) => {
                QUOTA + most(&passed, PERIOD_S / i64::from(BUCKETS))
            }
            Algorithm::SlidingWindowCounter(_) => 2 * QUOTA,
            // In any span of length t: the burst, and what is refilled.
            _ => algorithm.capacity().unwrap() + QUOTA,
        };
        assert!(
            held <= bound,
            "{held} in {PERIOD_S} s, {bound} are promised: {algorithm:?}: {passed:?}"
        );
        // And the limit does not refuse everything: in three periods it admits at least twice its
        // quota.
        assert!(in_all >= 2 * QUOTA, "{in_all} in {} s: {algorithm:?}: {passed:?}", 3 * PERIOD_S);
    }
}

/// The sliding window of many tutorials: a sorted set whose members are seconds and whose scores
/// are counts, trimmed by score as if those were times.
fn by_second(client: &mut Connection, key: &str, second: i64) -> i64 {
    client.ask(&["ZINCRBY", key, "1", &second.to_string()]);
    client.ask(&["ZREMRANGEBYSCORE", key, "-inf", &(second - PERIOD_S).to_string()]);
    let kept = client.ask(&["ZRANGE", key, "0", "-1", "WITHSCORES"]);
    kept.list().chunks(2).map(|pair| pair[1].number()).sum()
}

#[tokio::test]
async fn a_bucket_whose_score_is_the_count_trims_all_or_nothing_and_ours_trims_what_is_old() {
    const LIMIT: i64 = 5;
    let (time, redis) = held();
    let mut client = redis.connect();
    // Seconds since 1970: every count is smaller, so each request trims everything, including its
    // own second. The limit never refuses.
    for hit in 0..1_000 {
        assert_eq!(
            by_second(&mut client, "absolute", BEGIN_S + hit / 100),
            0,
            "hit {hit} is not even counted"
        );
    }
    // Seconds of the minute: the bound is negative, so nothing is ever trimmed. Once used up, the
    // limit refuses for ever.
    for hit in 0..LIMIT {
        assert_eq!(by_second(&mut client, "relative", 30), hit + 1);
    }
    for minutes in 1..100 {
        assert!(
            by_second(&mut client, "relative", 30) > LIMIT,
            "still refused after {minutes} minutes"
        );
    }

    let node = Node::single(redis.address);
    let rate = Rate { amount: LIMIT as u64, ..RATE };
    for algorithm in [
        Algorithm::SlidingWindowBuckets(SlidingWindowBuckets {
            rate,
            buckets: 100,
            debt: Debt::None,
        }),
        Algorithm::SlidingWindowLog(SlidingWindowLog { rate, debt: Debt::None }),
    ] {
        time.set(BEGIN_S);
        let plan = one("seconds", algorithm.clone());
        assert_eq!(node.admitted(&plan, 1_000).await, LIMIT as u64, "{algorithm:?}");
        time.set(BEGIN_S + PERIOD_S - 1);
        assert_eq!(node.admitted(&plan, 10).await, 0, "{algorithm:?}");
        time.set(BEGIN_S + PERIOD_S);
        assert_eq!(node.admitted(&plan, 10).await, LIMIT as u64, "{algorithm:?}");
    }
}
