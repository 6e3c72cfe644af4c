//! Upstreams with `concurrency`: who waits, who is turned away, and what that costs.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufStream};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use serde_json::Value;

use crate::harness::client::{Reply, get};
use crate::harness::toml::Toml;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;
use crate::harness::{TIMEOUT, eventually_async};

const ONE_PLACE: &str = "concurrency = { max = 1, queue = 1, max_wait = \"20s\" }";
const LIMIT: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 10, period = \"1d\"";
/// Of the key `gold-key`.
const DIGEST: &str = "sha256:6163937e6547cc2853a333d323496f4d5608b3958a3bd3939752708bc9cb0feb";

fn concurrency(weir: &Weir) -> Value {
    weir.admin_page("/status").json()["concurrency"]["api"].clone()
}

async fn until_waiting(weir: &Weir, count: u64) {
    eventually_async("requests wait", async || {
        let now = concurrency(weir);
        if now["waiting"] == count { Ok(()) } else { Err(now.to_string()) }
    })
    .await;
}

async fn until_seen(upstream: &Upstream, count: u64) {
    eventually_async("requests arrive", async || {
        let now = upstream.count();
        if now == count { Ok(()) } else { Err(now.to_string()) }
    })
    .await;
}

fn is_turned_away(reply: &Reply) {
    assert_eq!(reply.status, 503, "{reply:?}");
    let problem = reply.json();
    let expected = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
    assert_eq!(problem["type"], expected);
    let wait: u64 = reply.header("retry-after").parse().unwrap();
    assert!((1..=4).contains(&wait), "{wait}");
}

#[tokio::test]
async fn the_more_important_request_is_served_and_the_other_is_not_charged() {
    let upstream = Upstream::start();
    let weir = Weir::start(
        &Toml::new()
            .upstream("api", &upstream.url(), ONE_PLACE)
            .policy("public", &[LIMIT])
            .route("path = \"/*\"\nupstream = \"api\"\npolicy = \"public\"")
            .route("path = \"/checkout\"\nupstream = \"api\"\npolicy = \"public\"\npriority = 7")
            .text(),
    );
    let address = weir.http;
    let send = |path: &'static str| tokio::spawn(async move { get(address, path, &[]).await });
    upstream.hold();
    let first = send("/first");
    until_seen(&upstream, 1).await;
    let displaced = send("/search");
    until_waiting(&weir, 1).await;
    let full = send("/search").await.unwrap();
    is_turned_away(&full);
    let checkout = send("/checkout");
    is_turned_away(&displaced.await.unwrap());
    until_waiting(&weir, 1).await;
    assert_eq!(concurrency(&weir)["in_flight"], 1);
    upstream.release();
    assert_eq!(first.await.unwrap().status, 200);
    assert_eq!(checkout.await.unwrap().status, 200);
    let paths: Vec<_> = upstream.seen().iter().map(|seen| seen.target.clone()).collect();
    assert_eq!(paths, ["/first", "/checkout"]);
    // Three requests were served with this one.
    assert_eq!(get(address, "/", &[]).await.remaining("day"), 7);
    for (reason, count) in [("displaced", 1), ("full", 1), ("waited", 0)] {
        let series = format!("weir_upstream_shed_total{{upstream=\"api\",reason=\"{reason}\"}}");
        assert_eq!(weir.metric(&series), count, "{reason}");
    }
    assert_eq!(weir.metric("weir_upstream_errors_total{upstream=\"api\",cause=\"shed\"}"), 2);
    assert_eq!(weir.metric("weir_route_refusals_total{route=\"all\",cause=\"overload\"}"), 2);
}

