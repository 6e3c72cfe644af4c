//! From start to signal: requests in flight are finished, and the process ends properly.

use rustix::process::Signal;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::harness::client::{Client, Failure, get};
use crate::harness::cluster::Cluster;
#[cfg(target_os = "linux")]
use crate::harness::eventually;
#[cfg(target_os = "linux")]
use crate::harness::held::HeldCalls;
use crate::harness::redis::Redis;
#[cfg(target_os = "linux")]
use crate::harness::toml::Toml;
use crate::harness::toml::simple;
use crate::harness::upstream::Upstream;
#[cfg(target_os = "linux")]
use crate::harness::weir::Builder;
use crate::harness::weir::Weir;
use crate::harness::{eventually_async, free_address};

const LIMIT: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 1000, period = \"1d\"";

/// A request that waits at the upstream until [`Upstream::release`]. Yields its status.
async fn held_request(weir: &Weir, upstream: &Upstream) -> JoinHandle<Result<u16, Failure>> {
    upstream.hold();
    let mut client = Client::connect(weir.http).await.unwrap();
    let held = tokio::spawn(async move { client.get("/", &[]).await.map(|reply| reply.status) });
    eventually_async("the request waits at the upstream", async || {
        if upstream.count() == 1 { Ok(()) } else { Err("not yet".into()) }
    })
    .await;
    held
}

/// Waits until no connection is accepted any more.
async fn no_longer_accepts(weir: &Weir) {
    eventually_async("connections are refused", async || {
        match TcpStream::connect(weir.http).await {
            Ok(_) => Err("connected".into()),
            Err(_) => Ok(()),
        }
    })
    .await;
}

/// A proxy whose system calls `held` can hold up.
#[cfg(target_os = "linux")]
fn with_held_calls(held: &HeldCalls, config: &Toml) -> Builder {
    let build = Weir::build(&config.text());
    held.environment().iter().fold(build, |build, (name, value)| build.environment(name, value))
}

async fn a_signal_lets_requests_finish(signal: Signal) {
    let upstream = Upstream::start();
    upstream.answer(200, &[], "x".repeat(300_000));
    let mut weir = Weir::start(&simple(&upstream.url(), &[LIMIT]).text());
    // Eight requests that wait for the upstream, and eight idle connections.
    let mut idle = Vec::new();
    for _ in 0..8 {
        let mut client = Client::connect(weir.http).await.unwrap();
        assert_eq!(client.get("/", &[]).await.unwrap().status, 200);
        idle.push(client);
    }
    upstream.hold();
    let mut under_way = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let address = weir.http;
        under_way.spawn(async move { Client::connect(address).await?.get("/", &[]).await });
    }
    // The runtime must run while we wait.
    eventually_async("all eight wait at the upstream", async || {
        let count = upstream.count();
        if count == 16 { Ok(()) } else { Err(count.to_string()) }
    })
    .await;
    weir.signal(signal);
    no_longer_accepts(&weir).await;
    assert!(weir.running(), "requests are under way");
    upstream.release();
    while let Some(reply) = under_way.join_next().await {
        let reply =
            reply.unwrap().unwrap_or_else(|error| panic!("a request under way was cut: {error}"));
        assert_eq!((reply.status, reply.body.len()), (200, 300_000));
    }
    let status = weir.exit();
    assert_eq!(status.code(), Some(0), "{status:?}");
    drop(idle);
}

#[tokio::test]
async fn sigterm_finishes_what_is_under_way_and_exits_0() {
    a_signal_lets_requests_finish(Signal::TERM).await;
}

#[tokio::test]
async fn sigint_finishes_what_is_under_way_and_exits_0() {
    a_signal_lets_requests_finish(Signal::INT).await;
}

#[tokio::test]
async fn sigquit_finishes_what_is_under_way_and_exits_0() {
    a_signal_lets_requests_finish(Signal::QUIT).await;
}

#[tokio::test]
async fn sigusr1_is_said_to_do_nothing() {
    let upstream = Upstream::start();
    let weir = Weir::start(&simple(&upstream.url(), &[LIMIT]).text());
    weir.signal(Signal::USR1);
    weir.output().await_text("SIGUSR1 does nothing");
    assert_eq!(get(weir.http, "/", &[]).await.status, 200);
}

