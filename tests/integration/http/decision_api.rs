//! Weir decides for others: the HTTP API, as its callers see it.

use std::net::SocketAddr;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::api::Api;
use crate::harness::toml::Toml;
use crate::harness::weir::Weir;
use crate::harness::{TIMEOUT, eventually_async, free_address};

/// By user, with limits of callers' own; by what a request says; what is in flight; and what is
/// charged for failed sign-ins alone.
const POLICIES: &str = r#"
[policies.users]
use = "rls"

[policies.users.config]
overrides = true

[[policies.users.config.rules]]
descriptor = ["user"]
limits = [{ name = "user", algorithm = "fixed_window", quota = 3, period = "1d" }]

[policies.keys]
use = "keyed"

[policies.keys.config]
key = "{header.x-api-key}/{client_ip}"
limits = [{ name = "key", algorithm = "fixed_window", quota = 2, period = "1d" }]

[policies.flights]
use = "keyed"

[policies.flights.config]
key = "{rls.entry.user}"
limits = [{ name = "flight", algorithm = "concurrency", quota = 2 }]

[policies.unsent]
use = "keyed"

[policies.unsent.config]
key = "{rls.entry.user}"
limits = [{ name = "sent", algorithm = "fixed_window", quota = 3, period = "1d", refund = "unsent" }]

[policies.signin]
use = "login-guard"

[policies.signin.config]
account = "{body:/username}"
success = [200]
"#;

fn config() -> Toml {
    let domains = ["users", "keys", "flights", "unsent", "signin"];
    domains
        .iter()
        .fold(Toml::new().listener("serves = \"decisions\"").more(POLICIES), |all, name| {
            all.route(&format!("domain = \"{name}\"\npolicy = \"{name}\""))
        })
}

async fn start(config: Toml) -> (Weir, Api) {
    start_text(config.text()).await
}

/// Its runtime must run while Weir starts.
async fn start_text(text: String) -> (Weir, Api) {
    let weir = tokio::task::spawn_blocking(move || Weir::start(&text)).await.unwrap();
    let api = Api::new(weir.http);
    (weir, api)
}

fn user(name: &str) -> Value {
    json!({ "domain": "users", "entries": { "user": name } })
}

fn with(mut call: Value, members: Value) -> Value {
    call.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    call
}

#[tokio::test]
async fn a_decision_says_what_a_client_is_to_be_answered() {
    let (_weir, api) = start(config()).await;
    for left in [2, 1, 0] {
        let answer = api.call("decide", &user("a")).await;
        answer.is(200);
        assert_eq!(answer.body["allowed"], true, "{answer:?}");
        assert_eq!(answer.body["limits"][0]["remaining"], left);
        assert_eq!(answer.body["limits"][0]["quota"], 3);
        assert_eq!(answer.body["limits"][0]["window_s"], 86_400);
        assert!(answer.field("ratelimit").contains(&format!("\"user\";r={left}")), "{answer:?}");
        assert!(answer.body.get("body").is_none() && answer.body.get("id").is_none());
    }
    let answer = api.call("decide", &user("a")).await;
    answer.is(200);
    assert_eq!((&answer.body["allowed"], &answer.body["status"]), (&json!(false), &json!(429)));
    assert_eq!(answer.body["refused_by"], json!(["user"]));
    let wait_ms = answer.body["retry_after_ms"].as_u64().unwrap();
    assert!((86_000_000..=86_400_000).contains(&wait_ms), "{answer:?}");
    assert_eq!(answer.field("retry-after"), wait_ms.div_ceil(1_000).to_string());
    assert_eq!(answer.field("content-type"), "application/problem+json");
    let problem: Value = serde_json::from_str(answer.body["body"].as_str().unwrap()).unwrap();
    assert_eq!(problem["violated-policies"], json!(["user"]));
    // A look takes nothing, and 0 hits are one.
    for _ in 0..3 {
        assert_eq!(api.call("look", &user("b")).await.body["limits"][0]["remaining"], 3);
        let look = with(user("b"), json!({ "hits": 0 }));
        assert_eq!(api.call("decide", &look).await.body["allowed"], true);
    }
    let two = with(user("b"), json!({ "hits": 2 }));
    assert_eq!(api.call("decide", &two).await.body["limits"][0]["remaining"], 1);
    let refused = api.call("decide", &two).await;
    assert_eq!(refused.body["allowed"], false);
    assert_eq!(api.call("look", &user("b")).await.body["limits"][0]["remaining"], 1);
    let most = with(user("b"), json!({ "hits": u64::MAX }));
    assert_eq!(api.call("decide", &most).await.body["allowed"], false);
}

