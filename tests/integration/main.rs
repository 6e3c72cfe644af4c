//! What Weir guarantees, shown with real processes, real sockets, real Redis Clusters and real Wasm
//! guests. One binary, so that it is linked once.
//!
//! Each test is named after what it shows. They do not know the proxy's internals, except `windows`
//! and `classics`, which use the limiter as a library: to see more of a decision than a response
//! shows, and because they are about counting alone. `harness` has their helpers.
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

mod access_log;
mod admin;
mod admission;
#[allow(dead_code, reason = "parts of the benchmark that only measuring needs")]
mod bench;
mod budgets;
// They control Redis' clock.
#[cfg(target_os = "linux")]
mod classics;
mod clients;
// libfaketime works elsewhere, but only on Linux does it reliably leave the monotonic clock alone.
#[cfg(target_os = "linux")]
mod clocks;
mod commands;
mod contents;
mod counters;
mod crashes;
mod damaged;
mod dashboards;
mod descriptors;
mod documents;
mod early;
mod endpoints;
mod endurance;
mod examples;
mod explain;
mod explain_command;
mod faults;
mod fetched;
mod forwarding;
mod guests;
mod handover;
mod hostile;
mod http1;
mod http2;
mod keys;
mod languages;
mod lifecycle;
mod live_page;
mod memory;
mod mounts;
mod oracle;
mod otlp;
mod policies;
mod policies_ban;
mod policies_jwt;
mod policies_login;
mod policy_command;
mod refusals;
mod reloads;
mod replay;
mod replay_headers;
mod replay_running;
mod replies;
mod routes;
mod sandbox;
mod scripts;
mod settling;
mod several;
mod shipped;
mod slow_clients;
mod smuggling;
mod snapshots;
mod spellings;
mod storm;
mod streams;
mod tls;
mod top;
mod traces;
mod upgrades;
mod values;
mod windows;