/// Between the first connection and the moment when it watches for changes.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_signal_right_after_the_start_lets_requests_finish_too() {
    let (held, upstream) = (HeldCalls::new(), Upstream::start());
    held.wait("inotify_init1");
    let mut weir = with_held_calls(&held, &simple(&upstream.url(), &[LIMIT])).spawn();
    let listeners = eventually("it listens, and begins to watch", || {
        let listeners = weir.listeners();
        let ready = held.reached() && !listeners.is_empty();
        if ready { Ok(listeners) } else { Err(weir.output().tail(5)) }
    });
    assert_eq!(get(listeners[0], "/", &[]).await.status, 200);
    weir.signal(Signal::TERM);
    held.restore("inotify_init1");
    let status = weir.exit();
    assert_eq!(status.code(), Some(0), "{status:?}");
}

#[tokio::test]
async fn requests_beyond_the_grace_period_do_not_keep_the_process() {
    let upstream = Upstream::start();
    let mut weir = Weir::start(
        &simple(&upstream.url(), &[LIMIT])
            .server("shutdown_grace = \"200ms\"")
            .text()
            .replace("access = \"off\"", "access = \"all\""),
    );
    let held = held_request(&weir, &upstream).await;
    weir.signal(Signal::TERM);
    let status = weir.exit();
    assert_eq!(status.code(), Some(1), "it says that something was cut: {status:?}");
    assert!(held.await.unwrap().is_err());
    // The client waited to the end, so it is not logged as gone.
    let line = &weir.output().await_events("request", 1)[0];
    assert_eq!((&line["status"], &line["failure"]), (&503.into(), &"shutdown".into()), "{line}");
}

#[tokio::test]
async fn a_second_signal_cuts_what_is_in_flight_and_no_count_is_forgotten() {
    let upstream = Upstream::start();
    let store = "[store.embedded]\nsnapshot = \"weir.snapshot\"\nsnapshot_every = \"1h\"\n";
    let config = simple(&upstream.url(), &[LIMIT]).server("shutdown_grace = \"1h\"").more(store);
    let mut weir = Weir::start(&config.text().replace("access = \"off\"", "access = \"all\""));
    let held = held_request(&weir, &upstream).await;
    weir.signal(Signal::TERM);
    let said = |weir: &Weir, what: &str| {
        weir.output()
            .events()
            .iter()
            .any(|event| event["message"].as_str().is_some_and(|text| text.starts_with(what)))
    };
    eventually_async("the shutdown has begun", async || {
        if said(&weir, "shutting down") { Ok(()) } else { Err(weir.output().tail(5)) }
    })
    .await;
    weir.signal(Signal::INT);
    assert_eq!(weir.exit().code(), Some(1));
    assert!(held.await.unwrap().is_err());
    eventually_async("what it says of the signal", async || {
        if said(&weir, "a second signal") { Ok(()) } else { Err(weir.output().tail(5)) }
    })
    .await;
    let line = &weir.output().await_events("request", 1)[0];
    assert_eq!((&line["status"], &line["failure"]), (&503.into(), &"shutdown".into()), "{line}");
    let saved = &weir.output().await_events("counters saved", 1)[0];
    assert_eq!(saved["counters"], 1, "{saved}");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_disk_that_hangs_is_said_and_holds_no_second_signal() {
    let (held, upstream) = (HeldCalls::new(), Upstream::start());
    let store = "[store.embedded]\nsnapshot = \"held.snapshot\"\nsnapshot_every = \"1h\"\n";
    let config = simple(&upstream.url(), &[LIMIT]).more(store);
    let mut weir = with_held_calls(&held, &config).start();
    held.hold_files();
    assert_eq!(get(weir.http, "/", &[]).await.status, 200);
    weir.signal(Signal::TERM);
    weir.output().await_text("the shutdown waits for counters to be saved");
    assert!(weir.running());
    weir.signal(Signal::TERM);
    assert_eq!(weir.exit().code(), Some(1));
    weir.output().await_text("counts since the last snapshot are lost");
}

/// A process with calls that never return. The preloaded library would work elsewhere, but is built
/// only on Linux.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_resolver_that_never_answers_does_not_hold_the_exit() {
    let held = HeldCalls::new();
    let config = simple("http://hung.example:80", &[LIMIT]).server("shutdown_grace = \"5s\"");
    let mut weir = with_held_calls(&held, &config).start();
    assert_eq!(
        get(weir.http, "/", &[]).await.status,
        504,
        "the lookup takes longer than connecting may"
    );
    assert!(held.reached());
    weir.signal(Signal::TERM);
    let status = weir.exit();
    assert_eq!(status.code(), Some(0), "nothing was cut: {status:?}");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_reload_under_way_does_not_delay_a_shutdown() {
    let (held, upstream) = (HeldCalls::new(), Upstream::start());
    let config = simple(&upstream.url(), &[LIMIT]).more(
        "[[refusals]]\nstatus = [503]\ncontent_type = \"text/html\"\nbody_file = \"held.html\"\n",
    );
    let mut weir = with_held_calls(&held, &config).file("held.html", b"busy").start();
    let under_way = held_request(&weir, &upstream).await;
    held.hold_files();
    weir.signal(Signal::HUP);
    eventually_async("the reload reads the file", async || {
        if held.reached() { Ok(()) } else { Err("not yet".into()) }
    })
    .await;
    weir.signal(Signal::TERM);
    no_longer_accepts(&weir).await;
    upstream.release();
    assert_eq!(under_way.await.unwrap().unwrap(), 200);
    let status = weir.exit();
    assert_eq!(status.code(), Some(0), "{status:?}");
}

#[tokio::test]
async fn an_address_that_is_taken_ends_the_start_with_its_name() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let upstream = Upstream::start();
    let config =
        simple(&upstream.url(), &[LIMIT]).text().replacen("127.0.0.1:0", &address.to_string(), 1);
    let (code, out, err) = Weir::build(&config).run();
    assert_eq!(code, 1, "{out}{err}");
    assert!(format!("{out}{err}").contains(&address.to_string()), "{out}{err}");
}

