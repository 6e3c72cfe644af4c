//! What the operator's pages show of the running house.

use std::sync::{Arc, Mutex, PoisonError};

use http::StatusCode;
use serde_json::{Map, Value, json};

use super::Running;
use super::build::Built;
use super::counters::{self, NoCounters};
use crate::admin::{CounterQuery, Views};
use crate::config::Mistakes;
use crate::upstream::{EndpointStatus, Upstream};

/// What `/status` shows, kept up to date by reloads.
#[derive(Debug)]
pub(super) struct State {
    started_us: i64,
    applied: Mutex<Value>,
    last_reload: Mutex<Value>,
}

impl State {
    pub(super) fn new(built: &Built, now_us: i64) -> Self {
        Self {
            started_us: now_us,
            applied: Mutex::new(describe(built)),
            last_reload: Mutex::new(Value::Null),
        }
    }

    pub(super) fn applied(&self, built: &Built) {
        *self.applied.lock().unwrap_or_else(PoisonError::into_inner) = describe(built);
    }

    pub(super) fn reloaded(&self, mistakes: Option<&Mistakes>, now_us: i64) {
        let value = match mistakes {
            None => json!({ "at": now_us / 1_000_000, "result": "applied" }),
            Some(mistakes) => {
                json!({ "at": now_us / 1_000_000, "result": "refused", "mistakes": mistakes.text })
            }
        };
        *self.last_reload.lock().unwrap_or_else(PoisonError::into_inner) = value;
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

/// The views that the admin room asks for.
#[derive(Debug)]
pub(super) struct Pages(pub(super) Arc<Running>);

impl Views for Pages {
    /// Ready means: not draining, and the store answers or every route has said that it does
    /// without (`on_store_error = "allow"`). Otherwise a balancer would take all proxies away at
    /// once, the very outage that `allow` was chosen against.
    async fn ready(&self) -> Result<String, String> {
        if self.0.drain.started() {
            return Err("shutting down".into());
        }
        let serving = self.0.serving.load_full();
        match serving.engine.ping().await {
            Ok(()) => Ok("ready".into()),
            Err(error) if serving.store_is_needed => Err(error.to_string()),
            Err(error) => Ok(format!(
                "ready, and degraded: {error}; every route lets requests through uncounted"
            )),
        }
    }

    async fn counters(
        &self,
        query: CounterQuery,
        forget: bool,
    ) -> Result<String, (StatusCode, String)> {
        let serving = self.0.serving.load_full();
        let answer = counters::look(&serving.limiter, &serving.charges, &query, forget).await;
        if forget && answer.is_ok() {
            // Not the key: it may name a person, or be a secret.
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
        let views = &self.0.views;
        let serving = self.0.serving.load_full();
        let endpoint = |one: EndpointStatus| json!({ "endpoint": one.endpoint, "address": one.address.to_string(), "ejected": one.ejected });
        let upstream = |(name, upstream): &(String, Arc<Upstream>)| {
            (name.clone(), Value::Array(upstream.status().into_iter().map(endpoint).collect()))
        };
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "started": views.started_us / 1_000_000,
            "configuration": *views.applied.lock().unwrap_or_else(PoisonError::into_inner),
            "upstreams": serving.upstreams.iter().map(upstream).collect::<Map<_, _>>(),
            "last_reload": *views.last_reload.lock().unwrap_or_else(PoisonError::into_inner),
        })
        .to_string()
    }
}
