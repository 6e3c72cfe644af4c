//! The policy on the host. `costs` has documents and what they cost, `documents` what is a
//! document, `requests` where operations are found, `configuration` what each mistake says, and
//! `hostile` what clients may try.

mod configuration;
mod costs;
mod documents;
mod hostile;
mod requests;

use serde_json::json;
use weir_policy::testing::Instance;
use weir_policy::{Decision, Verdict};

use super::*;

const POINTS: &str =
    r#"{"name": "points", "algorithm": "token_bucket", "quota": 10000, "period": "1h"}"#;

/// A policy with one limit, and these settings, each with a comma before it. Scalars are free
/// unless they say otherwise, so that costs are easier to compute by hand.
fn policy(more: &str) -> Instance<GraphqlCost> {
    let free = if more.contains("default_scalar") { "" } else { r#", "default_scalar": 0"# };
    priced(&format!("{free}{more}"))
}

/// The same with the defaults for all that is not set.
fn priced(more: &str) -> Instance<GraphqlCost> {
    Instance::new(&format!(r#"{{"limits": [{POINTS}]{more}}}"#)).unwrap()
}

/// A policy that lets everything through that can be read.
fn unbounded(more: &str) -> Instance<GraphqlCost> {
    policy(&format!(
        r#", "max_cost": 4503599627370496, "max_depth": 100, "max_aliases": 100000{more}"#
    ))
}

fn query(text: &str) -> String {
    json!({ "query": text }).to_string()
}

/// The decision about a POST with this body.
fn post(policy: &Instance<GraphqlCost>, body: &str) -> Decision {
    policy
        .decide(&[
            ("method", "POST"),
            ("client-ip", "192.0.2.1"),
            ("body.type", "json"),
            ("body.json:", body),
        ])
        .unwrap()
}

fn get(policy: &Instance<GraphqlCost>, parameters: &[(&str, &str)]) -> Decision {
    let mut facts = vec![("method", "GET"), ("client-ip", "192.0.2.1"), ("body.type", "empty")];
    facts.extend(parameters);
    policy.decide(&facts).unwrap()
}

/// What the first limit is charged, or the refusal's status and reason.
fn charged(decision: &Decision) -> Result<u64, (u16, &str)> {
    match &decision.verdict {
        Verdict::Check(limits) => Ok(limits[0].cost),
        Verdict::Deny(denial) => Err((denial.status, denial.reason.as_str())),
        Verdict::Bypass => panic!("let through"),
    }
}

/// What a POST of this query is charged.
#[track_caller]
fn cost(policy: &Instance<GraphqlCost>, text: &str) -> u64 {
    charged(&post(policy, &query(text))).unwrap_or_else(|refused| panic!("{text}: {refused:?}"))
}

/// Why a POST with this body is refused.
#[track_caller]
fn refused(policy: &Instance<GraphqlCost>, body: &str) -> (u16, String) {
    match charged(&post(policy, body)) {
        Ok(cost) => panic!("{body} costs {cost}"),
        Err((status, reason)) => (status, reason.to_owned()),
    }
}

fn label<'a>(decision: &'a Decision, name: &str) -> Option<&'a str> {
    let found = decision.labels.iter().find(|(label, _)| label == name);
    found.map(|(_, value)| value.as_str())
}

#[test]
fn the_manifest_names_what_is_read() {
    let policy = policy(r#", "bypass": [{"header": {"x-internal": "yes"}}]"#);
    assert_eq!(
        policy.manifest().request_facts,
        [
            "method",
            "upgrade",
            "body.type",
            "body.bytes",
            "body.json:",
            "query.query",
            "query.operationName",
            "query.variables",
            "query.extensions",
            "client-ip",
            "header.x-internal",
        ]
    );
    assert!(policy.manifest().pure);
}

#[test]
fn limits_are_charged_the_cost_and_requests_are_counted_beside_them() {
    let policy = Instance::<GraphqlCost>::new(&format!(
        r#"{{
            "default_scalar": 0,
            "limits": [
                {POINTS},
                {{"name": "double", "algorithm": "gcra", "quota": 9, "period": "1s", "cost": 2, "key": "{{header.authorization}}"}},
                {{"name": "look", "algorithm": "gcra", "quota": 9, "period": "1s", "cost": 0}}
            ],
            "ipv6_prefix": 48,
            "requests": [{{"name": "each", "algorithm": "fixed_window", "quota": 60, "period": "1m", "key": "{{client_ip}}"}}]
        }}"#
    ))
    .unwrap();
    let decision = policy
        .decide(&[
            ("method", "POST"),
            ("client-ip", "2001:db8::1"),
            ("header.authorization", "Bearer a"),
            ("body.type", "json"),
            ("body.json:", &query("query Two { a { b } c { d } }")),
        ])
        .unwrap();
    let limits: Vec<(&str, &str, u64)> = decision
        .limits()
        .iter()
        .map(|limit| (limit.name.as_str(), limit.key.as_str(), limit.cost))
        .collect();
    assert_eq!(
        limits,
        [
            ("points", "\\@2001:db8::/48", 2),
            ("double", "Bearer a", 4),
            ("look", "\\@2001:db8::/48", 0),
            ("each", "2001:db8::/48", 1),
        ]
    );
    assert_eq!((label(&decision, "cost"), label(&decision, "operation")), (Some("2"), Some("Two")));
}