#[tokio::test]
async fn facts_are_the_callers_and_never_those_of_its_own_call() {
    let (_weir, api) = start(config()).await;
    let ask = async |facts: Value| {
        let answer = api.call("decide", &json!({ "domain": "keys", "facts": facts })).await;
        answer.is(200);
        answer.body["limits"][0]["remaining"].as_u64()
    };
    let of = |key: &str, ip: &str| json!({ "header.x-api-key": key, "client-ip": ip });
    assert_eq!(ask(of("k", "192.0.2.1")).await, Some(1));
    assert_eq!(ask(of("k", "192.0.2.2")).await, Some(1), "another client");
    // The case of a field's name does not matter.
    assert_eq!(ask(json!({ "header.X-API-Key": "k", "client-ip": "192.0.2.1" })).await, Some(0));
    // What no caller says is not there: not the address of the caller either.
    let none = api.call("decide", &json!({ "domain": "keys" })).await;
    assert_eq!(none.body["status"], 400, "{none:?}");
}

#[tokio::test]
async fn what_is_no_call_is_answered_with_what_was_expected() {
    let (weir, api) = start(config()).await;
    for (path, call, status, expected) in [
        ("decide", json!({ "domain": "nobody" }), 404, "Nothing is served here"),
        ("decide", json!({}), 400, "issing field `domain`"),
        ("decide", with(user("a"), json!({ "hit": 1 })), 400, "nknown field `hit`"),
        ("decide", json!({ "domain": "signin" }), 400, "\"method\""),
        ("decide", json!({ "domain": "keys", "facts": { "client_ip": "a" } }), 400, "client-ip"),
        ("decide", json!({ "domain": "keys", "facts": { "rls.domain": "a" } }), 400, "do not give"),
        ("take", with(user("a"), json!({ "limits": [{}] })), 400, "limits[0]"),
        ("take", user("a"), 400, "No `limits`"),
        ("decide", json!({ "domain": "flights", "entries": { "user": "a" } }), 503, "decided"),
        ("settle", json!({ "id": "x" }), 404, "Nothing is held"),
        ("settle", json!({ "id": "x", "facts": { "heder.x": "a" } }), 400, "heder.x"),
        ("give-back", json!({ "id": "x", "status": 200 }), 400, "nknown field `status`"),
    ] {
        let answer = api.call(path, &call).await;
        answer.is(status);
        assert_eq!(answer.header("content-type"), "application/problem+json");
        let detail = answer.body["detail"].as_str().unwrap();
        assert!(detail.contains(expected), "{path} {call}: {detail}");
    }
    let limits = json!([{ "name": "x", "algorithm": "gcra", "quota": 1, "period": "1d" }]);
    let take = json!({ "domain": "keys", "entries": { "a": "b" }, "limits": limits });
    let answer = api.call("take", &take).await;
    answer.is(400);
    assert!(answer.body["detail"].as_str().unwrap().contains("does not take"), "{answer:?}");
    let large = api.send("POST", "/v1/decide", &[], vec![b' '; (1 << 20) + 1]).await;
    large.is(413);
    let other = api.send("GET", "/v1/decide", &[], Vec::new()).await;
    other.is(405);
    assert_eq!(other.header("allow"), "POST");
    api.send("POST", "/v1/decision", &[], Vec::new()).await.is(404);
    // The API is where decisions are served, and nowhere else.
    assert_eq!(api.call("decide", &user("a")).await.body["limits"][0]["remaining"], 2);
    let counted = move || weir.metric("weir_requests_total{route=\"users\",code=\"200\"}");
    assert_eq!(tokio::task::spawn_blocking(counted).await.unwrap(), 1);
}