#[tokio::test]
async fn who_leaves_or_runs_out_of_time_in_the_line_pays_nothing() {
    let upstream = Upstream::start();
    let route = "upstream = \"api\"\npolicy = \"public\"";
    let weir = Weir::start(
        &Toml::new()
            .upstream("api", &upstream.url(), "concurrency = { max = 1, max_wait = \"20s\" }")
            .policy("public", &[LIMIT])
            .route(&format!("path = \"/*\"\n{route}"))
            .route(&format!("path = \"/brief\"\n{route}\ntimeouts.request = \"100ms\""))
            .text(),
    );
    let address = weir.http;
    upstream.hold();
    let first = tokio::spawn(async move { get(address, "/", &[]).await });
    until_seen(&upstream, 1).await;
    // The body of a request that waits is not read.
    for request in ["GET / HTTP/1.1\r\n", "POST / HTTP/1.1\r\ncontent-length: 3\r\n"] {
        let body = if request.starts_with("POST") { "abc" } else { "" };
        let mut leaving = TcpStream::connect(address).await.unwrap();
        leaving.write_all(format!("{request}host: a\r\n\r\n{body}").as_bytes()).await.unwrap();
        until_waiting(&weir, 1).await;
        drop(leaving);
        until_waiting(&weir, 0).await;
    }
    assert_eq!(get(address, "/brief", &[]).await.status, 504);
    upstream.release();
    assert_eq!(first.await.unwrap().status, 200);
    // The first one and this.
    assert_eq!(get(address, "/", &[]).await.remaining("day"), 8);
    assert_eq!(upstream.seen().len(), 2);
    eventually_async("two are counted", async || {
        let top = weir.admin_page("/top").json();
        if top["limits"][0]["units"] == 2 { Ok(()) } else { Err(top.to_string()) }
    })
    .await;
}

#[tokio::test]
async fn a_reload_keeps_what_an_adaptive_limit_has_learnt() {
    let upstream = Upstream::start();
    let config = |retry_percent: u32| {
        let more = format!("concurrency = {{ adaptive = true }}\nretry_percent = {retry_percent}");
        let config = Toml::new().upstream("api", &upstream.url(), &more);
        config.route("path = \"/*\"\nupstream = \"api\"").text()
    };
    let weir = Weir::start(&config(20));
    let learnt = eventually_async("something is learnt", async || {
        assert_eq!(get(weir.http, "/", &[]).await.status, 200);
        let now = concurrency(&weir);
        if now["base_us"].is_null() { Err(now.to_string()) } else { Ok(now) }
    })
    .await;
    weir.reload(&config(30), "applied");
    assert_eq!(concurrency(&weir)["base_us"], learnt["base_us"]);
}

#[tokio::test]
async fn a_plan_has_the_priority_that_is_written_beside_it() {
    let upstream = Upstream::start();
    let policy = format!(
        "[policies.customers]\nuse = \"plans\"\n[policies.customers.config]\n\
         key = \"{{header.x-api-key}}\"\ndefault_plan = \"free\"\n\
         priorities = {{ gold = 6, free = 2 }}\nassign = {{ \"{DIGEST}\" = \"gold\" }}\n\
         plans.gold = [{{ {LIMIT} }}]\nplans.free = [{{ {LIMIT} }}]\n"
    );
    let weir = Weir::start(
        &Toml::new()
            .upstream("api", &upstream.url(), ONE_PLACE)
            .more(&policy)
            .route("path = \"/*\"\nupstream = \"api\"\npolicy = \"customers\"")
            .text(),
    );
    let address = weir.http;
    let send = |key: &'static str| {
        tokio::spawn(async move { get(address, "/", &[("x-api-key", key)]).await })
    };
    upstream.hold();
    let first = send("");
    until_seen(&upstream, 1).await;
    let free = send("");
    until_waiting(&weir, 1).await;
    let gold = send("gold-key");
    is_turned_away(&free.await.unwrap());
    until_waiting(&weir, 1).await;
    upstream.release();
    assert_eq!(first.await.unwrap().status, 200);
    assert_eq!(gold.await.unwrap().status, 200);
}

#[test]
fn what_is_wrong_with_the_setting_is_said_where_it_is() {
    let check = |concurrency: &str| {
        let config = Toml::new()
            .upstream("api", "http://127.0.0.1:1", &format!("concurrency = {concurrency}"))
            .route("path = \"/*\"\nupstream = \"api\"\npriority = 8");
        let (code, _, errors) = Weir::check(Weir::build(&config.text()));
        assert_eq!(code, 78, "{errors}");
        errors
    };
    for (written, expected) in [
        ("{ queue = 1 }", "max"),
        ("{ max = 4, min = 2 }", "adaptive"),
        ("{ adaptive = true, min = 9, max = 5 }", "less than `min`"),
        ("{ max = 0 }", "1 to 100000"),
        ("{ max = 4, max_wait = 5 }", "\"5ms\""),
    ] {
        let errors = check(written);
        assert!(errors.contains(expected), "{written}: {errors}");
        assert!(errors.contains("0 to 7"), "{errors}");
    }
}

