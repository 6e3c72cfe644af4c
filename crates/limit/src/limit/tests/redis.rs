//! On one real Redis: calls that take time, fail, or outlive their request.

use crate::plan::{Debt, Gcra};
use std::future::Future;
use std::pin::Pin;
use std::sync::Barrier;
use std::task::{Context, Waker};

use super::super::keys::PlanDigests;
use super::super::{Ending, local, queue};
use super::redis_server::Server;
use super::*;
use crate::clock::monotonic;
use crate::engine::testing::free_port;

/// Polls a take until its call waits in Redis, and returns the unfinished future.
pub(super) async fn in_mid_take<'a>(
    server: &mut Server,
    rig: &'a Rig,
    limits: &[Limit],
) -> Pin<Box<dyn Future<Output = Take> + Send + 'a>> {
    // Opens a connection and loads the scripts before Redis is held: what waits then is the take
    // itself.
    rig.outcome(&[Limit { name: "warm".into(), ..limits[0].clone() }]).await;
    server.hold();
    let plan = plan(limits);
    let mut take: Pin<Box<dyn Future<Output = Take> + Send>> =
        Box::pin(async move { rig.limiter.take(&rig.scope, &plan).await });
    let began = monotonic();
    while server.held() == 0 {
        assert!(began.elapsed() < TEST_TIMEOUT, "the take was never sent");
        assert!(take.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        tokio::task::yield_now().await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    take
}

#[tokio::test]
async fn a_take_whose_request_is_dropped_is_charged_once_and_settled_as_unsent() {
    let mut server = Server::start();
    let rig = Rig::redis(server.port);
    let limits = [
        daily("never", "k", 5),
        refunded(daily("unsent", "k", 5), Refund::Unsent),
        refunded(daily("error", "t", 5), Refund::UpstreamError),
    ];
    let take = in_mid_take(&mut server, &rig, &limits).await;
    drop(take);
    assert_eq!(rig.limiter.shared.pending(), 1);
    server.release();
    rig.limiter.drain(TEST_TIMEOUT).await;
    assert_eq!(rig.limiter.shared.pending(), 0);
    let mut left = Vec::new();
    for limit in &limits {
        left.push(rig.remaining(limit).await);
    }
    assert_eq!(left, [4, 5, 5]);
}

#[tokio::test]
async fn an_answer_that_nobody_receives_is_settled_as_unsent() {
    let mut server = Server::start();
    let rig = Rig::redis(server.port);
    let limit = refunded(daily("unsent", "k", 5), Refund::Unsent);
    let take = in_mid_take(&mut server, &rig, std::slice::from_ref(&limit)).await;
    server.release();
    assert_eq!(rig.remaining(&limit).await, 4, "the answer waits for its request");
    drop(take);
    rig.limiter.drain(TEST_TIMEOUT).await;
    assert_eq!(rig.remaining(&limit).await, 5);
}

#[tokio::test]
async fn units_that_were_given_back_are_there_for_the_next_take() {
    let server = Server::start();
    let rig = Rig::redis(server.port);
    let limits = [refunded(daily("unsent", "k", 1), Refund::Unsent)];
    for turn in 0..50 {
        match rig.take(&limits).await {
            Take::Granted(_, grant) => grant.settle(Ending::Unsent, &[]),
            other => panic!("take {turn}: {other:?}"),
        }
        if turn == 0 {
            // Redis does not have the script of the first give-back, so it is sent twice.
            rig.limiter.drain(TEST_TIMEOUT).await;
        }
    }
}

/// A roll-back needs a race: the look fitted, and another request took the unit first.
#[tokio::test]
async fn a_roll_back_is_whole_though_its_request_is_gone() {
    let mut server = Server::start();
    let (rig, other) = (Rig::redis(server.port), Rig::redis(server.port));
    other.outcome(&[daily("warm", "k", 1)]).await;
    for pair in [["a", "b"], ["c", "d"], ["e", "f"]] {
        let [first, second] = in_order(&rig, pair);
        let (open, last) = (Limit { cost: 2, ..daily("open", first, 5) }, daily("last", second, 1));
        let take = in_mid_take(&mut server, &rig, &[open.clone(), last.clone()]).await;
        // Queued in Redis behind the first tag's take, before the take of the second tag.
        let (taken, ()) = tokio::join!(other.outcome(std::slice::from_ref(&last)), async {
            while server.held() < 2 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            drop(take);
            server.release();
        });
        assert!(taken.admitted);
        rig.limiter.drain(TEST_TIMEOUT).await;
        assert_eq!(rig.remaining(&open).await, 5, "{pair:?}");
        assert!(
            !server.keys().iter().any(|key| key.contains("open")),
            "{pair:?}: {:?}",
            server.keys()
        );
    }
}

/// The keys in the order in which their tags are taken.
fn in_order<'k>(rig: &Rig, mut keys: [&'k str; 2]) -> [&'k str; 2] {
    keys.sort_by_key(|key| PlanDigests::new(&rig.limiter.shared.digests).of(key));
    keys
}

