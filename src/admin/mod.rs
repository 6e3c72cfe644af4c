//! The operator's own listener: `/metrics`, `/live`, `/ready`, `/status`, and `/counters`, the only
//! one that also changes something. What they show is handed in; `gate` says who may see them.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::{Method, StatusCode};

use crate::listen::{Handler, Peer};
use crate::telemetry::Metrics;
use crate::wire::{self, Known, Request, Response};

mod counters;
mod gate;
#[cfg(test)]
mod tests;

pub use counters::CounterQuery;
pub use gate::{Settings, Token};

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// What the admin pages show.
pub trait Views: Send + Sync + 'static {
    /// Whether requests can be served, with a sentence for the operator.
    ///
    /// # Errors
    /// Why not.
    fn ready(&self) -> impl Future<Output = Result<String, String>> + Send;
    /// `/status`: version, configuration, last reload, as JSON.
    fn status(&self) -> String;
    /// `/counters`: those of one key as JSON, and with `forget` they are forgotten.
    ///
    /// # Errors
    /// A status and a sentence for the operator.
    fn counters(
        &self,
        query: CounterQuery,
        forget: bool,
    ) -> impl Future<Output = Result<String, (StatusCode, String)>> + Send;
}

/// Answers the admin's requests.
pub struct Admin<V> {
    views: Arc<V>,
    metrics: Metrics,
    settings: Arc<ArcSwap<Settings>>,
}

impl<V> Clone for Admin<V> {
    fn clone(&self) -> Self {
        Self {
            views: Arc::clone(&self.views),
            metrics: self.metrics.clone(),
            settings: Arc::clone(&self.settings),
        }
    }
}

impl<V> fmt::Debug for Admin<V> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Admin").finish_non_exhaustive()
    }
}

impl<V: Views> Admin<V> {
    /// Admin pages over `views`, for those whom `settings` admit at the time.
    pub fn new(views: Arc<V>, metrics: Metrics, settings: Arc<ArcSwap<Settings>>) -> Self {
        Self { views, metrics, settings }
    }

    async fn page(&self, path: &str) -> Response {
        match path {
            "/metrics" => reply(StatusCode::OK, OPENMETRICS, self.metrics.encode()),
            // Whoever can answer is alive; whether it is of use is `/ready`'s question.
            "/live" => reply(StatusCode::OK, TEXT, "live\n"),
            "/ready" => match self.views.ready().await {
                Ok(sentence) => reply(StatusCode::OK, TEXT, format!("{sentence}\n")),
                Err(reason) => reply(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{reason}\n")),
            },
            "/status" => reply(StatusCode::OK, JSON, self.views.status()),
            _ => reply(
                StatusCode::NOT_FOUND,
                TEXT,
                "There are /metrics, /live, /ready, /status and /counters.\n",
            ),
        }
    }

    async fn counters(&self, query: &str, forget: bool) -> Response {
        let shown = match CounterQuery::parse(query) {
            Ok(query) => self.views.counters(query, forget).await,
            Err(mistake) => Err((StatusCode::BAD_REQUEST, mistake)),
        };
        match shown {
            Ok(json) => reply(StatusCode::OK, JSON, json),
            Err((status, sentence)) => reply(status, TEXT, format!("{sentence}\n")),
        }
    }
}

impl<V: Views> Handler for Admin<V> {
    async fn call(&self, request: Request, _peer: &Arc<Peer>) -> Response {
        let target = request.target();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let admitted = self.settings.load().admits(&request, path);
        if let Err((status, sentence)) = admitted {
            let mut refused = reply(status, TEXT, format!("{sentence}\n"));
            if status == StatusCode::UNAUTHORIZED {
                refused.fields.set("www-authenticate", "Bearer");
            }
            return refused;
        }
        if path == "/counters" {
            return match request.method {
                Method::GET | Method::HEAD => self.counters(query, false).await,
                Method::DELETE => self.counters(query, true).await,
                _ => not_allowed("GET, HEAD, DELETE"),
            };
        }
        let page = self.page(path).await;
        // The body of a reply to HEAD is left out where it is sent.
        if page.status == StatusCode::NOT_FOUND
            || matches!(request.method, Method::GET | Method::HEAD)
        {
            return page;
        }
        not_allowed("GET, HEAD")
    }
}

fn not_allowed(methods: &'static str) -> Response {
    let mut refused = reply(StatusCode::METHOD_NOT_ALLOWED, TEXT, format!("Only {methods}.\n"));
    refused.fields.set(Known::Allow, methods);
    refused
}

fn reply(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<bytes::Bytes>,
) -> Response {
    let mut reply = Response::new(status, wire::full(body));
    reply.fields.append(Known::ContentType, content_type);
    reply.fields.append(Known::CacheControl, "no-store");
    reply
}