/// A client that asks for `path` again and again on one connection, and waits a little after each
/// refusal. Counts what it is answered with: 200, and anything else.
async fn hammer(
    address: SocketAddr,
    path: &str,
    stop: Arc<AtomicBool>,
) -> std::io::Result<(u64, u64)> {
    let mut socket = BufStream::new(TcpStream::connect(address).await?);
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
    let (mut served, mut refused) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        socket.write_all(request.as_bytes()).await?;
        socket.flush().await?;
        let (mut length, mut ok, mut line) = (0, false, String::new());
        while line != "\r\n" {
            line.clear();
            socket.read_line(&mut line).await?;
            ok |= line.starts_with("HTTP/1.1 200");
            let value = line.to_ascii_lowercase();
            if let Some(value) = value.strip_prefix("content-length:") {
                length = value.trim().parse().expect("a length");
            }
        }
        socket.read_exact(&mut vec![0; length]).await?;
        if ok {
            served += 1;
        } else {
            refused += 1;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    Ok((served, refused))
}

#[tokio::test]
async fn a_worker_that_stays_behind_turns_away_what_matters_least_and_charges_nothing_for_it() {
    const PLENTY: &str =
        "name = \"day\", algorithm = \"fixed_window\", quota = 100_000_000, period = \"1d\"";
    let weir = Weir::start(
        &Toml::new()
            .server("workers = 1")
            .limit("worker_lag = \"10ms\"\nconnections_per_address = 10_000")
            .policy("public", &[PLENTY])
            .route("name = \"search\"\npath = \"/*\"\npolicy = \"public\"\npriority = 1\nrespond = { status = 200 }")
            .route("path = \"/checkout\"\npolicy = \"public\"\npriority = 7\nrespond = { status = 200 }")
            .text(),
    );
    let (address, stop) = (weir.http, Arc::new(AtomicBool::new(false)));
    let start = |path: &'static str, count: usize| {
        let one = || tokio::spawn(hammer(address, path, Arc::clone(&stop)));
        (0..count).map(|_| one()).collect::<Vec<_>>()
    };
    let (low, high) = (start("/search", 800), start("/checkout", 8));
    let shed = || weir.metric("weir_worker_shed_total{reason=\"lag\"}");
    let deadline = Instant::now() + TIMEOUT;
    while shed() < 200 {
        assert!(Instant::now() < deadline, "{} turned away", shed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    stop.store(true, Ordering::Relaxed);
    let sum = async |all: Vec<JoinHandle<std::io::Result<(u64, u64)>>>| {
        let (mut served, mut refused) = (0, 0);
        for one in all {
            let (ok, not) = one.await.expect("no panic").expect("replies");
            (served, refused) = (served + ok, refused + not);
        }
        (served, refused)
    };
    let ((low, low_refused), (high, high_refused)) = (sum(low).await, sum(high).await);
    assert!(low_refused >= 200 && low > 0 && high > 0, "{low} {low_refused} {high}");
    assert_eq!(high_refused, 0);
    // Then all are served again. Each of these counts one.
    let mut asked = 0;
    let reply = loop {
        let reply = get(address, "/search", &[]).await;
        asked += u64::from(reply.status == 200);
        if reply.status == 200 && asked >= 20 {
            break reply;
        }
        assert!(Instant::now() < deadline + TIMEOUT, "{reply:?}");
    };
    assert_eq!(reply.remaining("day"), 100_000_000 - (low + high + asked) as i64);
    let refusals = "weir_route_refusals_total{route=\"search\",cause=\"overload\"}";
    assert!(weir.metric(refusals) >= low_refused, "{}", weir.metric(refusals));
}
