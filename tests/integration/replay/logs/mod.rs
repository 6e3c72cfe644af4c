//! `weir replay` and `weir explain`: logs through a configuration, compared with counts by hand and
//! with a running proxy.

mod reports;
mod settling;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::harness::client::Client;
use crate::harness::process::{Finished, run};
use crate::harness::toml::{Toml, simple};
use crate::harness::upstream::Upstream;
use crate::harness::weir::{Weir, binary};

/// 17 May 2015, 10:05:00 UTC.
const START_S: u64 = 1_431_857_100;
const NOWHERE: &str = "http://127.0.0.1:9";
const MINUTE: &str = "name = \"minute\", algorithm = \"fixed_window\", alignment = \"clock\", quota = 5, period = \"1m\"";

/// A request of a log.
#[derive(Clone, Debug)]
struct Logged {
    at_s: u64,
    client: String,
    path: String,
    status: u16,
}

/// The same log each time: clients of whom few send most, two of them names, some two requests a
/// second.
fn log(requests: usize) -> Vec<Logged> {
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 11) % below
    };
    let mut at_s = START_S;
    let each = (0..requests).map(|_| {
        at_s += [0, 0, 0, 0, 1, 2][next(6) as usize];
        let client = match next(60).min(next(60)).min(next(60)) {
            0 => "piweba3y.example.com".to_owned(),
            1 => "alyssa.example.net".to_owned(),
            number => format!("203.0.113.{number}"),
        };
        let path = format!("/page/{}", next(20));
        Logged { at_s, client, path, status: if next(20) == 0 { 500 } else { 200 } }
    });
    each.collect()
}

fn clock(at_s: u64) -> (u64, u64, u64) {
    let of_day = at_s % 86_400;
    (of_day / 3_600, of_day / 60 % 60, of_day % 60)
}

fn common(log: &[Logged]) -> String {
    let mut out = String::new();
    for Logged { at_s, client, path, status } in log {
        let (h, m, s) = clock(*at_s);
        let _ = writeln!(
            out,
            "{client} - - [17/May/2015:{h:02}:{m:02}:{s:02} +0000] \"GET {path} HTTP/1.0\" {status} 12"
        );
    }
    out
}

/// A folder with files.
fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

fn weir(folder: &Path, arguments: &[&str]) -> Finished {
    run(Command::new(binary()).current_dir(folder).args(arguments))
}

fn replayed(folder: &Path, arguments: &[&str]) -> Value {
    let ended = weir(folder, &[&["replay", "--json"], arguments].concat());
    assert_eq!(ended.code, 0, "{}{}", ended.out, ended.err);
    serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {}", ended.out))
}

/// The lines of a log that were stopped, from 1.
fn stopped(folder: &Path) -> BTreeSet<usize> {
    let text = std::fs::read_to_string(folder.join("stopped.jsonl")).unwrap();
    let line = |text: &str| {
        let line: Value = serde_json::from_str(text).unwrap();
        assert_eq!(line["verdict"], "refused", "{line}");
        line["line"].as_u64().unwrap() as usize
    };
    text.lines().map(line).collect()
}

/// Windows of `period_s` by hand: the lines that a quota refuses, from 1.
fn by_hand(log: &[Logged], quota: u64, period_s: u64) -> BTreeSet<usize> {
    let mut windows: BTreeMap<(&str, u64), u64> = BTreeMap::new();
    let mut refused = BTreeSet::new();
    for (line, request) in log.iter().enumerate() {
        let used = windows.entry((&request.client, request.at_s / period_s)).or_default();
        if *used == quota {
            refused.insert(line + 1);
        } else {
            *used += 1;
        }
    }
    refused
}

