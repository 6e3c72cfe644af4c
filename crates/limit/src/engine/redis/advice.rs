//! Warns the operator of versions and settings of Redis that change what limits mean.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ::redis::Cmd;

use super::link::Link;
use super::text;
use super::topology::Topology;
use crate::clock;

/// Time limit for one node's answer.
const ANSWER_WAIT: Duration = Duration::from_secs(1);
/// How often the list of masters is compared with the one whose settings were checked ...
const SETTINGS_COMPARE_EVERY: Duration = Duration::from_secs(10);
/// ... and how often the settings are checked again while it stays the same.
const SETTINGS_CHECK_EVERY: Duration = Duration::from_secs(600);
/// Maximum node timeout that causes no warning.
const NODE_TIMEOUT_MS_MAX: u64 = 15_000;
/// The oldest major version of Redis with script flags and effects replication only.
const MAJOR_MIN: u32 = 7;

/// What an operator should change about the servers: one sentence each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Advice {
    /// Keeps decisions from being made.
    pub wrong: Vec<String>,
    /// Changes what limits mean.
    pub doubtful: Vec<String>,
}

/// Checks each node's version and settings once connected, whenever the masters change, and every
/// ten minutes, until the link is closed. Logs each warning that the previous check did not give.
pub(super) async fn watch_settings(link: Weak<Link>) {
    let (mut warned, mut seen, mut checked_at) =
        (BTreeSet::new(), None::<Arc<Topology>>, None::<Instant>);
    loop {
        let Some(link) = link.upgrade().filter(|link| !link.is_closed()) else { return };
        let now = clock::monotonic();
        // The first calls make the connections, and must not wait for these questions.
        if let Some(topology) = link.watch.topology() {
            let same = seen.as_ref().is_some_and(|seen| topology.has_masters_of(seen));
            if !same || checked_at.is_none_or(|at| now - at >= SETTINGS_CHECK_EVERY) {
                let Advice { wrong, doubtful } = of_masters(&link, &topology).await;
                let found: BTreeSet<String> = wrong.into_iter().chain(doubtful).collect();
                (seen, checked_at) = (Some(topology), Some(now));
                found.difference(&warned).for_each(|warning| tracing::warn!("{warning}"));
                warned = found;
            }
        }
        drop(link);
        tokio::time::sleep(SETTINGS_COMPARE_EVERY).await;
    }
}

/// The versions and settings of the masters that an operator should change. Best effort: CONFIG may
/// be forbidden, and a node may be unreachable.
pub(super) async fn of_masters(link: &Arc<Link>, topology: &Topology) -> Advice {
    let (mut wrong, mut doubtful) = (Vec::new(), Vec::new());
    for master in topology.masters() {
        let node = &master.address;
        let Ok(pipeline) = link.pipeline(node) else { continue };
        let query = async |words: &[&str]| {
            let mut command = Cmd::new();
            words.iter().for_each(|word| _ = command.arg(word));
            let until = clock::monotonic() + ANSWER_WAIT;
            let write = |out: &mut Vec<u8>| command.write_packed_command(out);
            let reply = pipeline.call(until, false, write).await.ok();
            reply.and_then(|reply| reply.extract_error().ok()).map(|reply| text(&reply))
        };
        let config = async |name| query(&["CONFIG", "GET", name]).await.unwrap_or_default();
        let info = query(&["INFO", "server"]).await.unwrap_or_default();
        if let Some(version) = too_old(&info) {
            wrong.push(format!(
                "Redis {node} is version {version}, and Weir needs 7.0 or later: every decision \
                 fails there"
            ));
        }
        if link.connector.is_cluster() {
            if config("cluster-require-full-coverage").await.contains("yes") {
                doubtful.push(format!(
                    "Redis {node} has cluster-require-full-coverage yes: one lost shard stops \
                     them all; set it to no"
                ));
            }
        } else if ["redis_mode:cluster", "server_mode:cluster"]
            .iter()
            .any(|mode| info.contains(mode))
        {
            // Redis' word, or Valkey's.
            wrong.push(format!(
                "Redis {node} is part of a cluster, and store.redis.mode is \"single\": only the \
                 keys of its own slots are decided; set mode = \"cluster\""
            ));
        }
        if link.connector.is_cluster() {
            let timeout = number_of(&config("cluster-node-timeout").await);
            if let Some(timeout) = timeout.filter(|ms| *ms > NODE_TIMEOUT_MS_MAX) {
                doubtful.push(format!(
                    "Redis {node} has cluster-node-timeout {timeout}: for as long as that and one \
                     to two seconds more, the limits on a lost master follow on_store_error; 2000 \
                     to 5000 is usual"
                ));
            }
        }
        if config("save").await.trim().is_empty() && config("appendonly").await == "no" {
            doubtful.push(format!(
                "Redis {node} saves nothing (save \"\", appendonly no): if it restarts, the limits \
                 on it start again; with a replica, it may even empty the replica"
            ));
        }
        let replicas = query(&["INFO", "replication"]).await.unwrap_or_default();
        let replicas = replicas.lines().find_map(|line| line.strip_prefix("connected_slaves:"));
        let has_replicas = replicas.is_some_and(|count| count.trim() != "0");
        let needed = number_of(&config("min-replicas-to-write").await);
        if has_replicas && needed == Some(0) {
            doubtful.push(format!(
                "Redis {node} has replicas and min-replicas-to-write 0: what it counts while it is \
                 cut off from them is lost; set it to 1"
            ));
        }
        let policy = config("maxmemory-policy").await;
        let evicts = |word: &&str| word.starts_with("allkeys") || word.starts_with("volatile");
        if let Some(policy) = policy.split_whitespace().find(evicts) {
            doubtful.push(format!(
                "Redis {node} has maxmemory-policy {policy}: it may evict counters when memory is \
                 short, which silently resets limits; set it to noeviction"
            ));
        }
    }
    Advice { wrong, doubtful }
}

