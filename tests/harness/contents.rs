//! A configuration whose policies look into bodies.

use super::toml::Toml;
use super::upstream::Upstream;

/// Limits sign-ins by user name, wherever the client puts the name.
pub fn config(upstream: &Upstream) -> Toml {
    let limit = |key: &str| {
        format!(
            "name = \"user\", algorithm = \"fixed_window\", quota = 2, period = \"1d\", key = \"{key}\", missing = {{ deny = 400 }}"
        )
    };
    let route = |path: &str, policy: &str, more: &str| {
        format!("path = \"{path}\"\nupstream = \"api\"\npolicy = \"{policy}\"\n{more}")
    };
    Toml::new()
        .upstream("api", &upstream.url(), "")
        .policy("json", &[&limit("{body:/user/name}")])
        .policy("form", &[&limit("{form.user}")])
        .policy("type", &[&limit("{body.type}")])
        .route(&route("/json", "json", "inspect_bytes = \"64KiB\""))
        .route(&route("/form", "form", ""))
        .route(&route("/refuse", "type", "inspect_bytes = \"1KiB\""))
        .route(&route("/pass", "type", "inspect_bytes = \"1KiB\"\ninspect_oversized = \"pass\""))
}
