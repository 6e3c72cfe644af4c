//! Policies: WebAssembly guests that look at a request and say which rate limits apply to it.
//!
//! 1. [`policy`] runs a guest. It is given facts and returns a decision, with a plan of limits.
//! 2. [`inspect`] reads the contents of bodies, for policies that ask for it: values of JSON
//!    documents, and the usage that replies report.
//!
//! Knows no HTTP, no counter and no Redis. The contract with guests is `wasm-sdk/wit/policy.wit`.

pub mod inspect;
pub mod policy;

use weir_clock as clock;
use weir_plan as plan;
use weir_telemetry as telemetry;

/// The tests include what the crate `fuzz/policies` has, which finds these in Weir.
#[cfg(test)]
extern crate self as weir;
#[cfg(test)]
use weir_limit::{engine, limit};

/// The README's example runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
