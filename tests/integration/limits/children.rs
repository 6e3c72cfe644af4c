//! Children of a limit: each gets what it is assured, and all together no more than was promised.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::harness::client::{self, get};
use crate::harness::cluster::Cluster;
use crate::harness::toml::simple;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

const CLIENTS: usize = 64;
const PARENT: u64 = 1_000;
const ASSURED: u64 = 100;
const CEILING: u64 = 700;
const CHILDREN: u64 = 3;

fn limit(algorithm: &str) -> String {
    format!(
        "name = \"company\", key = \"{{header.x-company}}\", {algorithm}, quota = {PARENT}, \
         children = {{ name = \"team\", key = \"{{header.x-team}}\", assured = {ASSURED}, ceiling = {CEILING} }}"
    )
}

/// Sends requests of one team to all proxies in turn.
async fn storm(proxies: &[SocketAddr], team: &'static str, each: usize) -> u64 {
    let fields = move |_, _| vec![("x-company", "acme".to_owned()), ("x-team", team.to_owned())];
    let tally = client::storm(proxies, CLIENTS, each, fields).await;
    tally.only(&[200, 429]);
    tally.count(200)
}

/// Sends requests until `team` has got `least`, and a few more. The last units may be in a lease of
/// a proxy that nobody asks for them, or on their way back from a request that another limit
/// refused: they come back.
async fn storm_until(proxies: &[SocketAddr], team: &'static str, least: u64) -> u64 {
    let started = Instant::now();
    let mut admitted = 0;
    while admitted < least && started.elapsed() < Duration::from_secs(30) {
        admitted += storm(proxies, team, 20).await;
    }
    admitted + storm(proxies, team, 2).await
}

/// Three teams over three proxies on a cluster: the first takes what it can get, and the others
/// still get what is theirs.
#[tokio::test]
async fn each_child_gets_what_is_assured_and_all_together_what_was_promised() {
    let (upstream, cluster) = (Upstream::start(), Cluster::start());
    for algorithm in [
        "algorithm = \"fixed_window\", period = \"30d\"",
        "algorithm = \"sliding_window_counter\", period = \"30d\"",
        "algorithm = \"quota\", calendar = \"forever\"",
        "algorithm = \"gcra\", period = \"400d\"",
        "algorithm = \"token_bucket\", period = \"400d\"",
    ] {
        let config = simple(&upstream.url(), &[&limit(algorithm)])
            .server("workers = 2")
            .redis("cluster", &cluster.addresses())
            .text();
        let proxies: Vec<Weir> = (0..3).map(|_| Weir::start(&config)).collect();
        let addresses: Vec<_> = proxies.iter().map(|proxy| proxy.http).collect();
        // Alone, it gets its ceiling: its own and what nobody else uses.
        assert_eq!(storm(&addresses, "red", 20).await, CEILING, "{algorithm}");
        // The parent has 300 left. Each of the other two is sure of 100, whatever is left.
        let (green, blue) =
            tokio::join!(storm(&addresses, "green", 20), storm(&addresses, "blue", 20));
        assert!(green >= ASSURED && blue >= ASSURED, "{algorithm}: {green} {blue}");
        // What was borrowed is never more than the parent had left.
        let all = CEILING + green + blue;
        assert!(all >= PARENT, "{algorithm}: {all}");
        assert!(all <= PARENT + CHILDREN * ASSURED, "{algorithm}: {all}");
        // Another one comes late, and gets its own.
        assert_eq!(storm(&addresses, "grey", 5).await, ASSURED, "{algorithm}");
        cluster.nodes.iter().for_each(|node| _ = node.connect().ask(&["FLUSHALL"]));
    }
}

