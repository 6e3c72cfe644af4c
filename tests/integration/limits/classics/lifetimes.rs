//! Expiry that decides: what happens if it is missing, or set again.

use tokio::runtime::Builder;
use weir::plan::{Algorithm, Debt, Rate, SlidingWindowLog};

use super::{BEGIN_S, held};
use crate::harness::nodes::{Node, fixed_window, one};
use crate::harness::redis::{Connection, Value};

const PERIOD_S: i64 = 100;
const PERIOD_MS: u64 = PERIOD_S as u64 * 1000;
const FOR_EVER: Value = Value::Integer(-1);

/// The window of many tutorials: INCR, and EXPIRE by the first client.
fn incr_then_expire(client: &mut Connection, key: &str) -> i64 {
    let count = client.ask(&["INCR", key]).number();
    if count == 1 {
        client.ask(&["EXPIRE", key, &PERIOD_S.to_string()]);
    }
    count
}

/// A repaired version: every request makes sure that there is an expiry.
fn incr_then_expire_nx(client: &mut Connection, key: &str) -> i64 {
    let count = client.ask(&["INCR", key]).number();
    client.ask(&["EXPIRE", key, &PERIOD_S.to_string(), "NX"]);
    count
}

#[tokio::test]
async fn a_crash_between_incr_and_expire_refuses_for_ever_and_in_one_script_there_is_no_between() {
    let (time, redis) = held();
    let mut client = redis.connect();
    // A client crashes: its INCR has run, its EXPIRE was never sent.
    redis.connect().ask(&["INCR", "crashed"]);
    for hit in 2..=5 {
        assert_eq!(incr_then_expire(&mut client, "crashed"), hit);
    }
    for windows in [2, 1_000, 100_000] {
        time.set(BEGIN_S + windows * PERIOD_S);
        assert!(
            incr_then_expire(&mut client, "crashed") > 5,
            "refused under a limit of 5, {windows} windows later"
        );
        assert_eq!(client.ask(&["TTL", "crashed"]), FOR_EVER);
    }
    assert_eq!(redis.keys_without_lifetime(), ["crashed"]);
    client.ask(&["FLUSHALL"]);

    // Ours, killed at any point: what has arrived is complete, a count with its expiry.
    for turns in 0..CRASHES {
        crash(redis.address, turns, &format!("crash {turns}"));
    }
    let node = Node::single(redis.address);
    let left = async |key: &str| node.left(&one(key, fixed_window(5, PERIOD_MS))).await;
    let mut charged = 0;
    for turns in 0..CRASHES {
        charged += 5 - left(&format!("crash {turns}")).await;
    }
    // The last one was killed after it had its answer, the first one before it had sent anything.
    assert!(
        (1..CRASHES as u64).contains(&charged),
        "{charged} of {CRASHES} crashed takes are charged"
    );
    assert_eq!(redis.keys_without_lifetime(), [] as [&str; 0]);
    // Even a counter whose expiry was removed by somebody else ends: the window's id is part of the
    // value, and expiry does not decide.
    let plan = one("persisted", fixed_window(5, PERIOD_MS));
    assert_eq!(node.admitted(&plan, 6).await, 5);
    for key in client.ask(&["KEYS", "*"]).list() {
        client.ask(&["PERSIST", &key.text()]);
    }
    assert!(!redis.keys_without_lifetime().is_empty());
    time.set(BEGIN_S + 100_001 * PERIOD_S);
    assert_eq!(node.admitted(&plan, 6).await, 5);
    assert_eq!(
        redis.keys_without_lifetime().len() as u64,
        charged,
        "what is used again has its lifetime again"
    );
}

const CRASHES: usize = 40;

/// Starts a take, and stops everything that works on it after this many polls. The last one of
/// [`CRASHES`] gets its answer.
fn crash(address: std::net::SocketAddr, turns: usize, key: &str) {
    let (warm, plan) =
        (one("warm", fixed_window(1_000_000, PERIOD_MS)), one(key, fixed_window(5, PERIOD_MS)));
    // On a thread of its own: its thread-locals are destroyed with it.
    let process = std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let node = Node::single(address);
            node.left(&warm).await;
            let take = tokio::spawn(async move { node.ask(&plan).await });
            if turns == CRASHES - 1 {
                assert!(take.await.unwrap().admitted);
                return;
            }
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
        });
    });
    process.join().unwrap();
}

