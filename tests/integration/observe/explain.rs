//! `/explain`: the id of a refused request is enough to find out how it was decided, and what is
//! shown then is what the client was told. Nobody but the operator reads it, and no secret is in
//! it.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::harness::client::{Client, Reply, get, raw, statuses};
use crate::harness::redis::Redis;
use crate::harness::toml::{Toml, simple};
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;
use crate::harness::{TIMEOUT, eventually, eventually_async, free_address, guest};

/// What is remembered of the request with this id.
fn explained(weir: &Weir, id: &str) -> Value {
    let page = weir.admin_page(&format!("/explain?request_id={id}"));
    assert_eq!(page.status, 200, "{}", page.text());
    page.json()
}

/// What is remembered of the request that had this reply, which must agree with it.
#[track_caller]
fn agreed(weir: &Weir, reply: &Reply) -> Value {
    let id = reply.header("x-request-id");
    let explained = explained(weir, &id);
    assert_eq!(explained["request_id"], id.as_str());
    assert_eq!(explained["status"], reply.status, "{explained}");
    // A refusal states whole seconds, rounded up; where nobody knows when it would pass, one to
    // four, chosen at random.
    let after = explained["retry_after_ms"].as_u64();
    let after = after.map(|ms| ms.div_ceil(1_000).max(1).to_string()).unwrap_or_default();
    let sent = reply.header("retry-after");
    let is_random = ["store", "overload"].contains(&explained["cause"].as_str().unwrap_or(""));
    if is_random {
        assert_eq!(after, "", "{explained}");
        assert!(sent.is_empty() || ["1", "2", "3", "4"].contains(&sent.as_str()), "{sent}");
    } else {
        assert_eq!(after, sent, "{explained}");
    }
    for limit in explained["limits"].as_array().unwrap() {
        let name = limit["name"].as_str().unwrap();
        assert_eq!(limit["remaining"], reply.remaining(name), "{explained}");
    }
    explained
}

/// Each algorithm, with an allowance of two.
const ALGORITHMS: &[(&str, &str)] = &[
    ("fixed_window", "quota = 2, period = \"1d\""),
    ("sliding_window_log", "quota = 2, period = \"1h\""),
    ("sliding_window_counter", "quota = 2, period = \"1h\""),
    ("sliding_window_buckets", "quota = 2, period = \"1h\""),
    ("token_bucket", "quota = 2, period = \"1h\""),
    ("gcra", "quota = 2, period = \"1h\""),
    ("leaky_bucket", "quota = 1, period = \"1h\", burst = 2, max_delay = \"0s\""),
    ("quota", "quota = 2, calendar = \"month\""),
    ("concurrency", "quota = 2"),
];

fn each_algorithm(url: &str) -> Toml {
    let mut config = Toml::new().upstream("api", url, "");
    for (algorithm, settings) in ALGORITHMS {
        let name = algorithm.replace('_', "-");
        let limit = format!("name = \"l-{name}\", algorithm = \"{algorithm}\", {settings}");
        config = config.policy(&name, &[&limit]).route(&format!(
            "name = \"r-{name}\"\npath = \"/{name}\"\nupstream = \"api\"\npolicy = \"{name}\""
        ));
    }
    config
}

/// `weir key show` for a limit of an explained request.
fn key_show(weir: &Weir, explained: &Value, limit: &Value) -> String {
    let config = weir.folder().join("proxy.toml");
    let admin = weir.admin.expect("an admin listener").to_string();
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let (policy, name) = (text(&explained["policy"]), text(&limit["name"]));
    let digest = text(&limit["digest"]);
    let arguments = ["key", "show", "--policy", &policy, "--limit", &name, "--digest", &digest];
    let more = ["--config", config.to_str().unwrap(), "--admin", &admin];
    let (code, out, err) = Weir::with_arguments(&[&arguments[..], &more].concat()).run();
    assert_eq!(code, 0, "{out}{err}");
    out
}

