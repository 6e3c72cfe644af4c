//! What each mistake says, and what is warned of.

use super::*;

fn mistakes(config: &str) -> Vec<String> {
    let mistakes = Instance::<Mcp>::new(config).err().unwrap_or_default();
    let mut shown: Vec<String> =
        mistakes.iter().map(|one| format!("{}: {}", one.path, one.message)).collect();
    shown.sort();
    shown
}

#[test]
fn all_mistakes_come_at_once() {
    let config = format!(
        r#"{{"limits": [{POINTS}], "max_batch": 33, "refusal_status": 204, "default_cost": 1001,
            "tools": {{"a*b": {{}}, "dear": {{"cost": 2000, "priority": 8}}}},
            "methods": {{"ping": {{"limits": [{POINTS}]}}}}}}"#
    );
    assert_eq!(
        mistakes(&config),
        [
            "default_cost: found 1001, expected at most 1000: limit \"points\" could never let such a request through",
            "max_batch: found 33, expected 1 to 32",
            "methods.ping.limits[0].name: found \"points\", expected a name that limits[0] does not have",
            "refusal_status: found 204, expected 200, or 400 to 599",
            "tools.a*b: found \"a*b\", expected a name, or the start of one and a `*` at its end, such as \"run_*\"",
            "tools.dear.cost: found 2000, expected at most 1000: limit \"points\" could never let such a request through",
            "tools.dear.priority: found 8, expected 0 to 7",
        ]
    );
    assert_eq!(
        mistakes("{}"),
        [": found no limits, expected `limits`, or a tool or a method with limits"]
    );
}

#[test]
fn a_request_has_room_for_the_limits_of_its_tool_and_method() {
    let limits = |prefix: &str, count: usize| {
        let one = |index| own(&format!("{prefix}{index}")).trim_matches(['[', ']']).to_owned();
        (0..count).map(one).collect::<Vec<_>>().join(",")
    };
    let config = |own: usize| {
        format!(
            r#"{{"limits": [{}], "tools": {{"t": {{"limits": [{}]}}}}, "methods": {{"m": {{"limits": [{}]}}}}}}"#,
            limits("a", 10),
            limits("b", own),
            limits("c", 2)
        )
    };
    assert_eq!(mistakes(&config(4)), [""; 0]);
    assert_eq!(
        mistakes(&config(5)),
        [
            ": found 17 limits for one request, with those of its tool and method, expected at most 16"
        ]
    );
}

#[test]
fn limits_may_be_those_of_tools_alone() {
    let config = format!(r#"{{"tools": {{"*": {{"limits": {}}}}}}}"#, own("calls"));
    let policy = Instance::<Mcp>::new(&config).unwrap();
    assert_eq!(charged(&post(&policy, &call(1, "a").to_string())), [("calls", 1)]);
    assert_eq!(post(&policy, &request(1, "ping").to_string()).verdict, Verdict::Bypass);
}

#[test]
fn a_limit_by_session_alone_is_warned_of() {
    let session = POINTS.replace('}', r#", "key": "{header.mcp-session-id}"}"#);
    let warned = |config: &str| {
        let policy = Instance::<Mcp>::new(config).unwrap();
        let warnings = policy.manifest().warnings;
        warnings.into_iter().map(|warning| (warning.kind, warning.path)).collect::<Vec<_>>()
    };
    let found = |path: &str| vec![("unbounded-key".to_owned(), path.to_owned())];
    let alone = format!(r#"{{"limits": [{session}]}}"#);
    assert_eq!(warned(&alone), found("limits[0].key"));
    let of_tool = format!(r#"{{"tools": {{"*": {{"limits": [{session}]}}}}}}"#);
    assert_eq!(warned(&of_tool), found("tools.*.limits[0].key"));
    let both = format!(r#"{{"limits": [{session}], "requests": {}}}"#, own("client"));
    assert_eq!(warned(&both), []);
}
