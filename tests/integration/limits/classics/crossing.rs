//! Two limits of one, with two tags, and eight clients at once. Taken without a fixed order, they
//! would all refuse each other, each holding what another one needs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use weir::limit::Take;
use weir::plan::{
    Algorithm, Concurrency, Debt, Gcra, LeakyBucket, Limit, Plan, Rate, SlidingWindowBuckets,
    TokenBucket,
};

use crate::harness::TIMEOUT;
use crate::harness::cluster::Cluster;
use crate::harness::nodes::{Node, exact, fixed_window, of};

const CLIENTS: usize = 8;
const ROUNDS: usize = 10;
const YEAR_MS: u64 = 365 * 24 * 3_600_000;

/// Two limits of one each. A plan has at most one leaky bucket, so that is paired with a window.
fn pairs() -> Vec<[Algorithm; 2]> {
    let rate = Rate { amount: 1, per_ms: YEAR_MS };
    let mut pairs: Vec<[Algorithm; 2]> =
        exact(1, YEAR_MS).into_iter().map(|algorithm| [algorithm.clone(), algorithm]).collect();
    let more = [
        Algorithm::SlidingWindowBuckets(SlidingWindowBuckets {
            rate,
            buckets: 10,
            debt: Debt::None,
        }),
        Algorithm::Concurrency(Concurrency { amount: 1 }),
    ];
    pairs.extend(more.map(|algorithm| [algorithm.clone(), algorithm]));
    pairs.push([
        Algorithm::LeakyBucket(LeakyBucket { burst: 1, rate, max_delay_ms: 0 }),
        fixed_window(1, YEAR_MS),
    ]);
    pairs
}

/// The plan of one client. Half of the clients list the two limits in reverse order.
fn plan(pair: &[Algorithm; 2], round: usize, client: usize) -> Arc<Plan> {
    let [one, other] = pair.clone();
    let mut limits = vec![
        Limit::new("one", format!("one of {pair:?} {round}"), one),
        Limit::new("other", format!("other of {pair:?} {round}"), other),
    ];
    if client % 2 == 1 {
        limits.reverse();
    }
    of(limits)
}

fn exactly_one(takes: Vec<Take>, pair: &[Algorithm; 2]) {
    let granted = takes.iter().filter(|take| matches!(take, Take::Granted(..))).count();
    assert!(takes.iter().all(|take| !matches!(take, Take::Unavailable(_))), "{pair:?}");
    assert_eq!(granted, 1, "of {CLIENTS} under {pair:?}");
}

#[tokio::test]
async fn on_a_cluster_of_eight_clients_on_two_limits_of_one_exactly_one_is_admitted() {
    let cluster = Cluster::start();
    // Each client has its own node, as if there were eight proxies.
    let nodes: Vec<Node> = (0..CLIENTS).map(|_| Node::cluster(&cluster.addresses())).collect();
    for pair in pairs() {
        for round in 0..ROUNDS {
            let clients = nodes.iter().enumerate().map(|(client, node)| {
                let (node, plan) = (node.clone(), plan(&pair, round, client));
                async move { node.take(&plan).await }
            });
            // Grants are kept until all clients have their answers. Otherwise a concurrency lease
            // would be released too early.
            exactly_one(clients.collect::<tokio::task::JoinSet<Take>>().join_all().await, &pair);
        }
    }
    assert!(cluster.keys_without_lifetime().iter().all(|key| key.contains("/q2-ever:")));
}

#[test]
fn in_memory_of_eight_threads_on_two_limits_of_one_exactly_one_is_admitted() {
    let node = Node::embedded();
    for pair in pairs() {
        for round in 0..ROUNDS {
            let barrier = Barrier::new(CLIENTS);
            let takes = std::thread::scope(|scope| {
                let clients: Vec<_> = (0..CLIENTS)
                    .map(|client| {
                        let (node, barrier, plan) = (&node, &barrier, plan(&pair, round, client));
                        scope.spawn(move || {
                            let runtime = tokio::runtime::Builder::new_current_thread()
                                .enable_all()
                                .build()
                                .unwrap();
                            barrier.wait();
                            runtime.block_on(node.take(&plan))
                        })
                    })
                    .collect();
                clients.into_iter().map(|client| client.join().unwrap()).collect()
            });
            exactly_one(takes, &pair);
        }
    }
}

const SHARED_A_SECOND: u64 = 200;
const SHARED_AT_ONCE: u64 = 50;