async fn each_algorithm_is_explained(config: impl Fn(&str) -> Toml) {
    let upstream = Upstream::start();
    let weir = Weir::start(&config(&upstream.url()).text());
    // Held, so that `concurrency` refuses, too.
    upstream.hold();
    for (turn, (algorithm, _)) in ALGORITHMS.iter().enumerate() {
        let name = algorithm.replace('_', "-");
        let address = weir.http;
        for _ in 0..2 {
            let target = format!("/{name}");
            tokio::spawn(async move { get(address, &target, &[]).await });
        }
        let sent = 2 * (turn as u64 + 1);
        eventually_async("both are at the upstream", async || {
            let seen = upstream.count();
            if seen == sent { Ok(()) } else { Err(format!("{seen} of {sent}")) }
        })
        .await;
        let refused = get(weir.http, &format!("/{name}?secret"), &[]).await;
        assert_eq!(refused.status, 429, "{name}: {refused:?}");
        let explained = agreed(&weir, &refused);
        for (what, expected) in [
            ("client", "127.0.0.1"),
            ("method", "GET"),
            ("path", &format!("/{name}")),
            ("route", &format!("r-{name}")),
            ("policy", &name),
            ("decision", "refused"),
            ("cause", "limit"),
        ] {
            assert_eq!(explained[what], expected, "{explained}");
        }
        assert_eq!(explained["facts"]["client-ip"], "127.0.0.1", "{explained}");
        let limit = &explained["limits"][0];
        assert_eq!(limit["algorithm"], *algorithm);
        assert_eq!(
            (&limit["allowance"], &limit["asked"], &limit["had"]),
            (&2.into(), &1.into(), &limit["remaining"]),
            "{explained}"
        );
        assert_eq!((&limit["fits"], &limit["enforced"]), (&false.into(), &true.into()));
        assert_eq!(limit["passes_after_ms"], explained["retry_after_ms"], "{explained}");
        assert_eq!(limit["key"], Value::Null, "only with show_keys");
        let shown = key_show(&weir, &explained, limit);
        assert!(shown.contains(&format!("\n  {algorithm}: ")), "{shown}");
    }
    upstream.release();
}

#[tokio::test]
async fn in_memory_each_algorithms_refusal_is_explained_as_the_client_was_told() {
    each_algorithm_is_explained(each_algorithm).await;
}

#[tokio::test]
async fn on_redis_each_algorithms_refusal_is_explained_as_the_client_was_told() {
    let redis = Redis::start();
    each_algorithm_is_explained(|url| each_algorithm(url).redis("single", &[redis.address])).await;
}

#[tokio::test]
async fn a_denial_and_a_failing_policy_are_explained() {
    let upstream = Upstream::start();
    let config = Toml::new()
        .upstream("api", &upstream.url(), "")
        .more("[policies.guest]\nwasm = \"guest.wasm\"\ncpu_time = \"100ms\"\nmemory = \"64MiB\"")
        .route("name = \"api\"\npath = \"/*\"\nupstream = \"api\"\npolicy = \"guest\"");
    let module = std::fs::read(guest::misbehaving()).expect("the module");
    let weir = Weir::build(&config.text()).file("guest.wasm", &module).start();

    let denied = get(weir.http, "/?deny", &[]).await;
    assert_eq!((denied.status, denied.header("retry-after").as_str()), (403, "5"));
    let explained = agreed(&weir, &denied);
    assert_eq!((&explained["cause"], &explained["decision"]), (&"denial".into(), &"denied".into()));
    assert_eq!(explained["reason"], "not you");
    assert_eq!(explained["limits"], serde_json::json!([]));

    let failed = get(weir.http, "/?panic", &[]).await;
    assert_eq!(failed.status, 503);
    let explained = agreed(&weir, &failed);
    assert_eq!(
        (&explained["cause"], &explained["decision"]),
        (&"policy_error".into(), &"failed".into())
    );
    assert!(explained["facts"]["query"].as_str().unwrap().starts_with("digest:"), "{explained}");
}

const DAY: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 2, period = \"1d\"";

#[tokio::test]
async fn a_store_that_does_not_answer_is_explained() {
    let upstream = Upstream::start();
    let config = simple(&upstream.url(), &[DAY]).redis("single", &[free_address()]);
    let weir = Weir::start(&config.text());
    let refused = get(weir.http, "/", &[]).await;
    assert_eq!(refused.status, 503);
    let explained = agreed(&weir, &refused);
    let said = [&explained["cause"], &explained["decision"], &explained["store_failure"]];
    assert_eq!(said, ["store", "unavailable", "connection"], "{explained}");
    assert_eq!(explained["facts"]["client-ip"], "127.0.0.1");
}

