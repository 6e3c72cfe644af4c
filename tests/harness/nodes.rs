//! The limiter as a library, for tests of counting alone: nodes that share a Redis as proxies do,
//! without a request around each decision.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Barrier;
use weir::clock::Clock;
use weir::engine::{EmbeddedSettings, Engine, RedisMode, RedisSettings};
use weir::limit::{Limiter, Scope, Settings, Take};
use weir::plan::{
    Algorithm, Alignment, Calendar, Debt, FixedWindow, Gcra, Limit, OnStoreError, Plan,
    PlanOutcome, Quota, Rate, SlidingWindowLog, TokenBucket,
};
use weir::telemetry::Metrics;

/// Too long to be reached on a busy machine: these tests are about counts, not about time.
const DEADLINE: Duration = Duration::from_secs(20);

/// A node that shares its counters with others and has connections of its own.
#[derive(Clone)]
pub struct Node {
    pub limiter: Arc<Limiter>,
    pub scope: Arc<Scope>,
}

impl Node {
    /// A node on one Redis.
    pub fn single(address: SocketAddr) -> Self {
        Self::on(&[address], RedisMode::Single)
    }

    pub fn cluster(addresses: &[SocketAddr]) -> Self {
        Self::on(addresses, RedisMode::Cluster)
    }

    fn on(addresses: &[SocketAddr], mode: RedisMode) -> Self {
        let nodes = addresses.iter().map(ToString::to_string).collect();
        let settings = RedisSettings { deadline: DEADLINE, ..RedisSettings::new(nodes, mode) };
        Self::with(&settings.into())
    }

    /// A node in memory. Its clones share the counters.
    pub fn embedded() -> Self {
        Self::with(&weir::engine::Settings::Embedded(EmbeddedSettings::new(1_000_000)))
    }

    fn with(settings: &weir::engine::Settings) -> Self {
        let metrics = Metrics::new(1);
        let engine = Engine::build(settings, Clock::system(), &metrics).expect("an engine");
        let limiter = Limiter::new(
            // Tests move Redis' clock, of which remembered refusals know nothing.
            Settings { deadline: DEADLINE, refusals_held: Duration::ZERO, ..Settings::default() },
            Arc::new(engine),
            Clock::system(),
            metrics,
        );
        let scope = Scope::new("nodes".into(), "nodes".into(), OnStoreError::Deny, false);
        Self { limiter: Arc::new(limiter), scope: Arc::new(scope) }
    }

    /// `count` nodes on one Redis.
    pub fn several(count: usize, address: SocketAddr) -> Vec<Self> {
        (0..count).map(|_| Self::single(address)).collect()
    }

    pub async fn take(&self, plan: &Arc<Plan>) -> Take {
        self.limiter.take(&self.scope, plan).await
    }

    /// Takes, and drops the grant, so that the charge stands.
    pub async fn ask(&self, plan: &Arc<Plan>) -> PlanOutcome {
        match self.take(plan).await {
            Take::Granted(outcome, _) | Take::Refused(outcome) => outcome,
            Take::Unavailable(cause) => panic!("the store did not answer: {cause}"),
        }
    }

    /// How many of `tries` takes, one after another, are admitted.
    pub async fn admitted(&self, plan: &Arc<Plan>, tries: usize) -> u64 {
        let mut admitted = 0;
        for _ in 0..tries {
            admitted += u64::from(self.ask(plan).await.admitted);
        }
        admitted
    }

    /// What is left of the first limit, by a look that takes nothing.
    pub async fn left(&self, plan: &Arc<Plan>) -> u64 {
        let looks = plan.limits().iter().map(|limit| Limit { cost: 0, ..limit.clone() });
        self.ask(&of(looks.collect())).await.limits[0].remaining
    }

    /// Waits until everything that was given back has arrived.
    pub async fn drain(&self) {
        self.limiter.drain(DEADLINE).await;
    }
}

/// A plan of these limits.
pub fn of(limits: Vec<Limit>) -> Arc<Plan> {
    Arc::new(Plan::new(limits).expect("a plan"))
}

/// A plan of one limit of cost 1.
pub fn one(key: &str, algorithm: Algorithm) -> Arc<Plan> {
    of(vec![Limit::new("limit", key, algorithm)])
}

pub fn fixed_window(amount: u64, per_ms: u64) -> Algorithm {
    Algorithm::FixedWindow(FixedWindow {
        rate: Rate { amount, per_ms },
        alignment: Alignment::FirstRequest,
        debt: Debt::None,
    })
}

/// Every exact algorithm, for `amount` units and periods of `per_ms`; `quota` never restarts.
pub fn exact(amount: u64, per_ms: u64) -> Vec<Algorithm> {
    let rate = Rate { amount, per_ms };
    vec![
        fixed_window(amount, per_ms),
        Algorithm::FixedWindow(FixedWindow { rate, alignment: Alignment::Clock, debt: Debt::None }),
        Algorithm::SlidingWindowLog(SlidingWindowLog { rate, debt: Debt::None }),
        Algorithm::TokenBucket(TokenBucket { burst: amount, rate, debt: Debt::None }),
        Algorithm::Gcra(Gcra { burst: amount, rate, debt: Debt::None }),
        Algorithm::Quota(Quota {
            amount,
            calendar: Calendar::Forever,
            conditional: true,
            debt: Debt::None,
        }),
    ]
}

/// `count` takes of one plan by these nodes, all started together. Returns the number admitted.
pub async fn together(nodes: &[Node], count: usize, plan: &Arc<Plan>) -> u64 {
    let barrier = Arc::new(Barrier::new(count));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..count {
        let (node, plan, barrier) =
            (nodes[number % nodes.len()].clone(), Arc::clone(plan), Arc::clone(&barrier));
        tasks.spawn(async move {
            barrier.wait().await;
            node.ask(&plan).await.admitted
        });
    }
    tasks.join_all().await.into_iter().map(u64::from).sum()
}
