//! Configuration and policies change under load: no request fails, no count is lost, and an invalid
//! file changes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::Signal;

use serde_json::Value;

use crate::harness::client::{Client, Tally, get, raw, statuses};
use crate::harness::toml::{Toml, simple};
use crate::harness::upstream::Upstream;
use crate::harness::weir::{Weir, replace};
use crate::harness::{TIMEOUT, eventually, eventually_async};

fn quota(url: &str, quota: u64, period: &str) -> Toml {
    simple(
        url,
        &[&format!(
            "name = \"day\", algorithm = \"fixed_window\", quota = {quota}, period = \"{period}\""
        )],
    )
}

/// Clients that send one request after another until told to stop, each on one connection.
struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    tasks: tokio::task::JoinSet<Tally>,
}

impl Load {
    fn start(weir: &Weir, clients: usize) -> Self {
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..clients {
            let (address, stop, answered) = (weir.http, Arc::clone(&stop), Arc::clone(&answered));
            tasks.spawn(async move {
                let mut tally = Tally::default();
                let mut client = Client::connect(address).await.expect("a connection");
                while !stop.load(Ordering::Relaxed) && tally.failed.is_empty() {
                    tally.add(&client.get("/", &[]).await);
                    answered.fetch_add(1, Ordering::Relaxed);
                }
                tally
            });
        }
        Self { stop, answered, tasks }
    }

    async fn end(mut self) -> Tally {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Tally::default();
        while let Some(tally) = self.tasks.join_next().await {
            let tally = tally.expect("no panic in a client");
            tally
                .by_status
                .iter()
                .for_each(|(status, count)| *all.by_status.entry(*status).or_default() += count);
            all.failed.extend(tally.failed);
        }
        all
    }

    /// Waits until the load has made requests that were sent after this call.
    fn await_more(&self) {
        let seen = self.answered.load(Ordering::Relaxed);
        eventually("the load goes on", || {
            let now = self.answered.load(Ordering::Relaxed);
            if now >= seen + 100 { Ok(()) } else { Err(format!("{now} answered, {seen} before")) }
        });
    }
}

/// Four kinds of invalid configuration: not TOML, an unknown key, an error found by the policy, a
/// module that is none.
fn bad(good: &str, turn: usize) -> String {
    match turn % 4 {
        0 => format!("{good}\n[[routes"),
        1 => good.replace("upstream = \"api\"", "upstraem = \"api\""),
        2 => good.replace("algorithm = \"fixed_window\"", "algorithm = \"fixed_widow\""),
        _ => good.replace("use = \"client-ip\"", "wasm = \"broken.wasm\""),
    }
}

// Two threads: one runs the load, while the other rewrites the file and waits for the result.
#[test]
fn twenty_reloads_under_load_every_fourth_one_bad_fail_no_request_and_keep_every_count() {
    const START: u64 = 10_000_000;
    let upstream = Upstream::start();
    let weir = Weir::build(&quota(&upstream.url(), START, "1d").text())
        .file("broken.wasm", b"\0asm\x01\0\0\0\xff")
        .start();
    let (started, load_started) = std::sync::mpsc::channel();
    let (finish, finished) = tokio::sync::oneshot::channel::<()>();
    let tally = std::thread::scope(|scope| {
        let weir_ref = &weir;
        let runner = scope.spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let load = Load::start(weir_ref, 16);
                started.send((Arc::clone(&load.stop), Arc::clone(&load.answered))).unwrap();
                // An error means that the other thread failed. Then this one ends as well.
                let _ = finished.await;
                load.end().await
            })
        });
        let (stop, answered) = load_started.recv().unwrap();
        let watch = Load { stop, answered, tasks: tokio::task::JoinSet::new() };
        for turn in 1..=20_u64 {
            watch.await_more();
            let text = quota(&upstream.url(), START + turn, "1d").text();
            if turn % 4 == 0 {
                weir.reload(&bad(&text, (turn / 4 - 1) as usize), "refused");
            } else {
                weir.reload(&text, "applied");
            }
        }
        watch.await_more();
        finish.send(()).unwrap();
        runner.join().expect("no panic in the load")
    });
    tally.only(&[200]);
    assert_eq!(upstream.count(), tally.total());
    assert!(weir.reloads("applied") >= 15 && weir.reloads("refused") >= 5);
    let last = crate::harness::client::get_blocking(weir.http, "/").unwrap();
    // The twentieth configuration was invalid, so the nineteenth's quota applies, minus all
    // requests that were admitted and this one.
    assert_eq!(last.remaining("day"), (START + 19 - tally.total() - 1) as i64, "{last:?}");
}

