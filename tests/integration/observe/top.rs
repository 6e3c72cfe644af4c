//! `/top` and the access log: which keys use most and which are refused most, by names that `weir
//! key` takes, and by their texts only where the operator allows it.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;

use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::harness::client::{Client, get, raw, statuses};
use crate::harness::redis::Redis;
#[cfg(target_os = "linux")]
use crate::harness::terminal::Terminal;
use crate::harness::toml::Toml;
use crate::harness::upstream::{Upstream, listener};
use crate::harness::weir::{Weir, binary};
use crate::harness::{TIMEOUT, eventually, free_address};

/// Two limits by a field, one of them narrow, and one that nobody passes.
fn config(url: &str) -> Toml {
    let limit = |name: &str, quota: u64| {
        format!(
            "{{ name = \"{name}\", algorithm = \"fixed_window\", quota = {quota}, period = \"1d\" }}"
        )
    };
    let policy = |name: &str, limits: &[String]| {
        format!(
            "[policies.{name}]\nuse = \"keyed\"\nconfig.key = \"{{header.x-api-key}}\"\nconfig.limits = [{}]",
            limits.join(", ")
        )
    };
    let route = |name: &str, more: &str| {
        format!(
            "name = \"{name}\"\npath = \"/{name}\"\nupstream = \"api\"\npolicy = \"{name}\"\n{more}"
        )
    };
    Toml::new()
        .upstream("api", url, "")
        .more(&policy("keyed", &[limit("narrow", 10), limit("wide", 1_000)]))
        .more(&policy("never", &[limit("nothing", 0)]))
        .route(&route("keyed", ""))
        .route(&route("never", "limit_scope = \"route\""))
}

/// How often each key asks.
const ASKS: [(&str, u64); 4] =
    [("s3cret-a", 25), ("s3cret-b", 17), ("s3cret-c", 11), ("s3cret-d", 3)];

async fn ask_all(weir: &Weir) {
    for (key, times) in ASKS {
        for turn in 0..times {
            // Connections of their own, so that all workers count.
            let reply = get(weir.http, "/keyed", &[("x-api-key", key)]).await;
            assert_eq!(reply.status, if turn < 10 { 200 } else { 429 });
        }
    }
    let mut client = Client::connect(weir.http).await.unwrap();
    assert_eq!(client.get("/never", &[("x-api-key", "s3cret-a")]).await.unwrap().status, 429);
}

fn top(weir: &Weir, query: &str) -> Value {
    let page = weir.admin_page(&format!("/top{query}"));
    assert_eq!(page.status, 200, "{}", page.text());
    page.json()
}

/// The numbers of one limit's list.
fn numbers(top: &Value, limit: &str, list: &str, number: &str) -> Vec<u64> {
    let limits = top["limits"].as_array().unwrap();
    let of = limits.iter().find(|of| of["limit"] == limit).unwrap_or_else(|| panic!("{top}"));
    let keys = of[list].as_array().unwrap();
    assert!(keys.iter().all(|key| key["error"] == 0), "few keys are counted exactly: {top}");
    keys.iter().map(|key| key[number].as_u64().unwrap()).collect()
}