#[tokio::test]
async fn expire_nx_still_keeps_what_never_comes_again_and_charges_old_hits_to_a_new_window() {
    let (time, redis) = held();
    let mut client = redis.connect();
    // Each of a hundred callers crashed at its first request. Those that never return cost memory
    // for ever.
    for caller in 0..100 {
        redis.connect().ask(&["INCR", &format!("caller {caller}")]);
    }
    time.set(BEGIN_S + 1_000 * PERIOD_S);
    assert_eq!(redis.keys_without_lifetime().len(), 100);
    // A caller that returns pays for a request of another window: its first request in this one is
    // refused under a limit of 1.
    assert_eq!(incr_then_expire_nx(&mut client, "caller 0"), 2);
    assert_eq!(client.ask(&["TTL", "caller 0"]), Value::Integer(PERIOD_S));
    client.ask(&["FLUSHALL"]);

    let node = Node::single(redis.address);
    let plan = |caller: u32| one(&format!("caller {caller}"), fixed_window(1, PERIOD_MS));
    for caller in 0..100 {
        assert_eq!(node.admitted(&plan(caller), 2).await, 1);
    }
    assert_eq!(redis.keys_without_lifetime(), [] as [&str; 0]);
    let all = client.ask(&["KEYS", "*"]);
    assert_eq!(all.list().len(), 100);
    time.set(BEGIN_S + 2_000 * PERIOD_S);
    assert_eq!(node.admitted(&plan(0), 2).await, 1);
    let left: i64 =
        all.list().iter().map(|key| client.ask(&["EXISTS", &key.text()]).number()).sum();
    assert_eq!(left, 1, "the other 99 are gone");
}

#[tokio::test]
async fn expire_on_each_hit_locks_a_slow_client_out_and_a_window_that_is_set_once_does_not() {
    // Two and a half requests in a hundred seconds, with a limit of three: none should be refused.
    const HITS: i64 = 20;
    const LIMIT: u64 = 3;
    let (time, redis) = held();
    let mut client = redis.connect();
    let mut refused = 0;
    for hit in 0..HITS {
        time.set(BEGIN_S + 40 * hit);
        refused += u64::from(client.ask(&["INCR", "slow"]).number() > LIMIT as i64);
        client.ask(&["EXPIRE", "slow", &PERIOD_S.to_string()]);
    }
    assert_eq!(
        refused,
        HITS as u64 - LIMIT,
        "all but the first three: each hit puts the window's end off"
    );

    let node = Node::single(redis.address);
    let rate = Rate { amount: LIMIT, per_ms: PERIOD_MS };
    for algorithm in [
        fixed_window(LIMIT, PERIOD_MS),
        Algorithm::SlidingWindowLog(SlidingWindowLog { rate, debt: Debt::None }),
    ] {
        let plan = one("slow", algorithm);
        for hit in 0..HITS {
            // Each starts when the previous one's keys have expired.
            time.set(BEGIN_S + 10_000 + 40 * hit);
            assert!(node.ask(&plan).await.admitted, "hit {hit} of {plan:?}");
        }
        time.set(BEGIN_S);
    }
    // Refused requests do not extend anything either: with four requests in each window, three are
    // admitted in each.
    let plan = one("persistent", fixed_window(LIMIT, PERIOD_MS));
    for hit in 0..HITS {
        time.set(BEGIN_S + 20_000 + 25 * hit);
        assert_eq!(node.ask(&plan).await.admitted, hit % 4 != 3, "hit {hit}");
    }
}

#[tokio::test]
async fn a_second_caller_who_sets_the_window_anew_lets_more_through_and_ours_has_nothing_to_set() {
    const LIMIT: u64 = 3;
    let (time, redis) = held();
    let (mut first, mut second) = (redis.connect(), redis.connect());
    // Both find no window. The first client opens it and uses it up; then the second one opens it
    // as well, by SET with a new expiry.
    assert_eq!(
        (first.ask(&["GET", "window"]), second.ask(&["GET", "window"])),
        (Value::Nil, Value::Nil)
    );
    first.ask(&["SET", "window", "1", "EX", "100"]);
    let mut admitted = 1;
    for _ in 0..10 {
        admitted += u64::from(first.ask(&["INCR", "window"]).number() <= LIMIT as i64);
    }
    time.set(BEGIN_S + 90);
    second.ask(&["SET", "window", "1", "EX", "100"]);
    admitted += 1;
    for _ in 0..10 {
        admitted += u64::from(second.ask(&["INCR", "window"]).number() <= LIMIT as i64);
    }
    assert_eq!(admitted, 2 * LIMIT, "twice the limit within a window");
    time.set(BEGIN_S + 101);
    assert_eq!(first.ask(&["EXISTS", "window"]).number(), 1, "and it ends 90 seconds late");

    time.set(BEGIN_S);
    let nodes = Node::several(2, redis.address);
    let plan = one("window", fixed_window(LIMIT, PERIOD_MS));
    let mut admitted = nodes[0].admitted(&plan, 11).await;
    time.set(BEGIN_S + 90);
    admitted += nodes[1].admitted(&plan, 11).await;
    assert_eq!(admitted, LIMIT);
    let refused = nodes[1].ask(&plan).await;
    assert_eq!(
        refused.limits[0].retry_after_us,
        Some(10_000_000),
        "it ends when the first one's window ends"
    );
    time.set(BEGIN_S + 100);
    assert_eq!(nodes[1].admitted(&plan, 11).await, LIMIT);
}
