//! Leases, checked in every order of events: holders, calls, replies, clocks and faults over small
//! numbers, with the holders that ship and the programs in `lua/`.
//!
//! `world` is the model, `store` the counter, `promise` what is measured. `cases` has one limit for
//! each algorithm, which must keep its promise. `mutants` names mistakes, each of which must break
//! it in `cases`. `long` follows some long histories of larger limits.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    unreachable_pub,
    reason = "a test's helpers may fail the test"
)]

mod cases;
mod long;
mod mutants;
mod programs;
mod promise;
mod store;
mod world;

/// The property that the limit's promise is kept.
const PROMISE: &str = "no more is admitted than promised";
/// The property that a process holds at most the units of one lease.
const HOLDINGS: &str = "a process holds at most the units of one lease";
/// Against vacuity: the property that some order of events admits all that is promised.
const REACHED: &str = "all that is promised is admitted";
/// Against vacuity: the property that two processes hold units at once.
const TOGETHER: &str = "two processes hold units";
