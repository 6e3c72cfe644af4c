//! Paths of settings that `app` mentions in messages. They are here because only this module knows
//! the layout of the file. Other modules name settings relative to their own sections.

use super::finding::join;

/// `[store]`.
pub const STORE: &str = "store";
/// `[admin]`.
pub const ADMIN: &str = "admin";
/// `[policies.*]`.
pub const POLICIES: &str = "policies";
/// `[[routes]]`.
pub const ROUTES: &str = "routes";
/// `[[listeners]]`.
pub const LISTENERS: &str = "listeners";
/// `[store] key_secret_file` and `key_secret_env`.
pub const KEY_SECRET: &str = "store.key_secret";
/// How the server of the authority that certificates are ordered from is verified.
pub const ACME_TLS: &str = "acme.tls";
/// What is remembered of requests for the operator.
pub const EXPLAIN: &str = "admin.explain";
/// What is exported to an OpenTelemetry collector.
pub const OTLP: &str = "telemetry.otlp";
/// Connections of clients.
pub const CONNECTIONS: &str = "server.limits.connections";
/// The length of a request's target.
pub const URI_BYTES: &str = "server.limits.uri_bytes";
/// Requests that wait for their turn in a leaky bucket.
pub const WAITING: &str = "server.limits.waiting_per_worker";
/// The servers of the store.
pub const REDIS_NODES: &str = "store.redis.nodes";
/// Whether fields with underscores in their names are forwarded.
pub const UNDERSCORES_IN_HEADERS: &str = "server.underscores_in_headers";

/// `[policies.NAME]`.
#[must_use]
pub fn policy(name: &str) -> String {
    join(POLICIES, name)
}

/// `[upstreams.NAME]`.
#[must_use]
pub fn upstream(name: &str) -> String {
    join("upstreams", name)
}

/// The policy that a route names, the route being number `index` of the file.
#[must_use]
pub fn route_policy(index: usize) -> String {
    format!("routes[{index}].policy")
}

/// The listener that is number `index` of the file.
#[must_use]
pub fn listener(index: usize) -> String {
    format!("{LISTENERS}[{index}]")
}

/// The path of the route that is number `index` of the file.
#[must_use]
pub fn route_path(index: usize) -> String {
    format!("routes[{index}].path")
}

/// The time for a request of the route that is number `index` of the file.
#[must_use]
pub fn route_timeout(index: usize) -> String {
    format!("routes[{index}].timeouts.request")
}

/// Requests that each worker has at the upstream at once.
#[must_use]
pub fn requests_per_worker(name: &str) -> String {
    format!("{}.requests_per_worker", upstream(name))
}

/// The route with this name.
#[must_use]
pub fn route(name: &str) -> String {
    format!("{ROUTES}[{name}]")
}
