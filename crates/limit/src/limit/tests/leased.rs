//! Limits whose units are taken from a real Redis several at once, by limiters that are as proxies.

use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};

use super::redis_server::Server;
use super::*;
use crate::clock::monotonic;
use crate::limit::{CounterName, Ending};
use crate::plan::{Gcra, Lease, SlidingWindowLog};

/// A limiter with a name of its own.
fn proxy(server: &Server, name: &str) -> Rig {
    let settings =
        Settings { deadline: TEST_TIMEOUT, instance: name.into(), ..Settings::default() };
    Rig::with(&on_redis(server.port), settings)
}

fn leased(limit: Limit) -> Limit {
    Limit { lease: Some(Lease::of_ms(200)), ..limit }
}

fn log(name: &str, amount: u64, per_ms: u64) -> Limit {
    let rate = Rate { amount, per_ms };
    Limit::new(name, "k", SlidingWindowLog { rate, debt: Debt::None }.into())
}

/// A bucket that hardly refills.
fn bucket(name: &str, burst: u64) -> Limit {
    let rate = Rate { amount: 1_000, per_ms: 400 * 86_400_000 };
    Limit::new(name, "k", Gcra { burst, rate, debt: Debt::None }.into())
}

/// Sends requests from `clients` tasks on each of the proxies until each task was refused
/// `refusals` times. Returns how many were admitted.
async fn storm(proxies: &[Rig], limits: &[Limit], clients: usize, refusals: usize) -> u64 {
    let admitted = AtomicU64::new(0);
    let client = async |rig: &Rig| {
        let mut refused = 0;
        while refused < refusals {
            if rig.outcome(limits).await.admitted {
                admitted.fetch_add(1, Ordering::Relaxed);
            } else {
                refused += 1;
            }
        }
    };
    let all = proxies.iter().flat_map(|rig| (0..clients).map(move |_| rig));
    futures_util::future::join_all(all.map(client)).await;
    admitted.into_inner()
}

