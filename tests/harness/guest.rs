//! Guests for tests, built from their sources once and then kept by cargo.

use std::path::{Path, PathBuf};

#[path = "../../build/guest.rs"]
mod build;

/// `examples/policies/api-key`, as the module that an operator would name in `wasm = "..."`.
#[must_use]
pub fn api_key() -> PathBuf {
    module("api-key")
}

/// The module of one of the workspace's policies, built in a target directory of its own.
fn module(package: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let target_dir = Path::new(env!("OUT_DIR")).join("guests");
    let modules = build::build(root, &[package], &target_dir).unwrap_or_else(|error| panic!("{error}"));
    modules.into_iter().next().expect("one module for one package")
}
