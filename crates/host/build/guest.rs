//! Builds policies to WebAssembly, with a separate cargo. Shared by `build.rs` and the tests. Does
//! not know what the policies do.
//!
//! The normal toolchain needs `rustup target add wasm32-unknown-unknown`. If rustup can't download
//! it, these variables select another one:
//! - `WEIR_WASM_DEBIAN=1`: Debian's `rustc-web`, `cargo-web` and `rust-web-src`, which also build
//!   the standard library (`-Zbuild-std`);
//! - `WEIR_WASM_CARGO`, `WEIR_WASM_RUSTC`: another cargo or rustc (by default `/usr/bin/cargo` and
//!   `/usr/bin/rustc` with the above).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const TARGET: &str = "wasm32-unknown-unknown";
/// The profile in the workspace's `Cargo.toml`.
const PROFILE: &str = "policy";
/// The first bytes of each WebAssembly module (not component) of version 1.
const MAGIC: &[u8] = b"\0asm\x01\0\0\0";
/// Cargo's own variables that are kept: where to fetch crates from. All others describe the outer
/// build.
const KEPT: [&str; 6] =
    ["CARGO_HOME", "CARGO_NET_", "CARGO_HTTP_", "CARGO_REGISTR", "CARGO_SOURCE_", "CARGO_TERM_"];

/// Environment variables that choose the toolchain.
#[allow(dead_code, reason = "only the build script watches them")]
pub(crate) const VARIABLES: [&str; 3] = ["WEIR_WASM_DEBIAN", "WEIR_WASM_CARGO", "WEIR_WASM_RUSTC"];

struct Toolchain {
    cargo: String,
    rustc: String,
    builds_std: bool,
}

fn toolchain() -> Toolchain {
    let debian =
        env::var_os("WEIR_WASM_DEBIAN").is_some_and(|value| !value.is_empty() && value != "0");
    let choose = |own: &str, debians: &str, outer: &str, name: &str| {
        let outer = if debian { Ok(debians.to_owned()) } else { env::var(outer) };
        env::var(own).or(outer).unwrap_or_else(|_| name.to_owned())
    };
    Toolchain {
        cargo: choose("WEIR_WASM_CARGO", "/usr/bin/cargo", "CARGO", "cargo"),
        rustc: choose("WEIR_WASM_RUSTC", "/usr/bin/rustc", "RUSTC", "rustc"),
        builds_std: debian,
    }
}

/// Builds packages of the workspace at `root` in `target_dir` (which no other build may hold
/// locked), and returns the paths of their modules.
///
/// # Errors
/// A message that says what to do.
pub(crate) fn build(
    root: &Path,
    packages: &[&str],
    target_dir: &Path,
) -> Result<Vec<PathBuf>, String> {
    let toolchain = toolchain();
    if !toolchain.builds_std {
        check_std(&toolchain.rustc)?;
    }
    let mut command = Command::new(&toolchain.cargo);
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        let ours = name.starts_with("CARGO") && !KEPT.iter().any(|kept| name.starts_with(kept));
        if ours
            || name.contains("RUSTFLAGS")
            || name.starts_with("RUSTC")
            || ["MAKEFLAGS", "MFLAGS", "TARGET", "HOST", "PROFILE"].contains(&&*name)
        {
            command.env_remove(&name);
        }
    }
    command.current_dir(root).env("RUSTC", &toolchain.rustc);
    command
        .args(["build", "--profile", PROFILE, "--target", TARGET, "--target-dir"])
        .arg(target_dir);
    for package in packages {
        command.args(["--package", package]);
    }
    if toolchain.builds_std {
        command
            .env("RUSTC_BOOTSTRAP", "1")
            .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", "wasm-ld")
            .arg("-Zbuild-std=std,panic_abort");
    }
    let output = command.output().map_err(|error| {
        format!("{} could not be started: {error}; run `make setup`", toolchain.cargo)
    })?;
    if !output.status.success() {
        return Err(format!(
            "the policies could not be built:\n{}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    packages.iter().map(|package| module(target_dir, package)).collect()
}

/// Checked first, because otherwise cargo reports a missing `core` for each crate.
fn check_std(rustc: &str) -> Result<(), String> {
    let output =
        Command::new(rustc).args(["--print", "target-libdir", "--target", TARGET]).output();
    let output = output
        .map_err(|error| format!("{rustc} could not be started: {error}; run `make setup`"))?;
    let folder = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let mut files = fs::read_dir(&folder).into_iter().flatten().flatten();
    if files.any(|file| file.file_name().to_string_lossy().starts_with("libstd-")) {
        return Ok(());
    }
    Err(format!(
        "{rustc} has no standard library for {TARGET}: run `make setup` (or `rustup target add {TARGET}`)"
    ))
}

fn module(target_dir: &Path, package: &str) -> Result<PathBuf, String> {
    let path =
        target_dir.join(TARGET).join(PROFILE).join(format!("{}.wasm", package.replace('-', "_")));
    let bytes = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    if bytes.starts_with(MAGIC) {
        Ok(path)
    } else {
        Err(format!("{} is no WebAssembly module", path.display()))
    }
}
