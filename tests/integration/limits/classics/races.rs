//! Read first, write later: what others do in between is not seen.

use weir::plan::{Algorithm, Debt, Limit, Rate, SlidingWindowCounter};

use super::{BEGIN_S, held};
use crate::harness::nodes::{Node, exact, fixed_window, of, one, together};
use crate::harness::redis::{Connection, Redis, Value};

const LIMIT: i64 = 5;
const CLIENTS: usize = 16;
const HOUR_MS: u64 = 3_600_000;

fn clients(redis: &Redis, count: usize) -> Vec<Connection> {
    (0..count).map(|_| redis.connect()).collect()
}

#[tokio::test]
async fn a_read_and_then_an_update_admit_all_who_have_read_and_one_script_admits_the_limit() {
    let (_time, redis) = held();
    // SELECT used; then UPDATE SET used = used + 1, as the application calculated it. All clients
    // have read before the first one writes.
    let mut naive = clients(&redis, CLIENTS);
    let read: Vec<i64> =
        naive.iter_mut().map(|client| client.ask(&["GET", "used"]).number()).collect();
    let mut admitted = 0;
    for (client, used) in naive.iter_mut().zip(read) {
        if used < LIMIT {
            client.ask(&["SET", "used", &(used + 1).to_string(), "EX", "3600"]);
            admitted += 1;
        }
    }
    assert_eq!(admitted, CLIENTS, "all of them, under a limit of {LIMIT}");
    assert_eq!(naive[0].ask(&["GET", "used"]).number(), 1, "and all updates but one are lost");

    let nodes = Node::several(4, redis.address);
    for algorithm in exact(LIMIT as u64, HOUR_MS) {
        let plan = one("used", algorithm);
        assert_eq!(together(&nodes, CLIENTS, &plan).await, LIMIT as u64, "{plan:?}");
        assert_eq!(nodes[0].left(&plan).await, 0, "{plan:?}");
    }
}

/// Previous 8, current 2, limit 5, and a quarter of the previous window still inside: 8 x 0.25 + 2
/// = 4, so exactly one more fits.
#[tokio::test]
async fn two_nodes_that_read_a_sliding_windows_counters_at_once_both_pass_and_in_one_script_exactly_one_does()
 {
    const WINDOW_S: i64 = 100;
    let (time, redis) = held();
    let begin_s = BEGIN_S + WINDOW_S;
    let mut naive = clients(&redis, 2);
    naive[0].ask(&["MSET", "previous", "8", "current", "2"]);
    time.set(begin_s + 75);
    let estimates: Vec<f64> = naive
        .iter_mut()
        .map(|client| {
            let now_s = client.ask(&["TIME"]).list()[0].number();
            let overlap = 1.0 - (now_s - begin_s) as f64 / WINDOW_S as f64;
            let counters = client.ask(&["MGET", "previous", "current"]);
            counters.list()[0].number() as f64 * overlap + counters.list()[1].number() as f64
        })
        .collect();
    assert_eq!(estimates, [4.0, 4.0], "both see room for one");
    naive.iter_mut().for_each(|client| drop(client.ask(&["INCR", "current"])));
    assert_eq!(
        naive[0].ask(&["GET", "current"]).number(),
        4,
        "both passed: 8 x 0.25 + 4 = 6 of {LIMIT}"
    );

    // The same counters. The quota is not part of a counter's shape: a large limit fills them, and
    // the small one finds them like that.
    let of_limit = |amount: u64, cost: u64| {
        let rate = Rate { amount, per_ms: WINDOW_S as u64 * 1000 };
        of(vec![Limit {
            cost,
            ..Limit::new(
                "limit",
                "both",
                Algorithm::SlidingWindowCounter(SlidingWindowCounter { rate, debt: Debt::None }),
            )
        }])
    };
    let nodes = Node::several(2, redis.address);
    time.set(begin_s - 50);
    assert!(nodes[0].ask(&of_limit(100, 8)).await.admitted);
    time.set(begin_s + 10);
    assert!(nodes[0].ask(&of_limit(100, 2)).await.admitted);
    time.set(begin_s + 75);
    assert_eq!(nodes[0].left(&of_limit(5, 1)).await, 1);
    assert_eq!(together(&nodes, 2, &of_limit(5, 1)).await, 1, "exactly one passes");
    assert_eq!(nodes[1].left(&of_limit(5, 1)).await, 0);
}

