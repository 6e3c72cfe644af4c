//! What a row plays on: a Redis Cluster with replicas, three proxies with the same limits, an
//! upstream that counts what arrives, and the book of what was admitted.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use rustix::process::Signal;

use crate::Run;
use crate::harness::client::{Client, Reply};
use crate::harness::cluster::Cluster;
use crate::harness::counting::Counting;
use crate::harness::eventually;
use crate::harness::redis::Redis;
use crate::harness::toml::Toml;
use crate::harness::weir::Weir;
use crate::load::{self, Log, Mark, Target};
use crate::partition::Partition;
use crate::relay::Relay;

/// Redis' own measure of a lost master. What is promised builds on it.
pub const NODE_TIMEOUT: Duration = Duration::from_secs(2);
/// The time in which a lost shard serves again: node_timeout + 4 s.
pub const BACK_WITHIN: Duration = Duration::from_secs(6);
/// Proxies of a stage.
pub const PROXIES: usize = 3;
/// The units of a limit that no load uses up, so that its counter shows what was charged.
pub const HUGE: u64 = 1_000_000_000;
/// The units of a limit that the load uses up, so that over-admission shows.
pub const TIGHT: u64 = 1_000;
/// Threads of a proxy, on every machine the same.
pub const WORKERS: usize = 2;

/// How a stage differs from the common one.
pub struct Setting<'a> {
    /// `store.deadline`.
    pub deadline: Duration,
    /// Masters that the proxies reach through a relay.
    pub relayed: &'a [usize],
    pub replicas: bool,
    /// The first master can be cut off from all but the first proxy.
    pub partition: bool,
    /// Options of every server.
    pub options: &'a [&'a str],
    /// Environment variables of a server, by its position.
    pub environment: &'a dyn Fn(usize) -> Vec<(&'static str, String)>,
    /// More policies and routes.
    pub routes: &'a [Route],
}

/// A route with a policy of its own, whose limits count by tenant.
#[derive(Clone, Debug)]
pub struct Route {
    /// Its policy's name as well. The path is `/NAME`, or everything if the name is `all`.
    pub name: &'static str,
    /// Each is the content of an inline table, without its key.
    pub limits: Vec<String>,
    /// Lines of the route.
    pub more: &'static str,
}

impl Setting<'_> {
    /// Three masters with a replica each.
    pub fn new(deadline: Duration) -> Self {
        Self {
            deadline,
            relayed: &[],
            replicas: true,
            partition: false,
            options: &[],
            environment: &|_| Vec::new(),
            routes: &[],
        }
    }
}

/// A running stage. The proxies end before what they use.
pub struct Stage {
    pub proxies: Vec<Weir>,
    pub relays: BTreeMap<usize, Relay>,
    pub partition: Option<Partition>,
    pub cluster: Cluster,
    pub upstream: Counting,
    runtime: tokio::runtime::Runtime,
    clients: Vec<Option<Client>>,
    admitted: BTreeMap<(&'static str, String), u64>,
}

impl Stage {
    pub fn start(run: &Run, setting: &Setting) -> Self {
        let timeout = NODE_TIMEOUT.as_millis().to_string();
        let mut options = vec!["--cluster-node-timeout", &timeout];
        options.extend(setting.options);
        let cluster = if setting.replicas {
            Cluster::replicated(3, &options, setting.environment)
        } else {
            Cluster::of(3, setting.options)
        };
        let relay = |index: &usize| (*index, Relay::to(cluster.nodes[*index].address));
        let relays: BTreeMap<usize, Relay> = setting.relayed.iter().map(relay).collect();
        let partition = setting.partition.then(|| Partition::around(&cluster));
        let upstream = Counting::start();
        let config = config(&cluster, &upstream, setting);
        let start = |proxy: usize| {
            let mut addresses: Vec<(SocketAddr, SocketAddr)> = relays
                .iter()
                .map(|(index, relay)| (cluster.nodes[*index].address, relay.address))
                .collect();
            if let Some(partition) = partition.as_ref().filter(|_| proxy == 0) {
                addresses.push((partition.announced(), cluster.nodes[0].address));
            }
            let builder = Weir::build(&with_addresses(&config, &addresses).text());
            // One of the three is the other version.
            let other = run.beside.as_ref().filter(|_| proxy == 1);
            match other.or(run.weir.as_ref()) {
                Some(program) => builder.program(program).start(),
                None => builder.start(),
            }
        };
        let proxies: Vec<Weir> = (0..PROXIES).map(start).collect();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let clients = proxies.iter().map(|_| None).collect();
        let admitted = BTreeMap::new();
        Self { proxies, relays, partition, cluster, upstream, runtime, clients, admitted }
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.proxies.iter().map(|weir| weir.http).collect()
    }

    /// Ends a proxy with `signal`, and starts it again at another address.
    pub fn restart(&mut self, proxy: usize, signal: Signal) {
        let weir = self.proxies.remove(proxy).restart(signal);
        self.proxies.insert(proxy, weir);
        self.clients[proxy] = None;
    }

