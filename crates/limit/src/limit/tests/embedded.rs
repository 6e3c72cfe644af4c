//! On the embedded engine, whose clock moves only when a test moves it.

use crate::plan::{Debt, Gcra, TokenBucket};
use std::sync::Barrier;

use super::super::{Ending, local};
use super::*;

/// Pairs of keys whose digests sort in either order.
const PAIRS: [(&str, &str); 6] =
    [("a", "b"), ("b", "a"), ("c", "d"), ("e", "f"), ("g", "h"), ("203.0.113.7", "tenant")];

#[tokio::test]
async fn a_limit_admits_its_amount_and_says_what_remains_and_when_all_is_back() {
    let rig = Rig::embedded();
    let limit = Limit::new("per-minute", "k", window(2, 60_000));
    rig.clock.step(15_000_000);
    let (first, _) = granted(rig.take(std::slice::from_ref(&limit)).await);
    assert_eq!(
        (first.limits[0].remaining, first.limits[0].reset_us, first.limits[0].retry_after_us),
        (1, 45 * SECOND_US, None)
    );
    drop(granted(rig.take(std::slice::from_ref(&limit)).await));
    let third = refused(rig.take(std::slice::from_ref(&limit)).await);
    assert_eq!(
        (third.limits[0].remaining, third.limits[0].retry_after_us),
        (0, Some(45 * SECOND_US))
    );
    rig.clock.step(45_000_000);
    drop(granted(rig.take(&[limit]).await));
    assert_eq!(rig.count(names::LIMIT_REFUSALS, &["public", "per-minute"]), 1);
}

#[tokio::test]
async fn periods_in_milliseconds_answer_in_microseconds() {
    let rig = Rig::embedded();
    let outcome = rig.outcome(&[daily("day", "k", 5)]).await;
    assert_eq!(outcome.limits[0].reset_us, 86_400 * SECOND_US);
}

#[tokio::test]
async fn keys_with_nul_braces_and_colons_are_each_their_own() {
    let rig = Rig { scope: scope("{x}", OnStoreError::Deny), ..Rig::embedded() };
    for key in ["a\0b", "a\0", "a", "{a}", "a}b{", "{}", ":", "", "\u{e9}"] {
        assert!(rig.outcome(&[daily("l", key, 1)]).await.admitted, "{key:?}");
        assert!(!rig.outcome(&[daily("l", key, 1)]).await.admitted, "{key:?}");
    }
}

#[tokio::test]
async fn limits_scopes_and_tags_of_one_key_are_counted_apart() {
    let rig = Rig::embedded();
    assert!(rig.outcome(&[daily("a", "k", 1), daily("b", "k", 1)]).await.admitted);
    assert!(rig.outcome(&[Limit { tag: Some("t".into()), ..daily("a", "k", 1) }]).await.admitted);
    let other = Rig { scope: scope("public@route", OnStoreError::Deny), ..rig };
    assert!(other.outcome(&[daily("a", "k", 1)]).await.admitted);
    assert!(!other.outcome(&[daily("a", "k", 1)]).await.admitted);
}

#[tokio::test]
async fn a_refusal_under_one_tag_charges_nobody() {
    let rig = Rig::embedded();
    let (open, full) = (daily("open", "k", 5), daily("full", "k", 1));
    assert!(rig.outcome(std::slice::from_ref(&full)).await.admitted);
    let outcome = refused(rig.take(&[open.clone(), full]).await);
    assert_eq!(remaining(&outcome), [5, 0], "a limit that fitted shows what is there");
    assert_eq!(rig.remaining(&open).await, 5);
}

