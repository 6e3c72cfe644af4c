//! The folder: the names of its files, how they are written, and whose turn it is.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Bytes of a digest in a file's name, as hexadecimal digits.
const DIGEST_CHARS: usize = 12;
/// Only the owner may read and write: keys are among the files.
const PRIVATE_FILE: u32 = 0o600;
const PRIVATE_FOLDER: u32 = 0o700;

/// The right to order, for one process at a time. It ends with its drop, and with the process.
#[derive(Debug)]
pub(crate) struct Turn(#[allow(dead_code, reason = "held for its lock")] File);

/// The file with what is remembered of a certificate's orders.
pub(crate) fn journal_file(certificate: &Path) -> PathBuf {
    certificate.with_extension("orders.json")
}

/// The folder with what is answered to the authority.
pub(crate) fn answers(folder: &Path) -> PathBuf {
    folder.join("challenges")
}

/// A short name for these.
pub(crate) fn digest<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(part.as_bytes()).update(b"\n");
    }
    hasher.finalize().to_hex().chars().take(DIGEST_CHARS).collect()
}

/// Makes the folder, and the one with the answers, if they are missing.
pub(crate) fn create(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(PRIVATE_FOLDER).create(answers(folder))
}

/// Replaces a file as a whole, so that whoever reads it never sees half of one. Only the owner may
/// read it.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().ok_or(io::ErrorKind::InvalidFilename)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// Removes a file, if there is one.
pub(crate) fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(%error, file = %path.display(), "a file is left behind");
    }
}

impl Turn {
    /// Takes the turn. `None` while another process has it.
    pub(crate) fn take(folder: &Path) -> io::Result<Option<Self>> {
        create(folder)?;
        let path = folder.join("lock");
        let mut options = OpenOptions::new();
        let file =
            options.write(true).create(true).truncate(false).mode(PRIVATE_FILE).open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // Whoever had the turn before may have been killed.
        for left in fs::read_dir(answers(folder))?.filter_map(Result::ok) {
            remove(&left.path());
        }
        Ok(Some(Self(file)))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn one_has_the_turn_and_finds_no_answers_of_another() {
        let folder = tempfile::tempdir().unwrap();
        let turn = Turn::take(folder.path()).unwrap().unwrap();
        assert!(Turn::take(folder.path()).unwrap().is_none());
        let left = answers(folder.path()).join("left");
        write(&left, b"x").unwrap();
        assert_eq!(fs::metadata(&left).unwrap().permissions().mode() & 0o777, PRIVATE_FILE);
        drop(turn);
        assert!(Turn::take(folder.path()).unwrap().is_some());
        assert!(!left.exists());
    }
}