#[tokio::test]
async fn limits_of_a_callers_own_are_counted_by_its_entries() {
    let (_weir, api) = start(config()).await;
    let limits = json!([
        { "name": "user", "algorithm": "fixed_window", "quota": 2, "period": "1d" },
        { "name": "burst", "algorithm": "gcra", "quota": 5, "period": "1h" },
    ]);
    let take = |name: &str| with(user(name), json!({ "limits": limits }));
    for left in [1, 0] {
        let answer = api.call("take", &take("a")).await;
        answer.is(200);
        assert_eq!(answer.body["limits"][0]["remaining"], left, "{answer:?}");
    }
    let refused = api.call("take", &take("a")).await;
    assert_eq!(refused.body["refused_by"], json!(["user"]));
    // All or nothing: the other limit is as it was.
    assert_eq!(refused.body["limits"][1]["remaining"], 3);
    assert_eq!(api.call("take", &take("b")).await.body["allowed"], true);
    let look = api.call("look", &take("b")).await;
    assert_eq!(look.body["limits"][0]["remaining"], 1);
    // The rule of that name is another counter.
    assert_eq!(api.call("decide", &user("a")).await.body["limits"][0]["remaining"], 2);
}

#[tokio::test]
async fn several_calls_are_answered_in_their_order_and_each_by_itself() {
    let (_weir, api) = start(config()).await;
    let calls: Vec<Value> = (0..200).map(|nth| user(&format!("u{}", nth % 50))).collect();
    let answer = api.call("decide", &Value::from(calls)).await;
    answer.is(200);
    let answers = answer.body.as_array().unwrap();
    let allowed: Vec<bool> = answers.iter().map(|one| one["allowed"] == true).collect();
    assert_eq!(allowed.len(), 200);
    assert!(allowed[..150].iter().all(|allowed| *allowed), "three for each of fifty");
    assert!(!allowed[150..].iter().any(|allowed| *allowed));
    let mixed = json!([user("x"), { "domain": "nobody" }, user("x")]);
    let answer = api.call("decide", &mixed).await;
    let answers = answer.body.as_array().unwrap();
    assert_eq!(answers[0]["limits"][0]["remaining"], 2);
    assert_eq!(answers[1]["error"]["status"], 404);
    assert_eq!(answers[2]["limits"][0]["remaining"], 1);
    // If one of them can't be read, none is made.
    api.call("decide", &json!([user("x"), { "domain": "" }])).await.is(400);
    assert_eq!(api.call("look", &user("x")).await.body["limits"][0]["remaining"], 1);
}