#[tokio::test]
async fn a_refusal_under_another_tag_is_rolled_back_whole() {
    let rig = Rig::embedded();
    for (one, other) in PAIRS {
        let (open, full) = (Limit { cost: 2, ..daily("open", one, 5) }, daily("full", other, 1));
        let seen = shadow(daily("seen", one, 5));
        assert!(rig.outcome(std::slice::from_ref(&full)).await.admitted);
        for _ in 0..4 {
            let outcome = refused(rig.take(&[open.clone(), full.clone(), seen.clone()]).await);
            assert_eq!(remaining(&outcome), [5, 0, 5], "{one} {other}");
            assert!(outcome.limits[0].fits && !outcome.limits[1].fits && outcome.limits[2].fits);
        }
        assert_eq!(
            (rig.remaining(&open).await, rig.remaining(&seen).await),
            (5, 5),
            "{one} {other}"
        );
    }
}

#[tokio::test]
async fn retry_after_is_the_longest_over_all_tags() {
    let rig = Rig::embedded();
    for (one, other) in PAIRS {
        let limits = [
            Limit::new("short", one, window(1, 10_000)),
            Limit::new("long", other, window(1, 60_000)),
        ];
        assert!(rig.outcome(&limits).await.admitted);
        let outcome = refused(rig.take(&limits).await);
        assert_eq!(outcome.retry_after_us(&limits), Some(60 * SECOND_US), "{one} {other}");
        assert_eq!(outcome.violated(&limits).count(), 2);
    }
    assert_eq!(rig.count(names::LIMIT_REFUSALS, &["public", "short"]), PAIRS.len() as u64);
}

#[tokio::test]
async fn a_cost_that_is_only_looked_at_is_judged_by_its_size() {
    let rig = Rig::embedded();
    for (one, other) in PAIRS {
        let full = daily("full", one, 1);
        assert!(
            rig.outcome(&[full.clone(), Limit { cost: 6, ..daily("big", other, 10) }])
                .await
                .admitted
        );
        for (cost, fits) in [(4, true), (5, false), (11, false)] {
            let limits = [full.clone(), Limit { cost, ..daily("big", other, 10) }];
            let outcome = refused(rig.take(&limits).await);
            assert_eq!(
                (outcome.limits[1].fits, outcome.limits[1].remaining),
                (fits, 4),
                "{one} {other} {cost}"
            );
            let waits = (cost == 5).then_some(86_400 * SECOND_US);
            assert_eq!(outcome.limits[1].retry_after_us, waits, "{one} {other} {cost}");
        }
    }
}

#[test]
fn eight_takers_over_two_limits_of_one_under_two_tags_admit_exactly_one() {
    let rig = Rig::embedded();
    for round in 0..100 {
        let limits =
            [daily("a", &format!("one {round}"), 1), daily("b", &format!("other {round}"), 1)];
        let start = Barrier::new(8);
        let admitted = std::thread::scope(|threads| {
            let takers: Vec<_> = (0..8)
                .map(|taker| {
                    let (rig, start, mut limits) = (&rig, &start, limits.clone());
                    threads.spawn(move || {
                        // Half of them list the limits in the opposite order.
                        limits.rotate_left(taker % 2);
                        let runtime =
                            tokio::runtime::Builder::new_current_thread().build().unwrap();
                        start.wait();
                        runtime.block_on(rig.outcome(&limits)).admitted
                    })
                })
                .collect();
            takers
                .into_iter()
                .map(|taker| taker.join().unwrap())
                .filter(|admitted| *admitted)
                .count()
        });
        assert_eq!(admitted, 1, "round {round}");
    }
}

