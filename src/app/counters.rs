//! Counters for a person who asks: of the running house for the admin's page, and straight from Redis for `weir key`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::clock::Clock;
use crate::config::{Config, Route};
use crate::engine::{Engine, EngineError, Settings};
use crate::limit::{Counter, Limiter, Scope, Wanted};
use crate::telemetry::Metrics;

pub use crate::admin::CounterQuery;

/// Of one call to Redis: whoever asks by hand has more time than a request.
const DEADLINE: Duration = Duration::from_secs(5);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum NoCounters {
    /// What was asked for can't be.
    #[error("{0}")]
    Query(String),
    /// The store can't be asked.
    #[error("{0}")]
    Store(String),
    /// Counters in memory are those of a running proxy: its admin listener shows them.
    #[error("counters in memory are asked of the running proxy: expected an [admin] address in its configuration, or --admin")]
    InMemory,
}

impl From<EngineError> for NoCounters {
    fn from(error: EngineError) -> Self {
        Self::Store(error.to_string())
    }
}

/// What a route charges.
#[derive(Clone, Debug)]
pub(super) struct Charges {
    route: String,
    policy: String,
    /// Its counters are its own.
    own: bool,
}

impl Charges {
    pub(super) fn of(routes: &[Route]) -> Vec<Self> {
        let charges = |route: &Route| {
            let policy = route.policy.clone()?;
            Some(Self { route: route.name.clone(), policy, own: route.scope_is_route })
        };
        routes.iter().filter_map(charges).collect()
    }
}

/// The counters that `query` names as JSON, counted where `config` says; with `forget` they are forgotten. Only of a store outside this process: [`NoCounters::InMemory`] otherwise.
///
/// # Errors
/// See [`NoCounters`].
pub fn counters(config: &Config, query: &CounterQuery, forget: bool) -> Result<String, NoCounters> {
    let Settings::Redis(settings) = &config.engine else {
        return Err(NoCounters::InMemory);
    };
    let settings = Settings::Redis(crate::engine::RedisSettings { deadline: DEADLINE, ..settings.clone() });
    let metrics = Metrics::new(1);
    let engine = Engine::build(&settings, Clock::system(), &metrics).map_err(|mistake| NoCounters::Store(mistake.found))?;
    let limiter = Limiter::new(config.limiter.clone(), Arc::new(engine), metrics);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| NoCounters::Store(error.to_string()))?;
    runtime.block_on(look(&limiter, &Charges::of(&config.routes), query, forget))
}

pub(super) async fn look(limiter: &Limiter, charges: &[Charges], query: &CounterQuery, forget: bool) -> Result<String, NoCounters> {
    let CounterQuery { policy, limit, key, tag, route } = query.clone();
    let wanted = Wanted { scope: scope(charges, &policy, route.as_deref())?, limit, key, tag };
    let found = limiter.find(&wanted).await?;
    if forget {
        for counter in &found {
            limiter.forget(counter).await?;
        }
    }
    let counters: Vec<Value> = found.iter().map(described).collect();
    Ok(json!({ "forgotten": forget, "counters": counters }).to_string())
}

fn described(counter: &Counter) -> Value {
    json!({
        "algorithm": counter.algorithm,
        "shape": counter.shape,
        "state": counter.state,
        "expires_s": counter.expires.map(|expires| expires.as_secs_f64()),
        "redis_key": counter.redis_key,
    })
}

/// Whose counters a policy's are.
fn scope(charges: &[Charges], policy: &str, route: Option<&str>) -> Result<String, NoCounters> {
    let list = |names: Vec<&str>| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let all: Vec<&Charges> = charges.iter().filter(|charges| charges.policy == policy).collect();
    if all.is_empty() {
        let mut known: Vec<&str> = charges.iter().map(|charges| charges.policy.as_str()).collect();
        known.sort_unstable();
        known.dedup();
        return Err(NoCounters::Query(format!("policy: found {policy:?}, expected one that a route names: {}", list(known))));
    }
    let routes = || list(all.iter().map(|charges| charges.route.as_str()).collect());
    match route {
        Some(route) => match all.iter().find(|charges| charges.route == route) {
            Some(charges) => Ok(Scope::name_of(policy, charges.own.then_some(route))),
            None => Err(NoCounters::Query(format!("route: found {route:?}, expected one with the policy {policy}: {}", routes()))),
        },
        None if all.iter().all(|charges| charges.own) => {
            Err(NoCounters::Query(format!("route: found none, expected one, since each has counters of its own: {}", routes())))
        }
        None => Ok(Scope::name_of(policy, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_belong_to_a_policy_or_to_a_policy_on_a_route() {
        let charges = |route: &str, policy: &str, own| Charges { route: route.into(), policy: policy.into(), own };
        let all = [charges("a", "shared", false), charges("b", "shared", true), charges("c", "own", true)];
        let said = |policy: &str, route: Option<&str>| scope(&all, policy, route).map_err(|error| error.to_string());
        assert_eq!(said("shared", None).unwrap(), "shared");
        assert_eq!(said("shared", Some("a")).unwrap(), "shared");
        assert_eq!(said("shared", Some("b")).unwrap(), "shared@b");
        assert_eq!(said("own", Some("c")).unwrap(), "own@c");
        assert_eq!(said("own", None).unwrap_err(), "route: found none, expected one, since each has counters of its own: c");
        assert_eq!(said("own", Some("a")).unwrap_err(), "route: found \"a\", expected one with the policy own: c");
        assert_eq!(said("x", None).unwrap_err(), "policy: found \"x\", expected one that a route names: own, shared");
        assert!(scope(&[], "x", None).unwrap_err().to_string().ends_with(": none"));
    }
}
