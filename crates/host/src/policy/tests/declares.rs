//! What the policies that ship declare is what they decide with.

use super::*;
use crate::plan::Limit;

type Facts<'a> = &'a [(&'a str, &'a str)];

const CLIENT: (&str, &str) = ("client-ip", "192.0.2.1");
const POST: (&str, &str) = ("method", "POST");

/// A limit of each name, with another algorithm for each list.
const A: &str = r#"{"name": "a", "algorithm": "gcra", "quota": 9, "period": "1s", "debt": 4}"#;
const B: &str = r#"{"name": "b", "algorithm": "fixed_window", "quota": 90, "period": "1m"}"#;
const C: &str = r#"{"name": "c", "algorithm": "concurrency", "quota": 3}"#;
const D: &str = r#"{"name": "d", "algorithm": "quota", "quota": 70, "calendar": "month", "time_zone": "Europe/Berlin"}"#;

/// A policy's configuration, requests that it is asked about, and the names and settings of the
/// limits that it declares.
struct Case<'a> {
    policy: &'a str,
    config: String,
    requests: Vec<Facts<'a>>,
    declared: &'a [(&'a str, &'a str)],
}

fn is_declared(limit: &Limit, declared: &[DeclaredLimit]) -> bool {
    declared.iter().any(|one| {
        one.name == limit.name
            && one.algorithm == limit.algorithm
            && limit.key.starts_with(&one.key_prefix)
            && one.cost_max.is_none_or(|most| limit.cost <= most)
    })
}

