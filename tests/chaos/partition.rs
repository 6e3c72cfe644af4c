//! A partition that only some see: a master whose cluster bus is cut and whose clients' port is
//! silent for everybody but those who know its real address.

use std::net::SocketAddr;

use crate::harness::cluster::Cluster;
use crate::harness::eventually;
use crate::relay::Relay;

/// The offset of a node's bus from its clients' port.
const BUS_OFFSET: u16 = 10_000;

/// Relays in front of every node's bus, and of the first master's clients' port.
pub struct Partition {
    clients: Relay,
    buses: Vec<Relay>,
    /// The first master's name in the cluster.
    name: String,
}

impl Partition {
    /// Makes all nodes announce their relays, and waits until all know them.
    pub fn around(cluster: &Cluster) -> Self {
        let clients = Relay::to(cluster.nodes[0].address);
        let buses: Vec<Relay> = cluster
            .nodes
            .iter()
            .map(|node| {
                let mut bus = node.address;
                bus.set_port(bus.port() + BUS_OFFSET);
                Relay::to(bus)
            })
            .collect();
        let set = |node: usize, name: &str, port: u16| {
            cluster.nodes[node].connect().ask(&["CONFIG", "SET", name, &port.to_string()]);
        };
        set(0, "cluster-announce-port", clients.address.port());
        for (node, bus) in buses.iter().enumerate() {
            set(node, "cluster-announce-bus-port", bus.address.port());
        }
        for node in &cluster.nodes {
            let mut connection = node.connect();
            eventually("all nodes know the announced ports", || {
                let nodes = connection.ask(&["CLUSTER", "NODES"]).text();
                let known = |relay: &Relay| nodes.contains(&format!("@{}", relay.address.port()));
                let clients = format!(":{}@", clients.address.port());
                if buses.iter().all(known) && nodes.contains(&clients) {
                    Ok(())
                } else {
                    Err(nodes)
                }
            });
        }
        cluster.await_replicas();
        Self { clients, buses, name: cluster.id(0) }
    }

    /// The address that the first master announces.
    pub fn announced(&self) -> SocketAddr {
        self.clients.address
    }

    /// Cuts the first master off.
    pub fn begin(&self) {
        self.clients.silence(true);
        self.buses[0].silence(true);
        self.buses[1..].iter().for_each(|bus| bus.silence_node(&self.name));
    }

    pub fn end(&self) {
        self.clients.silence(false);
        self.buses.iter().for_each(|bus| bus.silence(false));
    }
}
