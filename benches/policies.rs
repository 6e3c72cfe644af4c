//! What a decision of each policy that ships costs, without HTTP: in a reused instance, and
//! remembered where the policy allows that.
//!
//!     cargo bench --bench policies
//!
//! benches/README.md explains the figures.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::missing_docs_in_private_items,
    missing_docs,
    reason = "a benchmark may fail loudly"
)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac;
use criterion::{Criterion, criterion_group, criterion_main};
use serde_json::{Value, json};
use weir::policy::{self, Caps, MeasuredNames, Module, Policy, Runtime, Verdict};
use weir::telemetry::Metrics;

/// A policy that ships, with the first configuration of its README, and the facts of a request.
struct Case {
    name: &'static str,
    config: Value,
    facts: &'static [(&'static str, &'static str)],
}

/// Requests that are counted. Facts that a policy does not read are left out.
const REQUESTS: &[(&str, &[(&str, &str)])] = &[
    ("ban", &[]),
    ("client-ip", &[]),
    ("concurrent", &[]),
    (
        "graphql-cost",
        &[
            ("method", "POST"),
            ("body.type", "json"),
            ("body.bytes", "80"),
            (
                "body.json:",
                r#"{"query":"{ users(first: 10) { name posts(first: 5) { title } } }"}"#,
            ),
            ("header.authorization", "Bearer k-7c1f"),
        ],
    ),
    ("keyed", &[("header.x-api-key", "k-7c1f"), ("header.x-user", "ann")]),
    (
        "llm-budget",
        &[
            ("method", "POST"),
            ("body.type", "json"),
            ("body.bytes", "400"),
            ("body:/model", "gpt-4o"),
            ("body:/max_tokens", "256"),
            ("body:/stream", "true"),
            ("header.authorization", "Bearer k-7c1f"),
        ],
    ),
    ("login-guard", &[("method", "POST"), ("form.username", "ann")]),
    (
        "mcp",
        &[
            ("method", "POST"),
            ("body.type", "json"),
            (
                "body.json:",
                r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"search","arguments":{"q":"weir"}}}"#,
            ),
            ("header.mcp-session-id", "5f1c"),
            ("bearer", "k-7c1f"),
        ],
    ),
    ("path-cost", &[("method", "POST"), ("path", "/reports/7"), ("header.x-api-key", "k-7c1f")]),
    ("plans", &[("header.x-api-key", "k-7c1f")]),
    ("rls", &[("rls.descriptor", r#"[["message_type","marketing"],["to_number","206"]]"#)]),
    (
        "send-quota",
        &[
            ("method", "POST"),
            ("header.x-account", "ann"),
            ("body.type", "json"),
            ("body.json:/to", "[\"bob@example.org\"]"),
        ],
    ),
    ("tenant", &[("header.x-tenant", "acme"), ("header.x-user", "ann")]),
];

/// What every request has.
const ALWAYS: &[(&str, &str)] = &[
    ("client-ip", "192.0.2.1"),
    ("method", "GET"),
    ("path", "/search"),
    ("authority", "api.example.org"),
    ("scheme", "https"),
];

fn cases() -> impl Iterator<Item = Case> {
    REQUESTS.iter().map(|(name, facts)| Case { name, config: of_readme(name), facts })
}

/// The configuration of the first policy in the README of `name`.
fn of_readme(name: &str) -> Value {
    let path = format!("{}/policies/{name}/README.md", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap();
    let block = text.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next());
    let file: Value =
        toml::from_str(block.unwrap_or_else(|| panic!("{path} has no TOML"))).unwrap();
    let policy = file["policies"].as_object().and_then(|policies| policies.values().next());
    policy.unwrap_or_else(|| panic!("{path} has no policy"))["config"].clone()
}

/// A token that is signed with a secret, and the policy that verifies it.
fn jwt() -> (Value, String) {
    let secret = b"0123456789abcdef0123456789abcdef";
    let text = |json: Value| base64(json.to_string().as_bytes());
    let payload = json!({ "sub": "ann", "iss": "https://id.example.org/", "aud": "api", "exp": 4_102_444_800_u64 });
    let signed = format!("{}.{}", text(json!({ "alg": "HS256", "kid": "a" })), text(payload));
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let token = format!("Bearer {signed}.{}", base64(hmac::sign(&key, signed.as_bytes()).as_ref()));
    let mut config = of_readme("jwt-claim");
    config["algorithms"] = json!(["HS256"]);
    config["keys"] = json!({ "keys": [{ "kty": "oct", "kid": "a", "k": base64(secret) }] });
    (config, token)
}

/// Encodes without padding, in the alphabet for URLs (RFC 4648, section 5).
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let digits = |three: &[u8]| {
        let bits = three.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
        let bits = bits << (8 * (3 - three.len()));
        let at = |index: usize| char::from(DIGITS[(bits >> (18 - 6 * index)) as usize & 63]);
        (0..=three.len()).map(at).collect::<String>()
    };
    bytes.chunks(3).map(digits).collect()
}

fn settings(name: &str, config: &Value) -> policy::Settings {
    policy::Settings {
        name: name.into(),
        module: Module::Shipped(name.into()),
        cpu_time: Duration::from_millis(10),
        memory_bytes: 16 << 20,
        isolated: false,
        config_json: config.to_string().into(),
        scripts: Arc::default(),
        measured: MeasuredNames::default(),
        caps: Caps::default(),
    }
}

fn decisions(bench: &mut Criterion) {
    for case in cases() {
        let facts: Vec<_> = case.facts.iter().chain(ALWAYS).copied().collect();
        decision(bench, case.name, &case.config, &facts);
    }
    let (config, token) = jwt();
    let facts: Vec<_> =
        [("header.authorization", token.as_str())].iter().chain(ALWAYS).copied().collect();
    decision(bench, "jwt-claim", &config, &facts);
}

/// What bodies of a mebibyte cost `llm-budget`, which looks for references in them: one long text,
/// as a picture is, and the dearest that is known. Above 10 ms it would be denied by default.
fn large_bodies(bench: &mut Criterion) {
    let limit = json!({ "name": "a", "algorithm": "gcra", "quota": 9, "period": "1m" });
    let config = json!({ "api": "openai", "tokens": [limit] });
    let mut settings = settings("llm-budget", &config);
    settings.cpu_time = Duration::from_secs(1);
    settings.memory_bytes = 32 << 20;
    let runtime = Runtime::new(weir::proxy::fact_names()).unwrap();
    let policy = Policy::build(&runtime, &settings, &Metrics::new(1)).unwrap();
    let mut group = bench.benchmark_group("llm-budget/1MiB");
    for (name, piece) in [("text", "\"abcdefghijklmnopqrstuvwxyz\""), ("objects", r#"{"a":{}}"#)] {
        let count = (1 << 20) / (piece.len() + 1);
        let body = format!("[{}]", vec![piece; count].join(","));
        let facts = [
            ("client-ip", "192.0.2.1"),
            ("method", "POST"),
            ("body.type", "json"),
            ("body.bytes", "1048576"),
            ("body.json:", body.as_str()),
        ];
        group.bench_function(name, |bencher| {
            bencher.iter(|| policy.decide_anew(black_box(&facts)).unwrap());
        });
    }
    group.finish();
}

fn decision(bench: &mut Criterion, name: &str, config: &Value, known: &[(&str, &str)]) {
    let runtime = Runtime::new(weir::proxy::fact_names()).unwrap();
    let policy = Policy::build(&runtime, &settings(name, config), &Metrics::new(1))
        .unwrap_or_else(|errors| panic!("{name}: {errors:?}"));
    let wanted = policy.request_facts().iter();
    let facts: Vec<(&str, &str)> = wanted
        .filter_map(|wanted| known.iter().find(|(known, _)| known == wanted).copied())
        .collect();
    let Verdict::Check(_) = policy.decide(&facts).unwrap().verdict else {
        panic!("{name} counts nothing: {facts:?}")
    };
    let mut group = bench.benchmark_group(name);
    group.bench_function("reused", |bencher| {
        bencher.iter(|| policy.decide_anew(black_box(&facts)).unwrap());
    });
    if policy.remembers() {
        group.bench_function("remembered", |bencher| {
            bencher.iter(|| policy.decide(black_box(&facts)).unwrap());
        });
    }
    group.finish();
}

criterion_group!(benches, decisions, large_bodies);
criterion_main!(benches);
