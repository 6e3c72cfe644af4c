//! At full speed, in the log's order: daily quotas, of which nothing is refilled during a test. The
//! result of a client's nth request then depends only on n, and on no clock.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::log::{Line, Log};
use super::oracle::Rule;
use crate::harness::client::Client;
use crate::harness::cluster::Cluster;
use crate::harness::toml::Toml;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

const DAY_S: i64 = 86_400;
/// Connections of a replay. Each client's requests stay on one of them, in order.
const CONNECTIONS: usize = 8;

/// Each path's limits, and how many requests of a client they admit: the smallest of them. A bucket
/// refills at most one unit in an hour.
fn limits() -> Vec<(&'static str, Vec<String>, u64)> {
    let window = |quota| Rule::Window { quota, period_s: DAY_S };
    let bucket = |burst| Rule::Bucket { quota: 24, period_s: DAY_S, burst };
    vec![
        ("window", vec![window(5).toml("day", "fixed_window")], 5),
        ("gcra", vec![bucket(12).toml("burst", "gcra")], 12),
        ("bucket", vec![bucket(20).toml("burst", "token_bucket")], 20),
        (
            "several",
            vec![
                window(9).toml("day", "fixed_window"),
                bucket(7).toml("burst", "gcra"),
                bucket(8).toml("more", "token_bucket"),
            ],
            7,
        ),
    ]
}

fn config(url: &str) -> Toml {
    let mut toml = Toml::new().server("trusted_proxies = [\"127.0.0.1\"]").upstream("api", url, "");
    for (name, limits, _) in limits() {
        let limits: Vec<&str> = limits.iter().map(String::as_str).collect();
        toml = toml.policy(name, &limits).route(&format!(
            "name = \"{name}\"\npath = \"/{name}\"\nupstream = \"api\"\npolicy = \"{name}\""
        ));
    }
    toml
}

/// Sends each line to each path, and returns the statuses by path and client, in the log's order.
async fn replay(log: &Arc<Log>, weirs: &[&Weir]) -> BTreeMap<(&'static str, String), Vec<u16>> {
    let clients: Vec<String> = log.clients().keys().map(ToString::to_string).collect();
    let mine = Arc::new(move |line: &Line| {
        clients.binary_search(&line.client).expect("a client of the log") % CONNECTIONS
    });
    let mut tasks = tokio::task::JoinSet::new();
    for connection in 0..CONNECTIONS {
        let (log, mine) = (Arc::clone(log), Arc::clone(&mine));
        let addresses: Vec<_> = weirs.iter().map(|weir| weir.http).collect();
        tasks.spawn(async move {
            let mut proxies = Vec::new();
            for address in addresses {
                proxies.push(Client::connect(address).await.expect("a connection"));
            }
            let mut told = BTreeMap::<_, Vec<u16>>::new();
            for (turn, line) in log.lines.iter().filter(|line| mine(line) == connection).enumerate()
            {
                for (name, ..) in limits() {
                    // In turn, if several proxies share a store.
                    let proxy = turn % proxies.len();
                    let reply = proxies[proxy]
                        .get(&format!("/{name}"), &[("x-forwarded-for", &line.address)])
                        .await
                        .expect("a reply");
                    told.entry((name, line.client.clone())).or_default().push(reply.status);
                }
            }
            told
        });
    }
    let mut all = BTreeMap::new();
    while let Some(told) = tasks.join_next().await {
        all.extend(told.expect("no panic in a client"));
    }
    all
}

async fn a_replay_admits_what_the_log_says(
    engine: &str,
    store: impl Fn(Toml) -> Toml,
    proxies: usize,
) {
    let (upstream, log) = (Upstream::start(), Arc::new(Log::read()));
    let config = store(config(&upstream.url())).text();
    let weirs: Vec<Weir> = (0..proxies).map(|_| Weir::start(&config)).collect();
    let told = replay(&log, &weirs.iter().collect::<Vec<_>>()).await;

    let mut admitted_in_all = 0;
    for (name, _, quota) in limits() {
        let (mut admitted, mut refused) = (0, 0);
        for (client, asked) in log.clients() {
            let statuses = &told[&(name, client.to_owned())];
            let wanted: Vec<u16> =
                (0..asked).map(|turn| if turn < quota { 200 } else { 429 }).collect();
            assert_eq!(statuses, &wanted, "{engine}, {name}: {client} asked {asked} times");
            admitted += asked.min(quota);
            refused += asked.saturating_sub(quota);
        }
        assert!(
            admitted > 0 && refused > 0,
            "{name}: this log shows nothing: {admitted} admitted, {refused} refused"
        );
        println!(
            "{}; {engine}, {name}: {admitted} admitted, {refused} refused, each as computed",
            log.told()
        );
        admitted_in_all += admitted;
    }
    assert_eq!(upstream.count(), admitted_in_all, "what the upstream saw");
}

#[tokio::test]
async fn in_memory_a_replay_admits_of_each_client_what_the_log_says() {
    a_replay_admits_what_the_log_says("embedded", |toml| toml, 1).await;
}

#[tokio::test]
async fn on_a_cluster_a_replay_through_two_proxies_admits_of_each_client_what_the_log_says() {
    let cluster = Cluster::start();
    a_replay_admits_what_the_log_says(
        "cluster, two proxies",
        |toml| toml.redis("cluster", &cluster.addresses()),
        2,
    )
    .await;
}
