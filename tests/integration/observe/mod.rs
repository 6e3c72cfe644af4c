//! What an operator sees of a running proxy.

mod access_log;
mod admin;
mod dashboards;
pub mod explain;
mod otlp;
mod top;
