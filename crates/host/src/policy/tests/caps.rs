//! The message about a cap that was reached names its setting, and a larger cap lets the call pass.

use super::contract::Lines;
use super::*;

fn error(settings: &Settings, how: &str) -> String {
    build(settings).unwrap().decide(&[("query", how)]).unwrap_err().to_string()
}

#[test]
fn a_call_that_reaches_a_cap_names_its_setting() {
    let usual = || settings(misbehaving(), "{}");
    for (how, named) in [
        ("loop", "`cpu_time` (50ms)"),
        ("memory", "`memory` (32MiB)"),
        ("recursion", "`server.policies.stack` (1MiB)"),
        ("big-key", "`answer_bytes` (256KiB)"),
    ] {
        let error = error(&usual(), how);
        assert!(error.contains(named), "{how}: {error}");
    }
    let mut small = usual();
    small.caps.answer_bytes = 16 << 10;
    assert!(error(&small, "17-limits").contains("limits: 17"), "small enough");
    assert!(error(&small, "million-limits").contains("`answer_bytes` (16KiB)"));
    small.memory_bytes = 16 << 20;
    assert!(error(&small, "memory").contains("`memory` (16MiB)"));
    small.cpu_time = Duration::from_millis(5);
    assert!(error(&small, "loop").contains("`cpu_time` (5ms)"));
}

#[test]
fn a_start_that_reaches_a_cap_names_its_setting() {
    let mut looping = settings(misbehaving(), r#"{"loops_in_configure": true}"#);
    looping.caps.start_cpu_time = Duration::from_millis(20);
    let found = build(&looping).unwrap_err();
    assert!(found[0].found.contains("`start_cpu_time` (20ms)"), "{found:?}");
    let mut small = settings(misbehaving(), "{}");
    small.memory_bytes = 64 << 10;
    let found = build(&small).unwrap_err();
    assert_eq!(found[0].setting, "memory");
    assert!(found[0].found.contains("`memory` (64KiB)"), "{found:?}");
    let mut large = settings(misbehaving(), "{}");
    large.caps.module_bytes = 1_000;
    let found = build(&large).unwrap_err();
    assert_eq!(found[0].setting, "module_bytes");
    assert!(found[0].expected.contains("`module_bytes` (1000B)"), "{found:?}");
}

#[test]
fn the_log_is_as_long_as_the_settings_allow() {
    let mut quiet = settings(misbehaving(), "{}");
    quiet.caps.log_lines = 2;
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt().with_writer(lines.clone()).finish();
    let policy = build(&quiet).unwrap();
    tracing::subscriber::with_default(subscriber, || {
        policy.decide(&[("query", "log")]).unwrap();
    });
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    assert!(text.contains("998 lines in one call beyond `log_lines` (2)"), "{text}");
}

#[test]
fn a_full_pool_names_its_setting_and_is_overload() {
    let pool = RuntimeSettings { instances: 2, ..RuntimeSettings::default() };
    let runtime = Runtime::with(&pool, fuzzing::known_facts()).unwrap();
    let metrics = Metrics::new(1);
    let policy = Policy::build(&runtime, &settings(misbehaving(), "{}"), &metrics).unwrap();
    let start = || policy.starter.start().unwrap();
    let held = (start(), start());
    let error = policy.decide(&[("query", "well")]).unwrap_err();
    assert_eq!(error.cause, Cause::Overload);
    assert!(error.message.contains("`server.policies.instances` is 2"), "{error}");
    assert_eq!(metrics.counter(names::POLICY_ERRORS, &["public", "overload"]).get(), 1);
    drop(held);
    assert!(policy.decide(&[("query", "well")]).is_ok());
}

#[test]
fn what_one_thread_keeps_leaves_places_for_others_and_for_a_new_configuration() {
    let pool = RuntimeSettings { instances: 1, unkept_instances: 2, ..RuntimeSettings::default() };
    let runtime = Runtime::with(&pool, fuzzing::known_facts()).unwrap();
    let build = || Policy::build(&runtime, &settings(misbehaving(), "{}"), &Metrics::new(1));
    let policies: Vec<_> = (0..3).map(|_| build().unwrap()).collect();
    let well = |policy: &Policy| policy.decide(&[("query", "well")]).map(|_| ());
    std::thread::scope(|scope| {
        let (done, ended) = std::sync::mpsc::channel::<()>();
        let (called, all) = std::sync::mpsc::channel();
        let policies = &policies;
        scope.spawn(move || {
            called.send(policies.iter().try_for_each(well)).unwrap();
            // It keeps what it may until then.
            let _ = ended.recv();
        });
        assert_eq!(all.recv().unwrap(), Ok(()));
        for policy in policies {
            assert_eq!(well(policy), Ok(()));
        }
        assert!(build().is_ok());
        drop(done);
    });
}

#[test]
fn a_guest_that_is_too_large_for_the_pool_is_told_the_caps() {
    let pool = RuntimeSettings {
        instances: 2,
        core_instances: 2,
        table_elements: 100,
        tables: 1,
        memories: 1,
        cache: CacheFolder::Off,
        ..RuntimeSettings::default()
    };
    let runtime = Runtime::with(&pool, fuzzing::known_facts()).unwrap();
    for (cap, text) in [
        (
            "`core_instances` (2)",
            "(core module $m) (core instance (instantiate $m)) (core instance (instantiate $m)) (core instance (instantiate $m))",
        ),
        (
            "`table_elements` (100)",
            "(core module $m (table 101 funcref)) (core instance (instantiate $m))",
        ),
        (
            "`tables` (1)",
            "(core module $m (table 1 funcref) (table 1 funcref)) (core instance (instantiate $m))",
        ),
        (
            "`memories` (1)",
            "(core module $m (memory 1) (memory 1)) (core instance (instantiate $m))",
        ),
    ] {
        let module = bytes(wat::parse_str(format!("(component {text})")).unwrap());
        let found = Policy::build(&runtime, &settings(module, "{}"), &Metrics::new(1)).unwrap_err();
        assert_eq!(found[0].setting, "wasm");
        assert!(
            found[0].expected.contains(cap) && found[0].expected.contains("`server.policies`"),
            "{cap}: {found:?}"
        );
    }
}

#[test]
fn a_larger_stack_is_used() {
    let of = |stack_bytes| {
        let pool = RuntimeSettings { instances: 2, stack_bytes, ..RuntimeSettings::default() };
        let runtime = Runtime::with(&pool, fuzzing::known_facts()).unwrap();
        Policy::build(&runtime, &settings(misbehaving(), "{}"), &Metrics::new(1)).unwrap()
    };
    let (small, large) = (of(64 << 10), of(1 << 20));
    assert!(small.decide(&[("query", "well")]).is_ok());
    let error = small.decide(&[("query", "recursion")]).unwrap_err();
    assert!(error.message.contains("`server.policies.stack` (64KiB)"), "{error}");
    assert!(large.decide(&[("query", "well")]).is_ok());
}

#[test]
fn an_instance_whose_calls_leave_memory_behind_is_replaced_in_time() {
    let mut settings = settings(misbehaving(), "{}");
    settings.memory_bytes = 8 << 20;
    let policy = build(&settings).unwrap();
    for call in 0..500 {
        let answer = policy.decide(&[("query", "leak")]);
        assert!(answer.is_ok(), "call {call}: {answer:?}");
    }
    assert!(policy.stats().memory_bytes <= 8 << 20);
}
