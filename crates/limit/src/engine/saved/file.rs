//! Writes and reads the snapshot's file: it is written aside and renamed, so that there is always a
//! whole one. A file that can't be read, or whose counters are not known here, is set aside rather
//! than overwritten.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Seek};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::format::{FormatError, Kind, Reader};
use super::{Embedded, RestoreSummary};
use crate::clock;
use crate::engine::snapshot_file::{MODE, SaveError, SnapshotFile, failed, with_suffix};

/// Maximum number of names under which files that were set aside are kept, for each reason.
const ASIDE_MAX: usize = 9;
/// What comes after the name of a file that can't be read, and of one whose counters are others.
const UNREADABLE: &str = "unreadable";
const REPLACED: &str = "replaced";

/// What was saved.
#[derive(Clone, Copy, Debug)]
pub struct SaveSummary {
    /// How many counters.
    pub counters: u64,
    /// The file's length.
    pub bytes: u64,
    /// How long it took.
    pub took: Duration,
}

impl Embedded {
    /// Loads the configured snapshot. One that can't be read is set aside, and nothing of it is
    /// used. One that another process writes is left alone.
    pub(in crate::engine) fn restore(&self) {
        let Some(path) = self.snapshot_path() else { return };
        let mut held = self.snapshot_file();
        if let Err(error) = self.hold(&mut held, &path) {
            tracing::error!("counters start at zero, and are not saved: {error}");
            return;
        }
        let began = clock::monotonic();
        match self.restore_from(&path) {
            Ok(None) => tracing::info!(
                snapshot = %path.display(),
                "no snapshot of counters yet: they start at zero"
            ),
            Ok(Some((at_us, RestoreSummary { counters, expired }))) => {
                let age_s = self.now_us().saturating_sub(at_us) / 1_000_000;
                let took_ms = began.elapsed().as_millis() as u64;
                tracing::info!(snapshot = %path.display(), counters, expired, age_s, took_ms, "counters restored");
            }
            Err(error) => {
                let kept = match set_aside(&path, UNREADABLE) {
                    Ok(kept) => format!(" (kept as {})", kept.display()),
                    Err(_) => {
                        // The first save takes it again, and says what is in the way.
                        *held = None;
                        String::new()
                    }
                };
                tracing::error!(
                    snapshot = %path.display(),
                    "the snapshot of counters can't be used, so they start at zero{kept}: {error}"
                );
            }
        }
    }

    /// Returns when the snapshot was written, and what was restored; `None` without a file.
    fn restore_from(&self, path: &Path) -> Result<Option<(u64, RestoreSummary)>, FormatError> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let read = |used: bool| {
            let mut reader = Reader::new(BufReader::new(&file))?;
            let header = self.read_header(&mut reader)?;
            if used {
                self.set_salt(header.salt);
            }
            let restored = self.read_counters(&mut reader, Kind::End, used)?;
            reader.end()?;
            Ok::<_, FormatError>((header.at_us, restored))
        };
        // Read to its end first, so that nothing is used of a file that is not whole.
        read(false)?;
        (&file).rewind()?;
        read(true).map(Some)
    }

    /// Makes this process the one that writes `path`; returns whether it was not yet.
    fn hold(&self, held: &mut Option<SnapshotFile>, path: &Path) -> Result<bool, SaveError> {
        if held.as_ref().is_some_and(|held| held.is_at(path)) {
            return Ok(false);
        }
        *held = None;
        *held = Some(SnapshotFile::hold(path)?);
        self.set_unsaved();
        Ok(true)
    }

    /// Sets the file at `path` aside if its counters are not known here: another process held it
    /// when this one started, or a reload has just named it.
    fn keep_others(&self, path: &Path) -> Result<(), SaveError> {
        match File::open(path) {
            Ok(file) if self.is_own(&file) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            // What can't be read is somebody else's.
            Ok(_) | Err(_) => {}
        }
        let kept = set_aside(path, REPLACED).map_err(failed("can't rename", path))?;
        tracing::warn!(
            snapshot = %path.display(),
            kept = %kept.display(),
            "the snapshot has counters that this process has not read: it is kept under another name, and a new one is written"
        );
        Ok(())
    }

    /// Whether a snapshot is an earlier state of the counters here: the salt goes wherever they do,
    /// into the file, back from it, and to a process that takes over.
    fn is_own(&self, snapshot: &File) -> bool {
        Reader::new(BufReader::new(snapshot))
            .and_then(|mut reader| self.read_header(&mut reader))
            .is_ok_and(|header| header.salt == self.salt())
    }

    /// Saves all counters to the configured file; `None` if there is none, or if nothing has
    /// changed since they were last saved.
    ///
    /// # Errors
    /// See [`SaveError`]. The file is a whole one in any case.
    pub fn save(&self) -> Result<Option<SaveSummary>, SaveError> {
        let Some(path) = self.snapshot_path() else {
            *self.snapshot_file() = None;
            return Ok(None);
        };
        let mut held = self.snapshot_file();
        if self.hold(&mut held, &path)? {
            // If that fails, the next save tries it again.
            self.keep_others(&path).inspect_err(|_| *held = None)?;
        }
        if !self.take_unsaved() {
            return Ok(None);
        }
        self.write_file(&path).inspect_err(|_| self.set_unsaved()).map(Some)
    }

    fn write_file(&self, path: &Path) -> Result<SaveSummary, SaveError> {
        let (began, aside) = (clock::monotonic(), with_suffix(path, ".new"));
        // A process that was killed may have left one. It is made again, so that it is ours
        // whatever was there.
        match std::fs::remove_file(&aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed("can't replace", &aside)(error));
            }
            _ => {}
        }
        let file = OpenOptions::new()
            .create_new(true)
            .write(true)
            .mode(MODE)
            .open(&aside)
            .map_err(failed("can't create", &aside))?;
        let written = self.write_and_rename(&file, &aside, path);
        let (counters, bytes) = written.inspect_err(|_| {
            // It may be what has filled the disk. After the rename there is none.
            let _ = std::fs::remove_file(&aside);
        })?;
        Ok(SaveSummary { counters, bytes, took: began.elapsed() })
    }

    fn write_and_rename(
        &self,
        file: &File,
        aside: &Path,
        path: &Path,
    ) -> Result<(u64, u64), SaveError> {
        let (writer, counters) =
            self.write_snapshot(BufWriter::new(file)).map_err(failed("can't write", aside))?;
        let bytes = writer.bytes();
        drop(writer);
        file.sync_all().map_err(failed("can't write", aside))?;
        std::fs::rename(aside, path).map_err(failed("can't replace", path))?;
        // The new name is on the disk once its folder is.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(failed("can't write", folder))?;
        Ok((counters, bytes))
    }
}

/// Renames a file that is not to be overwritten; returns its new name.
fn set_aside(path: &Path, why: &str) -> io::Result<PathBuf> {
    let name = |number| with_suffix(path, &format!(".{why}-{number}"));
    let free = (1..=ASIDE_MAX).map(name).find(|name| !name.exists());
    let free = free.unwrap_or_else(|| name(ASIDE_MAX));
    std::fs::rename(path, &free).map(|()| free)
}