#[tokio::test]
async fn a_hundred_an_hour_edited_to_a_hundred_a_second_works_at_once() {
    for algorithm in ["fixed_window", "gcra", "token_bucket"] {
        let upstream = Upstream::start();
        let limit = |period: &str| {
            format!("name = \"l\", algorithm = \"{algorithm}\", quota = 100, period = \"{period}\"")
        };
        let weir = Weir::start(&simple(&upstream.url(), &[&limit("1h")]).text());
        let mut client = Client::connect(weir.http).await.unwrap();
        let mut admitted = 0;
        while client.get("/", &[]).await.unwrap().status == 200 {
            admitted += 1;
        }
        assert!(admitted >= 100, "{algorithm}: {admitted}");
        weir.reload(&simple(&upstream.url(), &[&limit("1s")]).text(), "applied");
        let reply = client.get("/", &[]).await.unwrap();
        assert_eq!(reply.status, 200, "{algorithm}: an hour's wait was carried over: {reply:?}");
        let policy = &reply.limit_policies()["l"];
        assert_eq!((policy["q"], policy["w"]), (100, 1), "{reply:?}");
    }
}

#[tokio::test]
async fn a_listener_whose_address_changes_runs_as_it_was_until_the_restart() {
    let upstream = Upstream::start();
    for (line, status) in [("redirect_to_https = 443", 308), ("name = \"int\"", 200)] {
        let text = quota(&upstream.url(), 100, "1d").listener(line).text();
        let text = match status {
            200 => text.replace("[[routes]]", "[[routes]]\nlisteners = [\"int\"]"),
            _ => text,
        };
        let weir = Weir::start(&text);
        assert_eq!(get(weir.http, "/", &[]).await.status, status, "{line}");
        let (address, moved) = ("[[listeners]]\naddress = \"127.0.0.1:0\"", "127.0.0.2");
        assert!(text.contains(address));
        weir.reload(&text.replace(address, &address.replace("127.0.0.1", moved)), "applied");
        assert_eq!(get(weir.http, "/", &[]).await.status, status, "{line}");
    }
}

#[tokio::test]
async fn a_quota_that_is_edited_applies_to_the_counters_as_they_are() {
    let upstream = Upstream::start();
    let weir = Weir::start(&quota(&upstream.url(), 10, "1d").text());
    let mut client = Client::connect(weir.http).await.unwrap();
    for _ in 0..10 {
        assert_eq!(client.get("/", &[]).await.unwrap().status, 200);
    }
    assert_eq!(client.get("/", &[]).await.unwrap().status, 429);
    weir.reload(&quota(&upstream.url(), 15, "1d").text(), "applied");
    assert_eq!(
        client.get("/", &[]).await.unwrap().remaining("day"),
        4,
        "ten of fifteen are used, and this is the eleventh"
    );
    weir.reload(&quota(&upstream.url(), 5, "1d").text(), "applied");
    let reply = client.get("/", &[]).await.unwrap();
    assert_eq!((reply.status, reply.remaining("day")), (429, 0), "eleven of five are used");
}

#[tokio::test]
async fn sighup_reloads_a_file_that_was_written_in_place() {
    let upstream = Upstream::start();
    let weir = Weir::start(&quota(&upstream.url(), 10, "1d").text());
    // Rewritten, so that there is something to apply. The watcher may be faster than the signal,
    // which then finds nothing new.
    std::fs::write(weir.folder().join("proxy.toml"), quota(&upstream.url(), 77, "1d").text())
        .unwrap();
    weir.signal(Signal::HUP);
    weir.await_reloads("applied", 1);
    assert_eq!(get(weir.http, "/", &[]).await.limit_policies()["day"]["q"], 77);
}

#[tokio::test]
async fn a_bad_file_is_reported_with_its_line_and_the_old_configuration_stays_in_use() {
    let upstream = Upstream::start();
    let good = quota(&upstream.url(), 10, "1d").text();
    let weir = Weir::start(&good);
    assert_eq!(get(weir.http, "/", &[]).await.remaining("day"), 9);
    weir.reload(&good.replace("quota = 10", "qouta = 10"), "refused");
    assert_eq!(get(weir.http, "/", &[]).await.remaining("day"), 8);
    let told = weir.admin_page("/status").text();
    assert!(told.contains("qouta"), "{told}");
    eventually("the log tells the error", || {
        let log = weir.output().lines().join("\n");
        if log.contains("qouta") { Ok(()) } else { Err(log) }
    });
    // The next valid one is applied.
    weir.reload(&good.replace("quota = 10", "quota = 20"), "applied");
    assert_eq!(get(weir.http, "/", &[]).await.remaining("day"), 17);
}

