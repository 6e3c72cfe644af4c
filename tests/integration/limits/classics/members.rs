//! A log of requests as a sorted set: how its members are named.

use weir::plan::{Algorithm, Debt, Rate, SlidingWindowLog};

use super::held;
use crate::harness::nodes::{Node, one, together};
use crate::harness::redis::Redis;

const LIMIT: u64 = 5_000;
const REQUESTS: usize = 6_000;
const HOUR_MS: u64 = 3_600_000;

#[tokio::test]
async fn the_time_as_a_member_counts_a_moment_once_and_ours_counts_5000_requests_in_one_microsecond()
 {
    let (_time, redis) = held();
    let mut client = redis.connect();
    // ZADD log NOW NOW is common: requests of the same millisecond (or second, or microsecond) are
    // the same member.
    for _ in 0..REQUESTS {
        let now = client.ask(&["TIME"]);
        let now_ms = (now.list()[0].number() * 1_000 + now.list()[1].number() / 1_000).to_string();
        client.ask(&["ZADD", "log", &now_ms, &now_ms]);
    }
    assert_eq!(
        client.ask(&["ZCARD", "log"]).number(),
        1,
        "{REQUESTS} requests are one: a limit of {LIMIT} never fires"
    );
    client.ask(&["DEL", "log"]);

    all_are_counted(&redis, &Node::several(4, redis.address)).await;
}

#[tokio::test]
async fn while_time_runs_5000_requests_a_second_on_one_log_are_all_counted() {
    let redis = Redis::start();
    all_are_counted(&redis, &Node::several(4, redis.address)).await;
}

/// Sent all at once, on four connections, many of them in the same millisecond.
async fn all_are_counted(redis: &Redis, nodes: &[Node]) {
    let plan = one(
        "log",
        Algorithm::SlidingWindowLog(SlidingWindowLog {
            rate: Rate { amount: LIMIT, per_ms: HOUR_MS },
            debt: Debt::None,
        }),
    );
    // Connects, and loads the script.
    for node in nodes {
        assert_eq!(node.left(&plan).await, LIMIT);
    }
    assert_eq!(together(nodes, REQUESTS, &plan).await, LIMIT);
    let mut client = redis.connect();
    let names = client.ask(&["KEYS", "*"]);
    assert_eq!(names.list().len(), 1);
    assert_eq!(
        client.ask(&["LLEN", &names.list()[0].text()]).number(),
        LIMIT as i64,
        "a member for each"
    );
}