#[test]
fn the_cost_is_1_at_least() {
    let decision = post(&policy(""), &query("{ __typename name }"));
    assert_eq!((charged(&decision), label(&decision, "cost")), (Ok(1), Some("1")));
    assert_eq!(label(&decision, "operation"), None);
}

#[test]
fn a_cost_above_the_quota_is_charged_as_it_is() {
    let decision =
        post(&policy(r#", "max_cost": 1000000, "default_field": 20000"#), &query("{ a { b } }"));
    assert_eq!(charged(&decision), Ok(20_000));
}

#[test]
fn requests_that_bypass_are_not_read() {
    let policy = policy(r#", "bypass": ["10.0.0.0/8"]"#);
    let facts = [("method", "POST"), ("client-ip", "10.0.0.1"), ("body.type", "other")];
    assert!(matches!(policy.decide(&facts).unwrap().verdict, Verdict::Bypass));
}

#[test]
fn an_algorithm_that_stores_each_unit_refuses_more_than_it_can_store() {
    let with = |name: &str, more: &str| {
        let config = format!(
            r#"{{"max_cost": 1000000, "fields": {{"dear": {{"cost": 10001}}, "fair": {{"cost": 10000}}}},
                "limits": [{{"name": "log", "algorithm": "sliding_window_log", "quota": 10000, "period": "1h"{more}}}]}}"#
        );
        let policy = Instance::<GraphqlCost>::new(&config).unwrap();
        let decision = post(&policy, &query(&format!("{{ {name} }}")));
        charged(&decision).map_err(|(status, reason)| (status, reason.to_owned()))
    };
    assert_eq!(with("fair", ""), Ok(10_000));
    let reason = "the query costs 10001, at most 10000 are allowed".to_owned();
    assert_eq!(with("dear", ""), Err((400, reason)));
    let reason = "the query costs 10000, at most 5000 are allowed".to_owned();
    assert_eq!(with("fair", r#", "cost": 2"#), Err((400, reason)));
    assert_eq!(with("dear", r#", "shadow": true"#), Ok(10_000), "a shadow limit never refuses");
}

#[test]
fn a_limits_denial_has_the_costs_label() {
    let config = format!(
        r#"{{"default_scalar": 0, "limits": [{}]}}"#,
        POINTS.replace('}', r#", "key": "{header.authorization}", "missing": {"deny": 401}}"#)
    );
    let policy = Instance::<GraphqlCost>::new(&config).unwrap();
    let decision = post(&policy, &query("query Q { a { b } }"));
    let reason = "header authorization must be there";
    assert_eq!(charged(&decision), Err((401, reason)));
    assert_eq!((label(&decision, "cost"), label(&decision, "operation")), (Some("1"), Some("Q")));
}

#[test]
fn without_an_address_the_policy_fails_and_charges_nobody() {
    let body = query("{ a }");
    let facts = [("method", "POST"), ("body.type", "json"), ("body.json:", body.as_str())];
    assert!(policy("").decide(&facts).is_err());
}

#[test]
fn a_max_cost_that_no_limit_lets_pass_is_warned_of() {
    let warned = |max: &str| {
        let config = format!(
            r#"{{{max}"limits": [{{"name": "a", "algorithm": "fixed_window", "quota": 100, "cost": 2, "period": "1m"}}]}}"#
        );
        let warnings = Instance::<GraphqlCost>::new(&config).unwrap().manifest().warnings;
        let told = warnings.into_iter().map(|it| (it.kind, it.path, it.beside[0].0.clone()));
        told.collect::<Vec<_>>()
    };
    let expected = ("unreached-cost".into(), "max_cost".into(), "limits[0].quota".into());
    assert_eq!(warned(r#""max_cost": 50, "#), []);
    assert_eq!(warned(r#""max_cost": 51, "#), [expected]);
    assert_eq!(warned(""), [], "nobody wrote that");
}