#[tokio::test]
async fn a_proxy_starts_before_its_store_and_its_upstream_do() {
    let weir = Weir::start(
        &simple(&format!("http://{}", free_address()), &[LIMIT])
            .redis("single", &[free_address()])
            .text(),
    );
    assert_eq!(weir.admin_page("/live").status, 200);
    assert_eq!(weir.admin_page("/ready").status, 503);
}

#[tokio::test]
async fn counters_in_redis_outlive_the_proxies() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let config = simple(&upstream.url(), &[LIMIT]).redis("single", &[redis.address]).text();
    for turn in 1..=3 {
        let weir = Weir::start(&config);
        assert_eq!(get(weir.http, "/", &[]).await.remaining("day"), 1000 - turn);
    }
}

#[tokio::test]
async fn every_counter_expires_some_time_after_it_means_nothing() {
    let (upstream, cluster) = (Upstream::start(), Cluster::start());
    let limits = ["fixed_window", "gcra", "token_bucket"].map(|algorithm| {
        format!("name = \"{algorithm}\", algorithm = \"{algorithm}\", quota = 10, period = \"10s\"")
    });
    let config = simple(&upstream.url(), &limits.each_ref().map(String::as_str))
        .redis("cluster", &cluster.addresses());
    let weir = Weir::start(&config.text());
    assert_eq!(get(weir.http, "/", &[]).await.status, 200);
    assert_eq!(cluster.keys(), 3);
    for node in &cluster.nodes {
        let mut connection = node.connect();
        let crate::harness::redis::Value::List(keys) = connection.ask(&["KEYS", "*"]) else {
            panic!("no list")
        };
        for key in keys {
            let ttl_ms: i64 = connection.ask(&["PTTL", &key.text()]).text().parse().unwrap();
            // Redis expires keys at whole milliseconds, and an instant between two is rounded up.
            assert!(
                (1..=21_001).contains(&ttl_ms),
                "{key:?} lives for {ttl_ms} ms: at most its meaning, a period and a second"
            );
        }
    }
}
