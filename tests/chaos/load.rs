//! A steady load: requests at a fixed rate, over several proxies and shards, each of them recorded.
//!
//! Each connection belongs to one proxy and one shard, so requests that wait for a lost shard hold
//! up no others. A request that is late is sent at once, and those that it delayed are left out, so
//! that the end of an outage is no burst.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::harness::TIMEOUT;
use crate::harness::client::{Client, Reply};

/// Connections for each proxy and shard.
const CONNECTIONS: usize = 4;
/// Maximum number of requests that one load records. It stops sending then.
const SENT_MAX: usize = 1_000_000;
/// Between two looks at what was recorded.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// A path and a tenant, whose counters are all on one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub path: &'static str,
    pub tenant: String,
    /// The cluster's node that was the shard's master at first.
    pub shard: usize,
}

/// What a response says about how its limits were counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Counters on Redis.
    None,
    /// `Weir-Degraded: store`: not at all.
    Store,
    /// `Weir-Degraded: local`: by the proxy alone.
    Local,
}

/// A request and its response.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    pub target: usize,
    pub proxy: usize,
    pub at: Instant,
    pub took: Duration,
    /// 0 if there was no response.
    pub status: u16,
    pub mark: Mark,
}

impl Sent {
    pub fn ended(&self) -> Instant {
        self.at + self.took
    }

    /// Whether Redis decided.
    pub fn decided(&self) -> bool {
        matches!(self.status, 200 | 429) && self.mark == Mark::None
    }
}

/// What a load recorded.
pub struct Log {
    pub targets: Arc<[Target]>,
    pub sent: Vec<Sent>,
}

impl Log {
    /// The requests that `wanted` chooses.
    pub fn of(&self, wanted: impl Fn(&Target, &Sent) -> bool) -> Vec<Sent> {
        let chosen = self.sent.iter().filter(|sent| wanted(&self.targets[sent.target], sent));
        chosen.copied().collect()
    }

    /// The statuses of requests, with how often each was seen.
    pub fn statuses(sent: &[Sent]) -> BTreeMap<u16, usize> {
        let mut counts = BTreeMap::new();
        sent.iter().for_each(|sent| *counts.entry(sent.status).or_default() += 1);
        counts
    }
}

/// The time that all but one in a hundred requests stayed below; zero if there are none.
pub fn p99(sent: &[Sent]) -> Duration {
    let mut times: Vec<Duration> = sent.iter().map(|sent| sent.took).collect();
    times.sort();
    times.get((times.len() * 99).div_ceil(100).saturating_sub(1)).copied().unwrap_or_default()
}

/// The longest time.
pub fn slowest(sent: &[Sent]) -> Duration {
    sent.iter().map(|sent| sent.took).max().unwrap_or_default()
}

struct Shared {
    targets: Arc<[Target]>,
    sent: Mutex<Vec<Sent>>,
    stopped: AtomicBool,
}

/// A load that runs until it is stopped or dropped.
pub struct Load {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    /// Sends `rate` requests a second, spread evenly over the proxies and over the shards of
    /// `targets`. Each request's target is random.
    pub fn start(
        proxies: &[SocketAddr],
        targets: &[Target],
        rate: u32,
        rng: &mut fastrand::Rng,
    ) -> Self {
        let shared = Arc::new(Shared {
            targets: targets.into(),
            sent: Mutex::default(),
            stopped: AtomicBool::new(false),
        });
        let mut by_shard: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (index, target) in targets.iter().enumerate() {
            by_shard.entry(target.shard).or_default().push(index);
        }
        let connections = proxies.len() * by_shard.len() * CONNECTIONS;
        let every = Duration::from_secs(1) * connections as u32 / rate;
        let mut lanes = Vec::new();
        for (proxy, address) in proxies.iter().enumerate() {
            for targets in by_shard.values() {
                for _ in 0..CONNECTIONS {
                    let begin = every.mul_f64(rng.f64());
                    lanes.push(Lane {
                        shared: Arc::clone(&shared),
                        proxy,
                        address: *address,
                        targets: targets.clone(),
                        rng: rng.fork(),
                        begin,
                        every,
                    });
                }
            }
        }
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                let mut tasks = tokio::task::JoinSet::new();
                lanes.into_iter().for_each(|lane| drop(tasks.spawn(lane.run())));
                tasks.join_all().await;
            });
        });
        Self { shared, thread: Some(thread) }
    }

    /// What was recorded so far, of the requests that `wanted` chooses.
    pub fn so_far(&self, wanted: impl Fn(&Target, &Sent) -> bool) -> Vec<Sent> {
        let sent = self.shared.sent.lock().expect("no panic while it is held");
        let chosen = sent.iter().filter(|sent| wanted(&self.shared.targets[sent.target], sent));
        chosen.copied().collect()
    }

    /// Waits until `count` requests that `wanted` chooses were answered by Redis in a row, and sent
    /// after now.
    pub fn await_decided(&self, what: &str, count: usize, wanted: impl Fn(&Target) -> bool) {
        let (from, deadline) = (Instant::now(), Instant::now() + TIMEOUT);
        loop {
            let sent = self.so_far(|target, sent| sent.at >= from && wanted(target));
            let row = sent.iter().rev().take_while(|sent| sent.decided()).count();
            if row >= count {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "not within {TIMEOUT:?}: {what}: {:?}",
                Log::statuses(&sent)
            );
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Ends it when all requests have their responses.
    pub fn stop(mut self) -> Log {
        self.end();
        let sent = std::mem::take(&mut *self.shared.sent.lock().expect("no panic"));
        Log { targets: Arc::clone(&self.shared.targets), sent }
    }

    fn end(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.end();
    }
}

/// One connection's requests.
struct Lane {
    shared: Arc<Shared>,
    proxy: usize,
    address: SocketAddr,
    targets: Vec<usize>,
    rng: fastrand::Rng,
    begin: Duration,
    every: Duration,
}

impl Lane {
    async fn run(mut self) {
        let mut client = None;
        let mut next = tokio::time::Instant::now() + self.begin;
        while !self.shared.stopped.load(Ordering::SeqCst) {
            tokio::time::sleep_until(next).await;
            next = tokio::time::Instant::now().max(next + self.every);
            let index = *self.rng.choice(&self.targets).expect("targets");
            let target = &self.shared.targets[index];
            let at = Instant::now();
            let reply = ask(&mut client, self.address, target.path, &target.tenant).await;
            let sent = Sent {
                target: index,
                proxy: self.proxy,
                at,
                took: at.elapsed(),
                status: reply.as_ref().map_or(0, |reply| reply.status),
                mark: reply.as_ref().map_or(Mark::None, mark),
            };
            let mut all = self.shared.sent.lock().expect("no panic while it is held");
            if all.len() >= SENT_MAX {
                return;
            }
            all.push(sent);
        }
    }
}

/// One request on a connection that is kept, or opened if there is none. `None` if there was no
/// response.
pub async fn ask(
    client: &mut Option<Client>,
    address: SocketAddr,
    path: &str,
    tenant: &str,
) -> Option<Reply> {
    if client.is_none() {
        *client = Client::connect(address).await.ok();
    }
    let reply = client.as_mut()?.get(path, &[("x-tenant", tenant)]).await.ok();
    if reply.is_none() {
        *client = None;
    }
    reply
}

pub fn mark(reply: &Reply) -> Mark {
    match reply.header("weir-degraded").as_str() {
        "" => Mark::None,
        "local" => Mark::Local,
        _ => Mark::Store,
    }
}
