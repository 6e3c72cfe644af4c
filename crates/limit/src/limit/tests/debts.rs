//! Charges into debt at a request's end, on both engines.

use super::super::Ending;
use super::redis_server::Server;
use super::settling::algorithms;
use super::*;
use crate::plan::Debt;

fn owe(units: u64) -> Adjustment {
    Adjustment { limit: "l".into(), change: Change::Debt(units) }
}

fn wrong(rig: &Rig) -> u64 {
    rig.count(names::POLICY_ERRORS, &["public", "answer"])
}

/// The units charged beyond the debt are counted as calls.
fn debt_full(rig: &Rig) -> u64 {
    rig.count(names::SETTLES_FAILED, &["debt_full"])
}

async fn settle(rig: &Rig, limit: &Limit, adjustments: &[Adjustment]) {
    rig.grant(limit).await.settle(Ending::Completed, adjustments);
    rig.limiter.drain(TEST_TIMEOUT).await;
}

#[tokio::test]
async fn each_algorithm_with_a_debt_owes_and_the_others_say_that_they_do_not() {
    let server = Server::start();
    for rig in Rig::both(&server, &with_test_timeout()) {
        for algorithm in algorithms(20) {
            let name = format!("{} {}", rig.name(), algorithm.name());
            let without = Limit::new("l", "without", algorithm.clone());
            let before = (wrong(&rig), debt_full(&rig));
            settle(&rig, &without, &[owe(5)]).await;
            assert_eq!(wrong(&rig), before.0 + 1, "{name}: no debt is allowed");
            let Some(algorithm) = algorithm.with_debt(Debt::Units(10)) else { continue };
            let limit = Limit::new("l", "k", algorithm);
            settle(&rig, &limit, &[owe(9)]).await;
            assert_eq!(rig.remaining(&limit).await, 10, "{name}: it fits");
            settle(&rig, &limit, &[owe(14)]).await;
            assert_eq!(rig.remaining(&limit).await, 0, "{name}: 5 are owed");
            assert!(!rig.admits(&limit).await, "{name}");
            assert_eq!((wrong(&rig), debt_full(&rig)), (before.0 + 1, before.1), "{name}");
        }
    }
}

#[tokio::test]
async fn a_debt_ends_at_its_bound_and_what_is_beyond_is_counted() {
    let server = Server::start();
    for rig in Rig::both(&server, &with_test_timeout()) {
        for algorithm in algorithms(20) {
            let Some(algorithm) = algorithm.with_debt(Debt::Allowance) else { continue };
            let name = format!("{} {}", rig.name(), algorithm.name());
            let limit = Limit::new("l", "k", algorithm);
            // All were granted before any of them was settled.
            let mut grants = Vec::new();
            for _ in 0..4 {
                grants.push(rig.grant(&limit).await);
            }
            let before = debt_full(&rig);
            for grant in grants {
                grant.settle(Ending::Completed, &[owe(11)]);
            }
            rig.limiter.drain(TEST_TIMEOUT).await;
            // 4 and 33 of 20 and 20, and then 3 and 8 more.
            let grant = rig.take(std::slice::from_ref(&limit)).await;
            assert!(matches!(grant, Take::Refused(_)), "{name}");
            assert_eq!(debt_full(&rig), before + 1, "{name}: 48 of 40");
        }
    }
}

#[tokio::test]
async fn a_quotas_debt_goes_to_the_stores_period_when_the_proxys_clock_is_off() {
    let server = Server::start();
    let year = 365 * 86_400_000_000;
    for rig in Rig::both_at(&server, [START_US + year, START_US]) {
        let algorithm = algorithms(20).into_iter().find(|it| it.name() == "quota").unwrap();
        let limit = Limit::new("l", "k", algorithm.with_debt(Debt::Allowance).unwrap());
        settle(&rig, &limit, &[owe(25)]).await;
        assert_eq!(rig.remaining(&limit).await, 0, "{}", rig.name());
        assert_eq!(rig.count(names::SETTLES_FAILED, &["charge"]), 0, "{}", rig.name());
        assert_eq!(rig.count(names::SETTLES_FAILED, &["charge_refused"]), 0, "{}", rig.name());
    }
}

/// 1,000 tokens, replies that cost 500, reported at their end, 64 callers at once. A charge that
/// must fit is dropped at 900 of 1,000, and about a hundred more replies pass; a debt ends that.
#[tokio::test]
async fn replies_are_not_let_through_while_their_callers_are_in_debt() {
    const CALLERS: usize = 64;
    let server = Server::start();
    for rig in Rig::both(&server, &with_test_timeout()) {
        let rig = Arc::new(rig);
        for (debt, change) in
            [(Debt::Units(32_000), Change::Debt(499)), (Debt::None, Change::Units(499))]
        {
            let algorithm = window(1_000, 86_400_000).with_debt(debt).unwrap();
            let limit = Limit::new("l", format!("{debt:?}"), algorithm);
            let mut replies = 0;
            loop {
                let mut callers = tokio::task::JoinSet::new();
                for _ in 0..CALLERS {
                    let (rig, limit) = (Arc::clone(&rig), limit.clone());
                    callers.spawn(async move { rig.take(std::slice::from_ref(&limit)).await });
                }
                let mut grants = Vec::new();
                while let Some(take) = callers.join_next().await {
                    if let Take::Granted(_, grant) = take.unwrap() {
                        grants.push(grant);
                    }
                }
                if grants.is_empty() {
                    break;
                }
                replies += grants.len();
                for grant in grants {
                    let adjustment = Adjustment { limit: "l".into(), change };
                    grant.settle(Ending::Completed, &[adjustment]);
                }
                rig.limiter.drain(TEST_TIMEOUT).await;
            }
            let name = rig.name();
            if debt == Debt::None {
                assert!(
                    replies > 400,
                    "{name}: each charged 1 once its 499 no longer fit: {replies}"
                );
            } else {
                assert_eq!(replies, CALLERS, "{name}: those that were under way at once");
            }
        }
        assert_eq!(debt_full(&rig), 0);
    }
}