/// Waits until the store has this many units, and no more.
async fn until_left(rig: &Rig, limit: &Limit, units: u64) {
    let began = monotonic();
    let plain = Limit { lease: None, ..limit.clone() };
    while rig.remaining(&plain).await < units {
        assert!(began.elapsed() < TEST_TIMEOUT, "{}", rig.remaining(&plain).await);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(rig.remaining(&plain).await, units);
}

fn calls(proxies: &[Rig]) -> u64 {
    let results = ["granted", "refused", "failed"];
    let of = |rig: &Rig| -> u64 {
        results.iter().map(|result| rig.count(names::LEASE_CALLS, &[result])).sum()
    };
    proxies.iter().map(of).sum()
}

#[tokio::test]
async fn a_limit_of_n_admits_n_over_all_proxies_in_few_calls() {
    let server = Server::start();
    let proxies = ["a", "b", "c"].map(|name| proxy(&server, name));
    for limit in
        [daily("window", "k", 5_000), log("log", 5_000, 86_400_000), bucket("bucket", 5_001)]
    {
        let before = calls(&proxies);
        let limits = [leased(limit)];
        assert_eq!(storm(&proxies, &limits, 20, 3).await, 5_000, "{}", limits[0].name);
        let calls = calls(&proxies) - before;
        assert!(calls < 600, "{}: {calls} calls", limits[0].name);
    }
}

#[tokio::test]
async fn requests_of_several_units_are_counted_as_such() {
    let server = Server::start();
    let proxies = ["a", "b"].map(|name| proxy(&server, name));
    let limit = |cost| Limit { cost, ..leased(daily("window", "k", 3_000)) };
    let (threes, ones) = ([limit(3)], [limit(1)]);
    let (threes, ones) = tokio::join!(storm(&proxies, &threes, 5, 2), storm(&proxies, &ones, 5, 2));
    let left = proxies[0].remaining(&daily("window", "k", 3_000)).await;
    // A lease of the one proxy may hold what the other asks for, for a moment.
    assert!(3 * threes + ones + left <= 3_000, "{threes} {ones} {left}");
    let rest = storm(&proxies, &[limit(1)], 1, 1).await;
    assert!(3 * threes + ones + rest <= 3_000);
}

#[tokio::test]
async fn a_refusal_is_the_stores_answer() {
    let server = Server::start();
    let rig = proxy(&server, "a");
    let limits = [leased(daily("window", "k", 500))];
    assert_eq!(storm(std::slice::from_ref(&rig), &limits, 10, 1).await, 500);
    let outcome = rig.outcome(&limits).await;
    assert!(!outcome.admitted);
    let limit = outcome.limits[0];
    assert_eq!((limit.fits, limit.remaining), (false, 0));
    let day_us = 86_400 * SECOND_US;
    assert!((1..=day_us).contains(&limit.retry_after_us.unwrap()), "{limit:?}");
    assert_eq!(limit.retry_after_us, Some(limit.reset_us));
}

#[tokio::test]
async fn what_is_shown_as_left_is_certainly_there() {
    let server = Server::start();
    let proxies = ["a", "b"].map(|name| proxy(&server, name));
    let limits = [leased(daily("window", "k", 2_000))];
    let mut admitted = 0;
    for turn in 0.. {
        let outcome = proxies[turn % 2].outcome(&limits).await;
        let left = outcome.limits[0].remaining;
        admitted += u64::from(outcome.admitted);
        assert!(admitted + left <= 2_000, "after {admitted}: {left}");
        if !outcome.admitted {
            break;
        }
    }
    assert!(admitted > 1_900, "{admitted}");
}

#[tokio::test]
async fn unused_units_go_back_at_the_end_of_the_process_and_of_the_lease() {
    let server = Server::start();
    let [idle, ending, other] = ["a", "b", "c"].map(|name| proxy(&server, name));
    let limit = leased(daily("window", "k", 10_000));
    let mut admitted = 0;
    for rig in [&idle, &ending] {
        while rig.count(names::LEASE_CALLS, &["granted"]) == 0 {
            admitted += u64::from(rig.admits(&limit).await);
        }
    }
    ending.limiter.drain(TEST_TIMEOUT).await;
    // The other one is left alone, and gives back by itself.
    until_left(&other, &limit, 10_000 - admitted).await;
    // Drained, it asks for each request.
    let taken = ending.count(names::LEASE_UNITS, &["taken"]);
    for _ in 0..100 {
        assert!(ending.admits(&limit).await);
    }
    assert_eq!(ending.count(names::LEASE_UNITS, &["taken"]), taken);
}

#[tokio::test]
async fn unused_units_of_a_worker_that_is_late_go_back_too() {
    let server = Server::start();
    let [late, other] = ["a", "b"].map(|name| proxy(&server, name));
    let limit = leased(daily("window", "k", 10_000));
    let mut admitted = 0;
    while late.count(names::LEASE_CALLS, &["granted"]) == 0 {
        admitted += u64::from(late.admits(&limit).await);
    }
    // Nothing else runs on this worker until the lease is over.
    std::thread::sleep(Duration::from_millis(300));
    until_left(&other, &limit, 10_000 - admitted).await;
}

#[tokio::test]
async fn a_bucket_that_is_used_up_says_when_a_unit_is_back() {
    let server = Server::start();
    let rig = proxy(&server, "a");
    let rate = Rate { amount: 1, per_ms: 60_000 };
    let gcra = Gcra { burst: 10, rate, debt: Debt::None };
    // The store counts nine of them, and one request asks for all.
    let limit = leased(Limit { cost: 9, ..Limit::new("bucket", "k", gcra.into()) });
    let outcome = &rig.outcome(&[limit]).await.limits[0];
    assert!(outcome.fits && outcome.remaining == 0, "{outcome:?}");
    let back_us = outcome.retry_after_us.unwrap();
    assert!((59_000_000..=60_000_000).contains(&back_us), "{back_us}");
}

#[tokio::test]
async fn a_limit_that_is_edited_or_deleted_is_not_served_from_old_leases() {
    let server = Server::start();
    let rig = proxy(&server, "a");
    let before = leased(daily("window", "k", 10_000));
    let admit = async |limit: &Limit, count: usize| {
        for _ in 0..count {
            assert!(rig.admits(limit).await);
        }
    };
    admit(&before, 200).await;
    assert!(rig.count(names::LEASE_UNITS, &["taken"]) > 0);
    // Less than is used: refused at once.
    let less = leased(daily("window", "k", 150));
    assert!(!rig.admits(&less).await);
    admit(&before, 100).await;
    let name =
        CounterName { scope: "public".into(), limit: "window".into(), key: "k".into(), tag: None };
    for counter in rig.limiter.find(&name).await.unwrap() {
        rig.limiter.forget(&counter).await.unwrap();
    }
    assert_eq!(storm(std::slice::from_ref(&rig), &[less], 5, 1).await, 150);
}

#[tokio::test]
async fn a_plan_is_charged_to_all_or_to_none_whether_leased_or_not() {
    let server = Server::start();
    let proxies = ["a", "b"].map(|name| proxy(&server, name));
    let shared = leased(daily("shared", "all", 4_000));
    let own = |key: &str| daily("own", key, 300);
    let other = leased(daily("other", "all", 100_000));
    let clients: Vec<String> = (0..8).map(|number| format!("client-{number}")).collect();
    let plans = clients.iter().map(|key| [shared.clone(), own(key), other.clone()]);
    let plans: Vec<_> = plans.collect();
    let storms = plans.iter().map(|plan| storm(&proxies, plan, 4, 2));
    let admitted = futures_util::future::join_all(storms).await;
    // Each client is refused by its own limit, and takes nothing from what is shared.
    assert_eq!(admitted, [300; 8]);
    for rig in &proxies {
        rig.limiter.drain(TEST_TIMEOUT).await;
    }
    assert_eq!(proxies[0].remaining(&shared).await, 4_000 - 2_400);
    assert_eq!(proxies[0].remaining(&other).await, 100_000 - 2_400);
}

#[tokio::test]
async fn a_leased_limit_that_refuses_charges_no_other() {
    let server = Server::start();
    let proxies = ["a", "b"].map(|name| proxy(&server, name));
    let plan = [daily("own", "k", 10_000), leased(daily("shared", "all", 700))];
    assert_eq!(storm(&proxies, &plan, 10, 3).await, 700);
    let outcome = proxies[0].outcome(&plan).await;
    assert!(outcome.limits[0].fits && !outcome.limits[1].fits);
    assert_eq!(outcome.limits[0].remaining, 10_000 - 700, "it is looked at");
    assert_eq!(proxies[0].remaining(&plan[0]).await, 10_000 - 700);
}

#[tokio::test]
async fn a_shadow_limit_that_is_leased_refuses_nobody() {
    let server = Server::start();
    let rig = proxy(&server, "a");
    let limits = [shadow(leased(daily("shadow", "k", 100)))];
    let mut would_refuse = 0;
    for _ in 0..300 {
        let outcome = rig.outcome(&limits).await;
        assert!(outcome.admitted);
        would_refuse += u64::from(!outcome.limits[0].fits);
    }
    assert_eq!(would_refuse, 200);
    assert_eq!(rig.count(names::LIMIT_WOULD_REFUSE, &["public", "shadow"]), 200);
}

#[tokio::test]
async fn what_is_withdrawn_returns_to_its_lease_whatever_its_refund() {
    let server = Server::start();
    let rig = proxy(&server, "a");
    for limit in [log("log", 50, 86_400_000), daily("window", "k", 50), bucket("bucket", 51)] {
        let limits = [leased(limit)];
        for _ in 0..200 {
            granted(rig.take(&limits).await).1.settle(Ending::Withdrawn, &[]);
        }
        let admitted = storm(std::slice::from_ref(&rig), &limits, 5, 1).await;
        assert_eq!(admitted, 50, "{}", limits[0].name);
    }
}

#[tokio::test]
async fn refunded_units_return_to_their_lease_or_to_the_store() {
    let server = Server::start();
    let rig = proxy(&server, "a");
    let limit = refunded(leased(daily("window", "k", 1_000)), Refund::Unsent);
    let mut grants = Vec::new();
    for _ in 0..500 {
        grants.push(rig.grant(&limit).await);
    }
    assert!(rig.count(names::LEASE_UNITS, &["taken"]) > 100);
    grants.into_iter().for_each(|grant| grant.settle(Ending::Unsent, &[]));
    rig.limiter.drain(TEST_TIMEOUT).await;
    assert_eq!(rig.remaining(&Limit { lease: None, ..limit }).await, 1_000);
}

#[tokio::test]
async fn a_request_that_is_gone_leaves_its_units_to_others() {
    let mut server = Server::start();
    let rig = proxy(&server, "a");
    let limit = refunded(leased(daily("window", "k", 1_000)), Refund::Unsent);
    let (one, limits) = (plan(std::slice::from_ref(&limit)), [limit.clone()]);
    for _ in 0..3 {
        assert!(rig.admits(&limit).await);
    }
    server.hold();
    let mut waiting: Vec<_> =
        (0..50).map(|_| Box::pin(rig.limiter.take(&rig.scope, &one))).collect();
    for take in &mut waiting {
        let polled = take.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending(), "{polled:?}");
    }
    let stays = waiting.split_off(40);
    drop(waiting);
    server.release();
    for take in stays {
        drop(granted(take.await));
    }
    assert_eq!(3 + 10 + storm(std::slice::from_ref(&rig), &limits, 3, 1).await, 1_000);
}

