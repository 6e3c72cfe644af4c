//! With the log's own timestamps: the test writes each second of the log into a file, from which
//! the counting process takes its clock. In memory that is the proxy itself. On a cluster it is the
//! masters, while the proxy keeps the real time.
//!
//! Within a second the clock stands still, so that each decision can be computed exactly.

use super::log::Log;
use super::oracle::{Oracle, Rule};
use crate::harness::client::Client;
use crate::harness::cluster::Cluster;
use crate::harness::held::HeldTime;
use crate::harness::redis::Value;
use crate::harness::toml::Toml;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

/// Periods that fit a log's pauses and bursts: seconds, a minute that its quota does not divide,
/// an hour.
fn limits() -> Vec<(&'static str, &'static str, Rule)> {
    vec![
        ("window", "fixed_window", Rule::Window { quota: 3, period_s: 7 }),
        ("aligned", "fixed_window", Rule::Aligned { quota: 10, period_s: 3600 }),
        ("gcra", "gcra", Rule::Bucket { quota: 7, period_s: 60, burst: 4 }),
        ("bucket", "token_bucket", Rule::Bucket { quota: 2, period_s: 9, burst: 3 }),
    ]
}

fn config(url: &str) -> Toml {
    let mut toml = Toml::new()
        .server("trusted_proxies = [\"127.0.0.1\"]\nworkers = 1")
        .upstream("api", url, "");
    for (name, algorithm, rule) in limits() {
        let limit = rule.toml(name, algorithm);
        toml = toml.policy(name, &[&limit]).route(&format!(
            "name = \"{name}\"\npath = \"/{name}\"\nupstream = \"api\"\npolicy = \"{name}\""
        ));
    }
    toml
}

async fn a_replay_by_stamps_admits_what_the_log_says(
    engine: &str,
    time: &HeldTime,
    weir: &Weir,
    upstream: &Upstream,
) {
    let mut log = Log::read();
    // A server writes a line when the response is complete: sometimes a second late.
    log.lines.sort_by_key(|line| line.at_s);
    let mut rules: Vec<_> =
        limits().into_iter().map(|(name, _, rule)| (name, Oracle::new(rule), [0_u64; 2])).collect();
    let mut client = Client::connect(weir.http).await.expect("a connection");
    let (mut now_s, mut admitted) = (i64::MIN, 0);
    for (number, line) in log.lines.iter().enumerate() {
        if line.at_s != now_s {
            now_s = line.at_s;
            time.set(now_s);
        }
        for (name, oracle, counts) in &mut rules {
            let reply = client
                .get(&format!("/{name}"), &[("x-forwarded-for", &line.address)])
                .await
                .expect("a reply");
            let admits = oracle.admits(&line.client, line.at_s);
            let wanted = if admits { 200 } else { 429 };
            assert_eq!(
                reply.status, wanted,
                "{engine}, {name}: request {number}, {line:?}: {reply:?}"
            );
            counts[usize::from(!admits)] += 1;
            admitted += u64::from(admits);
        }
    }
    for (name, _, [admitted, refused]) in rules {
        assert!(
            admitted > 0 && refused > 0,
            "{name}: this log shows nothing: {admitted} admitted, {refused} refused"
        );
        println!(
            "{}; by its stamps, {engine}, {name}: {admitted} admitted, {refused} refused, each as computed",
            log.told()
        );
    }
    assert_eq!(upstream.count(), admitted, "what the upstream saw");
}

#[tokio::test]
async fn in_memory_a_replay_by_stamps_admits_what_the_log_says() {
    let (upstream, time) = (Upstream::start(), HeldTime::running());
    let first_s = Log::read().lines[0].at_s;
    time.set(first_s);
    let mut builder = Weir::build(&config(&upstream.url()).text());
    for (name, value) in time.environment() {
        builder = builder.environment(name, &value);
    }
    let weir = builder.start();
    assert_eq!(
        weir.metric("weir_config_applied_timestamp_seconds") as i64,
        first_s,
        "the proxy is not held"
    );
    a_replay_by_stamps_admits_what_the_log_says("embedded", &time, &weir, &upstream).await;
}

#[tokio::test]
async fn on_a_cluster_a_replay_by_stamps_admits_what_the_log_says() {
    let (upstream, time) = (Upstream::start(), HeldTime::running());
    // Nodes that already agree keep agreeing when their time jumps, so nothing has to be waited
    // for.
    let cluster =
        Cluster::within(3, &["--cluster-node-timeout", "1000000000000"], &time.environment());
    let weir = Weir::start(&config(&upstream.url()).redis("cluster", &cluster.addresses()).text());
    let first_s = Log::read().lines[0].at_s;
    time.set(first_s);
    for node in &cluster.nodes {
        let Value::List(now) = node.connect().ask(&["TIME"]) else { panic!("no list") };
        assert_eq!(now[0].text(), first_s.to_string(), "a master is not held");
    }
    a_replay_by_stamps_admits_what_the_log_says("cluster", &time, &weir, &upstream).await;
}
