//! `weir policy new`: writes a policy's crate, with the SDK that this binary carries.

use std::fs;
use std::io::{self, Read as _};
use std::path::Path;
use std::process::ExitCode;

use flate2::read::DeflateDecoder;

use super::{EXIT_DIFFERENT, wrong};
use crate::cli::print::{errln, outln};

/// Made by `build/sdk.rs`, which describes it.
const PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sdk.deflate"));
/// Maximum size of a policy's name, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// A file that has another name in the archive.
const RENAMED: (&str, &str) = ("gitignore", ".gitignore");
/// Names that Rust has a meaning for, or the crate has a dependency of.
const TAKEN: [&str; 7] = ["test", "core", "std", "alloc", "proc-macro", "serde", "weir-policy"];

/// A file of the archive.
struct ArchiveFile {
    path: String,
    content: Vec<u8>,
}

pub(super) fn run(name: &str, folder: &Path) -> ExitCode {
    if let Err(why) = check(name) {
        return wrong(&format!(
            "found the name {name:?} ({why}), expected 1 to {NAME_BYTES_MAX} of a-z 0-9 -, the first a letter"
        ));
    }
    let to = folder.join(name);
    match write(name, &to) {
        Ok(()) => {
            outln!("{}: a policy that counts by API key, and by address without one", to.display());
            outln!();
            outln!("    cd {}", to.display());
            outln!("    cargo test               # the policy's own tests");
            outln!("    weir policy build        # makes {name}.wasm");
            outln!("    weir policy test         # sends the requests of requests.toml");
            ExitCode::SUCCESS
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            wrong(&format!("{} exists already: nothing was written", to.display()))
        }
        Err(error) => {
            errln!("weir: {}: {error}", to.display());
            ExitCode::from(EXIT_DIFFERENT)
        }
    }
}

/// Whether it can name a crate, its module and a policy in `proxy.toml`.
fn check(name: &str) -> Result<(), &'static str> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    match name {
        "" => Err("it is empty"),
        name if name.len() > NAME_BYTES_MAX => Err("it is too long"),
        name if !name.starts_with(|first: char| first.is_ascii_lowercase()) => {
            Err("it does not begin with a lowercase letter")
        }
        name if !name.bytes().all(plain) => Err("it has other characters"),
        name if name.ends_with('-') => Err("it ends with `-`"),
        name if TAKEN.contains(&name) => Err("a crate of Rust has it already: choose another"),
        _ => Ok(()),
    }
}

fn write(name: &str, to: &Path) -> io::Result<()> {
    if let Some(above) = to.parent().filter(|above| !above.as_os_str().is_empty()) {
        fs::create_dir_all(above)?;
    }
    // It must not exist.
    fs::create_dir(to)?;
    for ArchiveFile { path, content } in unpack()? {
        let (path, content) = match path.strip_prefix("template/") {
            Some(path) => {
                let text = String::from_utf8(content).map_err(io::Error::other)?;
                let (packed, written) = RENAMED;
                let path = if path == packed { written } else { path };
                (to.join(path), text.replace("{name}", name).into_bytes())
            }
            None => (to.join(path), content),
        };
        if let Some(above) = path.parent() {
            fs::create_dir_all(above)?;
        }
        fs::write(path, content)?;
    }
    Ok(())
}

fn unpack() -> io::Result<Vec<ArchiveFile>> {
    let mut bytes = Vec::new();
    DeflateDecoder::new(PACKED).read_to_end(&mut bytes)?;
    let mut rest = bytes.as_slice();
    let mut files = Vec::new();
    let torn = || io::Error::other("the SDK in this binary is damaged");
    while !rest.is_empty() {
        let mut length = || -> io::Result<usize> {
            let (head, after) = rest.split_first_chunk::<4>().ok_or_else(torn)?;
            rest = after;
            usize::try_from(u32::from_le_bytes(*head)).map_err(io::Error::other)
        };
        let (path_bytes, content_bytes) = (length()?, length()?);
        let path = rest.get(..path_bytes).ok_or_else(torn)?;
        let end = path_bytes.saturating_add(content_bytes);
        let content = rest.get(path_bytes..end).ok_or_else(torn)?.to_vec();
        let path = String::from_utf8(path.to_vec()).map_err(io::Error::other)?;
        files.push(ArchiveFile { path, content });
        rest = rest.get(end..).ok_or_else(torn)?;
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_crates() {
        for name in ["a", "api-key", "p2"] {
            assert_eq!(check(name), Ok(()), "{name}");
        }
        for name in ["", "A", "2p", "-a", "a-", "a_b", "a/b", "..", "test", &"a".repeat(65)] {
            assert!(check(name).is_err(), "{name}");
        }
    }

    #[test]
    fn the_archive_holds_the_sdk_and_the_template_and_is_small() {
        let files = unpack().unwrap();
        let has = |path: &str| files.iter().any(|file| file.path == path);
        for path in [
            "sdk/Cargo.toml",
            "sdk/wasm-sdk/Cargo.toml",
            "sdk/wasm-sdk/src/lib.rs",
            "sdk/wasm-sdk/wit/policy.wit",
            "sdk/lua/lib.rs",
            "template/Cargo.toml",
            "template/src/lib.rs",
            "template/requests.toml",
            "template/README.md",
            "template/gitignore",
        ] {
            assert!(has(path), "{path}");
        }
        // The generated bindings are a fifth of it.
        assert!(PACKED.len() < 184 << 10, "{}", PACKED.len());
    }
}
