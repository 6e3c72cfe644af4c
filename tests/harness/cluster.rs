//! A real Redis Cluster on free ports, formed and in agreement before a test uses it: masters, and
//! replicas if a test needs them.

use std::net::SocketAddr;

use super::eventually;
use super::redis::Redis;

/// Hash slots of a cluster.
const SLOTS: usize = 16_384;

/// What every node of a cluster is started with.
const OPTIONS: [&str; 6] = [
    "--cluster-enabled",
    "yes",
    "--cluster-config-file",
    "nodes.conf",
    "--cluster-require-full-coverage",
    "no",
];

/// A running cluster; its servers are killed when it is dropped.
pub struct Cluster {
    /// The masters, and then the replica of each, if it has any.
    pub nodes: Vec<Redis>,
}

impl Cluster {
    /// Three masters, the minimum in production.
    pub fn start() -> Self {
        Self::of(3, &[])
    }

    /// `masters` servers that share the slots evenly.
    pub fn of(masters: usize, options: &[&str]) -> Self {
        Self::within(masters, options, &[])
    }

    /// The same, with environment variables for the servers.
    pub fn within(
        masters: usize,
        options: &[&str],
        environment: &[(&'static str, String)],
    ) -> Self {
        // A busy machine may stop for a while. Without replicas, no test wants that to look like a
        // failure.
        let mut all = [OPTIONS.as_slice(), &["--cluster-node-timeout", "15000"]].concat();
        all.extend(options);
        let cluster =
            Self { nodes: (0..masters).map(|_| Redis::within(&all, environment)).collect() };
        cluster.form(masters);
        cluster
    }

    /// `masters` servers, and one replica of each, ready to take over. `options` must have a
    /// `--cluster-node-timeout`; `environment` has the environment variables of each server, by its
    /// position.
    pub fn replicated(
        masters: usize,
        options: &[&str],
        environment: &dyn Fn(usize) -> Vec<(&'static str, String)>,
    ) -> Self {
        let replication = [
            // However long a replica was cut off, it takes over.
            "--cluster-replica-validity-factor",
            "0",
            "--cluster-allow-replica-migration",
            "no",
            "--repl-ping-replica-period",
            "1",
            "--repl-diskless-sync-delay",
            "0",
        ];
        let all = [OPTIONS.as_slice(), &replication, options].concat();
        let node = |index| Redis::within(&all, &environment(index));
        let cluster = Self { nodes: (0..2 * masters).map(node).collect() };
        cluster.form(masters);
        for (index, node) in cluster.nodes[masters..].iter().enumerate() {
            let (id, mut connection) = (cluster.id(index), node.connect());
            eventually("a replica knows its master", || {
                match connection.command(&["CLUSTER", "REPLICATE", &id]) {
                    Ok(super::redis::Value::Text(_)) => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            });
        }
        cluster.await_replicas();
        cluster
    }

    /// Waits until all replicas are up to date, and all nodes know them.
    pub fn await_replicas(&self) {
        let replicas = self.nodes.len() / 2;
        for node in &self.nodes {
            let mut connection = node.connect();
            eventually("replicas are up to date", || {
                let info = connection.ask(&["INFO", "replication"]).text();
                let nodes = connection.ask(&["CLUSTER", "NODES"]).text();
                let known = nodes.lines().filter(|line| line.contains("slave ")).count();
                let synced = info.contains("master_link_status:up")
                    || (info.contains("role:master") && info.contains("state=online"));
                if synced && known == replicas { Ok(()) } else { Err(format!("{info}\n{nodes}")) }
            });
        }
    }

    /// A node's name in the cluster.
    pub fn id(&self, index: usize) -> String {
        self.nodes[index].connect().ask(&["CLUSTER", "MYID"]).text()
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.address).collect()
    }

    /// Keys on all masters.
    pub fn keys(&self) -> i64 {
        let sizes = self.nodes.iter().map(|node| node.connect().ask(&["DBSIZE"]).text());
        sizes.map(|size| size.parse::<i64>().expect("a number")).sum()
    }

    /// Names of keys without an expiry, on any master.
    pub fn keys_without_lifetime(&self) -> Vec<String> {
        self.nodes.iter().flat_map(Redis::keys_without_lifetime).collect()
    }

    /// Divides the slots between the first `masters` nodes, and introduces all nodes to each other.
    fn form(&self, masters: usize) {
        let count = self.nodes.len();
        for (index, node) in self.nodes.iter().enumerate() {
            let mut connection = node.connect();
            // With distinct epochs from the start, two masters never have to resolve a conflict.
            connection.ask(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
            if index < masters {
                let (from, to) = (SLOTS * index / masters, SLOTS * (index + 1) / masters - 1);
                connection.ask(&["CLUSTER", "ADDSLOTSRANGE", &from.to_string(), &to.to_string()]);
            }
            // Each node meets each other one. With gossip alone it would take some seconds more.
            for other in &self.nodes[..index] {
                connection.ask(&[
                    "CLUSTER",
                    "MEET",
                    "127.0.0.1",
                    &other.address.port().to_string(),
                ]);
            }
        }
        for node in &self.nodes {
            let mut connection = node.connect();
            eventually("the cluster agrees", || {
                let info = connection.ask(&["CLUSTER", "INFO"]).text();
                let says = |line: String| info.lines().any(|found| found == line);
                let agreed = says("cluster_state:ok".into())
                    && says(format!("cluster_slots_ok:{SLOTS}"))
                    && says(format!("cluster_known_nodes:{count}"))
                    && says(format!("cluster_size:{masters}"));
                if agreed { Ok(()) } else { Err(format!("{info}\n{}", node.log())) }
            });
        }
    }
}

#[test]
fn a_cluster_is_three_masters_that_share_the_slots() {
    let cluster = Cluster::start();
    for node in &cluster.nodes {
        let super::redis::Value::List(ranges) = node.connect().ask(&["CLUSTER", "SLOTS"]) else {
            panic!("no list")
        };
        assert_eq!(ranges.len(), 3);
    }
    assert_eq!(cluster.keys(), 0);
}
