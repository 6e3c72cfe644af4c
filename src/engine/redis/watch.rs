//! Watches the store while calls fail, and only then: finds a slot's new owner, and replaces a
//! connection that will not recover.
//!
//! A frozen master answers nothing, and a timeout never makes redis-rs look for the slot's new
//! owner. So a plain connection to any other node reads the topology every 100 ms. Only when the
//! owners have changed is a new cluster connection opened in the background and swapped in. Until
//! then, calls to the other shards continue on the old one.

use std::time::{Duration, Instant};

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use ::redis::aio::MultiplexedConnection;

use super::connector::Connector;
use super::link::Link;
use super::topology::Topology;
use crate::clock;

/// Pause between two probes.
const PROBE_EVERY: Duration = Duration::from_millis(100);
/// Probing continues for this long after the last failure.
const PROBE_FOR: Duration = Duration::from_secs(3);

/// How often the list of masters is compared with the one whose settings were checked ...
const SETTINGS_COMPARE_EVERY: Duration = Duration::from_secs(10);
/// ... and how often the settings are checked again while it stays the same.
const SETTINGS_CHECK_EVERY: Duration = Duration::from_secs(600);
/// The oldest major version of Redis with script flags and effects replication only.
const MAJOR_MIN: u32 = 7;

/// Probes the store until no call has failed for a while.
pub(super) async fn run(link: &Link) {
    let mut probe = None;
    let mut attempt = 0;
    while link.failed_within(PROBE_FOR) {
        tokio::time::sleep(PROBE_EVERY).await;
        // Without a connection there is nothing to compare: the next call opens one.
        let Some((epoch, known)) = link.topology() else { continue };
        let Some(mut conn) = probe.take() else {
            probe = open_probe(
                link,
                &known.masters().map(ToOwned::to_owned).collect::<Vec<_>>(),
                attempt,
            )
            .await;
            attempt += 1;
            continue;
        };
        // A probe connection that fails is dropped, and another node is tried.
        let Ok(seen) = link.connector.topology_of(&mut conn).await else { continue };
        probe = Some(conn);
        if seen.agrees(&known) && !link.all_failing() {
            continue;
        }
        match link.connector.open().await {
            Ok((conn, topology)) => {
                if link.replace(epoch, conn, topology) {
                    tracing::debug!("opened a new connection to Redis");
                }
            }
            Err(error) => tracing::debug!(%error, "no new connection to Redis yet"),
        }
    }
}

/// Opens a plain connection to one of the nodes, a different one on each attempt.
async fn open_probe(
    link: &Link,
    masters: &[String],
    attempt: usize,
) -> Option<MultiplexedConnection> {
    let mut nodes: Vec<String> = link.connector.nodes().collect();
    nodes.extend_from_slice(masters);
    nodes.sort();
    nodes.dedup();
    let node = nodes.get(attempt % nodes.len().max(1))?;
    link.connector.open_node(node).await.ok()
}

/// Checks each node's version and settings once connected, whenever the masters change, and every
/// ten minutes, until the link is closed. Logs each warning that the previous check did not give.
pub(super) async fn watch_settings(link: Weak<Link>) {
    let (mut warned, mut seen, mut checked_at) =
        (BTreeSet::new(), None::<Arc<Topology>>, None::<Instant>);
    loop {
        let Some(link) = link.upgrade().filter(|link| !link.is_closed()) else { return };
        let now = clock::monotonic();
        if let Some((_, topology)) = link.topology() {
            let same = seen.as_ref().is_some_and(|seen| topology.agrees(seen));
            if !same || checked_at.is_none_or(|at| now - at >= SETTINGS_CHECK_EVERY) {
                let masters = topology.masters().map(ToOwned::to_owned).collect();
                (seen, checked_at) = (Some(topology), Some(now));
                let found: BTreeSet<String> =
                    warnings_about(&link.connector, masters).await.into_iter().collect();
                found.difference(&warned).for_each(|warning| tracing::warn!("{warning}"));
                warned = found;
            }
        }
        drop(link);
        tokio::time::sleep(SETTINGS_COMPARE_EVERY).await;
    }
}

