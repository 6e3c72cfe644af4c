//! Limits that an operator's script decides. They are settled like any other.

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

#[tokio::test]
async fn a_script_that_is_not_there_is_a_store_error() {
    let rig = Rig::embedded();
    let limits = plan(&[tries(5)]);
    assert!(matches!(rig.limiter.take(&rig.scope, &limits).await, Take::Unavailable(_)));
    let (outcome, _grant) =
        granted(rig.limiter.take(&scope("open", OnStoreError::Allow), &limits).await);
    assert!(outcome.limits[0].unmeasured.is_some());
}
