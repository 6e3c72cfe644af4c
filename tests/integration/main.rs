//! What Weir guarantees, shown with real processes, real sockets, real Redis Clusters and real Wasm
//! guests. One binary, so that it is linked once. README.md lists the files.
//!
//! Each test is named after what it shows. They do not know the proxy's internals, except
//! `limits::windows` and `limits::classics`, which use the limiter as a library: to see more of a
//! decision than a response shows, and because they are about counting alone. `harness` has their
//! helpers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    unreachable_pub,
    reason = "a test's helpers may fail the test"
)]

#[allow(dead_code, reason = "helpers that only tests/chaos needs")]
#[path = "../harness/mod.rs"]
mod harness;

mod commands;
mod documents;
mod http;
mod limits;
mod observe;
mod policies;
mod process;
mod reload;
mod replay;
mod routes;
mod store;
