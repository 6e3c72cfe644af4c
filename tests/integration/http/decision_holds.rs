//! Decisions of the HTTP API that are held until their callers say how they ended.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::decision_api::{config, start, start_text, user, with};
use crate::harness::api::Api;
use crate::harness::weir::Weir;
use crate::harness::{TIMEOUT, eventually, eventually_async};

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
async fn what_is_given_back_was_not_used_and_its_call_was_answered() {
    let text = config().text().replace("access = \"off\"", "access = \"all\"");
    let (weir, api) = start_text(text).await;
    let hold = json!({ "domain": "users", "entries": { "user": "a" }, "hold_ms": 60_000 });
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(api.call("decide", &hold).await.body["id"].clone());
    }
    let units = |weir: &Weir| weir.admin_page("/top").json()["limits"][0]["units"].clone();
    for (path, end) in [
        ("give-back", json!({ "id": ids[0] })),
        ("settle", json!({ "id": ids[1], "status": 503 })),
        ("settle", json!({ "id": ids[2] })),
    ] {
        api.call(path, &end).await.is(200);
    }
    let weir = tokio::task::spawn_blocking(move || {
        assert_eq!(units(&weir), 2, "{}", weir.admin_page("/top").text());
        let lines = weir.output().await_events("request", 6);
        let held: Vec<&Value> = lines.iter().filter(|line| line["path"] == "/v1/decide").collect();
        assert_eq!(held.len(), 3, "{lines:?}");
        for line in &lines {
            assert_eq!((&line["status"], &line["serves"]), (&json!(200), &json!("decisions")));
            assert!(line["bytes"].as_u64() > Some(0), "{line}");
        }
        weir
    });
    let weir = weir.await.unwrap();
    drop(weir);
}

#[tokio::test]
async fn a_look_refuses_nobody() {
    let (weir, api) = start(config()).await;
    let zero = with(user("a"), json!({ "hits": 0 }));
    for _ in 0..3 {
        api.call("decide", &user("a")).await.is(200);
    }
    for (path, call) in [("look", &user("a")), ("decide", &zero)] {
        assert_eq!(api.call(path, call).await.body["allowed"], false, "{path}");
    }
    let counts = async |weir: Weir, expected: [u64; 4]| {
        let check = move || {
            let found = [
                weir.metric("weir_decisions_total{policy=\"users\",decision=\"admitted\"}"),
                weir.metric("weir_decisions_total{policy=\"users\",decision=\"refused\"}"),
                weir.metric("weir_limit_refusals_total{policy=\"users\",limit=\"user\"}"),
                weir.metric("weir_route_refusals_total{route=\"users\",cause=\"limit\"}"),
            ];
            assert_eq!(found, expected);
            let top = weir.admin_page("/top").json();
            assert_eq!(top["limits"][0]["refusals"], expected[2], "{top}");
            weir
        };
        tokio::task::spawn_blocking(check).await.unwrap()
    };
    let weir = counts(weir, [3, 0, 0, 0]).await;
    assert_eq!(api.call("decide", &user("a")).await.body["allowed"], false);
    let weir = counts(weir, [3, 1, 1, 1]).await;
    // Their routes have no path.
    let routes = tokio::task::spawn_blocking(move || weir.admin_page("/status").json());
    let routes = routes.await.unwrap()["configuration"]["routes"].clone();
    assert_eq!((&routes[0]["domain"], &routes[0]["path"]), (&json!("users"), &Value::Null));
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
    let lines = tokio::task::spawn_blocking(move || {
        let over =
            || weir.output().lines().iter().filter(|line| line.contains("hold-over")).count();
        eventually("the end of all three", || match over() {
            3 => Ok(()),
            other => Err(other.to_string()),
        });
        weir
    });
    let weir = lines.await.unwrap();
    api.call("settle", &json!({ "id": ids[2] })).await.is(404);
    let look = api.call("look", &json!({ "domain": "unsent", "entries": { "user": "a" } })).await;
    assert_eq!(look.body["limits"][0]["remaining"], 2);
    drop(weir);
}

