//! Header fields in the access log, and `weir replay` of a policy that counts by one of them.

use std::collections::BTreeMap;

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::client::{Client, get};
use crate::harness::eventually;
use crate::harness::toml::Toml;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;
use crate::replay::running::{folder, lines, replayed};

/// The README's limit by a header field, with a quota that is soon reached.
const KEYED: &str = "[policies.public]\nuse = \"keyed\"\n[[policies.public.config.limits]]\n\
    name = \"per-day\"\nalgorithm = \"fixed_window\"\nquota = 3\nperiod = \"1d\"\n\
    key = \"{header.x-api-key}\"";
const FIELDS: &str = "\"timestamp\", \"client\", \"method\", \"path\", \"status\", \
    \"duration_ms\", \"decision\", \"refused_by\", \"key_digest\"";
/// Each key, and the number of its requests.
const SENT: [(&str, u64); 3] = [("alpha", 7), ("beta [1]", 5), ("gamma", 2)];
const ALL: u64 = 16;

fn config(url: &str, fields: &str, show_keys: bool) -> String {
    let text = Toml::new()
        .upstream("api", url, "")
        .more(KEYED)
        .route("name = \"api\"\npath = \"/*\"\nupstream = \"api\"\npolicy = \"public\"")
        .text();
    let log = format!("access = \"all\"\naccess_fields = [{fields}]");
    let text = text.replace("access = \"off\"", &log);
    text.replace("[admin]", &format!("[admin]\nshow_keys = {show_keys}"))
}

/// Sends all requests, one key's after another's in turn, and returns how many of each key were
/// refused. Two have no key that a line shows: one has none, one has a long one.
async fn send(weir: &Weir) -> BTreeMap<String, u64> {
    let mut client = Client::connect(weir.http).await.unwrap();
    let mut refused = BTreeMap::new();
    for turn in 0..7 {
        for (key, _) in SENT.iter().filter(|(_, requests)| turn < *requests) {
            let reply = client.get("/a", &[("X-API-Key", key)]).await.unwrap();
            assert!([200, 429].contains(&reply.status), "{reply:?}");
            if reply.status == 429 {
                *refused.entry((*key).to_owned()).or_default() += 1;
            }
        }
    }
    let long = "l".repeat(2_000);
    for headers in [Vec::new(), vec![("x-api-key", long.as_str())]] {
        assert_eq!(client.get("/a", &headers).await.unwrap().status, 200);
    }
    refused
}

/// How many requests of each key the replay refuses.
fn refused(folder: &TempDir) -> BTreeMap<String, u64> {
    let mut refused = BTreeMap::new();
    for line in std::fs::read_to_string(folder.path().join("stopped.jsonl")).unwrap().lines() {
        let stopped: Value = serde_json::from_str(line).unwrap();
        let key = stopped["by"][0]["key"].as_str().unwrap().to_owned();
        *refused.entry(key).or_default() += 1;
    }
    refused
}

fn expected() -> BTreeMap<String, u64> {
    let over = SENT.iter().filter(|(_, requests)| *requests > 3);
    over.map(|(key, requests)| ((*key).to_owned(), requests - 3)).collect()
}

fn gaps(report: &Value) -> String {
    assert_eq!(report["requests"]["counts"]["all"], ALL, "{report}");
    report["not_in_the_log"].to_string()
}

#[tokio::test]
async fn keys_in_the_log_are_refused_as_by_the_running_proxy() {
    let upstream = Upstream::start();
    let fields = format!("{FIELDS}, \"header.X-Api-Key\"");
    let json = &config(&upstream.url(), &fields, true);
    let text = json.replace("format = \"json\"", "format = \"text\"");
    for (config, mark) in [(json, "\"message\":\"request\""), (&text, " INFO request ")] {
        let weir = Weir::start(json);
        if config != json {
            weir.reload(config, "applied");
        }
        assert_eq!(send(&weir).await, expected());
        let lines = lines(&weir, mark, ALL as usize);
        let folder = folder(&(lines.join("\n") + "\n"), config);
        let report = replayed(&folder);
        assert_eq!(refused(&folder), expected(), "{mark}");
        // The one whose key was cut.
        let told = "reads header.x-api-key: the log does not record it for 1 of 16 requests";
        let gaps = gaps(&report);
        assert!(gaps.contains(told) && !gaps.contains("digest"), "{gaps}");
    }
}

#[tokio::test]
async fn digests_in_the_log_are_refused_as_the_keys_were() {
    let upstream = Upstream::start();
    let fields = format!("{FIELDS}, \"header.x-api-key\"");
    let with = config(&upstream.url(), &fields, false);
    let weir = Weir::start(&with);
    assert_eq!(send(&weir).await, expected());
    let lines = lines(&weir, "\"message\":\"request\"", ALL as usize);
    assert!(!lines.concat().contains("alpha"), "{lines:?}");
    let mut refusals: BTreeMap<String, u64> = BTreeMap::new();
    for line in &lines {
        let line: Value = serde_json::from_str(line).unwrap();
        let header = &line["header.x-api-key"];
        if let Some(key) = line["key_digest"][0].as_str() {
            assert_eq!(header, &format!("digest:{key}"), "by which `weir key` finds the counter");
            *refusals.entry(format!("digest:{key}")).or_default() += 1;
        }
    }
    assert_eq!(refusals.values().sum::<u64>(), expected().values().sum::<u64>());
    let folder = folder(&(lines.join("\n") + "\n"), &with);
    let report = replayed(&folder);
    assert_eq!(refused(&folder), refusals);
    let gaps = gaps(&report);
    let told = "reads header.x-api-key: the log has only its digest for 15 of 16 requests";
    assert!(gaps.contains(told) && !gaps.contains("does not record it"), "{gaps}");
}

#[tokio::test]
async fn a_reload_changes_which_header_fields_a_line_has() {
    let upstream = Upstream::start();
    let config = |field: &str, show_keys| {
        config(&upstream.url(), &format!("\"path\", \"status\"{field}"), show_keys)
    };
    let weir = Weir::start(&config("", false));
    let headers = [("x-api-key", "alpha"), ("x-tenant", "t")];
    let line = async |path: &str| {
        get(weir.http, path, &headers).await;
        eventually(path, || {
            let mut events = weir.output().events().into_iter();
            events.find(|event| event["path"] == path).ok_or_else(|| "not yet".to_owned())
        })
    };
    let names = |line: &Value| {
        let names = line.as_object().unwrap().keys();
        names.filter(|name| name.starts_with("header.")).cloned().collect::<Vec<_>>()
    };
    assert_eq!(names(&line("/0").await), [""; 0]);
    weir.reload(&config(", \"header.x-api-key\"", false), "applied");
    let digest = line("/1").await["header.x-api-key"].as_str().unwrap().to_owned();
    assert!(digest.starts_with("digest:"), "{digest}");
    weir.reload(&config(", \"header.x-api-key\"", true), "applied");
    assert_eq!(line("/2").await["header.x-api-key"], "alpha");
    weir.reload(&config(", \"header.authorization\"", true), "refused");
    weir.reload(&config(", \"header.x-tenant\"", true), "applied");
    let other = line("/3").await;
    assert_eq!(
        (names(&other), &other["header.x-tenant"]),
        (vec!["header.x-tenant".to_owned()], &"t".into())
    );
    weir.reload(&config("", true), "applied");
    assert_eq!(names(&line("/4").await), [""; 0]);
}
