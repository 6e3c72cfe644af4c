//! Facts that callers of the HTTP API give: their own, and one spelling of each.

use serde_json::{Value, json};

use super::decision_api::{config, start};

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
async fn a_path_has_one_spelling_whoever_gives_it() {
    let paths = "[policies.paths]\nuse = \"keyed\"\n[policies.paths.config]\nkey = \"{path}\"\n\
                 limits = [{ name = \"path\", algorithm = \"fixed_window\", quota = 3, period = \"1d\" }]";
    let (_weir, api) =
        start(config().route("domain = \"paths\"\npolicy = \"paths\"").more(paths)).await;
    let ask = async |path: &str| {
        api.call("decide", &json!({ "domain": "paths", "facts": { "path": path } })).await
    };
    for (path, left) in [("/login", 2), ("/l%6fgin", 1), ("/x/../%6cogin", 0)] {
        assert_eq!(ask(path).await.body["limits"][0]["remaining"], left, "{path}");
    }
    for wrong in ["login", "/a%zz", "/../a\0", "/login?x=1", "/login#x"] {
        let refused = ask(wrong).await;
        refused.is(400);
        assert!(refused.body.to_string().contains("`path`"), "{refused:?}");
    }
}

#[tokio::test]
async fn an_address_has_one_spelling_whoever_gives_it() {
    let (_weir, api) = start(config()).await;
    let ask = async |ip: &str| {
        let facts = json!({ "header.x-api-key": "k", "client-ip": ip });
        api.call("decide", &json!({ "domain": "keys", "facts": facts })).await
    };
    for (same, left) in [
        (["192.0.2.1", "192.0.2.1:4711"], [1, 0]),
        (["192.0.2.2 ", "::ffff:192.0.2.2"], [1, 0]),
        (["2001:db8:0:0::1", "[2001:db8::1]:443"], [1, 0]),
    ] {
        for (ip, left) in same.into_iter().zip(left) {
            assert_eq!(ask(ip).await.body["limits"][0]["remaining"], left, "{ip}");
        }
    }
    for wrong in ["unknown", "010.0.0.1", "fe80::1%eth0", ""] {
        let refused = ask(wrong).await;
        refused.is(400);
        assert!(refused.body.to_string().contains("is no address"), "{refused:?}");
    }
}
