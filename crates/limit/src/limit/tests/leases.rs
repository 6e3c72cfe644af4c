//! Concurrency permits: held as long as the request, on both engines, however it ends. On Redis
//! they are leases.

use super::super::Ending;
use super::super::keys::PlanDigests;
use super::redis::in_mid_take;
use super::redis_server::Server;
use super::*;
use crate::clock::monotonic;
use crate::engine::testing::Cluster;
use crate::engine::{Key, Space};
use crate::plan::Concurrency;

const LEASE: Duration = Duration::from_millis(600);

fn permits(amount: u64) -> Limit {
    Limit::new("in-flight", "k", Algorithm::Concurrency(Concurrency { amount }))
}

fn short_leases() -> Settings {
    Settings { lease: LEASE, ..with_test_timeout() }
}

/// The instants at which the leases of the only counter end, in milliseconds since 1970.
fn ends(server: &mut Server) -> Vec<u64> {
    let Some(key) = server.keys().pop() else { return Vec::new() };
    let script = "local all, ends = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES'), {} \
                  for i = 2, #all, 2 do ends[#ends + 1] = all[i] end return table.concat(ends, ' ')";
    let text = server.command(&["EVAL", script, "1", &key]);
    text.split_whitespace().map(|word| word.parse().unwrap()).collect()
}

fn now_ms(server: &mut Server) -> u64 {
    server
        .command(&[
            "EVAL",
            "local t = redis.call('TIME') return t[1] * 1000 + math.floor(t[2] / 1000)",
            "0",
        ])
        .parse()
        .unwrap()
}

#[tokio::test]
async fn a_permit_is_free_again_however_the_request_ends() {
    let server = Server::start();
    for rig in Rig::both(&server, &with_test_timeout()) {
        for refund in [Refund::Never, Refund::Unsent, Refund::UpstreamError, Refund::BySettle] {
            let limit = refunded(permits(1), refund);
            let endings =
                [Ending::Completed, Ending::Unsent, Ending::UpstreamFailed, Ending::ClientGone]
                    .map(Some);
            for ending in endings.into_iter().chain([None]) {
                let grant = rig.grant(&limit).await;
                assert!(!rig.admits(&limit).await, "{} {ending:?}: it is taken", rig.name());
                match ending {
                    Some(ending) => grant.settle(ending, &[]),
                    None => drop(grant),
                }
                rig.limiter.drain(TEST_TIMEOUT).await;
                assert_eq!(rig.remaining(&limit).await, 1, "{} {ending:?} {refund:?}", rig.name());
            }
        }
    }
}

#[tokio::test]
async fn a_permit_of_a_request_that_is_dropped_in_mid_take_is_free_again() {
    let mut server = Server::start();
    let rig = Rig::redis(server.port);
    let limit = permits(1);
    let take = in_mid_take(&mut server, &rig, std::slice::from_ref(&limit)).await;
    drop(take);
    server.release();
    rig.limiter.drain(TEST_TIMEOUT).await;
    assert_eq!(rig.remaining(&limit).await, 1);
}

