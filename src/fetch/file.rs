//! The file that keeps a document: replaced as a whole, so that whoever reads it, or another
//! process that writes it, never sees half of one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::Path;

/// Whether the file holds exactly these bytes.
pub(super) fn holds(path: &Path, bytes: &[u8]) -> bool {
    let Ok(file) = File::open(path) else { return false };
    let mut held = Vec::new();
    let read = file.take(bytes.len() as u64 + 1).read_to_end(&mut held);
    read.is_ok() && held == bytes
}

/// Writes a new file next to `path` and renames it over that. What `path` links to is replaced, not
/// the link, and the file's permissions stay.
///
/// # Errors
/// The folder can't be written, or the disk is full. The file is then as it was.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?.to_string_lossy();
    // Several processes, even on other machines, may write it at the same time.
    let aside = path.with_file_name(format!(".{name}.{:016x}.new", fastrand::u64(..)));
    let written = write(&aside, path, bytes).and_then(|()| fs::rename(&aside, path));
    if written.is_err() {
        // Where it was never made, there is nothing to remove.
        let _ = fs::remove_file(&aside);
    }
    written
}

fn write(aside: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(aside)?;
    if let Ok(metadata) = fs::metadata(path) {
        file.set_permissions(metadata.permissions())?;
    }
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn a_file_is_replaced_with_its_permissions_and_behind_its_link() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("real.json"), folder.path().join("link.json"));
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        symlink(&file, &link).unwrap();
        replace(&link, b"new").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(holds(&link, b"new") && !holds(&link, b"ne") && !holds(&link, b"newer"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left aside");
    }

    #[test]
    fn a_file_that_cant_be_replaced_stays_and_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let taken = folder.path().join("taken");
        fs::create_dir(&taken).unwrap();
        fs::write(taken.join("x"), "").unwrap();
        assert!(replace(&taken, b"new").is_err());
        assert!(taken.join("x").exists());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(replace(&folder.path().join("absent/keys.json"), b"new").is_err());
    }

    #[test]
    fn a_reader_sees_a_whole_document_while_several_write() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.json");
        let documents = [vec![b'a'; 100_000], vec![b'b'; 50_000]];
        replace(&path, &documents[0]).unwrap();
        std::thread::scope(|scope| {
            let writers: Vec<_> = documents
                .iter()
                .map(|document| {
                    scope.spawn(|| (0..50).for_each(|_| replace(&path, document).unwrap()))
                })
                .collect();
            while writers.iter().any(|writer| !writer.is_finished()) {
                assert!(documents.contains(&fs::read(&path).unwrap()));
            }
        });
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
