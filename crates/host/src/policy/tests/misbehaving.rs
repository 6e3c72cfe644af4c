//! What a bad guest costs: its own call. After each, the same policy serves the next request as if
//! nothing had been.

use super::*;
use crate::clock::thread_cpu;

fn policy(metrics: &Metrics) -> Policy {
    Policy::build(&runtime(), &settings(misbehaving(), "{}"), metrics).unwrap()
}

#[test]
fn each_breach_costs_one_call_and_has_its_cause() {
    let metrics = Metrics::new(1);
    let policy = policy(&metrics);
    let breaches = [
        ("loop", Cause::Time, "interrupt"),
        ("memory", Cause::Memory, "memory"),
        ("recursion", Cause::Stack, ""),
        ("panic", Cause::Trap, "unreachable"),
        ("error", Cause::Guest, "I would rather not"),
        ("big-key", Cause::Answer, ""),
        ("million-limits", Cause::Answer, ""),
        ("long-key", Cause::Answer, "limits[0].key"),
        ("bad-name", Cause::Answer, "limits[0].name"),
        ("two-names", Cause::Answer, "limits[1].name"),
        ("17-limits", Cause::Answer, "limits: 17"),
        (
            "no-zone",
            Cause::Answer,
            "limits[0].algorithm.time-zone: found \"Europe/Atlantis\", expected a name of the IANA database",
        ),
        ("period-0", Cause::Answer, "limits[0].algorithm.rate.per-ms"),
        ("cost", Cause::Answer, "limits[0].cost"),
        ("status-200", Cause::Answer, "denial.status: 200"),
        ("framing", Cause::Answer, "upstream-headers[0]: `transfer-encoding` may not be set"),
        ("host", Cause::Answer, "upstream-headers[0]: `host` may not be set"),
        ("smuggle", Cause::Answer, "upstream-headers[0]: the value of `x-a`"),
        ("header-name", Cause::Answer, "response-headers[0]: its name"),
        ("wide-value", Cause::Answer, "response-headers[0]: the value"),
        ("33-headers", Cause::Answer, "upstream-headers: 33 fields"),
        ("memo", Cause::Answer, "settle-with: 5000 bytes"),
        ("label", Cause::Answer, "labels[0]"),
    ];
    for (how, cause, message) in breaches {
        let error = policy.decide(&[("query", how)]).unwrap_err();
        assert_eq!(error.cause, cause, "{how}: {error}");
        assert!(error.message.contains(message) && error.message.len() < 400, "{how}: {error}");
        assert_eq!(error.policy, "public");
        let next = policy
            .decide(&[("query", "well")])
            .unwrap_or_else(|error| panic!("after {how}: {error}"));
        assert_eq!(plan(&next).limits()[0].key, "k");
    }
    for cause in Cause::ALL {
        let expected = breaches.iter().filter(|(_, each, _)| each == cause).count() as u64;
        assert_eq!(
            metrics.counter(names::POLICY_ERRORS, &["public", cause.label()]).get(),
            expected,
            "{cause:?}"
        );
    }
}

#[test]
fn a_failed_instance_is_discarded_and_one_that_returned_an_error_is_kept() {
    let policy = policy(&Metrics::new(1));
    let ask = |how: &str| policy.decide(&[("query", how)]);
    let calls = || plan(&ask("calls").unwrap()).limits()[0].key.clone();
    assert_eq!(calls(), "1");
    assert!(ask("error").is_err());
    assert_eq!(calls(), "3");
    assert!(ask("panic").is_err());
    assert_eq!(calls(), "1");
    assert!(ask("long-key").is_err());
    assert_eq!(calls(), "1");
}

#[test]
fn a_loop_is_stopped_after_its_cpu_time_and_work_within_it_is_not() {
    let mut settings = settings(misbehaving(), "{}");
    settings.cpu_time = Duration::from_millis(20);
    let policy = build(&settings).unwrap();
    let before = thread_cpu();
    assert_eq!(policy.decide(&[("query", "loop")]).unwrap_err().cause, Cause::Time);
    let spent = thread_cpu() - before;
    // The budget, the uncounted time before the first tick, the one tick of grain, and an instance
    // to start.
    assert!((Duration::from_millis(20)..Duration::from_millis(60)).contains(&spent), "{spent:?}");
    settings.cpu_time = Duration::from_secs(5);
    assert!(build(&settings).unwrap().decide(&[("query", "work")]).is_ok());
}

