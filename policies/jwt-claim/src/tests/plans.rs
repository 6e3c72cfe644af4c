//! Plans by a claim: which plan a token is on, whose counters it uses, and what each mistake says.

use super::*;

fn limits(quota: u32) -> Value {
    json!([{ "name": "a", "algorithm": "gcra", "quota": quota, "period": "1s" }])
}

fn with_plans(more: &str) -> String {
    let keys = json!({ "keys": [rsa("one", 1)] });
    let plans = json!({ "free": limits(1), "gold": limits(100) });
    format!(r#"{{{more}"algorithms": ["RS256"], "keys": {keys}, "plans": {plans}}}"#)
}

/// The label `token`, then the plan and the key that a request is counted under, then the field.
fn seen(policy: &Instance<JwtClaim>, token: Option<&str>) -> [String; 4] {
    let field = token.map(|token| format!("Bearer {token}"));
    let mut facts = vec![("client-ip", "192.0.2.1")];
    facts.extend(field.as_deref().map(|field| ("header.authorization", field)));
    let decision = policy.decide(&facts).unwrap();
    let value = |pairs: &[(String, String)], name: &str| {
        pairs.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    };
    let label = |name| value(&decision.labels, name).unwrap_or_default();
    let key = match &decision.verdict {
        Verdict::Deny(denial) => format!("{}: {}", denial.status, denial.reason),
        _ => decision.limits()[0].key.clone(),
    };
    let header = value(&decision.upstream_headers, "x-plan").unwrap();
    [label("token"), label("plan"), key, header]
}

#[test]
fn a_claim_names_the_plan_and_each_plan_has_counters_of_its_own() {
    let policy = policy(&with_plans(r#""plan": "/app/plan", "plan_header": "X-Plan", "#));
    let of = |plan: Value| token(json!({ "app": { "plan": plan } }));
    let gold = of(json!("gold"));
    for _ in 0..2 {
        // The second time, it is remembered.
        assert_eq!(seen(&policy, Some(&gold)), ["valid", "gold", "gold/ann", "gold"]);
    }
    assert_eq!(seen(&policy, Some(&of(json!("free")))), ["valid", "free", "free/ann", "free"]);
    let none = ["no-plan", "", "403: the token names no known plan", ""];
    for plan in [json!("Gold"), json!("silver"), json!(["gold"]), json!(null), json!("")] {
        assert_eq!(seen(&policy, Some(&of(plan.clone()))), none, "{plan}");
    }
    assert_eq!(seen(&policy, Some(&token(json!({})))), none);
    assert_eq!(seen(&policy, Some("x")), ["invalid", "", "401: the token is malformed", ""]);
    let limits = policy
        .decide(&[("header.authorization", &format!("Bearer {gold}")), ("client-ip", "192.0.2.1")]);
    assert_eq!(limits.unwrap().limits().len(), 1);
}

#[test]
fn a_token_without_a_plan_may_be_on_the_default_one() {
    let policy = policy(&with_plans(
        r#""plan_header": "x-plan", "default_plan": "free", "missing": "address", "invalid": "address", "bypass": ["10.0.0.0/8"], "#,
    ));
    for claims in [json!({}), json!({ "plan": "silver" }), json!({ "plan": 7 })] {
        let found = seen(&policy, Some(&token(claims.clone())));
        assert_eq!(found, ["valid", "free", "free/ann", "free"], "{claims}");
    }
    // A plan that is named by a token without a user is nobody's.
    let by_address = |label| [label, "free", "free/\\@192.0.2.1", "free"];
    let nobody = token(json!({ "sub": "", "plan": "gold" }));
    assert_eq!(seen(&policy, Some(&nobody)), by_address("no-claim"));
    assert_eq!(seen(&policy, None), by_address("missing"));
    assert_eq!(seen(&policy, Some("x")), by_address("invalid"));
    let gold = token(json!({ "plan": "gold" }));
    let facts = [("client-ip", "10.0.0.1"), ("header.authorization", &*format!("Bearer {gold}"))];
    let bypassed = policy.decide(&facts).unwrap();
    assert_eq!(bypassed.upstream_headers, [("x-plan".to_owned(), String::new())]);
}

#[test]
fn facts_that_plans_read_are_in_the_manifest() {
    let own = r#"[{"name": "a", "algorithm": "gcra", "quota": 1, "period": "1s", "key": "{header.x-app}", "when": {"method": "POST"}}]"#;
    let config = with_plans(r#""plan": "plan", "#).replacen(&limits(100).to_string(), own, 1);
    assert_eq!(
        policy(&config).manifest().request_facts,
        ["header.authorization", "client-ip", "header.x-app", "method"]
    );
}

#[test]
fn each_error_in_plans_is_reported() {
    let plain = format!(r#"{{"verify": "none", {LIMITS}, "#);
    for (config, expected) in [
        (
            with_plans(r#""plan": "plan", "missing": "address", "invalid": "address", "#),
            &[
                "invalid: found \"address\", expected \"deny\", or a `default_plan`",
                "missing: found \"address\", expected \"deny\", or a `default_plan`",
            ][..],
        ),
        (
            with_plans(r#""plan": "plan", "default_plan": "silver", "missing": "address", "#),
            &["default_plan: found \"silver\", expected one of the plans `free`, `gold`"],
        ),
        (
            with_plans(&format!(r#""plan": "plan", {LIMITS}, "#)),
            &["limits: found limits of everybody, expected either these or `plans`"],
        ),
        (
            with_plans(r#""plan": "/a~2", "plan_header": "Host", "#),
            &["plan: found \"/a~2\", expected a claim's name", "plan_header: found \"Host\""],
        ),
        (
            format!(r#"{plain}"plan": "p", "default_plan": "free", "plan_header": "x-plan"}}"#),
            &[
                "default_plan: found a plan's setting, expected a table `plans`",
                "plan: found a plan's setting, expected a table `plans`",
                "plan_header: found a plan's setting, expected a table `plans`",
            ],
        ),
        (
            r#"{"verify": "none"}"#.to_owned(),
            &[": found no `limits`, expected the limits of everybody, or a table `plans`"],
        ),
        (
            r#"{"verify": "none", "plan": "p", "plans": {}}"#.to_owned(),
            &["plans: found 0 plans, expected 1 to 1000"],
        ),
    ] {
        let mut found = mistakes(&config);
        found.sort();
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found} {expected}");
        }
    }
}
