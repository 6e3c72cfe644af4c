//! Builds the built-in policies, each folder of `policies/`, and puts them where the crate includes
//! them. See `build/guest.rs` for the toolchain.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

#[path = "build/guest.rs"]
mod guest;

fn main() {
    for path in ["build.rs", "build"] {
        println!("cargo::rerun-if-changed={path}");
    }
    for path in ["policies", "wasm-sdk", "lua", "Cargo.toml", "Cargo.lock"] {
        println!("cargo::rerun-if-changed=../../{path}");
    }
    // Set by `fuzz/instrument.sh`.
    println!("cargo::rustc-check-cfg=cfg(fuzzing)");
    for variable in guest::VARIABLES {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    if let Err(error) = ship() {
        error.lines().for_each(|line| println!("cargo::error={line}"));
    }
}

fn ship() -> Result<(), String> {
    let folder = |name: &str| {
        env::var_os(name).map(PathBuf::from).ok_or_else(|| format!("cargo did not set {name}"))
    };
    let (root, out) = (folder("CARGO_MANIFEST_DIR")?.join("../.."), folder("OUT_DIR")?);
    let names = names(&root.join("policies")).map_err(|error| format!("policies: {error}"))?;
    let packages: Vec<&str> = names.iter().map(String::as_str).collect();
    // A separate target directory: the outer cargo holds the lock of its own while this runs.
    let modules = guest::build(&root, &packages, &out.join("guests"))?;
    let mut text = String::from(
        "/// Name and module of each policy that ships.\npub(super) const SHIPPED: &[(&str, &[u8])] = &[\n",
    );
    for (name, module) in names.iter().zip(modules) {
        let path = out.join(name).with_extension("wasm");
        fs::copy(&module, &path).map_err(|error| format!("{}: {error}", path.display()))?;
        // Writing to a String can't fail.
        let _ = writeln!(text, "    ({name:?}, include_bytes!({path:?})),");
    }
    text.push_str("];\n/// Their names.\npub(super) const NAMES: &[&str] = &[\n");
    for name in &names {
        let _ = writeln!(text, "    {name:?},");
    }
    text.push_str("];\n");
    fs::write(out.join("shipped.rs"), text).map_err(|error| format!("shipped.rs: {error}"))
}

/// The folders that contain a crate. Each has the name of its package.
fn names(folder: &Path) -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.path().join("Cargo.toml").is_file() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}
