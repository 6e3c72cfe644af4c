//! The folder that the process was started in, to which the paths of its command line are relative.

use std::io;
use std::path::{Path, PathBuf};

/// The folder by its path, so that one that takes its place is found there. The process itself
/// stays in the folder that was moved away or removed.
#[derive(Debug)]
pub(super) struct StartFolder(Option<PathBuf>);

impl StartFolder {
    pub(super) fn current() -> Self {
        Self(std::env::current_dir().ok())
    }

    /// Where a file of the command line is now. While there is no such folder, its whole path, so
    /// that it can be waited for.
    pub(super) fn find(&self, file: &Path) -> PathBuf {
        match &self.0 {
            Some(folder) if file.is_relative() && self.enter().is_err() => folder.join(file),
            _ => file.to_owned(),
        }
    }

    /// Enters what is there now.
    ///
    /// # Errors
    /// There is no such folder.
    pub(super) fn enter(&self) -> io::Result<()> {
        let Some(path) = &self.0 else { return Ok(()) };
        std::env::set_current_dir(path)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    }
}
