//! What the client of one request can learn about another one's: nothing through the SDK, and
//! nothing at all with an instance for each request.

use super::*;

/// The only key of the decision.
fn key(policy: &Policy, facts: &[(&str, &str)]) -> String {
    plan(&policy.decide(facts).unwrap()).limits()[0].key.clone()
}

#[test]
fn the_sdk_keeps_nothing_of_a_request_for_the_next_one() {
    let policy = build(&settings(file(&guest::api_key()), LIMITS)).unwrap();
    let (of_a, of_b) = (("header.x-api-key", "secret-of-a"), ("client-ip", "192.0.2.2"));
    // On this thread, so in one instance.
    for _ in 0..3 {
        assert_eq!(key(&policy, &[of_a, ("client-ip", "192.0.2.1")]), "key:secret-of-a");
        let decision = policy.decide(&[of_b]).unwrap();
        assert_eq!(plan(&decision).limits()[0].key, "ip:192.0.2.2");
        let seen = format!("{decision:?}");
        assert!(!seen.contains("secret-of-a") && !seen.contains("192.0.2.1"), "{seen}");
    }
}

#[test]
fn statics_of_a_guest_are_gone_with_isolation() {
    let mut settings = settings(misbehaving(), "{}");
    let ask =
        |policy: &Policy| ["keep-a", "keep-b", "keep-a"].map(|how| key(policy, &[("query", how)]));
    // A guest that wants to keep something can, unless it is isolated.
    assert_eq!(ask(&build(&settings).unwrap()), ["before: ", "before: keep-a", "before: keep-b"]);
    settings.isolated = true;
    assert_eq!(ask(&build(&settings).unwrap()), ["before: "; 3]);
    let counted = build(&settings).unwrap();
    assert_eq!(["calls"; 3].map(|how| key(&counted, &[("query", how)])), ["1"; 3]);
}

#[test]
fn with_isolation_nothing_is_left_in_the_memory_of_an_instance() {
    // The pool hands out the same memory again: it must be blank.
    let mut settings = settings(misbehaving(), "{}");
    settings.isolated = true;
    let pool = RuntimeSettings { instances: 1, ..RuntimeSettings::default() };
    let runtime = Runtime::with(&pool, fuzzing::known_facts()).unwrap();
    let policy = Policy::build(&runtime, &settings, &Metrics::new(1)).unwrap();
    for _ in 0..20 {
        assert_eq!(key(&policy, &[("query", "keep-a")]), "before: ");
        assert!(policy.decide(&[("query", "panic")]).is_err());
        assert_eq!(key(&policy, &[("query", "keep-b")]), "before: ");
    }
}
