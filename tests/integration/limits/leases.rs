//! Limits with leases: proxies take several units from Redis at once, and the limit is kept.

use std::time::Instant;

use rustix::process::Signal;

use crate::harness::client::{self, get};
use crate::harness::cluster::Cluster;
use crate::harness::counting::Counting;
use crate::harness::eventually_async;
use crate::harness::redis::Redis;
use crate::harness::toml::simple;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

const CLIENTS: usize = 64;
/// Of each of the three proxies.
const WORKERS: usize = 2;

/// The part of a limit before its lease.
const LIMITS: [&str; 4] = [
    "algorithm = \"fixed_window\", quota = 3000, period = \"30d\"",
    "algorithm = \"sliding_window_log\", quota = 3000, period = \"30d\"",
    "algorithm = \"sliding_window_buckets\", quota = 3000, period = \"30d\"",
    // The burst at the store is smaller by what flows in during a life, rounded up: one unit.
    "algorithm = \"gcra\", quota = 3001, period = \"30d\"",
];

/// More requests than the limit has units, over three proxies on a cluster: never one too many. A
/// proxy that gets no processor for as long as its lease lives loses what it had left, so a few may
/// be missing.
#[tokio::test]
async fn three_proxies_admit_what_the_limit_says_with_few_calls() {
    let (upstream, cluster) = (Upstream::start(), Cluster::start());
    for limit in LIMITS {
        let limit = format!("name = \"all\", key = \"all\", {limit}, lease = \"300ms\"");
        let config = simple(&upstream.url(), &[&limit])
            .server(&format!("workers = {WORKERS}"))
            .redis("cluster", &cluster.addresses())
            .text();
        let proxies: Vec<Weir> = (0..3).map(|_| Weir::start(&config)).collect();
        for proxy in &proxies {
            get(proxy.http, "/", &[("x-warm", "up")]).await;
        }
        let addresses: Vec<_> = proxies.iter().map(|proxy| proxy.http).collect();
        let begun = Instant::now();
        let tally = client::storm(&addresses, CLIENTS, 120, |_, _| Vec::new()).await;
        let over_ms = begun.elapsed().as_millis() as u64 + 1;
        tally.only(&[200, 429]);
        let admitted = tally.count(200) + 3;
        assert!((2_940..=3_000).contains(&admitted), "{limit}: {admitted}");
        let calls = |result: &str| -> u64 {
            let calls = format!("weir_lease_calls_total{{result=\"{result}\"}}");
            proxies.iter().map(|proxy| proxy.metric(&calls)).sum()
        };
        let (granted, refused, failed) = (calls("granted"), calls("refused"), calls("failed"));
        // One call for five units at least; and each worker asks once in a millisecond at most
        // for a limit that is used up.
        assert!((1..600).contains(&(granted + failed)), "{limit}: {granted} and {failed} calls");
        let most = (proxies.len() * WORKERS) as u64 * over_ms;
        assert!(refused <= most, "{limit}: {refused} refused calls in {over_ms} ms");
        cluster.nodes.iter().for_each(|node| _ = node.connect().ask(&["FLUSHALL"]));
    }
}

/// Places that a proxy has in advance are used again and again, and the upstream never has more
/// requests than may be.
#[tokio::test]
async fn over_three_proxies_with_leased_places_no_more_are_in_flight_than_may_be() {
    let (upstream, cluster) = (Counting::start(), Cluster::start());
    let limit = "name = \"flight\", key = \"all\", algorithm = \"concurrency\", quota = 12, lease = \"200ms\"";
    let config = simple(&upstream.url(), &[limit])
        .server(&format!("workers = {WORKERS}"))
        .redis("cluster", &cluster.addresses())
        .text();
    let proxies: Vec<Weir> = (0..3).map(|_| Weir::start(&config)).collect();
    let addresses: Vec<_> = proxies.iter().map(|proxy| proxy.http).collect();
    let how = |client: usize, turn: usize| {
        let slow = (client + turn).is_multiple_of(4).then(|| ("x-do", "slow".to_owned()));
        slow.into_iter().collect()
    };
    let tally = client::storm(&addresses, CLIENTS, 60, how).await;
    tally.only(&[200, 429]);
    let (admitted, most) = (tally.count(200), upstream.of("").in_flight_most);
    assert!((1..=12).contains(&most), "{most} were in flight, and {admitted} were admitted");
    assert_eq!(upstream.of("").arrived, admitted);
    let calls = "weir_lease_calls_total{result=\"granted\"}";
    assert!(proxies.iter().any(|proxy| proxy.metric(calls) > 0));
}

#[tokio::test]
async fn a_lease_is_seen_by_the_client_and_the_operator_and_ends_with_the_process() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let limit = "name = \"all\", key = \"all\", algorithm = \"fixed_window\", quota = 5000, period = \"1d\", lease = \"1m\"";
    let config = simple(&upstream.url(), &[limit]).redis("single", &[redis.address]).text();
    let mut weir = Weir::start(&config);
    let taken = "weir_lease_units_total{event=\"taken\"}";
    let mut admitted = 0;
    let reply = eventually_async("a lease", async || {
        let reply = get(weir.http, "/", &[]).await;
        admitted += 1;
        if weir.metric(taken) > 0 { Ok(reply) } else { Err("none".to_owned()) }
    })
    .await;
    assert_eq!(reply.status, 200);
    // What is left of the lease, and how much longer it may be spent.
    let left = reply.remaining("all");
    assert!((0..5_000 - admitted).contains(&left), "{left}");
    let file = weir.folder().join("proxy.toml");
    let arguments = ["--policy", "public", "--limit", "all", "--key", "all", "--config"];
    let show = || {
        let mut all = vec!["key", "show"];
        all.extend(arguments);
        all.push(file.to_str().expect("text"));
        Weir::with_arguments(&all).run()
    };
    let (code, shown, _) = show();
    assert_eq!(code, 0, "{shown}");
    assert!(shown.contains(" units leased to ") && shown.contains(", for "), "{shown}");
    weir.signal(Signal::TERM);
    assert!(weir.exit().success());
    let (_, shown, _) = show();
    assert!(
        shown.contains(&format!("fixed_window: {admitted} of 5000 used")),
        "{admitted}: {shown}"
    );
}

#[tokio::test]
async fn a_lease_that_a_limit_cannot_have_is_an_error_at_its_line() {
    let upstream = Upstream::start();
    let limit = "name = \"a\", algorithm = \"gcra\", quota = 1000, period = \"1s\", burst = 100, lease = \"200ms\"";
    let (code, _, errors) = Weir::check(Weir::build(&simple(&upstream.url(), &[limit]).text()));
    assert_eq!(code, 78, "{errors}");
    for text in ["config.limits[0].lease: found 200 ms", "expected at most 98.980 ms: the burst is"]
    {
        assert!(errors.contains(text), "{errors}");
    }
}