    /// One request outside of a load. An admission is booked.
    pub fn get(&mut self, proxy: usize, target: &Target) -> Option<Reply> {
        let address = self.proxies[proxy].http;
        let asked = load::ask(&mut self.clients[proxy], address, target.path, &target.tenant);
        let reply = self.runtime.block_on(asked);
        if reply
            .as_ref()
            .is_some_and(|reply| reply.status == 200 && load::mark(reply) == Mark::None)
        {
            *self.admitted.entry((target.path, target.tenant.clone())).or_default() += 1;
        }
        reply
    }

    /// Tenants of these paths, `each` of each path on each shard, found by where their counters
    /// appear. All proxies have their connections and scripts afterwards.
    pub fn targets(
        &mut self,
        paths: &[(&'static str, usize)],
        rng: &mut fastrand::Rng,
    ) -> Vec<Target> {
        let mut found: Vec<Target> = Vec::new();
        for (path, each) in paths.iter().copied() {
            let mut missing = [each; 3];
            while missing != [0; 3] {
                let tenant = format!("{:08x}", rng.u32(..));
                let mut target = Target { path, tenant, shard: 0 };
                let before = self.sizes();
                self.admit(rng.usize(..PROXIES), &target);
                let after = self.sizes();
                // A plan may also have a counter elsewhere; most of its counters are on one shard.
                target.shard = (0..3).max_by_key(|shard| after[*shard] - before[*shard]).unwrap();
                if missing[target.shard] > 0 {
                    missing[target.shard] -= 1;
                    found.push(target);
                }
            }
        }
        for target in &found {
            (0..PROXIES).for_each(|proxy| self.admit(proxy, target));
        }
        found
    }

    /// Asks until Redis admits.
    pub fn admit(&mut self, proxy: usize, target: &Target) {
        eventually("a request is admitted by Redis", || {
            let reply = self.get(proxy, target);
            match &reply {
                Some(told) if told.status == 200 && load::mark(told) == Mark::None => Ok(()),
                _ => Err(format!("{reply:?}")),
            }
        });
    }

    fn sizes(&self) -> Vec<i64> {
        let masters = self.cluster.nodes[..3].iter();
        masters.map(|node| node.connect().ask(&["DBSIZE"]).number()).collect()
    }

    /// Books what a load's requests were admitted.
    pub fn book(&mut self, log: &Log) {
        for sent in log.of(|_, sent| sent.status == 200 && sent.mark == Mark::None) {
            let target = &log.targets[sent.target];
            *self.admitted.entry((target.path, target.tenant.clone())).or_default() += 1;
        }
    }

    /// What Redis admitted of this target so far, as its clients saw it.
    pub fn admitted(&self, target: &Target) -> u64 {
        self.admitted.get(&(target.path, target.tenant.clone())).copied().unwrap_or(0)
    }

    /// What was charged to each limit of a target with huge limits, by its counters.
    pub fn charged(&mut self, target: &Target) -> BTreeMap<String, u64> {
        let reply = eventually("a counter is told", || {
            let reply = self.get(0, target);
            match reply {
                Some(told) if told.status == 200 && load::mark(&told) == Mark::None => Ok(told),
                other => Err(format!("{other:?}")),
            }
        });
        let limits = reply.limits().into_iter();
        limits.map(|(name, told)| (name, HUGE - told.remaining as u64)).collect()
    }

    /// How the counters of targets with huge limits differ from what was admitted: units that were
    /// charged too much, and units that are missing.
    pub fn difference(&mut self, targets: &[Target]) -> Difference {
        let mut difference = Difference::default();
        for target in targets {
            let charged = self.charged(target);
            let admitted = self.admitted(target);
            difference.admitted += admitted;
            // All limits of a plan are charged together.
            let most = charged.values().copied().max().unwrap_or(0);
            let least = charged.values().copied().min().unwrap_or(0);
            difference.more += most.saturating_sub(admitted);
            difference.less += admitted.saturating_sub(least);
            let name = format!("{} {}", target.path.trim_start_matches('/'), target.tenant);
            difference.astray += self.upstream.of(&name).arrived.abs_diff(admitted);
        }
        difference
    }

    /// Waits until each proxy decides on each target. A proxy learns only from its own calls that a
    /// shard serves again, which another one may have found before.
    pub fn await_deciding(&mut self, targets: &[Target]) {
        for target in targets {
            for proxy in 0..PROXIES {
                eventually("each proxy decides", || match self.get(proxy, target) {
                    Some(reply) if matches!(reply.status, 200 | 429) => Ok(()),
                    other => Err(format!("{other:?} of proxy {proxy} on {}", target.path)),
                });
            }
        }
    }

    /// Asks for more than is left of tight limits, until they refuse, and returns the most units by
    /// which one of them was exceeded.
    pub fn exceeded(&mut self, targets: &[Target]) -> u64 {
        for target in targets {
            for turn in 0..2 * TIGHT as usize {
                match self.get(turn % PROXIES, target).map(|reply| reply.status) {
                    Some(429) => break,
                    Some(200) => {}
                    other => panic!("{other:?} of a tight limit"),
                }
            }
        }
        targets.iter().map(|target| self.admitted(target).saturating_sub(TIGHT)).max().unwrap_or(0)
    }

    /// The sum of a metric over all proxies.
    pub fn metric(&self, series: &str) -> u64 {
        self.proxies.iter().map(|weir| weir.metric(series)).sum()
    }

    pub fn unknown(&self) -> u64 {
        self.metric("weir_takes_unknown_total")
    }

    /// Failed calls by cause, over all proxies.
    pub fn errors(&self) -> BTreeMap<String, u64> {
        let mut causes = BTreeMap::new();
        for weir in &self.proxies {
            let page = weir.admin_page("/metrics").text();
            for line in page.lines() {
                let Some(rest) = line.strip_prefix("weir_store_errors_total{cause=\"") else {
                    continue;
                };
                let Some((cause, count)) = rest.split_once("\"} ") else { continue };
                let count = count.trim().parse::<f64>().expect("a number") as u64;
                *causes.entry(cause.to_owned()).or_default() += count;
            }
        }
        causes
    }

    /// The memory that the proxies use together, in KiB.
    pub fn memory_kib(&self) -> u64 {
        self.proxies.iter().map(Weir::memory_kib).sum()
    }

    /// The node that is master of this shard now: it or its replica.
    pub fn master(&self, shard: usize) -> &Redis {
        let pair = [shard, shard + 3];
        let index = eventually("one master of a shard", || {
            let masters: Vec<usize> = pair.into_iter().filter(|node| self.leads(*node)).collect();
            match masters[..] {
                [one] => Ok(one),
                _ => Err(format!("masters {masters:?}")),
            }
        });
        &self.cluster.nodes[index]
    }

    /// Whether this node is a master.
    pub fn leads(&self, node: usize) -> bool {
        let info = self.cluster.nodes[node].connect().ask(&["INFO", "replication"]).text();
        info.contains("role:master")
    }
}

/// Counters compared with what clients were told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    pub admitted: u64,
    /// Units charged beyond what was admitted.
    pub more: u64,
    /// Units admitted and not, or no longer, charged.
    pub less: u64,
    /// Requests that arrived upstream without having been admitted, or the other way round.
    pub astray: u64,
}

impl Difference {
    pub fn exact(&self) -> bool {
        (self.more, self.less, self.astray) == (0, 0, 0)
    }

