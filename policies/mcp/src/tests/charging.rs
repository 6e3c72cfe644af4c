//! What requests are charged: tools, methods, batches, sessions, streams.

use proptest::prelude::*;

use super::*;

#[test]
fn a_call_costs_what_its_tool_does_and_counts_in_the_limits_of_tool_and_method() {
    let policy = priced();
    for (message, expected) in [
        (call(1, "search"), vec![("points", 5), ("calls", 1)]),
        (call(1, "run_query"), vec![("points", 20), ("runs", 1), ("calls", 1)]),
        (call("a", "unknown"), vec![("points", 2), ("others", 1), ("calls", 1)]),
        (request(1, "resources/read"), vec![("points", 3)]),
        (request(1, "prompts/get"), vec![("points", 1)]),
        (request(1, "tools/list"), vec![]),
        (notification("notifications/initialized"), vec![]),
        (json!({"jsonrpc": "2.0", "id": 7, "result": {}}), vec![]),
        (json!({"jsonrpc": "2.0", "id": 7, "error": {"code": 1, "message": ""}}), vec![]),
    ] {
        assert_eq!(charged(&post(&policy, &message.to_string())), expected, "{message}");
    }
}

#[test]
fn each_message_of_a_batch_is_counted_and_all_are_in_one_plan() {
    let batch = json!([
        call(1, "search"),
        call(2, "run_a"),
        call(3, "run_b"),
        notification("notifications/progress"),
        request(4, "ping"),
        call(5, "mine"),
    ]);
    let decision = post(&priced(), &batch.to_string());
    let expected = [("points", 5 + 20 + 20 + 1 + 2), ("calls", 4), ("runs", 2), ("others", 1)];
    assert_eq!(charged(&decision), expected);
    assert_eq!(label(&decision, "cost"), Some("48"));
    assert_eq!(label(&decision, "method"), Some("tools/call,ping"));
    assert_eq!(label(&decision, "tool"), Some("search,run_a,run_b,mine"));
}

