//! When the store fails: requests are refused or let through as configured, this is counted and
//! visible, and nothing is charged twice.

use std::net::SocketAddr;

use crate::harness::client::{Client, get};
use crate::harness::cluster::Cluster;
use crate::harness::cut::Cutter;
use crate::harness::redis::Redis;
use crate::harness::toml::{Toml, simple};
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;
use crate::harness::{eventually_async, free_address};

const LIMIT: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 1000, period = \"1d\"";
const DEGRADED: &str = "weir_store_degraded_total{policy=\"public\"}";

/// Cuts the connection of one take after Redis has run it, and checks that it is charged once. A
/// new connection runs at most this many scripts of its own (`checks`), with EVAL.
async fn a_cut_take_stands_once(config: &Toml, cutter: &Cutter, redis: &Redis, checks: u64) {
    let weir = Weir::start(&config.text());
    let mut client = Client::connect(weir.http).await.unwrap();
    // Before the cut, every worker connects and Redis learns every script, so that what is cut is a
    // take and nothing else.
    let mut admitted = 0;
    for _ in 0..20 {
        let mut client = Client::connect(weir.http).await.unwrap();
        let reply = client.get("/", &[]).await.unwrap();
        assert_eq!(reply.status, 200, "{reply:?}");
        admitted += 1;
        assert_eq!(reply.remaining("day"), 1000 - admitted);
    }
    let warm = client.get("/", &[]).await.unwrap();
    admitted += 1;
    assert_eq!(warm.remaining("day"), 1000 - admitted);

    let (takes, others) = (
        |redis: &Redis| redis.connect().calls("evalsha"),
        |redis: &Redis| redis.connect().calls("eval"),
    );
    let (before, others_before) = (takes(redis), others(redis));
    cutter.cut_next_script();
    let cut = client.get("/", &[]).await.unwrap();
    assert_eq!(
        (cut.status, cutter.cuts()),
        (503, 1),
        "its outcome is unknown, and the configuration denies then: {cut:?}"
    );
    assert_eq!(takes(redis), before + 1, "Redis ran it, and ran it once");
    assert_eq!(weir.metric("weir_takes_unknown_total"), 1);

    let next = eventually_async("requests are admitted again", async || {
        let reply = get(weir.http, "/", &[]).await;
        if reply.status == 200 { Ok(reply) } else { Err(format!("{reply:?}")) }
    })
    .await;
    assert_eq!(
        next.remaining("day"),
        1000 - admitted - 1 - 1,
        "one for the cut take, one for this one"
    );
    assert_eq!(takes(redis), before + 2, "nothing was sent again");
    // Whether the worker has its connection back by now is a matter of time.
    assert!(others(redis) <= others_before + checks, "nor with its source");
}

#[tokio::test]
async fn a_connection_cut_after_the_send_is_charged_once() {
    let (upstream, cutter, redis) = (Upstream::start(), Cutter::start(), Redis::start());
    cutter.forward_to(redis.address);
    let config = simple(&upstream.url(), &[LIMIT]).redis("single", &[cutter.address]);
    // It checks that the server is a master.
    a_cut_take_stands_once(&config, &cutter, &redis, 1).await;
}

#[tokio::test]
async fn on_a_cluster_a_connection_cut_after_the_send_is_charged_once() {
    let (upstream, cutter) = (Upstream::start(), Cutter::start());
    // The node announces the cutter's port, so that every connection goes through it.
    let cluster = Cluster::of(1, &["--cluster-announce-port", &cutter.address.port().to_string()]);
    cutter.forward_to(cluster.nodes[0].address);
    let config = simple(&upstream.url(), &[LIMIT]).redis("cluster", &[cutter.address]);
    a_cut_take_stands_once(&config, &cutter, &cluster.nodes[0], 0).await;
}

fn nowhere(mode: &str, on_store_error: &str, upstream: &Upstream, node: SocketAddr) -> Toml {
    simple(&upstream.url(), &[LIMIT]).redis_within(mode, &[node], on_store_error, "500ms")
}