async fn counted(config: &Toml) {
    let weir = Weir::start(&config.text());
    ask_all(&weir).await;
    let all = top(&weir, "");
    assert_eq!(numbers(&all, "narrow", "used", "units"), [10, 10, 10, 3], "{all}");
    assert_eq!(numbers(&all, "wide", "used", "units"), [10, 10, 10, 3], "{all}");
    assert_eq!(numbers(&all, "narrow", "refused", "refusals"), [15, 7, 1], "{all}");
    assert_eq!(numbers(&all, "wide", "refused", "refusals"), [0; 0], "it refused nobody: {all}");
    let limits = all["limits"].as_array().unwrap();
    let never = limits.iter().find(|of| of["limit"] == "nothing").unwrap();
    assert_eq!((&never["route"], &never["policy"]), (&"never".into(), &"never".into()));
    assert_eq!((&never["refusals"], &never["units"]), (&1.into(), &0.into()), "{all}");
    assert!(!all.to_string().contains("s3cret"), "{all}");
    assert!(all["since_s"].as_u64().unwrap() < 60, "{all}");

    let narrow = top(&weir, "?limit=narrow&n=2");
    assert_eq!(narrow["limits"].as_array().unwrap().len(), 1);
    assert_eq!(numbers(&narrow, "narrow", "refused", "refusals"), [15, 7], "{narrow}");

    let digest = narrow["limits"][0]["refused"][0]["digest"].as_str().unwrap();
    let path = weir.folder().join("proxy.toml");
    let admin = weir.admin.unwrap().to_string();
    let key = |verb: &str| {
        let named = ["--policy", "keyed", "--limit", "narrow", "--digest", digest];
        let where_ = ["--config", path.to_str().unwrap(), "--admin", &admin];
        let arguments = [&["key", verb][..], &named, &where_].concat();
        let (code, out, err) = Weir::with_arguments(&arguments).run();
        assert_eq!(code, 0, "{out}{err}");
        out
    };
    assert!(key("show").contains("\n  fixed_window: 10 of 10 used"), "{}", key("show"));
    key("reset");
    let reply = get(weir.http, "/keyed", &[("x-api-key", "s3cret-a")]).await;
    assert_eq!(reply.status, 200, "the digest is that of the key that was refused most");
}

#[tokio::test]
async fn in_memory_keys_are_counted_by_what_they_used_and_were_refused() {
    let upstream = Upstream::start();
    counted(&config(&upstream.url())).await;
}

#[tokio::test]
async fn on_redis_keys_are_counted_by_what_they_used_and_were_refused() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    counted(&config(&upstream.url()).redis("single", &[redis.address])).await;
}