#[tokio::test]
async fn multi_and_exec_can_not_decide_and_a_script_can() {
    let redis = Redis::start();
    let mut naive = clients(&redis, 2);
    // One of five is left. Inside MULTI a read has no result yet, so nothing can depend on it: both
    // increments are queued, and both run.
    naive[0].ask(&["SET", "used", "4", "EX", "3600"]);
    for client in &mut naive {
        client.ask(&["MULTI"]);
        assert_eq!(
            client.ask(&["GET", "used"]),
            Value::Text("QUEUED".into()),
            "no number to compare"
        );
        assert_eq!(client.ask(&["INCR", "used"]), Value::Text("QUEUED".into()));
    }
    let counted: Vec<i64> =
        naive.iter_mut().map(|client| client.ask(&["EXEC"]).list()[1].number()).collect();
    assert_eq!(
        counted,
        [5, 6],
        "the second one learns that it was too late when it is counted: 6 of {LIMIT}"
    );
    // Reading before MULTI is the same mistake again: read, then update.
    naive[0].ask(&["SET", "used", "4", "EX", "3600"]);
    let read: Vec<i64> =
        naive.iter_mut().map(|client| client.ask(&["GET", "used"]).number()).collect();
    assert!(read.iter().all(|used| *used < LIMIT), "both may");
    for client in &mut naive {
        client.ask(&["MULTI"]);
        client.ask(&["INCR", "used"]);
        client.ask(&["EXEC"]);
    }
    assert_eq!(naive[0].ask(&["GET", "used"]).number(), 6, "and both did");

    let nodes = Node::several(2, redis.address);
    let (five, six) =
        (one("used", fixed_window(5, HOUR_MS)), one("used", fixed_window(6, HOUR_MS)));
    assert_eq!(nodes[0].admitted(&five, 4).await, 4);
    assert_eq!(together(&nodes, 2, &five).await, 1);
    assert_eq!(nodes[0].left(&six).await, 1, "five are counted, and not six");
}

/// Optimistic locking: exact, but the more clients there are, the more of its work is wasted.
#[tokio::test]
async fn watch_is_tried_again_by_all_but_one_each_time_and_a_script_by_nobody() {
    let redis = Redis::start();
    let (mut waiting, mut tries) = (clients(&redis, CLIENTS), 0);
    while !waiting.is_empty() {
        let mut read = Vec::new();
        for client in &mut waiting {
            client.ask(&["WATCH", "used"]);
            read.push(client.ask(&["GET", "used"]).number());
        }
        // All have watched the same value. The first EXEC changes it for all others.
        let mut lost = Vec::new();
        for (mut client, used) in waiting.into_iter().zip(read) {
            client.ask(&["MULTI"]);
            client.ask(&["SET", "used", &(used + 1).to_string(), "EX", "3600"]);
            tries += 1;
            if client.ask(&["EXEC"]) == Value::Nil {
                lost.push(client);
            }
        }
        waiting = lost;
    }
    let mut look = redis.connect();
    assert_eq!(look.ask(&["GET", "used"]).number(), CLIENTS as i64, "it counts right");
    assert_eq!(
        tries - CLIENTS,
        CLIENTS * (CLIENTS - 1) / 2,
        "retries of {CLIENTS} clients, each of five trips"
    );
    assert_eq!(look.calls("exec"), tries as u64);

    let nodes = Node::several(4, redis.address);
    let plan = one("used", fixed_window(CLIENTS as u64, HOUR_MS));
    // Loads the script into Redis, and connects each node.
    for node in &nodes {
        node.left(&plan).await;
    }
    let before =
        (look.calls("evalsha"), look.calls("eval"), look.calls("exec"), look.calls("watch"));
    assert_eq!(together(&nodes, CLIENTS, &plan).await, CLIENTS as u64);
    let after =
        (look.calls("evalsha"), look.calls("eval"), look.calls("exec"), look.calls("watch"));
    assert_eq!(
        after,
        (before.0 + CLIENTS as u64, before.1, before.2, before.3),
        "one call for each decision, and no retry"
    );
    assert_eq!(nodes[0].left(&plan).await, 0);
}