/// Warns of versions and settings that change what limits mean, on these masters or on the single
/// server. Best effort: CONFIG may be forbidden, and a node may be unreachable.
async fn warnings_about(connector: &Connector, mut nodes: Vec<String>) -> Vec<String> {
    if !connector.is_cluster() {
        nodes = connector.nodes().collect();
    }
    nodes.sort();
    nodes.dedup();
    let mut warnings = Vec::new();
    for node in nodes {
        let Ok(mut conn) = connector.open_node(&node).await else { continue };
        let mut query =
            async |words: &[&str]| connector.query(&mut conn, words).await.unwrap_or_default();
        if let Some(version) = too_old(&query(&["INFO", "server"]).await) {
            warnings.push(format!("Redis {node} is version {version}, and Weir needs 7.0 or later: every decision fails there"));
        }
        if connector.is_cluster()
            && query(&["CONFIG", "GET", "cluster-require-full-coverage"]).await.contains("yes")
        {
            warnings.push(format!("Redis {node} has cluster-require-full-coverage yes: one lost shard stops them all; set it to no"));
        }
        let policy = query(&["CONFIG", "GET", "maxmemory-policy"]).await;
        if let Some(policy) = policy
            .split_whitespace()
            .find(|word| word.starts_with("allkeys") || word.starts_with("volatile"))
        {
            warnings.push(format!(
                "Redis {node} has maxmemory-policy {policy}: it may evict counters when memory is short, which silently resets limits; set it to \
                 noeviction"
            ));
        }
    }
    warnings
}

/// The version in the text of INFO, if it is before 7.0.
fn too_old(info: &str) -> Option<String> {
    let version = info.lines().find_map(|line| line.trim().strip_prefix("redis_version:"))?;
    let major: u32 = version.split('.').next()?.parse().ok()?;
    (major < MAJOR_MIN).then(|| version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::testing::{Cluster, Server};
    use crate::engine::{RedisMode, RedisSettings};

    fn connector(nodes: Vec<String>, mode: RedisMode) -> Connector {
        let deadline = Duration::from_secs(5);
        Connector::new(&RedisSettings {
            nodes,
            mode,
            username: None,
            password: None,
            key_prefix: "weir".into(),
            deadline,
        })
        .unwrap()
    }

    #[tokio::test]
    async fn each_master_is_asked_for_its_settings() {
        let cluster = Cluster::start(0);
        let only_first = connector(vec![cluster.nodes[0].address()], RedisMode::Cluster);
        let (_, topology) = only_first.open().await.unwrap();
        let masters = || topology.masters().map(ToOwned::to_owned).collect();
        assert_eq!(warnings_about(&only_first, masters()).await, [] as [&str; 0]);
        let _: String = cluster.nodes[1].run("CONFIG SET maxmemory-policy volatile-lru").unwrap();
        let _: String =
            cluster.nodes[2].run("CONFIG SET cluster-require-full-coverage yes").unwrap();
        let found = warnings_about(&only_first, masters()).await;
        let about = |node: usize, what: &str| {
            found.iter().any(|warning| {
                warning.contains(&cluster.nodes[node].address()) && warning.contains(what)
            })
        };
        assert!(
            found.len() == 2 && about(1, "volatile-lru") && about(2, "full-coverage"),
            "{found:?}"
        );
    }

    #[tokio::test]
    async fn one_server_is_asked_for_its_settings() {
        let server = Server::start(&["--maxmemory-policy", "allkeys-lfu"]);
        let found =
            warnings_about(&connector(vec![server.address()], RedisMode::Single), Vec::new()).await;
        assert!(found.len() == 1 && found[0].contains("allkeys-lfu"), "{found:?}");
    }

    #[test]
    fn a_version_before_seven_is_named() {
        assert_eq!(
            too_old("# Server\r\nredis_version:6.2.14\r\nredis_mode:standalone\r\n"),
            Some("6.2.14".into())
        );
        for recent in
            ["redis_version:7.0.15\r\n", "redis_version:10.1\r\n", "", "redis_version:unstable\r\n"]
        {
            assert_eq!(too_old(recent), None, "{recent}");
        }
    }
}
