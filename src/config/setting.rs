//! Paths of settings that `app` mentions in messages. They are here because only this module knows
//! the layout of the file. Other modules name settings relative to their own sections.

/// `[store]`.
pub const STORE: &str = "store";
/// `[policies.*]`.
pub const POLICIES: &str = "policies";
/// `[[listeners]]`.
pub const LISTENERS: &str = "listeners";
/// `[store] key_secret_file` and `key_secret_env`.
pub const KEY_SECRET: &str = "store.key_secret";
/// The address of the operator's pages.
pub const ADMIN_ADDRESS: &str = "admin.address";
/// Worker threads.
pub const WORKERS: &str = "server.workers";
/// Time to finish what is under way.
pub const SHUTDOWN_GRACE: &str = "server.shutdown_grace";
/// Connections of clients.
pub const CONNECTIONS: &str = "server.limits.connections";
/// Whether fields with underscores in their names are forwarded.
pub const UNDERSCORES_IN_HEADERS: &str = "server.underscores_in_headers";

/// `[policies.NAME]`.
#[must_use]
pub fn policy(name: &str) -> String {
    format!("{POLICIES}.{name}")
}

/// `[upstreams.NAME]`.
#[must_use]
pub fn upstream(name: &str) -> String {
    format!("upstreams.{name}")
}

/// The policy that a route names, the route being number `index` of the file.
#[must_use]
pub fn route_policy(index: usize) -> String {
    format!("routes[{index}].policy")
}