/// A shared limit is not drained by requests that another limit refuses, however many.
#[tokio::test]
async fn refused_requests_drain_no_bucket_that_others_share() {
    let server = Server::start();
    let rig = Arc::new(Rig::redis(server.port));
    for pair in [["a", "b"], ["b", "a"]] {
        let shared = Limit::new(
            "shared",
            pair[0],
            Algorithm::Gcra(Gcra {
                burst: 1_000,
                rate: Rate { amount: 1_000, per_ms: 1_000 },
                debt: Debt::None,
            }),
        );
        let own = daily("own", pair[1], 1);
        assert!(rig.outcome(&[shared.clone(), own.clone()]).await.admitted);
        while rig.remaining(&shared).await < 1_000 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let refused = |_| {
            let (rig, limits) = (Arc::clone(&rig), [shared.clone(), own.clone()]);
            tokio::spawn(async move {
                for _ in 0..100 {
                    assert!(!rig.outcome(&limits).await.admitted);
                }
                rig.remaining(&limits[0]).await
            })
        };
        let strangers: Vec<_> = (0..32).map(refused).collect();
        for stranger in strangers {
            assert_eq!(stranger.await.unwrap(), 1_000, "{pair:?}");
        }
    }
}

/// Invented keys create no counters if another limit refuses, whichever tag comes first.
#[tokio::test]
async fn refusals_under_another_tag_leave_no_key() {
    let mut server = Server::start();
    for rig in Rig::both(&server, &with_test_timeout()) {
        let address = daily("address", "203.0.113.7", 1);
        assert!(rig.outcome(std::slice::from_ref(&address)).await.admitted);
        for key in 0..500 {
            let limits = [daily("key", &format!("made-up-{key}"), 5), address.clone()];
            assert!(!rig.outcome(&limits).await.admitted);
        }
        let keys = if rig.name() == "redis" {
            server.keys().len() as i64
        } else {
            rig.metrics.gauge(names::EMBEDDED_KEYS).get()
        };
        assert_eq!(keys, 1, "{}", rig.name());
    }
}

#[tokio::test]
async fn after_a_storm_of_dropped_requests_the_counters_equal_what_was_kept() {
    let server = Server::start();
    let rig = Arc::new(Rig::redis(server.port));
    // The second limit is smaller, so some requests are refused and rolled back.
    let limits = [("a", 400), ("b", 100)]
        .map(|(key, amount)| refunded(daily(key, key, amount), Refund::Unsent));
    let (mut kept, mut dropped) = (0, 0);
    for _ in 0..40 {
        let requests: Vec<_> = (0..16)
            .map(|request| {
                tokio::spawn(perhaps_dropped(Arc::clone(&rig), limits.clone(), request % 2 == 0))
            })
            .collect();
        for request in requests {
            match request.await.unwrap() {
                Some(Take::Granted(..)) => kept += 1,
                Some(_) => {}
                None => dropped += 1,
            }
        }
    }
    rig.limiter.drain(TEST_TIMEOUT).await;
    assert_eq!(
        [rig.remaining(&limits[0]).await, rig.remaining(&limits[1]).await],
        [400 - kept, 100 - kept]
    );
    assert!(kept > 0 && dropped > 0, "{kept} kept, {dropped} dropped");
    assert!(rig.count(names::LIMIT_REFUSALS, &["public", "b"]) > 0);
}

