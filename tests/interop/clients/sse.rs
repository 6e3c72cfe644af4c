//! Server-sent events: each arrives when it is sent, pauses are allowed, and the server notices
//! when its client has gone away.

use super::{config, with_tls};
use crate::harness::python::{PythonServer, client};
use crate::harness::toml::Toml;
use crate::harness::weir::Weir;

const EVENTS: &str = "50";
/// Longer than every timeout below that might mistake a quiet stream for a dead one.
const PAUSE_S: &str = "2.5";
const PAUSES: &str = "2";

fn impatient_house(url: &str, more: &str) -> Toml {
    config(url, more).timeout("request_header = \"1s\"\nkeep_alive = \"1s\"")
}

#[test]
fn events_arrive_one_by_one_over_http_1_1() {
    let server = PythonServer::start("asgi.py", &[]);
    let weir = Weir::start(&impatient_house(&server.url(), "").text());
    client("sse_client.py", &[&format!("http://{}", weir.http), "plain", EVENTS, PAUSE_S, PAUSES]);
    server.service.await_line("gone plain");
}

#[test]
fn events_arrive_one_by_one_over_tls_and_http_2() {
    let server = with_tls(
        "asgi.py",
        true,
        impatient_house,
        "sse_client.py",
        &["--h2", "secure", EVENTS, PAUSE_S, PAUSES],
    );
    server.service.await_line("gone secure");
}