#[tokio::test]
async fn a_store_that_is_gone_is_a_store_failure() {
    let mut server = Server::start();
    let settings = Settings { deadline: Duration::from_millis(300), ..Settings::default() };
    let redis = RedisSettings { deadline: settings.deadline, ..redis_settings(server.port) };
    let rig = Rig::with(&redis.into(), settings);
    let limit = leased(daily("window", "k", 100_000));
    for _ in 0..50 {
        assert!(rig.admits(&limit).await);
    }
    server.hold();
    let mut admitted = 0;
    let unavailable = loop {
        match rig.take(std::slice::from_ref(&limit)).await {
            Take::Granted(outcome, _) => admitted += u64::from(outcome.limits[0].is_leased),
            Take::Unavailable(cause) => break cause,
            Take::Refused(outcome) => panic!("{outcome:?}"),
        }
    };
    // What was taken in advance is spent; then nothing can be decided.
    assert!(admitted <= rig.count(names::LEASE_UNITS, &["taken"]));
    assert_eq!(unavailable, "timeout");
    assert!(rig.count(names::LEASE_CALLS, &["failed"]) > 0);
    server.release();
}

#[tokio::test]
async fn a_key_of_few_requests_has_no_lease() {
    let server = Server::start();
    let rig = proxy(&server, "a");
    for number in 0..50 {
        assert!(rig.admits(&leased(daily("window", &format!("key-{number}"), 5))).await);
    }
    assert_eq!(calls(std::slice::from_ref(&rig)), 0);
}
