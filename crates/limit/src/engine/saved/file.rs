//! Writes and reads the snapshot's file: it is written aside and renamed, so that there is always a
//! whole one, and set aside if it can't be read.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Seek};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::format::{FormatError, Kind, Reader};
use super::{Embedded, RestoreSummary};
use crate::clock;
use crate::engine::snapshot_file::{MODE, SaveError, SnapshotFile, failed, with_suffix};

/// Maximum number of names under which files that can't be read are kept.
const UNREADABLE_MAX: usize = 9;

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
        if let Err(error) = self.hold(&mut self.snapshot_file(), &path) {
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
                let kept = set_aside(&path);
                let kept = kept
                    .as_deref()
                    .map_or_else(String::new, |kept| format!(" (kept as {})", kept.display()));
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

    /// Makes this process the one that writes `path`, if it is not yet.
    fn hold(&self, held: &mut Option<SnapshotFile>, path: &Path) -> Result<(), SaveError> {
        if held.as_ref().is_none_or(|held| !held.is_at(path)) {
            *held = None;
            *held = Some(SnapshotFile::hold(path)?);
            self.set_unsaved();
        }
        Ok(())
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
        self.hold(&mut held, &path)?;
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

/// Renames a file that can't be used; returns its new name.
fn set_aside(path: &Path) -> Option<PathBuf> {
    let names =
        (1..=UNREADABLE_MAX).map(|number| with_suffix(path, &format!(".unreadable-{number}")));
    let free = names.clone().find(|name| !name.exists()).or_else(|| names.clone().next_back())?;
    std::fs::rename(path, &free).ok().map(|()| free)
}
