//! Parents and children: what a child may have, whether it is assured or borrowed, and what comes
//! back.

use super::redis_server::Server;
use super::*;
use crate::limit::Ending;
use crate::plan::{Concurrency, Gcra, Lease, Role, SlidingWindowLog};

/// Longer than any test, so that nothing is refilled meanwhile.
const PERIOD_MS: u64 = 86_400_000;

fn bucket(amount: u64) -> Algorithm {
    let rate = Rate { amount, per_ms: PERIOD_MS };
    Algorithm::Gcra(Gcra { burst: amount, rate, debt: Debt::None })
}

/// What a request of `child` is charged: of the parent's 10 it is sure of 3, and gets at most 8.
fn family(child: &str) -> [Limit; 3] {
    let of = |name: &str, key: &str, amount, role| Limit {
        tag: Some("parent".into()),
        role,
        ..Limit::new(name, key, bucket(amount))
    };
    [
        of("child", child, 8, Role::Child { assured: 1, parent: 2 }),
        of("child.assured", child, 3, Role::Assured),
        of("parent", "parent", 10, Role::Parent),
    ]
}

fn with(limits: &[Limit], change: impl Fn(&Limit) -> Limit) -> Vec<Limit> {
    limits.iter().map(change).collect()
}

/// The same in windows, of which time brings nothing back.
fn windows(child: &str) -> Vec<Limit> {
    let counted = |limit: &Limit| Limit {
        algorithm: window(limit.algorithm.amount().unwrap(), PERIOD_MS),
        ..limit.clone()
    };
    with(&family(child), counted)
}

/// Takes until refused; returns how many were admitted.
async fn drain(rig: &Rig, limits: &[Limit]) -> u64 {
    let mut admitted = 0;
    while rig.outcome(limits).await.admitted {
        admitted += 1;
    }
    admitted
}

/// What the child's ceiling, its assured limit and its parent have left.
async fn left(rig: &Rig, limits: &[Limit]) -> [u64; 3] {
    let alone = |limit: &Limit| Limit { role: Role::Alone, ..limit.clone() };
    let mut left = [0; 3];
    for (left, limit) in left.iter_mut().zip(limits) {
        *left = rig.remaining(&alone(limit)).await;
    }
    left
}

#[tokio::test]
async fn each_child_gets_its_own_and_all_together_no_more_than_was_promised() {
    let server = Server::start();
    for rig in Rig::both(&server, &with_test_timeout()) {
        assert_eq!(drain(&rig, &family("a")).await, 8, "{}", rig.name());
        assert_eq!(left(&rig, &family("a")).await, [0, 0, 2], "{}", rig.name());
        // Two are left of the parent's, but three are assured.
        assert_eq!(drain(&rig, &family("b")).await, 3, "{}", rig.name());
        assert_eq!(drain(&rig, &family("c")).await, 3, "{}", rig.name());
        assert_eq!(drain(&rig, &family("a")).await, 0, "{}", rig.name());
    }
}

#[tokio::test]
async fn a_child_sees_what_it_may_have_and_when_and_its_parent_refuses() {
    let server = Server::start();
    for rig in Rig::both(&server, &with_test_timeout()) {
        let shown = |outcome: &PlanOutcome| outcome.limits[0].remaining;
        assert_eq!(shown(&rig.outcome(&family("a")).await), 7, "{}", rig.name());
        drain(&rig, &family("a")).await;
        // The parent has two left, and this child three.
        let first = rig.outcome(&family("b")).await;
        assert_eq!((shown(&first), first.admitted), (2, true), "{}", rig.name());
        drain(&rig, &family("b")).await;
        let refused = rig.outcome(&family("b")).await;
        let limits = family("b");
        let violated: Vec<&str> =
            refused.violated(&limits).map(|(limit, _)| limit.name.as_str()).collect();
        assert_eq!(violated, ["parent"], "{}", rig.name());
        assert_eq!(refused.refusing_names(&limits).collect::<Vec<_>>(), ["child"]);
        assert_eq!(shown(&refused), 0, "{}", rig.name());
        // A unit of its own comes back in a third of the day. The parent owes one first.
        let day_us = PERIOD_MS * 1_000;
        let wait_us = refused.retry_after_us(&limits).unwrap();
        assert!((day_us / 6..=day_us / 5).contains(&wait_us), "{}: {wait_us}", rig.name());
        let labels = ["public", "parent"];
        assert_eq!(rig.count(names::LIMIT_REFUSALS, &labels), 2, "{}", rig.name());
        let labels = ["public", "child.assured"];
        assert_eq!(rig.count(names::LIMIT_REFUSALS, &labels), 0, "{}", rig.name());
    }
}

