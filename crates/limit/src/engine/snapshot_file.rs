//! The file that counters are saved to: where it is, held by one process at a time, and why it
//! could not be written. Must not know what is in it (`saved`).

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Only its owner may read it: it contains the salt of keys.
pub(super) const MODE: u32 = 0o600;

/// Why a snapshot was not written.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// The system refused.
    #[error("{what} {path}: {error}")]
    Io {
        /// What failed.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Another process saves its counters there.
    #[error(
        "another process saves its counters to {0}, expected a file for each: only the first one writes"
    )]
    Held(PathBuf),
}

/// The file, once this process holds it.
#[derive(Debug)]
pub(super) struct SnapshotFile {
    path: PathBuf,
    /// Locked for as long as it is open.
    lock: File,
}

impl SnapshotFile {
    /// Makes this process the one that writes `path`.
    pub(super) fn hold(path: &Path) -> Result<Self, SaveError> {
        let lock_path = with_suffix(path, ".lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(MODE)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&lock_path)
            .map_err(failed("can't open", &lock_path))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), lock }),
            Err(TryLockError::WouldBlock) => Err(SaveError::Held(path.to_owned())),
            Err(TryLockError::Error(error)) => Err(failed("can't lock", &lock_path)(error)),
        }
    }

    /// Whether it is the file at `path`, and still locked for every process: one that finds the
    /// lock's file removed makes another, and would lock that.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        let is_same = || -> io::Result<bool> {
            let (ours, there) =
                (self.lock.metadata()?, with_suffix(path, ".lock").symlink_metadata()?);
            Ok((ours.dev(), ours.ino()) == (there.dev(), there.ino()))
        };
        self.path == path && is_same().unwrap_or(false)
    }
}

/// Names the file that an error is about.
pub(super) fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SaveError {
    let path = path.to_owned();
    move |error| SaveError::Io { what, path, error }
}

/// The path with `suffix` after its name.
pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
