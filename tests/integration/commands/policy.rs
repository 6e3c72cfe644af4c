//! `weir policy`: a policy is written, built, tested, looked into and measured.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::harness::guest;

/// Runs a program in a folder, with what cargo builds kept for the next run.
fn run(program: &str, folder: &Path, arguments: &[&str]) -> (i32, String) {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("policy-command");
    let output = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .env("CARGO_TARGET_DIR", target)
        .env_remove("RUSTFLAGS")
        .output()
        .unwrap();
    let told = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(told).unwrap())
}

fn weir(folder: &Path, arguments: &[&str]) -> (i32, String) {
    run(env!("CARGO_BIN_EXE_weir"), folder, arguments)
}

/// Runs `weir policy test` on this text.
fn test(text: &str, arguments: &[&str]) -> (i32, String) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("requests.toml"), text).unwrap();
    weir(folder.path(), &[&["policy", "test"], arguments].concat())
}

/// The line on which a text is, from 1.
fn line(text: &str, of: &str) -> usize {
    1 + text.lines().position(|line| line.contains(of)).unwrap_or_else(|| panic!("{of}"))
}

const COUNTED: &str = r#"use = "keyed"
[[config.limits]]
name = "per-minute"
algorithm = "fixed_window"
quota = 10
period = "1m"
key = "{header.x-api-key}"
cost = 2
refund = "upstream_error"

[[requests]]
request = "POST /send"
headers = { x-api-key = "abc" }
expect = "admitted"
costs = { per-minute = 2 }
keys = { per-minute = "abc" }

[[requests]]
request = "POST /send"
headers = { x-api-key = "abc" }
reply = "lost"
status = 502
remaining = { per-minute = 8 } # what was lost is given back

[[requests]]
at = "20s"
request = "POST /send"
headers = { x-api-key = "abc" }
times = 6
admitted = 4

[[requests]]
at = "59s"
request = "POST /send"
headers = { x-api-key = "abc" }
expect = "refused"
limit = "per-minute"
retry_after = "1s"

[[requests]]
at = "60s"
request = "POST /send"
headers = { x-api-key = "abc" }
expect = "admitted"
"#;