#[tokio::test]
async fn what_comes_back_comes_back_where_it_was_taken() {
    let server = Server::start();
    for rig in Rig::both(&server, &with_test_timeout()) {
        let limits = with(&windows("a"), |limit| refunded(limit.clone(), Refund::Unsent));
        let mut grants = Vec::new();
        for _ in 0..8 {
            grants.push(granted(rig.take(&limits).await).1);
        }
        // The first three were of its own, the last five were borrowed.
        let borrowed = grants.split_off(5);
        borrowed.into_iter().for_each(|grant| grant.settle(Ending::Unsent, &[]));
        rig.limiter.drain(TEST_TIMEOUT).await;
        assert_eq!(left(&rig, &limits).await, [3, 0, 5], "{}", rig.name());
        grants.into_iter().take(1).for_each(|grant| grant.settle(Ending::Unsent, &[]));
        rig.limiter.drain(TEST_TIMEOUT).await;
        assert_eq!(left(&rig, &limits).await, [4, 1, 6], "{}", rig.name());
    }
}

#[tokio::test]
async fn a_charge_at_the_end_is_refused_by_the_ceiling_alone() {
    let server = Server::start();
    for rig in Rig::both(&server, &with_test_timeout()) {
        let limits = with(&windows("a"), |limit| refunded(limit.clone(), Refund::BySettle));
        let (_, grant) = granted(rig.take(&limits).await);
        let all: Vec<Adjustment> = limits
            .iter()
            .map(|limit| Adjustment { limit: limit.name.clone(), change: Change::Units(5) })
            .collect();
        grant.settle(Ending::Completed, &all);
        rig.limiter.drain(TEST_TIMEOUT).await;
        // Its own had room for two.
        assert_eq!(left(&rig, &limits).await, [2, 0, 4], "{}", rig.name());
        assert_eq!(rig.count(names::POLICY_ERRORS, &["public", "answer"]), 0, "{}", rig.name());
    }
}

#[tokio::test]
async fn shadow_children_refuse_nothing_and_nothing_assured_is_a_ceiling_and_a_parent() {
    let server = Server::start();
    for rig in Rig::both(&server, &with_test_timeout()) {
        let shadows = with(&family("s"), |limit| shadow(limit.clone()));
        for _ in 0..30 {
            assert!(rig.outcome(&shadows).await.admitted, "{}", rig.name());
        }
        let mut limits = family("n");
        limits.iter_mut().for_each(|limit| limit.tag = Some("other".into()));
        limits[1].algorithm = bucket(0);
        assert_eq!(drain(&rig, &limits).await, 8, "{}", rig.name());
        let mut second = limits.clone();
        (second[0].key, second[1].key) = ("m".into(), "m".into());
        assert_eq!(drain(&rig, &second).await, 2, "{}", rig.name());
    }
}

#[tokio::test]
async fn a_refusal_of_a_parent_is_remembered_for_its_child_alone() {
    let server = Server::start();
    let rig = Rig::redis(server.port);
    assert_eq!(drain(&rig, &family("a")).await, 8);
    for _ in 0..5 {
        assert!(!rig.outcome(&family("a")).await.admitted);
    }
    assert!(rig.count(names::REFUSALS_REMEMBERED, &[]) >= 4);
    assert_eq!(drain(&rig, &family("b")).await, 3);
    assert!(!rig.outcome(&family("b")).await.admitted);
    assert_eq!(drain(&rig, &family("c")).await, 3);
}

