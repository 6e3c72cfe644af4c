//! Weir decides for others: the HTTP API, as its callers see it.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::harness::api::Api;
use crate::harness::toml::Toml;
use crate::harness::weir::Weir;
use crate::harness::{eventually_async, free_address};

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

[policies.address]
use = "client-ip"
config.limits = [{ name = "address", algorithm = "fixed_window", quota = 1, period = "1d" }]

[policies.signin]
use = "login-guard"

[policies.signin.config]
account = "{body:/username}"
success = [200]
"#;

pub(super) fn config() -> Toml {
    let domains = ["users", "keys", "flights", "unsent", "signin", "address"];
    domains
        .iter()
        .fold(Toml::new().listener("serves = \"decisions\"").more(POLICIES), |all, name| {
            all.route(&format!("domain = \"{name}\"\npolicy = \"{name}\""))
        })
}

pub(super) async fn start(config: Toml) -> (Weir, Api) {
    start_text(config.text()).await
}

/// Its runtime must run while Weir starts.
pub(super) async fn start_text(text: String) -> (Weir, Api) {
    let weir = tokio::task::spawn_blocking(move || Weir::start(&text)).await.unwrap();
    let api = Api::new(weir.http);
    (weir, api)
}

pub(super) fn user(name: &str) -> Value {
    json!({ "domain": "users", "entries": { "user": name } })
}

