//! What the operator's pages show of the running proxy.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use http::StatusCode;
use serde_json::{Value, json};

use super::Running;
use super::build::Built;
use super::counters::{self, NoCounters};
use crate::admin::{CounterQuery, Views};
use crate::config::Mistakes;
use crate::telemetry::Label;
use crate::upstream::{EndpointStatus, Upstream};

/// How the last reload ended.
#[derive(Debug)]
pub(super) struct LastReload {
    at_s: i64,
    /// None where it was applied.
    mistakes: Option<String>,
}

impl LastReload {
    pub(super) fn new(mistakes: Option<&Mistakes>, now_us: i64) -> Self {
        let mistakes = mistakes.map(|mistakes| mistakes.text.clone());
        Self { at_s: now_us / 1_000_000, mistakes }
    }

    fn describe(&self) -> Value {
        match &self.mistakes {
            None => json!({ "at": self.at_s, "result": "applied" }),
            Some(text) => json!({ "at": self.at_s, "result": "refused", "mistakes": text }),
        }
    }
}

fn describe(built: &Built) -> Value {
    let routes: Vec<Value> = built
        .routes
        .iter()
        .map(
            |route| json!({ "name": route.name, "host": route.host, "path": route.path, "methods": route.methods, "policy": route.policy }),
        )
        .collect();
    let mut policies: Vec<&String> = built.policies.keys().collect();
    let mut upstreams: Vec<&String> = built.upstreams.keys().collect();
    policies.sort();
    upstreams.sort();
    json!({ "routes": routes, "policies": policies, "upstreams": upstreams })
}

/// The content of the admin pages.
#[derive(Debug)]
pub(super) struct Pages(pub(super) Arc<Running>);

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
        match applied.built.engine.ping().await {
            Ok(failing) if failing.is_empty() => Ok("ready".into()),
            Ok(failing) => {
                let shards: Vec<String> = failing
                    .iter()
                    .map(|(node, cause)| format!("{node} ({})", cause.label()))
                    .collect();
                Ok(format!("ready, and degraded: Redis shards fail: {}", shards.join(", ")))
            }
            Err(error) if applied.store_is_needed => Err(error.to_string()),
            Err(error) => {
                Ok(format!("ready, and degraded: {error}; no route denies requests for that"))
            }
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
                NoCounters::Query(_) => StatusCode::BAD_REQUEST,
                NoCounters::Store(_) | NoCounters::InMemory => StatusCode::SERVICE_UNAVAILABLE,
            };
            (status, error.to_string())
        })
    }

    fn status(&self) -> String {
        let built = &self.0.current.load().built;
        let last_reload = self.0.last_reload.lock().unwrap_or_else(PoisonError::into_inner);
        let endpoint = |one: EndpointStatus| json!({ "endpoint": one.endpoint, "address": one.address.to_string(), "ejected": one.ejected });
        let upstream = |(name, (_, upstream)): (_, &(_, Arc<Upstream>))| {
            (name, Value::Array(upstream.status().into_iter().map(endpoint).collect()))
        };
        let upstreams: BTreeMap<_, _> = built.upstreams.iter().map(upstream).collect();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "started": self.0.started_us / 1_000_000,
            "configuration": describe(built),
            "upstreams": upstreams,
            "last_reload": last_reload.as_ref().map(LastReload::describe),
        })
        .to_string()
    }
}