#[test]
fn roles_have_to_fit_each_other() {
    let field = |limits: Vec<Limit>| Plan::new(limits).unwrap_err().field;
    let [child, assured, parent] = family("a");
    assert_eq!(Plan::new(family("a").into()).err(), None);
    assert_eq!(field(vec![child.clone(), assured.clone()]), "limits[0].parent");
    assert_eq!(field(vec![assured.clone(), parent.clone()]), "limits");
    let elsewhere = Limit { tag: Some("x".into()), ..parent.clone() };
    assert_eq!(field(vec![child.clone(), assured.clone(), elsewhere]), "limits[0].parent");
    let rate = Rate { amount: 3, per_ms: PERIOD_MS };
    let log = SlidingWindowLog { rate, debt: Debt::None };
    let log = Limit { algorithm: log.into(), ..assured.clone() };
    assert_eq!(field(vec![child.clone(), log, parent.clone()]), "limits[0].assured");
    let leased = Limit { lease: Some(Lease::of_ms(10)), ..assured.clone() };
    assert_eq!(field(vec![child.clone(), leased, parent.clone()]), "limits");
    assert_eq!(Plan::new(leased_family("a").into()).err(), None);
    let [child_apart, assured_apart, parent_apart] = leased_family("a");
    let elsewhere = Limit { tag: Some("x".into()), ..assured_apart };
    assert_eq!(field(vec![child_apart, elsewhere, parent_apart]), "limits[0].assured");
    let twice = Limit { name: "twice".into(), ..child.clone() };
    assert_eq!(field(vec![child, assured, parent, twice]), "limits");
}

/// The same family, whose parent is leased: its children have tags of their own.
fn leased_family(child: &str) -> [Limit; 3] {
    let mut limits = family(child);
    limits.iter_mut().for_each(|limit| limit.tag = None);
    limits[2].lease = Some(Lease::of_ms(200));
    // A strict lease takes what comes back in its life off the burst, here one.
    limits[2].algorithm = bucket_of(10, 11);
    limits
}

fn bucket_of(amount: u64, burst: u64) -> Algorithm {
    let rate = Rate { amount, per_ms: PERIOD_MS };
    Algorithm::Gcra(Gcra { burst, rate, debt: Debt::None })
}

/// The burst with which the parent is counted: leases of a bucket are of Redis alone.
fn parents_burst(rig: &Rig) -> u64 {
    if rig.name() == "redis" { 10 } else { 11 }
}

#[tokio::test]
async fn children_of_a_leased_parent_get_what_is_assured_and_no_more_than_was_promised() {
    let server = Server::start();
    for rig in Rig::both(&server, &with_test_timeout()) {
        let burst = parents_burst(&rig);
        assert_eq!(drain(&rig, &leased_family("a")).await, 8, "{}", rig.name());
        // Two or three are left of the parent's, and three are assured.
        assert_eq!(drain(&rig, &leased_family("b")).await, 3, "{}", rig.name());
        assert_eq!(drain(&rig, &leased_family("c")).await, 3, "{}", rig.name());
        assert_eq!(drain(&rig, &leased_family("a")).await, 0, "{}", rig.name());
        // All fourteen are charged, into debt.
        rig.limiter.drain(TEST_TIMEOUT).await;
        let [.., parent] = leased_family("a");
        let owed = Limit { lease: None, ..parent };
        let outcome = rig.outcome(&[Limit { cost: 0, role: Role::Alone, ..owed }]).await;
        assert_eq!(outcome.limits[0].remaining, 0, "{}", rig.name());
        let day_us = PERIOD_MS * 1_000;
        let debt_us = (14 - burst) * day_us / 10;
        let reset_us = outcome.limits[0].reset_us;
        assert!(
            reset_us + day_us / 100 > burst * day_us / 10 + debt_us,
            "{}: {reset_us}",
            rig.name()
        );
    }
}

#[tokio::test]
async fn a_child_that_its_ceiling_refuses_costs_its_leased_parent_nothing() {
    let server = Server::start();
    for rig in Rig::both(&server, &with_test_timeout()) {
        // In windows, of which time brings nothing back.
        let windows = |limit: Limit| {
            let amount = limit.algorithm.amount().unwrap();
            Limit { algorithm: window(amount, PERIOD_MS), ..limit }
        };
        let limits = leased_family("a").map(|limit| refunded(windows(limit), Refund::Unsent));
        let mut grants = Vec::new();
        for _ in 0..8 {
            grants.push(granted(rig.take(&limits).await).1);
        }
        for _ in 0..5 {
            let refused = refused(rig.take(&limits).await);
            let violated = refused.violated(&limits).map(|(limit, _)| limit.name.as_str());
            assert_eq!(violated.collect::<Vec<_>>(), ["child"], "{}", rig.name());
        }
        // All that was taken comes back where it was taken.
        grants.into_iter().for_each(|grant| grant.settle(Ending::Unsent, &[]));
        rig.limiter.drain(TEST_TIMEOUT).await;
        let [child, assured, _] = &limits;
        let alone = |limit: &Limit| Limit { role: Role::Alone, ..limit.clone() };
        assert_eq!(rig.remaining(&alone(child)).await, 8, "{}", rig.name());
        assert_eq!(rig.remaining(&alone(assured)).await, 3, "{}", rig.name());
        let mut all = 0;
        for child in ["x", "y"] {
            all += drain(&rig, &leased_family(child).map(windows)).await;
        }
        assert_eq!(all, 11, "{}", rig.name());
    }
}

