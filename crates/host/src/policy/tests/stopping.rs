//! Policies that keep failing are stopped; those whose clients send what fails are not.

use super::*;
use crate::clock::monotonic;

const PAUSE: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(30);

fn policy(metrics: &Metrics) -> Policy {
    let mut settings = settings(misbehaving(), "{}");
    settings.caps.breaker =
        BreakerSettings { failures: 5, time: PAUSE, time_max: Duration::from_millis(200) };
    Policy::build(&runtime(), &settings, metrics).unwrap()
}

fn ask(policy: &Policy, how: &str) -> Result<(), Cause> {
    policy.decide(&[("query", how)]).map(drop).map_err(|error| error.cause)
}

/// The policy has answered this, as far as its breaker knows: trials will fail.
fn answered(policy: &Policy, how: &str) {
    for _ in 0..2 {
        policy.breaker.want_sample();
        policy.breaker.succeeded(Turn::Call, &[("query", how)]);
    }
}

#[test]
fn clients_cannot_stop_a_policy_that_works_for_others() {
    let metrics = Metrics::new(1);
    let policy = policy(&metrics);
    for first in [true, false] {
        for _ in 0..100 {
            assert_eq!(ask(&policy, "panic"), Err(Cause::Trap));
            assert_eq!(policy.state(), PolicyState::Running, "first: {first}");
        }
        // Before this, nothing has been answered: the trials were with no facts.
        assert_eq!(ask(&policy, "well"), Ok(()));
    }
    for _ in 0..100 {
        assert_eq!(ask(&policy, "error"), Err(Cause::Guest));
    }
    assert_eq!(ask(&policy, "well"), Ok(()));
    let stats = policy.stats();
    assert_eq!((stats.calls, stats.errors, stats.not_called), (303, 300, 0));
    assert_eq!(metrics.counter(names::POLICY_STOPS, &["public"]).get(), 0);
}

#[test]
fn a_policy_that_fails_on_what_it_answered_before_is_stopped_and_resumed() {
    let metrics = Metrics::new(1);
    let policy = policy(&metrics);
    answered(&policy, "panic");
    for _ in 0..4 {
        assert_eq!(ask(&policy, "panic"), Err(Cause::Trap));
    }
    assert_eq!(policy.state(), PolicyState::Running);
    assert_eq!(ask(&policy, "panic"), Err(Cause::Trap));
    assert_eq!(policy.state(), PolicyState::Stopped);
    let started = monotonic();
    let before = policy.stats().calls;
    let error = policy.decide(&[("query", "well")]);
    // On a machine that was busy for 50 ms this one may have been the probe.
    if started.elapsed() < PAUSE
        && let Err(error) = error
    {
        assert_eq!(error.cause, Cause::Stopped);
        assert_eq!(policy.stats().calls, before, "the guest was not called");
        assert!(policy.stats().stopped && policy.stats().not_called > 0);
    }
    while ask(&policy, "well") != Ok(()) {
        assert!(started.elapsed() < PATIENCE, "it is never called again");
        std::thread::yield_now();
    }
    assert_eq!(policy.state(), PolicyState::Running);
    assert_eq!(metrics.counter(names::POLICY_STOPS, &["public"]).get(), 1);
    assert!(metrics.counter(names::POLICY_ERRORS, &["public", "stopped"]).get() > 0);
}

#[test]
fn a_probe_that_fails_leaves_it_stopped_unless_a_trial_succeeds() {
    let policy = policy(&Metrics::new(1));
    answered(&policy, "panic");
    while policy.state() == PolicyState::Running {
        let _ = ask(&policy, "panic");
    }
    let probe = || {
        let started = monotonic();
        while ask(&policy, "panic") != Err(Cause::Trap) {
            assert!(started.elapsed() < PATIENCE, "there is no probe");
            std::thread::yield_now();
        }
    };
    probe();
    assert_eq!(policy.state(), PolicyState::Stopped);
    // What fails now is the request, and not the policy.
    answered(&policy, "well");
    assert_eq!(policy.state(), PolicyState::Stopped);
    probe();
    assert_eq!(policy.state(), PolicyState::Running);
}

#[test]
fn settling_goes_on_while_a_policy_is_stopped() {
    let policy = policy(&Metrics::new(1));
    answered(&policy, "panic");
    while policy.state() == PolicyState::Running {
        let _ = ask(&policy, "panic");
    }
    let view = ResponseView {
        outcome: ResponseOutcome::Completed,
        status: 200,
        by_upstream: true,
        facts: Vec::new(),
        limits: vec![LimitResult { name: "a".into(), fits: true, remaining: 1, resets_ms: None }],
    };
    assert!(policy.settle("memo", &view).is_ok());
}

#[test]
fn a_policys_calls_and_failures_are_counted() {
    let module = std::fs::read(guest::misbehaving()).unwrap();
    let metrics = Metrics::new(2);
    let policy =
        Policy::build(&runtime(), &settings(bytes(module.clone()), "{}"), &metrics).unwrap();
    let fresh = policy.stats();
    assert_eq!(fresh.digest, blake3::hash(&module).to_hex().to_string());
    assert_eq!((fresh.calls, fresh.errors, fresh.time_us), (0, 0, 0));
    assert!((64 << 10..32 << 20).contains(&fresh.memory_bytes), "{fresh:?}");
    std::thread::scope(|scope| {
        for worker in 0..2 {
            let policy = &policy;
            scope.spawn(move || {
                crate::telemetry::enter_worker(worker);
                (0..640).for_each(|_| assert_eq!(ask(policy, "well"), Ok(())));
                assert!(ask(policy, "panic").is_err());
            });
        }
    });
    let stats = policy.stats();
    assert_eq!((stats.calls, stats.errors, stats.stopped), (1_282, 2, false));
    assert!((100..60_000_000).contains(&stats.time_us), "{stats:?}");
    assert!(ask(&policy, "memory").is_err());
    assert!(policy.stats().memory_bytes > fresh.memory_bytes);
}

#[test]
fn a_remembered_decision_is_no_call() {
    let policy = client_ip();
    for _ in 0..10 {
        assert!(policy.decide(&[("client-ip", "192.0.2.1")]).is_ok());
    }
    assert_eq!(policy.stats().calls, 1);
}