#[tokio::test]
async fn overload_and_an_upstream_that_fails_are_explained() {
    let upstream = Upstream::start();
    let config = Toml::new()
        .server("workers = 1")
        .upstream("api", &upstream.url(), "requests_per_worker = 1")
        .upstream("gone", &format!("http://{}", free_address()), "")
        .policy("public", &[DAY])
        .route("name = \"api\"\npath = \"/*\"\nupstream = \"api\"\npolicy = \"public\"")
        .route("name = \"gone\"\npath = \"/gone\"\nupstream = \"gone\"");
    let weir = Weir::start(&config.text());
    upstream.hold();
    let address = weir.http;
    let held = tokio::spawn(async move { get(address, "/", &[]).await });
    eventually_async("one is at the upstream", async || {
        if upstream.count() == 1 { Ok(()) } else { Err(upstream.count().to_string()) }
    })
    .await;
    let refused = get(weir.http, "/", &[]).await;
    assert_eq!(refused.status, 503, "{refused:?}");
    let explained = agreed(&weir, &refused);
    assert_eq!(explained["cause"], "overload", "{explained}");
    assert_eq!(explained["decision"], "admitted", "its limits let it through");
    assert_eq!(explained["limits"][0]["had"], 1, "and were charged: {explained}");
    upstream.release();
    held.await.unwrap();

    let failed = get(weir.http, "/gone", &[]).await;
    assert_eq!(failed.status, 502);
    let explained = agreed(&weir, &failed);
    let said = [&explained["cause"], &explained["failure"], &explained["policy"]];
    assert_eq!(said, [&Value::from("upstream"), &"connect".into(), &Value::Null], "{explained}");
}

#[tokio::test]
async fn a_client_with_its_share_of_an_upstream_is_explained() {
    let upstream = Upstream::start();
    let config = simple(&upstream.url(), &[DAY])
        .server("workers = 1")
        .upstream("small", &upstream.url(), "requests_per_worker = 8")
        .route("name = \"small\"\npath = \"/small\"\nupstream = \"small\"");
    let weir = Weir::start(&config.text());
    upstream.hold();
    let address = weir.http;
    // Beyond a half of the eight, one more of each client.
    for held in 1..=5 {
        tokio::spawn(async move { get(address, "/small", &[]).await });
        eventually_async("it is at the upstream", async || {
            if upstream.count() == held { Ok(()) } else { Err(upstream.count().to_string()) }
        })
        .await;
    }
    let refused = get(weir.http, "/small", &[]).await;
    assert_eq!(refused.status, 503, "{refused:?}");
    let explained = agreed(&weir, &refused);
    assert_eq!((&explained["cause"], &explained["failure"]), (&"overload".into(), &"share".into()));
    upstream.release();
}

#[tokio::test]
async fn bodies_beyond_what_may_be_buffered_are_explained() {
    let upstream = Upstream::start();
    let policy = "[policies.public]\nuse = \"keyed\"\nconfig.key = \"{body:/key}\"\n\
                  config.limits = [{ name = \"day\", algorithm = \"fixed_window\", quota = 2, period = \"1d\" }]";
    let route = "name = \"api\"\npath = \"/*\"\nupstream = \"api\"\npolicy = \"public\"\ninspect_bytes = \"32MiB\"";
    let config = Toml::new()
        .limit("buffered_bytes = \"8MiB\"")
        .upstream("api", &upstream.url(), "")
        .more(policy)
        .route(route);
    let weir = Weir::start(&config.text());
    let padding = "x".repeat(16 << 20);
    let body = format!("{{\"key\": \"s3cret\", \"padding\": \"{padding}\"}}");
    let mut client = Client::connect(weir.http).await.unwrap();
    let json = [("content-type", "application/json")];
    let refused = client.send("POST", "/", &json, body.into()).await.unwrap();
    assert_eq!(refused.status, 503, "{refused:?}");
    let explained = agreed(&weir, &refused);
    assert_eq!(explained["cause"], "overload", "{explained}");
    assert_eq!(explained["decision"], Value::Null, "its policy was not asked: {explained}");
    assert_eq!(explained["limits"], serde_json::json!([]), "{explained}");
    // A body that is too large for its route is the client's error.
    let small = config.text().replace("32MiB", "1KiB").replace("8MiB", "64MiB");
    weir.reload(&small, "applied");
    let mut client = Client::connect(weir.http).await.unwrap();
    let refused = client.send("POST", "/", &json, "x".repeat(2_048).into()).await.unwrap();
    assert_eq!(refused.status, 413, "{refused:?}");
    let explained = agreed(&weir, &refused);
    let rejection = &explained["rejection"];
    assert_eq!((&explained["cause"], &rejection["check"]), (&"request".into(), &"body".into()));
    assert_eq!(rejection["found"], "it is larger than 1024 bytes", "{explained}");
}