#[tokio::test]
async fn what_is_held_may_be_given_more_time() {
    let (_weir, api) = start(config()).await;
    let hold = |ms: u64| json!({ "domain": "flights", "entries": { "user": "a" }, "hold_ms": ms });
    let mut ids = Vec::new();
    for _ in 0..2 {
        ids.push(api.call("decide", &hold(1_000)).await.body["id"].clone());
    }
    let more = |ids: &[Value]| -> Value {
        ids.iter().map(|id| json!({ "id": id, "hold_ms": 60_000 })).collect()
    };
    let renewed = api.call("renew", &more(&ids[..1])).await;
    assert_eq!(renewed.body, json!([{ "renewed": true }]));
    // The other one ends alone, and what has ended is not held again.
    let mut third = None;
    eventually_async("a permit", async || {
        let answer = api.call("decide", &hold(60_000)).await;
        third = answer.body["id"].as_str().map(str::to_owned);
        third.is_some().then_some(()).ok_or_else(|| format!("{answer:?}"))
    })
    .await;
    let renewed = api.call("renew", &more(&ids)).await;
    assert_eq!(renewed.body[0], json!({ "renewed": true }));
    assert_eq!(renewed.body[1]["error"]["status"], 404);
    assert_eq!(api.call("decide", &hold(60_000)).await.body["allowed"], false);
    for id in [&ids[0], &json!(third)] {
        api.call("settle", &json!({ "id": id })).await.is(200);
    }
}

