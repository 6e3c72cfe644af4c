//! Builds the built-in policies, each folder of `policies/`, and packs them into one file, which
//! the crate includes: they have so much in common that it is a seventh of their size. See
//! `build/guest.rs` for the toolchain.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

#[path = "build/guest.rs"]
mod guest;

/// Higher levels take seconds longer here, and save a few percent.
const ZSTD_LEVEL: i32 = 9;

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
    let mut all = Vec::new();
    let mut text = String::from(
        "/// Each policy that ships, and which bytes its module has among the unpacked ones.\n\
         const SHIPPED: &[(&str, std::ops::Range<usize>)] = &[\n",
    );
    for (name, module) in names.iter().zip(modules) {
        let bytes = fs::read(&module).map_err(|error| format!("{}: {error}", module.display()))?;
        let range = all.len()..all.len() + bytes.len();
        all.extend(bytes);
        // Writing to a String can't fail.
        let _ = writeln!(text, "    ({name:?}, {range:?}),");
    }
    let path = out.join("shipped.zst");
    zstd::bulk::compress(&all, ZSTD_LEVEL)
        .and_then(|packed| fs::write(&path, packed))
        .map_err(|error| format!("{}: {error}", path.display()))?;
    let _ = write!(
        text,
        "];\n/// All modules, one after another, packed with zstd.\n\
         const PACKED: &[u8] = include_bytes!({path:?});\n"
    );
    text.push_str("/// Their names.\nconst NAMES: &[&str] = &[\n");
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
