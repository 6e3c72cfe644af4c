//! Packs the SDK for custom policies, and puts it where the binary includes it. The built-in
//! policies are built by `crates/host/build.rs`.

use std::env;
use std::path::PathBuf;

#[path = "build/sdk.rs"]
mod sdk;

fn main() {
    for path in ["build.rs", "build", "wasm-sdk", "lua", "Cargo.toml"] {
        println!("cargo::rerun-if-changed={path}");
    }
    if let Err(error) = pack() {
        println!("cargo::error={error}");
    }
}

fn pack() -> Result<(), String> {
    let folder = |name: &str| {
        env::var_os(name).map(PathBuf::from).ok_or_else(|| format!("cargo did not set {name}"))
    };
    let (root, out) = (folder("CARGO_MANIFEST_DIR")?, folder("OUT_DIR")?);
    sdk::pack(&root, &out.join("sdk.deflate")).map_err(|error| format!("the SDK: {error}"))
}
