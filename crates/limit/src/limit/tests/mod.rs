//! The limiter through its public interface: on the embedded engine with a virtual clock, and on a
//! real Redis, whose calls take time or fail.

mod debts;
mod embedded;
mod explored_refusals;
mod held;
mod hierarchies;
mod leased;
mod leases;
mod looking;
mod periods;
mod places;
mod probing;
mod redis;
mod redis_server;
mod refusals;
mod scripted;
mod settling;
mod shaping;
mod standing_in;
mod whole;

use std::sync::Arc;
use std::time::Duration;

use super::{Limiter, Scope, Settings, Take};
use crate::clock::Clock;
use crate::engine::{
    EmbeddedSettings, Engine, RedisMode, RedisSettings, Secret, Settings as EngineSettings,
};
use crate::plan::{
    Adjustment, Algorithm, Alignment, Change, Debt, Enforcement, FixedWindow, Limit, LimitOutcome,
    OnStoreError, Plan, PlanOutcome, Rate, Refund,
};
use crate::telemetry::{Metrics, names};

const SECOND_US: u64 = 1_000_000;
/// A whole number of days since 1970, so that windows aligned to the clock begin here.
const START_US: i64 = 86_400_000_000 * 20_000;
/// Long enough that no test fails because the machine is busy.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// A limiter with its engine, metrics and scope.
struct Rig {
    limiter: Limiter,
    metrics: Metrics,
    /// The embedded engine's. Redis has a time of its own.
    clock: Clock,
    scope: Arc<Scope>,
    connected: std::sync::atomic::AtomicBool,
}

impl Rig {
    fn embedded() -> Self {
        Self::new(&in_memory(), None)
    }

    fn redis(port: u16) -> Self {
        Self::new(&on_redis(port), None)
    }

    fn new(settings: &EngineSettings, key_secret: Option<&str>) -> Self {
        let key_secret = key_secret.map(|secret| Secret(secret.into()));
        Self::with(settings, Settings { deadline: TEST_TIMEOUT, key_secret, ..Settings::default() })
    }

    fn with(engine: &EngineSettings, settings: Settings) -> Self {
        let clock = Clock::virtual_at(START_US);
        let limiter_clock = match engine {
            EngineSettings::Embedded(_) => clock.clone(),
            EngineSettings::Redis(_) => Clock::system(),
        };
        Self::with_clocks(engine, settings, clock, limiter_clock)
    }

    fn with_clocks(
        engine: &EngineSettings,
        settings: Settings,
        engine_clock: Clock,
        limiter_clock: Clock,
    ) -> Self {
        let metrics = Metrics::new(1);
        let engine = Arc::new(Engine::build(engine, engine_clock.clone(), &metrics).unwrap());
        Self {
            limiter: Limiter::new(settings, engine, limiter_clock, metrics.clone()),
            metrics,
            clock: engine_clock,
            scope: scope("public", OnStoreError::Deny),
            connected: std::sync::atomic::AtomicBool::new(false),
        }
    }

    /// One on each engine, with these settings.
    fn both(server: &redis_server::Server, settings: &Settings) -> [Self; 2] {
        [
            Self::with(&in_memory(), settings.clone()),
            Self::with(&on_redis(server.port), settings.clone()),
        ]
    }

    /// One on each engine, whose limiters' clocks are at these times, in microseconds since 1970.
    fn both_at(server: &redis_server::Server, limiter_us: [i64; 2]) -> [Self; 2] {
        let [embedded, redis] = limiter_us.map(Clock::virtual_at);
        let engine_clock = || Clock::virtual_at(START_US);
        [
            Self::with_clocks(&in_memory(), with_test_timeout(), engine_clock(), embedded),
            Self::with_clocks(&on_redis(server.port), with_test_timeout(), engine_clock(), redis),
        ]
    }

    fn name(&self) -> &'static str {
        if matches!(*self.limiter.shared.engine, Engine::Redis(_)) { "redis" } else { "embedded" }
    }

    async fn admits(&self, limit: &Limit) -> bool {
        self.outcome(std::slice::from_ref(limit)).await.admitted
    }

    async fn grant(&self, limit: &Limit) -> super::Grant {
        granted(self.take(std::slice::from_ref(limit)).await).1
    }

    async fn take(&self, limits: &[Limit]) -> Take {
        if !self.connected.swap(true, std::sync::atomic::Ordering::Relaxed) {
            // On a loaded machine the first connection may take longer than the connection timeout,
            // which these tests are not about.
            for _ in 0..3 {
                if self.limiter.shared.engine.ping().await.is_ok() {
                    break;
                }
            }
        }
        self.limiter.take(&self.scope, &plan(limits)).await
    }

    /// Takes, and drops the grant without a refund.
    async fn outcome(&self, limits: &[Limit]) -> PlanOutcome {
        match self.take(limits).await {
            Take::Granted(outcome, _) | Take::Refused(outcome) => outcome,
            Take::Unavailable(_) => panic!("the store answers"),
        }
    }

    /// The units left, without taking any.
    async fn remaining(&self, limit: &Limit) -> u64 {
        self.outcome(&[Limit { cost: 0, ..limit.clone() }]).await.limits[0].remaining
    }

    fn count(&self, name: names::Name, labels: &[&str]) -> u64 {
        self.metrics.counter(name, labels).get()
    }
}

fn in_memory() -> EngineSettings {
    EngineSettings::Embedded(EmbeddedSettings::new(10_000))
}

fn with_test_timeout() -> Settings {
    Settings { deadline: TEST_TIMEOUT, ..Settings::default() }
}

fn on_redis(port: u16) -> EngineSettings {
    redis_settings(port).into()
}

fn redis_settings(port: u16) -> RedisSettings {
    RedisSettings {
        deadline: TEST_TIMEOUT,
        ..RedisSettings::new(vec![format!("127.0.0.1:{port}")], RedisMode::Single)
    }
}

fn scope(name: &str, on_store_error: OnStoreError) -> Arc<Scope> {
    Arc::new(Scope::new(name.into(), "public".into(), on_store_error, false))
}

fn plan(limits: &[Limit]) -> Arc<Plan> {
    Arc::new(Plan::new(limits.to_vec()).unwrap())
}

/// `amount` in each window aligned to the clock.
fn window(amount: u64, per_ms: u64) -> Algorithm {
    Algorithm::FixedWindow(FixedWindow {
        rate: Rate { amount, per_ms },
        alignment: Alignment::Clock,
        debt: Debt::None,
    })
}

/// `amount` a day under `key`.
fn daily(name: &str, key: &str, amount: u64) -> Limit {
    Limit::new(name, key, window(amount, 86_400_000))
}

fn shadow(limit: Limit) -> Limit {
    Limit { enforcement: Enforcement::Shadow, ..limit }
}

fn refunded(limit: Limit, refund: Refund) -> Limit {
    Limit { refund, ..limit }
}

fn granted(take: Take) -> (PlanOutcome, super::Grant) {
    match take {
        Take::Granted(outcome, grant) => (outcome, grant),
        other => panic!("{other:?}"),
    }
}

fn refused(take: Take) -> PlanOutcome {
    match take {
        Take::Refused(outcome) => outcome,
        other => panic!("{other:?}"),
    }
}

fn remaining(outcome: &PlanOutcome) -> Vec<u64> {
    outcome.limits.iter().map(|limit: &LimitOutcome| limit.remaining).collect()
}