const LOCKOUT: &str = include_str!("../../../examples/scripts/lockout.lua");

async fn a_script_is_explained(config: impl Fn(&str) -> Toml) {
    let upstream = Upstream::start();
    let limit = "name = \"twice\", algorithm = \"script\", script = \"lockout\", arguments = [2, 60_000_000, 300_000_000]";
    let mut config = config(&upstream.url()).policy("scripted", &[limit]).route(
        "name = \"scripted\"\npath = \"/scripted\"\nupstream = \"api\"\npolicy = \"scripted\"",
    );
    if config.store.is_empty() {
        config.store = "[store]\n".into();
    }
    let text = config.text().replace("[store]\n", "[store]\nscripts = \"lua\"\n");
    let weir = Weir::build(&text).file("lua/lockout.lua", LOCKOUT.as_bytes()).start();
    for left in [1, 0] {
        let reply = get(weir.http, "/scripted", &[]).await;
        assert_eq!((reply.status, reply.remaining("twice")), (200, left), "{reply:?}");
    }
    let refused = get(weir.http, "/scripted", &[]).await;
    assert_eq!((refused.status, refused.remaining("twice")), (429, 0), "{refused:?}");
    let explained = agreed(&weir, &refused);
    let limit = &explained["limits"][0];
    assert_eq!((&explained["cause"], &limit["fits"]), (&"limit".into(), &false.into()));
    assert_eq!(limit["passes_after_ms"], explained["retry_after_ms"], "{explained}");
    assert_eq!((&limit["had"], &limit["asked"]), (&0.into(), &1.into()), "{explained}");
    assert_eq!(limit["algorithm"], "lockout", "the script's name: {explained}");
    let shown = key_show(&weir, &explained, limit);
    assert!(shown.contains("\n  lockout: "), "{shown}");
}

#[tokio::test]
async fn in_memory_the_refusal_of_a_users_script_is_explained() {
    a_script_is_explained(|url| simple(url, &[DAY])).await;
}

#[tokio::test]
async fn on_redis_the_refusal_of_a_users_script_is_explained() {
    let redis = Redis::start();
    a_script_is_explained(|url| simple(url, &[DAY]).redis("single", &[redis.address])).await;
}