#[tokio::test]
async fn an_amount_or_a_burst_of_zero_refuses_for_ever_and_asks_no_counter() {
    let rig = Rig::embedded();
    let rate = Rate { amount: 0, per_ms: 1_000 };
    let closed = [
        window(0, 1_000),
        Algorithm::Gcra(Gcra { burst: 5, rate, debt: Debt::None }),
        Algorithm::TokenBucket(TokenBucket {
            burst: 0,
            rate: Rate { amount: 5, ..rate },
            debt: Debt::None,
        }),
    ];
    for algorithm in closed {
        let limits = [
            daily("open", "k", 3),
            Limit::new("closed", "k", algorithm),
            Limit { cost: 4, ..daily("small", "k", 3) },
        ];
        let outcome = refused(rig.take(&limits).await);
        assert_eq!(outcome.retry_after_us(&limits), None);
        assert_eq!(
            outcome.limits.iter().map(|limit| (limit.fits, limit.remaining)).collect::<Vec<_>>(),
            [(true, 3), (false, 0), (false, 3)]
        );
        assert_eq!(rig.remaining(&limits[0]).await, 3);

        let outcome = granted(rig.take(&[shadow(limits[1].clone())]).await).0;
        assert!(!outcome.limits[0].fits);
    }
    assert_eq!(rig.count(names::LIMIT_REFUSALS, &["public", "closed"]), 3);
    assert_eq!(rig.count(names::LIMIT_WOULD_REFUSE, &["public", "closed"]), 3);
}

#[tokio::test]
async fn a_shadow_counts_what_it_would_refuse_and_is_charged_only_with_all_others() {
    let rig = Rig::embedded();
    let (seen, open, full) =
        (shadow(daily("seen", "k", 2)), daily("open", "k", 9), daily("full", "k", 0));
    for _ in 0..3 {
        drop(granted(rig.take(&[seen.clone(), open.clone()]).await));
    }
    assert_eq!(rig.count(names::LIMIT_WOULD_REFUSE, &["public", "seen"]), 1);
    assert_eq!(rig.count(names::LIMIT_REFUSALS, &["public", "seen"]), 0);
    let fresh = shadow(daily("fresh", "k", 2));
    refused(rig.take(&[fresh.clone(), open, full]).await);
    assert_eq!(rig.remaining(&fresh).await, 2);
}

