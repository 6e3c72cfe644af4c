//! Weir: a reverse proxy that rate-limits.
//!
//! The modules are declared in the order in which a request passes through them. Each folder's
//! `mod.rs` is its interface: what the module is for, its public types and functions. Uses between
//! modules go one way; `tests/tidy/` enforces the table in ARCHITECTURE.md. To learn the code, read
//! `proxy/mod.rs` (`handle`), then the `mod.rs` of whatever it names.

pub mod app;
pub mod cli;

pub mod config;
pub mod reload;

pub mod listen;
pub mod proxy;

pub mod engine;
pub mod limit;
pub mod plan;
pub mod policy;

pub mod admin;
pub mod upstream;

pub(crate) mod http1;
pub mod wire;

pub mod clock;
pub mod telemetry;

pub use app::App;
