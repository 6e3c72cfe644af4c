//! `weir replay` compared with the proxy that wrote the log: windows that end, buckets that fill
//! up, and policies that fail.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::time::Instant;

use crate::harness::client::{Client, get};
use crate::harness::eventually;
use crate::harness::process::run;
use crate::harness::toml::Toml;
use crate::harness::upstream::Upstream;
use crate::harness::weir::{Weir, binary};
use crate::harness::{TIMEOUT, guest};

/// The limits, each on a route of its own name. Buckets get one unit back in a second.
const LIMITS: [(&str, &str); 5] = [
    ("token", "algorithm = \"token_bucket\", quota = 4, period = \"4s\""),
    ("gcra", "algorithm = \"gcra\", quota = 1, period = \"1s\", burst = 3"),
    (
        "first",
        "algorithm = \"fixed_window\", quota = 3, period = \"3s\", alignment = \"first_request\"",
    ),
    ("clock", "algorithm = \"fixed_window\", quota = 3, period = \"2s\", alignment = \"clock\""),
    ("log", "algorithm = \"sliding_window_log\", quota = 3, period = \"1750ms\""),
];
/// When bursts begin, in milliseconds after the first. Nothing that a limit above decides changes
/// within 100 ms of them, nor as long as a burst takes: buckets have half a unit.
const BURSTS_MS: [u64; 5] = [0, 1_500, 2_500, 4_500, 6_500];
/// Requests to each route in a burst.
const IN_A_BURST: usize = 5;
/// The first burst's place in the windows of the clock, which are two seconds long.
const START_MS: u64 = 700;
/// What a burst may take, and be late. On a machine that is too busy, all is tried again.
const LATE_MS: f64 = 150.0;
const TRIES: usize = 8;

/// What a line of the log says: when the request came in milliseconds, and by what it was refused.
fn told(line: &str) -> (f64, Vec<String>) {
    let line: Value = serde_json::from_str(line).unwrap();
    let stamp: jiff::Timestamp = line["timestamp"].as_str().unwrap().parse().unwrap();
    let by = line["refused_by"].as_array().into_iter().flatten();
    let by = by.map(|name| name.as_str().unwrap().to_owned()).collect();
    (stamp.as_millisecond() as f64 - line["duration_ms"].as_f64().unwrap(), by)
}

/// What each line of the access log contains in JSON.
const JSON: &str = "\"message\":\"request\"";

/// The lines of the log that have this mark, once there are so many.
pub(crate) fn lines(weir: &Weir, mark: &str, count: usize) -> Vec<String> {
    eventually("all lines of the access log", || {
        let all = weir.output().lines().into_iter();
        let lines: Vec<String> = all.filter(|line| line.contains(mark)).collect();
        if lines.len() == count { Ok(lines) } else { Err(lines.len().to_string()) }
    })
}

/// Sends the bursts, and returns the access log.
async fn sent(config: &str) -> Vec<String> {
    let weir = Weir::start(config);
    let mut client = Client::connect(weir.http).await.unwrap();
    let now_ms = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap();
    let begin = Instant::now() + Duration::from_millis(2_000 + START_MS - now_ms % 2_000);
    for burst_ms in BURSTS_MS {
        tokio::time::sleep_until(begin + Duration::from_millis(burst_ms)).await;
        for (route, _) in LIMITS {
            for _ in 0..IN_A_BURST {
                let reply = client.get(&format!("/{route}"), &[]).await.unwrap();
                assert!([200, 429].contains(&reply.status), "{reply:?}");
            }
        }
    }
    lines(&weir, JSON, BURSTS_MS.len() * LIMITS.len() * IN_A_BURST)
}

/// How much later than planned the latest request came.
fn late_ms(lines: &[String]) -> f64 {
    let of_a_burst = LIMITS.len() * IN_A_BURST;
    let (first_ms, _) = told(&lines[0]);
    let begin_ms = (first_ms / 2_000.0).floor() * 2_000.0 + START_MS as f64;
    let each = lines
        .iter()
        .enumerate()
        .map(|(index, line)| told(line).0 - begin_ms - BURSTS_MS[index / of_a_burst] as f64);
    each.fold(0.0, f64::max)
}

pub(crate) fn folder(log: &str, config: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("access.log"), log).unwrap();
    std::fs::write(folder.path().join("proxy.toml"), config).unwrap();
    folder
}

