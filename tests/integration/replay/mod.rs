//! `weir replay`: logs through a configuration.

mod calls;
mod headers;
mod logs;
mod running;
mod traces;