#[tokio::test]
async fn what_is_held_is_settled_once() {
    let (weir, api) = start(config()).await;
    let flight = json!({ "domain": "flights", "entries": { "user": "a" }, "hold_ms": 60_000 });
    let hold = async || {
        let answer = api.call("decide", &flight).await;
        answer.is(200);
        answer.body["id"].as_str().map(str::to_owned)
    };
    let (first, second) = (hold().await.unwrap(), hold().await.unwrap());
    assert_ne!(first, second);
    assert_eq!(hold().await, None, "two are in flight");
    for (path, id) in [("settle", &first), ("give-back", &second)] {
        let end = json!({ "id": id });
        let answer = api.call(path, &end).await;
        answer.is(200);
        assert_eq!(answer.body, json!({ "settled": true }));
        api.call(path, &end).await.is(404);
        hold().await.unwrap();
        assert_eq!(hold().await, None);
    }
    // What is declared is given back, or all of it.
    let unsent = json!({ "domain": "unsent", "entries": { "user": "a" }, "hold_ms": 60_000 });
    let look = json!({ "domain": "unsent", "entries": { "user": "a" } });
    let left = async || api.call("look", &look).await.body["limits"][0]["remaining"].as_u64();
    for (end, expected) in [
        (json!({ "outcome": "unsent" }), 3),
        (json!({ "outcome": "upstream-failed" }), 2),
        (json!({ "status": 503 }), 1),
    ] {
        let id = api.call("decide", &unsent).await.body["id"].clone();
        api.call("settle", &with(json!({ "id": id }), end.clone())).await.is(200);
        assert_eq!(left().await, Some(expected), "{end}");
    }
    let id = api.call("decide", &unsent).await.body["id"].clone();
    assert_eq!(left().await, Some(0));
    let ends = json!([{ "id": id }, { "id": id }]);
    let answer = api.call("give-back", &ends).await;
    assert_eq!(answer.body[0], json!({ "settled": true }));
    assert_eq!(answer.body[1]["error"]["status"], 404);
    assert_eq!(left().await, Some(1));
    drop(weir);
}

#[tokio::test]
async fn a_hold_ends_with_its_time_and_gives_nothing_back() {
    let text = config().text().replace("access = \"off\"", "access = \"all\"");
    let (weir, api) = start_text(text).await;
    let hold = |domain: &str, ms: u64| json!({ "domain": domain, "entries": { "user": "a" }, "hold_ms": ms });
    let mut ids = Vec::new();
    for domain in ["flights", "flights", "unsent"] {
        ids.push(api.call("decide", &hold(domain, 300)).await.body["id"].clone());
    }
    // A permit is free again. Nothing else came back.
    eventually_async("a permit", async || {
        let answer = api.call("decide", &hold("flights", 60_000)).await;
        if answer.body["allowed"] == true { Ok(()) } else { Err(format!("{answer:?}")) }
    })
    .await;
    eventually_async("the end of the last", async || {
        let answer = api.call("settle", &json!({ "id": ids[2] })).await;
        if answer.status == 404 { Ok(()) } else { Err(format!("{answer:?}")) }
    })
    .await;
    let look = api.call("look", &json!({ "domain": "unsent", "entries": { "user": "a" } })).await;
    assert_eq!(look.body["limits"][0]["remaining"], 2);
    let line = tokio::task::spawn_blocking(move || weir.output().await_text("hold-over"));
    line.await.unwrap();
}

#[tokio::test]
async fn a_policy_hears_how_what_it_let_through_has_ended() {
    let (_weir, api) = start(config()).await;
    let attempt = json!({
        "domain": "signin",
        "facts": { "body:/username": "ann", "client-ip": "192.0.2.1", "method": "POST" },
        "hold_ms": 60_000,
    });
    let sign_in = async |status: u16| {
        let answer = api.call("decide", &attempt).await;
        answer.is(200);
        if answer.body["allowed"] != true {
            return false;
        }
        let end = json!({ "id": answer.body["id"], "status": status });
        api.call("settle", &end).await.is(200);
        true
    };
    // Good ones cost nothing, and wrong passwords are counted.
    for _ in 0..20 {
        assert!(sign_in(200).await);
    }
    let mut failed = 0;
    while failed < 50 && sign_in(401).await {
        failed += 1;
    }
    assert!((1..50).contains(&failed), "{failed}");
}