#[test]
fn a_log_is_refused_as_a_count_by_hand_says() {
    let log = log(3_000);
    let folder = folder(&[
        ("access.log", &common(&log)),
        ("proxy.toml", &simple(NOWHERE, &[MINUTE]).text()),
    ]);
    let report = replayed(folder.path(), &["access.log", "--stopped", "stopped.jsonl"]);
    let expected = by_hand(&log, 5, 60);
    assert!(expected.len() > 100, "{}", expected.len());
    assert_eq!(stopped(folder.path()), expected);
    let counts = &report["requests"]["counts"];
    assert_eq!(counts["refused"], expected.len());
    assert_eq!(counts["admitted"], log.len() - expected.len());
    let limit = &report["limits"][0];
    assert_eq!((&limit["refused"], &limit["asked"]), (&json!(expected.len()), &json!(log.len())));
    let most = &report["clients"]["most_stopped"][0];
    let refused_of =
        |client: &str| expected.iter().filter(|line| log[**line - 1].client == client).count();
    assert_eq!(most["stopped"], refused_of(most["client"].as_str().unwrap()));
    assert_eq!(report["log"]["clients_with_names"], 2);
    // Their keys are their names, not the addresses that stand for them.
    let lines = std::fs::read_to_string(folder.path().join("stopped.jsonl")).unwrap();
    assert!(lines.contains("\"key\":\"piweba3y.example.com\""), "{lines}");
    assert!(!lines.contains("\"240.") && !report.to_string().contains("\"240."), "{report}");
    let times = report["requests"]["over_time"]["passed_stopped"].as_array().unwrap();
    let sum = |index: usize| times.iter().map(|span| span[index].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum(0) + sum(1), sum(1)), (log.len() as u64, expected.len() as u64));
}

#[tokio::test]
async fn a_log_is_refused_as_by_the_running_proxy() {
    let upstream = Upstream::start();
    // No window of this limit ends, so it does not matter when its requests come.
    let limits = ["name = \"all\", algorithm = \"quota\", calendar = \"forever\", quota = 20"];
    let config =
        simple(&upstream.url(), &limits).server("trusted_proxies = [\"127.0.0.1\"]").text();
    let mut log = log(1_000);
    for request in &mut log {
        request.client = request.client.replace("piweba3y.example.com", "2001:db8:1::1");
        request.client = request.client.replace("alyssa.example.net", "2001:db8:2::1");
        request.status = 200;
    }
    let folder = folder(&[("access.log", &common(&log)), ("proxy.toml", &config)]);
    replayed(folder.path(), &["access.log", "--stopped", "stopped.jsonl"]);
    let weir = Weir::start(&config);
    let mut client = Client::connect(weir.http).await.unwrap();
    let mut refused = BTreeSet::new();
    for (line, request) in log.iter().enumerate() {
        let fields = [("x-forwarded-for", request.client.as_str())];
        match client.get(&request.path, &fields).await.unwrap().status {
            200 => {}
            429 => drop(refused.insert(line + 1)),
            other => panic!("{other}"),
        }
    }
    assert!(refused.len() > 100, "{}", refused.len());
    assert_eq!(stopped(folder.path()), refused);
}

/// The lines of a log in each format that is known by itself.
fn in_each_format(log: &[Logged]) -> Vec<(&'static str, String)> {
    let stamp = |at_s: u64| {
        let (h, m, s) = clock(at_s);
        format!("2015-05-17T{h:02}:{m:02}:{s:02}.000Z")
    };
    let lines = |line: &dyn Fn(&Logged) -> String| -> String {
        log.iter().map(|request| line(request) + "\n").collect()
    };
    vec![
        ("common", common(log)),
        ("combined", common(log).replace(" 12\n", " 12 \"-\" \"curl/8 \\\"x\\\"\"\n")),
        (
            "nginx",
            lines(&|it| {
                json!({"time_iso8601": stamp(it.at_s), "remote_addr": it.client, "status": it.status.to_string(),
                    "request": format!("GET {} HTTP/1.1", it.path), "body_bytes_sent": "12"})
                .to_string()
            }),
        ),
        (
            "caddy",
            lines(&|it| {
                json!({"level": "info", "ts": it.at_s as f64, "msg": "handled request", "status": it.status, "size": 12,
                    "request": {"remote_ip": it.client, "proto": "HTTP/1.1", "method": "GET", "host": "a.example",
                        "uri": it.path, "headers": {"User-Agent": ["curl/8"]}}})
                .to_string()
            }),
        ),
        (
            "traefik",
            lines(&|it| {
                json!({"StartUTC": stamp(it.at_s), "ClientHost": it.client, "DownstreamStatus": it.status, "OriginStatus": it.status,
                    "RequestMethod": "GET", "RequestPath": it.path, "RequestHost": "a.example", "Duration": 0})
                .to_string()
            }),
        ),
        (
            "envoy",
            lines(&|it| {
                json!({"start_time": stamp(it.at_s), "downstream_remote_address": it.client, "response_code": it.status,
                    "method": "GET", "path": it.path, "authority": "a.example", "duration": 0, "bytes_sent": 12})
                .to_string()
            }),
        ),
        (
            "weir",
            lines(&|it| {
                json!({"timestamp": stamp(it.at_s), "level": "INFO", "message": "request", "client": it.client,
                    "method": "GET", "path": it.path, "status": it.status, "bytes": 12, "duration_ms": 0.0})
                .to_string()
            }),
        ),
        (
            "weir",
            lines(&|it| {
                format!(
                    "{}  INFO request request_id=1 client={} method=GET path={} route=api status={} bytes=12 duration_ms=0.000",
                    stamp(it.at_s),
                    it.client,
                    it.path,
                    it.status
                )
            }),
        ),
    ]
}

