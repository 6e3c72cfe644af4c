//! Looks counters up for a person: those of the running proxy for the admin page, and straight from
//! Redis for `weir key`.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::build::Builder;
use crate::clock::Clock;
use crate::config::{Config, ConfigErrors, Route, setting};
use crate::engine::{Cause, Engine, EngineError, LeaseHolder, Settings};
use crate::limit::{Counter, KeyDigestError, Limiter, Scope};
use crate::plan::Algorithm;
use crate::policy::DeclaredLimit;
use crate::telemetry::Metrics;

pub use crate::admin::{CounterQuery, KeySelector};

/// The time limit on one call to Redis: a person can wait longer than a request.
const DEADLINE: Duration = Duration::from_secs(5);
/// What listing counters needs that requests don't: docs/redis.md.
const LISTING_GRANTS: &str = "listing counters needs +exists +scan, and in a cluster \
                              +cluster|countkeysinslot +cluster|getkeysinslot";

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum CounterError {
    /// The query is wrong.
    #[error("{0}")]
    Query(String),
    /// The store does not answer.
    #[error("{0}")]
    Store(String),
    /// Counters are in the memory of a running proxy: its admin listener shows them.
    #[error(
        "counters in memory are read from the running proxy: expected an [admin] address in its configuration, or --admin"
    )]
    InMemory,
}

/// What a route charges.
#[derive(Clone, Debug)]
pub(super) struct Charges {
    route: String,
    policy: String,
    /// The route's counters are its own, not shared with other routes of the policy.
    own: bool,
    /// What the policy says that it charges. Empty where it makes up its limits.
    limits: Arc<[DeclaredLimit]>,
}

impl Charges {
    /// `policies` are those whose limits are known, by name.
    pub(super) fn of<'a>(
        routes: &[Route],
        policies: impl IntoIterator<Item = (&'a str, &'a [DeclaredLimit])>,
    ) -> Vec<Self> {
        let limits: HashMap<&str, Arc<[DeclaredLimit]>> =
            policies.into_iter().map(|(name, limits)| (name, limits.into())).collect();
        let charges = |route: &Route| {
            let policy = route.policy.clone()?;
            let limits = limits.get(policy.as_str()).cloned().unwrap_or_default();
            Some(Self { route: route.name.clone(), policy, own: route.scope_is_route, limits })
        };
        routes.iter().filter_map(charges).collect()
    }
}

/// What counts the limit with this name. Where several have it, as those of plans do, the beginning
/// of a key selects one. `may_lease`: the limiter has leases.
fn algorithms(
    declared: &[DeclaredLimit],
    limit: &str,
    key: &str,
    may_lease: bool,
) -> Vec<Algorithm> {
    let named = || declared.iter().filter(|one| one.name == limit);
    let meant =
        |one: &&DeclaredLimit| !one.key_prefix.is_empty() && key.starts_with(&one.key_prefix);
    let meant: Vec<&DeclaredLimit> = named().filter(meant).collect();
    let all = if meant.is_empty() { named().collect() } else { meant };
    all.into_iter().map(|one| one.counting(!may_lease)).collect()
}

/// The error for a limit that the policy does not have; none where it says of no limit that it has
/// it.
fn unknown_limit(declared: &[DeclaredLimit], policy: &str, limit: &str) -> Option<CounterError> {
    if declared.is_empty() || declared.iter().any(|one| one.name == limit) {
        return None;
    }
    let mut known: Vec<&str> = declared.iter().map(|one| one.name.as_str()).collect();
    known.sort_unstable();
    known.dedup();
    let near = known.iter().map(|known| (strsim::damerau_levenshtein(limit, known), *known)).min();
    let near = near.filter(|(distance, known)| *distance <= (known.len() / 3).max(1));
    let near = near.map(|(_, known)| format!("; the nearest is {known:?}")).unwrap_or_default();
    Some(CounterError::Query(format!(
        "no such limit: found {limit:?}, expected one of the policy {policy}: {}{near}",
        known.join(", ")
    )))
}

