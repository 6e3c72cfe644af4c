//! Watches the store while calls fail, and only then: finds a slot's new owner, and replaces a
//! connection that will not recover.
//!
//! A frozen master answers nothing, and a timeout never makes redis-rs look for the slot's new
//! owner; so a plain connection to any other node asks every 100 ms, and only when the owners
//! changed is a new cluster connection opened, aside, and put in place. The calls to other shards
//! go on on the old one until then.

use std::time::{Duration, Instant};

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use ::redis::aio::MultiplexedConnection;

use super::link::Link;
use super::opener::Opener;
use super::topology::Topology;
use crate::clock;

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Looks go on for so long after the last failure.
const LOOK_FOR: Duration = Duration::from_secs(3);

/// How often the masters are compared with those whose settings were looked at ...
const SETTINGS_WAIT: Duration = Duration::from_secs(10);
/// ... and how often these are looked at again while they are the same.
const SETTINGS_EVERY: Duration = Duration::from_secs(600);
/// Flags of scripts, and replication of their effects, are there since Redis 7.
const MAJOR_MIN: u32 = 7;

/// Looks until no call has failed for a while.
pub(super) async fn run(link: &Link) {
    let mut probe = None;
    let mut turn = 0;
    while link.failed_within(LOOK_FOR) {
        tokio::time::sleep(LOOK_EVERY).await;
        // Without a connection the next call opens one.
        let Some((epoch, known)) = link.topology() else { continue };
        let Some(mut conn) = probe.take() else {
            probe =
                open_probe(link, &known.masters().map(ToOwned::to_owned).collect::<Vec<_>>(), turn)
                    .await;
            turn += 1;
            continue;
        };
        // A probe that fails is dropped; the next node is asked.
        let Ok(seen) = link.opener.look(&mut conn).await else { continue };
        probe = Some(conn);
        if seen.agrees(&known) && !link.all_failing() {
            continue;
        }
        match link.opener.open().await {
            Ok((conn, topology)) => {
                if link.replace(epoch, conn, topology) {
                    tracing::info!("opened a new connection to Redis");
                }
            }
            Err(error) => tracing::debug!(%error, "no new connection to Redis yet"),
        }
    }
}

/// A plain connection to one of the nodes, another one each turn.
async fn open_probe(link: &Link, masters: &[String], turn: usize) -> Option<MultiplexedConnection> {
    let mut nodes: Vec<String> = link.opener.nodes().collect();
    nodes.extend_from_slice(masters);
    nodes.sort();
    nodes.dedup();
    let node = nodes.get(turn % nodes.len().max(1))?;
    link.opener.open_node(node).await.ok()
}

/// Looks at each node's version and settings when a connection was made, whenever the masters
/// change, and now and then, until the link is gone; warns of what it did not find the last time.
pub(super) async fn settings(link: Weak<Link>) {
    let (mut warned, mut seen, mut looked_at) =
        (BTreeSet::new(), None::<Arc<Topology>>, None::<Instant>);
    loop {
        let Some(link) = link.upgrade().filter(|link| !link.is_closed()) else { return };
        let now = clock::monotonic();
        if let Some((_, topology)) = link.topology() {
            let same = seen.as_ref().is_some_and(|seen| topology.agrees(seen));
            if !same || looked_at.is_none_or(|at| now - at >= SETTINGS_EVERY) {
                let masters = topology.masters().map(ToOwned::to_owned).collect();
                (seen, looked_at) = (Some(topology), Some(now));
                let found: BTreeSet<String> =
                    doubts(&link.opener, masters).await.into_iter().collect();
                found.difference(&warned).for_each(|doubt| tracing::warn!("{doubt}"));
                warned = found;
            }
        }
        drop(link);
        tokio::time::sleep(SETTINGS_WAIT).await;
    }
}

/// What about these masters, or the one server of the settings, changes what limits mean. Best
/// effort: CONFIG may be forbidden, and a node may be away.
async fn doubts(opener: &Opener, mut nodes: Vec<String>) -> Vec<String> {
    if !opener.is_cluster() {
        nodes = opener.nodes().collect();
    }
    nodes.sort();
    nodes.dedup();
    let mut doubts = Vec::new();
    for node in nodes {
        let Ok(mut conn) = opener.open_node(&node).await else { continue };
        let mut told =
            async |words: &[&str]| opener.told(&mut conn, words).await.unwrap_or_default();
        if let Some(version) = too_old(&told(&["INFO", "server"]).await) {
            doubts.push(format!("Redis {node} is version {version}, and Weir needs 7.0 or later: every decision fails there"));
        }
        if opener.is_cluster()
            && told(&["CONFIG", "GET", "cluster-require-full-coverage"]).await.contains("yes")
        {
            doubts.push(format!("Redis {node} has cluster-require-full-coverage yes: one lost shard stops them all; set it to no"));
        }
        let policy = told(&["CONFIG", "GET", "maxmemory-policy"]).await;
        if let Some(policy) = policy
            .split_whitespace()
            .find(|word| word.starts_with("allkeys") || word.starts_with("volatile"))
        {
            doubts.push(format!(
                "Redis {node} has maxmemory-policy {policy}: it may evict counters when memory is short, which silently resets limits; set it to \
                 noeviction"
            ));
        }
    }
    doubts
}

/// The version in what INFO says, where it is before 7.0.
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

    fn opener(nodes: Vec<String>, mode: RedisMode) -> Opener {
        let deadline = Duration::from_secs(5);
        Opener::new(&RedisSettings {
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
        let only_first = opener(vec![cluster.nodes[0].address()], RedisMode::Cluster);
        let (_, topology) = only_first.open().await.unwrap();
        let masters = || topology.masters().map(ToOwned::to_owned).collect();
        assert_eq!(doubts(&only_first, masters()).await, [] as [&str; 0]);
        let _: String = cluster.nodes[1].run("CONFIG SET maxmemory-policy volatile-lru").unwrap();
        let _: String =
            cluster.nodes[2].run("CONFIG SET cluster-require-full-coverage yes").unwrap();
        let found = doubts(&only_first, masters()).await;
        let about = |node: usize, what: &str| {
            found
                .iter()
                .any(|doubt| doubt.contains(&cluster.nodes[node].address()) && doubt.contains(what))
        };
        assert!(
            found.len() == 2 && about(1, "volatile-lru") && about(2, "full-coverage"),
            "{found:?}"
        );
    }

    #[tokio::test]
    async fn one_server_is_asked_for_its_settings() {
        let server = Server::start(&["--maxmemory-policy", "allkeys-lfu"]);
        let found = doubts(&opener(vec![server.address()], RedisMode::Single), Vec::new()).await;
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
