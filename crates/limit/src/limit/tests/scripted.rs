//! Limits that an operator's script decides. They are settled like any other.

use super::redis_server::Server;
use super::*;
use crate::engine::{ScriptFile, Scripts};
use crate::limit::Ending;
use crate::plan::Script;

const LOCKOUT: &str = include_str!("../../../../../examples/scripts/lockout.lua");

fn scripts(text: &str) -> Scripts {
    Scripts::load(&[ScriptFile {
        name: "lockout".into(),
        path: "lockout.lua".into(),
        text: text.into(),
    }])
    .unwrap()
}

fn limiter(engine: &Arc<Engine>, scripts: Scripts) -> Limiter {
    Limiter::new(
        Settings { deadline: TEST_TIMEOUT, scripts, ..Settings::default() },
        Arc::clone(engine),
        Clock::virtual_at(START_US),
        Metrics::new(1),
    )
}

fn tries(amount: i64) -> Limit {
    let arguments = [amount, 60_000_000, 300_000_000].into_iter().collect();
    Limit::new("login", "k", Algorithm::Script(Script { name: "lockout".into(), arguments }))
}

#[tokio::test]
async fn an_edited_script_starts_afresh_and_edited_numbers_do_not() {
    let settings = EngineSettings::Embedded(EmbeddedSettings::new(10_000));
    let engine =
        Arc::new(Engine::build(&settings, Clock::virtual_at(START_US), &Metrics::new(1)).unwrap());
    let scope = scope("public", OnStoreError::Deny);
    let first = limiter(&engine, scripts(LOCKOUT));
    let left = async |limiter: &Limiter, limit: &Limit| match limiter
        .take(&scope, &plan(std::slice::from_ref(limit)))
        .await
    {
        Take::Granted(outcome, _) => outcome.limits[0].remaining,
        other => panic!("{other:?}"),
    };
    assert_eq!(left(&first, &tries(5)).await, 4);
    assert_eq!(left(&first, &tries(7)).await, 5, "of seven now two are taken");
    // The same text, loaded again, uses the same counters.
    assert_eq!(left(&limiter(&engine, scripts(LOCKOUT)), &tries(7)).await, 4);
    let edited = limiter(&engine, scripts(&format!("-- edited\n{LOCKOUT}")));
    assert_eq!(left(&edited, &tries(7)).await, 6);
}

#[tokio::test]
async fn units_that_a_script_took_are_given_back_and_its_retry_is_reported() {
    let settings = EngineSettings::Embedded(EmbeddedSettings::new(10_000));
    let engine =
        Arc::new(Engine::build(&settings, Clock::virtual_at(START_US), &Metrics::new(1)).unwrap());
    let (scope, limiter) =
        (scope("public", OnStoreError::Deny), limiter(&engine, scripts(LOCKOUT)));
    let limits = plan(&[refunded(tries(2), Refund::Unsent)]);
    let (_, unsent) = granted(limiter.take(&scope, &limits).await);
    unsent.settle(Ending::Unsent, &[]);
    for _ in 0..2 {
        let (_, grant) = granted(limiter.take(&scope, &limits).await);
        grant.settle(Ending::Completed, &[]);
    }
    let outcome = refused(limiter.take(&scope, &limits).await);
    assert_eq!(outcome.retry_after_us(limits.limits()), Some(300 * SECOND_US));
}

/// Fails while its first argument is 1.
const FAILING: &str = "-- trial: 0
local function take(s1, s2, s3, now, cost, n1)
  if n1 == 1 then error('not today') end
  return 1, s1 + cost, 0, 0, 9, -1, 0, now + 3600000000
end
local function give_back(s1, s2, s3, now, units, taken, n1)
  if n1 == 1 then error('not today') end
  return s1 - units, 0, 0, 1, now + 3600000000
end
return { take = take, give_back = give_back }
";

fn scripted(name: &str, key: &str, argument: i64) -> Limit {
    let arguments = [argument].into_iter().collect();
    Limit::new(name, key, Algorithm::Script(Script { name: "lockout".into(), arguments }))
}

#[tokio::test]
async fn a_shadow_whose_script_fails_takes_no_other_limit_with_it() {
    let server = Server::start();
    let settings = Settings { scripts: scripts(FAILING), ..with_test_timeout() };
    for rig in Rig::both(&server, &settings) {
        for on_store_error in [OnStoreError::Deny, OnStoreError::Allow] {
            let (scope, engine) = (scope("public", on_store_error), rig.name());
            let key = format!("{on_store_error:?}");
            let of_key = |argument| {
                let tried = shadow(scripted("tried", &key, argument));
                plan(&[tried, daily("enforced", &key, 2)])
            };
            for left in [1, 0] {
                let outcome = granted(rig.limiter.take(&scope, &of_key(1)).await).0;
                let [tried, enforced] = &*outcome.limits else { panic!("{outcome:?}") };
                assert_eq!(tried.unmeasured, Some(OnStoreError::Allow), "{engine}");
                assert_eq!((enforced.unmeasured, enforced.remaining), (None, left), "{engine}");
                assert!(!outcome.is_uncounted(of_key(1).limits()), "{engine}");
            }
            let outcome = refused(rig.limiter.take(&scope, &of_key(1)).await);
            assert!(!outcome.limits[1].fits, "{engine}");
            // A refusal takes nothing of the shadow, either.
            let outcome = refused(rig.limiter.take(&scope, &of_key(0)).await);
            assert!(outcome.limits[0].fits, "{engine}");
        }
    }
}

#[tokio::test]
async fn a_script_that_fails_to_give_back_keeps_no_other_limit_from_it() {
    let server = Server::start();
    let settings = Settings { scripts: scripts(FAILING), ..with_test_timeout() };
    for rig in Rig::both(&server, &settings) {
        let refunded = |limit| refunded(limit, Refund::Unsent);
        let limits = |argument| {
            [("a", 0), ("b", argument), ("c", 0)]
                .map(|(name, argument)| refunded(scripted(name, "k", argument)))
                .into_iter()
                .chain([refunded(daily("last", "k", 5))])
                .collect::<Vec<_>>()
        };
        let (_, grant) = granted(rig.take(&limits(0)).await);
        drop(grant);
        let cells: crate::engine::Cells = {
            let plan = plan(&limits(1));
            let shared = &rig.limiter.shared;
            super::super::prepared::with(shared, &rig.scope, &plan, |prepared| {
                (0..4).filter_map(|index| prepared.calls.cell(index).cloned()).collect()
            })
        };
        let at_us = u64::try_from(rig.limiter.shared.clock.wall_us()).unwrap();
        let failed = rig.limiter.shared.engine.give_back(&cells, at_us).await.unwrap_err();
        assert_eq!(failed.cause, crate::engine::Cause::Script);
        assert_eq!(rig.remaining(&daily("last", "k", 5)).await, 5, "{}", rig.name());
    }
}

#[tokio::test]
async fn a_script_that_is_not_there_is_a_store_error() {
    let rig = Rig::embedded();
    let limits = plan(&[tries(5)]);
    assert!(matches!(rig.limiter.take(&rig.scope, &limits).await, Take::Unavailable(_)));
    let (outcome, _grant) =
        granted(rig.limiter.take(&scope("open", OnStoreError::Allow), &limits).await);
    assert!(outcome.limits[0].unmeasured.is_some());
}
