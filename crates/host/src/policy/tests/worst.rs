//! What the dearest bodies cost the policies that read them: valid JSON of a mebibyte, which is all
//! that is read by default, takes less than the CPU time that a call has by default.
//!
//! To see the times: `cargo test --workspace --lib policy::tests::worst -- --nocapture`.

use super::*;
use crate::clock::thread_cpu;

const BODY_BYTES: usize = 1 << 20;
/// `cpu_time` as it is without a setting.
const CPU_TIME: Duration = Duration::from_millis(10);

/// `start`, then `piece` as often as it fits, then `end`.
fn filled(start: &str, piece: &str, end: &str) -> String {
    let count = (BODY_BYTES - start.len() - end.len()) / piece.len();
    format!("{start}{}{end}", piece.repeat(count))
}

/// The CPU time of a decision about each of the bodies, which are values of one fact. A call that
/// takes too long fails.
fn each_is_cheap(policy: &str, config: &str, fact: &str, bodies: &[String]) {
    let mut settings = settings(shipped(policy), config);
    settings.cpu_time = CPU_TIME;
    let policy_built = build(&settings).unwrap();
    for body in bodies {
        assert!(serde_json::from_str::<serde_json::Value>(body).is_ok(), "{body:.60}");
        let facts = [
            ("client-ip", "192.0.2.1"),
            ("method", "POST"),
            ("body.type", "json"),
            ("body.bytes", "1048576"),
            (fact, body.as_str()),
        ];
        // The first call of all starts the instance.
        let took = (0..3).map(|_| {
            let before = thread_cpu();
            let decided = policy_built.decide(&facts);
            (thread_cpu() - before, decided)
        });
        let (took, decided) = took.min_by_key(|(took, _)| *took).unwrap();
        println!("{policy}: {body:.40}... took {took:?}");
        assert!(decided.is_ok(), "{policy}: {body:.60}: {decided:?}");
    }
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