#[test]
fn each_format_is_replayed_alike() {
    let log = log(400);
    let expected = by_hand(&log, 2, 60);
    let config = simple(NOWHERE, &[&MINUTE.replace("quota = 5", "quota = 2")]).text();
    for (name, text) in in_each_format(&log) {
        let folder = folder(&[("access.log", &text), ("proxy.toml", &config)]);
        let report = replayed(folder.path(), &["access.log", "--stopped", "stopped.jsonl"]);
        assert_eq!(report["log"]["files"][0]["format"], name);
        assert_eq!(stopped(folder.path()), expected, "{name}");
    }
    let pattern = "$status|$time_local|$remote_addr|$request_method $request_uri|$bytes";
    let text: String = log
        .iter()
        .map(|it| {
            let (h, m, s) = clock(it.at_s);
            let Logged { client, path, status, .. } = it;
            format!("{status}|17/May/2015:{h:02}:{m:02}:{s:02} +0000|{client}|GET {path}|12\n")
        })
        .collect();
    let folder = folder(&[("access.log", &text), ("proxy.toml", &config)]);
    let arguments = ["access.log", "--pattern", pattern, "--stopped", "stopped.jsonl"];
    replayed(folder.path(), &arguments);
    assert_eq!(stopped(folder.path()), expected);
}

#[test]
fn weirs_own_access_log_is_replayed() {
    let upstream = Upstream::start();
    let limit = "name = \"all\", algorithm = \"quota\", calendar = \"forever\", quota = 5";
    let config = simple(&upstream.url(), &[limit]).text();
    let config = config.replace("access = \"off\"", "access = \"all\"");
    let weir = Weir::start(&config);
    for _ in 0..7 {
        crate::harness::client::get_blocking(weir.http, "/a?b=1").unwrap();
    }
    let lines = crate::harness::eventually("seven lines of the access log", || {
        let lines: Vec<String> = weir
            .output()
            .lines()
            .into_iter()
            .filter(|line| line.contains("\"message\":\"request\""))
            .collect();
        if lines.len() == 7 { Ok(lines) } else { Err(format!("{lines:?}")) }
    });
    let folder = folder(&[("access.log", &(lines.join("\n") + "\n")), ("proxy.toml", &config)]);
    let report = replayed(folder.path(), &["access.log"]);
    assert_eq!(report["requests"]["counts"]["all"], 7);
    assert_eq!(report["log"]["files"][0]["format"], "weir");
    let gaps = report["not_in_the_log"].to_string();
    assert!(gaps.contains("refused by a limiter when they were logged"), "{gaps}");
}