#[tokio::test]
async fn a_rejected_request_is_explained_by_its_check() {
    let upstream = Upstream::start();
    let config = Toml::new().upstream("api", &upstream.url(), "").policy("public", &[DAY]).route(
        "name = \"api\"\npath = \"/a/*\"\nmethods = [\"GET\"]\nupstream = \"api\"\npolicy = \"public\"",
    );
    let weir = Weir::start(&config.text());
    let fields: String = (0..101).map(|number| format!("x-{number}: 1\r\n")).collect();
    let get = |target: &str| format!("GET {target} HTTP/1.1\r\nHost: a\r\n");
    for (head, status, check, found) in [
        ("BROKEN\r\n".to_owned(), 400, "head", "the head is not HTTP"),
        (
            get("/a/") + "Transfer-Encoding: gzip, chunked\r\n",
            501,
            "head",
            "an unknown transfer coding",
        ),
        (get("/a/") + &fields, 431, "head", "more than 100 fields"),
        ("TRACE /a/ HTTP/1.1\r\nHost: a\r\n".to_owned(), 501, "method", "not forwarded"),
        ("get /a/ HTTP/1.1\r\nHost: a\r\n".to_owned(), 501, "method", "in capitals"),
        (get("/a/") + "Host: b\r\n", 400, "host", "more than one Host field"),
        ("GET /a/ HTTP/1.1\r\n".to_owned(), 400, "host", "there is no Host field"),
        (get("/a/%zz"), 400, "path", "a broken escape"),
        (get(&format!("/{}", "a".repeat(9_000))), 414, "target", "it is longer than 8192 bytes"),
        (get("/b"), 404, "route", "no route has its host and path"),
        ("PUT /a/b HTTP/1.1\r\nHost: a\r\n".to_owned(), 405, "route", "are for GET"),
    ] {
        let reply = raw(weir.http, format!("{head}Connection: close\r\n\r\n").as_bytes(), TIMEOUT);
        assert_eq!(statuses(&reply), [status], "{head:.200}: {reply}");
        let lower = reply.to_ascii_lowercase();
        let id = lower.split("x-request-id: ").nth(1).and_then(|rest| rest.lines().next()).unwrap();
        let explained = explained(&weir, id.trim());
        assert_eq!(
            (&explained["status"], &explained["cause"]),
            (&status.into(), &"request".into())
        );
        let rejection = &explained["rejection"];
        assert_eq!(rejection["check"], check, "{explained}");
        assert!(rejection["found"].as_str().unwrap().contains(found), "{found}: {explained}");
        assert!(!rejection["expected"].as_str().unwrap().is_empty(), "{explained}");
        assert_eq!(explained["decision"], Value::Null, "{explained}");
        assert_eq!(explained["limits"], serde_json::json!([]), "{explained}");
    }
    // They are not listed among those that a limit refused, and displace none of them.
    assert_eq!(weir.admin_page("/explain").json()["refusals"], serde_json::json!([]));
    let page = weir.admin_page("/explain?request_id=nobody");
    let told = page.text();
    assert_eq!(page.status, 404);
    assert!(told.contains("remembers 0 refusals, of at most 4096 (by a limit, "), "{told}");
    assert!(told.contains("11 rejected requests, of at most 1024 (malformed, "), "{told}");
}

/// The names of an object's members, and of those in them: `limits[].name`. What stands in the
/// members of `open` has names that others choose.
pub fn members(value: &Value, path: &str, open: &[&str], all: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) if !open.contains(&path) => {
            for (name, value) in object {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                all.insert(path.clone());
                members(value, &path, open, all);
            }
        }
        Value::Array(values) => {
            values.iter().for_each(|value| members(value, &format!("{path}[]"), open, all));
        }
        _ => {}
    }
}

#[tokio::test]
async fn the_fields_of_explain_are_those_of_the_documentation() {
    let upstream = Upstream::start();
    let weir = Weir::start(&simple(&upstream.url(), &[DAY]).text());
    for _ in 0..2 {
        assert_eq!(get(weir.http, "/", &[]).await.status, 200);
    }
    let limited = get(weir.http, "/", &[]).await;
    let malformed = get(weir.http, "/%zz", &[]).await;
    assert_eq!((limited.status, malformed.status), (429, 400));
    let mut written = BTreeSet::new();
    for reply in [limited, malformed] {
        let explained = explained(&weir, &reply.header("x-request-id"));
        members(&explained, "", &["facts", "labels"], &mut written);
    }
    members(&weir.admin_page("/explain").json(), "", &[], &mut written);
    let page = include_str!("../../../docs/admin.md");
    let section =
        page.split("## What `/explain` says").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let documented: BTreeSet<String> = rows.map(|(name, _)| name.to_owned()).collect();
    assert_eq!(documented, written);
}

