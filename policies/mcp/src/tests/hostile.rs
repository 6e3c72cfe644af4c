//! What clients may try, so that a call is not counted, or counted as a cheaper one.

use super::*;

#[track_caller]
fn refused(body: &str) -> (u16, i64, String) {
    let (status, error) = error(&post(&priced(), body));
    let code = error["error"]["code"].as_i64().unwrap();
    (status, code, error["error"]["message"].as_str().unwrap().to_owned())
}

#[test]
fn what_servers_could_read_in_two_ways_is_refused() {
    for body in [
        r#"{"id": 1, "method": "tools/call", "params": {"name": "a", "name": "run_a"}}"#,
        r#"{"id": 1, "method": "tools/call", "params": {"name": "a", "n\u0061me": "run_a"}}"#,
        r#"{"id": 1, "method": "tools/call", "params": {"name": "a", "Name": "run_a"}}"#,
        r#"{"id": 1, "method": "ping", "method": "tools/call", "params": {"name": "run_a"}}"#,
        r#"{"id": 1, "method": "ping", "Method": "tools/call", "params": {"name": "run_a"}}"#,
        r#"{"id": 1, "method": "tools/call", "params": {"name": "a"}, "params": {"name": "run_a"}}"#,
        r#"{"id": 1, "method": "tools/call", "params": {"name": "a"}, "param\u017f": {"name": "run_a"}}"#,
        r#"{"id": 1, "id": 2, "method": "ping"}"#,
        r#"{"id": 1, "result": {}, "METHOD": "tools/call"}"#,
        r#"{"id": null, "method": "tools/call", "params": {"name": "a"}}"#,
        r#"{"id": {}, "method": "ping"}"#,
        r#"{"id": 1, "method": ["tools/call"]}"#,
        r#"{"id": 1}"#,
        "{}",
        "[]",
        "7",
        "[7]",
        r#"[[{"id": 1, "method": "ping"}]]"#,
        r#"[{"id": 1, "method": "ping"}, {}]"#,
    ] {
        let (status, code, _) = refused(body);
        assert_eq!((status, code), (400, -32600), "{body}");
    }
    let long = json!({"id": "x".repeat(127), "method": "ping"});
    assert_eq!(refused(&long.to_string()).2, "an id that is too long, or not valid");
    for long in [call(1, &"x".repeat(2_000)), request(1, &"x".repeat(2_000))] {
        assert_eq!(refused(&long.to_string()).2, "a name that is too long");
    }
}

#[test]
fn arguments_may_have_any_names() {
    let call = r#"{"id": 1, "method": "tools/call", "params": {"name": "search",
        "arguments": {"name": 1, "name": 2, "Name": 3, "\u017f": 4}}}"#;
    assert_eq!(charged(&post(&priced(), call))[0], ("points", 5));
    // Params of other methods are not read.
    let other = r#"{"id": 1, "method": "ping", "params": {"name": 1, "Name": 2}}"#;
    assert_eq!(charged(&post(&priced(), other)), [("points", 1)]);
}