#[test]
fn broken_lines_are_counted_and_shown() {
    let log = log(50);
    let mut text = common(&log);
    text.insert(0, '\n');
    text.push_str("what is this?\n");
    text.push_str("1.2.3.4 - - [17/May/2015:99:05:03 +0000] \"GET / HTTP/1.1\" 200 1\n");
    text.push_str(&format!("{}\n", "x".repeat(100_000)));
    text.push_str("1.2.3.4 - - [18/May/2015:10:05:03 +0000] \"\\x16\\x03\" 400 1\n");
    text.push_str("1.2.3.4 - - [18/May/2015:10:05:03 +0000] \"CONNECT a:443 HTTP/1.1\" 400 1");
    let config = simple(NOWHERE, &[MINUTE]).text();
    let folder = folder(&[("access.log", &text), ("proxy.toml", &config)]);
    let ended = weir(folder.path(), &["replay", "access.log"]);
    assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{}", ended.out);
    for told in [
        "56 lines, 1 blank, 5 broken\n",
        "access.log:52: fewer fields than expected: the line ends in $",
        "access.log:53: found the time",
        "access.log:54: a line of more than 65536 bytes",
        "access.log:55: no request line",
        "access.log:56: found the target \"a:443\", expected a path",
        "50 requests of",
    ] {
        assert!(ended.out.contains(told), "{told}: {}", ended.out);
    }
}

#[test]
fn several_logs_are_merged_whatever_their_form_is() {
    let log = log(600);
    let config = simple(NOWHERE, &[MINUTE]).text();
    let (even, odd): (Vec<_>, Vec<_>) =
        log.iter().cloned().enumerate().partition(|(index, _)| index % 2 == 0);
    let texts = [even, odd].map(|part| {
        let part: Vec<Logged> = part.into_iter().map(|(_, request)| request).collect();
        common(&part)
    });
    let folder = folder(&[("odd.log", &texts[1]), ("proxy.toml", &config)]);
    let file = std::fs::File::create(folder.path().join("even.log.gz")).unwrap();
    let mut packed = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
    packed.write_all(texts[0].as_bytes()).unwrap();
    packed.finish().unwrap();
    let report = replayed(folder.path(), &["odd.log", "even.log.gz"]);
    // Where two requests come in the same second, their order does not change how many pass.
    assert_eq!(report["requests"]["counts"]["refused"], by_hand(&log, 5, 60).len());
    let mut child = Command::new(binary())
        .args(["replay", "-"])
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(common(&log).as_bytes()).unwrap();
    let out = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    assert!(out.starts_with("- (common) through proxy.toml, in virtual time"), "{out}");
    assert!(out.contains("600 requests of"), "{out}");
}

#[test]
fn a_suggested_quota_holds_and_one_less_does_not() {
    let log = log(2_000);
    let limits = [
        "algorithm = \"fixed_window\", period = \"1m\"",
        "algorithm = \"sliding_window_log\", period = \"10m\"",
        "algorithm = \"gcra\", period = \"1m\"",
    ];
    for limit in limits {
        let config = |quota: u64| {
            simple(NOWHERE, &[&format!("name = \"a\", quota = {quota}, {limit}")]).text()
        };
        let folder = folder(&[("access.log", &common(&log)), ("proxy.toml", &config(3))]);
        let never_refused = |quota: u64| {
            std::fs::write(folder.path().join("other.toml"), config(quota)).unwrap();
            let report = replayed(folder.path(), &["access.log", "--config", "other.toml"]);
            let limit = &report["limits"][0];
            assert_eq!(limit["curve"], Value::Null, "nobody asked for it");
            limit["keys"].as_u64().unwrap() - limit["keys_refused"].as_u64().unwrap()
        };
        let report = replayed(folder.path(), &["access.log", "--percent", "90", "--curves"]);
        let suggestion = &report["limits"][0]["suggestion"];
        let quota = suggestion["quota"].as_u64().unwrap();
        let keys = suggestion["keys"].as_u64().unwrap();
        let needed = (keys * 9).div_ceil(10);
        assert!(quota > 3, "{limit}: {suggestion}");
        assert_eq!(suggestion["never_refused_now"], never_refused(3), "{limit}");
        assert_eq!(suggestion["never_refused"], never_refused(quota), "{limit}");
        assert!(never_refused(quota) >= needed, "{limit}: {suggestion}");
        assert!(never_refused(quota - 1) < needed, "{limit}: {suggestion}");
        let curve = report["limits"][0]["curve"].as_array().unwrap();
        let now = curve.iter().find(|point| point["quota"] == 3).unwrap();
        let part = report["limits"][0]["refused"].as_f64().unwrap() / log.len() as f64;
        assert!((now["requests_refused"].as_f64().unwrap() - part).abs() < 1e-9, "{now}");
    }
}

