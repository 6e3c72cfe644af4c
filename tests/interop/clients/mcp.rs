//! The SDKs of the Model Context Protocol, Python's on both sides and TypeScript's as the client,
//! through `mcp`: tools are called, and what a limit refuses is an error of the protocol with the
//! message, whatever its status, in a revision with sessions and in the newest one.

use crate::harness::node::{NODE, node};
use crate::harness::process::run;
use crate::harness::python::{PythonServer, client};
use crate::harness::toml::Toml;
use crate::harness::weir::Weir;

const QUOTA: &str = "3";

/// `quota` calls of `search`, and none of a report. `more` are further lines of the policy.
fn config(url: &str, more: &str) -> Toml {
    let day = |name: &str, quota: &str| {
        format!(
            "[{{ name = \"{name}\", algorithm = \"fixed_window\", quota = {quota}, period = \"1d\" }}]"
        )
    };
    let policy = format!(
        "[policies.tools]\nuse = \"mcp\"\n[policies.tools.config]\nlimits = {}\n{more}\n\
         [policies.tools.config.tools]\nsearch.limits = {}\n\"run_*\".limits = {}\n",
        day("all", "1000"),
        day("searches", QUOTA),
        day("reports", "0"),
    );
    Toml::new()
        .upstream("tools", url, "")
        .more(&policy)
        .route("path = \"/mcp\"\nupstream = \"tools\"\npolicy = \"tools\"")
}

fn calls(mode: &str, more: &str) {
    let server = PythonServer::start("mcp_server.py", &[]);
    let weir = Weir::start(&config(&server.url(), more).text());
    let arguments = ["--server", &server.url(), "--mode", mode, "--quota", QUOTA];
    client(
        "mcp_client.py",
        &[&[format!("http://{}", weir.http).as_str()], &arguments[..]].concat(),
    );
    assert_eq!(weir.metric("weir_decisions_total{policy=\"tools\",decision=\"refused\"}"), 2);
}

#[test]
fn the_sdk_reads_a_refusal_with_429() {
    calls("legacy", "");
}

#[test]
fn the_sdk_reads_a_refusal_with_200() {
    calls("legacy", "refusal_status = 200");
}

#[test]
fn the_newest_revision_is_counted_alike() {
    calls("auto", "");
}

/// TypeScript's reads a JSON-RPC error only from an answer with 200; of a 429 it shows the text.
fn calls_in_typescript(status: &str, more: &str) {
    let server = PythonServer::start("mcp_server.py", &[]);
    let weir = Weir::start(&config(&server.url(), more).text());
    let mut command = node("mcp_client.mjs");
    command.args([NODE, &format!("http://{}", weir.http), status, QUOTA]);
    let finished = run(&mut command);
    assert_eq!((finished.code, finished.out.trim()), (0, "done"), "{}", finished.err);
    assert_eq!(weir.metric("weir_decisions_total{policy=\"tools\",decision=\"refused\"}"), 2);
}

#[test]
fn the_typescript_sdk_shows_a_refusal_with_429() {
    calls_in_typescript("429", "");
}

#[test]
fn the_typescript_sdk_reads_a_refusal_with_200() {
    calls_in_typescript("200", "refusal_status = 200");
}