#[tokio::test]
async fn permits_of_takes_without_an_answer_are_free_soon_after_the_store_answers_again() {
    let server = crate::engine::testing::Server::start(&[]);
    let deadline = Duration::from_millis(100);
    let engine = RedisSettings { deadline, ..redis_settings(server.port) };
    // As long as leases last, nothing else frees the permits.
    let lease = 10 * TEST_TIMEOUT;
    let rig = Rig::with(&engine.into(), Settings { deadline, lease, ..Settings::default() });
    let limit = permits(8);
    drop(rig.grant(&limit).await);
    rig.limiter.drain(TEST_TIMEOUT).await;
    server.signal("-STOP");
    let plans = [(); 8].map(|()| [limit.clone()]);
    let takes = plans.iter().map(|limits| rig.take(limits));
    let takes = futures_util::future::join_all(takes).await;
    assert!(takes.iter().all(|take| matches!(take, Take::Unavailable(_))), "{takes:?}");
    server.signal("-CONT");
    let began = monotonic();
    loop {
        let looked = rig.take(&[Limit { cost: 0, ..limit.clone() }]).await;
        let left = match &looked {
            Take::Granted(outcome, _) | Take::Refused(outcome) => outcome.limits[0].remaining,
            Take::Unavailable(_) => 0,
        };
        if left == 8 {
            break;
        }
        assert!(began.elapsed() < TEST_TIMEOUT, "{left} free: {looked:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_permit_is_held_longer_than_a_lease_and_not_longer_than_its_request() {
    let mut server = Server::start();
    let rig = Rig::with(&on_redis(server.port), short_leases());
    let limit = Limit { cost: 2, ..permits(3) };
    let grant = rig.grant(&limit).await;
    let first = ends(&mut server);
    let began = monotonic();
    while now_ms(&mut server) < first[0] + 2 * LEASE.as_millis() as u64 {
        assert!(began.elapsed() < TEST_TIMEOUT);
        assert!(!rig.admits(&limit).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(rig.count(names::SETTLES_FAILED, &["renewal"]), 0);
    drop(grant);
    rig.limiter.drain(TEST_TIMEOUT).await;
    assert_eq!(server.keys(), Vec::<String>::new(), "nothing is left of it");
}

#[test]
fn the_permits_of_a_proxy_that_died_are_free_when_their_leases_end() {
    let mut server = Server::start();
    let limit = permits(1);
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let dead = Rig::with(&on_redis(server.port), short_leases());
    let dying = runtime();
    let grant = dying.block_on(dead.grant(&limit));
    // This drops the renewal task. The grant is leaked, as in a process that dies.
    drop(dying);
    std::mem::forget(grant);
    let lease_ends = ends(&mut server)[0];
    let alive = Rig::with(&on_redis(server.port), short_leases());
    runtime().block_on(async {
        let began = monotonic();
        loop {
            let before = now_ms(&mut server);
            let admitted = alive.admits(&limit).await;
            assert!(
                !admitted || now_ms(&mut server) >= lease_ends,
                "no other request gets the permit before the lease ends"
            );
            if admitted {
                break;
            }
            assert!(
                before < lease_ends + 1 && began.elapsed() < TEST_TIMEOUT,
                "the lease is over at {lease_ends}, it is {before}"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
}

#[tokio::test]
async fn renewals_that_fail_are_counted_and_the_next_one_holds_the_permit() {
    let mut server = Server::start();
    let settings =
        RedisSettings { deadline: Duration::from_millis(250), ..redis_settings(server.port) };
    let rig = Rig::with(&settings.into(), short_leases());
    let limit = permits(1);
    let grant = rig.grant(&limit).await;
    let first = ends(&mut server);
    server.hold();
    let began = monotonic();
    while rig.count(names::SETTLES_FAILED, &["renewal"]) == 0 {
        assert!(began.elapsed() < TEST_TIMEOUT);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.release();
    while ends(&mut server).first().is_none_or(|ends| *ends <= first[0]) {
        assert!(began.elapsed() < TEST_TIMEOUT);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!rig.admits(&limit).await);
    drop(grant);
    rig.limiter.drain(TEST_TIMEOUT).await;
    assert!(rig.admits(&limit).await);
}

#[tokio::test]
async fn a_permit_that_is_released_during_its_renewal_is_free_afterwards() {
    let mut server = Server::start();
    let rig = Rig::with(&on_redis(server.port), short_leases());
    let grant = rig.grant(&permits(1)).await;
    server.hold();
    let began = monotonic();
    while server.held() == 0 {
        assert!(began.elapsed() < TEST_TIMEOUT, "no renewal was sent");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(grant);
    assert_eq!(rig.limiter.shared.pending(), 1, "a drain waits for it");
    server.release();
    rig.limiter.drain(TEST_TIMEOUT).await;
    assert_eq!(rig.limiter.shared.pending(), 0);
    assert_eq!(server.keys(), Vec::<String>::new());
}

#[tokio::test]
async fn a_take_whose_outcome_is_unknown_stands_until_its_lease_ends_if_its_proxy_dies() {
    let mut server = Server::start();
    let limit = permits(1);
    // A proxy: its tasks end with its runtime.
    std::thread::scope(|threads| {
        let proxy = threads.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let deadline = Duration::from_millis(250);
                let settings = RedisSettings { deadline, ..redis_settings(server.port) };
                let rig = Rig::with(&settings.into(), short_leases());
                // Opens the connection and loads the script before Redis is held.
                drop(rig.grant(&limit).await);
                rig.limiter.drain(TEST_TIMEOUT).await;
                server.hold();
                let take = rig.take(std::slice::from_ref(&limit)).await;
                assert!(matches!(take, Take::Unavailable(_)), "{take:?}");
                assert_eq!(rig.count(names::TAKES_UNKNOWN, &[]), 1);
                // Before the give-back is sent.
                server.release();
                std::mem::forget(rig);
            });
        });
        proxy.join().unwrap();
    });
    // The script ran all the same, once Redis was released.
    let began = monotonic();
    let lease_ends = loop {
        assert!(began.elapsed() < TEST_TIMEOUT);
        if let Some(ends) = ends(&mut server).first() {
            break *ends;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let other = Rig::with(&on_redis(server.port), short_leases());
    while now_ms(&mut server) < lease_ends {
        let admitted = other.admits(&limit).await;
        assert!(!admitted || now_ms(&mut server) >= lease_ends);
        assert!(
            ends(&mut server).first().is_none_or(|ends| *ends == lease_ends) || admitted,
            "no task renews it"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    other.limiter.drain(TEST_TIMEOUT).await;
    assert!(other.admits(&limit).await);
}

/// Permits on the shard that does not answer: enough that renewing them takes longer than a lease.
const FROZEN_PERMITS: usize = 4_200;

/// A shard that does not answer delays the renewals of no other.
#[tokio::test]
async fn permits_are_renewed_while_another_shard_does_not_answer() {
    let cluster = Cluster::start(0);
    let (deadline, lease) = (Duration::from_millis(300), Duration::from_millis(1_500));
    let settings = RedisSettings {
        nodes: cluster.addresses(),
        mode: RedisMode::Cluster,
        deadline,
        ..redis_settings(0)
    };
    let rig = Rig::with(&settings.into(), Settings { deadline, lease, ..Settings::default() });
    let began = monotonic();
    while rig.limiter.shared.engine.ping().await.is_err() {
        assert!(began.elapsed() < TEST_TIMEOUT);
    }
    let on = |node: usize, key: &&String| {
        let slot = key_slot(&rig, key);
        [0..=5460, 5461..=10922, 10923..=16383][node].contains(&slot)
    };
    let keys: Vec<String> = (0..100).map(|key| format!("k{key}")).collect();
    let [frozen, well] = [0, 1].map(|node| keys.iter().find(|key| on(node, key)).unwrap());
    let permits = |key: &str, amount| {
        Limit::new("in-flight", key, Algorithm::Concurrency(Concurrency { amount }))
    };
    let mut held = Vec::new();
    for _ in 0..20 {
        held.push(rig.grant(&permits(well, 20)).await);
    }
    for _ in 0..FROZEN_PERMITS {
        held.push(rig.grant(&permits(frozen, 10_000)).await);
    }
    cluster.nodes[0].signal("-STOP");
    let began = monotonic();
    while began.elapsed() < 3 * lease {
        if let Take::Granted(..) = rig.take(&[permits(well, 20)]).await {
            panic!("a permit was lost after {:?}", began.elapsed());
        }
        tokio::time::sleep(deadline / 3).await;
    }
    cluster.nodes[0].signal("-CONT");
}

/// The slot of a limit's counters with this key.
fn key_slot(rig: &Rig, key: &str) -> u16 {
    let tag = PlanDigests::new(&rig.limiter.shared.digests).of(key);
    Key { tag, key: 0, space: Arc::new(Space { text: String::new(), digest: 0 }) }.slot()
}
