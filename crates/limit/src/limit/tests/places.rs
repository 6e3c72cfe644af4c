//! Places of a `concurrency` that are taken from a real Redis several at once: requests return
//! them, and the next ones use them without a call.

use std::sync::atomic::{AtomicU64, Ordering};

use super::redis_server::Server;
use super::*;
use crate::clock::monotonic;
use crate::limit::CounterName;
use crate::plan::{Concurrency, Lease};

const LIFE_MS: u64 = 100;

fn places(amount: u64) -> Limit {
    let limit = Limit::new("in-flight", "k", Concurrency { amount }.into());
    Limit { lease: Some(Lease::of_ms(LIFE_MS)), ..limit }
}

/// Nothing but a give-back frees its places: the store counts them for longer than a test waits.
fn proxy(server: &Server, name: &str) -> Rig {
    let lease = 10 * TEST_TIMEOUT;
    let settings = Settings { instance: name.into(), lease, ..with_test_timeout() };
    Rig::with(&on_redis(server.port), settings)
}

fn granted_calls(rig: &Rig) -> u64 {
    rig.count(names::LEASE_CALLS, &["granted"])
}

/// Holds places until a lease was granted and one of it is among them.
async fn hold_leased(rig: &Rig, limit: &Limit) -> Vec<super::super::Grant> {
    let mut held = Vec::new();
    for number in 0_u32.. {
        let (outcome, grant) = granted(rig.take(std::slice::from_ref(limit)).await);
        if outcome.limits[0].is_leased {
            held.push(grant);
            return held;
        }
        // Now and then one stays, so that the demand is seen and the limit is not used up.
        if number % 8 == 0 && held.len() < 4 {
            held.push(grant);
        }
    }
    unreachable!()
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let began = monotonic();
    while !is_so().await {
        assert!(began.elapsed() < TEST_TIMEOUT, "not so in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The same one that gives up soon on a store that is away.
fn impatient(server: &crate::engine::testing::Server) -> Rig {
    let deadline = Duration::from_millis(100);
    let engine = RedisSettings { deadline, ..redis_settings(server.port) };
    let lease = 10 * TEST_TIMEOUT;
    Rig::with(&engine.into(), Settings { deadline, lease, ..Settings::default() })
}

/// Waits until so many places are free, of a store that may not answer yet.
async fn until_free(rig: &Rig, limit: &Limit, count: u64) {
    let looked = [Limit { cost: 0, ..limit.clone() }];
    until("the places are free", async || match rig.take(&looked).await {
        Take::Granted(outcome, _) | Take::Refused(outcome) => outcome.limits[0].remaining == count,
        Take::Unavailable(_) => false,
    })
    .await;
}

#[tokio::test]
async fn one_place_serves_many_requests() {
    let server = Server::start();
    let rig = proxy(&server, "a");
    let (limit, began) = (places(20), monotonic());
    for _ in 0..2_000 {
        assert!(rig.admits(&limit).await);
    }
    let lives = began.elapsed().as_millis() as u64 / LIFE_MS + 1;
    let calls = granted_calls(&rig);
    assert!((1..=2 * lives).contains(&calls), "{calls} calls in {lives} lives");
    rig.limiter.drain(TEST_TIMEOUT).await;
    assert_eq!(rig.remaining(&limit).await, 20);
    assert_eq!(rig.count(names::SETTLES_FAILED, &["give_back"]), 0);
}

#[tokio::test]
async fn over_all_proxies_no_more_than_the_limit_are_in_use_and_all_come_back() {
    let server = Server::start();
    let proxies = ["a", "b", "c"].map(|name| proxy(&server, name));
    for amount in [3, 40] {
        let limit = places(amount);
        let (in_use, admitted) = (AtomicU64::new(0), AtomicU64::new(0));
        let client = async |rig: &Rig, number: u64| {
            for turn in 0..60 {
                let Take::Granted(_, grant) = rig.take(std::slice::from_ref(&limit)).await else {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    continue;
                };
                let now = in_use.fetch_add(1, Ordering::Relaxed) + 1;
                assert!(now <= amount, "{now} of {amount} are in use");
                admitted.fetch_add(1, Ordering::Relaxed);
                // From none to some lives of a lease.
                let us = match (number + turn) % 8 {
                    0 => 150_000,
                    1..4 => 0,
                    more => more * 700,
                };
                tokio::time::sleep(Duration::from_micros(us)).await;
                in_use.fetch_sub(1, Ordering::Relaxed);
                drop(grant);
            }
        };
        let clients = proxies.iter().flat_map(|rig| (0..12).map(move |number| (rig, number)));
        futures_util::future::join_all(clients.map(|(rig, number)| client(rig, number))).await;
        assert!(admitted.load(Ordering::Relaxed) > amount);
        until("all places are back", async || proxies[0].remaining(&limit).await == amount).await;
    }
    assert!(proxies.iter().map(granted_calls).sum::<u64>() > 0);
}

#[tokio::test]
async fn a_request_keeps_its_place_after_the_lease() {
    let server = Server::start();
    // Renewals every 200 ms, and leases of 100 ms.
    let lease = Duration::from_millis(600);
    let [rig, other] = [(); 2]
        .map(|()| Rig::with(&on_redis(server.port), Settings { lease, ..with_test_timeout() }));
    let limit = places(50);
    let plain = Limit { lease: None, ..limit.clone() };
    let held = hold_leased(&rig, &limit).await;
    let used = held.len() as u64;
    until("what is unused is back", async || other.remaining(&plain).await == 50 - used).await;
    // Longer than the store counts a place that nobody renews.
    let began = monotonic();
    while began.elapsed() < 2 * lease {
        assert_eq!(other.remaining(&plain).await, 50 - used);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(rig.count(names::SETTLES_FAILED, &["renewal"]), 0);
    drop(held);
    until("all are back", async || other.remaining(&plain).await == 50).await;
}

#[tokio::test]
async fn a_place_that_goes_back_while_the_store_is_away_goes_back_later() {
    let server = crate::engine::testing::Server::start(&[]);
    let rig = impatient(&server);
    let limit = places(30);
    let held = hold_leased(&rig, &limit).await;
    server.signal("-STOP");
    // Calls are not sent any more, and the lease has ended: what it had left may have been sent,
    // and be read later, but nothing of what follows.
    until("calls fail at once", async || {
        let began = monotonic();
        let take = rig.take(&[Limit { lease: None, ..limit.clone() }]).await;
        assert!(matches!(take, Take::Unavailable(_)), "{take:?}");
        began.elapsed() < Duration::from_millis(20)
    })
    .await;
    let failed = rig.count(names::SETTLES_FAILED, &["give_back"]);
    drop(held);
    until("a call has failed", async || rig.count(names::SETTLES_FAILED, &["give_back"]) > failed)
        .await;
    server.signal("-CONT");
    until_free(&rig, &limit, 30).await;
}

#[tokio::test]
async fn places_that_are_reset_are_free_whether_they_are_in_use_or_not() {
    let server = Server::start();
    let [rig, other] = ["a", "b"].map(|name| proxy(&server, name));
    // So long a life that the lease goes on during the test, if nothing ends it.
    let limit = Limit { lease: Some(Lease::of_ms(30_000)), ..places(30) };
    let plain = Limit { lease: None, ..limit.clone() };
    let held = hold_leased(&rig, &limit).await;
    let name = CounterName {
        scope: "public".into(),
        limit: limit.name.clone(),
        key: "k".into(),
        tag: None,
    };
    for counter in rig.limiter.find(&name).await.unwrap() {
        rig.limiter.forget(&counter).await.unwrap();
    }
    let mut again = Vec::new();
    for _ in 0..30 {
        again.push(other.grant(&plain).await);
    }
    assert!(!rig.admits(&limit).await, "what was leased before is used no more");
    drop(again);
    until("those are back", async || other.remaining(&plain).await == 30).await;
    drop(held);
    rig.limiter.drain(TEST_TIMEOUT).await;
    assert_eq!(other.remaining(&plain).await, 30);
}

#[tokio::test]
async fn the_last_place_is_nobodys_for_the_life_of_a_lease() {
    let server = Server::start();
    let [rig, other] = ["a", "b"].map(|name| proxy(&server, name));
    let limit = Limit { lease: Some(Lease::of_ms(30_000)), ..places(1) };
    let plain = [Limit { lease: None, ..limit.clone() }];
    until("there is a lease", async || {
        assert!(rig.admits(&limit).await);
        granted_calls(&rig) > 0
    })
    .await;
    until("another proxy gets the place", async || {
        matches!(other.take(&plain).await, Take::Granted(..))
    })
    .await;
}

#[tokio::test]
async fn a_shadow_limit_of_places_refuses_nobody_and_holds_no_more_than_it_says() {
    let server = Server::start();
    let rig = proxy(&server, "a");
    let limit = shadow(places(5));
    let mut held = Vec::new();
    for _ in 0..40 {
        held.push(rig.grant(&limit).await);
    }
    assert_eq!(rig.remaining(&limit).await, 0);
    drop(held);
    rig.limiter.drain(TEST_TIMEOUT).await;
    assert_eq!(rig.remaining(&limit).await, 5);
}

#[tokio::test]
async fn places_of_an_edited_limit_and_of_a_process_that_ends_come_back() {
    let server = Server::start();
    let [rig, ending] = ["a", "b"].map(|name| proxy(&server, name));
    let limit = places(60);
    let held = hold_leased(&rig, &limit).await;
    let used = held.len() as u64;
    let plain = Limit { lease: None, ..limit.clone() };
    // With another life: what the old lease has unused goes back.
    let edited = Limit { lease: Some(Lease::of_ms(2 * LIFE_MS)), ..limit.clone() };
    assert!(rig.admits(&edited).await);
    drop(hold_leased(&ending, &limit).await);
    ending.limiter.drain(TEST_TIMEOUT).await;
    until("what is unused is back", async || ending.remaining(&plain).await == 60 - used).await;
    drop(held);
    rig.limiter.drain(TEST_TIMEOUT).await;
    assert_eq!(ending.remaining(&plain).await, 60);
}

#[tokio::test]
async fn places_of_a_lease_without_an_answer_are_free_soon_after_the_store_answers_again() {
    let server = crate::engine::testing::Server::start(&[]);
    let rig = impatient(&server);
    let limit = places(30);
    drop(hold_leased(&rig, &limit).await);
    until("the lease has ended", async || rig.remaining(&limit).await == 30).await;
    server.signal("-STOP");
    // Many at once, so that they ask for a lease.
    let takes = (0..20).map(|_| rig.take(std::slice::from_ref(&limit)));
    let takes = futures_util::future::join_all(takes).await;
    assert!(takes.iter().all(|take| matches!(take, Take::Unavailable(_))), "{takes:?}");
    assert!(rig.count(names::LEASE_CALLS, &["failed"]) > 0);
    server.signal("-CONT");
    until_free(&rig, &limit, 30).await;
}

#[tokio::test]
async fn places_that_a_proxy_does_not_use_are_soon_free_for_others() {
    let server = Server::start();
    let [rig, other] = ["a", "b"].map(|name| proxy(&server, name));
    // A sixth of the default is the longest: 1.6 s.
    let limit = Limit { lease: Some(Lease::of_ms(1_600)), ..places(12) };
    let plain = Limit { lease: None, ..limit.clone() };
    let limits = [limit.clone()];
    let is_leased =
        |take: &Take| matches!(take, Take::Granted(outcome, _) if outcome.limits[0].is_leased);
    until("others have what one lease does not use", async || {
        // All at once, again and again, until a lease has them.
        until("a lease has most places", async || {
            let all = futures_util::future::join_all((0..12).map(|_| rig.take(&limits))).await;
            all.iter().all(is_leased)
        })
        .await;
        // One request after another needs one place of it.
        let calls = granted_calls(&rig);
        let mut are_free = false;
        while is_leased(&rig.take(&limits).await) && granted_calls(&rig) == calls {
            if are_free {
                return true;
            }
            are_free = other.remaining(&plain).await >= 9;
        }
        // That lease has ended.
        false
    })
    .await;
    rig.limiter.drain(TEST_TIMEOUT).await;
    assert_eq!(other.remaining(&plain).await, 12);
}

#[tokio::test]
async fn a_request_of_several_places_asks_for_itself() {
    let server = Server::start();
    let rig = proxy(&server, "a");
    let limit = Limit { cost: 3, ..places(10) };
    let held = [rig.grant(&limit).await, rig.grant(&limit).await, rig.grant(&limit).await];
    assert!(!rig.admits(&limit).await);
    drop(held);
    rig.limiter.drain(TEST_TIMEOUT).await;
    assert_eq!(rig.remaining(&limit).await, 10);
    assert_eq!(granted_calls(&rig), 0);
}

#[tokio::test]
async fn a_plan_that_another_limit_refuses_takes_no_place() {
    let server = Server::start();
    let rig = proxy(&server, "a");
    let limit = places(10);
    let plan = [daily("own", "k", 200), limit.clone()];
    let mut admitted = 0;
    for _ in 0..400 {
        admitted += u64::from(rig.outcome(&plan).await.admitted);
    }
    assert_eq!(admitted, 200);
    assert!(granted_calls(&rig) > 0);
    rig.limiter.drain(TEST_TIMEOUT).await;
    assert_eq!(rig.remaining(&limit).await, 10);
}