    pub fn text(&self) -> String {
        let Self { admitted, more, less, astray } = *self;
        let mut text = match (more, less) {
            (0, 0) => format!("counters equal the {admitted} admissions"),
            (more, less) => {
                format!(
                    "counters have {more} units more and {less} less than {admitted} admissions"
                )
            }
        };
        if astray > 0 {
            let _ = write!(text, ", and {astray} more or fewer requests arrived upstream");
        }
        text
    }
}

/// The configuration of all proxies.
fn config(cluster: &Cluster, upstream: &Counting, setting: &Setting) -> Toml {
    let mut toml =
        Toml::new().server(&format!("workers = {WORKERS}")).upstream("api", &upstream.url(), "");
    let fixed = "algorithm = \"fixed_window\", period = \"400d\"";
    let common = [
        Route { name: "huge", limits: vec![format!("{fixed}, quota = {HUGE}")], more: "" },
        Route { name: "tight", limits: vec![format!("{fixed}, quota = {TIGHT}")], more: "" },
    ];
    for Route { name, limits, more } in common.iter().chain(setting.routes) {
        let limits: Vec<String> = limits
            .iter()
            .enumerate()
            .map(|(number, limit)| {
                let key =
                    if limit.contains("key =") { "" } else { ", key = \"{header.x-tenant}\"" };
                format!("name = \"limit{number}\", {limit}{key}")
            })
            .collect();
        let limits: Vec<&str> = limits.iter().map(String::as_str).collect();
        let path = if *name == "all" { "*" } else { name };
        toml = toml.policy(name, &limits).route(&format!(
            "name = \"{name}\"\npath = \"/{path}\"\nupstream = \"api\"\npolicy = \"{name}\"\n{more}"
        ));
    }
    let nodes: Vec<String> =
        cluster.nodes.iter().map(|node| format!("\"{}\"", node.address)).collect();
    toml.store = format!(
        "[store]\nengine = \"redis\"\non_store_error = \"deny\"\nlocal_share = \"1/{PROXIES}\"\ndeadline = \"{}ms\"\n\n[store.redis]\nmode = \"cluster\"\nnodes = [{}]\n",
        setting.deadline.as_millis(),
        nodes.join(", ")
    );
    toml
}

/// The same for a proxy that reaches some nodes by other addresses than those that they announce.
fn with_addresses(toml: &Toml, addresses: &[(SocketAddr, SocketAddr)]) -> Toml {
    let mut toml = toml.clone();
    if !addresses.is_empty() {
        toml.store.push_str("\n[store.redis.addresses]\n");
    }
    for (announced, reached) in addresses {
        let _ = writeln!(toml.store, "\"{announced}\" = \"{reached}\"");
    }
    toml
}