#[tokio::test]
async fn without_a_store_deny_answers_503_and_the_upstream_sees_nothing() {
    for mode in ["single", "cluster"] {
        let (upstream, node) = (Upstream::start(), free_address());
        let weir = Weir::start(&nowhere(mode, "deny", &upstream, node).text());
        for _ in 0..5 {
            let reply = get(weir.http, "/", &[]).await;
            assert_eq!(reply.status, 503, "{mode}: {reply:?}");
            assert_eq!(reply.header("content-type"), "application/problem+json");
            assert_eq!(reply.header("weir-degraded"), "");
            let seconds: u64 = reply.header("retry-after").parse().expect("Retry-After");
            assert!((1..=4).contains(&seconds), "{seconds}");
        }
        assert_eq!(upstream.count(), 0);
        assert_eq!(weir.metric(DEGRADED), 0);
        assert!(
            weir.admin_page("/metrics").text().contains("weir_store_errors_total{cause="),
            "{}",
            weir.admin_page("/metrics").text()
        );
        let ready = weir.admin_page("/ready");
        assert_eq!(ready.status, 503, "a proxy that can only refuse takes no traffic");
        assert!(
            ready.text().starts_with(&format!("the store failed: connection: Redis {node} (")),
            "{ready:?}"
        );
        assert_eq!(weir.admin_page("/live").status, 200);
        // Also where no request has come yet.
        let silent = Weir::start(&nowhere(mode, "deny", &upstream, node).text());
        let message = "the store does not answer: all limits follow on_store_error until it does";
        let lines = silent.output().await_events(message, 1);
        assert_eq!(lines[0]["cause"], "connection", "{lines:?}");
        assert!(lines[0]["error"].as_str().is_some_and(|error| error.contains(&node.to_string())));
    }
}

#[test]
fn a_store_that_comes_late_is_reported_wherever_it_is() {
    const AWAY: &str = "the store does not answer: all limits follow on_store_error until it does";
    const ANSWERS: &str = "the store answers";
    let (upstream, mut redis) = (Upstream::start(), Redis::start());
    let config = |node| nowhere("single", "deny", &upstream, node).text();
    redis.kill();
    let waiting = Weir::start(&config(redis.address));
    let moving = Weir::start(&config(free_address()));
    for weir in [&waiting, &moving] {
        weir.output().await_events(AWAY, 1);
    }
    redis.start_again();
    waiting.output().await_events(ANSWERS, 1);
    // The one that is asked is the one that the configuration names now.
    assert!(!moving.output().says(ANSWERS));
    moving.reload(&config(redis.address), "applied");
    moving.output().await_events(ANSWERS, 1);
}

#[tokio::test]
async fn without_a_store_allow_lets_through_and_says_so() {
    for mode in ["single", "cluster"] {
        let upstream = Upstream::start();
        let weir = Weir::start(&nowhere(mode, "allow", &upstream, free_address()).text());
        for turn in 1..=5 {
            let reply = get(weir.http, "/", &[]).await;
            assert_eq!(reply.status, 200, "{mode}: {reply:?}");
            assert_eq!(reply.header("weir-degraded"), "store");
            assert_eq!(
                reply.header("ratelimit"),
                "",
                "nothing was counted, so nothing can be told"
            );
            assert_eq!(weir.metric(DEGRADED), turn);
        }
        let ready = weir.admin_page("/ready");
        assert_eq!(
            ready.status, 200,
            "a balancer must not take away what was told to go on: {ready:?}"
        );
        assert_eq!(upstream.count(), 5);
    }
}

#[tokio::test]
async fn a_store_that_comes_back_counts_again() {
    let (upstream, mut redis) = (Upstream::start(), Redis::start());
    let weir = Weir::start(&nowhere("single", "deny", &upstream, redis.address).text());
    assert_eq!(get(weir.http, "/", &[]).await.status, 200);
    redis.kill();
    eventually_async("requests are refused", async || {
        let status = get(weir.http, "/", &[]).await.status;
        if status == 503 { Ok(()) } else { Err(status.to_string()) }
    })
    .await;
    for _ in 0..10 {
        assert_eq!(get(weir.http, "/", &[]).await.status, 503);
    }
    let failing = "a Redis shard is failing: the limits on it follow on_store_error";
    let fails = weir.output().await_events(failing, 1);
    assert_eq!(fails.len(), 1, "{fails:?}");
    assert_eq!(fails[0]["node"], redis.address.to_string());
    assert_eq!(fails[0]["cause"], "connection");
    assert!(fails[0]["remedy"].as_str().is_some_and(|remedy| !remedy.is_empty()));
    redis.start_again();
    eventually_async("requests are admitted", async || {
        let status = get(weir.http, "/", &[]).await.status;
        if status == 200 { Ok(()) } else { Err(status.to_string()) }
    })
    .await;
    let serves = weir.output().await_events("a Redis shard is serving again", 1);
    assert_eq!(serves.len(), 1, "{serves:?}");
    assert!(serves[0]["failed_calls"].as_u64().is_some_and(|failed| failed > 10), "{serves:?}");
    eventually_async("the proxy is ready", async || {
        let page = weir.admin_page("/ready");
        if page.status == 200 { Ok(()) } else { Err(page.text()) }
    })
    .await;
}