#[tokio::test]
async fn a_policy_rebuilt_in_its_file_is_reloaded() {
    let upstream = Upstream::start();
    let config = Toml::new()
        .upstream("api", &upstream.url(), "")
        .more(
            "[policies.keys]\nwasm = \"policy.wasm\"\n[[policies.keys.config.limits]]\nname = \"key\"\nalgorithm = \"fixed_window\"\nquota = 5\nperiod = \"1d\"",
        )
        .route("name = \"api\"\npath = \"/*\"\nupstream = \"api\"\npolicy = \"keys\"");
    let module = std::fs::read(crate::harness::guest::api_key()).unwrap();
    let weir = Weir::build(&config.text()).file("policy.wasm", &module).start();
    assert_eq!(get(weir.http, "/", &[("x-api-key", "a")]).await.remaining("key"), 4);
    assert_eq!(get(weir.http, "/", &[("x-api-key", "b")]).await.remaining("key"), 4);

    // Half of it, as from a compiler that is still writing: refused, and the old one stays in use.
    let refused = weir.reloads("refused");
    replace(&weir.folder().join("policy.wasm"), &module[..module.len() / 2]);
    weir.await_reloads("refused", refused + 1);
    assert_eq!(get(weir.http, "/", &[("x-api-key", "a")]).await.remaining("key"), 3);

    // The whole module again, with a custom section that makes it a different file.
    let applied = weir.reloads("applied") + weir.reloads("unchanged");
    let mut rebuilt = module.clone();
    rebuilt.extend_from_slice(b"\0\x05\x04note");
    replace(&weir.folder().join("policy.wasm"), &rebuilt);
    eventually_async("the rebuilt policy is applied", async || {
        let now = weir.reloads("applied") + weir.reloads("unchanged");
        if now > applied { Ok(()) } else { Err(format!("{now} reloads")) }
    })
    .await;
    assert_eq!(
        get(weir.http, "/", &[("x-api-key", "a")]).await.remaining("key"),
        2,
        "its counters go on"
    );
}

#[test]
fn the_logs_level_and_format_change_with_a_reload() {
    let upstream = Upstream::start();
    let config = quota(&upstream.url(), 1_000, "1d").text();
    let weir = Weir::start(&config);
    let said = || weir.output().lines().iter().filter(|line| line.contains("applied")).count();
    // The change applies from the reload's own log line on.
    let quiet = config.replace("level = \"info\"", "level = \"error\"");
    weir.reload(&quiet, "applied");
    weir.reload(&quiet.replace("quota = 1000", "quota = 1001"), "applied");
    weir.reload(&config, "applied");
    eventually("the line of the third reload", || {
        if said() > 0 { Ok(()) } else { Err(weir.output().tail(5)) }
    });
    assert_eq!(said(), 1, "{}", weir.output().tail(10));
    assert!(
        weir.output()
            .events()
            .iter()
            .any(|event| event["message"] == "reload" && event["result"] == "applied")
    );
    weir.reload(&config.replace("format = \"json\"", "format = \"text\""), "applied");
    eventually("a line of text", || {
        let lines = weir.output().lines();
        let text = lines
            .iter()
            .any(|line| line.contains("INFO reload result=\"applied\"") && !line.starts_with('{'));
        if text { Ok(()) } else { Err(weir.output().tail(5)) }
    });
}

/// `POST /reload`: its status, and its JSON.
pub fn ask_for_a_reload(weir: &Weir) -> (u16, Value) {
    ask_for_a_reload_within(weir, TIMEOUT)
}

/// The same for a reload that may take this long.
pub fn ask_for_a_reload_within(weir: &Weir, time: Duration) -> (u16, Value) {
    let request = "POST /reload HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let reply = raw(weir.admin.expect("an admin listener"), request.as_bytes(), time);
    let (_, body) = reply.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{reply}"));
    let body = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {reply}"));
    (statuses(&reply)[0], body)
}

