//! Rate limits: what a request should be charged, and the counters that decide.
//!
//! 1. A [`plan`] names the limits that apply to a request, each with its key and its cost.
//! 2. The [`limit::Limiter`] charges all of them or none, and settles them when the request ends.
//! 3. The [`engine`] holds the counters, in memory or on Redis, and runs the algorithms in `lua/`.
//!
//! Knows no HTTP, no route and no policy.

pub mod engine;
pub mod limit;

#[cfg(test)]
#[path = "../../tls/src/pki.rs"]
mod pki;

pub use weir_plan as plan;

use weir_clock as clock;
use weir_telemetry as telemetry;

/// The README's example runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