#[test]
fn notifications_and_responses_cost_what_is_configured() {
    let policy = policy(r#", "notification_cost": 2"#);
    let batch = json!([
        notification("notifications/cancelled"),
        {"jsonrpc": "2.0", "id": 1, "result": {}},
        request(2, "ping"),
    ]);
    assert_eq!(charged(&post(&policy, &batch.to_string())), [("points", 5)]);
}

#[test]
fn what_is_no_notification_by_its_name_is_a_request_without_an_id() {
    let policy = priced();
    let call = json!({"method": "tools/call", "params": {"name": "search"}});
    assert_eq!(charged(&post(&policy, &call.to_string())), [("points", 5), ("calls", 1)]);
    assert_eq!(charged(&post(&policy, r#"{"method": "resources/read"}"#)), [("points", 3)]);
    // A notification's name does not make a request free.
    let request = request(1, "notifications/cancelled");
    assert_eq!(charged(&post(&policy, &request.to_string())), [("points", 1)]);
}

#[test]
fn limits_by_session_and_by_client_are_decided_together() {
    let config = r#"{"key": "{bearer}", "limits": [
        {"name": "client", "algorithm": "gcra", "quota": 60, "period": "1m"},
        {"name": "session", "algorithm": "gcra", "quota": 30, "period": "1m",
         "key": "{header.mcp-session-id}"}]}"#;
    let policy = Instance::<Mcp>::new(config).unwrap();
    assert_eq!(policy.manifest().warnings, []);
    let keys = |more: &[(&str, &str)]| {
        let decision = post_with(&policy, &call(1, "a").to_string(), more);
        decision.limits().iter().map(|limit| limit.key.clone()).collect::<Vec<_>>()
    };
    let (bearer, session) = (("bearer", "t"), ("header.mcp-session-id", "s"));
    assert_eq!(keys(&[bearer, session]), ["t", "s"]);
    // The first request of a session has none yet.
    assert_eq!(keys(&[bearer]), ["t", "\\@192.0.2.1"]);
    assert_eq!(keys(&[bearer, session, session]), ["t", "\\@192.0.2.1"]);
}

#[test]
fn streams_and_ends_of_sessions_have_limits_of_their_own() {
    let policy = policy(&format!(
        r#", "streams": [{{"name": "open", "algorithm": "concurrency", "quota": 3}}], "requests": {}"#,
        own("http")
    ));
    let decide = |method: &str, body: &str| {
        let facts = [("method", method), ("client-ip", "192.0.2.1"), ("body.type", body)];
        policy.decide(&facts).unwrap()
    };
    assert_eq!(charged(&decide("GET", "empty")), [("open", 1), ("http", 1)]);
    assert_eq!(charged(&decide("DELETE", "empty")), [("http", 1)]);
    let posted = post(&policy, &notification("notifications/initialized").to_string());
    assert_eq!(charged(&posted), [("http", 1)]);
    assert_eq!(charged(&post(&policy, &call(1, "a").to_string())), [("points", 1), ("http", 1)]);
    let listen = json!([request(1, "subscriptions/listen"), request(2, "Subscriptions/Listen")]);
    let listens = post(&policy, &listen.to_string());
    assert_eq!(charged(&listens), [("points", 2), ("open", 2), ("http", 1)]);
    for method in ["GET", "DELETE", "HEAD", "OPTIONS"] {
        assert_eq!(denied(&decide(method, "json")).status, 400, "{method}");
    }
    let client = ("client-ip", "192.0.2.1");
    let upgrade = [("method", "GET"), client, ("body.type", "empty"), ("upgrade", "websocket")];
    assert_eq!(denied(&policy.decide(&upgrade).unwrap()).status, 400);
    let plain = super::policy("").decide(&[("method", "GET"), ("client-ip", "192.0.2.1")]).unwrap();
    assert_eq!(plain.verdict, Verdict::Bypass);
}

#[test]
fn a_batch_matters_as_much_as_what_matters_least_in_it() {
    let policy = priced();
    for (tools, expected) in [
        (vec!["search"], Some("6")),
        (vec!["search", "run_a"], Some("2")),
        (vec!["mine"], None),
        // What has no priority of its own must not gain one from its batch.
        (vec!["search", "mine"], None),
        (vec!["run_a", "mine"], Some("2")),
    ] {
        let batch = Value::Array(tools.iter().map(|tool| call(1, tool)).collect());
        let decision = post(&policy, &batch.to_string());
        assert_eq!(option(&decision, "priority"), expected, "{tools:?}");
    }
}

#[test]
fn listed_clients_are_never_read() {
    let policy = policy(r#", "bypass": ["192.0.2.0/24"]"#);
    assert_eq!(post(&policy, "[").verdict, Verdict::Bypass);
}

/// A message, and its cost as `priced` has it.
fn messages() -> impl Strategy<Value = (Value, u64)> {
    let ids = prop_oneof![any::<i64>().prop_map(Value::from), ".{0,9}".prop_map(Value::from)];
    let tools = prop_oneof![
        Just(("search".to_owned(), 5)),
        "run_[a-z]{0,5}".prop_map(|tool| (tool, 20)),
        "x[a-z\u{e9}\"{}]{0,5}".prop_map(|tool| (tool, 2)),
    ];
    prop_oneof![
        (ids.clone(), tools).prop_map(|(id, (tool, cost))| (call(id, &tool), cost)),
        ids.prop_map(|id| (request(id, "resources/list"), 3)),
        "notifications/[a-z/]{0,9}".prop_map(|method| (notification(&method), 0)),
        any::<u32>().prop_map(|id| (json!({"id": id, "result": {"method": "tools/call"}}), 0)),
    ]
}

proptest! {
    /// A batch is charged exactly what its messages are charged one by one, in any order, and each
    /// of its requests has its error. A batch of more than a limit ever lets through is told which.
    #[test]
    fn a_batch_costs_the_sum_of_its_messages(messages in prop::collection::vec(messages(), 1..=16)) {
        let policy = priced();
        let mut alone = std::collections::BTreeMap::<String, u64>::new();
        for (message, cost) in &messages {
            let decision = post(&policy, &message.to_string());
            for (name, units) in charged(&decision) {
                *alone.entry(name.to_owned()).or_default() += units;
            }
            let points = charged(&decision).iter().find(|(name, _)| *name == "points").map_or(0, |(_, units)| *units);
            prop_assert_eq!(points, *cost);
        }
        let batch = Value::Array(messages.iter().map(|(message, _)| message.clone()).collect());
        let decision = post(&policy, &batch.to_string());
        let too_much: Vec<String> = alone
            .iter()
            .filter(|(name, units)| **units > if *name == "points" { 1000 } else { OWN_QUOTA })
            .map(|(name, _)| format!("the limit {name} never lets through more than "))
            .collect();
        if !too_much.is_empty() {
            let reason = &denied(&decision).reason;
            prop_assert!(too_much.iter().any(|limit| reason.starts_with(limit)), "{}", reason);
            return Ok(());
        }
        let together = charged(&decision).into_iter().map(|(name, units)| (name.to_owned(), units));
        prop_assert_eq!(together.collect::<std::collections::BTreeMap<_, _>>(), alone);
        if let Some(text) = option(&decision, "refusal-body") {
            let filled = replies::filled(text);
            let ids = |message: &&Value| message.get("method").is_some() && message.get("id").is_some();
            let wanted: Vec<&Value> = messages.iter().map(|(message, _)| message).filter(ids).map(|message| &message["id"]).collect();
            let found: Vec<&Value> = filled.as_array().into_iter().flatten().map(|error| &error["id"]).collect();
            prop_assert_eq!(found, wanted);
        }
    }
}