#[tokio::test]
async fn a_reload_that_is_asked_for_answers_what_it_changed_or_the_errors() {
    let upstream = Upstream::start();
    let good = quota(&upstream.url(), 10, "1d").text();
    let weir = Weir::start(&good);
    assert_eq!(get(weir.http, "/", &[]).await.remaining("day"), 9);
    let (status, answer) = ask_for_a_reload(&weir);
    assert_eq!(
        (status, answer["applied"].as_bool(), &answer["changes"]),
        (200, Some(true), &Value::Array(Vec::new()))
    );

    let setting = "policies.public.config.limits[day]";
    weir.rewrite(&good.replace("quota = 10", "quota = 20"));
    let (status, answer) = ask_for_a_reload(&weir);
    let expected = serde_json::json!([
        { "setting": format!("{setting}.quota"), "change": "10 -> 20", "counters": "kept" }
    ]);
    assert_eq!((status, &answer["changes"]), (200, &expected), "{answer}");
    assert_eq!(get(weir.http, "/", &[]).await.remaining("day"), 18, "it serves already");

    weir.rewrite(
        &good
            .replace("period = \"1d\"", "period = \"2d\"")
            .replace("upstream = \"api\"", "upstraem = \"api\""),
    );
    let (status, answer) = ask_for_a_reload(&weir);
    assert_eq!((status, answer["applied"].as_bool()), (422, Some(false)), "{answer}");
    let errors = answer["errors"].as_array().unwrap();
    let line = good.lines().position(|line| line.contains("upstream = \"api\"")).unwrap() + 1;
    let error = errors.iter().find(|one| one["line"] == line).unwrap_or_else(|| panic!("{answer}"));
    assert!(error["file"].as_str().unwrap().ends_with("/proxy.toml"), "{answer}");
    assert!(error["text"].as_str().unwrap().contains("the unknown key \"upstraem\""), "{answer}");
    assert_eq!(get(weir.http, "/", &[]).await.remaining("day"), 17);

    weir.rewrite(&good.replace("period = \"1d\"", "period = \"2d\""));
    let (status, answer) = ask_for_a_reload(&weir);
    let period = &answer["changes"][0];
    assert_eq!((status, &period["counters"]), (200, &"fresh".into()), "{answer}");
    assert_eq!(get(weir.http, "/", &[]).await.remaining("day"), 9);

    // What was logged, and what `/status` shows of these reloads: the latest first.
    let said = format!("{setting}.quota: 10 -> 20 (existing counters go on)");
    let logged =
        || weir.output().events().into_iter().find(|event| event["change"] == said.as_str());
    eventually("the change is logged", || logged().ok_or_else(|| weir.output().tail(20)));
    let status = weir.admin_page("/status").json();
    // A file that is written may have been noticed as well, before or after it was asked for.
    let last = status["reloads"].as_array().unwrap().iter();
    let last: Vec<&Value> = last.filter(|one| one["reason"] == "asked").collect();
    let results: Vec<&str> = last.iter().map(|one| one["result"].as_str().unwrap()).collect();
    assert_eq!(results, ["applied", "refused", "applied", "applied"], "{status}");
    assert_eq!(status["last_reload"], *last[0]);
    assert_eq!(
        (&last[0]["reason"], &last[2]["changes"]),
        (&"asked".into(), &serde_json::json!([said]))
    );
    assert!(last[1]["errors"].as_str().unwrap().contains("upstraem"), "{status}");
    let policy = &status["policies"]["public"];
    assert_eq!((&policy["use"], &policy["stopped"]), (&"client-ip".into(), &false.into()));
    assert_eq!(policy["digest"].as_str().unwrap().len(), 64, "{status}");
    assert!(policy["calls"].as_u64() >= Some(1) && policy["errors"] == 0, "{status}");
    assert!(policy["memory_bytes"].as_u64() > Some(65_535), "{status}");
}

#[test]
fn a_proxy_without_a_file_has_nothing_to_reload() {
    let upstream = Upstream::start();
    let (url, address) = (upstream.url(), "127.0.0.1:0");
    let arguments =
        ["run", "--to", &url, "--limit", "5/1m", "--listen", address, "--admin", address];
    let weir = Weir::with_arguments(&arguments).start();
    let (status, answer) = ask_for_a_reload(&weir);
    assert_eq!((status, answer["applied"].as_bool()), (409, Some(false)));
    assert!(
        answer["reason"].as_str().unwrap().contains("without a configuration file"),
        "{answer}"
    );
}