/// The counters that `query` names, as JSON, in the store of `config`. With `forget` they are
/// deleted. Works only for a store outside this process, else [`CounterError::InMemory`].
///
/// # Errors
/// See [`CounterError`].
pub fn counters(
    config: &Config,
    query: &CounterQuery,
    forget: bool,
) -> Result<String, CounterError> {
    let Settings::Redis(settings) = &config.engine else {
        return Err(CounterError::InMemory);
    };
    let mut settings = settings.clone();
    settings.deadline = DEADLINE;
    let metrics = Metrics::new(1);
    let engine = Engine::build(&Settings::Redis(settings), Clock::system(), &metrics)
        .map_err(|setting_error| CounterError::Store(setting_error.found))?;
    let limiter = Limiter::new(config.limiter.clone(), Arc::new(engine), Clock::system(), metrics);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| CounterError::Store(error.to_string()))?;
    let limits = limits_of(config, &query.policy);
    let charges = Charges::of(&config.routes, [(query.policy.as_str(), &*limits)]);
    runtime.block_on(look(&limiter, &charges, query, forget))
}

/// Reads a configuration for a command that uses only the settings that `needed` names: files and
/// variables that others name need not be there.
///
/// # Errors
/// All errors.
pub fn load_needed(
    path: &Path,
    needed: &dyn Fn(&Config) -> Vec<String>,
) -> Result<Config, ConfigErrors> {
    Config::load(path).or_else(|errors| errors.or_needed(needed)).map_err(super::complete_alone)
}

/// The settings that [`counters`] uses of a configuration. About counters in memory, the running
/// proxy is asked.
#[must_use]
pub fn needed(config: &Config, policy: &str) -> Vec<String> {
    match config.engine {
        Settings::Redis(_) => vec![setting::STORE.into(), setting::policy(policy)],
        Settings::Embedded(_) => vec![setting::ADMIN.into()],
    }
}

/// The limits of one policy, as it declares them; those that its configuration lists if it can't be
/// built.
fn limits_of(config: &Config, policy: &str) -> Vec<DeclaredLimit> {
    let settings = config.policies.iter().find(|settings| settings.name == policy);
    let Some(settings) = settings else { return Vec::new() };
    let builder = Builder::new(Metrics::new(1), Clock::system(), &config.policy_runtime);
    let built = builder.ok().and_then(|builder| builder.policy(settings).ok());
    built.map_or_else(|| settings.written_limits(), |policy| policy.limits().to_vec())
}

pub(super) async fn look(
    limiter: &Limiter,
    charges: &[Charges],
    query: &CounterQuery,
    forget: bool,
) -> Result<String, CounterError> {
    let CounterQuery { policy, limit, of, route } = query;
    let scope = scope(charges, policy, route.as_deref())?;
    let declared = charges
        .iter()
        .find(|charges| charges.policy == *policy)
        .map(|charges| Arc::clone(&charges.limits))
        .unwrap_or_default();
    let (digest, key) = match of {
        KeySelector::Key { key, tag } => (limiter.digest(key, tag.as_deref()), key.as_str()),
        KeySelector::Digest(digest) => {
            let read = digest.parse();
            let wrong = |error: KeyDigestError| {
                CounterError::Query(format!("digest: found {digest:?}, {error}"))
            };
            (read.map_err(wrong)?, "")
        }
    };
    let known = algorithms(&declared, limit, key, limiter.may_lease());
    let failed = |error: EngineError| CounterError::Store(limiter.explain(&error));
    let found = limiter.find_by_digest(&scope, limit, digest).await;
    let found = found.map_err(|error| not_listed(limiter, &error))?;
    // After the search: a limit that was removed from the file is found until its counters expire.
    if found.is_empty()
        && let Some(unknown) = unknown_limit(&declared, policy, limit)
    {
        return Err(unknown);
    }
    if forget {
        for counter in &found {
            limiter.forget(counter).await.map_err(failed)?;
        }
    }
    let mut counters = Vec::new();
    for counter in &found {
        let holders = limiter.lease_holders(counter).await.map_err(failed)?;
        counters.push(described(counter, limiter.algorithm_of(counter, &known), &holders));
    }
    Ok(json!({ "forgotten": forget, "counters": counters }).to_string())
}

/// Why counters can't be listed. A user who may decide may not do that without more grants.
fn not_listed(limiter: &Limiter, error: &EngineError) -> CounterError {
    let text = limiter.explain(error);
    CounterError::Store(match error.cause {
        Cause::NoPermission => format!("{text}; {LISTING_GRANTS}"),
        _ => text,
    })
}

