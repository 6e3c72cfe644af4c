//! Counting in this process while the store fails. Redis refuses every write here, for lack of
//! memory, until it is given some.

use super::super::{Ending, Share};
use super::redis_server::Server;
use super::settling::algorithms;
use super::*;
use crate::clock::monotonic;
use crate::plan::Concurrency;

fn away(server: &mut Server) {
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
}

fn back(server: &mut Server) {
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
}

fn with_share(server: &Server, share: &str) -> Rig {
    let local_share = Share::parse(share).unwrap();
    let settings = Settings { local_share, ..with_test_timeout() };
    let mut rig = Rig::with(&on_redis(server.port), settings);
    rig.scope = scope("public", OnStoreError::Local);
    rig
}

/// The algorithms of which each proxy can count a share. Turns in a leaky bucket are neither given
/// back nor handed back.
fn shared_out(amount: u64) -> impl Iterator<Item = Algorithm> {
    let all = algorithms(amount).into_iter();
    all.filter(|it| it.share(Share::WHOLE).is_some() && !it.queues())
}

async fn drain(rig: &Rig, limit: &Limit) -> u64 {
    let mut admitted = 0;
    while rig.admits(limit).await {
        admitted += 1;
    }
    admitted
}

/// Asks from each proxy until this many units are left: with an answer of Redis, a proxy charges
/// what it owes there.
async fn until_left(proxies: &[Rig], limit: &Limit, units: u64) {
    let began = monotonic();
    loop {
        let mut left = 0;
        for proxy in proxies {
            left = proxy.remaining(limit).await;
        }
        if left == units {
            return;
        }
        assert!(began.elapsed() < TEST_TIMEOUT, "{left} left, not {units}: {limit:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn three_proxies_without_their_store_admit_the_quota_together() {
    let mut server = Server::start();
    let proxies = [(); 3].map(|()| with_share(&server, "1/3"));
    let mut seen = 0;
    for algorithm in shared_out(30) {
        let limit = Limit::new("shared", algorithm.name(), algorithm.clone());
        for proxy in &proxies {
            assert!(proxy.admits(&Limit { cost: 2, ..limit.clone() }).await);
        }
        away(&mut server);
        let (outcome, _grant) = granted(proxies[0].take(std::slice::from_ref(&limit)).await);
        assert!(outcome.is_local(std::slice::from_ref(&limit)), "{outcome:?}");
        assert_eq!((outcome.limits[0].remaining, outcome.limits[0].unmeasured), (9, None));
        let mut admitted = 1;
        for proxy in &proxies {
            admitted += drain(proxy, &limit).await;
        }
        assert_eq!(admitted, 30, "{}: a third each", limit.algorithm.name());
        let refused = refused(proxies[0].take(std::slice::from_ref(&limit)).await);
        assert!(refused.limits[0].retry_after_us.is_some(), "{refused:?}");
        back(&mut server);
        // Redis had admitted 6. With what the proxies admitted nothing is left.
        until_left(&proxies, &limit, 0).await;
        seen += 1;
    }
    assert_eq!(seen, 6);
}

#[tokio::test]
async fn a_few_units_are_handed_back_as_they_are() {
    let mut server = Server::start();
    let rig = with_share(&server, "1/2");
    for algorithm in shared_out(30) {
        let limit =
            refunded(Limit::new("few", algorithm.name(), algorithm.clone()), Refund::Unsent);
        assert!(rig.admits(&Limit { cost: 7, ..limit.clone() }).await);
        away(&mut server);
        assert!(rig.admits(&Limit { cost: 4, ..limit.clone() }).await);
        // Nothing was sent, so nothing is owed.
        let unsent = rig.grant(&Limit { cost: 5, ..limit.clone() }).await;
        unsent.settle(Ending::Unsent, &[]);
        assert_eq!(rig.remaining(&limit).await, 11, "{}", limit.algorithm.name());
        back(&mut server);
        until_left(std::slice::from_ref(&rig), &limit, 30 - 7 - 4).await;
    }
}

#[tokio::test]
async fn units_given_back_after_they_were_handed_back_reach_redis() {
    let mut server = Server::start();
    let rig = with_share(&server, "1/1");
    // A log's units have names, which they lose when they are handed back.
    for algorithm in shared_out(30).filter(|it| !it.keeps_members()) {
        let limit =
            refunded(Limit::new("late", algorithm.name(), algorithm.clone()), Refund::BySettle);
        assert!(rig.admits(&Limit { cost: 3, ..limit.clone() }).await);
        away(&mut server);
        let reserved = rig.grant(&Limit { cost: 20, ..limit.clone() }).await;
        back(&mut server);
        until_left(std::slice::from_ref(&rig), &limit, 30 - 3 - 20).await;
        let unused = Adjustment { limit: "late".into(), change: Change::Units(-15) };
        reserved.settle(Ending::Completed, &[unused]);
        until_left(std::slice::from_ref(&rig), &limit, 30 - 3 - 5).await;
    }
}

#[tokio::test]
async fn units_that_redis_may_have_are_not_given_back_from_those_of_others() {
    let mut server = Server::start();
    let settings = Settings { deadline: Duration::from_millis(100), ..Settings::default() };
    let mut rig = Rig::with(&on_redis(server.port), settings);
    rig.scope = scope("public", OnStoreError::Local);
    let limit = refunded(daily("window", "k", 30), Refund::BySettle);
    let of = |cost| Limit { cost, ..limit.clone() };
    assert!(rig.admits(&of(1)).await);
    // The first times out: Redis may have counted it, and so this process does not charge it there.
    server.hold();
    let unknown = rig.grant(&of(3)).await;
    away(&mut server);
    server.release();
    let owed = rig.grant(&of(5)).await;
    let unused = Adjustment { limit: "window".into(), change: Change::Units(-3) };
    unknown.settle(Ending::Completed, &[unused]);
    back(&mut server);
    until_left(std::slice::from_ref(&rig), &limit, 30 - 1 - 5).await;
    drop(owed);
}

#[tokio::test]
async fn a_charge_that_was_refused_here_is_not_charged_there() {
    let mut server = Server::start();
    let rig = with_share(&server, "1/2");
    for algorithm in shared_out(30) {
        let limit = Limit::new("refused", algorithm.name(), algorithm.clone());
        assert!(rig.admits(&Limit { cost: 5, ..limit.clone() }).await);
        away(&mut server);
        let charge = |units| Adjustment { limit: "refused".into(), change: Change::Units(units) };
        // Of this proxy's share of 15, 10 are used: 4 fit, and 9 don't.
        let grant = rig.grant(&Limit { cost: 10, ..limit.clone() }).await;
        grant.settle(Ending::Completed, &[charge(9)]);
        rig.grant(&Limit { cost: 1, ..limit.clone() })
            .await
            .settle(Ending::Completed, &[charge(3)]);
        back(&mut server);
        until_left(std::slice::from_ref(&rig), &limit, 30 - 5 - 10 - 1 - 3).await;
    }
}

#[tokio::test]
async fn handing_back_runs_no_limit_into_debt() {
    let mut server = Server::start();
    let (rig, other) = (with_share(&server, "1/1"), with_share(&server, "1/1"));
    for algorithm in shared_out(30) {
        let Some(algorithm) = algorithm.clone().with_debt(Debt::Allowance) else { continue };
        let limit = Limit::new("debt", algorithm.name(), algorithm.clone());
        assert!(rig.admits(&Limit { cost: 1, ..limit.clone() }).await);
        away(&mut server);
        assert!(rig.admits(&Limit { cost: 29, ..limit.clone() }).await);
        back(&mut server);
        // What the other one has charged meanwhile leaves room for nine.
        assert!(other.admits(&Limit { cost: 20, ..limit.clone() }).await);
        until_left(std::slice::from_ref(&rig), &limit, 0).await;
        // Out of debt, one unit is back after one period's share of it.
        let refused = refused(other.take(std::slice::from_ref(&limit)).await);
        let most_us = limit.algorithm.rate().unwrap().per_ms * 1_000;
        let wait_us = refused.limits[0].retry_after_us.unwrap();
        assert!(wait_us <= most_us, "{}: {wait_us} us", limit.algorithm.name());
    }
}

#[tokio::test]
async fn a_plan_with_several_tags_is_counted_all_or_nothing() {
    let mut server = Server::start();
    let rig = with_share(&server, "1/1");
    let [wide, narrow] = [daily("wide", "a", 10), daily("narrow", "b", 3)];
    assert!(rig.outcome(&[wide.clone(), narrow.clone()]).await.admitted);
    away(&mut server);
    for turn in 0..5 {
        let outcome = rig.outcome(&[wide.clone(), narrow.clone()]).await;
        assert_eq!(outcome.admitted, turn < 3, "{outcome:?}");
    }
    assert_eq!(rig.remaining(&wide).await, 7, "what was refused took nothing");
    back(&mut server);
    until_left(std::slice::from_ref(&rig), &wide, 10 - 1 - 3).await;
}

#[tokio::test]
async fn limits_that_refuse_nobody_keep_none_from_being_counted() {
    let mut server = Server::start();
    let rig = with_share(&server, "1/1");
    let in_flight = Algorithm::Concurrency(Concurrency { amount: 5 });
    let beside = shadow(Limit::new("shadow", "k", in_flight));
    let limits = [daily("counted", "k", 2), beside];
    assert!(rig.outcome(&limits).await.admitted);
    away(&mut server);
    for turn in 0..3 {
        let outcome = rig.outcome(&limits).await;
        assert_eq!((outcome.admitted, outcome.limits[0].is_local), (turn < 2, true), "{outcome:?}");
        assert!(outcome.limits[1].unmeasured.is_some() && outcome.limits[1].fits, "{outcome:?}");
    }
}

#[tokio::test]
async fn limits_that_no_proxy_can_count_alone_are_denied() {
    let mut server = Server::start();
    let rig = with_share(&server, "1/2");
    let alone = algorithms(30).into_iter().filter(|it| it.share(Share::WHOLE).is_none());
    let mut denied: Vec<Limit> =
        alone.map(|it| Limit::new("alone", it.name(), it.clone())).collect();
    denied.push(Limit::new("permits", "p", Algorithm::Concurrency(Concurrency { amount: 5 })));
    denied.push(Limit { on_store_error: Some(OnStoreError::Deny), ..daily("strict", "s", 5) });
    for limit in &denied {
        assert!(rig.admits(limit).await, "{limit:?}");
    }
    away(&mut server);
    for limit in &denied {
        let take = rig.take(std::slice::from_ref(limit)).await;
        assert!(matches!(take, Take::Unavailable(_)), "{limit:?}: {take:?}");
        // Nor is a limit counted that is decided together with it.
        let beside = Limit { name: "beside".into(), ..daily("beside", &limit.key, 5) };
        let both = rig.take(&[beside, limit.clone()]).await;
        assert!(matches!(both, Take::Unavailable(_)), "{limit:?}: {both:?}");
    }
    assert!(denied.len() >= 4, "{denied:?}");
}