#[test]
fn requests_are_under_way_as_long_as_the_log_says() {
    // Each takes three seconds; the log has the times of their ends.
    let ends = [3.0, 4.0, 5.5, 7.0, 7.0, 12.0];
    let line = |end: &f64| {
        json!({"msec": START_S as f64 + end, "remote_addr": "203.0.113.7", "request": "GET / HTTP/1.1",
            "status": 200, "bytes": 1, "request_time": "3.000"})
        .to_string()
    };
    let text: Vec<String> = ends.iter().map(line).collect();
    let config = simple(NOWHERE, &["name = \"a\", algorithm = \"concurrency\", quota = 2"]).text();
    let folder = folder(&[("access.log", &text.join("\n")), ("proxy.toml", &config)]);
    let report =
        replayed(folder.path(), &["access.log", "--percent", "100", "--stopped", "stopped.jsonl"]);
    // From 0, 1, 2.5, 4, 4 and 9 s on: the third finds two, and at 4 s the second has just ended.
    assert_eq!(stopped(folder.path()), BTreeSet::from([3]));
    // With the third, there are three at 2.5 s, and three at 4 s.
    assert_eq!(report["limits"][0]["suggestion"]["quota"], 3);
}

#[test]
fn two_configurations_are_compared() {
    let log = log(1_000);
    let config = |quota: u64| {
        simple(NOWHERE, &[&MINUTE.replace("quota = 5", &format!("quota = {quota}"))]).text()
    };
    let folder = folder(&[
        ("access.log", &common(&log)),
        ("candidate.toml", &config(2)),
        ("proxy.toml", &config(4)),
    ]);
    let arguments = ["access.log", "--config", "candidate.toml", "--against", "proxy.toml"];
    let report = replayed(folder.path(), &arguments);
    let (candidate, other) = (by_hand(&log, 2, 60), by_hand(&log, 4, 60));
    let difference = &report["against"]["difference"];
    assert_eq!(difference["newly_stopped"], candidate.difference(&other).count());
    assert_eq!(difference["newly_passed"], other.difference(&candidate).count());
    assert_eq!(difference["stopped_both"], candidate.intersection(&other).count());
    assert_eq!(report["against"]["requests"]["counts"]["refused"], other.len());
    let text = weir(folder.path(), &[&["replay"], &arguments[..]].concat()).out;
    assert!(text.contains("would be stopped now, 0 would pass now"), "{text}");
}

#[test]
fn facts_that_the_log_lacks_are_reported() {
    let config = Toml::new()
        .upstream("api", NOWHERE, "")
        .more("[policies.keys]\nuse = \"keyed\"\n[[policies.keys.config.limits]]\nname = \"a\"\nalgorithm = \"fixed_window\"\nquota = 5\nperiod = \"1m\"\nkey = \"{header.x-api-key}\"")
        .route("name = \"api\"\npath = \"/*\"\nupstream = \"api\"\npolicy = \"keys\"")
        .text();
    let folder = folder(&[("access.log", &common(&log(300))), ("proxy.toml", &config)]);
    let text = weir(folder.path(), &["replay", "access.log"]).out;
    let told =
        "policy keys reads header.x-api-key: the log does not record it for 300 of 300 requests";
    assert!(text.contains(told), "{text}");
    assert!(text.contains("clients are names"), "{text}");
}

#[test]
fn the_page_needs_nothing_else() {
    let config = simple(NOWHERE, &[MINUTE]).text();
    let mut log = log(500);
    log[0].path = "/<script>alert(1)</script>".to_owned();
    let folder = folder(&[("access.log", &common(&log)), ("proxy.toml", &config)]);
    let ended = weir(folder.path(), &["replay", "access.log", "--html", "report.html"]);
    assert_eq!(ended.code, 0, "{}", ended.err);
    let page = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    assert!(page.matches("<svg").count() >= 3, "over time, by client, over quotas");
    assert!(page.contains("prefers-color-scheme: dark"));
    let links = page.replace("http://www.w3.org/2000/svg", "");
    for loads in ["<script", "<link", "<img", "src=", "url(", "http://", "https://", "@import"] {
        assert!(!links.contains(loads), "{loads}");
    }
}

