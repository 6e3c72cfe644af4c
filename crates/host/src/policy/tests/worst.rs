//! What the dearest bodies cost the policies that read them: valid JSON of a mebibyte, which is all
//! that is read by default. Judged by the Wasm instructions of a call, which are the same on any
//! machine. `cargo bench --bench policies` measures the time that they take.
//!
//! To see them: `cargo test --workspace --lib policy::tests::worst -- --nocapture`.

use super::super::instance::instructions;
use super::*;

const BODY_BYTES: usize = 1 << 20;
/// What a call may execute. A core executes some seven million in a millisecond, so that a call
/// ends within the 10 ms that `cpu_time` is without a setting, or little later.
const INSTRUCTIONS_MAX: u64 = 80 << 20;

/// `start`, then `piece` as often as it fits, then `end`.
fn filled(start: &str, piece: &str, end: &str) -> String {
    let count = (BODY_BYTES - start.len() - end.len()) / piece.len();
    format!("{start}{}{end}", piece.repeat(count))
}

/// Counts what a decision about each of the bodies executes, which are values of one fact.
fn each_is_cheap(policy: &str, config: &str, fact: &str, bodies: &[String]) {
    let mut settings = settings(shipped(policy), config);
    settings.cpu_time = Duration::from_secs(10);
    let runtime = Runtime::counting(fuzzing::known_facts());
    let policy_built = Policy::build(&runtime, &settings, &Metrics::new(1)).unwrap();
    let mut too_many = Vec::new();
    for body in bodies {
        assert!(serde_json::from_str::<serde_json::Value>(body).is_ok(), "{body:.60}");
        let facts = [
            ("client-ip", "192.0.2.1"),
            ("method", "POST"),
            ("body.type", "json"),
            ("body.bytes", "1048576"),
            (fact, body.as_str()),
        ];
        let decided = policy_built.decide(&facts);
        assert!(decided.is_ok(), "{policy}: {body:.60}: {decided:?}");
        let executed = instructions::last();
        assert!(executed > 0);
        println!("{policy}: {body:.40}... {executed}");
        if executed > INSTRUCTIONS_MAX {
            too_many.push(format!("{body:.40}... {executed}"));
        }
    }
    assert!(too_many.is_empty(), "{policy}: more than {INSTRUCTIONS_MAX}: {too_many:#?}");
}

/// Values of all kinds, between two texts.
fn values(start: &str, end: &str) -> Vec<String> {
    let list =
        |item: &str| filled(&format!("{start}[{item}"), &format!(",{item}"), &format!("]{end}"));
    let mut all: Vec<String> = [
        "1",
        "0",
        "\"\"",
        "{}",
        "[]",
        "\"a\"",
        "\"\\n\"",
        "\"\\u0061\"",
        "null",
        "{\"\":0}",
        "1e1",
    ]
    .map(list)
    .into();
    all.push(filled(&format!("{start}\""), "\\n", &format!("\"{end}")));
    all.push(filled(&format!("{start}\""), "\\u0061", &format!("\"{end}")));
    all.push(filled(&format!("{start}\""), "a,", &format!("\"{end}")));
    all.push(filled(&format!("{start}\""), "\u{e9}", &format!("\"{end}")));
    all.push(filled(&format!("{start}{{\"a\":1"), ",\"a\":1", &format!("}}{end}")));
    all.push(filled(&format!("{start}1"), " ", end));
    all
}

#[test]
fn llm_budget_looks_for_references_in_a_mebibyte_in_time() {
    let config = r#"{"api": "openai", "tokens": [{"name": "a", "algorithm": "gcra", "quota": 9, "period": "1m"}]}"#;
    let mut bodies = values("", "");
    for piece in [
        "[[[[]]]]",
        r#"{"a":{}}"#,
        r#"{"type":"input_file","file_id":"f"}"#,
        r#"{"file":{"file_id":"f"}}"#,
        r#"{"image_url":{"url":"x"}}"#,
        r#"{"\u0074\u0079pe":"a"}"#,
        r#"{"cached_contents______":1}"#,
    ] {
        let start = format!(r#"{{"input":[{piece}"#);
        bodies.push(filled(&start, &format!(",{piece}"), "]}"));
    }
    each_is_cheap("llm-budget", config, "body.json:", &bodies);
}

#[test]
fn login_guard_reads_a_mebibyte_in_time() {
    let config = r#"{"account": "{body:/email}", "success": [200]}"#;
    each_is_cheap("login-guard", config, "body.json:/email", &values("", ""));
}

#[test]
fn mcp_reads_the_messages_of_a_mebibyte_in_time() {
    let config = r#"{"max_batch": 32, "limits": [{"name": "a", "algorithm": "gcra", "quota": 99, "period": "1m"}],
        "tools": {"a*": {}, "b": {}}}"#;
    let mut bodies =
        values(r#"{"id":1,"method":"tools/call","params":{"name":"a","arguments":"#, "}}");
    bodies.extend(values(r#"{"id":1,"method":"ping","params":"#, "}"));
    bodies.extend(values(r#"[{"id":1,"method":"ping"},"#, "]"));
    bodies.extend(values("", ""));
    bodies.push(filled(r#"{"":1"#, r#","":1"#, "}"));
    bodies.push(filled(r#"{"params":{"":1"#, r#","":1"#, "}}"));
    bodies.push(filled(r#"{"\u0061":1"#, r#","\u0061":1"#, "}"));
    bodies.push(filled(r#"{"params":{"\u0061":1"#, r#","\u0061":1"#, "}}"));
    bodies.push(filled(r#"{"paramsss":1"#, r#","paramsss":1"#, "}"));
    bodies.push(filled(r#"{"id":1,"method":"tools/call","params":{"name":""#, "a", "\"}}"));
    bodies.push(filled(r#"{"id":1,"method":"tools/call","params":{"name":""#, "\\n", "\"}}"));
    bodies.push(filled(r#"{"id":1,"method":""#, "\\u0061", "\"}"));
    let part =
        filled(r#"{"id":1,"method":"tools/call","params":{"name":"a","arguments":[1"#, ",1", "]}}");
    let part = &part[part.len() - (BODY_BYTES / 32 - 80)..];
    let call = format!(
        r#"{{"id":1,"method":"tools/call","params":{{"name":"a","arguments":[1{}"#,
        &part[1..]
    );
    bodies.push(format!("[{}]", vec![call; 32].join(",")));
    each_is_cheap("mcp", config, "body.json:", &bodies);
}