#[test]
fn an_isolated_guest_is_held_to_the_same_bounds() {
    let mut settings = settings(misbehaving(), "{}");
    settings.isolated = true;
    let policy = build(&settings).unwrap();
    for (how, cause) in [
        ("loop", Cause::Time),
        ("memory", Cause::Memory),
        ("recursion", Cause::Stack),
        ("big-key", Cause::Answer),
    ] {
        assert_eq!(policy.decide(&[("query", how)]).unwrap_err().cause, cause);
        assert!(policy.decide(&[("query", "well")]).is_ok());
    }
}

#[test]
fn threads_fail_apart() {
    let policy = policy(&Metrics::new(4));
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let policy = &policy;
            scope.spawn(move || {
                for round in 0..5 {
                    let how = ["loop", "memory", "panic", "well"][(worker + round) % 4];
                    assert_eq!(policy.decide(&[("query", how)]).is_ok(), how == "well");
                    assert!(policy.decide(&[("query", "well")]).is_ok());
                }
            });
        }
    });
}

#[test]
fn a_full_pool_is_overload_and_passes() {
    // More idle instances than the pool holds can't be had from one thread: take them all by hand.
    let policy = policy(&Metrics::new(1));
    let mut held = Vec::new();
    let full = loop {
        match policy.starter.start() {
            Ok(instance) => held.push(instance),
            Err(unready) => break unready,
        }
        assert!(held.len() <= 1_000);
    };
    assert!(matches!(full, StartError::Failed(Failure { cause: Cause::Overload, .. })), "{full:?}");
    assert_eq!(policy.decide(&[("query", "well")]).unwrap_err().cause, Cause::Overload);
    drop(held);
    assert!(policy.decide(&[("query", "well")]).is_ok());
}

/// Its instances take as long to start as many requests take.
fn slow_policy() -> Policy {
    let mut settings = settings(misbehaving(), r#"{"works_in_configure": true}"#);
    settings.caps.start_cpu_time = Duration::from_secs(5);
    // It is not stopped, however often it fails.
    settings.caps.breaker.failures = 0;
    Policy::build(&runtime(), &settings, &Metrics::new(1)).unwrap()
}

fn wait_until(what: impl Fn() -> bool) {
    let began = crate::clock::monotonic();
    while !what() {
        assert!(began.elapsed() < Duration::from_secs(20));
        std::thread::yield_now();
    }
}

#[test]
fn a_slow_policys_instances_are_started_beside_requests() {
    let policy = slow_policy();
    let started = thread_cpu();
    drop(policy.starter.start().unwrap());
    let one = thread_cpu() - started;
    policy.prepare(1);
    assert_eq!(policy.spare.count(), 2, "for the worker, and one more");
    let decide = |how| policy.decide(&[("query", how)]);
    decide("well").unwrap();
    assert_eq!(policy.spare.count(), 1);
    // The one more is there at once, and is replaced.
    assert_eq!(decide("panic").unwrap_err().cause, Cause::Trap);
    decide("well").unwrap();
    wait_until(|| policy.spare.count() == 1);
    let started = thread_cpu();
    let mut overloaded = 0;
    for _ in 0..50 {
        match decide("panic").unwrap_err().cause {
            Cause::Overload => overloaded += 1,
            cause => assert_eq!(cause, Cause::Trap),
        }
    }
    let took = thread_cpu() - started;
    assert!(overloaded > 0 && took < 25 * one, "{overloaded} of 50 in {took:?}, {one:?} each");
    wait_until(|| decide("well").is_ok());
    wait_until(|| policy.spare.count() >= 1);
}

#[test]
fn a_slow_policy_that_was_not_prepared_starts_its_instances_itself() {
    let policy = slow_policy();
    for _ in 0..3 {
        assert_eq!(policy.decide(&[("query", "panic")]).unwrap_err().cause, Cause::Trap);
    }
}

#[test]
fn a_label_or_an_amount_that_comes_twice_breaks_the_contract() {
    let pairs = |names: &[&str]| -> Vec<(String, String)> {
        names.iter().map(|name| ((*name).into(), "x".into())).collect()
    };
    let settle = |labels: &[&str], amounts: &[&str]| {
        answer::settlement(abi::types::Settlement {
            adjustments: Vec::new(),
            labels: pairs(labels),
            amounts: amounts.iter().map(|name| ((*name).into(), 1)).collect(),
            options: Vec::new(),
        })
    };
    assert!(settle(&["a", "b"], &["a", "b"]).is_ok());
    let again = |what: &str| format!("{what}: found `a` a second time, expected it once");
    assert_eq!(settle(&["a", "b", "a"], &[]).unwrap_err(), again("labels"));
    assert_eq!(settle(&[], &["a", "a"]).unwrap_err(), again("amounts"));
}
