//! grpcio on both sides of Weir, over HTTP/2, and as a caller that knows nothing of the services
//! that decide but what their reflection tells.

use super::{MANY, with_tls};
use crate::harness::free_address;
use crate::harness::python::{PythonServer, client};
use crate::harness::toml::Toml;
use crate::harness::weir::Weir;

const QUOTA: &str = "5";

/// Routes for gRPC only: other paths do not exist.
fn config(url: &str, more: &str) -> Toml {
    let route = |service: &str, upstream: &str, policy: &str| {
        format!(
            "name = \"{service}\"\npath = \"/test.{service}/*\"\nupstream = \"{upstream}\"\npolicy = \"{policy}\""
        )
    };
    let few =
        format!("name = \"few\", algorithm = \"fixed_window\", quota = {QUOTA}, period = \"1d\"");
    Toml::new()
        .upstream("api", url, more)
        .upstream("down", &format!("http://{}", free_address()), "protocol = \"h2\"")
        .policy("public", &[MANY])
        .policy("few", &[&few])
        .route(&route("Echo", "api", "public"))
        .route(&route("Few", "api", "few"))
        .route(&route("Down", "down", "public"))
}

fn the_server_heard_who_went_away(server: &PythonServer) {
    for call in ["deadline", "unary", "stream"] {
        server.service.await_line(&format!("cancelled {call}"));
    }
}

#[test]
fn grpc_passes() {
    let server = PythonServer::start("grpc_server.py", &[]);
    let weir = Weir::start(&config(&server.url(), "protocol = \"h2\"").text());
    client("grpc_client.py", &[&format!("http://{}", weir.http), "--quota", QUOTA]);
    the_server_heard_who_went_away(&server);
}

#[test]
fn grpc_passes_with_tls_on_both_sides() {
    let server = with_tls("grpc_server.py", true, config, "grpc_client.py", &["--quota", QUOTA]);
    the_server_heard_who_went_away(&server);
}

#[test]
fn the_services_tell_what_they_are() {
    let rules = r#"
[policies.edge]
use = "rls"

[policies.edge.config]
overrides = true

[[policies.edge.config.rules]]
descriptor = ["user"]
limits = [{ name = "user", algorithm = "fixed_window", quota = 3, period = "1d" }]

[[policies.edge.config.rules]]
descriptor = ["bucket"]
limits = [{ name = "bucket", algorithm = "sliding_window_log", quota = 100, period = "1d", lease = { life = "10s", callers = true } }]
"#;
    let config = Toml::new()
        .listener("serves = \"decisions\"")
        .route("domain = \"edge\"\npolicy = \"edge\"")
        .more(rules);
    let weir = Weir::start(&config.text());
    client("grpc_reflection_client.py", &[&format!("http://{}", weir.http)]);
}
