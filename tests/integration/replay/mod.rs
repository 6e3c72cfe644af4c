//! `weir replay`: logs through a configuration.

mod headers;
mod logs;
mod running;
mod traces;
