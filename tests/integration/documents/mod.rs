//! The documents, the examples and the benchmark: what they show is what happens.

#[allow(dead_code, reason = "parts of the benchmark that only measuring needs")]
mod bench;
mod examples;
mod pages;
mod recipes;
mod side_by_side;