/// A take that runs to completion, or is dropped after a random number of yields.
async fn perhaps_dropped(rig: Arc<Rig>, limits: [Limit; 2], complete: bool) -> Option<Take> {
    let yields = if complete { usize::MAX } else { fastrand::usize(1..60) };
    let gone = async {
        for _ in 0..yields {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        take = rig.take(&limits) => Some(take),
        () = gone => None,
    }
}

#[tokio::test]
async fn two_tags_are_rolled_back_before_the_refusal_is_answered() {
    let server = Server::start();
    let rig = Rig::redis(server.port);
    for (one, other) in [("a", "b"), ("b", "a"), ("c", "d"), ("e", "f")] {
        let (open, full) = (daily("open", one, 5), daily("full", other, 1));
        assert!(rig.outcome(std::slice::from_ref(&full)).await.admitted);
        for _ in 0..3 {
            let outcome = refused(rig.take(&[open.clone(), full.clone()]).await);
            assert_eq!(remaining(&outcome), [5, 0], "{one} {other}");
        }
        assert_eq!(rig.remaining(&open).await, 5, "{one} {other}");
    }
}

#[test]
fn eight_takers_over_two_limits_of_one_under_two_tags_admit_exactly_one() {
    const ROUNDS: usize = 40;
    let server = Server::start();
    let start = Barrier::new(8);
    let admitted: Vec<[bool; ROUNDS]> = std::thread::scope(|threads| {
        let takers: Vec<_> = (0..8)
            .map(|taker| {
                let (start, port) = (&start, server.port);
                // Each is like a proxy of its own, with its own engine and connection.
                threads.spawn(move || {
                    let runtime =
                        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                    let rig = Rig::redis(port);
                    runtime.block_on(rig.outcome(&[daily("warm", "k", 100)]));
                    std::array::from_fn(|round| {
                        let mut limits = [
                            daily("a", &format!("one {round}"), 1),
                            daily("b", &format!("other {round}"), 1),
                        ];
                        limits.rotate_left(taker % 2);
                        start.wait();
                        runtime.block_on(rig.outcome(&limits)).admitted
                    })
                })
            })
            .collect();
        takers.into_iter().map(|taker| taker.join().unwrap()).collect()
    });
    for round in 0..ROUNDS {
        assert_eq!(admitted.iter().filter(|taker| taker[round]).count(), 1, "round {round}");
    }
}

#[tokio::test]
async fn a_counters_name_holds_the_digests_and_what_it_belongs_to() {
    let mut server = Server::start();
    let rig = Rig { scope: scope("{x}", OnStoreError::Deny), ..Rig::redis(server.port) };
    let limits =
        [daily("l", "a\0{b}", 1), Limit { tag: Some("}{".into()), ..daily("m", "a\0{b}", 1) }];
    assert!(rig.outcome(&limits).await.admitted);
    let digests = &rig.limiter.shared.digests;
    let (key, tag) = (digests.of(&[b"a\0{b}"]), digests.of(&[b"}{"]));
    let mut expected = [
        format!("weir:1:{{{key:032x}}}:%7Bx%7D/l/fw2-86400000c:{key:032x}"),
        format!("weir:1:{{{tag:032x}}}:%7Bx%7D/m/fw2-86400000c:{key:032x}"),
    ];
    let mut keys = server.keys();
    keys.sort();
    expected.sort();
    assert_eq!(keys, expected);
}

#[tokio::test]
async fn proxies_with_one_secret_share_counters_and_others_do_not() {
    let server = Server::start();
    let limit = [daily("l", "k", 1)];
    let rig = |secret| Rig::new(&on_redis(server.port), secret);
    assert!(rig(Some("s")).outcome(&limit).await.admitted);
    assert!(!rig(Some("s")).outcome(&limit).await.admitted);
    assert!(rig(Some("t")).outcome(&limit).await.admitted);
    assert!(rig(None).outcome(&limit).await.admitted);
}

#[tokio::test]
async fn settling_is_queued_and_a_drain_waits_for_it() {
    let server = Server::start();
    let rig = Rig::redis(server.port);
    let limit = refunded(Limit { cost: 4, ..daily("l", "k", 100) }, Refund::BySettle);
    for units in [-3, -1, 5, 200] {
        let adjustment = Adjustment { limit: "l".into(), change: Change::Units(units) };
        granted(rig.take(std::slice::from_ref(&limit)).await)
            .1
            .settle(Ending::Completed, &[adjustment]);
    }
    rig.limiter.drain(TEST_TIMEOUT).await;
    assert_eq!(rig.remaining(&limit).await, 100 - 16 + 4 - 5);
    assert_eq!(rig.count(names::SETTLES_FAILED, &["charge_refused"]), 1);
    assert_eq!(rig.count(names::SETTLES_FAILED, &["give_back"]), 0);
}

#[tokio::test]
async fn a_dead_store_denies_or_lets_through_uncounted_as_the_limits_say() {
    let rig = Rig::redis(free_port());
    let limit = daily("l", "k", 5);
    assert!(matches!(rig.take(std::slice::from_ref(&limit)).await, Take::Unavailable(_)));
    let stricter =
        [limit.clone(), Limit { on_store_error: Some(OnStoreError::Deny), ..daily("m", "k", 5) }];
    let rig = Rig { scope: scope("public", OnStoreError::Allow), ..rig };
    assert!(matches!(rig.take(&stricter).await, Take::Unavailable(_)));
    assert_eq!(rig.count(names::STORE_DEGRADED, &["public"]), 0);

    let (outcome, grant) = granted(rig.take(&[limit.clone(), daily("m", "other", 5)]).await);
    assert!(
        outcome.admitted
            && outcome
                .limits
                .iter()
                .all(|limit| limit.unmeasured == Some(OnStoreError::Allow) && limit.fits)
    );
    assert_eq!(rig.count(names::STORE_DEGRADED, &["public"]), 1);
    // Nothing was charged, so nothing is given back.
    grant.settle(Ending::Unsent, &[]);
    assert_eq!(rig.limiter.shared.pending(), 0);

    let closed = [Limit::new("closed", "k", window(0, 1_000)), limit];
    assert_eq!(refused(rig.take(&closed).await).retry_after_us(&closed), None, "asks no store");
}

#[tokio::test]
async fn a_dead_store_is_nothing_to_a_shadow() {
    let rig = Rig::redis(free_port());
    let (outcome, _) = granted(rig.take(&[shadow(daily("l", "k", 5))]).await);
    assert!(outcome.admitted);
    assert_eq!(rig.count(names::STORE_DEGRADED, &["public"]), 0);
}

#[tokio::test]
async fn settling_calls_that_a_dead_store_loses_are_counted() {
    let mut server = Server::start();
    let rig = Rig::redis(server.port);
    let limit = refunded(daily("l", "k", 5), Refund::Unsent);
    let (_, grant) = granted(rig.take(std::slice::from_ref(&limit)).await);
    server.hold();
    drop(server);
    grant.settle(Ending::Unsent, &[Adjustment { limit: "l".into(), change: Change::Units(1) }]);
    rig.limiter.drain(TEST_TIMEOUT).await;
    assert_eq!(
        (
            rig.count(names::SETTLES_FAILED, &["give_back"]),
            rig.count(names::SETTLES_FAILED, &["charge"])
        ),
        (1, 1)
    );
}

#[tokio::test]
async fn more_takes_than_a_worker_may_have_under_way_follow_the_fallback() {
    let server = Server::start();
    let rig = Rig::redis(server.port);
    let limit = daily("l", "k", 5);
    let worker = local::with(&rig.limiter.shared, |local| Arc::clone(local.worker()));
    assert!((0..queue::TAKES_IN_FLIGHT_MAX).all(|_| worker.begin_take()));
    assert!(matches!(rig.take(std::slice::from_ref(&limit)).await, Take::Unavailable(_)));
    assert_eq!(rig.count(names::STORE_ERRORS, &["overload"]), 1);
    worker.end_take();
    assert!(rig.outcome(&[limit]).await.admitted);
}

#[tokio::test]
async fn a_drain_gives_up_after_its_grace() {
    let mut server = Server::start();
    let rig = Rig::redis(server.port);
    let take = in_mid_take(&mut server, &rig, &[daily("l", "k", 5)]).await;
    rig.limiter.drain(Duration::from_millis(10)).await;
    assert_eq!(rig.limiter.shared.pending(), 1);
    server.release();
    drop(granted(take.await));
    rig.limiter.drain(TEST_TIMEOUT).await;
    assert_eq!(rig.limiter.shared.pending(), 0);
}

/// Scripts that Redis has run.
fn scripts(server: &mut Server) -> u64 {
    let text = server.command(&["INFO", "commandstats"]);
    let calls = text.lines().filter(|line| line.starts_with("cmdstat_eval"));
    calls
        .filter_map(|line| line.split("calls=").nth(1)?.split(',').next()?.parse::<u64>().ok())
        .sum()
}

#[tokio::test]
async fn limits_that_had_plenty_a_moment_ago_are_taken_at_once() {
    let mut server = Server::start();
    let rig = Rig::redis(server.port);
    let both = [daily("client", "k", 1_000), daily("all", "everybody", 1_000)];
    let mut calls = async |times: u64| {
        let plan = plan(&both);
        let before = scripts(&mut server);
        for _ in 0..times {
            let (outcome, _) = granted(rig.limiter.take(&rig.scope, &plan).await);
            assert!(outcome.admitted);
        }
        scripts(&mut server) - before
    };
    // Redis does not know the scripts yet.
    calls(1).await;
    // The first one of a plan looks at one of them. Until half is used, each of the others takes
    // both at once, unless the machine rests for a tenth of a second.
    assert_eq!(calls(1).await, 3);
    let many = calls(300).await;
    assert!((600..700).contains(&many), "{many} calls");
    let plan_of_all = plan(&both);
    let rest = async || {
        let mut admitted = 0;
        while let Take::Granted(..) = rig.limiter.take(&rig.scope, &plan_of_all).await {
            admitted += 1;
        }
        admitted
    };
    assert_eq!(rest().await, 698);
}

/// Another client uses up what was plenty: what is taken of the other limit comes back.
#[tokio::test]
async fn what_was_taken_at_once_is_given_back_where_another_limit_refuses() {
    let server = Server::start();
    for rig in Rig::both(&server, &with_test_timeout()) {
        let (client, all) = (daily("client", "k", 100), daily("all", "everybody", 100));
        let both = plan(&[client.clone(), all.clone()]);
        let other = plan(&[Limit { cost: 99, ..all.clone() }]);
        assert!(matches!(rig.limiter.take(&rig.scope, &both).await, Take::Granted(..)));
        assert!(matches!(rig.limiter.take(&rig.scope, &other).await, Take::Granted(..)));
        for _ in 0..3 {
            let outcome = refused(rig.limiter.take(&rig.scope, &both).await);
            let shown: Vec<u64> = outcome.limits.iter().map(|limit| limit.remaining).collect();
            assert_eq!(shown, [99, 0], "{}", rig.name());
        }
        rig.limiter.drain(TEST_TIMEOUT).await;
        assert_eq!(rig.remaining(&client).await, 99, "{}", rig.name());
    }
}