#[tokio::test]
async fn slots_without_a_master_fail_in_one_line_until_they_have_one() {
    let (upstream, cluster) =
        (Upstream::start(), Cluster::of(3, &["--cluster-require-full-coverage", "no"]));
    let limit = format!("{LIMIT}, key = \"{{header.x-key}}\"");
    let config = simple(&upstream.url(), &[&limit]).redis("cluster", &cluster.addresses());
    let weir = Weir::start(&config.text());
    // One of the first node's own.
    let slots = ["0", "3000"];
    let all = async || {
        let mut failed = 0;
        for number in 0..40 {
            let reply = get(weir.http, "/", &[("x-key", &number.to_string())]).await;
            assert!(matches!(reply.status, 200 | 503), "{reply:?}");
            failed += usize::from(reply.status == 503);
        }
        failed
    };
    assert_eq!(all().await, 0);
    for node in &cluster.nodes {
        node.connect().ask(&["CLUSTER", "DELSLOTSRANGE", slots[0], slots[1]]);
    }
    eventually_async("keys have no master", async || {
        let failed = all().await;
        if failed > 0 { Ok(()) } else { Err(format!("{failed}")) }
    })
    .await;
    let failing = "a Redis shard is failing: the limits on it follow on_store_error";
    let serving = "a Redis shard is serving again";
    let unowned = |message: &str| {
        let events = weir.output().await_events(message, 1).into_iter();
        events.filter(|event| event["node"] == "slots without a master").count()
    };
    // The owners are read meanwhile, again and again.
    let mut failed = 0;
    while failed < 100 {
        failed += all().await;
    }
    assert_eq!(unowned(failing), 1);
    let events = weir.output().events();
    assert!(!events.iter().any(|event| event["message"] == serving), "{events:?}");
    cluster.nodes[0].connect().ask(&["CLUSTER", "ADDSLOTSRANGE", slots[0], slots[1]]);
    eventually_async("all keys have a master", async || {
        let failed = all().await;
        if failed == 0 { Ok(()) } else { Err(format!("{failed}")) }
    })
    .await;
    assert_eq!((unowned(serving), unowned(failing)), (1, 1));
}

#[tokio::test]
async fn without_a_store_local_counts_this_proxys_share_and_says_so() {
    let (upstream, mut redis) = (Upstream::start(), Redis::start());
    let limit = "name = \"day\", algorithm = \"fixed_window\", quota = 10, period = \"1d\"";
    let config = simple(&upstream.url(), &[limit])
        .redis_within("single", &[redis.address], "local", "500ms")
        .share("1/2");
    let weir = Weir::start(&config.text());
    let reply = get(weir.http, "/", &[]).await;
    assert_eq!((reply.status, reply.remaining("day")), (200, 9));
    assert_eq!(reply.header("weir-degraded"), "");
    redis.kill();
    let reply = get(weir.http, "/", &[]).await;
    assert_eq!((reply.status, reply.remaining("day")), (200, 4), "half of it: {reply:?}");
    assert_eq!(reply.header("weir-degraded"), "local");
    for left in (0..4).rev() {
        assert_eq!(get(weir.http, "/", &[]).await.remaining("day"), left);
    }
    let refused = get(weir.http, "/", &[]).await;
    assert_eq!(refused.status, 429, "{refused:?}");
    assert!(!refused.header("retry-after").is_empty(), "{refused:?}");
    let decisions = |decision: &str| {
        weir.metric(&format!("weir_decisions_total{{policy=\"public\",decision=\"{decision}\"}}"))
    };
    assert_eq!((decisions("local"), decisions("refused"), decisions("degraded")), (5, 1, 0));
    let ready = weir.admin_page("/ready");
    assert_eq!(ready.status, 200, "it limits: {ready:?}");
    redis.start_again();
    // It came back empty. What was admitted meanwhile is charged.
    eventually_async("five units are handed back", async || {
        let reply = get(weir.http, "/", &[]).await;
        let back = reply.status == 200 && reply.header("weir-degraded").is_empty();
        if back && reply.remaining("day") <= 4 { Ok(()) } else { Err(format!("{reply:?}")) }
    })
    .await;
}

