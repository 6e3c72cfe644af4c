//! A watched file and the digest of what was read from it. Only content is compared: modification
//! times and sizes mislead on copies, on mounts and after clock steps.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Maximum number of bytes compared of a file: more than any file that Weir reads.
const COMPARED_BYTES_MAX: u64 = 256 << 20;

/// Bytes that are read at a time.
const PIECE_BYTES: usize = 64 << 10;

/// Maximum number of names in a folder that are compared.
const COMPARED_NAMES_MAX: usize = 10_001;

/// A file to watch with what was read there, or a folder with the names that were in it.
#[derive(Clone, PartialEq, Eq)]
pub struct Watch {
    path: PathBuf,
    content: Option<Content>,
    /// Its content is the names in it.
    is_folder: bool,
}

/// Identifies a content, and helps to tell a whole file from a half-written one.
#[derive(Clone, Copy)]
struct Content {
    digest: blake3::Hash,
    bytes: u64,
    ends_in_newline: bool,
}

impl PartialEq for Content {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Eq for Content {}

impl Watch {
    /// A file in which `content` was read.
    #[must_use]
    pub fn read(path: impl AsRef<Path>, content: &[u8]) -> Self {
        Self { path: absolute(path.as_ref()), content: Content::of(content).ok(), is_folder: false }
    }

    /// A file that was missing or could not be read: when it appears, that is a change.
    #[must_use]
    pub fn absent(path: impl AsRef<Path>) -> Self {
        Self { path: absolute(path.as_ref()), content: None, is_folder: false }
    }

    /// A file as it is now, where it was not read whole.
    #[must_use]
    pub fn now(path: impl AsRef<Path>) -> Self {
        let path = absolute(path.as_ref());
        let content = content(&path);
        Self { path, content, is_folder: false }
    }

    /// A folder with the names that are in it now: a file that is added or removed is a change. The
    /// content of the files is watched through a [`Watch`] of each.
    #[must_use]
    pub fn folder(path: impl AsRef<Path>) -> Self {
        let path = absolute(path.as_ref());
        let content = names(&path);
        Self { path, content, is_folder: true }
    }

    pub(super) fn is_folder(&self) -> bool {
        self.is_folder
    }

    /// Its path, absolute, symbolic links kept.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the same was read in both, wherever they are.
    #[must_use]
    pub fn has_content_of(&self, other: &Self) -> bool {
        self.content == other.content
    }

    /// Identifies what was read. Not to be shown as it is: the file may hold a short secret.
    #[must_use]
    pub fn identity(&self) -> Option<[u8; 32]> {
        self.content.map(|content| *content.digest.as_bytes())
    }

    /// Whether the content on disk is different now. Reads the file.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        let now = if self.is_folder { names(&self.path) } else { content(&self.path) };
        now != self.content
    }

    /// Whether it may be half written, in place: it is shorter than before, or its last line has
    /// lost its end.
    pub(super) fn looks_unfinished(&self) -> bool {
        let (Some(before), false) = (self.content, self.is_folder) else { return false };
        let Some(now) = content(&self.path) else { return false };
        now != before
            && (now.bytes < before.bytes || (before.ends_in_newline && !now.ends_in_newline))
    }
}

/// The file may hold a secret, and the digest of a short secret would reveal it.
impl fmt::Debug for Watch {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Watch({})", self.path.display())
    }
}

fn names(folder: &Path) -> Option<Content> {
    let entries = fs::read_dir(folder).ok()?.take(COMPARED_NAMES_MAX);
    let mut names: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.file_name())).collect();
    names.sort();
    let mut hasher = blake3::Hasher::new();
    for name in names {
        hasher.update(name.as_encoded_bytes()).update(b"/");
    }
    Some(Content { digest: hasher.finalize(), bytes: 0, ends_in_newline: false })
}

/// Makes a path absolute. Without a working directory it stays as it is.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}

/// `None` where there is no readable file. A pipe is not opened: that could block for ever.
fn content(path: &Path) -> Option<Content> {
    if !fs::metadata(path).ok()?.is_file() {
        return None;
    }
    Content::of(File::open(path).ok()?.take(COMPARED_BYTES_MAX)).ok()
}

impl Content {
    fn of(mut reader: impl Read) -> io::Result<Self> {
        let mut hasher = blake3::Hasher::new();
        let (mut piece, mut bytes, mut ends_in_newline) = (vec![0; PIECE_BYTES], 0, false);
        loop {
            let read = match reader.read(&mut piece) {
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let Some(last) = piece.get(..read).and_then(<[u8]>::last) else { break };
            ends_in_newline = *last == b'\n';
            bytes += read as u64;
            hasher.update(piece.get(..read).unwrap_or_default());
        }
        Ok(Self { digest: hasher.finalize(), bytes, ends_in_newline })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_shrinks_or_loses_its_last_newline_looks_unfinished() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let unfinished = |before: &str, now: &str| {
            let watch = Watch::read(file.path(), before.as_bytes());
            fs::write(file.path(), now).unwrap();
            watch.looks_unfinished()
        };
        for (before, now, expected) in [
            ("one\n", "", true),
            ("one\n", "on", true),
            ("one\n", "one\ntwo", true),
            ("one\n", "1\n", true),
            ("one\n", "one\n", false),
            ("one\n", "one\ntwo\n", false),
            ("one", "three", false),
            ("one", "three\n", false),
            ("one", "o", true),
        ] {
            assert_eq!(unfinished(before, now), expected, "{before:?} {now:?}");
        }
        assert!(
            !Watch::absent(file.path()).looks_unfinished()
                && !Watch::folder("/").looks_unfinished()
        );
        let gone = Watch::read("/absent/file", b"one\n");
        assert!(gone.is_stale() && !gone.looks_unfinished());
    }
}
