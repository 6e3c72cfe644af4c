//! Packs what `weir policy new` writes: the SDK's sources and the template of a policy.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use flate2::Compression;
use flate2::write::DeflateEncoder;

/// The crates of the SDK, in the checkout and in a policy's folder `sdk/`.
const CRATES: [&str; 2] = ["wasm-sdk", "lua"];
/// Files that are only needed here.
const LEFT_OUT: [&str; 2] = ["tests.rs", "template"];
/// Maximum number of files of the SDK: a folder that grew by mistake must not end up in the binary.
const BYTES_MAX: usize = 1 << 20;

/// Writes the archive to `to`: for each file the length of its path and of its content (four bytes
/// each, little-endian), then both.
pub(crate) fn pack(root: &Path, to: &Path) -> io::Result<()> {
    let mut files = Vec::new();
    for name in CRATES {
        for path in files_of(&root.join(name))? {
            let inside = path.strip_prefix(root).map_err(io::Error::other)?;
            files.push((format!("sdk/{}", inside.display()), fs::read(&path)?));
        }
    }
    let manifest = fs::read_to_string(root.join("Cargo.toml"))?;
    files.push(("sdk/Cargo.toml".to_owned(), workspace(&manifest).into_bytes()));
    let template = root.join("wasm-sdk/template");
    let profile = section(&manifest, "[profile.policy]");
    let profile: Vec<&str> =
        profile.lines().skip(1).filter(|line| !line.starts_with("inherits")).collect();
    for path in files_of(&template)? {
        let inside = path.strip_prefix(&template).map_err(io::Error::other)?.with_extension("");
        let text = fs::read_to_string(&path)?.replace("{profile}", profile.join("\n").trim());
        files.push((format!("template/{}", inside.display()), text.into_bytes()));
    }
    let mut packed = Vec::new();
    for (path, content) in &files {
        for length in [path.len(), content.len()] {
            packed.extend(u32::try_from(length).map_err(io::Error::other)?.to_le_bytes());
        }
        packed.extend(path.as_bytes());
        packed.extend(content);
    }
    if packed.len() > BYTES_MAX {
        return Err(io::Error::other(format!("the SDK has more than {BYTES_MAX} bytes")));
    }
    let mut encoder = DeflateEncoder::new(fs::File::create(to)?, Compression::best());
    encoder.write_all(&packed)?;
    encoder.finish().map(drop)
}

/// The workspace that the SDK's crates take their package keys and lints from.
fn workspace(manifest: &str) -> String {
    let members: Vec<String> = CRATES.iter().map(|name| format!("{name:?}")).collect();
    let mut text = format!("[workspace]\nmembers = [{}]\nresolver = \"3\"\n", members.join(", "));
    for name in ["[workspace.package]", "[workspace.lints.rust]", "[workspace.lints.clippy]"] {
        text.push('\n');
        text.push_str(section(manifest, name).trim_end());
        text.push('\n');
    }
    text
}

/// The lines from a section's header to the next.
fn section<'a>(manifest: &'a str, header: &str) -> &'a str {
    let Some(start) = manifest.find(&format!("{header}\n")) else { return "" };
    let rest = manifest.get(start..).unwrap_or_default();
    rest.find("\n[").and_then(|end| rest.get(..end + 1)).unwrap_or(rest)
}

/// All files below a folder, in the order of their names.
fn files_of(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    let mut files = Vec::new();
    for entry in entries {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if LEFT_OUT.contains(&&*name) || name.starts_with('.') || name == "target" {
            continue;
        }
        match entry.file_type()?.is_dir() {
            true => files.extend(files_of(&entry.path())?),
            false => files.push(entry.path()),
        }
    }
    Ok(files)
}
