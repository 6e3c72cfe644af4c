//! Python's httpx through Weir to hypercorn: requests as a Python program would send them, one
//! after another and concurrently.

use super::{limited_config, with_tls};
use crate::harness::python::{PythonServer, client};
use crate::harness::toml::Toml;
use crate::harness::weir::Weir;

const QUOTA: &str = "30";

fn config(url: &str, more: &str) -> Toml {
    limited_config(url, more, "/few/*", QUOTA)
}

fn in_the_clear(more: &str, arguments: &[&str]) {
    let server = PythonServer::start("asgi.py", &[]);
    let weir = Weir::start(&config(&server.url(), more).text());
    client(
        "httpx_client.py",
        &[&[&format!("http://{}", weir.http), "--quota", QUOTA], arguments].concat(),
    );
}

#[test]
fn httpx_over_http_1_1() {
    in_the_clear("", &[]);
}

#[test]
fn httpx_over_http_2_on_both_sides() {
    in_the_clear("protocol = \"h2\"", &["--h2"]);
}

#[test]
fn httpx_over_http_2_to_an_upstream_of_http_1_1() {
    in_the_clear("", &["--h2"]);
}

#[test]
fn httpx_over_http_1_1_to_an_upstream_of_http_2() {
    in_the_clear("protocol = \"h2\"", &[]);
}

#[test]
fn httpx_over_tls_and_http_1_1() {
    with_tls("asgi.py", false, config, "httpx_client.py", &["--quota", QUOTA]);
}

#[test]
fn httpx_over_tls_and_http_2() {
    with_tls("asgi.py", true, config, "httpx_client.py", &["--h2", "--quota", QUOTA]);
}