#[tokio::test]
async fn the_newest_refusals_are_listed_and_what_has_no_limit_is_not() {
    let upstream = Upstream::start();
    let weir = Weir::start(&simple(&upstream.url(), &[DAY]).text());
    let mut ids = Vec::new();
    for turn in 0..130 {
        // Connections of their own, so that all workers have some.
        let reply = get(weir.http, "/", &[]).await;
        assert_eq!(reply.status, if turn < 2 { 200 } else { 429 });
        ids.push(reply.header("x-request-id"));
    }
    assert_eq!(statuses(&raw(weir.http, b"BROKEN\r\n\r\n", TIMEOUT)), [400]);
    let list = weir.admin_page("/explain").json();
    let list = list["refusals"].as_array().unwrap();
    let listed: Vec<&str> = list.iter().map(|one| one["request_id"].as_str().unwrap()).collect();
    let newest: Vec<&str> = ids.iter().rev().take(100).map(String::as_str).collect();
    assert_eq!(listed, newest);
    let (first, id) = (&list[0], ids.last().unwrap());
    assert_eq!((&first["route"], &first["policy"]), (&"api".into(), &"public".into()));
    assert_eq!((&first["cause"], &first["limits"][0]), (&"limit".into(), &"day".into()));
    assert_eq!(first["time"], explained(&weir, id)["time"]);
    // Older ones are not listed, but remembered.
    assert_eq!(explained(&weir, &ids[2])["status"], 429);
    let page = weir.admin_page(&format!("/explain?request_id={}", ids[0]));
    assert_eq!(page.status, 404, "it was admitted, and no part of the sample");
}

#[tokio::test]
async fn a_sample_of_the_admitted_is_explained_and_a_reload_changes_what_is_remembered() {
    let upstream = Upstream::start();
    let config = |more: &str| {
        let settings = format!("[admin.explain]\n{more}\n");
        simple(&upstream.url(), &[DAY]).more(&settings).text()
    };
    let weir = Weir::start(&config("sample_one_in = 1"));
    let admitted = get(weir.http, "/a", &[]).await;
    let id = admitted.header("x-request-id");
    // It is remembered when its reply has ended, which the client may see a moment earlier.
    eventually("it is remembered", || {
        match weir.admin_page(&format!("/explain?request_id={id}")).status {
            200 => Ok(()),
            status => Err(status.to_string()),
        }
    });
    let explained = agreed(&weir, &admitted);
    assert_eq!((&explained["decision"], &explained["cause"]), (&"admitted".into(), &Value::Null));
    let limit = &explained["limits"][0];
    assert_eq!((&limit["had"], &limit["fits"]), (&2.into(), &true.into()), "{explained}");
    assert_eq!(limit["passes_after_ms"], Value::Null);

    weir.reload(&config("refusals = 0\nsample_one_in = 0"), "applied");
    assert_eq!(get(weir.http, "/", &[]).await.status, 200);
    let refused = get(weir.http, "/", &[]).await;
    assert_eq!(refused.status, 429);
    let id = refused.header("x-request-id");
    let page = weir.admin_page(&format!("/explain?request_id={id}"));
    assert_eq!(page.status, 404);
    let said = "remembers 0 refusals, of at most 0 (by a limit";
    assert!(page.text().contains(said) && page.text().contains("admin.explain"), "{}", page.text());
    weir.reload(&config("refusals = 1"), "applied");
    assert_eq!(agreed(&weir, &get(weir.http, "/", &[]).await)["cause"], "limit");
}

#[tokio::test]
async fn the_id_of_a_trusted_proxy_is_found() {
    let upstream = Upstream::start();
    let config = simple(&upstream.url(), &[DAY]).server("trusted_proxies = [\"127.0.0.1\"]");
    let weir = Weir::start(&config.text());
    let fields = [("x-request-id", "order/7&x=1"), ("x-forwarded-for", "203.0.113.7")];
    for _ in 0..3 {
        get(weir.http, "/", &fields).await;
    }
    let explained = explained(&weir, "order%2F7%26x%3D1");
    assert_eq!((&explained["client"], &explained["status"]), (&"203.0.113.7".into(), &429.into()));
}

/// A secret, and the fields that carry it.
const SECRETS: [&str; 4] = ["s3cret-key", "s3cret-cookie", "s3cret-query", "s3cret-authorization"];