#[test]
fn a_file_of_requests_passes_if_all_is_as_it_says() {
    let (code, told) = test(COUNTED, &[]);
    assert_eq!((code, told.as_str()), (0, "requests.toml: 10 requests, all as expected\n"));
    let (code, told) = test(COUNTED, &["--explain"]);
    assert_eq!(code, 0, "{told}");
    // Of the six, the last two are refused alike.
    assert!(
        told.contains("at 20 s, 4 of 6 from") && told.contains("at 20 s, 5 of 6 from"),
        "{told}"
    );
    assert!(
        !told.contains(", 6 of 6 from") && told.contains("\n    the same up to 6 of 6\n"),
        "{told}"
    );
    for part in [
        "POST /send at 59 s from 203.0.113.1: refused by per-minute, passes in 1 s\n",
        "sees header.x-api-key=\"abc\"",
        "per-minute (fixed_window, 10 in 1 min) key 'abc': had 10, took 2; 8 left, all back in 1 min\n",
        "had 8, took 2; 8 left (before it was settled 6)",
        "had 0, asked 2, refuses, passes in 1 s; 0 left",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
}

#[test]
fn the_usual_errors_are_caught_each_unless_the_file_says_otherwise() {
    let cases = [
        // A wrong cost.
        ("cost = 2", "cost = 1", "costs = {", "found 1 (POST /send at 0 s)", "expected 2"),
        // A wrong key.
        (
            "{header.x-api-key}",
            "{client_ip}",
            "keys = {",
            "found \"203.0.113.1\"",
            "expected \"abc\"",
        ),
        // A refund forgotten.
        ("\"upstream_error\"", "\"never\"", "remaining = {", "found 6", "expected 8"),
        // A limit a second too early.
        (
            "period = \"1m\"",
            "period = \"59s\"",
            "expect = \"refused\"",
            "found admitted",
            "expected refused",
        ),
    ];
    for (right, wrong, at, found, expected) in cases {
        let text = COUNTED.replace(right, wrong);
        let (code, told) = test(&text, &[]);
        assert_eq!(code, 1, "{wrong}: {told}");
        let place = format!("requests.toml:{}:", line(&text, at));
        assert!(told.contains(&place), "{wrong}: {place} {told}");
        assert!(told.contains(found) && told.contains(expected), "{wrong}: {told}");
    }
    // A limit that there is not.
    let (code, told) = test(&COUNTED.replace("limit = \"per-minute\"", "limit = \"minut\""), &[]);
    assert!(code == 1 && told.contains("found no such limit, only per-minute"), "{told}");
}

#[test]
fn a_file_with_errors_is_refused_with_all_of_them() {
    let text = COUNTED.replace("expect = \"refused\"", "expct = \"refused\"");
    let text = text.replace("quota = 10", "qouta = 10").replace("status = 502", "status = 9");
    let (code, told) = test(&text, &[]);
    assert_eq!(code, 2, "{told}");
    for part in ["`expect`", "100 to 599"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    // The policy's own are reported once the file can be read.
    let (code, told) = test(&COUNTED.replace("quota = 10", "qouta = 10"), &[]);
    assert_eq!(code, 2, "{told}");
    assert!(told.contains("`quota`") && told.contains("requests.toml:5:"), "{told}");
    let (code, told) =
        test("use = \"keyed\"\n[[requests]]\nrequest = \"GET /\"\n[config]\n", &["nothing.toml"]);
    assert_eq!(code, 2, "{told}");
    assert!(told.contains("nothing.toml: cannot be read"), "{told}");
}

#[test]
fn requests_can_overlap_wait_and_leave() {
    let (code, told) = test(
        r#"use = "client-ip"
[[config.limits]]
name = "at-once"
algorithm = "concurrency"
quota = 1

[[requests]]
request = "GET /slow"
reply = { after = "5s", status = 503, headers = { x-made-by = "upstream" } }
expect = "admitted"
status = 503
to_client = { x-made-by = "upstream" }

[[requests]]
at = "4s"
request = "GET /slow"
expect = "refused"
limit = "at-once"

[[requests]]
at = "5s"
request = "GET /slow"
reply = "client-gone"
expect = "admitted"

[[requests]]
request = "GET /slow"
expect = "admitted"
"#,
        &[],
    );
    assert_eq!(code, 0, "{told}");
    let (code, told) = test(
        r#"use = "client-ip"
[[config.limits]]
name = "spaced"
algorithm = "leaky_bucket"
quota = 1
period = "1s"
max_delay = "3s"

[[requests]]
request = "GET /"
times = 5
admitted = 4

[[requests]]
at = "1s"
request = "GET /"
expect = "admitted"
delay = "3s"
"#,
        &[],
    );
    assert_eq!(code, 0, "{told}");
}

#[test]
fn reported_usage_is_settled_however_the_reply_ends() {
    let asked = r#"
request = "POST /v1/chat/completions"
headers = { authorization = "me", content-type = "application/json" }
body = '{"model":"m","max_tokens":100,"messages":[{"role":"user","content":"hi"}]}'
"#;
    let usage = r#"headers = { content-type = "application/json" }, body = '{"usage":{"prompt_tokens":9,"completion_tokens":11,"total_tokens":20}}'"#;
    let text = format!(
        r#"use = "llm-budget"
[config]
api = "openai"
[[config.tokens]]
name = "minute"
algorithm = "fixed_window"
quota = 1000
period = "1m"
key = "{{header.authorization}}"
[[requests]]{asked}
reply = {{ {usage} }}
expect = "admitted"
remaining = {{ minute = 980 }}
[[requests]]{asked}
reply = {{ after = "2s", {usage}, ended = "client-gone" }}
remaining = {{ minute = 855 }} # what it reserved, while it is under way
[[requests]]{asked}
at = "3s"
reply = "lost"
status = 502
remaining = {{ minute = 835 }} # the model may be at work
[[requests]]{asked}
body = "no JSON"
expect = "denied 400"
"#
    );
    // The last body replaces the one above.
    let (before, last) = text.rsplit_once("body = '").unwrap();
    let text = format!("{before}{}", last.split_once('\n').unwrap().1);
    let (code, told) = test(&text, &[]);
    assert_eq!(code, 0, "{told}");
}

#[test]
fn a_whole_proxy_is_tested_with_its_routes() {
    let folder = tempfile::tempdir().unwrap();
    let config = r#"
[store]
engine = "redis"
on_store_error = "deny"
[store.redis]
nodes = ["127.0.0.1:9"]
mode = "single"
[upstreams.api]
endpoints = ["http://127.0.0.1:9"]
[policies.public]
use = "client-ip"
config.limits = [{ name = "a", algorithm = "gcra", quota = 1, period = "1m" }]
[[routes]]
path = "/free/*"
upstream = "api"
[[routes]]
path = "/api/{id}"
upstream = "api"
policy = "public"
"#;
    fs::write(folder.path().join("proxy.toml"), config).unwrap();
    let requests = r#"
proxy = "proxy.toml"
[[requests]]
request = "GET /api/7"
expect = "admitted"
keys = { a = "203.0.113.1" }
[[requests]]
request = "GET /API/8"
expect = "refused"
status = 429
retry_after = "1m"
to_client = { retry-after = "60" }
[[requests]]
request = "GET /free/1"
times = 3
expect = "admitted"
[[requests]]
request = "GET /nowhere"
expect = "rejected 404"
"#;
    fs::write(folder.path().join("requests.toml"), requests).unwrap();
    let (code, told) = weir(folder.path(), &["policy", "test"]);
    assert_eq!(code, 0, "{told}");
}

#[test]
fn a_policy_is_looked_into_and_measured() {
    let folder = tempfile::tempdir().unwrap();
    let requests = folder.path().join("requests.toml");
    fs::write(&requests, COUNTED).unwrap();
    let config = ["--config", "requests.toml"];
    let asked = ["policy", "inspect", "keyed", "GET /search x-api-key: abc from 203.0.113.7"];
    let (code, told) = weir(folder.path(), &[&asked[..], &config[..]].concat());
    assert_eq!(code, 0, "{told}");
    for part in [
        "keyed (built in): module, ",
        "blake3 ",
        "exports    ",
        "reads      header.x-api-key, client-ip",
        "remembered (pure)",
        "GET /search from 203.0.113.7: admitted\n",
        "per-minute (fixed_window, 10 in 1 min) key 'abc': had 10, took 2; 8 left",
        "us in a running instance",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let (code, told) = weir(folder.path(), &["policy", "inspect", "keyd"]);
    assert_eq!(code, 2, "{told}");
    assert!(told.contains("the nearest is \"keyed\""), "{told}");
    let (code, told) =
        weir(folder.path(), &["policy", "inspect", "keyed", "GET", "--config", "requests.toml"]);
    assert!(code == 2 && told.contains("no path that begins with `/`"), "{told}");
    let (code, told) = weir(folder.path(), &[&["policy", "bench", "keyed"], &config[..]].concat());
    assert_eq!(code, 0, "{told}");
    for part in ["fresh instance", "reused instance", "remembered", "with limits"] {
        assert!(told.contains(part), "{part}: {told}");
    }
}

#[test]
fn each_request_that_a_policy_fails_says_why() {
    let module = guest::misbehaving();
    let mut text = format!("wasm = {:?}\n", module.to_str().unwrap());
    // More than the log has lines for.
    for _ in 0..8 {
        text += "\n[[requests]]\nrequest = \"GET /?error\"\nexpect = \"admitted\"\n";
    }
    let (code, told) = test(&text, &[]);
    assert_eq!(code, 1, "{told}");
    let why = told.matches("= help: the policy failed: ").count();
    assert_eq!((why, told.matches("I would rather not").count() >= 8), (8, true), "{told}");
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("requests.toml"), text).unwrap();
    let asked = ["policy", "inspect", module.to_str().unwrap(), "--config", "requests.toml"];
    let (code, told) = weir(folder.path(), &asked);
    assert_eq!(code, 1, "{told}");
    assert!(told.contains("    the policy failed: policy "), "{told}");
}