#[tokio::test]
async fn a_cluster_that_loses_a_master_still_serves_the_callers_of_the_others() {
    let (upstream, mut cluster) = (Upstream::start(), Cluster::start());
    let by_tenant = format!("{LIMIT}, key = \"{{header.x-tenant}}\"");
    let config = simple(&upstream.url(), &[&by_tenant]).redis_within(
        "cluster",
        &cluster.addresses(),
        "deny",
        "2s",
    );
    let weir = Weir::start(&config.text());
    let names: Vec<String> = (0..30).map(|number| format!("t{number}")).collect();
    // Which callers are counted where: on the master whose number of keys grew.
    let mut on_first = Vec::new();
    for name in &names {
        let size = || cluster.nodes[0].connect().ask(&["DBSIZE"]).text();
        let before = size();
        assert_eq!(get(weir.http, "/", &[("x-tenant", name)]).await.status, 200);
        if size() != before {
            on_first.push(name.clone());
        }
    }
    assert!(
        !on_first.is_empty() && on_first.len() < names.len(),
        "30 callers on one shard: {on_first:?}"
    );
    cluster.nodes[0].kill();
    let (lost, dead) = (&on_first[0], cluster.nodes[0].address.to_string());
    eventually_async("callers of the lost shard are refused", async || {
        let status = get(weir.http, "/", &[("x-tenant", lost)]).await.status;
        if status == 503 { Ok(()) } else { Err(status.to_string()) }
    })
    .await;
    for name in names.iter().filter(|name| !on_first.contains(name)) {
        let kept = eventually_async("callers of the other shards are admitted", async || {
            let reply = get(weir.http, "/", &[("x-tenant", name)]).await;
            if reply.status == 200 { Ok(reply) } else { Err(format!("{reply:?}")) }
        })
        .await;
        assert!(kept.remaining("day") < 999, "a lost counter: {kept:?}");
    }
    eventually_async("one line about the shard", async || {
        let _ = get(weir.http, "/", &[("x-tenant", lost)]).await;
        let events = weir.output().events();
        let message = "a Redis shard is failing: the limits on it follow on_store_error";
        let nodes: Vec<_> = events
            .iter()
            .filter(|event| event["message"] == message)
            .map(|event| event["node"].as_str().unwrap_or_default())
            .collect();
        if nodes == [&dead] { Ok(()) } else { Err(format!("{nodes:?}")) }
    })
    .await;
}

/// So that a single request can be explained: the metrics only count.
#[tokio::test]
async fn the_access_log_tells_why_a_counter_could_not_be_reached() {
    let upstream = Upstream::start();
    for (on_store_error, decision) in
        [("deny", "unavailable"), ("allow", "degraded"), ("local", "local")]
    {
        let config = simple(&upstream.url(), &[LIMIT])
            .redis_within("single", &[free_address()], on_store_error, "1s")
            .share("1/2");
        let config = config.text().replace("access = \"off\"", "access = \"all\"");
        let weir = Weir::start(&config);
        let _ = get(weir.http, "/", &[]).await;
        let line = eventually_async("the request is logged", async || {
            let lines = weir.output().lines();
            let line = lines.into_iter().find(|line| line.contains("\"message\":\"request\""));
            line.ok_or_else(|| weir.output().tail(20))
        })
        .await;
        let expected = format!("\"decision\":\"{decision}\"");
        assert!(line.contains(&expected), "{line}");
        assert!(line.contains("\"store_failure\":\"connection\""), "{line}");
    }
}