#[tokio::test]
async fn texts_are_shown_where_that_is_allowed_and_nothing_is_counted_where_that_is_off() {
    let upstream = Upstream::start();
    let with =
        |more: &str| config(&upstream.url()).text().replace("[admin]", &format!("[admin]\n{more}"));
    let weir = Weir::start(&with("show_keys = true"));
    ask_all(&weir).await;
    let all = top(&weir, "?limit=narrow");
    let texts = |list: &str| -> Vec<String> {
        let keys = all["limits"][0][list].as_array().unwrap().iter();
        keys.map(|key| key["key"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(texts("refused"), ["s3cret-a", "s3cret-b", "s3cret-c"], "{all}");

    weir.reload(&with("top.keys = 0"), "applied");
    get(weir.http, "/keyed", &[("x-api-key", "s3cret-d")]).await;
    assert_eq!(top(&weir, "")["limits"], serde_json::json!([]));
    let page = weir.admin_page("/top?n=many");
    assert!(page.status == 400 && page.text().contains("from 1 to 1000"), "{}", page.text());
}

/// A model whose replies report what they used, behind a policy that reserves more at first.
fn budget(url: &str) -> Toml {
    let tokens = "{ name = \"tokens\", algorithm = \"fixed_window\", quota = 1000000, period = \"1d\", key = \"{authority}\" }";
    let calls = "{ name = \"calls\", algorithm = \"fixed_window\", quota = 100, period = \"1d\", key = \"{authority}\", refund = \"upstream_error\" }";
    Toml::new()
        .upstream("model", url, "")
        .more(&format!(
            "[policies.llm]\nuse = \"llm-budget\"\n[policies.llm.config]\napi = \"openai\"\nbytes_per_token = 1\n\
             tokens = [{tokens}]\nrequests = [{calls}]\n"
        ))
        .route("path = \"/*\"\nupstream = \"model\"\npolicy = \"llm\"")
}

/// Waits until `/top` shows these units for the two limits of [`budget`].
fn settled(weir: &Weir, expected: [Option<u64>; 2]) {
    eventually("what was settled", || {
        let all = top(weir, "");
        let units = ["tokens", "calls"].map(|name| {
            let limits = all["limits"].as_array().unwrap();
            let of = limits.iter().find(|of| of["limit"] == name)?;
            assert_eq!(of["units"], of["used"][0]["units"], "one key: {all}");
            of["units"].as_u64()
        });
        if units == expected { Ok(()) } else { Err(all.to_string()) }
    });
}

async fn settled_units_are_counted(config: impl Fn(&str) -> Toml) {
    let upstream = Upstream::start();
    let weir = Weir::start(&config(&upstream.url()).text());
    let body = "{\"model\":\"m\",\"max_tokens\":1000}";
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let answer = |status: u16, output: u64| {
        let total = output + 7;
        let usage = format!(
            "{{\"choices\":[],\"usage\":{{\"prompt_tokens\":7,\"completion_tokens\":{output},\"total_tokens\":{total}}}}}"
        );
        upstream.answer(status, &[("content-type", "application/json")], usage);
        raw(weir.http, request.as_bytes(), TIMEOUT)
    };
    // Less than was reserved, more than was reserved, and a failure, which costs no call.
    assert_eq!(statuses(&answer(200, 5)), [200]);
    settled(&weir, [Some(12), Some(1)]);
    assert_eq!(statuses(&answer(200, 5_000)), [200]);
    settled(&weir, [Some(12 + 5_007), Some(2)]);
    upstream.answer(500, &[], "");
    assert_eq!(statuses(&raw(weir.http, request.as_bytes(), TIMEOUT)), [500]);
    assert_eq!(statuses(&answer(200, 5)), [200]);
    settled(&weir, [Some(12 + 5_007 + 12), Some(3)]);
}

#[tokio::test]
async fn in_memory_units_are_counted_as_they_are_settled() {
    settled_units_are_counted(budget).await;
}

#[tokio::test]
async fn on_redis_units_are_counted_as_they_are_settled() {
    let redis = Redis::start();
    settled_units_are_counted(|url| budget(url).redis("single", &[redis.address])).await;
}

fn weir_top(weir: &Weir, more: &[&str]) -> (i32, String, String) {
    let admin = weir.admin.unwrap().to_string();
    Weir::with_arguments(&[&["top", "--admin", &admin][..], more].concat()).run()
}

/// The rows that `weir top` prints below a limit's name: units, refusals, and the key.
fn rows(printed: &str, limit: &str) -> Vec<(String, String, String)> {
    let lines = printed.lines().skip_while(|line| !line.contains(limit)).skip(2);
    let rows = lines.take_while(|line| !line.is_empty()).map(|line| {
        let mut words = line.split_whitespace().map(str::to_owned);
        let mut next = || words.next().unwrap_or_else(|| panic!("{line:?}"));
        (next(), next(), next())
    });
    rows.collect()
}

#[tokio::test]
async fn weir_top_prints_what_the_admin_serves() {
    let upstream = Upstream::start();
    let weir = Weir::start(&config(&upstream.url()).text());
    ask_all(&weir).await;
    let served = top(&weir, "");
    // This is no terminal, so that it is printed.
    for more in [&["--once"][..], &[]] {
        let (code, out, err) = weir_top(&weir, more);
        assert_eq!(code, 0, "{out}{err}");
        assert!(out.starts_with("in the last "), "{out}");
        for limit in served["limits"].as_array().unwrap() {
            let of = |what: &str| limit[what].as_u64().unwrap();
            let name = ["policy", "route", "limit"].map(|part| limit[part].as_str());
            let name = name.into_iter().flatten().collect::<Vec<_>>().join(", ");
            let title =
                format!("{name}: {} units used, {} times refused", of("units"), of("refusals"));
            assert!(out.contains(&title), "{title}: {out}");
            let rows = rows(&out, &title);
            let list = |what: &str| limit[what].as_array().unwrap();
            for key in list("used") {
                let refused = list("refused").iter().find(|one| one["digest"] == key["digest"]);
                let refusals = refused.map_or(0, |one| one["refusals"].as_u64().unwrap());
                let digest = key["digest"].as_str().unwrap().to_owned();
                let row = (key["units"].to_string(), refusals.to_string(), digest);
                assert!(rows.contains(&row), "{row:?}: {out}");
            }
            assert!(rows.len() >= list("used").len().max(list("refused").len()), "{out}");
        }
    }
    let (_, out, _) = weir_top(&weir, &["--limit", "narrow", "--keys", "2"]);
    let rows = rows(&out, "keyed, narrow: 33 units used, 23 times refused");
    let numbers: Vec<(&str, &str)> = rows.iter().map(|row| (&*row.0, &*row.1)).collect();
    // Both lists together: two that used most, and two that were refused most.
    assert!((2..=4).contains(&numbers.len()), "{out}");
    assert_eq!(numbers.first().map(|(units, _)| *units), Some("10"), "{out}");
    assert!(numbers.iter().any(|(_, refusals)| *refusals == "15"), "{out}");
    assert_eq!(out.matches("refused\n").count(), 1, "one limit: {out}");
    let (code, _, err) = weir_top(&weir, &["--keys", "1001"]);
    assert!(code == 2 && err.contains("1001"), "{err}");
}

/// Answers one request with these bytes, whatever it is.
fn answering(bytes: &'static str) -> SocketAddr {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 4_096];
        assert!(stream.read(&mut request).unwrap() > 0);
        stream.write_all(bytes.as_bytes()).unwrap();
    });
    address
}

#[tokio::test]
async fn weir_top_says_why_it_shows_nothing() {
    let upstream = Upstream::start();
    let text = config(&upstream.url()).text().replace("[admin]", "[admin]\ntoken_file = \"token\"");
    let weir = Weir::build(&text).file("token", b"the-token\n").start();
    let (code, out, err) = weir_top(&weir, &[]);
    assert!(code == 1 && out.is_empty() && err.contains("token"), "{err}");
    let path = weir.folder().join("proxy.toml");
    let (code, out, err) = weir_top(&weir, &["--config", path.to_str().unwrap()]);
    assert_eq!((code, out.as_str()), (0, "in the last 0 s\nno key was counted\n"), "{err}");
    let (code, out, err) =
        weir_top(&weir, &["--config", path.to_str().unwrap(), "--limit", "nope"]);
    let nothing = "in the last 0 s\nno key was counted for a limit called nope\n";
    assert_eq!((code, out.as_str()), (0, nothing), "{err}");

    let free = free_address().to_string();
    let ask = |address: &str| Weir::with_arguments(&["top", "--once", "--admin", address]).run();
    let (code, _, err) = ask(&free);
    assert!(code == 1 && err.contains(&free) && err.contains("does not answer"), "{err}");
    // Something else than Weir, whose texts do nothing to the terminal.
    for (answer, why) in [
        ("HTTP/1.1 200 OK\r\n\r\n<html>\x1b[31m", "found \"<html>\\u{1b}[31m\", expected"),
        ("HTTP/1.1 200 OK\r\n\r\n{\"since_s\":1,\"limits\":[{}]}", "expected the keys"),
        ("HTTP/1.1 403 Forbidden\r\n\r\n\x1b[2Jno", "refuses: \\u{1b}[2Jno"),
        ("SSH-2.0-OpenSSH\r\n", "is not an admin listener"),
        ("HTTP/1.1 404 Not Found\r\n\r\n", "is not an admin listener"),
        ("", "is not an admin listener"),
    ] {
        let (code, out, err) = ask(&answering(answer).to_string());
        assert!(code == 1 && out.is_empty() && err.contains(why), "{answer:?}: {err:?}");
        assert!(!err.contains('\x1b'), "{err:?}");
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn weir_top_on_a_terminal_is_refreshed_and_leaves_it_as_it_was() {
    let upstream = Upstream::start();
    let mut weir = Weir::start(&config(&upstream.url()).text());
    let admin = weir.admin.unwrap().to_string();
    let start = |size| Terminal::start(binary(), &["top", "--admin", &admin], size);
    let mut terminal = start((80, 24));
    terminal.await_text("no key was counted");
    ask_all(&weir).await;
    terminal.await_text("> keyed, narrow: 33 units used, 23 times refused");
    terminal.await_text("  keyed, wide: ");
    let digest = top(&weir, "?limit=narrow")["limits"][0]["refused"][0]["digest"].clone();
    let digest = digest.as_str().unwrap();
    terminal.await_text(digest);
    assert!(terminal.screen().iter().any(|line| line.contains("units\u{25bc}")));
    terminal.await_width(80);
    // It keeps asking.
    get(weir.http, "/keyed", &[("x-api-key", "s3cret-a")]).await;
    terminal.await_text("33 units used, 24 times refused");
    terminal.type_keys("s");
    terminal.await_text("refused\u{25bc}");
    terminal.type_keys("\t");
    terminal.await_text("> keyed, wide: ");
    terminal.type_keys("\x1b[D\x1b[D");
    terminal.await_text("> never, never, nothing: ");
    // Too small for the list of limits: their number is shown instead.
    terminal.resize((50, 8));
    terminal.await_text("(limit 3 of 3)");
    terminal.await_width(50);
    terminal.resize((3, 1));
    terminal.resize((120, 30));
    terminal.await_text("> never, never, nothing: ");
    terminal.await_width(120);
    terminal.type_keys("q");
    let left = terminal.end();
    assert_eq!(left.code, 0, "{left:?}");
    left.is_restored();

    for (keys, code) in [("\x1b", 0), ("\x03", 0)] {
        let mut terminal = start((80, 24));
        terminal.await_text("keyed, narrow");
        terminal.type_keys(keys);
        let left = terminal.end();
        assert_eq!(left.code, code, "{keys:?}: {left:?}");
        left.is_restored();
    }
    for signal in [Signal::TERM, Signal::INT] {
        let terminal = start((80, 24));
        terminal.await_text("keyed, narrow");
        kill_process(terminal.pid(), signal).unwrap();
        let left = terminal.end();
        assert_eq!(left.code, 128 + signal.as_raw(), "{left:?}");
        left.is_restored();
    }
    // A proxy that stalls does not stop the keyboard.
    let mut terminal = start((80, 24));
    terminal.await_text("keyed, narrow");
    weir.signal(Signal::STOP);
    terminal.await_text("s ago");
    terminal.type_keys("q");
    let left = terminal.end();
    weir.signal(Signal::CONT);
    assert_eq!(left.code, 0, "{left:?}");
    left.is_restored();
    // The proxy goes: what was known stays, with the error next to it.
    let mut terminal = start((80, 24));
    terminal.await_text("keyed, narrow");
    weir.signal(Signal::KILL);
    weir.exit();
    terminal.await_text("does not answer");
    terminal.await_text("s ago");
    terminal.await_text("33 units used");
    terminal.type_keys("q");
    let left = terminal.end();
    assert_eq!(left.code, 0, "{left:?}");
    left.is_restored();
    // And an error before there is anything to show leaves the terminal alone.
    let left = start((80, 24)).end();
    assert!(left.code == 1 && left.written.contains("does not answer"), "{left:?}");
    assert!(!left.written.contains("\x1b[?1049h"), "{left:?}");
    left.is_restored();
}

#[tokio::test]
async fn the_access_log_names_the_key_that_was_refused() {
    let upstream = Upstream::start();
    let with = |more: &str| {
        let text = config(&upstream.url()).text();
        text.replace("access = \"off\"", "access = \"all\"").replace("[admin]", more)
    };
    let weir = Weir::start(&with("[admin]"));
    let line = |id: &str| {
        eventually("the line of that request", || {
            let events = weir.output().events().into_iter();
            let mut events = events.filter(|event| event["request_id"] == id);
            events.next().ok_or_else(|| "not yet".to_owned())
        })
    };
    ask_all(&weir).await;
    let refused = get(weir.http, "/keyed", &[("x-api-key", "s3cret-a")]).await;
    let id = refused.header("x-request-id");
    let event = line(&id);
    let explained = weir.admin_page(&format!("/explain?request_id={id}")).json();
    assert_eq!(event["refused_by"], serde_json::json!(["narrow"]), "{event}");
    assert_eq!(event["key_digest"][0], explained["limits"][0]["digest"], "{event}");
    assert!(!weir.output().lines().concat().contains("s3cret"));
    let admitted = get(weir.http, "/keyed", &[("x-api-key", "other")]).await;
    let event = line(&admitted.header("x-request-id"));
    assert_eq!((&event["key_digest"], &event["key"]), (&Value::Null, &Value::Null), "{event}");

    weir.reload(&with("[admin]\nshow_keys = true"), "applied");
    let refused = get(weir.http, "/keyed", &[("x-api-key", "s3cret-a")]).await;
    let event = line(&refused.header("x-request-id"));
    assert_eq!(event["key"], serde_json::json!(["s3cret-a"]), "{event}");
}
