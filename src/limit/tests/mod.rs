//! The limiter through its door: on the embedded engine under a virtual clock, and on a real Redis
//! where its calls take time or fail.

mod embedded;
mod leases;
mod looking;
mod periods;
mod redis;
mod redis_server;
mod scripted;
mod settling;
mod shaping;

use std::sync::Arc;
use std::time::Duration;

use super::{Limiter, Scope, Settings, Take};
use crate::clock::Clock;
use crate::engine::{
    EmbeddedSettings, Engine, RedisMode, RedisSettings, Secret, Settings as EngineSettings,
};
use crate::plan::{
    Adjustment, Algorithm, Alignment, Change, Enforcement, FixedWindow, Limit, LimitOutcome,
    OnStoreError, Outcome, Plan, Rate, Refund,
};
use crate::telemetry::{Metrics, names};

const SECOND_US: u64 = 1_000_000;
/// A whole day since 1970, so that windows by the clock begin here.
const START_US: i64 = 86_400_000_000 * 20_000;
/// Long enough that no test ends because a machine was busy.
const PATIENCE: Duration = Duration::from_secs(20);

/// A limiter with what it needs.
struct Rig {
    limiter: Limiter,
    metrics: Metrics,
    clock: Clock,
    scope: Arc<Scope>,
    asked: std::sync::atomic::AtomicBool,
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
        Self::with(settings, Settings { deadline: PATIENCE, key_secret, ..Settings::default() })
    }

    fn with(engine: &EngineSettings, settings: Settings) -> Self {
        let clock = Clock::virtual_at(START_US);
        let metrics = Metrics::new(1);
        let engine = Arc::new(Engine::build(engine, clock.clone(), &metrics).unwrap());
        let limiter = Limiter::new(settings, engine, metrics.clone());
        Self {
            limiter,
            metrics,
            clock,
            scope: scope("public", OnStoreError::Deny),
            asked: std::sync::atomic::AtomicBool::new(false),
        }
    }

    /// One on each engine, with these settings.
    fn both(server: &redis_server::Server, settings: &Settings) -> [Self; 2] {
        [
            Self::with(&in_memory(), settings.clone()),
            Self::with(&on_redis(server.port), settings.clone()),
        ]
    }

    /// The proxy's own clock, which names a calendar's periods.
    fn believing(mut self, clock: Clock) -> Self {
        Arc::get_mut(&mut self.limiter.shared).unwrap().clock = clock;
        self
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
        if !self.asked.swap(true, std::sync::atomic::Ordering::Relaxed) {
            // On a loaded machine a first connection may take longer than a proxy waits for one:
            // these tests are not about that.
            for _ in 0..3 {
                if self.limiter.shared.engine.ping().await.is_ok() {
                    break;
                }
            }
        }
        self.limiter.take(&self.scope, &plan(limits)).await
    }

    /// Takes, and what was granted stays granted.
    async fn outcome(&self, limits: &[Limit]) -> Outcome {
        match self.take(limits).await {
            Take::Granted(outcome, _) | Take::Refused(outcome) => outcome,
            Take::Unavailable => panic!("the store answers"),
        }
    }

    /// What is left, without taking any.
    async fn remaining(&self, limit: &Limit) -> u64 {
        self.outcome(&[Limit { cost: 0, ..limit.clone() }]).await.limits[0].remaining
    }

    fn count(&self, name: names::Name, labels: &[&str]) -> u64 {
        self.metrics.counter(name, labels).get()
    }
}

fn in_memory() -> EngineSettings {
    EngineSettings::Embedded(EmbeddedSettings { keys_max: 10_000 })
}

fn patient() -> Settings {
    Settings { deadline: PATIENCE, ..Settings::default() }
}

fn on_redis(port: u16) -> EngineSettings {
    EngineSettings::Redis(redis_settings(port))
}

fn redis_settings(port: u16) -> RedisSettings {
    RedisSettings {
        nodes: vec![format!("127.0.0.1:{port}")],
        mode: RedisMode::Single,
        username: None,
        password: None,
        key_prefix: "weir".into(),
        deadline: PATIENCE,
    }
}

fn scope(name: &str, on_store_error: OnStoreError) -> Arc<Scope> {
    Arc::new(Scope::new(name.into(), "public".into(), on_store_error, false))
}

fn plan(limits: &[Limit]) -> Arc<Plan> {
    Arc::new(Plan::new(limits.to_vec()).unwrap())
}

/// So many in each window by the clock.
fn window(amount: u64, per_ms: u64) -> Algorithm {
    Algorithm::FixedWindow(FixedWindow {
        rate: Rate { amount, per_ms },
        alignment: Alignment::Clock,
    })
}

/// So many a day under `key`.
fn daily(name: &str, key: &str, amount: u64) -> Limit {
    Limit::new(name, key, window(amount, 86_400_000))
}

fn shadow(limit: Limit) -> Limit {
    Limit { enforcement: Enforcement::Shadow, ..limit }
}

fn refunded(limit: Limit, refund: Refund) -> Limit {
    Limit { refund, ..limit }
}

fn granted(take: Take) -> (Outcome, super::Grant) {
    match take {
        Take::Granted(outcome, grant) => (outcome, grant),
        other => panic!("{other:?}"),
    }
}

fn refused(take: Take) -> Outcome {
    match take {
        Take::Refused(outcome) => outcome,
        other => panic!("{other:?}"),
    }
}

fn remaining(outcome: &Outcome) -> Vec<u64> {
    outcome.limits.iter().map(|limit: &LimitOutcome| limit.remaining).collect()
}