#[tokio::test]
async fn each_refund_answers_to_its_own_endings() {
    use Ending::{ClientGone, Completed, Unsent, UpstreamFailed, Withdrawn};
    let table = [
        (Refund::Never, [3, 3, 3, 3, 5]),
        (Refund::Unsent, [3, 5, 3, 3, 5]),
        (Refund::UpstreamError, [3, 5, 5, 3, 5]),
        (Refund::BySettle, [3, 3, 3, 3, 5]),
    ];
    for (refund, left) in table {
        let endings = [Completed, Unsent, UpstreamFailed, ClientGone, Withdrawn];
        for (ending, left) in endings.into_iter().zip(left) {
            let rig = Rig::embedded();
            let limit = refunded(Limit { cost: 2, ..daily("l", "k", 5) }, refund);
            let beside = daily("beside", "k", 5);
            granted(rig.take(&[limit.clone(), beside.clone()]).await).1.settle(ending, &[]);
            assert_eq!(
                (rig.remaining(&limit).await, rig.remaining(&beside).await),
                (left, if ending == Withdrawn { 5 } else { 4 }),
                "{refund:?} {ending:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_cancelled_grant_of_one_limit_with_two_keys_gives_both_back() {
    let rig = Rig::embedded();
    let limits = ["a", "b"].map(|key| refunded(daily("l", key, 5), Refund::BySettle));
    let plan = Arc::new(Plan::joined(limits.to_vec()).unwrap());
    granted(rig.limiter.take(&rig.scope, &plan).await).1.cancel();
    for limit in &limits {
        assert_eq!(rig.remaining(limit).await, 5, "{}", limit.key);
    }
}

#[tokio::test]
async fn a_dropped_grant_gives_nothing_back() {
    let rig = Rig::embedded();
    let limit = refunded(daily("l", "k", 5), Refund::UpstreamError);
    drop(granted(rig.take(std::slice::from_ref(&limit)).await));
    assert_eq!(rig.remaining(&limit).await, 4);
}

fn adjustment(units: i64) -> Adjustment {
    Adjustment { limit: "l".into(), change: Change::Units(units) }
}

#[tokio::test]
async fn a_policy_gives_back_at_most_what_was_taken_and_charges_what_fits() {
    for (units, left) in
        [(-1, 13), (-4, 16), (-5, 16), (-(1 << 52), 16), (0, 12), (3, 9), (12, 0), (13, 12)]
    {
        let rig = Rig::embedded();
        let limit = refunded(Limit { cost: 4, ..daily("l", "k", 20) }, Refund::BySettle);
        // A grant does not give back what another request took.
        drop(granted(rig.take(std::slice::from_ref(&limit)).await));
        granted(rig.take(std::slice::from_ref(&limit)).await)
            .1
            .settle(Ending::Completed, &[adjustment(units)]);
        assert_eq!(rig.remaining(&limit).await, left, "{units}");
        assert_eq!(
            rig.count(names::SETTLES_FAILED, &["charge_refused"]),
            u64::from(units == 13),
            "{units}"
        );
    }
}

#[tokio::test]
async fn adjustments_that_cannot_be_are_counted_and_change_nothing() {
    let rig = Rig::embedded();
    let limit = refunded(Limit { cost: 4, ..daily("l", "k", 10) }, Refund::Unsent);
    let wrong = [
        adjustment(-1),
        adjustment((1 << 52) + 1),
        adjustment(i64::MIN),
        Adjustment { limit: "other".into(), change: Change::Units(1) },
    ];
    granted(rig.take(std::slice::from_ref(&limit)).await).1.settle(Ending::Completed, &wrong);
    assert_eq!(rig.remaining(&limit).await, 6);
    assert_eq!(rig.count(names::POLICY_ERRORS, &["public", "answer"]), wrong.len() as u64);
}

#[tokio::test]
async fn giving_back_after_a_refill_never_yields_a_second_burst() {
    let algorithms = [
        Algorithm::Gcra(Gcra {
            burst: 10,
            rate: Rate { amount: 10, per_ms: 1_000 },
            debt: Debt::None,
        }),
        Algorithm::TokenBucket(TokenBucket {
            burst: 10,
            rate: Rate { amount: 10, per_ms: 1_000 },
            debt: Debt::None,
        }),
    ];
    for algorithm in algorithms {
        let rig = Rig::embedded();
        let limit = refunded(Limit { cost: 10, ..Limit::new("l", "k", algorithm) }, Refund::Unsent);
        let (_, grant) = granted(rig.take(std::slice::from_ref(&limit)).await);
        rig.clock.step(1_000_000);
        grant.settle(Ending::Unsent, &[]);
        drop(granted(rig.take(std::slice::from_ref(&limit)).await));
        refused(rig.take(&[Limit { cost: 1, ..limit }]).await);
    }
}

#[tokio::test]
async fn a_period_edited_applies_at_once_and_an_amount_edited_keeps_the_counter() {
    let rig = Rig::embedded();
    let limit =
        |amount, per_ms| Limit { cost: 100, ..Limit::new("l", "k", window(amount, per_ms)) };
    let hourly = limit(100, 3_600_000);
    drop(granted(rig.take(std::slice::from_ref(&hourly)).await));
    refused(rig.take(std::slice::from_ref(&hourly)).await);
    drop(granted(rig.take(&[limit(100, 1_000)]).await));
    rig.clock.step(1_000_000);
    drop(granted(rig.take(&[limit(100, 1_000)]).await));
    assert_eq!(rig.remaining(&limit(150, 3_600_000)).await, 50);
    refused(rig.take(&[limit(150, 3_600_000)]).await);
    drop(granted(rig.take(&[limit(200, 3_600_000)]).await));
}

#[tokio::test]
async fn a_full_engine_follows_the_fallback_and_charges_no_other_tag() {
    let settings = EngineSettings::Embedded(EmbeddedSettings::new(1));
    for (one, other) in PAIRS {
        let rig = Rig::new(&settings, None);
        let limits = [daily("a", one, 5), daily("b", other, 5)];
        assert!(matches!(rig.take(&limits).await, Take::Unavailable(_)));
        assert_eq!(
            (rig.remaining(&limits[0]).await, rig.remaining(&limits[1]).await),
            (5, 5),
            "{one} {other}"
        );

        let open = Rig { scope: scope("public", OnStoreError::Allow), ..rig };
        let (outcome, grant) = granted(open.take(&limits).await);
        assert_eq!(outcome.limits.iter().filter(|limit| limit.unmeasured.is_some()).count(), 1);
        assert_eq!(open.count(names::STORE_DEGRADED, &["public"]), 1);
        grant.settle(Ending::Unsent, &[]);
    }
}

#[tokio::test]
async fn a_workers_cache_is_bounded_and_a_new_scope_is_not_taken_for_an_old_one() {
    let rig = Rig::embedded();
    let space = |scope: &Arc<Scope>, limit: &str| {
        let algorithm = window(1, 1_000);
        local::with(&rig.limiter.shared, |local| {
            local.scope(scope, |known| {
                known.space(scope, limit, &algorithm, &rig.limiter.shared).text.clone()
            })
        })
    };
    for name in 0..5_000 {
        assert_eq!(space(&rig.scope, &name.to_string()), format!("public/{name}/fw2-1000c"));
    }
    for name in 0..5_000 {
        let scope = scope(&format!("s{name}"), OnStoreError::Deny);
        assert_eq!(space(&scope, "l"), format!("s{name}/l/fw2-1000c"));
    }
    for per_ms in 1..200 {
        rig.outcome(&[Limit::new("varies", "k", window(1, per_ms))]).await;
    }
    local::with(&rig.limiter.shared, |local| local.assert_bounded());
}

#[tokio::test]
async fn the_limiter_is_ready_for_any_runtime() {
    fn sent<T: Send>(future: T) -> T {
        future
    }
    let rig = Rig::embedded();
    let plan = plan(&[daily("l", "k", 1)]);
    drop(granted(sent(rig.limiter.take(&rig.scope, &plan)).await));
    sent(rig.limiter.drain(TEST_TIMEOUT)).await;
}

#[test]
fn names_of_scopes_do_not_meet() {
    assert_eq!(Scope::name_of("p", Some("r")), "p@r");
    assert_ne!(Scope::name_of("p@r", None), Scope::name_of("p", Some("r")));
    assert_ne!(Scope::name_of("p@q", Some("r")), Scope::name_of("p", Some("q@r")));
    assert_ne!(Scope::name_of("p%40r", None), Scope::name_of("p@r", None));
}

/// A prepared plan is valid for one limiter and for the scopes of one name. It is prepared again if
/// there are more of them than cache entries.
#[tokio::test]
async fn a_plan_that_several_scopes_and_limiters_charge_finds_the_counters_of_each() {
    let rigs = [Rig::embedded(), Rig::new(&in_memory(), Some("secret"))];
    let plan = plan(&[daily("one", "k", 1), shadow(daily("none", "k", 0))]);
    for admits in [true, false] {
        for rig in &rigs {
            for name in 0..6 {
                // Two of each name, as for routes that share a policy's counters.
                for admits in [admits, false] {
                    let scope = scope(&format!("s{name}"), OnStoreError::Deny);
                    let admitted =
                        matches!(rig.limiter.take(&scope, &plan).await, Take::Granted(..));
                    assert_eq!(admitted, admits, "s{name}");
                }
            }
        }
    }
}

/// Threads that share a plan don't wait for each other, and all take from the same counters.
#[test]
fn threads_that_share_a_plan_share_its_counters() {
    let rig = Rig::embedded();
    let plan = plan(&[daily("one", "k", 1_000), daily("two", "k", 100_000)]);
    let admitted = std::thread::scope(|threads| {
        let take = || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let admitted = |_: &u32| {
                matches!(runtime.block_on(rig.limiter.take(&rig.scope, &plan)), Take::Granted(..))
            };
            (0..1_000).filter(admitted).count()
        };
        let threads: Vec<_> = (0..4).map(|_| threads.spawn(take)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
    });
    assert_eq!(admitted, 1_000);
}