#[test]
fn errors_are_reported_and_destroy_nothing() {
    let config = simple(NOWHERE, &[MINUTE]).text();
    let folder = folder(&[
        ("access.log", &common(&log(5))),
        ("nonsense.log", "what\nis this\n"),
        ("proxy.toml", &config),
        ("wrong.toml", "[[listeners]]\naddress = 5\n"),
    ]);
    for arguments in
        [["access.log", "--config", "wrong.toml"], ["access.log", "--against", "wrong.toml"]]
    {
        let ended = weir(folder.path(), &[&["replay"], &arguments[..]].concat());
        assert_eq!((ended.code, ended.err.contains("wrong.toml")), (78, true), "{}", ended.err);
    }
    for (arguments, told) in [
        (&["missing.log"][..], "missing.log: No such file"),
        (&["nonsense.log"], "nonsense.log:1: the format is not known: found \"what\""),
        (&["access.log", "--html", "./access.log"], "./access.log: is read as access.log"),
        (&["access.log", "--stopped", "proxy.toml"], "proxy.toml: is read as proxy.toml"),
        (
            &["access.log", "--against", "./proxy.toml", "--stopped", "a", "--html", "a"],
            "--html and --stopped name the same file",
        ),
        (&["access.log", "--format", "apache"], "expected one of common, combined"),
        (&["access.log", "--pattern", "$status"], "without $remote_addr"),
        (
            &["access.log", "--pattern", "$remote_addr [$time_locla]"],
            "--pattern: at character 15: found the variable $time_locla, expected a known variable: the nearest is $time_local; known are $remote_addr,",
        ),
        (&["access.log", "--percent", "101"], "from 0 to 100"),
        (&["access.log", "--html", "no/where.html"], "no/where.html"),
    ] {
        let ended = weir(folder.path(), &[&["replay"], arguments].concat());
        assert_eq!(ended.code, 2, "{arguments:?}: {}{}", ended.out, ended.err);
        assert!(ended.err.contains(told), "{told}: {}", ended.err);
    }
    let piped = |report: &str, target: &str| {
        let mut command = Command::new(binary());
        command.args(["replay", "-", report, target]).current_dir(folder.path());
        let log = std::fs::File::open(folder.path().join("access.log")).unwrap();
        let ended = command.stdin(log).output().unwrap();
        (ended.status.code(), String::from_utf8(ended.stderr).unwrap())
    };
    let (code, told) = piped("--stopped", "access.log");
    assert!(code == Some(2) && told.contains("access.log: is read as"), "{code:?} {told}");
    let (code, told) = piped("--html", "/dev/full");
    assert!(code == Some(1) && told.contains("/dev/full: "), "{code:?} {told}");
    assert_eq!(std::fs::read_to_string(folder.path().join("proxy.toml")).unwrap(), config);
    assert_eq!(std::fs::read_to_string(folder.path().join("access.log")).unwrap(), common(&log(5)));
}

#[test]
fn a_pipe_that_is_closed_and_a_full_disk_end_a_command_in_order() {
    let config = simple(NOWHERE, &[MINUTE]).text();
    let folder = folder(&[("access.log", &common(&log(5))), ("proxy.toml", &config)]);
    for arguments in [&["explain", "GET /"][..], &["replay", "access.log"], &["check"]] {
        let run = |out: Stdio| {
            let mut command = Command::new(binary());
            command.args(arguments).current_dir(folder.path());
            let ended = command.stdout(out).stderr(Stdio::piped()).output().unwrap();
            (ended.status.code(), String::from_utf8(ended.stderr).unwrap())
        };
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert_eq!(run(writer.into()), (Some(0), String::new()), "{arguments:?}");
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let (code, told) = run(full.into());
        assert_eq!(code, Some(1), "{arguments:?}: {told}");
        assert!(told.contains("weir: standard output: No space left"), "{told}");
    }
}

