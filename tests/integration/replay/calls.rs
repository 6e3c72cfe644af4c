//! `weir replay` of a log that is not of requests alone: calls for decisions, and requests that a
//! listener redirected to https.

use serde_json::json;

use crate::harness::api::Api;
use crate::harness::client::{Client, get};
use crate::harness::toml::Toml;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;
use crate::replay::running::{folder, lines, replayed};

const LIMIT: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 2, period = \"1d\"";
const LISTENERS: &str = r#"
[[listeners]]
name = "plain"
address = "127.0.0.1:0"
redirect_to_https = 443

[[listeners]]
name = "calls"
address = "127.0.0.1:0"
serves = "decisions"

[policies.mail]
use = "keyed"

[policies.mail.config]
key = "{rls.entry.user}"
limits = [{ name = "user", algorithm = "fixed_window", quota = 1, period = "1d" }]
"#;

#[tokio::test]
async fn calls_and_redirects_are_no_requests_of_clients() {
    let upstream = Upstream::start();
    let config = Toml::new()
        .upstream("api", &upstream.url(), "")
        .policy("public", &[LIMIT])
        .more(LISTENERS)
        .route("name = \"api\"\npath = \"/*\"\nupstream = \"api\"\npolicy = \"public\"")
        .route("domain = \"mail\"\npolicy = \"mail\"");
    let config = config.text().replace("access = \"off\"", "access = \"all\"");
    let started = config.clone();
    let weir = tokio::task::spawn_blocking(move || Weir::start(&started)).await.unwrap();
    let [_, plain, calls] = weir.listeners()[..] else { panic!("{:?}", weir.listeners()) };
    assert_eq!(get(weir.http, "/a", &[]).await.status, 200);
    assert_eq!(get(plain, "/b", &[]).await.status, 308);
    let api = Api::new(calls);
    let call = json!({ "domain": "mail", "entries": { "user": "a" } });
    let held = json!({ "domain": "mail", "entries": { "user": "b" }, "hold_ms": 60_000 });
    let id = api.call("decide", &held).await.body["id"].clone();
    // Their lines have no domain, but for those of the two calls of the first body.
    for (path, body) in [
        ("decide", json!([call, call])),
        ("settle", json!({ "id": id })),
        ("give-back", json!({ "id": "none" })),
        ("decide", json!({ "entries": {} })),
    ] {
        api.call(path, &body).await;
    }
    let mut client = Client::connect(calls).await.unwrap();
    assert_eq!(client.get("/v1/openapi.json", &[]).await.unwrap().status, 200);

    let lines = lines(&weir, "\"message\":\"request\"", 10);
    let folder = folder(&(lines.join("\n") + "\n"), &config);
    let report = replayed(&folder);
    let log = &report["log"];
    assert_eq!((&log["calls"], &log["to_https"]), (&json!(8), &json!(1)), "{log}");
    assert_eq!(
        (&log["lines"], &log["not_requests"], &log["rejected"], &log["broken"]),
        (&json!(10), &json!(0), &json!(0), &json!(0)),
        "{log}"
    );
    let counts = &report["requests"]["counts"];
    assert_eq!((&counts["all"], &counts["admitted"]), (&json!(1), &json!(1)), "{report}");
}