#[tokio::test]
async fn a_call_that_comes_again_with_its_key_is_made_once() {
    let (_weir, api) = start(config()).await;
    let key = [("idempotency-key", "order-7")];
    let first = api.send_json("/v1/decide", &key, &user("a")).await;
    first.is(200);
    assert_eq!(first.header("idempotent-replayed"), "");
    for _ in 0..5 {
        let again = api.send_json("/v1/decide", &key, &user("a")).await;
        assert_eq!(
            (again.header("idempotent-replayed"), &again.body),
            ("true".into(), &first.body)
        );
    }
    api.send_json("/v1/decide", &key, &user("b")).await.is(422);
    assert_eq!(api.call("look", &user("a")).await.body["limits"][0]["remaining"], 2);
    // Many at once are one, and all have its answer.
    let key = [("idempotency-key", "order-8")];
    let (call, body) = (user("c"), with(user("c"), json!({ "hits": 2 })));
    let all =
        futures_util::future::join_all((0..20).map(|_| api.send_json("/v1/decide", &key, &body)))
            .await;
    assert!(all.iter().all(|answer| answer.body == all[0].body && answer.status == 200));
    assert_eq!(api.call("look", &call).await.body["limits"][0]["remaining"], 1);
    // Its wrong ones are known again as well.
    for _ in 0..2 {
        let wrong = api.send_json("/v1/decide", &[("idempotency-key", "x")], &json!({})).await;
        wrong.is(400);
        assert_eq!(wrong.header("content-type"), "application/problem+json");
    }
    let long = "k".repeat(256);
    for key in ["", "\u{e9}", &long] {
        api.send_json("/v1/decide", &[("idempotency-key", key)], &user("a")).await.is(400);
    }
}

#[tokio::test]
async fn a_call_whose_caller_has_left_is_answered_when_it_comes_again() {
    use tokio::io::AsyncWriteExt as _;
    // A bucket that lets the second wait.
    let slow = r#"
[policies.slow]
use = "keyed"

[policies.slow.config]
key = "{rls.entry.user}"
limits = [{ name = "slow", algorithm = "leaky_bucket", quota = 1, period = "2s", max_delay = "20s" }]
"#;
    let config = config().route("domain = \"slow\"\npolicy = \"slow\"").more(slow);
    let (_weir, api) = start(config).await;
    let call = json!({ "domain": "slow", "entries": { "user": "a" } });
    api.call("decide", &call).await.is(200);
    let text = call.to_string();
    let head = format!(
        "POST /v1/decide HTTP/1.1\r\nhost: weir\r\nidempotency-key: k\r\ncontent-length: {}\r\n\r\n",
        text.len()
    );
    let mut stream = tokio::net::TcpStream::connect(api.address).await.unwrap();
    stream.write_all((head + &text).as_bytes()).await.unwrap();
    // It has its turn when nobody else could have one for more than two seconds.
    eventually_async("the call", async || {
        let look = api.call("look", &call).await;
        let wait_ms = look.body["limits"][0]["resets_ms"].as_u64();
        if wait_ms > Some(2_000) { Ok(()) } else { Err(format!("{look:?}")) }
    })
    .await;
    drop(stream);
    let key = [("idempotency-key", "k")];
    let again = api.send_json("/v1/decide", &key, &call).await;
    again.is(200);
    assert_eq!(again.body["allowed"], true);
    assert_eq!(again.header("idempotent-replayed"), "true");
}