/// The number in the reply to CONFIG GET.
fn number_of(config: &str) -> Option<u64> {
    config.trim().parse().ok()
}

/// The version in the text of INFO, if it is before 7.0.
fn too_old(info: &str) -> Option<String> {
    let version = info.lines().find_map(|line| line.trim().strip_prefix("redis_version:"))?;
    let major: u32 = version.split('.').next()?.parse().ok()?;
    (major < MAJOR_MIN).then(|| version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::connector::Connector;
    use super::super::owners;
    use super::super::watch::Watch;
    use super::*;
    use crate::engine::testing::{Cluster, Server, wait_until};
    use crate::engine::{RedisMode, RedisSettings};

    async fn link(nodes: Vec<String>, mode: RedisMode) -> (Arc<Link>, Arc<Topology>) {
        let deadline = Duration::from_secs(5);
        let settings = RedisSettings { deadline, ..RedisSettings::new(nodes, mode) };
        let connector = Arc::new(Connector::new(&settings).unwrap());
        let watch = Arc::new(Watch::new(mode, &connector));
        let link = Arc::new(Link::new(connector, watch));
        let topology = owners::known(&link, clock::monotonic() + deadline).await.unwrap();
        (link, topology)
    }

    #[tokio::test]
    async fn each_master_is_asked_for_its_settings() {
        let cluster = Cluster::start(0);
        let (link, topology) = link(vec![cluster.nodes[0].address()], RedisMode::Cluster).await;
        let saves_nothing = |warning: &String| warning.contains("saves nothing");
        let found = of_masters(&link, &topology).await.doubtful;
        assert!(found.len() == 3 && found.iter().all(saves_nothing), "{found:?}");
        for node in &cluster.nodes {
            let _: String = node.run("CONFIG SET appendonly yes").unwrap();
        }
        assert_eq!(of_masters(&link, &topology).await, Advice::default());
        let _: String = cluster.nodes[0].run("CONFIG SET cluster-node-timeout 60000").unwrap();
        let _: String = cluster.nodes[1].run("CONFIG SET maxmemory-policy volatile-lru").unwrap();
        let _: String =
            cluster.nodes[2].run("CONFIG SET cluster-require-full-coverage yes").unwrap();
        let found = of_masters(&link, &topology).await.doubtful;
        let about = |node: usize, what: &str| {
            found.iter().any(|warning| {
                warning.contains(&cluster.nodes[node].address()) && warning.contains(what)
            })
        };
        assert!(
            found.len() == 3
                && about(0, "node-timeout 60000")
                && about(1, "volatile-lru")
                && about(2, "full-coverage"),
            "{found:?}"
        );
    }

    #[tokio::test]
    async fn one_server_is_asked_for_its_settings() {
        let server = Server::start(&["--maxmemory-policy", "allkeys-lfu"]);
        let master = ["--replicaof", "127.0.0.1", &server.port.to_string()];
        let _replica = Server::start(&master);
        let (link, topology) = link(vec![server.address()], RedisMode::Single).await;
        wait_until("a replica", || {
            let info = server.run::<String>("INFO replication");
            info.is_ok_and(|info| info.contains("connected_slaves:1"))
        });
        let found = of_masters(&link, &topology).await.doubtful;
        let about = ["saves nothing", "min-replicas-to-write 0", "allkeys-lfu"];
        let all = found.iter().zip(about).all(|(warning, about)| warning.contains(about));
        assert!(found.len() == 3 && all, "{found:?}");
    }

    #[tokio::test]
    async fn a_cluster_that_is_used_as_a_single_server_is_reported() {
        let cluster = Cluster::start(0);
        let (link, topology) = link(vec![cluster.nodes[0].address()], RedisMode::Single).await;
        let Advice { wrong, doubtful } = of_masters(&link, &topology).await;
        assert!(wrong.len() == 1 && wrong[0].contains("part of a cluster"), "{wrong:?}");
        assert!(doubtful.len() == 1, "{doubtful:?}");
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