#[tokio::test]
async fn a_hold_that_is_over_is_not_handed_out_again() {
    let (_weir, api) = start(config()).await;
    let flight = json!({ "domain": "flights", "entries": { "user": "a" }, "hold_ms": 60_000 });
    let ask = async |key: &str, call: &Value| {
        api.send_json("/v1/decide", &[("idempotency-key", key)], call).await
    };
    let first = ask("one", &flight).await;
    let again = ask("one", &flight).await;
    assert_eq!((again.status, &again.body), (200, &first.body));
    api.call("settle", &json!({ "id": first.body["id"] })).await.is(200);
    // Its place may be another caller's by now.
    let late = ask("one", &flight).await;
    late.is(409);
    assert!(late.body["detail"].as_str().unwrap().contains("is over"), "{late:?}");
    // Of several, each by itself.
    let two = json!([flight, flight]);
    let first = ask("two", &two).await;
    assert_eq!(ask("two", &two).await.body, first.body);
    api.call("settle", &json!({ "id": first.body[0]["id"] })).await.is(200);
    let late = ask("two", &two).await;
    late.is(200);
    assert_eq!(late.body[0]["error"]["status"], 409);
    assert_eq!(late.body[1], first.body[1]);
    // What is renewed is asked for each time.
    let renewal = json!({ "id": first.body[1]["id"], "hold_ms": 60_000 });
    let key = [("idempotency-key", "again")];
    api.send_json("/v1/renew", &key, &renewal).await.is(200);
    api.call("settle", &json!({ "id": first.body[1]["id"] })).await.is(200);
    api.send_json("/v1/renew", &key, &renewal).await.is(404);
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
async fn only_an_answer_that_was_given_is_a_success() {
    let text = config().text().replace("access = \"off\"", "access = \"all\"");
    let (weir, api) = start_text(text).await;
    let call = |name: &str, ms: u64| {
        json!({
            "domain": "signin",
            "facts": { "body:/username": name, "client-ip": "192.0.2.1", "method": "POST" },
            "hold_ms": ms,
        })
    };
    let failures = async |name: &str, ms: u64| {
        let answer = api.call("decide", &call(name, ms)).await;
        answer.is(200);
        answer.body["id"].clone()
    };
    let mut look = call("", 1);
    look.as_object_mut().unwrap().remove("hold_ms");
    let left = async |name: &str| {
        let mut look = look.clone();
        look["facts"]["body:/username"] = name.into();
        api.call("look", &look).await.body["limits"][0]["remaining"].as_u64().unwrap()
    };
    for (name, end, expected) in [
        ("gone", json!({ "outcome": "client-gone" }), 3),
        ("late", json!({ "outcome": "timed-out" }), 4),
        ("lost", json!({ "outcome": "upstream-failed" }), 4),
        ("unsent", json!({ "outcome": "unsent" }), 4),
        ("good", json!({}), 5),
    ] {
        let id = failures(name, 60_000).await;
        api.call("settle", &json!({ "id": id, "status": 401 })).await.is(200);
        assert_eq!(left(name).await, 4, "{name}");
        let id = failures(name, 60_000).await;
        api.call("settle", &with(json!({ "id": id }), end)).await.is(200);
        assert_eq!(left(name).await, expected, "{name}");
    }
    let id = failures("returned", 60_000).await;
    api.call("settle", &json!({ "id": id, "status": 401 })).await.is(200);
    let id = failures("returned", 60_000).await;
    api.call("give-back", &json!({ "id": id })).await.is(200);
    assert_eq!(left("returned").await, 4);
    // Without a hold nobody says how it ended, so it counts.
    for expected in [4, 3] {
        let mut attempt = look.clone();
        attempt["facts"]["body:/username"] = "unheld".into();
        api.call("decide", &attempt).await.is(200);
        assert_eq!(left("unheld").await, expected);
    }
    let id = failures("over", 60_000).await;
    api.call("settle", &json!({ "id": id, "status": 401 })).await.is(200);
    let id = failures("over", 50).await;
    let over = tokio::task::spawn_blocking(move || {
        weir.output().await_text("hold-over");
        weir
    });
    let _weir = over.await.unwrap();
    api.call("settle", &json!({ "id": id })).await.is(404);
    assert_eq!(left("over").await, 3, "a client that leaves has made a guess");
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

#[tokio::test]
async fn the_pages_calls_are_understood_and_a_budget_is_settled() {
    const PAGE: &str = include_str!("../../../docs/decision-api.md");
    let (_, rest) = PAGE.split_once("```toml\n").unwrap();
    let toml = rest.split("```").next().unwrap().replace("127.0.0.1:8082", "127.0.0.1:0");
    let more = r#"
[admin]
address = "127.0.0.1:0"

[policies.sign-in]
use = "login-guard"
config = { account = "{body:/email}", success = [200] }

[policies.model]
use = "llm-budget"
config = { api = "openai", tokens = [{ name = "t", algorithm = "fixed_window", quota = 1000, period = "1d" }] }

[[routes]]
domain = "sign-in"
policy = "sign-in"

[[routes]]
domain = "model"
policy = "model"
"#;
    let text = toml + more;
    let weir = tokio::task::spawn_blocking(move || {
        Weir::build(&text).environment("WEIR_MAILER_TOKEN", "secret").start()
    });
    let weir = weir.await.unwrap();
    let api = Api::new(weir.http);
    let token = [("authorization", "Bearer secret")];
    let blocks = PAGE.split("```json\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let blocks: Vec<Value> = blocks.map(|text| serde_json::from_str(text).unwrap()).collect();
    let (calls, others): (Vec<_>, Vec<_>) =
        blocks.into_iter().partition(|block| block.get("domain").is_some());
    let (mut held, mut model) = (Vec::new(), None);
    for call in &calls {
        let path = if call.get("limits").is_some() { "/v1/take" } else { "/v1/decide" };
        let answer = api.send_json(path, &token, call).await;
        answer.is(200);
        assert_eq!(answer.body["allowed"], true, "{call}: {answer:?}");
        if call["domain"] == "model" {
            assert_eq!(answer.body["limits"][0]["remaining"], 500, "{answer:?}");
            model = Some(call);
        }
        held.extend(answer.body["id"].as_str().map(str::to_owned));
    }
    let ends = others.iter().filter(|block| block.get("id").is_some());
    for (end, id) in ends.clone().zip(&held) {
        let end = with(end.clone(), json!({ "id": id }));
        api.send_json("/v1/settle", &token, &end).await.is(200);
    }
    assert_eq!((held.len(), ends.count()), (3, 3));
    let answer = api.send_json("/v1/decide", &token, model.unwrap()).await;
    assert_eq!(answer.body["limits"][0]["remaining"], 180, "320 are used, 500 reserved");
}
