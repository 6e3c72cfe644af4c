//! Weir with other people's programs: clients, upstreams, languages and a browser, which `make
//! setup` installs. And what takes long: bodies of a gigabyte, thousands of clients. README.md
//! lists the files.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    unreachable_pub,
    reason = "a test's helpers may fail the test"
)]

#[allow(dead_code, reason = "helpers that only tests/integration and tests/chaos need")]
#[path = "../harness/mod.rs"]
mod harness;

mod acme;
mod clients;
mod curl;
mod decision_clients;
mod forward_auth;
mod from_others;
mod guides;
mod import;
mod languages;
mod live_page;
mod new_policy;
mod oracle;
mod prometheus;
mod quotas;
mod rate_limit_service;
mod side_by_side;
mod traces;
// libfaketime works elsewhere, but only on Linux does it reliably leave the monotonic clock alone.
#[cfg(target_os = "linux")]
mod clocks;
mod endurance;
