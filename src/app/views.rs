//! What the operator's pages show of the running proxy.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::StatusCode;
use serde_json::{Value, json};

use super::Instance;
use super::build::ConfigBuild;
use super::counters::{self, CounterError};
use super::{documents, explain, top};
use crate::admin::{CounterQuery, TopQuery, Views};
use crate::config::RouteAction;
use crate::policy::{self, Module, Policy, PolicyStats};
use crate::telemetry::Label;
use crate::upstream::{ConcurrencyStatus, EndpointStatus, Upstream};
use crate::wire::Body;

fn describe(built: &ConfigBuild) -> Value {
    let routes: Vec<Value> = built
        .routes
        .iter()
        .map(
            |route| {
                let (path, domain) = match &route.action {
                    RouteAction::Decide(domain) => (None, Some(domain)),
                    _ => (Some(&route.path), None),
                };
                json!({ "name": route.name, "host": route.host, "path": path, "domain": domain, "methods": route.methods, "policy": route.policy })
            },
        )
        .collect();
    let mut policies: Vec<&String> = built.policies.keys().collect();
    let mut upstreams: Vec<&String> = built.upstreams.keys().collect();
    policies.sort();
    upstreams.sort();
    json!({ "routes": routes, "policies": policies, "upstreams": upstreams })
}

/// Each policy: which module it runs, and how it has fared.
fn policies(built: &ConfigBuild) -> BTreeMap<&String, Value> {
    let policy = |settings: &policy::Settings, policy: &Policy| {
        let (key, module) = match &settings.module {
            Module::Shipped(name) => ("use", name.clone()),
            Module::File { path, .. } => ("wasm", path.display().to_string()),
        };
        let PolicyStats { digest, calls, errors, not_called, time_us, memory_bytes, stopped } =
            policy.stats();
        json!({
            key: module,
            "digest": digest,
            "calls": calls,
            "errors": errors,
            "not_called": not_called,
            "time_us": time_us,
            "memory_bytes": memory_bytes,
            "stopped": stopped,
        })
    };
    let all = built.policies.iter();
    all.map(|(name, (settings, built))| (name, policy(settings, built))).collect()
}

/// The content of the admin pages.
#[derive(Debug)]
pub(super) struct Pages(pub(super) Arc<Instance>);

impl Views for Pages {
    /// Ready means: not draining, and some shard of the store can decide or no route needs the
    /// store (no `on_store_error = "deny"`). Otherwise a load balancer would remove all
    /// proxies at once, since they share the store: with a shard lost, the other shards' requests
    /// are still served.
    async fn ready(&self) -> Result<String, String> {
        if self.0.drain.started() || self.0.leaving.load(Ordering::SeqCst) {
            return Err("shutting down".into());
        }
        let applied = self.0.current.load();
        let engine = &applied.built.engine;
        match engine.ping().await {
            Ok(failing) if failing.is_empty() => Ok("ready".into()),
            Ok(failing) => {
                let shards: Vec<String> = failing
                    .iter()
                    .map(|(node, cause)| format!("{node} ({})", cause.label()))
                    .collect();
                Ok(format!("ready, but degraded: Redis shards are failing: {}", shards.join(", ")))
            }
            Err(error) if applied.store_is_needed => Err(engine.explain(&error)),
            Err(error) => Ok(format!(
                "ready, but degraded: {}; no route denies requests because of that",
                engine.explain(&error)
            )),
        }
    }

    async fn counters(
        &self,
        query: CounterQuery,
        forget: bool,
    ) -> Result<String, (StatusCode, String)> {
        let applied = self.0.current.load();
        let limiter = &applied.built.limiter;
        let answer = counters::look(limiter, &applied.charges, &query, forget).await;
        if forget && answer.is_ok() {
            // Without the key: it may name a person, or be a secret.
            tracing::info!(
                policy = query.policy,
                limit = query.limit,
                "counters were reset by hand"
            );
        }
        answer.map_err(|error| {
            let status = match error {
                CounterError::Query(_) => StatusCode::BAD_REQUEST,
                CounterError::Store(_) | CounterError::InMemory => StatusCode::SERVICE_UNAVAILABLE,
            };
            (status, error.to_string())
        })
    }

    fn explain(&self, request_id: Option<String>) -> Result<String, (StatusCode, String)> {
        explain::explain(&self.0, request_id.as_deref())
    }

    fn top(&self, query: TopQuery) -> String {
        top::top(&self.0, &query)
    }

    async fn reload(&self) -> (StatusCode, String) {
        self.0.reloads.ask().await
    }

    fn watch(&self) -> Result<Body, (StatusCode, String)> {
        self.0.page.watch(&self.0)
    }

    fn status(&self) -> String {
        let built = &self.0.current.load().built;
        let reloads = self.0.reloads.describe();
        let endpoint = |one: EndpointStatus| {
            json!({
                "endpoint": one.endpoint,
                "address": one.address.to_string(),
                "ejected": one.ejected,
                "healthy": one.healthy,
                "check_failed": one.check_failed,
            })
        };
        let upstream = |(name, (_, upstream)): (_, &(_, Arc<Upstream>))| {
            (name, Value::Array(upstream.status().into_iter().map(endpoint).collect()))
        };
        let upstreams: BTreeMap<_, _> = built.upstreams.iter().map(upstream).collect();
        let concurrency = |(name, (_, upstream)): (_, &(_, Arc<Upstream>))| {
            let ConcurrencyStatus { limit, in_flight, waiting, base } = upstream.concurrency()?;
            let base_us = base.map(|base| base.as_micros());
            let shown = json!({
                "limit": limit,
                "in_flight": in_flight,
                "waiting": waiting,
                "base_us": base_us,
            });
            Some((name, shown))
        };
        let concurrency: BTreeMap<_, _> = built.upstreams.iter().filter_map(concurrency).collect();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "started": self.0.started_us / 1_000_000,
            "configuration": describe(built),
            "policies": policies(built),
            "upstreams": upstreams,
            "concurrency": concurrency,
            "documents": documents::describe(&self.0.documents),
            "certificates": self.0.certificates.describe(),
            "last_reload": reloads.first(),
            "reloads": reloads,
        })
        .to_string()
    }
}
