//! A watched file and the digest of what was read from it. Knows content only: times and sizes lie, on copies, mounts and stepped clocks.

use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Bytes of a file that are compared, at most: more than any file that Weir reads.
const COMPARED_BYTES_MAX: u64 = 256 << 20;

/// Names in a folder that are compared, at most.
const COMPARED_NAMES_MAX: usize = 10_001;

/// A file to watch, and what was read there; or a folder, and which names it had.
#[derive(Clone, PartialEq, Eq)]
pub struct Watch {
    path: PathBuf,
    digest: Option<blake3::Hash>,
    /// Its content is the names in it.
    is_folder: bool,
}

impl Watch {
    /// A file in which `content` was read.
    #[must_use]
    pub fn read(path: impl AsRef<Path>, content: &[u8]) -> Self {
        Self { path: absolute(path.as_ref()), digest: Some(blake3::hash(content)), is_folder: false }
    }

    /// A file that was not there or could not be read: its coming is a change.
    #[must_use]
    pub fn absent(path: impl AsRef<Path>) -> Self {
        Self { path: absolute(path.as_ref()), digest: None, is_folder: false }
    }

    /// A file as it is now, for one that was not read whole.
    #[must_use]
    pub fn now(path: impl AsRef<Path>) -> Self {
        let path = absolute(path.as_ref());
        let digest = content(&path);
        Self { path, digest, is_folder: false }
    }

    /// A folder with the names that it has now: a file that comes or goes is a change. What its files say is watched with each of them.
    #[must_use]
    pub fn folder(path: impl AsRef<Path>) -> Self {
        let path = absolute(path.as_ref());
        let digest = names(&path);
        Self { path, digest, is_folder: true }
    }

    pub(super) fn is_folder(&self) -> bool {
        self.is_folder
    }

    /// Its path, absolute, symbolic links kept.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the disk now says something else.
    pub(super) fn is_stale(&self) -> bool {
        let now = if self.is_folder { names(&self.path) } else { content(&self.path) };
        now != self.digest
    }
}

/// The file may hold a secret, and a short secret's digest would tell it.
impl fmt::Debug for Watch {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Watch({})", self.path.display())
    }
}

fn names(folder: &Path) -> Option<blake3::Hash> {
    let entries = fs::read_dir(folder).ok()?.take(COMPARED_NAMES_MAX);
    let mut names: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.file_name())).collect();
    names.sort();
    let mut hasher = blake3::Hasher::new();
    for name in names {
        hasher.update(name.as_encoded_bytes()).update(b"/");
    }
    Some(hasher.finalize())
}

/// Without a working directory there is no better path than the one given.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}

/// Nothing for what is no readable file; a pipe is not opened, for that could wait for ever.
fn content(path: &Path) -> Option<blake3::Hash> {
    if !fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(File::open(path).ok()?.take(COMPARED_BYTES_MAX)).ok()?;
    Some(hasher.finalize())
}