/// A bucket that all clients share and that refills, and a client's own limit of one with another
/// tag.
fn behind(shared: &Algorithm, own: usize) -> Arc<Plan> {
    let own = Limit::new("own", format!("own {own} of {shared:?}"), fixed_window(1, YEAR_MS));
    of(vec![Limit::new("shared", "shared", shared.clone()), own])
}

/// How long clients go on: until an instant, and until so many were admitted.
struct Contention {
    over: Instant,
    least: u64,
    admitted: AtomicU64,
}

impl Contention {
    fn new(over: Duration, least: u64) -> Arc<Self> {
        Arc::new(Self { over: Instant::now() + over, least, admitted: AtomicU64::new(0) })
    }

    fn is_over(&self) -> bool {
        let late = Instant::now().checked_duration_since(self.over);
        late.is_some_and(|late| self.admitted() >= self.least || late > TIMEOUT)
    }

    fn admitted(&self) -> u64 {
        self.admitted.load(Ordering::Relaxed)
    }
}

/// Each client uses one key of its own limits after another, all clients the same ones at the same
/// time.
async fn contend(
    nodes: &[Node],
    shared: &Algorithm,
    own: fn(usize) -> usize,
    contention: &Arc<Contention>,
) {
    let clients = nodes.iter().map(|node| {
        let (node, shared, contention) = (node.clone(), shared.clone(), Arc::clone(contention));
        async move {
            for round in 0.. {
                if contention.is_over() {
                    return;
                }
                let admitted = node.ask(&behind(&shared, own(round))).await.admitted;
                contention.admitted.fetch_add(u64::from(admitted), Ordering::Relaxed);
            }
        }
    });
    clients.collect::<tokio::task::JoinSet<()>>().join_all().await;
}

/// During roll-backs a bucket refills at its rate: it admits what it guarantees, and is full when
/// all other requests are refused by their own limits.
async fn refills(
    node: &Node,
    contend: impl AsyncFn(&Algorithm, fn(usize) -> usize, &Arc<Contention>),
) {
    let rate = Rate { amount: SHARED_A_SECOND, per_ms: 1_000 };
    for shared in [
        Algorithm::Gcra(Gcra { burst: SHARED_AT_ONCE, rate, debt: Debt::None }),
        Algorithm::TokenBucket(TokenBucket { burst: SHARED_AT_ONCE, rate, debt: Debt::None }),
    ] {
        let begun = Instant::now();
        let contention = Contention::new(Duration::from_secs(1), SHARED_AT_ONCE);
        contend(&shared, |round| round, &contention).await;
        let admitted = contention.admitted();
        let most =
            SHARED_AT_ONCE + (begun.elapsed().as_secs_f64() * SHARED_A_SECOND as f64).ceil() as u64;
        assert!(
            (SHARED_AT_ONCE..=most).contains(&admitted),
            "{admitted}, at most {most}: {shared:?}"
        );

        // Once the first key is used up all requests are refused, for twice as long as a burst
        // takes to refill. Mostly it is: but a client that took it may have found the bucket empty,
        // and given it back.
        while node.ask(&behind(&shared, 0)).await.limits[1].fits {}
        let contention = Contention::new(Duration::from_millis(500), 0);
        contend(&shared, |_| 0, &contention).await;
        assert_eq!(contention.admitted(), 0);
        node.drain().await;
        let outcome = node.ask(&behind(&shared, usize::MAX)).await;
        assert_eq!(
            (outcome.admitted, outcome.limits[0].remaining),
            (true, SHARED_AT_ONCE - 1),
            "{shared:?}"
        );
    }
}

#[tokio::test]
async fn on_a_cluster_a_shared_bucket_refills_while_other_limits_refuse() {
    let cluster = Cluster::start();
    let nodes: Vec<Node> = (0..CLIENTS).map(|_| Node::cluster(&cluster.addresses())).collect();
    refills(&nodes[0], async |shared, own, contention| {
        contend(&nodes, shared, own, contention).await;
    })
    .await;
}

#[tokio::test]
async fn in_memory_a_shared_bucket_refills_while_other_limits_refuse() {
    let node = [Node::embedded()];
    let threads = async |shared: &Algorithm, own, contention: &Arc<Contention>| {
        let runtime =
            || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|_| {
                    scope.spawn(|| runtime().block_on(contend(&node, shared, own, contention)))
                })
                .collect();
            clients.into_iter().for_each(|client| client.join().unwrap());
        });
    };
    refills(&node[0], threads).await;
}