/// Describes a counter. `known` is the limit that it belongs to.
fn described(counter: &Counter, known: Option<&Algorithm>, holders: &[LeaseHolder]) -> Value {
    let at_ms = counter.at_us / 1_000;
    let lease = |LeaseHolder { name, units, ends_ms }: &LeaseHolder| json!({ "holder": name, "units": units, "ends_in_ms": ends_ms.saturating_sub(at_ms) });
    json!({
        "leases": holders.iter().map(lease).collect::<Vec<_>>(),
        "algorithm": counter.shape.name(),
        "shape": counter.shape.to_string(),
        "state": counter.state(known),
        "expires_s": counter.expires.map(|expires| expires.as_secs_f64()),
        "redis_key": counter.redis_key,
    })
}

/// The scope under which a policy's counters are kept.
fn scope(charges: &[Charges], policy: &str, route: Option<&str>) -> Result<String, CounterError> {
    let list =
        |names: Vec<&str>| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let all: Vec<&Charges> = charges.iter().filter(|charges| charges.policy == policy).collect();
    if all.is_empty() {
        let mut known: Vec<&str> = charges.iter().map(|charges| charges.policy.as_str()).collect();
        known.sort_unstable();
        known.dedup();
        return Err(CounterError::Query(format!(
            "policy: found {policy:?}, expected one that a route names: {}",
            list(known)
        )));
    }
    let routes = || list(all.iter().map(|charges| charges.route.as_str()).collect());
    match route {
        Some(route) => match all.iter().find(|charges| charges.route == route) {
            Some(charges) => Ok(Scope::name_of(policy, charges.own.then_some(route))),
            None => Err(CounterError::Query(format!(
                "route: found {route:?}, expected one with the policy {policy}: {}",
                routes()
            ))),
        },
        None if all.iter().all(|charges| charges.own) => Err(CounterError::Query(format!(
            "route: found none, expected one, since each has counters of its own: {}",
            routes()
        ))),
        None => Ok(Scope::name_of(policy, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Concurrency;

    #[test]
    fn counters_belong_to_a_policy_or_to_a_policy_on_a_route() {
        let charges = |route: &str, policy: &str, own| Charges {
            route: route.into(),
            policy: policy.into(),
            own,
            limits: Arc::default(),
        };
        let all = [
            charges("a", "shared", false),
            charges("b", "shared", true),
            charges("c", "own", true),
        ];
        let found = |policy: &str, route: Option<&str>| {
            scope(&all, policy, route).map_err(|error| error.to_string())
        };
        assert_eq!(found("shared", None).unwrap(), "shared");
        assert_eq!(found("shared", Some("a")).unwrap(), "shared");
        assert_eq!(found("shared", Some("b")).unwrap(), "shared@b");
        assert_eq!(found("own", Some("c")).unwrap(), "own@c");
        assert_eq!(
            found("own", None).unwrap_err(),
            "route: found none, expected one, since each has counters of its own: c"
        );
        assert_eq!(
            found("own", Some("a")).unwrap_err(),
            "route: found \"a\", expected one with the policy own: c"
        );
        assert_eq!(
            found("x", None).unwrap_err(),
            "policy: found \"x\", expected one that a route names: own, shared"
        );
        assert!(scope(&[], "x", None).unwrap_err().to_string().ends_with(": none"));
    }

    #[test]
    fn a_limit_is_the_one_of_the_plan_that_the_key_names() {
        let one = |plan: &str, name: &str, amount| DeclaredLimit {
            name: name.into(),
            at: format!("plans.{plan}[0]"),
            algorithm: Algorithm::Concurrency(Concurrency { amount }),
            key_facts: Vec::new(),
            key_prefix: format!("{plan}/"),
            together: None,
            cost_max: None,
            lease: None,
        };
        let listed = [one("free", "plan", 1), one("gold", "plan", 2), one("gold", "more", 3)];
        let amounts = |limit: &str, key: &str| {
            algorithms(&listed, limit, key, true)
                .iter()
                .filter_map(Algorithm::amount)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            (amounts("plan", "gold/abc"), amounts("plan", "abc"), amounts("other", "x")),
            (vec![2], vec![1, 2], vec![])
        );
        let error = |limit: &str| unknown_limit(&listed, "p", limit).map(|error| error.to_string());
        assert_eq!(error("plan"), None);
        assert_eq!(
            error("plna").unwrap(),
            "no such limit: found \"plna\", expected one of the policy p: more, plan; the nearest is \"plan\""
        );
        assert!(error("zzzzzzzz").unwrap().ends_with(": more, plan"));
        assert!(
            unknown_limit(&[], "p", "x").is_none(),
            "what a guest makes itself is not known here"
        );
    }
}