#[test]
fn a_call_with_many_members_is_refused_and_other_methods_may_have_any_number() {
    let members: Vec<String> = (0..64).map(|index| format!(r#""m{index}": 1"#)).collect();
    let members = members.join(",");
    let call =
        format!(r#"{{"method": "tools/call", "id": 1, "params": {{{members}, "name": "run_a"}}}}"#);
    let expected = (400, -32600, "an object with too many members".to_owned());
    assert_eq!(refused(&call), expected);
    assert_eq!(refused(&format!(r#"{{"method": "ping", "id": 1, {members}}}"#)), expected);
    let other = call.replace("tools/call", "ping");
    assert_eq!(charged(&post(&priced(), &other)), [("points", 1)]);
}

#[test]
fn a_call_must_name_its_tool() {
    for params in [
        "",
        r#", "params": {}"#,
        r#", "params": []"#,
        r#", "params": {"name": 7}"#,
        r#", "params": {"name": ""}"#,
    ] {
        let body = format!(r#"{{"id": 5, "method": "tools/call"{params}}}"#);
        let (status, error) = error(&post(&priced(), &body));
        assert_eq!((status, &error["error"]["code"]), (400, &json!(-32602)), "{body}");
        assert_eq!(error["id"], 5);
    }
}

#[test]
fn other_spellings_of_a_method_or_tool_are_not_cheaper() {
    let policy = priced();
    for method in ["Tools/Call", " tools/call", "tools/call\t", "tools\\/call"] {
        let body = format!(r#"{{"id": 1, "method": "{method}", "params": {{"name": " RUN_A"}}}}"#);
        let body = body.replace('\t', "\\t");
        assert_eq!(charged(&post(&policy, &body))[..2], [("points", 20), ("runs", 1)], "{body}");
    }
}

#[test]
fn a_message_that_is_both_is_counted_as_a_request() {
    let both = r#"{"id": 1, "result": {}, "method": "tools/call", "params": {"name": "run_a"}}"#;
    assert_eq!(charged(&post(&priced(), both))[0], ("points", 20));
}

#[test]
fn what_cannot_be_read_is_a_parse_error() {
    let policy = priced();
    for (body_type, body, status, code) in [
        ("json", Some("{"), 400, -32700),
        ("json", None, 400, -32700),
        ("form", None, 400, -32700),
        ("other", None, 400, -32700),
        ("empty", None, 400, -32700),
        ("large", None, 413, -32600),
    ] {
        for method in ["POST", "PUT", "PATCH", "post", "get"] {
            let mut facts =
                vec![("method", method), ("client-ip", "192.0.2.1"), ("body.type", body_type)];
            facts.extend(body.map(|body| ("body.json:", body)));
            let (found, error) = error(&policy.decide(&facts).unwrap());
            assert_eq!((found, &error["error"]["code"]), (status, &json!(code)), "{body_type}");
            assert_eq!(error["id"], Value::Null);
        }
    }
    let deep = format!(
        r#"{{"id": 1, "method": "ping", "params": {}{}}}"#,
        "[".repeat(200),
        "]".repeat(200)
    );
    assert_eq!(refused(&deep).1, -32700);
}

#[test]
fn header_fields_about_the_message_are_not_read() {
    let manifest = priced().manifest();
    let read = ["method", "upgrade", "body.type", "body.json:", "client-ip"];
    assert_eq!(manifest.request_facts, read);
    assert!(!manifest.pure);
}

#[test]
fn a_batch_is_bounded() {
    let batch = |count: usize| Value::Array(vec![notification("notifications/progress"); count]);
    assert_eq!(charged(&post(&priced(), &batch(16).to_string())), []);
    let (status, _, why) = refused(&batch(17).to_string());
    assert_eq!((status, why.as_str()), (400, "a batch of 17 messages, at most 16 are allowed"));
}

#[test]
fn a_batch_that_no_limit_ever_lets_through_is_told_so() {
    let policy =
        policy(&format!(r#", "tools": {{"dear": {{"cost": 400, "limits": {}}}}}"#, own("own")));
    let batch = |count: usize| Value::Array(vec![call(1, "dear"); count]).to_string();
    assert_eq!(charged(&post(&policy, &batch(2))), [("points", 800), ("own", 2)]);
    let (status, body) = error(&post(&policy, &batch(3)));
    assert_eq!(status, 400);
    assert_eq!(
        body["error"]["message"],
        "the limit points never lets through more than 1000 at once: send fewer messages in a batch"
    );
    let cheap = super::policy(&format!(r#", "tools": {{"a": {{"limits": {}}}}}"#, own("own")));
    let (_, body) = error(&post(&cheap, &Value::Array(vec![call(1, "a"); 10]).to_string()));
    assert!(
        body["error"]["message"].as_str().unwrap().starts_with("the limit own never"),
        "{body}"
    );
}

#[test]
fn a_batch_of_many_tools_with_limits_is_refused_and_never_a_failure() {
    let tools: Vec<String> = (0..16)
        .map(|index| format!(r#""t{index}": {{"limits": {}}}"#, own(&format!("l{index}"))))
        .collect();
    let policy = policy(&format!(r#", "tools": {{{}}}"#, tools.join(",")));
    let batch = |count: usize| {
        Value::Array((0..count).map(|index| call(1, &format!("t{index}"))).collect()).to_string()
    };
    assert_eq!(charged(&post(&policy, &batch(15))).len(), 16);
    let (status, body) = error(&post(&policy, &batch(16)));
    assert_eq!(
        (status, body["error"]["message"].as_str().unwrap()),
        (400, "a batch with 17 limits, at most 16 are allowed: send fewer messages in it")
    );
}
