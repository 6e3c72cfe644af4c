//! Where operations are found, and what is refused because it could be read in two ways.

use super::*;

use weir_policy::Digest;

const CHEAP: &str = "{ a { b } }";
const DEAR: &str = "{ a { b { c { d } } } }";

#[test]
fn a_batch_costs_the_sum() {
    let policy = policy(r#", "max_operations": 3, "max_cost": 30, "max_tokens": 40"#);
    let one = json!({ "query": "query One { a { b } }" });
    let two =
        json!({ "query": "query Two($n: Int) { a(first: $n) { b } }", "variables": {"n": 7} });
    let three = json!({ "query": "mutation { a }" });
    let batch = |operations: &[&serde_json::Value]| post(&policy, &json!(operations).to_string());
    let decision = batch(&[&one, &two, &three]);
    assert_eq!(charged(&decision), Ok(1 + 7 + 10));
    assert_eq!(label(&decision, "cost"), Some("18"));
    assert_eq!(label(&decision, "operation"), Some("One,Two"));
    assert_eq!(charged(&batch(&[&one])), Ok(1));
    let free = json!({ "query": "{ a }" });
    assert_eq!(charged(&batch(&[&free, &free])), Ok(1), "1 at least, and not 1 for each");

    let expected = "a batch of 4 operations, at most 3 are allowed";
    assert_eq!(charged(&batch(&[&one, &one, &one, &one])), Err((400, expected)));
    assert_eq!(charged(&batch(&[])), Err((400, "an empty batch")));
    let expected = "the query costs 31, at most 30 are allowed";
    assert_eq!(
        charged(&batch(&[&three, &three, &json!({ "query": "mutation { a { b } }" })])),
        Err((400, expected))
    );
    // Each alone has fewer.
    let expected = "the query has more than 40 tokens";
    assert_eq!(charged(&batch(&[&two, &two, &two])), Err((400, expected)));
}

#[test]
fn one_operation_that_is_refused_refuses_the_batch() {
    let policy = policy("");
    let body = json!([{ "query": CHEAP }, { "query": "{" }]).to_string();
    assert_eq!(refused(&policy, &body).0, 400);
    for other in ["1", "null", "[]", r#""{ a }""#, "[{}]"] {
        let body = format!(r#"[{}, {other}]"#, query(CHEAP));
        assert_eq!(refused(&policy, &body).0, 400, "{body}");
    }
}

#[test]
fn a_body_that_is_no_operation_is_refused() {
    let policy = policy("");
    let operation = "expected an operation or a list of them at line 1 column";
    for (body, expected) in [
        ("1", format!("invalid type: integer `1`, {operation} 1")),
        (r#""{ a }""#, format!("invalid type: string \"{{ a }}\", {operation} 7")),
        ("null", format!("invalid type: null, {operation} 4")),
        ("{", "EOF while parsing an object at line 1 column 1".to_owned()),
        ("{} {}", "trailing characters at line 1 column 4".to_owned()),
        ("[{}", "EOF while parsing a list at line 1 column 3".to_owned()),
        ("[{}] 1", "trailing characters at line 1 column 6".to_owned()),
        ("{}", "there is no query".to_owned()),
        (r#"{"query": null}"#, "there is no query".to_owned()),
        (r#"{"query": 1}"#, "expected a text at line 1 column 12".to_owned()),
        (r#"{"query": ["{ a }"]}"#, "expected a text at line 1 column 20".to_owned()),
        (r#"{"operationName": 1}"#, "expected a text at line 1 column 20".to_owned()),
        (
            r#"{"query": "{ a }", "variables": "{\"n\": 1}"}"#,
            "invalid type: string \"{\\\"n\\\": 1}\", expected an object at line 1 column 44"
                .to_owned(),
        ),
        (
            r#"{"query": "{ a }", "variables": [1]}"#,
            "invalid type: sequence, expected an object at line 1 column 33".to_owned(),
        ),
        (
            r#"{"query": "{ a }", "extensions": 7}"#,
            "invalid type: integer `7`, expected an object at line 1 column 34".to_owned(),
        ),
        (
            r#"{"extensions": {"persistedQuery": 1}}"#,
            "invalid type: integer `1`, expected an object at line 1 column 35".to_owned(),
        ),
        (
            r#"{"extensions": {"persistedQuery": {"sha256Hash": "abc"}}}"#,
            "`sha256Hash` has 64 hexadecimal digits".to_owned(),
        ),
        (
            r#"{"extensions": {"persistedQuery": {"sha256Hash": 1}}}"#,
            "expected a text at line 1 column 51".to_owned(),
        ),
        (
            r#"{"extensions": {"persistedQuery": {"sha256Hash": null}}}"#,
            "there is no query".to_owned(),
        ),
        (r#"{"extensions": {"persistedQuery": {}}}"#, "there is no query".to_owned()),
        (r#"{"extensions": {}}"#, "there is no query".to_owned()),
    ] {
        assert_eq!(refused(&policy, body), (400, expected), "{body}");
    }
}

#[test]
fn other_members_are_ignored() {
    let body = r#" {"id": 7, "Query2": "x", "query": "{ a { b } }", "variables": null, "operationName": null,
        "extensions": {"tracing": true, "persistedQuery": null}, "more": {"query": "{", "query": "{"}} "#;
    assert_eq!(charged(&post(&policy(""), body)), Ok(1));
}

#[test]
fn repeated_members_are_refused() {
    let policy = policy("");
    let hash = "0".repeat(64);
    for body in [
        format!(r#"{{"query": "{DEAR}", "query": "{CHEAP}"}}"#),
        format!(r#"{{"query": "{CHEAP}", "query": "{CHEAP}"}}"#),
        format!(r#"{{"query": null, "query": "{CHEAP}"}}"#),
        // The same name, written with an escape.
        format!(r#"{{"query": "{CHEAP}", "quer\u0079": "{DEAR}"}}"#),
        r#"{"variables": null, "query": "{ a }", "variables": {"n": 9}}"#.to_owned(),
        // Some servers ignore case, also of letters that are not ASCII.
        format!(r#"{{"query": "{CHEAP}", "Query": "{DEAR}"}}"#),
        format!(r#"{{"QUERY": "{DEAR}"}}"#),
        format!(r#"{{"query": "{CHEAP}", "variable\u017f": {{"n": 9}}}}"#),
        format!(r#"{{"query": "{CHEAP}", "extenſions": null}}"#),
        format!(r#"{{"query": "{CHEAP}", "operationName": "A", "operationName": "B"}}"#),
        format!(r#"{{"query": "{CHEAP}", "operationname": "B"}}"#),
        format!(r#"{{"query": "{CHEAP}", "variables": {{}}, "variables": {{"n": 1}}}}"#),
        format!(r#"{{"query": "{CHEAP}", "extensions": null, "extensions": {{}}}}"#),
        format!(
            r#"{{"extensions": {{"persistedQuery": {{"sha256Hash": "{hash}", "sha256hash": "{hash}"}}}}}}"#
        ),
        format!(
            r#"{{"extensions": {{"persistedQuery": {{"sha256Hash": "{hash}", "sha256Hash": "{hash}"}}}}}}"#
        ),
        r#"{"extensions": {"persistedQuery": null, "persistedQuery": {}}}"#.to_owned(),
        r#"{"extensions": {"persistedQuery": null, "PersistedQuery": {}}}"#.to_owned(),
    ] {
        let batch = format!("[{}, {body}]", query(CHEAP));
        for body in [body, batch] {
            let (status, reason) = refused(&policy, &body);
            let twice = reason.starts_with("a name is there twice")
                || reason.starts_with("a name that some servers would take for another one");
            assert!(status == 400 && twice, "{body}: {reason}");
        }
    }
}

#[test]
fn a_variable_that_is_there_twice_is_refused_and_so_is_a_size_in_it() {
    let policy = policy("");
    let text = "query ($n: Int, $i: I) { a(first: $n, input: $i, other: $o) { b } }";
    let decide = |variables: &str| {
        post(&policy, &format!(r#"{{"query": {}, "variables": {variables}}}"#, json!(text)))
    };
    for variables in [
        r#"{"n": 1, "n": 1000}"#,
        r#"{"n": 1, "\u006e": 1000}"#,
        r#"{"x": {}, "x": {}}"#,
        r#"{"i": {"first": 1, "first": 1000}}"#,
    ] {
        let decision = decide(variables);
        let reason = charged(&decision).unwrap_err().1;
        assert!(reason.starts_with("a name is there twice"), "{variables}: {reason}");
    }
    // Deeper inside, no size is looked for.
    for variables in
        [r#"{"n": 3, "i": {"x": 1, "x": 2}}"#, r#"{"n": 3, "i": {"first": {"x": 1, "x": 2}}}"#]
    {
        assert!(charged(&decide(variables)).is_ok(), "{variables}");
    }
}

#[test]
fn bodies_that_were_not_read_as_json_are_refused() {
    let policy = policy("");
    let decide = |method: &str, facts: &[(&str, &str)]| {
        let mut all = vec![("method", method), ("client-ip", "192.0.2.1")];
        all.extend(facts);
        let decision = policy.decide(&all).unwrap();
        charged(&decision).map_err(|(status, reason)| (status, reason.to_owned()))
    };
    let is = |status: u16, reason: &str| Err((status, reason.to_owned()));
    for method in ["POST", "PUT", "get", "OPTIONS"] {
        assert_eq!(decide(method, &[]), is(400, "there is no body"));
        assert_eq!(decide(method, &[("body.type", "empty")]), is(400, "there is no body"));
        for other in ["other", "form", "new"] {
            assert_eq!(decide(method, &[("body.type", other)]), is(400, "the body is not JSON"));
        }
        let large = [("body.type", "large"), ("body.bytes", "2000000")];
        assert_eq!(
            decide(method, &large),
            is(413, "a body of 2000000 bytes is too large to be read")
        );
        assert_eq!(decide(method, &large[..1]), is(413, "the body is too large to be read"));
        assert_eq!(decide(method, &[("body.type", "json")]), is(400, "the body is not JSON"));
    }
    let body = query(CHEAP);
    assert_eq!(decide("PUT", &[("body.type", "json"), ("body.json:", &body)]), Ok(1));
}

#[test]
fn a_get_has_its_operation_in_the_url() {
    let policy = policy("");
    let text = "query A($n: Int) { a(first: $n) { b } } query B { a { b } }";
    let decision = get(
        &policy,
        &[
            ("query.query", text),
            ("query.operationName", "A"),
            ("query.variables", r#" {"n": 4} "#),
            ("query.extensions", "{}"),
        ],
    );
    assert_eq!((charged(&decision), label(&decision, "operation")), (Ok(4), Some("A")));
    // Empty ones are none.
    let empty = [("query.variables", ""), ("query.operationName", ""), ("query.extensions", "")];
    let mut facts = vec![("query.query", CHEAP)];
    facts.extend(empty);
    assert_eq!(charged(&get(&policy, &facts)), Ok(1));
    let head = [("method", "HEAD"), ("client-ip", "192.0.2.1"), ("query.query", CHEAP)];
    assert_eq!(charged(&policy.decide(&head).unwrap()), Ok(1));
    assert_eq!(charged(&get(&policy, &[])), Err((400, "there is no query")));
    assert_eq!(charged(&get(&policy, &[("query.query", "")])), Err((400, "there is no query")));
}

#[test]
fn a_get_that_could_be_read_in_two_ways_is_refused() {
    let policy = policy("");
    for name in ["query", "operationName", "variables", "extensions"] {
        let fact = format!("query.{name}");
        let facts = [(fact.as_str(), CHEAP), (fact.as_str(), "")];
        let expected = Err((400, "a parameter is there twice"));
        assert_eq!(charged(&get(&policy, &facts)), expected, "{name}");
    }
    for body in ["json", "large", "other", "form"] {
        let facts = [
            ("method", "GET"),
            ("client-ip", "192.0.2.1"),
            ("query.query", CHEAP),
            ("body.type", body),
        ];
        let decision = policy.decide(&facts).unwrap();
        assert_eq!(charged(&decision), Err((400, "a GET request with a body")), "{body}");
    }
    let upgraded = get(&policy, &[("query.query", CHEAP), ("upgrade", "websocket")]);
    assert_eq!(charged(&upgraded), Err((400, "a request for another protocol")));
    let text = "query ($n: Int) { a(first: $n) { b } }";
    for variables in ["1", "x", "[1]", "{", r#"{"n": 1} 2"#, r#"{"n": 1}{"n": 2}"#] {
        let facts = [("query.query", text), ("query.variables", variables)];
        let decision = get(&policy, &facts);
        assert!(matches!(charged(&decision), Err((400, _))), "{variables}");
    }
}

#[test]
fn an_operation_beside_the_one_in_the_body_is_refused() {
    let policy = policy("");
    let body = json!({ "query": "query A { a { b } }", "operationName": "A" }).to_string();
    let with = |body: &str, name: &str, value: &str| {
        let facts = [
            ("method", "POST"),
            ("client-ip", "192.0.2.1"),
            ("body.type", "json"),
            ("body.json:", body),
            (name, value),
        ];
        let decision = policy.decide(&facts).unwrap();
        charged(&decision).map_err(|(status, reason)| (status, reason.to_owned()))
    };
    let expected = Err((400, "an operation in the URL and another one in the body".to_owned()));
    for name in ["query.query", "query.variables", "query.extensions"] {
        assert_eq!(with(&body, name, DEAR), expected, "{name}");
        assert_eq!(with(&body, name, ""), expected, "{name}");
    }
    // Some clients write the name into the URL, too, for logs.
    assert_eq!(with(&body, "query.operationName", "A"), Ok(1));
    assert_eq!(with(&body, "query.operationName", "B"), expected);
    let batch = format!("[{body}, {}]", query(CHEAP));
    assert_eq!(with(&batch, "query.operationName", "A"), expected);
}

/// A body that names a persisted query, and perhaps its text.
fn persisted_body(digest: &str, more: &str) -> String {
    format!(
        r#"{{"extensions": {{"persistedQuery": {{"version": 1, "sha256Hash": "{digest}"}}}}{more}}}"#
    )
}

#[test]
fn persisted_queries_cost_what_is_listed() {
    let text = "query A($n: Int = 3) { a(first: $n) { b } } query É { b }".replace('É', "B");
    let by_text = Digest::of_fact(&text);
    let (by_cost, short, unknown) = ("1".repeat(64), "2".repeat(64), "3".repeat(64));
    let policy = policy(&format!(
        r#", "persisted": {{"{by_text}": {}, "sha256:{by_cost}": 12, "{short}": 0}}"#,
        json!(text)
    ));
    let hex = format!("{by_text:x}");
    let decide = |digest: &str, more: &str| post(&policy, &persisted_body(digest, more));
    for (digest, more, expected) in [
        (&by_cost, "", 12),
        (&short, "", 1),
        (&hex, "", 3),
        (&hex, r#", "operationName": "B""#, 1),
        (&hex, r#", "operationName": "A", "variables": {"n": 8}"#, 8),
        (&hex.to_uppercase(), r#", "variables": {"n": 8}"#, 8),
        // With a text as well, the dearer of the two.
        (&by_cost, r#", "query": "{ a { b } }""#, 12),
        (&short, r#", "query": "{ a { b { c } } }""#, 2),
        // One that is not listed comes with its text.
        (&unknown, r#", "query": "{ a { b { c } } }""#, 2),
    ] {
        assert_eq!(charged(&decide(digest, more)), Ok(expected), "{digest} {more}");
    }
    let expected = Err((400, "this persisted query is not known"));
    assert_eq!(charged(&decide(&unknown, "")), expected);
    assert_eq!(charged(&decide(&unknown, r#", "query": """#)), expected);
    let expected = Err((400, "there is no operation `C`"));
    assert_eq!(charged(&decide(&hex, r#", "operationName": "C""#)), expected);
    // The text is charged, whatever digest it comes with: the server compares them.
    let decision = decide(&by_cost, r#", "operationName": "Name""#);
    assert_eq!(label(&decision, "operation"), Some("Name"));
    let decision = decide(&by_cost, r#", "operationName": "no name\n""#);
    assert_eq!(label(&decision, "operation"), None);
    let extensions = format!(r#"{{"persistedQuery": {{"sha256Hash": "{by_cost}"}}}}"#);
    assert_eq!(charged(&get(&policy, &[("query.extensions", &extensions)])), Ok(12));
}

#[test]
fn persisted_queries_that_are_not_listed_may_have_a_cost() {
    let policy = policy(r#", "unknown_persisted": 50"#);
    let digest = "3".repeat(64);
    assert_eq!(charged(&post(&policy, &persisted_body(&digest, ""))), Ok(50));
    let with_text = persisted_body(&digest, r#", "query": "{ a { b } }""#);
    assert_eq!(charged(&post(&policy, &with_text)), Ok(1));
    let batch = format!("[{0}, {0}]", persisted_body(&digest, ""));
    assert_eq!(charged(&post(&policy, &batch)), Ok(100));
}

#[test]
fn listed_texts_are_bounded_like_others() {
    let text = "{ __schema { a { b { c } } } }";
    let digest = Digest::of_fact(text);
    let listed = format!(r#", "persisted": {{"{digest}": {}}}"#, json!(text));
    let body = persisted_body(&format!("{digest:x}"), "");
    for (more, status) in [
        (r#", "max_depth": 3"#, 400),
        (r#", "max_cost": 2"#, 400),
        (r#", "introspection": false"#, 403),
    ] {
        assert_eq!(refused(&policy(&format!("{listed}{more}")), &body).0, status, "{more}");
    }
    assert_eq!(charged(&post(&policy(&listed), &body)), Ok(3));
}