fn with_secrets(url: &str, admin: &str) -> String {
    let limit = |name: &str, key: &str| {
        format!(
            "{{ name = \"{name}\", algorithm = \"fixed_window\", quota = 1, period = \"1d\", key = \"{key}\" }}"
        )
    };
    let limits = [
        limit("by-key", "{header.x-api-key}"),
        limit("by-cookie", "{cookie.session}"),
        limit("by-query", "{query.token}"),
        limit("by-authorization", "{header.authorization}"),
    ];
    let policy = format!(
        "[policies.public]\nuse = \"keyed\"\nconfig.key = \"{{header.x-api-key}}\"\nconfig.limits = [{}]",
        limits.join(", ")
    );
    let config = Toml::new()
        .upstream("api", url, "")
        .more(&policy)
        .route("name = \"api\"\npath = \"/*\"\nupstream = \"api\"\npolicy = \"public\"");
    config.text().replace("[admin]", &format!("[admin]\n{admin}"))
}

async fn with_all_secrets(weir: &Weir) -> Reply {
    let [key, cookie, query, authorization] = SECRETS;
    let (cookie, target) = (format!("session={cookie}"), format!("/?token={query}"));
    let fields =
        [("x-api-key", key), ("cookie", cookie.as_str()), ("authorization", authorization)];
    let mut client = Client::connect(weir.http).await.unwrap();
    client.get(&target, &fields).await.unwrap()
}

#[tokio::test]
async fn no_key_and_no_secret_is_shown_where_it_is_not_allowed() {
    let upstream = Upstream::start();
    let weir = Weir::start(&with_secrets(&upstream.url(), ""));
    assert_eq!(with_all_secrets(&weir).await.status, 200);
    let refused = with_all_secrets(&weir).await;
    assert_eq!(refused.status, 429, "{refused:?}");
    let explained = agreed(&weir, &refused);
    let all = format!("{explained}{}", weir.admin_page("/explain").text());
    assert!(!all.contains("s3cret"), "{all}");
    assert_eq!(explained["limits"].as_array().unwrap().len(), 4, "{explained}");
    // Who knows the key finds it.
    let digest = explained["limits"][0]["digest"].as_str().unwrap();
    assert_eq!(explained["facts"]["header.x-api-key"], format!("digest:{digest}"), "{explained}");

    weir.reload(&with_secrets(&upstream.url(), "show_keys = true"), "applied");
    let refused = with_all_secrets(&weir).await;
    let explained = agreed(&weir, &refused);
    assert_eq!(explained["limits"][0]["key"], SECRETS[0], "{explained}");
    let facts = &explained["facts"];
    assert_eq!(facts["header.x-api-key"], SECRETS[0], "{explained}");
    for credentials in ["header.authorization", "cookie.session", "query.token"] {
        assert_eq!(facts[credentials], "hidden", "{credentials} is never shown: {explained}");
    }
}

#[tokio::test]
async fn nobody_reads_it_without_the_operators_token() {
    let upstream = Upstream::start();
    let config = with_secrets(&upstream.url(), "token_file = \"admin.token\"");
    let weir = Weir::build(&config).file("admin.token", b"the-token\n").start();
    with_all_secrets(&weir).await;
    let id = with_all_secrets(&weir).await.header("x-request-id");
    let port = weir.admin.unwrap().port();
    let ask = |path: &str, fields: &str| {
        let request = format!("GET {path} HTTP/1.1\r\n{fields}Connection: close\r\n\r\n");
        let reply = raw(weir.admin.unwrap(), request.as_bytes(), TIMEOUT);
        (statuses(&reply).first().copied().unwrap_or_default(), reply)
    };
    for path in ["/explain".to_owned(), format!("/explain?request_id={id}")] {
        for fields in [
            format!("Host: localhost:{port}\r\n"),
            format!("Host: localhost:{port}\r\nAuthorization: Bearer the-toke\r\n"),
            format!("Host: evil.example:{port}\r\nOrigin: http://evil.example:{port}\r\n"),
        ] {
            let (status, reply) = ask(&path, &fields);
            assert!(status == 401 && !reply.contains(&id), "{path} {fields}: {reply}");
        }
        let (status, reply) = ask(&path, "Host: a\r\nAuthorization: Bearer the-token\r\n");
        assert!(status == 200 && reply.contains(&id), "{path}: {reply}");
    }
    // On the clients' listener it is a path like any other.
    let reply = get(weir.http, &format!("/explain?request_id={id}"), &[]).await;
    assert!(!reply.text().contains("by-key"), "{reply:?}");
}
