//! Weir: a reverse proxy that rate-limits.
//!
//! The rooms stand in the order in which a request meets them. Each folder's `mod.rs` is its door:
//! what the room is for, its public types, its verb. Arrows between rooms go one way;
//! `tests/tidy.rs` holds the table in ARCHITECTURE.md. To learn the house, read `proxy/mod.rs`
//! (`handle`), then open the door of whatever it names.

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