#[tokio::test]
async fn tokens_are_for_operations_and_domains() {
    let tokens = r#"
[[decisions.tokens]]
name = "shop"
token_file = "shop.token"
scopes = ["decide", "settle"]
domains = ["users", "flights"]

[[decisions.tokens]]
name = "desk"
token_file = "desk.token"
scopes = ["look", "settle"]
"#;
    let text = config().more(tokens).text();
    let weir = tokio::task::spawn_blocking(move || {
        Weir::build(&text)
            .file("shop.token", b"shop-secret\n")
            .file("desk.token", b"desk-secret")
            .start()
    });
    let weir = weir.await.unwrap();
    let api = Api::new(weir.http);
    let (shop, desk) = ("Bearer shop-secret", "Bearer desk-secret");
    let ask = async |token: &str, path: &str, call: &Value| {
        api.send_json(path, &[("authorization", token)], call).await
    };
    let missing = api.call("decide", &user("a")).await;
    missing.is(401);
    assert_eq!(missing.header("www-authenticate"), "Bearer");
    ask("Bearer wrong", "/v1/decide", &user("a")).await.is(401);
    ask(shop, "/v1/decide", &user("a")).await.is(200);
    ask(shop, "/v1/look", &user("a")).await.is(403);
    ask(shop, "/v1/decide", &json!({ "domain": "keys" })).await.is(403);
    ask(desk, "/v1/look", &user("a")).await.is(200);
    ask(desk, "/v1/decide", &user("a")).await.is(403);
    // What one holds, another does not end.
    let flight = json!({ "domain": "flights", "entries": { "user": "a" }, "hold_ms": 60_000 });
    let end = json!({ "id": ask(shop, "/v1/decide", &flight).await.body["id"] });
    ask(desk, "/v1/settle", &end).await.is(404);
    ask(shop, "/v1/settle", &end).await.is(200);
    // Envoy needs one, too.
    use crate::harness::rls::{Client, OK, descriptor};
    let envoy = Client::connect(weir.http).await;
    let a = [descriptor(&[("user", "a")])];
    assert_eq!(envoy.ask("users", &a).await.unwrap_err().status, "16");
    let envoy = envoy.with("authorization", shop);
    assert_eq!(envoy.ask("users", &a).await.unwrap().overall_code, OK);
    assert_eq!(envoy.ask("keys", &a).await.unwrap_err().status, "7");
}

#[tokio::test]
async fn two_proxies_on_one_store_decide_together_and_what_fails_says_so() {
    use crate::harness::redis::Redis;
    let redis = tokio::task::spawn_blocking(Redis::start).await.unwrap();
    let text = config().redis("single", &[redis.address]).text();
    let (one, first) = start_text(text.clone()).await;
    let (two, second) = start_text(text).await;
    let calls = (0..256).map(|nth| {
        let api = if nth % 2 == 0 { &first } else { &second };
        async move { api.call("decide", &user("all")).await.body["allowed"] == true }
    });
    let allowed = futures_util::future::join_all(calls).await;
    assert_eq!(allowed.iter().filter(|allowed| **allowed).count(), 3);
    // A permit on one is held on both, and given back by the end that is reported to the first.
    let flight = json!({ "domain": "flights", "entries": { "user": "a" }, "hold_ms": 60_000 });
    let mut ids = Vec::new();
    for api in [&first, &second] {
        ids.push(api.call("decide", &flight).await.body["id"].clone());
    }
    assert_eq!(first.call("decide", &flight).await.body["allowed"], false);
    second.call("settle", &json!({ "id": ids[0] })).await.is(404);
    first.call("settle", &json!({ "id": ids[0] })).await.is(200);
    eventually_async("the permit", async || {
        let answer = second.call("decide", &flight).await;
        if answer.body["allowed"] == true { Ok(()) } else { Err(format!("{answer:?}")) }
    })
    .await;
    // What a proxy holds that ends, it gives back.
    let mut two = two;
    tokio::task::spawn_blocking(move || {
        two.signal(Signal::TERM);
        two.exit()
    })
    .await
    .unwrap();
    for _ in 0..2 {
        let answer = first.call("decide", &flight).await;
        assert_eq!(answer.body["allowed"], true, "{answer:?}");
    }
    drop(one);
}

#[tokio::test]
async fn without_its_store_nothing_is_a_decision() {
    let nowhere: SocketAddr = free_address();
    let (_weir, api) = start_text(config().redis("single", &[nowhere]).text()).await;
    let key = [("idempotency-key", "k")];
    for _ in 0..2 {
        let failed = api.send_json("/v1/decide", &key, &user("a")).await;
        failed.is(503);
        // It is no answer to keep.
        assert_eq!(failed.header("idempotent-replayed"), "");
    }
    let several = api.call("decide", &json!([user("a"), user("b")])).await;
    several.is(200);
    assert_eq!(several.body[0]["error"]["status"], 503);
}

