//! Guests for tests, built from source once and then cached by cargo.

use std::path::{Path, PathBuf};

#[path = "../../build/guest.rs"]
mod build;

/// `examples/policies/api-key`, as the module that an operator would name in `wasm = "..."`.
#[must_use]
#[allow(dead_code, reason = "each user of this file needs other guests")]
pub(crate) fn api_key() -> PathBuf {
    module("api-key")
}

/// `examples/policies/reply-cost`.
#[must_use]
#[allow(dead_code, reason = "each user of this file needs other guests")]
pub(crate) fn reply_cost() -> PathBuf {
    module("reply-cost")
}

/// The module of one of the workspace's policies, built in a target directory of its own.
fn module(package: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let target_dir = Path::new(env!("OUT_DIR")).join("guests");
    let modules =
        build::build(root, &[package], &target_dir).unwrap_or_else(|error| panic!("{error}"));
    modules.into_iter().next().expect("one module for one package")
}

/// `tests/guests/misbehaving`, which fails in the way that the fact `query` selects.
#[must_use]
#[allow(dead_code, reason = "each user of this file needs other guests")]
pub(crate) fn misbehaving() -> PathBuf {
    module("misbehaving")
}

/// `tests/guests/shown`, which tells the value that it would count by.
#[must_use]
#[allow(dead_code, reason = "each user of this file needs other guests")]
pub(crate) fn shown() -> PathBuf {
    module("shown")
}