/// The same with a parent that is leased, so that each team has a slot of its own.
#[tokio::test]
async fn children_of_a_leased_limit_get_what_is_assured_and_all_together_what_was_promised() {
    let (upstream, cluster) = (Upstream::start(), Cluster::start());
    for algorithm in [
        "algorithm = \"fixed_window\", period = \"30d\"",
        "algorithm = \"sliding_window_counter\", period = \"30d\"",
        "algorithm = \"quota\", calendar = \"forever\"",
        "algorithm = \"gcra\", period = \"400d\", burst = 1001",
        "algorithm = \"token_bucket\", period = \"400d\", burst = 1001",
    ] {
        let limit = limit(&format!("{algorithm}, lease = \"100ms\""));
        let config = simple(&upstream.url(), &[&limit])
            .server("workers = 2")
            .redis("cluster", &cluster.addresses())
            .text();
        let proxies: Vec<Weir> = (0..3).map(|_| Weir::start(&config)).collect();
        let addresses: Vec<_> = proxies.iter().map(|proxy| proxy.http).collect();
        assert_eq!(storm_until(&addresses, "red", CEILING).await, CEILING, "{algorithm}");
        let (green, blue) = tokio::join!(
            storm_until(&addresses, "green", ASSURED),
            storm_until(&addresses, "blue", ASSURED)
        );
        assert!(green >= ASSURED && blue >= ASSURED, "{algorithm}: {green} {blue}");
        let grey = storm_until(&addresses, "grey", ASSURED).await;
        assert!(grey >= ASSURED, "{algorithm}: {grey}");
        let all = CEILING + green + blue + grey;
        assert!(all <= PARENT + (CHILDREN + 1) * ASSURED, "{algorithm}: {all}");
        let granted =
            proxies.iter().map(|proxy| proxy.metric("weir_lease_calls_total{result=\"granted\"}"));
        assert!(granted.sum::<u64>() > 0, "{algorithm}: no lease");
        cluster.nodes.iter().for_each(|node| _ = node.connect().ask(&["FLUSHALL"]));
    }
}

#[tokio::test]
async fn a_child_is_one_limit_for_its_client_and_its_parent_refuses() {
    let upstream = Upstream::start();
    let config =
        simple(&upstream.url(), &[&limit("algorithm = \"fixed_window\", period = \"1d\"")]).text();
    let weir = Weir::start(&config);
    let red = [("x-company", "acme"), ("x-team", "red")];
    let first = get(weir.http, "/", &red).await;
    assert_eq!(first.status, 200);
    assert_eq!(first.header("ratelimit"), "\"team\";r=699;t=86400");
    assert_eq!(first.header("ratelimit-policy"), "\"team\";q=700;w=86400");
    assert_eq!(storm(&[weir.http], "red", 12).await, CEILING - 1);
    let full = get(weir.http, "/", &red).await;
    assert_eq!(full.status, 429);
    assert!(full.text().contains("\"team\""), "{}", full.text());
    // The parent has 300 left, of which the second team may have all.
    assert_eq!(storm(&[weir.http], "green", 12).await, PARENT - CEILING);
    let green = [("x-company", "acme"), ("x-team", "green")];
    let refused = get(weir.http, "/", &green).await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.remaining("team"), 0);
    assert!(refused.text().contains("\"team\"") && !refused.text().contains("company"));
    let refusals = |limit: &str| {
        weir.metric(&format!("weir_limit_refusals_total{{policy=\"public\",limit=\"{limit}\"}}"))
    };
    assert!(refusals("company") > 0 && refusals("team") > 0);
    assert_eq!(refusals("team.assured"), 0);
    // The third one is late, and gets what is its own.
    assert_eq!(storm(&[weir.http], "blue", 5).await, ASSURED);
}

#[tokio::test]
async fn mistakes_in_children_are_found_at_their_lines() {
    let upstream = Upstream::start();
    let of = |children: &str| {
        let limit = format!(
            "name = \"a\", algorithm = \"gcra\", quota = 10, period = \"1s\", children = {children}"
        );
        let (code, _, errors) =
            Weir::check(Weir::build(&simple(&upstream.url(), &[&limit]).text()));
        assert_eq!(code, 78, "{children}: {errors}");
        errors
    };
    let key = "key = \"{header.x-team}\"";
    for (children, expected) in [
        (format!("{{ {key} }}"), ["children: found no `assured`", "units in the limit's period"]),
        ("{ assured = 2 }".to_owned(), ["children: found no `key`", "where to find whose it is"]),
        (format!("{{ {key}, assured = 11 }}"), ["children.assured: found 11", "at most 10"]),
        (
            format!("{{ {key}, assured = 5, ceiling = 4 }}"),
            ["children.assured: found 5", "at most 4"],
        ),
        (
            format!("{{ {key}, assured = {{ quota = 5, burst = 0 }} }}"),
            ["children.assured: found 5", "at least the cost, 1"],
        ),
        (format!("{{ {key}, assured = 2, sealing = 4 }}"), ["children.sealing", "`ceiling`"]),
        (format!("{{ {key}, assured = 2, name = \"a\" }}"), ["children.name", "a second time"]),
        (
            format!("{{ {key}, assured = {{ quota = 2, burst = 4 }} }}, debt = 3"),
            ["debt: found 3", "at least 4"],
        ),
        ("5".to_owned(), ["children: found 5", "expected a table"]),
    ] {
        let errors = of(&children);
        for text in expected {
            assert!(errors.contains(text), "{children}: {errors}");
        }
    }
}