pub(crate) fn replayed(folder: &TempDir) -> Value {
    let ended = run(Command::new(binary()).current_dir(folder.path()).args([
        "replay",
        "--json",
        "access.log",
        "--stopped",
        "stopped.jsonl",
    ]));
    assert_eq!(ended.code, 0, "{}{}", ended.out, ended.err);
    serde_json::from_str(&ended.out).unwrap()
}

#[tokio::test]
async fn windows_end_and_buckets_fill_up_as_they_did_when_it_was_logged() {
    let upstream = Upstream::start();
    let mut toml = Toml::new().upstream("api", &upstream.url(), "");
    for (name, limit) in LIMITS {
        toml = toml.policy(name, &[&format!("name = \"{name}\", {limit}")]).route(&format!(
            "name = \"{name}\"\npath = \"/{name}\"\nupstream = \"api\"\npolicy = \"{name}\""
        ));
    }
    let config = toml.text().replace("access = \"off\"", "access = \"all\"");
    let mut lines = sent(&config).await;
    for _ in 1..TRIES {
        if late_ms(&lines) < LATE_MS {
            break;
        }
        lines = sent(&config).await;
    }
    let late_ms = late_ms(&lines);
    assert!(late_ms < LATE_MS, "requests came {late_ms} ms late in each of {TRIES} tries");

    let folder = folder(&(lines.join("\n") + "\n"), &config);
    let report = replayed(&folder);
    assert_eq!(report["requests"]["counts"]["all"], lines.len());
    let mut replayed: Vec<Vec<String>> = vec![Vec::new(); lines.len()];
    for line in std::fs::read_to_string(folder.path().join("stopped.jsonl")).unwrap().lines() {
        let stopped: Value = serde_json::from_str(line).unwrap();
        let by = stopped["by"].as_array().unwrap().iter();
        let by = by.map(|by| by["limit"].as_str().unwrap().to_owned()).collect();
        replayed[stopped["line"].as_u64().unwrap() as usize - 1] = by;
    }
    // Requests that came within one millisecond may change places: the log's stamps tell no more.
    for (logged, replayed) in lines.chunks(IN_A_BURST).zip(replayed.chunks(IN_A_BURST)) {
        let mut told: Vec<Vec<String>> = logged.iter().map(|line| told(line).1).collect();
        let mut replayed = replayed.to_vec();
        told.sort();
        replayed.sort();
        assert_eq!(told, replayed, "{logged:#?}");
    }
    // Each limit has let some of the later bursts through, and not all of them.
    for (route, (name, _)) in LIMITS.iter().enumerate() {
        let later = (1..BURSTS_MS.len()).flat_map(|burst| {
            let from = (burst * LIMITS.len() + route) * IN_A_BURST;
            &replayed[from..from + IN_A_BURST]
        });
        let refused = later.filter(|by| !by.is_empty()).count();
        let all = (BURSTS_MS.len() - 1) * IN_A_BURST;
        assert!(refused > 0 && refused < all, "{name} refused {refused} of {all}");
    }
}

#[tokio::test]
async fn requests_that_a_failed_policy_lets_through_pass_in_the_replay_too() {
    let upstream = Upstream::start();
    for (word, status, passes) in [("allow", 200, 1), ("deny", 503, 0)] {
        let toml = Toml::new()
            .upstream("api", &upstream.url(), "")
            .more("[policies.guest]\nwasm = \"guest.wasm\"\ncpu_time = \"100ms\"\nmemory = \"64MiB\"")
            .route(&format!(
                "name = \"api\"\npath = \"/*\"\nupstream = \"api\"\npolicy = \"guest\"\non_policy_error = \"{word}\""
            ));
        let config =
            toml.text().replace("access = \"off\"", "access = \"all\"\naccess_fields = [\"timestamp\", \"client\", \"method\", \"path\", \"query\", \"status\", \"duration_ms\", \"decision\"]");
        let module = std::fs::read(guest::misbehaving()).expect("the module");
        let weir = Weir::build(&config).file("guest.wasm", &module).start();
        let reply = tokio::time::timeout(TIMEOUT, get(weir.http, "/?panic", &[])).await.unwrap();
        assert_eq!(reply.status, status, "{word}");
        let folder = folder(&lines(&weir, JSON, 1).concat(), &config);
        std::fs::write(folder.path().join("guest.wasm"), &module).unwrap();
        let report = replayed(&folder);
        let counts = &report["requests"]["counts"];
        assert_eq!((&counts["admitted"], &counts["all"]), (&passes.into(), &1.into()), "{report}");
    }
}
