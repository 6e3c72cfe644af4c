//! Python's websockets on both sides of Weir: after a real 101, bytes pass unchanged.

use super::{limited_config, with_tls};
use crate::harness::python::{PythonServer, client};
use crate::harness::toml::Toml;
use crate::harness::weir::Weir;

const QUOTA: &str = "5";

/// Short timeouts for heads and requests, and a small limit for bodies: none of them applies to a
/// tunnel.
fn config(url: &str, more: &str) -> Toml {
    limited_config(url, more, "/few", QUOTA)
        .timeout("request_header = \"1s\"\nkeep_alive = \"1s\"")
        .limit("body_bytes = \"1MiB\"")
}

fn the_server_heard_how_they_ended(server: &PythonServer) {
    server.service.await_line("closed politely 4999 enough");
    server.service.await_line("closed rudely 1006");
}

#[test]
fn websockets_pass() {
    let server = PythonServer::start("ws_server.py", &[]);
    let weir = Weir::start(&config(&server.url(), "").text());
    client("ws_client.py", &[&format!("http://{}", weir.http), "--quota", QUOTA]);
    the_server_heard_how_they_ended(&server);
}

#[test]
fn websockets_pass_with_tls_on_both_sides() {
    let server = with_tls("ws_server.py", false, config, "ws_client.py", &["--quota", QUOTA]);
    the_server_heard_how_they_ended(&server);
}