#[tokio::test]
async fn a_shadow_of_a_leased_parent_refuses_nothing() {
    let server = Server::start();
    for rig in Rig::both(&server, &with_test_timeout()) {
        let limits = leased_family("s").map(shadow);
        for _ in 0..30 {
            assert!(rig.outcome(&limits).await.admitted, "{}", rig.name());
        }
        let mut nothing = leased_family("n");
        nothing[1].algorithm = bucket(0);
        nothing[2].key = "another".into();
        assert_eq!(drain(&rig, &nothing).await, 8, "{}", rig.name());
        let mut second = nothing.clone();
        (second[0].key, second[1].key) = ("m".into(), "m".into());
        assert_eq!(drain(&rig, &second).await, parents_burst(&rig) - 8, "{}", rig.name());
    }
}

#[tokio::test]
async fn three_proxies_keep_the_promises_of_a_leased_parent() {
    let server = Server::start();
    let settings = |name: &str| Settings {
        deadline: TEST_TIMEOUT,
        instance: name.into(),
        ..Settings::default()
    };
    let proxies = ["a", "b", "c"].map(|name| Rig::with(&on_redis(server.port), settings(name)));
    // Of 1,000 a day, each of four children is sure of 100 and gets up to 600.
    let counted = |limit: Limit| {
        let amount = match limit.role {
            Role::Assured => 100,
            Role::Child { .. } => 600,
            Role::Parent | Role::Alone => 1_000,
        };
        Limit { algorithm: window(amount, PERIOD_MS), ..limit }
    };
    let admitted: [std::sync::atomic::AtomicU64; 4] = Default::default();
    let client = async |rig: &Rig, child: usize| {
        let limits = leased_family(&format!("child {child}")).map(counted);
        let mut refused = 0;
        while refused < 3 {
            if rig.outcome(&limits).await.admitted {
                admitted[child].fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            } else {
                refused += 1;
            }
        }
    };
    let all = proxies.iter().flat_map(|rig| (0..40).map(move |nth| (rig, nth % 4)));
    futures_util::future::join_all(all.map(|(rig, child)| client(rig, child))).await;
    let admitted = admitted.map(std::sync::atomic::AtomicU64::into_inner);
    let total: u64 = admitted.iter().sum();
    assert!(admitted.iter().all(|child| (100..=600).contains(child)), "{admitted:?}");
    assert!((1_000..=1_400).contains(&total), "{total} of {admitted:?}");
    // Whatever was admitted was charged, and nothing else.
    let alone = |limit: Limit| Limit { role: Role::Alone, lease: None, ..counted(limit) };
    for (child, admitted) in admitted.into_iter().enumerate() {
        let [ceiling, ..] = leased_family(&format!("child {child}")).map(alone);
        assert_eq!(proxies[0].remaining(&ceiling).await, 600 - admitted);
    }
}

#[tokio::test]
async fn the_places_of_children_are_held_for_as_long_as_their_requests_last() {
    let server = Server::start();
    for rig in Rig::both(&server, &with_test_timeout()) {
        let places = |limit: &Limit| {
            let amount = limit.algorithm.amount().unwrap();
            Limit { algorithm: Concurrency { amount }.into(), ..limit.clone() }
        };
        let (a, b) = (with(&family("a"), places), with(&family("b"), places));
        let mut held = Vec::new();
        while let Take::Granted(_, grant) = rig.take(&a).await {
            held.push(grant);
        }
        assert_eq!(held.len(), 8, "{}", rig.name());
        let mut others = Vec::new();
        while let Take::Granted(_, grant) = rig.take(&b).await {
            others.push(grant);
        }
        assert_eq!(others.len(), 3, "{}", rig.name());
        drop(others);
        drop(held);
        rig.limiter.drain(TEST_TIMEOUT).await;
        let alone = |limit: &Limit| Limit { role: Role::Alone, ..places(limit) };
        for limit in family("a") {
            let amount = limit.algorithm.amount().unwrap();
            assert_eq!(
                rig.remaining(&alone(&limit)).await,
                amount,
                "{} {}",
                rig.name(),
                limit.name
            );
        }
    }
}
