//! Calls of Envoy's rate limit service as envoyproxy/ratelimit and Limitador answer them: what is
//! imported from their files, and descriptors that replace others or of which one is enough.

use serde_json::json;

use super::decisions::start_text;
use crate::harness::api::Api;
use crate::harness::redis::Redis;
use crate::harness::rls::{Client, OK, OVER_LIMIT, Response, descriptor};
use crate::harness::toml::Toml;
use crate::harness::weir::Weir;

/// Weir with what it imports of a file.
async fn start_imported(yaml: &'static str) -> (Weir, Client) {
    let import = move || {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("limits.yaml");
        std::fs::write(&file, yaml).unwrap();
        let import = Weir::with_arguments(&["rls", "import"]).argument(file.to_str().unwrap());
        let (code, text, errors) = import.run();
        assert_eq!((code, errors.as_str()), (0, ""), "{text}");
        let (code, out, errors) = Weir::check(Weir::build(&text));
        assert_eq!(code, 0, "{out}{errors}");
        text
    };
    let text = tokio::task::spawn_blocking(import).await.unwrap();
    let free = "127.0.0.1:0";
    let text = text.replace("127.0.0.1:8081", free);
    start_text(format!("{text}\n[admin]\naddress = \"{free}\"\n")).await
}

#[tokio::test]
async fn what_is_imported_from_limitador_decides_as_it_does() {
    let yaml = "
- namespace: shop
  max_value: 2
  seconds: 86400
  conditions: [\"descriptors[0]['method'] == 'POST'\"]
  variables: [\"descriptors[0].user\"]
- { namespace: shop, max_value: 4, seconds: 86400, conditions: ['method == \"POST\"'] }
";
    let (_weir, client) = start_imported(yaml).await;
    let code = async |entries: &[(&str, &str)]| {
        client.ask("shop", &[descriptor(entries)]).await.unwrap().overall_code
    };
    let post = [("method", "POST"), ("user", "a")];
    let answers = [code(&post).await, code(&post).await, code(&post).await];
    assert_eq!(answers, [OK, OK, OVER_LIMIT]);
    // A refusal charges neither limit, and without a user only the second one counts.
    let of_b = [("user", "b"), ("method", "POST")];
    assert_eq!([code(&of_b).await, code(&[("method", "POST")]).await], [OK, OK]);
    assert_eq!(code(&of_b).await, OVER_LIMIT, "all four are used");
    assert_eq!(code(&[("method", "GET"), ("user", "a")]).await, OK);
}

#[tokio::test]
async fn what_is_imported_from_ratelimit_decides_as_it_does() {
    let yaml = "
domain: edge_proxy
descriptors:
  - key: remote_address
    rate_limit: { unit: day, requests_per_unit: 2 }
  - key: remote_address
    value: 50.0.0.5
    rate_limit: { unit: day, requests_per_unit: 0 }
  - key: message_type
    value: marketing
    descriptors:
      - key: to_number
        rate_limit: { unit: day, requests_per_unit: 1 }
  - key: files
    value: img/*
    share_threshold: true
    rate_limit: { unit: day, requests_per_unit: 1 }
  - key: soft
    shadow_mode: true
    rate_limit: { unit: day, requests_per_unit: 1 }
  - key: ldap
    rate_limit: { unlimited: true }
";
    let (_weir, client) = start_imported(yaml).await;
    let code = async |entries: &[(&str, &str)]| {
        client.ask("edge_proxy", &[descriptor(entries)]).await.unwrap().overall_code
    };
    let to = [("message_type", "marketing"), ("to_number", "206")];
    let (image, other) = ([("files", "img/a")], [("files", "img/b")]);
    for (entries, expected) in [
        (&[("remote_address", "192.0.2.1")][..], [OK, OK, OVER_LIMIT]),
        (&[("remote_address", "50.0.0.5")], [OVER_LIMIT; 3]),
        (&to, [OK, OVER_LIMIT, OVER_LIMIT]),
        (&to[..1], [OK; 3]),
        (&to[1..], [OK; 3]),
        (&[("soft", "x")], [OK; 3]),
        (&[("ldap", "x")], [OK; 3]),
        (&image, [OK, OVER_LIMIT, OVER_LIMIT]),
        (&other, [OVER_LIMIT; 3]),
    ] {
        for expected in expected {
            assert_eq!(code(entries).await, expected, "{entries:?}");
        }
    }
}

/// Two models in quota mode, one of which soon has no room, and a user.
const MODELS: &str = r#"
[policies.edge]
use = "rls"

[[policies.edge.config.rules]]
descriptor = ["model=large"]
limits = [{ name = "large", algorithm = "fixed_window", quota = 1, period = "1h" }]
quota_mode = true

[[policies.edge.config.rules]]
descriptor = ["model"]
limits = [
    { name = "model", algorithm = "fixed_window", quota = 3, period = "1d" },
    { name = "model-week", algorithm = "fixed_window", quota = 9, period = "7d" },
]
quota_mode = true

[[policies.edge.config.rules]]
descriptor = ["user"]
limits = [{ name = "user", algorithm = "fixed_window", quota = 5, period = "30d" }]
"#;

/// What is left of a descriptor's limit, and whether it is over it.
async fn look(client: &Client, entry: (&str, &str)) -> u32 {
    let answer = client.ask("edge", &[super::decisions::hits(descriptor(&[entry]), 0)]).await;
    answer.unwrap().left()[0]
}

#[tokio::test]
async fn of_descriptors_in_quota_mode_one_with_room_is_enough() {
    let redis = tokio::task::spawn_blocking(Redis::start).await.unwrap();
    let config = || {
        let toml = Toml::new().listener("serves = \"decisions\"").more(MODELS);
        toml.route("domain = \"edge\"\npolicy = \"edge\"")
    };
    for config in [config(), config().redis("single", &[redis.address])] {
        let (weir, client) = start_text(config.text()).await;
        let call = async |user: &str| -> Response {
            let entries = [("model", "large"), ("user", user), ("model", "small")];
            client.ask("edge", &entries.map(|entry| descriptor(&[entry]))).await.unwrap()
        };
        // All have room, and all are charged.
        let answer = call("a").await;
        assert_eq!((answer.overall_code, answer.codes()), (OK, vec![OK; 3]));
        assert_eq!(answer.left(), [0, 4, 2]);
        // One in quota mode is over: the call passes without it.
        for left in [1, 0] {
            let answer = call("a").await;
            let codes = vec![OVER_LIMIT, OK, OK];
            assert_eq!((answer.overall_code, answer.codes()), (OK, codes), "{answer:?}");
            assert_eq!(answer.left(), [0, 2 + left, left]);
            assert_eq!(answer.statuses[0].current_limit.as_ref().unwrap().name, "large");
            assert_eq!(answer.field("retry-after"), "");
        }
        // None has room: refused, and nobody else is charged. The caller waits for the first of the
        // two that has some again, an hour and not a day.
        let answer = call("a").await;
        let codes = vec![OVER_LIMIT, OK, OVER_LIMIT];
        assert_eq!((answer.overall_code, answer.codes()), (OVER_LIMIT, codes), "{answer:?}");
        let wait: u32 = answer.field("retry-after").parse().unwrap();
        assert!((3_500..=3_600).contains(&wait), "{answer:?}");
        assert!(answer.raw_body.contains("\"violated-policies\":[\"large\"]"), "{answer:?}");
        assert_eq!(look(&client, ("user", "a")).await, 2);
        assert_eq!(look(&client, ("model", "small")).await, 0);
        // By itself it is a limit like any other.
        let alone = client.ask("edge", &[descriptor(&[("model", "large")])]).await.unwrap();
        assert_eq!(alone.overall_code, OVER_LIMIT);
        // More hits than a limit ever has are over it, and another one is enough.
        let many = super::decisions::hits(descriptor(&[("model", "b")]), 1 << 63);
        let answer = client.ask("edge", &[many, descriptor(&[("model", "c")])]).await.unwrap();
        assert_eq!((answer.overall_code, answer.codes()), (OK, vec![OVER_LIMIT, OK]));
        assert_eq!(look(&client, ("model", "b")).await, 3);
        drop(weir);
    }
}

#[tokio::test]
async fn an_ordinary_limit_refuses_whatever_is_in_quota_mode() {
    let toml = Toml::new().listener("serves = \"decisions\"").more(MODELS);
    let toml = toml.route("domain = \"edge\"\npolicy = \"edge\"");
    let (_weir, client) = start_text(toml.text()).await;
    let five = super::decisions::hits(descriptor(&[("user", "a")]), 5);
    assert_eq!(client.ask("edge", &[five]).await.unwrap().overall_code, OK);
    let entries = [("model", "x"), ("model", "y"), ("user", "a")];
    let descriptors = entries.map(|entry| descriptor(&[entry]));
    let answer = client.ask("edge", &descriptors).await.unwrap();
    assert_eq!((answer.overall_code, answer.codes()), (OVER_LIMIT, vec![OK, OK, OVER_LIMIT]));
    assert_eq!([look(&client, ("model", "x")).await, look(&client, ("model", "y")).await], [3, 3]);
}

#[tokio::test]
async fn a_store_that_is_away_is_no_room() {
    let redis = tokio::task::spawn_blocking(Redis::start).await.unwrap();
    let toml = Toml::new().listener("serves = \"decisions\"").more(MODELS);
    let toml = toml.redis("single", &[redis.address]);
    let (_weir, client) =
        start_text(toml.route("domain = \"edge\"\npolicy = \"edge\"").text()).await;
    let models = [descriptor(&[("model", "x")]), descriptor(&[("model", "y")])];
    assert_eq!(client.ask("edge", &models).await.unwrap().overall_code, OK);
    let open = Toml::new().listener("serves = \"decisions\"").more(MODELS);
    let open = open.redis("single", &[redis.address]);
    let allows = "domain = \"edge\"\npolicy = \"edge\"\non_store_error = \"allow\"";
    let (_open, allowing) = start_text(open.route(allows).text()).await;
    assert_eq!(allowing.ask("edge", &models).await.unwrap().overall_code, OK);
    drop(redis);
    let failed = client.ask("edge", &models).await.unwrap_err();
    assert_eq!(failed.status, "14", "{failed:?}");
    // Unless the operator lets pass what can't be counted.
    assert_eq!(allowing.ask("edge", &models).await.unwrap().codes(), [OK; 2]);
}

#[tokio::test]
async fn a_limit_that_another_descriptor_replaces_is_not_taken() {
    let yaml = "
domain: shop
descriptors:
  - key: kind
    value: read
    rate_limit: { unit: day, requests_per_unit: 2, name: read }
  - key: endpoint
    value: /export
    rate_limit: { unit: day, requests_per_unit: 4, replaces: [{ name: read }] }
  - key: endpoint
    value: /health
    rate_limit: { unlimited: true, replaces: [{ name: read }] }
";
    let (_weir, client) = start_imported(yaml).await;
    let ask = async |entries: &[(&str, &str)]| {
        let descriptors: Vec<_> = entries.iter().map(|entry| descriptor(&[*entry])).collect();
        client.ask("shop", &descriptors).await.unwrap()
    };
    let (read, export, health) =
        (("kind", "read"), ("endpoint", "/export"), ("endpoint", "/health"));
    for left in [3, 2, 1, 0] {
        let answer = ask(&[read, export]).await;
        assert_eq!((answer.codes(), answer.left()), (vec![OK; 2], vec![0, left]), "{answer:?}");
    }
    assert_eq!(ask(&[export, read]).await.codes(), [OVER_LIMIT, OK]);
    // It was never taken.
    for left in [1, 0] {
        assert_eq!(ask(&[read]).await.left(), [left]);
    }
    assert_eq!(ask(&[read]).await.codes(), [OVER_LIMIT]);
    assert_eq!(ask(&[health, read]).await.codes(), [OK; 2]);
}

#[tokio::test]
async fn what_a_rule_says_of_descriptors_with_room_reaches_the_caller() {
    let yaml = "
domain: shop
descriptors:
  - key: user
    rate_limit: { unit: day, requests_per_unit: 2 }
    metadata: { tier: gold, seen: { user: yes } }
  - key: path
    rate_limit: { unit: day, requests_per_unit: 9 }
    metadata: { tier: none, seen: { path: 1.5 } }
  - key: other
    rate_limit: { unit: day, requests_per_unit: 9 }
";
    let (weir, _client) = start_imported(yaml).await;
    let api = Api::new(weir.http);
    let ask = async |keys: &[&str]| {
        let entries = |key: &&str| json!({ "entries": [{ "key": key, "value": "x" }] });
        let descriptors: Vec<_> = keys.iter().map(entries).collect();
        let call = json!({ "domain": "shop", "descriptors": descriptors });
        api.send_json("/json", &[], &call).await.body["dynamicMetadata"].clone()
    };
    for _ in 0..2 {
        let expected = json!({
            "domain": "shop",
            "descriptors": [{ "entries": ["user=x"] }, { "entries": ["path=x"] }],
            "metadata": { "tier": "gold", "seen": { "user": true, "path": 1.5 } },
        });
        assert_eq!(ask(&["user", "path"]).await, expected);
    }
    // Of those without room, nothing is said.
    let told = ask(&["user", "path"]).await;
    assert_eq!(told["metadata"], json!({ "tier": "none", "seen": { "path": 1.5 } }));
    assert!(ask(&["user"]).await.get("metadata").is_none());
    assert!(ask(&["other"]).await.is_null());
}

/// Weir with these rules, each without its table's head.
async fn start_rules(rules: &[&str]) -> (Weir, Client) {
    let rules: String =
        rules.iter().map(|rule| format!("[[policies.edge.config.rules]]\n{rule}\n")).collect();
    let toml = Toml::new().listener("serves = \"decisions\"");
    let toml = toml.route("domain = \"edge\"\npolicy = \"edge\"");
    let text = toml.more(&format!("[policies.edge]\nuse = \"rls\"\n{rules}")).text();
    start_text(text.replace("access = \"off\"", "access = \"all\"")).await
}

fn one(key: &str, value: &str) -> crate::harness::rls::Descriptor {
    descriptor(&[(key, value)])
}

const DAY: &str = "algorithm = \"fixed_window\", period = \"1d\"";

#[tokio::test]
async fn a_shadow_limit_refuses_nothing_beside_quota_mode() {
    let rules = [
        format!(
            "descriptor = [\"a\"]\nquota_mode = true\nlimits = [{{ name = \"a\", quota = 1, {DAY} }}]"
        ),
        format!(
            "descriptor = [\"b\"]\nquota_mode = true\nlimits = [{{ name = \"b\", quota = 9, {DAY} }}]"
        ),
        format!(
            "descriptor = [\"c\"]\nquota_mode = true\nlimits = [{{ name = \"c\", quota = 1, {DAY}, shadow = true }}]"
        ),
        format!(
            "descriptor = [\"user\"]\nlimits = [{{ name = \"user\", quota = 1, {DAY}, shadow = true }}]"
        ),
    ];
    let (_weir, client) = start_rules(&rules.each_ref().map(String::as_str)).await;
    let ask = async |descriptors: &[_]| client.ask("edge", descriptors).await.unwrap();
    for left in [8, 7, 6] {
        let answer = ask(&[one("user", "u"), one("a", "x"), one("b", "x")]).await;
        let first = if left == 8 { OK } else { OVER_LIMIT };
        assert_eq!((answer.overall_code, answer.codes()), (OK, vec![OK, first, OK]), "{answer:?}");
        assert_eq!(answer.left()[2], left);
    }
    // What is only watched has room.
    for _ in 0..3 {
        let answer = ask(&[one("a", "x"), one("c", "x")]).await;
        assert_eq!((answer.overall_code, answer.codes()), (OK, vec![OVER_LIMIT, OK]), "{answer:?}");
    }
}

#[tokio::test]
async fn what_is_left_out_takes_nothing_of_what_others_share() {
    let rules = [
        format!(
            "descriptor = [\"model\"]\nquota_mode = true\nlimits = [{{ name = \"total\", quota = 5, {DAY}, key = \"all\" }}, {{ name = \"each\", quota = 2, {DAY} }}]"
        ),
        format!("descriptor = [\"user\"]\nlimits = [{{ name = \"user\", quota = 100, {DAY} }}]"),
    ];
    let (_weir, client) = start_rules(&rules.each_ref().map(String::as_str)).await;
    let ask = async |descriptors: &[_]| client.ask("edge", descriptors).await.unwrap();
    // One counter for both: with room for one, the first has it.
    let twice = [one("model", "x"), one("model", "x"), one("user", "u")];
    let answer = ask(&[one("model", "x"), one("user", "u")]).await;
    assert_eq!(answer.codes(), [OK; 2]);
    let answer = ask(&twice).await;
    assert_eq!((answer.overall_code, answer.codes()), (OK, vec![OK, OVER_LIMIT, OK]), "{answer:?}");
    // Of five in all three are left: x takes none of them, since it has none of its own left.
    for (left, y) in [(2, OK), (1, OK)] {
        let answer = ask(&[one("model", "x"), one("model", "y")]).await;
        assert_eq!((answer.overall_code, answer.codes()), (OK, vec![OVER_LIMIT, y]), "{answer:?}");
        let other = ask(&[super::decisions::hits(one("model", "z"), 0)]).await;
        assert_eq!(other.left(), [left.min(2)], "{other:?}");
    }
}

#[tokio::test]
async fn who_is_left_out_is_in_no_list_and_owes_what_is_to_be_owed() {
    let rules = [
        format!(
            "descriptor = [\"m\"]\nquota_mode = true\nlimits = [{{ name = \"m\", quota = 3, {DAY} }}]"
        ),
        format!(
            "descriptor = [\"owing\"]\nquota_mode = true\nlimits = [{{ name = \"owing\", quota = 2, {DAY}, debt = 10 }}]"
        ),
    ];
    let (weir, client) = start_rules(&rules.each_ref().map(String::as_str)).await;
    let ask = async |descriptors: &[_]| client.ask("edge", descriptors).await.unwrap();
    let hits = super::decisions::hits;
    // Too many for any limit, and more than is left, beside one with room.
    let answer =
        ask(&[hits(one("m", "a"), 1 << 63), hits(one("owing", "t"), 5), one("m", "b")]).await;
    let codes = vec![OVER_LIMIT, OVER_LIMIT, OK];
    assert_eq!((answer.overall_code, answer.codes()), (OK, codes), "{answer:?}");
    // It is used already, so it is owed: two were there, and five were used.
    let owed = ask(&[one("owing", "t")]).await;
    assert_eq!((owed.overall_code, owed.left()), (OVER_LIMIT, vec![0]), "{owed:?}");
    // Where none has room, the one that has too many hits is not waited for.
    ask(&[hits(one("m", "b"), 2)]).await;
    let answer = ask(&[hits(one("m", "a"), 1 << 63), one("m", "b")]).await;
    assert_eq!((answer.overall_code, answer.codes()), (OVER_LIMIT, vec![OVER_LIMIT; 2]));
    assert!(answer.field("retry-after").parse::<u64>().unwrap() > 86_000, "{answer:?}");
    let answer = ask(&[hits(one("m", "a"), 1 << 63), hits(one("m", "c"), 1 << 63)]).await;
    assert_eq!((answer.overall_code, answer.codes()), (OVER_LIMIT, vec![OVER_LIMIT; 2]));
    // The line of the first call names what it passed without.
    let lines = weir.output().await_events("request", 5);
    assert_eq!(lines[0]["would_refuse"], json!(["owing"]), "{}", lines[0]);
    let top = tokio::task::spawn_blocking(move || weir.admin_page("/top").json());
    let top: serde_json::Value = top.await.unwrap();
    let limits = top["limits"].as_array().unwrap();
    let of = |name: &str| limits.iter().find(|limit| limit["limit"] == name).cloned().unwrap();
    let used = of("m")["used"].as_array().unwrap().clone();
    assert_eq!(used.len(), 1, "{top}");
    assert_eq!(used[0]["units"], 3, "{top}");
}

#[tokio::test]
async fn what_is_left_out_replaces_all_the_same() {
    let rules = [
        format!(
            "descriptor = [\"model=a\"]\nquota_mode = true\nreplaces = [\"default\"]\nlimits = [{{ name = \"a\", quota = 1, {DAY} }}]"
        ),
        format!(
            "descriptor = [\"model=b\"]\nquota_mode = true\nlimits = [{{ name = \"b\", quota = 3, {DAY} }}]"
        ),
        format!("descriptor = [\"user\"]\nlimits = [{{ name = \"default\", quota = 1, {DAY} }}]"),
    ];
    let (_weir, client) = start_rules(&rules.each_ref().map(String::as_str)).await;
    let ask = async |descriptors: &[_]| client.ask("edge", descriptors).await.unwrap();
    // `default` is used up for one user, and untouched for the other.
    assert_eq!(ask(&[one("user", "x")]).await.overall_code, OK);
    for (user, first) in [("x", OK), ("x", OVER_LIMIT), ("y", OVER_LIMIT)] {
        let answer = ask(&[one("model", "a"), one("model", "b"), one("user", user)]).await;
        assert_eq!((answer.overall_code, answer.codes()), (OK, vec![first, OK, OK]), "{answer:?}");
    }
    assert_eq!(look(&client, ("user", "y")).await, 1);
}

#[tokio::test]
async fn what_is_left_out_owes_its_own_hits_alone() {
    let rules = [format!(
        "descriptor = [\"model\"]\nquota_mode = true\nlimits = [{{ name = \"total\", quota = 5, {DAY}, key = \"all\", debt = 10 }}]"
    )];
    let (_weir, client) = start_rules(&rules.each_ref().map(String::as_str)).await;
    let ask = async |descriptors: &[_]| client.ask("edge", descriptors).await.unwrap();
    ask(&[super::decisions::hits(one("model", "z"), 4)]).await;
    let answer = ask(&[one("model", "a"), one("model", "b")]).await;
    assert_eq!((answer.overall_code, answer.codes()), (OK, vec![OK, OVER_LIMIT]), "{answer:?}");
    // Six of five: with two given back, one is left.
    ask(&[returned(one("model", "z"), 2)]).await;
    assert_eq!(look(&client, ("model", "z")).await, 1);
}

/// The same descriptor, which gives units back.
fn returned(of: crate::harness::rls::Descriptor, units: u64) -> crate::harness::rls::Descriptor {
    crate::harness::rls::Descriptor { is_negative_hits: true, ..super::decisions::hits(of, units) }
}

#[tokio::test]
async fn descriptors_of_one_rule_give_back_what_they_took() {
    let rules =
        [format!("descriptor = [\"user\"]\nlimits = [{{ name = \"user\", quota = 5, {DAY} }}]")];
    let (_weir, client) = start_rules(&rules.each_ref().map(String::as_str)).await;
    let (a, b) = (one("user", "a"), one("user", "b"));
    let hits = super::decisions::hits;
    client.ask("edge", &[hits(a.clone(), 2), hits(b.clone(), 3)]).await.unwrap();
    client.ask("edge", &[returned(a, 1), returned(b, 2)]).await.unwrap();
    assert_eq!((look(&client, ("user", "a")).await, look(&client, ("user", "b")).await), (4, 4));
}

#[tokio::test]
async fn overrides_that_contradict_each_other_are_the_callers_mistake() {
    use crate::harness::rls::{DAY as A_DAY, Descriptor, Override};
    let rules =
        [format!("descriptor = [\"user\"]\nlimits = [{{ name = \"user\", quota = 5, {DAY} }}]")];
    let (weir, client) = start_rules(&rules.each_ref().map(String::as_str)).await;
    let limited = |requests_per_unit| {
        let limit = Some(Override { requests_per_unit, unit: A_DAY });
        Descriptor { limit, ..one("user", "a") }
    };
    let failed = client.ask("edge", &[limited(1), limited(2)]).await.unwrap_err();
    assert_eq!(failed.status, "3", "{failed:?}");
    let page = tokio::task::spawn_blocking(move || weir.admin_page("/metrics").text());
    let page = page.await.unwrap();
    let errors = page.lines().filter(|line| line.starts_with("weir_policy_errors_total{"));
    assert!(errors.clone().all(|line| line.ends_with(" 0")), "{:?}", errors.collect::<Vec<_>>());
}

#[tokio::test]
async fn nobody_says_that_what_was_asked_about_was_a_success() {
    let guard = "[policies.guard]\nuse = \"login-guard\"\n[policies.guard.config]\n\
                 account = \"{rls.entry.account}\"\nsuccess = [200]";
    let toml = Toml::new().listener("serves = \"decisions\"").more(guard);
    let text = toml.route("domain = \"edge\"\npolicy = \"guard\"").text();
    let (_weir, client) = start_text(text).await;
    let mut codes = Vec::new();
    for _ in 0..30 {
        codes.push(client.ask("edge", &[one("account", "ann")]).await.unwrap().overall_code);
    }
    assert_eq!((codes[0], codes.last()), (OK, Some(&OVER_LIMIT)), "{codes:?}");
}
