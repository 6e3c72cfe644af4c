//! What clients are told.

use super::*;

/// A refusal's body as the proxy fills it in.
pub(super) fn filled(text: &str) -> Value {
    let text = text
        .replace("{retry_after}", "12")
        .replace("{limit}", "\"points\"")
        .replace("{detail}", "The allowance is used up for now.")
        .replace("{when}", "in 12 seconds");
    serde_json::from_str(&text).unwrap_or_else(|wrong| panic!("{wrong}: {text}"))
}

fn refusal(policy: &Instance<Mcp>, body: &Value) -> Value {
    let decision = post(policy, &body.to_string());
    assert_eq!(option(&decision, "refusal-type"), Some("application/json"));
    filled(option(&decision, "refusal-body").unwrap())
}

#[test]
fn a_limits_refusal_says_what_was_not_done_and_when_to_try_again() {
    assert_eq!(
        refusal(&policy(""), &call(7, "search")),
        json!({"jsonrpc": "2.0", "id": 7, "error": {
            "code": -32029,
            "message": "Rate limit: the tool \"search\" was not called. \
                        The allowance is used up for now. Try again in 12 seconds.",
            "data": {"retry_after_seconds": 12, "limit": "points", "method": "tools/call", "tool": "search"},
        }})
    );
    let other = refusal(&policy(""), &request("a-1", "resources/read"));
    assert_eq!(other["id"], "a-1");
    assert_eq!(
        other["error"]["message"],
        "Rate limit: \"resources/read\" was not done. \
         The allowance is used up for now. Try again in 12 seconds."
    );
    assert_eq!(other["error"]["data"]["tool"], Value::Null);
}

#[test]
fn a_batch_gets_an_error_for_each_request_with_an_id() {
    let batch = json!([call(1, "a"), notification("notifications/progress"), request("x", "ping")]);
    let errors = refusal(&policy(""), &batch);
    let errors = errors.as_array().unwrap();
    assert_eq!(
        errors.iter().map(|error| &error["id"]).collect::<Vec<_>>(),
        [&json!(1), &json!("x")]
    );
    let message = errors[0]["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("\"a\" was not called, nor anything else of its batch. "),
        "{message}"
    );
    // One request is in an array, too.
    assert!(refusal(&policy(""), &json!([call(1, "a")])).is_array());
}

#[test]
fn the_status_is_chosen_only_for_requests_that_expect_a_response() {
    let status = |more: &str, body: Value| {
        let decision = post(&policy(more), &body.to_string());
        option(&decision, "refusal-status").map(str::to_owned)
    };
    let asks = r#", "refusal_status": 200, "notification_cost": 1"#;
    assert_eq!(status(asks, call(1, "a")), Some("200".to_owned()));
    assert_eq!(status(asks, notification("notifications/cancelled")), None);
    assert_eq!(status("", call(1, "a")), None);
    let policy = policy(asks);
    let alone = refusal(&policy, &notification("notifications/cancelled"));
    assert_eq!((&alone["id"], &alone["error"]["code"]), (&Value::Null, &json!(-32029)));
}

#[test]
fn a_clients_words_are_neither_placeholders_nor_long() {
    let tool = format!("{{when}}\n{{request_id}}\"{}", "x".repeat(200));
    let text = post(&policy(""), &call("{limit}", &tool).to_string());
    let text = option(&text, "refusal-body").unwrap();
    assert_eq!(text.matches("{when}").count(), 1, "{text}");
    assert_eq!(text.matches("{limit}").count(), 1, "{text}");
    assert!(!text.contains("{request_id}"), "{text}");
    let error = filled(text);
    assert_eq!(error["id"], "{limit}");
    let shown = error["error"]["data"]["tool"].as_str().unwrap();
    assert!(
        shown.starts_with("{when}?{request_id}\"xxx") && shown.chars().count() == 64,
        "{shown}"
    );
}

#[test]
fn the_largest_refusal_fits_the_proxys_bound() {
    let policy = policy(r#", "max_batch": 32"#);
    for body in [call("{".repeat(126), &"{".repeat(99)), request("{".repeat(126), &"{".repeat(99))]
    {
        let batch = Value::Array(vec![body; 32]);
        let decision = post(&policy, &batch.to_string());
        let text = option(&decision, "refusal-body").unwrap();
        assert!(text.len() <= 64 << 10, "{}", text.len());
    }
}

#[test]
fn a_missing_key_is_told_in_json_rpc_with_its_own_status() {
    let policy = policy(r#", "key": "{bearer}", "missing": {"deny": 401}"#);
    let (status, body) = error(&post(&policy, &call(3, "a").to_string()));
    assert_eq!((status, &body["id"], &body["error"]["code"]), (401, &json!(3), &json!(-32600)));
    // What costs nothing needs no key.
    let free = notification("notifications/initialized").to_string();
    assert_eq!(post(&policy, &free).verdict, Verdict::Bypass);
}
