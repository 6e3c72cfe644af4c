//! The policy on the host. `charging` has what requests are charged, `hostile` what clients may
//! try, `replies` what they are told, and `configuration` what each mistake says.

mod charging;
mod configuration;
mod hostile;
mod replies;

use serde_json::{Value, json};
use weir_policy::testing::Instance;
use weir_policy::{Decision, Denial, Verdict};

use super::*;

const POINTS: &str =
    r#"{"name": "points", "algorithm": "token_bucket", "quota": 1000, "period": "1h"}"#;

/// A policy with one limit, and these settings, each with a comma before it.
fn policy(more: &str) -> Instance<Mcp> {
    Instance::new(&format!(r#"{{"limits": [{POINTS}]{more}}}"#)).unwrap()
}

/// The quota, and so the burst, of the limits of [`own`].
const OWN_QUOTA: u64 = 9;

/// A limit of this name as a list.
fn own(name: &str) -> String {
    format!(r#"[{{"name": "{name}", "algorithm": "gcra", "quota": {OWN_QUOTA}, "period": "1s"}}]"#)
}

/// Tools with costs and limits of their own.
fn priced() -> Instance<Mcp> {
    policy(&format!(
        r#", "tools": {{
                "search": {{"cost": 5, "priority": 6}},
                "run_*": {{"cost": 20, "limits": {}, "priority": 2}},
                "*": {{"limits": {}}}}},
            "methods": {{
                "tools/call": {{"cost": 2, "limits": {}}},
                "tools/list": {{"cost": 0}},
                "resources/*": {{"cost": 3}}}}"#,
        own("runs"),
        own("others"),
        own("calls"),
    ))
}

/// A call of a tool.
fn call(id: impl Into<Value>, tool: &str) -> Value {
    let id: Value = id.into();
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": tool, "arguments": {}}})
}

/// A request of another method.
fn request(id: impl Into<Value>, method: &str) -> Value {
    let id: Value = id.into();
    json!({"jsonrpc": "2.0", "id": id, "method": method})
}

fn notification(method: &str) -> Value {
    json!({"jsonrpc": "2.0", "method": method})
}

/// The decision about a POST with this body.
fn post(policy: &Instance<Mcp>, body: &str) -> Decision {
    post_with(policy, body, &[])
}

fn post_with(policy: &Instance<Mcp>, body: &str, more: &[(&str, &str)]) -> Decision {
    let facts = [
        ("method", "POST"),
        ("client-ip", "192.0.2.1"),
        ("body.type", "json"),
        ("body.json:", body),
    ];
    policy.decide(&[&facts[..], more].concat()).unwrap()
}

/// What each limit is charged.
fn charged(decision: &Decision) -> Vec<(&str, u64)> {
    match &decision.verdict {
        Verdict::Check(limits) => {
            limits.iter().map(|limit| (limit.name.as_str(), limit.cost)).collect()
        }
        Verdict::Deny(denial) => panic!("{denial:?}"),
        Verdict::Bypass => Vec::new(),
    }
}

fn denied(decision: &Decision) -> &Denial {
    match &decision.verdict {
        Verdict::Deny(denial) => denial,
        other => panic!("{other:?}"),
    }
}

/// The status and the JSON-RPC error of a denial.
fn error(decision: &Decision) -> (u16, Value) {
    let denial = denied(decision);
    let body = denial.body.as_ref().unwrap();
    assert_eq!(body.media_type, "application/json");
    (denial.status, serde_json::from_str(&body.text).unwrap())
}

fn option<'d>(decision: &'d Decision, name: &str) -> Option<&'d str> {
    let found = decision.options.iter().find(|(known, _)| known == name);
    found.map(|(_, value)| value.as_str())
}

fn label<'d>(decision: &'d Decision, name: &str) -> Option<&'d str> {
    let found = decision.labels.iter().find(|(known, _)| known == name);
    found.map(|(_, value)| value.as_str())
}