#[expect(clippy::too_many_lines, reason = "a table")]
fn cases<'a>() -> Vec<Case<'a>> {
    let case = |policy, config: &str, requests: &[Facts<'a>], declared| Case {
        policy,
        config: format!("{{{config}}}"),
        requests: requests.to_vec(),
        declared,
    };
    let guard = r#""account": "{header.x-user}", "success": [200]"#;
    let attempt: Facts<'_> = &[POST, CLIENT, ("header.x-user", "ann")];
    let ban = r#""statuses": [404], "strikes": {"quota": 7, "period": "90s"}, "ban": "1d12h""#;
    let own_ban: &[(&str, &str)] = &[("strikes", "strikes"), ("ban", "ban")];
    let llm = format!(r#""api": "openai", "tokens": [{}]"#, B.replace("90", "9000000"));
    let plain: &str = r#"{"model": "m", "messages": [{"role": "user", "content": "Hello"}]}"#;
    let picture: &str = r#"{"model": "m", "messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]}]}"#;
    let chat = |body: &'a str| -> Facts<'a> {
        let path = ("path", "/v1/chat/completions");
        Vec::leak(vec![
            POST,
            CLIENT,
            path,
            ("body.type", "json"),
            ("body.bytes", "200"),
            ("body:/model", "m"),
            ("body.json:", body),
        ])
    };
    vec![
        case(
            "ban",
            &format!(r#"{ban}, "limits": [{B}, {C}]"#),
            &[&[CLIENT]],
            &[("b", "limits[0]"), ("c", "limits[1]"), ("strikes", "strikes"), ("ban", "ban")],
        ),
        case("ban", &format!(r#"{ban}, "extend": true"#), &[&[CLIENT]], own_ban),
        case(
            "client-ip",
            &format!(r#""limits": [{B}, {D}]"#),
            &[&[CLIENT]],
            &[("b", "limits[0]"), ("d", "limits[1]")],
        ),
        case(
            "concurrent",
            &format!(r#""max": 5, "total": 50, "limits": [{B}]"#),
            &[&[CLIENT]],
            &[("in-flight", "max"), ("total", "total"), ("b", "limits[0]")],
        ),
        case(
            "graphql-cost",
            &format!(r#""limits": [{D}], "requests": [{C}], "max_cost": 60"#),
            &[&[
                CLIENT,
                POST,
                ("body.type", "json"),
                ("body.json:", r#"{"query": "{ a { b } }"}"#),
            ]],
            &[("d", "limits[0]"), ("c", "requests[0]")],
        ),
        case(
            "jwt-claim",
            &format!(r#""verify": "none", "missing": "address", "limits": [{B}]"#),
            &[&[CLIENT]],
            &[("b", "limits[0]")],
        ),
        case(
            "jwt-claim",
            &format!(
                r#""verify": "none", "missing": "address", "plans": {{"p.1": [{B}]}}, "default_plan": "p.1""#
            ),
            &[&[CLIENT]],
            &[("b", "plans.p.1[0]")],
        ),
        case(
            "keyed",
            &format!(r#""key": "{{path}}", "limits": [{B}, {D}]"#),
            &[&[CLIENT, ("path", "/a")]],
            &[("b", "limits[0]"), ("d", "limits[1]")],
        ),
        case(
            "llm-budget",
            &format!(r#"{llm}, "requests": [{D}]"#),
            &[chat(plain), chat(picture)],
            &[("b", "tokens[0]"), ("in-flight", ""), ("d", "requests[0]")],
        ),
        case(
            "llm-budget",
            &format!(r#"{llm}, "in_flight": 7"#),
            &[chat(picture)],
            &[("b", "tokens[0]"), ("in-flight", "in_flight")],
        ),
        case(
            "llm-budget",
            &format!(r#"{llm}, "in_flight": 0"#),
            &[chat(picture)],
            &[("b", "tokens[0]")],
        ),
        case("login-guard", guard, &[attempt], &[("pair", ""), ("address", "")]),
        case(
            "login-guard",
            &format!(r#"{guard}, "by_account": [{B}], "by_address": [{D}]"#),
            &[attempt],
            &[("d", "by_address[0]"), ("b", "by_account[0]")],
        ),
        case(
            "mcp",
            &format!(
                r#""limits": [{D}], "streams": [{C}], "tools": {{"run_*": {{"limits": [{B}]}}}}"#
            ),
            &[
                &[CLIENT, ("method", "GET")],
                &[
                    CLIENT,
                    POST,
                    ("body.type", "json"),
                    (
                        "body.json:",
                        r#"[{"id": 1, "method": "tools/call", "params": {"name": "run_a"}}]"#,
                    ),
                ],
            ],
            &[("d", "limits[0]"), ("b", "tools.run_*.limits[0]"), ("c", "streams[0]")],
        ),
        case(
            "path-cost",
            &format!(r#""costs": [{{"path": "/a", "cost": 8}}], "limits": [{B}]"#),
            &[&[CLIENT, POST, ("path", "/a")], &[CLIENT, POST, ("path", "/b")]],
            &[("b", "limits[0]")],
        ),
        case(
            "plans",
            &format!(
                r#""key": "{{header.x-key}}", "default_plan": "free", "plans": {{"free": [{B}], "gold": [{C}]}},
                   "assign": {{"sha256:2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683": "gold"}}"#
            ),
            &[&[CLIENT], &[CLIENT, ("header.x-key", "key")]],
            &[("b", "plans.free[0]"), ("c", "plans.gold[0]")],
        ),
        case(
            "rls",
            &format!(r#""rules": [{{"descriptor": ["a"], "limits": [{B}, {D}]}}]"#),
            &[&[("rls.descriptor", r#"[["a","x"]]"#)]],
            &[("b", "rules[0].limits[0]"), ("d", "rules[0].limits[1]")],
        ),
        case(
            "send-quota",
            &format!(
                r#""cost": "{{header.x-n}}", "max_cost": 20, "limits": [{B}], "requests": [{C}]"#
            ),
            &[&[CLIENT, POST, ("header.x-n", "20")]],
            &[("b", "limits[0]"), ("c", "requests[0]")],
        ),
        case(
            "tenant",
            &format!(
                r#""tenant": "{{header.x-t}}", "user": "{{header.x-u}}", "tenant_limits": [{B}], "user_limits": [{C}]"#
            ),
            &[&[CLIENT, ("header.x-t", "t"), ("header.x-u", "u")]],
            &[("b", "tenant_limits[0]"), ("c", "user_limits[0]")],
        ),
    ]
}

#[test]
fn each_policy_declares_the_limits_that_it_asks_for() {
    let cases = cases();
    for name in super::super::shipped() {
        assert!(cases.iter().any(|case| case.policy == *name), "nothing is asked of {name}");
    }
    for Case { policy: name, config, requests, declared } in cases {
        let built = build(&settings(shipped(name), &config));
        let policy = built.unwrap_or_else(|errors| panic!("{name} {config}: {errors:?}"));
        assert!(policy.declares_limits());
        let found = policy.limits().iter().map(|limit| (&*limit.name, &*limit.at));
        assert_eq!(found.collect::<Vec<_>>(), declared, "{name} {config}");
        let mut asked = Vec::new();
        for facts in requests {
            let decision = policy.decide(facts).unwrap();
            for limit in plan(&decision).limits() {
                let is_declared = is_declared(limit, policy.limits());
                assert!(is_declared, "{name} {config}: {limit:?} is none of {:?}", policy.limits());
                asked.push(limit.clone());
            }
        }
        for limit in policy.limits() {
            let is_asked = asked.iter().any(|one| is_declared(one, std::slice::from_ref(limit)));
            assert!(is_asked, "{name} {config}: {limit:?} is never asked for");
        }
    }
}

#[test]
fn a_guest_that_declares_nothing_is_read_as_the_sdk_would() {
    let config = format!(r#"{{"limits": [{A}]}}"#);
    let policy = build(&settings(misbehaving(), &config)).unwrap();
    assert!(!policy.declares_limits());
    let found = policy.limits().iter().map(|limit| (&*limit.name, &*limit.at));
    assert_eq!(found.collect::<Vec<_>>(), [("a", "limits[0]")]);
}
