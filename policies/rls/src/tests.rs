//! The policy on the host: which rule counts, under which key, and what each mistake says.

use weir_policy::testing::Instance;

use super::*;

const RULES: &str = r#"{"rules": [
    {"descriptor": ["message_type=marketing", "to_number"], "limits": [LIMIT(a)]},
    {"descriptor": ["message_type", "to_number"], "limits": [LIMIT(b), LIMIT(c)]},
    {"descriptor": ["message_type=internal"], "unlimited": true},
    {"descriptor": ["path"], "limits": [LIMIT(f)]},
    {"descriptor": ["path=/v1/users/*"], "limits": [LIMIT(e)]},
    {"descriptor": ["path=/v1/*"], "limits": [LIMIT(d)]},
    {"descriptor": ["path=/v1/items/7"], "limits": [LIMIT(h)]},
    {"descriptor": ["path=/v1/*", "method"], "limits": [LIMIT(g)]}
]}"#;

fn limit(name: &str) -> String {
    format!(r#"{{"name": "{name}", "algorithm": "gcra", "quota": 5, "period": "1m"}}"#)
}

fn with_limits(config: &str) -> String {
    let mut parts = config.split("LIMIT(");
    let mut text = parts.next().unwrap().to_owned();
    for part in parts {
        let (name, rest) = part.split_once(')').unwrap();
        text.push_str(&limit(name));
        text.push_str(rest);
    }
    text
}

fn policy(config: &str) -> Instance<Rls> {
    Instance::new(&with_limits(config)).unwrap()
}

/// The names of the limits that a descriptor is charged to; none if it is unlimited.
fn charged(policy: &Instance<Rls>, entries: &[(&str, &str)]) -> Vec<String> {
    let text = descriptor(entries);
    let facts = [("rls.domain", "edge"), ("rls.descriptor", text.as_str())];
    let decision = policy.decide(&facts).unwrap();
    let key = format!("[\"edge\",{}", &text[1..]);
    assert!(serde_json::from_str::<serde_json::Value>(&key).is_ok());
    let limits = decision.limits().iter();
    limits
        .map(|limit| {
            assert_eq!(limit.key, key);
            limit.name.clone()
        })
        .collect()
}

fn descriptor(entries: &[(&str, &str)]) -> String {
    serde_json::to_string(entries).unwrap()
}

#[test]
fn a_rule_is_for_descriptors_with_exactly_its_entries() {
    let policy = policy(RULES);
    let charged = |entries| charged(&policy, entries);
    let none: [&str; 0] = [];
    assert_eq!(charged(&[("message_type", "marketing"), ("to_number", "206")]), ["a"]);
    assert_eq!(charged(&[("message_type", "alert"), ("to_number", "206")]), ["b", "c"]);
    assert_eq!(charged(&[("message_type", "internal")]), none);
    // A descriptor has to have exactly the entries of a rule, in their order.
    assert_eq!(charged(&[("message_type", "alert")]), none);
    assert_eq!(charged(&[("to_number", "206"), ("message_type", "alert")]), none);
    assert_eq!(charged(&[("path", "/v1/users/7"), ("x", "y")]), none);
    assert_eq!(charged(&[("path", "/v1/users/7")]), ["e"]);
    assert_eq!(charged(&[("path", "/v1/items/8")]), ["d"]);
    assert_eq!(charged(&[("path", "/v1/items/7")]), ["h"]);
    assert_eq!(charged(&[("path", "/")]), ["f"]);
    assert_eq!(charged(&[("path", "")]), ["f"]);
    // One entry is followed, and no other one.
    assert_eq!(charged(&[("path", "/v1/x"), ("method", "GET")]), ["g"]);
    assert_eq!(charged(&[("path", "/v1/users/x"), ("method", "GET")]), none);
}

#[test]
fn of_patterns_that_fit_the_first_one_counts() {
    let policy = policy(
        r#"{"rules": [
            {"descriptor": ["path"], "limits": [LIMIT(any)]},
            {"descriptor": ["path=/*/users/*/photos"], "limits": [LIMIT(photos)]},
            {"descriptor": ["path=/a*"], "limits": [LIMIT(short)]},
            {"descriptor": ["path=/a/b*"], "limits": [LIMIT(long)]},
            {"descriptor": ["path=/a/b*", "x=*"], "limits": [LIMIT(below)]},
            {"descriptor": ["path=*.png"], "limits": [LIMIT(image)]},
            {"descriptor": ["path=ab*ba"], "limits": [LIMIT(ends)]},
            {"descriptor": ["path=/a/c"], "limits": [LIMIT(exact)]},
            {"descriptor": ["all=*"], "limits": [LIMIT(star)]},
            {"descriptor": ["all"], "limits": [LIMIT(bare)]}
        ]}"#,
    );
    for (path, expected) in [
        ("/v1/users/7/photos", "photos"),
        ("/v1/x/users//users/7/photos", "photos"),
        ("/v1/users/photos", "any"),
        ("/v1/users/7/photos/", "any"),
        ("/a/b/c", "short"),
        ("/a/users/7/photos", "photos"),
        ("/a.png", "short"),
        ("/b.png", "image"),
        (".png", "image"),
        ("/b.png?", "any"),
        // What the parts need must not overlap.
        ("aba", "any"),
        ("abba", "ends"),
        ("ab-ba", "ends"),
        ("/a/c", "exact"),
        ("", "any"),
    ] {
        assert_eq!(charged(&policy, &[("path", path)]), [expected], "{path}");
    }
    assert_eq!(charged(&policy, &[("all", "")]), ["star"]);
    // The first pattern is followed, and not the one with such a rule.
    assert_eq!(charged(&policy, &[("path", "/a/b"), ("x", "y")]).len(), 0);
}