#[test]
fn a_request_is_explained() {
    let config = Toml::new()
        .upstream("api", NOWHERE, "")
        .policy("public", &["name = \"day\", algorithm = \"fixed_window\", quota = 2, period = \"1d\", alignment = \"first_request\""])
        .route("name = \"search\"\npath = \"/search\"\nmethods = [\"GET\"]\nupstream = \"api\"\npolicy = \"public\"")
        .text();
    let folder = folder(&[("proxy.toml", &config)]);
    let explain = |arguments: &[&str]| weir(folder.path(), &[&["explain"], arguments].concat());
    let asked = "GET /search x-api-key: abc from 203.0.113.7";
    let text = explain(&[asked, "--times", "3"]).out;
    for told in [
        "GET /search from 203.0.113.7, by proxy.toml: fresh counters, in virtual time\n",
        "1 of 3: admitted\n    policy public, route search\n    sees client-ip=\"203.0.113.7\"\n",
        "day (fixed_window, 2 in 1 d) key '203.0.113.7': had 2, took 1; 1 left, all back in 1 d\n",
        "3 of 3: refused by day, passes in 1 d\n",
        "had 0, asked 1, refuses, passes in 1 d; 0 left",
    ] {
        assert!(text.contains(told), "{told}: {text}");
    }
    let json: Value =
        serde_json::from_str(&explain(&[asked, "--times", "3", "--json"]).out).unwrap();
    assert_eq!((&json["counters"], &json["time"]), (&json!("fresh"), &json!("virtual")));
    let last = &json["shown"][2];
    assert_eq!((&last["verdict"], &last["status"]), (&json!("refused"), &json!(429)));
    assert_eq!(last["passes_in_s"], 86_400.0);
    let limit = &last["limits"][0];
    assert_eq!(
        (&limit["had"], &limit["asked"], &limit["refused"]),
        (&json!(0), &json!(1), &json!(true))
    );
    for (request, told) in [
        (
            "GET /other",
            "rejected 404\n    refused with 404 before the policy was asked, by the check of its route: no route has its host and path; expected host, path and method of a route\n",
        ),
        ("POST /search", "the routes of its path are for GET"),
    ] {
        let text = explain(&[request]).out;
        assert!(text.contains(told), "{told}: {text}");
    }
    let wrong = explain(&["GET"]);
    assert_eq!(wrong.code, 2);
    assert!(wrong.err.contains("expected a method"), "{}", wrong.err);
}

/// What docs/replay.md shows is what is printed.
#[test]
fn the_guide_shows_what_is_printed() {
    let guide = include_str!("../../../../docs/replay.md");
    let blocks: Vec<&str> =
        guide.split("```text\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    let search = Toml::new()
        .upstream("api", NOWHERE, "")
        .policy("public", &["name = \"day\", algorithm = \"fixed_window\", quota = 2, period = \"1d\", alignment = \"first_request\""])
        .route("name = \"search\"\npath = \"/search\"\nupstream = \"api\"\npolicy = \"public\"")
        .text();
    let minute = |quota: &str| simple(NOWHERE, &[&MINUTE.replace("quota = 5", quota)]).text();
    let line = |client: u64, second: u64, path: &str| {
        format!(
            "203.0.113.{client} - - [17/May/2015:10:05:0{second} +0000] \"GET {path} HTTP/1.1\" 200 5\n"
        )
    };
    let log = [
        line(7, 3, "/a"),
        line(7, 4, "/b"),
        line(9, 4, "/a"),
        "oh\n".to_owned(),
        line(7, 5, "/c"),
        line(7, 6, "/d"),
    ];
    let folder = folder(&[
        ("search.toml", &search),
        ("access.log", &log.concat()),
        ("candidate.toml", &minute("quota = 2")),
        ("proxy.toml", &minute("quota = 100")),
    ]);
    let asked = "GET /search x-api-key: abc from 203.0.113.7";
    let explained =
        weir(folder.path(), &["explain", "--config", "search.toml", asked, "--times", "3"]);
    assert_eq!(explained.out.replace("search.toml", "proxy.toml"), blocks[0]);
    let replayed = weir(
        folder.path(),
        &["replay", "access.log", "--config", "candidate.toml", "--against", "proxy.toml"],
    );
    assert_eq!(replayed.out, blocks[2], "{}", replayed.err);
    let malformed = weir(folder.path(), &["explain", "GET /a%zz"]);
    assert_eq!(malformed.out, blocks[1], "{}", malformed.err);
}