#[tokio::test]
async fn the_description_has_what_is_answered() {
    let (_weir, api) = start(config()).await;
    let document = api.send("GET", "/v1/openapi.json", &[], Vec::new()).await;
    document.is(200);
    let paths = document.body["paths"].as_object().unwrap();
    for path in ["/v1/decide", "/v1/take", "/v1/look", "/v1/settle", "/v1/give-back"] {
        assert!(paths[path]["post"]["responses"]["200"].is_object(), "{path}");
    }
    let known = |schema: &str, shown: &Value| {
        let properties = document.body["components"]["schemas"][schema]["properties"].clone();
        for name in shown.as_object().unwrap().keys() {
            assert!(properties.get(name).is_some(), "{schema} has no {name}: {shown}");
        }
    };
    let held = with(user("a"), json!({ "hold_ms": 1_000, "hits": 3 }));
    for call in [held, user("a")] {
        let answer = api.call("decide", &call).await;
        known("Decision", &answer.body);
        known("Limit", &answer.body["limits"][0]);
    }
    known("Problem", &api.call("decide", &json!({})).await.body);
    // Each example is a call that is understood.
    for path in ["/v1/decide", "/v1/take", "/v1/look"] {
        let content = &paths[path]["post"]["requestBody"]["content"]["application/json"];
        let example = &content["example"];
        known("Call", example);
        api.send_json(path, &[], example).await.is(200);
    }
}

#[test]
fn mistakes_in_tokens_are_found_at_their_lines() {
    let token = "[[decisions.tokens]]\nname = \"a\"\ntoken_env = \"WEIR_T\"\nscopes = [\"look\"]\n";
    let good = config().more(token).text();
    for (from, to, expected) in [
        ("", "", ""),
        ("scopes = [\"look\"]", "scopes = [\"lok\"]", "\"decide\""),
        ("scopes = [\"look\"]", "scopes = []", "no scope"),
        ("scopes = [\"look\"]\n", "", "scopes"),
        ("token_env = \"WEIR_T\"\n", "", "`token_file` or `token_env`"),
        ("name = \"a\"\ntoken_env", "token_env", "name"),
        ("serves = \"decisions\"", "", "no listener that they are for"),
    ] {
        let text = good.replacen(from, to, 1);
        let (code, out, errors) = Weir::check(Weir::build(&text).environment("WEIR_T", "t"));
        assert_eq!(code, if expected.is_empty() { 0 } else { 78 }, "{out}{errors}");
        assert!(errors.contains(expected), "{expected}: {errors}");
    }
    let twice = format!("{good}\n{}", token.replace("\"a\"", "\"b\""));
    let (code, _, errors) = Weir::check(Weir::build(&twice).environment("WEIR_T", "t"));
    assert!(code == 78 && errors.contains("a token of its own"), "{errors}");
}

#[tokio::test]
async fn a_reload_keeps_what_is_held() {
    let text = config().text();
    let (weir, api) = start_text(text.clone()).await;
    let unsent = json!({ "domain": "unsent", "entries": { "user": "a" }, "hold_ms": 60_000 });
    let id = api.call("decide", &unsent).await.body["id"].clone();
    let weir = tokio::task::spawn_blocking(move || {
        weir.reload(&text.replace("name = \"user\"", "name = \"person\""), "applied");
        weir
    });
    let weir = tokio::time::timeout(TIMEOUT + Duration::from_secs(5), weir).await.unwrap().unwrap();
    api.call("give-back", &json!({ "id": id })).await.is(200);
    let look = api.call("look", &json!({ "domain": "unsent", "entries": { "user": "a" } })).await;
    assert_eq!(look.body["limits"][0]["remaining"], 3);
    look.is(200);
    drop(weir);
}
