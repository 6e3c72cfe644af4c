//! Parents and children: what a child may have, whether it is assured or borrowed, and what comes
//! back.

use super::redis_server::Server;
use super::*;
use crate::limit::Ending;
use crate::plan::{Gcra, Lease, Role};

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
    let log = Limit {
        algorithm: Algorithm::Concurrency(crate::plan::Concurrency { amount: 3 }),
        ..assured.clone()
    };
    assert_eq!(field(vec![child.clone(), log, parent.clone()]), "limits[0].assured");
    let leased = Limit { lease: Some(Lease::of_ms(10)), ..parent.clone() };
    assert_eq!(field(vec![child.clone(), assured.clone(), leased]), "limits");
    let twice = Limit { name: "twice".into(), ..child.clone() };
    assert_eq!(field(vec![child, assured, parent, twice]), "limits");
}