pub(super) fn with(mut call: Value, members: Value) -> Value {
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
async fn what_is_no_call_is_answered_with_what_was_expected() {
    let (weir, api) = start(config()).await;
    for (path, call, status, expected) in [
        ("decide", json!({ "domain": "nobody" }), 404, "No route has this domain"),
        ("decide", json!({}), 400, "issing field `domain`"),
        ("decide", with(user("a"), json!({ "hit": 1 })), 400, "nknown field `hit`"),
        ("decide", json!({ "domain": "signin" }), 400, "\"method\""),
        ("decide", json!({ "domain": "keys", "facts": { "client_ip": "a" } }), 400, "client-ip"),
        ("decide", json!({ "domain": "keys", "facts": { "rls.domain": "a" } }), 400, "do not give"),
        ("take", with(user("a"), json!({ "limits": [{}] })), 400, "limits[0]"),
        ("take", user("a"), 400, "No `limits`"),
        (
            "take",
            with(user("a"), json!({ "limits": [{ "key": "x" }] })),
            400,
            "`key`, `when` or `unless`",
        ),
        ("decide", json!({ "domain": "flights", "entries": { "user": "a" } }), 400, "in flight"),
        ("decide", json!({ "domain": "address" }), 400, "client-ip"),
        ("settle", json!({ "id": "x" }), 404, "Nothing is held"),
        ("settle", json!({ "id": "x", "facts": { "heder.x": "a" } }), 400, "heder.x"),
        ("give-back", json!({ "id": "x", "status": 200 }), 400, "nknown field `status`"),
        ("renew", json!({ "id": "x", "hold_ms": 1 }), 404, "Nothing is held"),
        ("renew", json!({ "id": "x", "hold_ms": 0 }), 400, "not one from 1 to"),
        ("renew", json!({ "id": "x" }), 400, "issing field `hold_ms`"),
        // What JavaScript writes for numbers that are none.
        ("decide", with(user("a"), json!({ "hits": null })), 400, "expected u64"),
        ("decide", with(user("a"), json!({ "hold_ms": null })), 400, "expected u64"),
        ("settle", json!({ "id": "x", "status": null }), 400, "expected u16"),
        // An entry that comes twice would fit another rule, and one without a value none.
        ("decide", json!({ "domain": "users", "entries": { "user": ["a"] } }), 400, "no text"),
        ("decide", json!({ "domain": "users", "entries": { "user": [] } }), 400, "no text"),
        // The members by their order.
        ("decide", json!([["users", {}, { "user": "a" }]]), 400, "expected an object"),
        ("settle", json!([["x", "completed", 200, {}]]), 400, "expected an object"),
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
async fn a_look_says_whether_a_hit_would_fit_and_a_refusal_owes_nothing() {
    let more = r#"
[policies.costs]
use = "rls"

[[policies.costs.config.rules]]
descriptor = ["user"]
limits = [{ name = "cost", algorithm = "gcra", quota = 12, period = "1d", cost = 5, debt = 100 }]
"#;
    let config = config().route("domain = \"costs\"\npolicy = \"costs\"").more(more);
    let (_weir, api) = start(config).await;
    let call = json!({ "domain": "costs", "entries": { "user": "a" } });
    for (allowed, left) in [(true, 7), (true, 2), (false, 2), (false, 2)] {
        let look = api.call("look", &call).await;
        assert_eq!(look.body["allowed"], allowed, "{look:?}");
        let answer = api.call("decide", &call).await;
        assert_eq!(answer.body["allowed"], allowed, "{answer:?}");
        assert_eq!(answer.body["limits"][0]["remaining"], left, "{answer:?}");
    }
    // What is in flight can be looked at, too.
    let flight = json!({ "domain": "flights", "entries": { "user": "a" } });
    let held = with(flight.clone(), json!({ "hold_ms": 60_000 }));
    for left in [2, 1, 0] {
        let look = api.call("look", &flight).await;
        look.is(200);
        assert_eq!(look.body["limits"][0]["remaining"], left, "{look:?}");
        assert_eq!(look.body["allowed"], left > 0);
        api.call("decide", &held).await.is(200);
    }
}

#[tokio::test]
async fn what_calls_itself_grpc_is_answered_in_json_all_the_same() {
    use crate::harness::tls::Http2;
    let (weir, _) = start(config()).await;
    let grpc = [("content-type", "application/grpc")];
    let mut client = Http2::plain(weir.http).await.unwrap();
    let mut send = async |call: Value| {
        let reply =
            client.send("POST", "/v1/decide", &grpc, call.to_string().into()).await.unwrap();
        serde_json::from_slice::<Value>(&reply.body).unwrap()
    };
    let batch = send(json!([{ "domain": "nobody" }, user("a"), user("a"), user("a"), user("a")]));
    let batch = batch.await;
    assert_eq!(batch[0]["error"]["status"], 404);
    assert_eq!((&batch[1]["allowed"], &batch[4]["status"]), (&json!(true), &json!(429)));
    assert!(batch[4]["body"].as_str().unwrap().contains("quota-exceeded"), "{batch}");
    assert_eq!(send(json!({ "domain": "nobody" })).await["status"], 404);
}

#[tokio::test]
async fn calls_that_are_too_large_take_little_memory() {
    let (weir, api) = start(config()).await;
    let (name, values) = ("n".repeat(100_000), vec![""; 10_000]);
    let (facts, before) = (json!({ name: values }), weir.peak_memory_kib());
    let body = json!({ "domain": "users", "facts": facts });
    api.call("decide", &body).await.is(400);
    api.call("settle", &json!({ "id": "x", "facts": facts })).await.is(400);
    let limits = vec![0; 400_000];
    api.call("take", &with(user("a"), json!({ "limits": limits }))).await.is(400);
    let grown = weir.peak_memory_kib() - before;
    assert!(grown < 100 << 10, "{grown} KiB");
    assert_eq!(api.call("decide", &user("a")).await.body["allowed"], true);
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
    // What can't be read has no key, and what fails for its caller's fault is known again.
    let wrong = api.send_json("/v1/decide", &[("idempotency-key", "x")], &json!({})).await;
    wrong.is(400);
    for replayed in ["", "true"] {
        let nobody = json!({ "domain": "nobody" });
        let wrong = api.send_json("/v1/decide", &[("idempotency-key", "x")], &nobody).await;
        wrong.is(404);
        assert_eq!(wrong.header("idempotent-replayed"), replayed);
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
async fn what_waits_keeps_no_more_than_it_needs() {
    use tokio::io::AsyncWriteExt as _;
    let (weir, api) = start(config()).await;
    let slow = json!([{ "name": "slow", "algorithm": "leaky_bucket", "quota": 1, "period": "9s",
        "max_delay": "10s" }]);
    let call = |name: &str| {
        json!({ "domain": "users", "entries": { "user": name }, "limits": slow }).to_string()
    };
    let mut callers = Vec::new();
    for name in ["a", "b", "c", "d"] {
        // The first passes, and the second waits for it.
        for key in ["1", "2"] {
            let text = call(name) + &" ".repeat(1 << 20)[call(name).len()..];
            let head = format!(
                "POST /v1/take HTTP/1.1\r\nhost: weir\r\nidempotency-key: {name}{key}\r\n\
                 content-length: {}\r\n\r\n",
                text.len()
            );
            let mut stream = tokio::net::TcpStream::connect(api.address).await.unwrap();
            stream.write_all((head + &text).as_bytes()).await.unwrap();
            callers.push(stream);
        }
        eventually_async("both calls", async || {
            let look = json!({ "domain": "users", "entries": { "user": name }, "limits": slow });
            let look = api.call("look", &look).await;
            let wait_ms = look.body["limits"][0]["resets_ms"].as_u64();
            if wait_ms > Some(9_000) { Ok(()) } else { Err(format!("{look:?}")) }
        })
        .await;
    }
    drop(callers);
    let weir = std::sync::Arc::new(weir);
    eventually_async("nothing is kept of the bodies", async || {
        let weir = std::sync::Arc::clone(&weir);
        let read = move || weir.metric("weir_buffered_bytes");
        let bytes = tokio::task::spawn_blocking(read).await.unwrap();
        if bytes < 1 << 20 { Ok(()) } else { Err(bytes.to_string()) }
    })
    .await;
    let longer = call("e").replace("10s", "11s");
    let refused = api.call("take", &serde_json::from_str(&longer).unwrap()).await;
    refused.is(400);
    assert!(refused.body.to_string().contains("max_delay"), "{refused:?}");
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
    let file = text.clone();
    let weir = tokio::task::spawn_blocking(move || {
        Weir::build(&file)
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
    // With a key as without one.
    let key = [("authorization", shop), ("idempotency-key", "both")];
    let both = json!([{ "domain": "keys" }, user("c")]);
    let several = api.send_json("/v1/decide", &key, &both).await;
    several.is(200);
    assert_eq!(several.body[0]["error"]["status"], 403);
    assert_eq!(several.body[1]["allowed"], true);
    let again = api.send_json("/v1/decide", &key, &both).await;
    again.is(200);
    assert_eq!(
        (again.header("idempotent-replayed"), &again.body),
        ("true".to_owned(), &several.body)
    );
    // What one holds, another does not end.
    let flight = json!({ "domain": "flights", "entries": { "user": "a" }, "hold_ms": 60_000 });
    let end = json!({ "id": ask(shop, "/v1/decide", &flight).await.body["id"] });
    ask(desk, "/v1/settle", &end).await.is(404);
    ask(shop, "/v1/settle", &end).await.is(200);
    // Envoy needs one, too.
    use crate::harness::rls::{Client, OK, descriptor};
    let envoy = Client::connect(weir.http).await;
    let a = [descriptor(&[("user", "a")])];
    use crate::harness::rls::{DAY, Override};
    assert_eq!(envoy.ask("users", &a).await.unwrap_err().status, "16");
    let envoy = envoy.with("authorization", shop);
    assert_eq!(envoy.ask("users", &a).await.unwrap().overall_code, OK);
    assert_eq!(envoy.ask("keys", &a).await.unwrap_err().status, "7");
    // A limit of its own is what the scope `take` is for.
    let own = Some(Override { requests_per_unit: 1_000, unit: DAY });
    let overridden =
        [crate::harness::rls::Descriptor { limit: own, ..descriptor(&[("user", "a")]) }];
    assert_eq!(envoy.ask("users", &overridden).await.unwrap_err().status, "7");
    // What a token is for now is what counts, also for what came before.
    let key = [("authorization", shop), ("idempotency-key", "k")];
    api.send_json("/v1/decide", &key, &user("b")).await.is(200);
    let end = json!({ "id": ask(shop, "/v1/decide", &flight).await.body["id"] });
    let narrowed = text.replace("domains = [\"users\", \"flights\"]", "domains = [\"unsent\"]");
    let weir = tokio::task::spawn_blocking(move || {
        weir.reload(&narrowed, "applied");
        weir
    });
    let _weir = weir.await.unwrap();
    api.send_json("/v1/decide", &key, &user("b")).await.is(403);
    let both_key = [("authorization", shop), ("idempotency-key", "both")];
    api.send_json("/v1/decide", &both_key, &both).await.is(422);
    ask(shop, "/v1/settle", &end).await.is(404);
}

#[tokio::test]
async fn lines_say_who_has_asked_about_what() {
    let tokens = r#"
[[decisions.tokens]]
name = "shop"
token_file = "shop.token"
scopes = ["decide", "settle"]
"#;
    let log = "access = \"all\"\naccess_fields = [\"path\", \"caller\", \"domain\", \"descriptors\", \"hits\", \"status\"]";
    let text = config().more(tokens).text().replace("access = \"off\"", log);
    let text = text.replace("[admin]", "[admin]\nshow_keys = true");
    let weir = tokio::task::spawn_blocking(move || {
        Weir::build(&text).file("shop.token", b"shop-secret").start()
    });
    let weir = weir.await.unwrap();
    let api = Api::new(weir.http);
    let bearer = [("authorization", "Bearer shop-secret")];
    let two = json!({ "domain": "users", "entries": { "user": "a" }, "hits": 2 });
    api.send_json("/v1/decide", &bearer, &two).await.is(200);
    let flight = json!({ "domain": "flights", "entries": { "user": "a" }, "hold_ms": 60_000 });
    let id = api.send_json("/v1/decide", &bearer, &flight).await.body["id"].clone();
    api.send_json("/v1/settle", &bearer, &json!({ "id": id })).await.is(200);
    api.call("decide", &two).await.is(401);
    let lines = weir.output().await_events("request", 4);
    let line = |path: &str, status: u64, has: &str| {
        let fits = |line: &&Value| {
            line["path"] == path && line["status"] == status && line["domain"] == has
        };
        lines.iter().find(fits).unwrap_or_else(|| panic!("{path} {status}: {lines:?}"))
    };
    let decided = line("/v1/decide", 200, "users");
    assert_eq!((&decided["caller"], &decided["hits"]), (&json!("shop"), &json!(2)));
    assert_eq!(decided["descriptors"], "[[[\"user\",\"a\"]]]");
    let held = line("/v1/decide", 200, "flights");
    assert_eq!((&held["caller"], &held["hits"]), (&json!("shop"), &Value::Null));
    let settled = lines.iter().find(|line| line["path"] == "/v1/settle").unwrap();
    assert_eq!((&settled["caller"], &settled["domain"]), (&json!("shop"), &Value::Null));
    let unknown = lines.iter().find(|line| line["status"] == 401).unwrap();
    assert_eq!((&unknown["caller"], &unknown["domain"]), (&Value::Null, &Value::Null));
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
    let key = [("idempotency-key", "several")];
    for _ in 0..2 {
        let both = json!([user("a"), user("b")]);
        let several = api.send_json("/v1/decide", &key, &both).await;
        several.is(200);
        assert_eq!(several.body[0]["error"]["status"], 503);
        assert_eq!(several.header("idempotent-replayed"), "");
    }
}

#[tokio::test]
async fn the_description_has_what_is_answered() {
    let (_weir, api) = start(config()).await;
    let document = api.send("GET", "/v1/openapi.json", &[], Vec::new()).await;
    document.is(200);
    let paths = document.body["paths"].as_object().unwrap();
    for path in ["decide", "take", "look", "settle", "give-back", "renew"] {
        let path = format!("/v1/{path}");
        let path = &*path;
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
