//! Guests for tests, built from source once and then cached by cargo.

use std::path::{Path, PathBuf};

#[path = "../../crates/host/build/guest.rs"]
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
    // Of the workspace, from whichever of its packages this is included in.
    let mut above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let root = above.find(|folder| folder.join("wasm-sdk").is_dir()).expect("the workspace");
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

/// `tests/guests/declaring`, which makes its limits of settings of its own, and declares them.
#[must_use]
#[allow(dead_code, reason = "each user of this file needs other guests")]
pub(crate) fn declaring() -> PathBuf {
    module("declaring")
}

/// `tests/guests/shown`, which reports the value that it would count by.
#[must_use]
#[allow(dead_code, reason = "each user of this file needs other guests")]
pub(crate) fn shown() -> PathBuf {
    module("shown")
}