#[test]
fn a_long_value_is_compared_once_with_each_part_of_a_pattern() {
    let pattern = "*a".repeat(500);
    let policy = policy(&format!(
        r#"{{"rules": [{{"descriptor": ["path={pattern}b"], "limits": [LIMIT(x)]}}]}}"#
    ));
    assert_eq!(charged(&policy, &[("path", &"a".repeat(60_000))]).len(), 0);
    let value = "a".repeat(3_000);
    assert_eq!(charged(&policy, &[("path", &format!("{value}b"))]), ["x"]);
}

#[test]
fn limits_are_declared_if_a_manifest_has_room_for_all() {
    let declared = |rules: usize| {
        let rule = |at: usize| {
            format!(r#"{{"descriptor": ["path=/number/{at}"], "limits": [LIMIT(number-{at})]}}"#)
        };
        let rules: Vec<String> = (0..rules).map(rule).collect();
        policy(&format!(r#"{{"rules": [{}]}}"#, rules.join(", "))).manifest().limits.len()
    };
    assert_eq!([declared(1), declared(350), declared(600), declared(2_000)], [1, 350, 0, 0]);
}

#[test]
fn a_rule_may_replace_limits_of_others_or_suffice_or_tell_the_caller_something() {
    let policy = policy(
        r#"{"rules": [
            {"descriptor": ["read"], "limits": [LIMIT(a)]},
            {"descriptor": ["special"], "limits": [LIMIT(b)], "replaces": ["a"]},
            {"descriptor": ["free"], "unlimited": true, "replaces": ["a", "b"]},
            {"descriptor": ["model"], "limits": [LIMIT(c)], "quota_mode": true},
            {"descriptor": ["plan"], "limits": [LIMIT(d)], "metadata": {"tier": "gold", "n": [1]}}
        ]}"#,
    );
    let options = |key: &str| {
        let text = descriptor(&[(key, "x")]);
        policy.decide(&[("rls.descriptor", text.as_str())]).unwrap().options
    };
    let option = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
    assert_eq!(options("read"), []);
    assert_eq!(options("special"), option("replaces", "a"));
    assert_eq!(options("free"), option("replaces", "a,b"));
    assert_eq!(options("model"), option("quota-mode", "true"));
    let [(name, metadata)] = &options("plan")[..] else { panic!("{:?}", options("plan")) };
    let expected: serde_json::Value = serde_json::from_str(r#"{"tier":"gold","n":[1]}"#).unwrap();
    let found: serde_json::Value = serde_json::from_str(metadata).unwrap();
    assert_eq!((name.as_str(), found), ("metadata", expected));
}

#[test]
fn keys_and_values_are_never_mixed_up() {
    let policy = policy(r#"{"rules": [{"descriptor": ["a_b", "c"], "limits": [LIMIT(x)]}]}"#);
    assert_eq!(charged(&policy, &[("a_b", "c\",\""), ("c", "]")]), ["x"]);
    assert_eq!(charged(&policy, &[("a", "b_c"), ("c", "d")]).len(), 0);
}

#[test]
fn a_callers_limit_goes_before_a_rule() {
    let text = descriptor(&[("path", "/")]);
    let facts = [("rls.descriptor", text.as_str()), ("rls.limit", "60/minute")];
    let decision = policy(RULES).decide(&facts).unwrap();
    let [limit] = decision.limits() else { panic!("{decision:?}") };
    assert_eq!(limit.name, "override");
    assert_eq!(limit.key, "[\"\",[\"path\",\"/\"]]");
    let Algorithm::FixedWindow(window) = &limit.algorithm else { panic!("{limit:?}") };
    assert_eq!((window.rate.amount, window.rate.per_ms), (60, 60_000));
    let off = RULES.replacen('{', "{\"overrides\": false, ", 1);
    let off = policy(&off);
    assert_eq!(off.decide(&facts).unwrap().limits()[0].name, "f");
    assert!(!off.manifest().request_facts.iter().any(|fact| fact == "rls.limit"));
}

#[test]
fn a_caller_may_send_limits_and_hears_what_is_wrong_with_them() {
    let text = descriptor(&[("user", "7")]);
    let decide = |config: &str, limits: &str| {
        let facts = [("rls.descriptor", text.as_str()), ("rls.limits", limits)];
        policy(config).decide(&facts).unwrap()
    };
    let open = r#"{"overrides": true}"#;
    let two = format!("[{}, {}]", limit("x"), limit("y"));
    for config in [open, RULES] {
        let decision = decide(config, &two);
        let charged: Vec<_> =
            decision.limits().iter().map(|one| (one.name.as_str(), one.key.as_str())).collect();
        let key = "take:[\"\",[\"user\",\"7\"]]";
        assert_eq!(charged, [("x", key), ("y", key)]);
    }
    let slow = |max_delay: &str| {
        format!(
            r#"[{{"name": "x", "algorithm": "leaky_bucket", "quota": 1, "period": "1d", "max_delay": "{max_delay}"}}]"#
        )
    };
    assert_eq!(decide(open, &slow("10s")).limits().len(), 1);
    let keyed = limit("x").replace('}', r#", "key": "all"}"#);
    for (config, limits, expected) in [
        (open, "[]".to_owned(), "limits: found 0 limits"),
        (open, slow("10001ms"), "limits[0].max_delay: found 10001 ms, expected at most 10000"),
        (open, "[{}]".to_owned(), "limits[0]"),
        (open, format!("[{}]", limit("x").replace('5', "-5")), "limits[0].quota"),
        (open, format!("[{keyed}]"), "they count by the entries"),
        (&RULES.replacen('{', "{\"overrides\": false, ", 1), two.clone(), "`overrides = false`"),
    ] {
        let decision = decide(config, &limits);
        let weir_policy::Verdict::Deny(denial) = &decision.verdict else { panic!("{decision:?}") };
        assert_eq!(denial.status, 400);
        assert!(denial.reason.contains(expected), "{limits}: {denial:?}");
    }
}

#[test]
fn every_unit_of_a_callers_limit_has_its_length() {
    for (unit, seconds) in [
        ("second", 1),
        ("minute", 60),
        ("hour", 3_600),
        ("day", 86_400),
        ("week", 604_800),
        ("month", 2_592_000),
        ("year", 31_536_000),
    ] {
        let Some(Algorithm::FixedWindow(window)) = algorithm_of(&format!("7/{unit}")) else {
            panic!("{unit}")
        };
        assert_eq!(window.rate.per_ms, seconds * 1_000, "{unit}");
    }
    assert!(algorithm_of("7/decade").is_none() && algorithm_of("x/day").is_none());
}

#[test]
fn what_never_fits_is_a_mistake() {
    let mistakes = |config: &str| {
        let found = Instance::<Rls>::new(&with_limits(config)).unwrap_err();
        found.iter().map(|one| format!("{}: {}", one.path, one.message)).collect::<String>()
    };
    let told = |metadata: &str| {
        format!(
            r#"{{"rules": [{{"descriptor": ["a"], "unlimited": true, "metadata": {metadata}}}]}}"#
        )
    };
    let nested = told(&format!("{}1{}", "{\"b\":".repeat(17), "}".repeat(17)));
    let long = told(&format!("{{\"b\":\"{}\"}}", "x".repeat(4_096)));
    for (config, expected) in [
        (r#"{"rules": []}"#, "rules: found no rules"),
        (r#"{"overrides": false}"#, "rules: found no rules"),
        (r#"{"rules": [{"descriptor": [], "limits": [LIMIT(a)]}]}"#, "rules[0].descriptor"),
        (r#"{"rules": [{"descriptor": ["=x"], "limits": [LIMIT(a)]}]}"#, "rules[0].descriptor[0]"),
        (r#"{"rules": [{"descriptor": ["a"]}]}"#, "rules[0]: found no limits"),
        (
            r#"{"rules": [{"descriptor": ["a"], "unlimited": true, "limits": [LIMIT(a)]}]}"#,
            "rules[0].unlimited",
        ),
        (
            r#"{"rules": [{"descriptor": ["a=*"], "limits": [LIMIT(a)]}, {"descriptor": ["a=*"], "limits": [LIMIT(b)]}]}"#,
            "rules[1].descriptor",
        ),
        (
            r#"{"rules": [{"descriptor": ["a"], "limits": [LIMIT(a)]}, {"descriptor": ["b"], "limits": [LIMIT(a)]}]}"#,
            "rules[1].limits[0].name",
        ),
        (
            r#"{"rules": [{"descriptor": ["a"], "limits": [LIMIT(override)]}]}"#,
            "rules[0].limits[0].name",
        ),
        (
            r#"{"rules": [{"descriptor": ["a"], "limits": [{"name": "a", "algorithm": "concurrency", "quota": 5}]}]}"#,
            "rules[0].limits[0].algorithm",
        ),
        (
            r#"{"rules": [{"descriptor": ["a"], "limits": [{"name": "a", "algorithm": "leaky_bucket", "quota": 5, "period": "1s", "burst": 5, "max_delay": "1s"}]}]}"#,
            "rules[0].limits[0].algorithm",
        ),
        (
            r#"{"rules": [{"descriptor": ["a"], "limits": [{"name": "a", "algorithm": "gcra", "quota": 5, "period": "1s", "refund": "unsent"}]}]}"#,
            "rules[0].limits[0].refund",
        ),
        (
            r#"{"rules": [{"descriptor": ["a"], "limits": [{"name": "a", "algorithm": "gcra", "quota": 5, "period": "1s", "children": {"key": "{rls.entry.a}", "assured": 1, "ceiling": 2}}]}]}"#,
            "rules[0].limits[0].children",
        ),
        (
            r#"{"rules": [{"descriptor": ["a"], "limits": [LIMIT(a)], "replaces": ["a"]}]}"#,
            "rules[0].replaces[0]: found \"a\"",
        ),
        (
            r#"{"rules": [{"descriptor": ["a"], "unlimited": true, "quota_mode": true}]}"#,
            "rules[0].quota_mode",
        ),
        (
            r#"{"rules": [{"descriptor": ["a"], "unlimited": true, "metadata": ["b"]}]}"#,
            "rules[0].metadata: found a list, expected a table",
        ),
        (&nested, "rules[0].metadata: found more levels"),
        (&long, "bytes of JSON, expected at most 4096"),
    ] {
        let found = mistakes(config);
        assert!(found.contains(expected), "{config}: {found}");
    }
}

#[test]
fn a_request_is_no_call() {
    assert!(policy(RULES).decide(&[]).is_err());
}
