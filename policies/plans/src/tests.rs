//! The policy on the host: which key is on which plan, what is charged, and what each mistake says.

use weir_policy::Verdict;
use weir_policy::testing::Instance;

use super::*;

const FREE: &str = r#"{"name": "plan", "algorithm": "token_bucket", "quota": 60, "period": "1m"}"#;
const GOLD: &str =
    r#"{"name": "plan", "algorithm": "token_bucket", "quota": 6000, "period": "1m", "burst": 500}"#;

fn digest(key: &str) -> String {
    Digest::of_fact(key).to_string()
}

fn config(more: &str) -> String {
    format!(
        r#"{{"key": "{{header.x-api-key}}", "plans": {{"free": [{FREE}], "gold": [{GOLD}]}}, "assign": {{"{}": "gold", "{}": "free"}}{more}}}"#,
        digest("rich"),
        digest("poor")
    )
}

fn policy(more: &str) -> Instance<Plans> {
    Instance::new(&config(more)).unwrap()
}

fn with_default() -> Instance<Plans> {
    policy(r#", "default_plan": "free""#)
}

/// The plan's label, and the first limit's key.
fn charged(policy: &Instance<Plans>, key: &[&str]) -> (String, String) {
    let mut facts: Vec<(&str, &str)> = key.iter().map(|key| ("header.x-api-key", *key)).collect();
    facts.push(("client-ip", "192.0.2.1"));
    let decision = policy.decide(&facts).unwrap();
    (decision.labels[0].1.clone(), decision.limits()[0].key.clone())
}

fn mistakes(config: &str) -> Vec<String> {
    let mistakes = Instance::<Plans>::new(config).unwrap_err();
    mistakes.iter().map(|mistake| format!("{}: {}", mistake.path, mistake.message)).collect()
}

#[test]
fn a_known_key_is_on_its_plan_and_is_counted_itself() {
    let policy = with_default();
    assert_eq!(policy.manifest().request_facts, ["header.x-api-key", "client-ip"]);
    assert!(policy.manifest().pure);
    assert_eq!(
        charged(&policy, &["rich"]),
        ("gold".to_owned(), format!("gold/{}", &digest("rich")[7..]))
    );
    assert_eq!(
        charged(&policy, &["poor"]),
        ("free".to_owned(), format!("free/{}", &digest("poor")[7..]))
    );
}

#[test]
fn inventing_keys_or_sending_none_or_two_buys_nothing() {
    let policy = with_default();
    let by_address = ("free".to_owned(), "free/\\@192.0.2.1".to_owned());
    for keys in [
        &[][..],
        &[""],
        &["made up"],
        &["rich "],
        &["rich", "rich"],
        &["rich", "made up"],
        &["\\@192.0.2.1"],
    ] {
        assert_eq!(charged(&policy, keys), by_address, "{keys:?}");
    }
    let decision = policy.decide(&[("client-ip", "2001:db8::7")]).unwrap();
    assert_eq!(decision.limits()[0].key, "free/\\@2001:db8::/64");
}

#[test]
fn requests_without_a_known_key_may_be_refused() {
    let policy = policy(r#", "unknown": "deny""#);
    assert_eq!(charged(&policy, &["rich"]).0, "gold");
    for facts in [
        &[("client-ip", "192.0.2.1")][..],
        &[("client-ip", "192.0.2.1"), ("header.x-api-key", "made up")],
    ] {
        let Verdict::Deny(denial) = policy.decide(facts).unwrap().verdict else {
            panic!("{facts:?}")
        };
        assert_eq!(
            (denial.status, denial.reason.as_str()),
            (401, "a known key is needed in header x-api-key")
        );
        assert_eq!(denial.headers, [("www-authenticate".to_owned(), "Key".to_owned())]);
    }
}

#[test]
fn the_upstream_gets_the_plan_and_no_client_can_forge_it() {
    let policy =
        policy(r#", "default_plan": "free", "plan_header": "X-Plan", "bypass": ["10.0.0.0/8"]"#);
    let headers = |facts: &[(&str, &str)]| policy.decide(facts).unwrap().upstream_headers;
    let field = |plan: &str| [("x-plan".to_owned(), plan.to_owned())];
    assert_eq!(headers(&[("client-ip", "192.0.2.1"), ("header.x-api-key", "rich")]), field("gold"));
    assert_eq!(headers(&[("client-ip", "192.0.2.1")]), field("free"));
    assert_eq!(headers(&[("client-ip", "10.0.0.1"), ("header.x-api-key", "rich")]), field(""));
    assert!(
        with_default().decide(&[("client-ip", "192.0.2.1")]).unwrap().upstream_headers.is_empty()
    );
}

#[test]
fn a_plans_counters_are_its_own_also_those_with_keys_of_their_own() {
    let both =
        r#"{"name": "all", "algorithm": "gcra", "quota": 1, "period": "1s", "key": "everyone"}"#;
    let text = config(r#", "default_plan": "free""#)
        .replace(FREE, &format!("{FREE}, {both}"))
        .replace(GOLD, &format!("{GOLD}, {both}"));
    let policy = Instance::<Plans>::new(&text).unwrap();
    let key = |name: &str| {
        policy.decide(&[("client-ip", "192.0.2.1"), ("header.x-api-key", name)]).unwrap().limits()
            [1]
        .key
        .clone()
    };
    assert_eq!(
        (key("rich"), key("poor")),
        ("gold/everyone".to_owned(), "free/everyone".to_owned())
    );
}

#[test]
fn a_customer_that_is_moved_starts_afresh_and_finds_its_old_count_when_it_comes_back() {
    let before = with_default();
    let text = config(r#", "default_plan": "free""#).replace(
        &format!(r#""{}": "gold""#, digest("rich")),
        &format!(r#""{}": "free""#, digest("rich")),
    );
    let after = Instance::<Plans>::new(&text).unwrap();
    assert_ne!(charged(&before, &["rich"]).1, charged(&after, &["rich"]).1);
    assert_eq!(charged(&before, &["poor"]), charged(&after, &["poor"]));
    assert_eq!(charged(&before, &["rich"]), charged(&with_default(), &["rich"]));
}

#[test]
fn digests_alone_are_assigned_and_a_key_that_stands_there_is_not_repeated() {
    let found =
        mistakes(&config(r#", "default_plan": "free""#).replace(&digest("rich"), "hunter2"));
    let expected = "assign.hunter2: found the key of 7 characters, which is no digest, expected `sha256:` and 64 hexadecimal digits, such as \
                    `printf %s THE-KEY | sha256sum` prints";
    assert_eq!(found, [expected]);
    let twice = format!(
        r#"{{"{}": "gold", "{}": "free"}}"#,
        digest("a"),
        digest("a").to_uppercase().replace("SHA256", "sha256")
    );
    let found = mistakes(&format!(
        r#"{{"key": "{{header.k}}", "default_plan": "free", "plans": {{"free": [{FREE}], "gold": [{GOLD}]}}, "assign": {twice}}}"#
    ));
    assert_eq!(
        found,
        [format!(
            "assign.{}: found the key a second time, expected each key once, its digits in lower case",
            digest("a")
        )]
    );
}

#[test]
fn the_plan_header_is_a_field_that_the_proxy_would_send() {
    for name in ["Expect", "proxy-authorization", "Weir-Degraded", "trailer", "te"] {
        let found =
            mistakes(&config(&format!(r#", "default_plan": "free", "plan_header": "{name}""#)));
        assert_eq!(found.len(), 1, "{name}: {found:?}");
        assert!(found[0].starts_with("plan_header: found"), "{name}: {found:?}");
    }
}

#[test]
fn all_errors_come_at_once() {
    let text = config(r#", "default_plan": "fre", "plan_header": "Host", "unknown": "denny""#)
        .replace("{header.x-api-key}", "key {header.x-api-key}")
        .replace(r#""quota": 6000"#, r#""quota": "x""#)
        .replace(r#": "gold"}"#, r#": "silver"}"#)
        .replace(r#""gold","#, r#""silver","#);
    let mut found = mistakes(&text);
    found.sort();
    let starts = [
        &format!(
            "assign.{}: found \"silver\", expected one of the plans `free`, `gold`",
            digest("rich")
        ),
        "default_plan: found \"fre\", expected one of the plans `free`, `gold`",
        "key: found a template of another shape, expected one fact",
        "plan_header: found \"Host\", expected a field that does not frame",
        "plans.gold[0].quota: found \"x\"",
        "unknown: found the unknown word `denny`, expected `address` or `deny`; `deny` is near",
    ];
    assert_eq!(found.len(), starts.len(), "{found:#?}");
    for (found, start) in found.iter().zip(starts) {
        assert!(found.starts_with(start), "{found}");
    }
}

#[test]
fn somebody_must_be_on_some_plan() {
    assert_eq!(
        mistakes(&config("")),
        [
            ": found no `default_plan`, expected the plan of those without a known key, or `unknown = \"deny\"`"
        ]
    );
    let both = mistakes(&config(r#", "unknown": "deny", "default_plan": "free""#));
    assert_eq!(
        both,
        [
            "default_plan: found \"free\", expected nothing: with `unknown = \"deny\"` there is no default plan"
        ]
    );
    let none = mistakes(r#"{"key": "{header.k}", "unknown": "deny", "plans": {}}"#);
    assert_eq!(none, ["plans: found 0 plans, expected 1 to 1000"]);
    let name = mistakes(&format!(
        r#"{{"key": "{{header.k}}", "unknown": "deny", "plans": {{"a/b": [{FREE}]}}}}"#
    ));
    assert_eq!(name, ["plans.a/b: found the name \"a/b\", expected 1 to 64 of a-z 0-9 . _ -"]);
}

#[test]
fn a_table_of_another_kind_is_an_error() {
    let text = config(r#", "default_plan": "free""#);
    let at = text.find("\"assign\": ").unwrap() + 10;
    let end = text[at..].find('}').unwrap() + at + 1;
    for (instead, expected) in [
        ("3", "assign: found 3, expected a table of keys' digests and plans"),
        ("\"x\"", "assign: found \"x\", expected a table of keys' digests and plans, such as"),
        (r#"{"a": 3}"#, "assign.a: found 3, expected a string"),
    ] {
        let found = mistakes(&format!("{}{instead}{}", &text[..at], &text[end..]));
        assert!(found.len() == 1 && found[0].starts_with(expected), "{found:#?}");
    }
}
