//! A real Redis Cluster of masters on free ports, formed and in agreement before a test uses it.

use std::net::SocketAddr;

use super::eventually;
use super::redis::Redis;

/// Hash slots of a cluster.
const SLOTS: usize = 16_384;

/// A running cluster; its servers are killed when it is dropped.
pub struct Cluster {
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
        let mut all = vec![
            "--cluster-enabled",
            "yes",
            "--cluster-config-file",
            "nodes.conf",
            // A busy machine may stop for a while. No test here wants that to look like a failure.
            "--cluster-node-timeout",
            "15000",
            "--cluster-require-full-coverage",
            "no",
        ];
        all.extend(options);
        let cluster =
            Self { nodes: (0..masters).map(|_| Redis::within(&all, environment)).collect() };
        cluster.form();
        cluster
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

    fn form(&self) {
        let count = self.nodes.len();
        for (index, node) in self.nodes.iter().enumerate() {
            let (from, to) = (SLOTS * index / count, SLOTS * (index + 1) / count - 1);
            let mut connection = node.connect();
            // With distinct epochs from the start, two masters never have to resolve a conflict.
            connection.ask(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
            connection.ask(&["CLUSTER", "ADDSLOTSRANGE", &from.to_string(), &to.to_string()]);
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
                    && says(format!("cluster_size:{count}"));
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
