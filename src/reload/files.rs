//! The system's watches: which names in which directories decide what a watched path resolves to.
//!
//! A path is watched through the directories of all its components, not by the file itself. An
//! editor replaces the file, `ln -sfn` and a Kubernetes ConfigMap replace a link on the way to it,
//! and it may not exist yet. After each event the watches are renewed, since the path may resolve
//! to something else.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use rustix::io::Errno;
use tokio::sync::Notify;

use super::Watch;

/// Maximum number of files that are watched, more than a configuration usually names. A change of
/// any other file takes effect at the next reload.
const FILES_MAX: usize = 65_536;
/// Maximum number of directories that are watched; each takes one of the kernel's watches. A change
/// in any other directory takes effect at the next reload.
const DIRECTORIES_MAX: usize = 1_024;
/// Symbolic links that are followed on the way to one file: the kernel's limit.
const LINKS_MAX: usize = 40;

/// What is watched.
#[derive(Clone, Default)]
struct Places {
    /// Every name that decides what a path resolves to.
    names: HashSet<PathBuf>,
    /// Where these names are.
    directories: Vec<PathBuf>,
    known_directories: HashSet<PathBuf>,
    /// Folders of which every name counts.
    folders: HashSet<PathBuf>,
}

impl Places {
    fn of(files: &[Watch]) -> Self {
        let folders = files.iter().filter(|file| file.is_folder());
        let folders = folders.map(|file| file.path().to_path_buf()).collect();
        let mut places = Self { folders, ..Self::default() };
        for file in files.iter().take(FILES_MAX) {
            if places.folders.contains(file.path()) {
                places.add(file.path());
            }
            for name in trail(file.path()) {
                if let Some(directory) = name.parent() {
                    places.add(directory);
                }
                places.names.insert(name);
            }
        }
        places
    }

    fn add(&mut self, directory: &Path) {
        if self.known_directories.insert(directory.to_path_buf()) {
            self.directories.push(directory.to_path_buf());
        }
    }
}

/// The system's watches. Dropping it ends them.
#[derive(Debug)]
pub(super) struct Watches(#[allow(dead_code, reason = "held for its drop")] RecommendedWatcher);

impl Watches {
    /// Watches all names that decide what the paths of `files` resolve to. `changed` is notified of
    /// each event, and stores one notification at most.
    pub(super) fn new(files: &[Watch], changed: &Arc<Notify>) -> notify::Result<Self> {
        let mut places = Places::of(files);
        loop {
            let watches = Self::at(&places, files, changed)?;
            // A folder on the way to a file may have been made before its parent was watched: then
            // there is no event, and nothing in it would be watched.
            let now = Places::of(files);
            if now.names == places.names {
                return Ok(watches);
            }
            places = now;
        }
    }

    fn at(places: &Places, files: &[Watch], changed: &Arc<Notify>) -> notify::Result<Self> {
        let Places { names, directories, folders, .. } = places.clone();
        let changed = Arc::clone(changed);
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if event.as_ref().map_or(true, |event| is_change(event, &names, &folders)) {
                changed.notify_one();
            }
        })?;
        if files.len() > FILES_MAX || directories.len() > DIRECTORIES_MAX {
            let (files, directories) = (files.len(), directories.len());
            tracing::warn!(
                files,
                directories,
                "more files than are watched: ask for a reload after a change"
            );
        }
        for directory in directories.iter().take(DIRECTORIES_MAX) {
            let watched = watcher.watch(directory, RecursiveMode::NonRecursive);
            let needed = || files.iter().any(|file| file.path().parent() == Some(directory));
            match watched {
                Ok(()) => {}
                // It was removed in the meantime. The directory above it is watched already and
                // reports when it comes back.
                Err(_) if !directory.is_dir() => {}
                Err(error) if needed() => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, directory = %directory.display(), "not watched")
                }
            }
        }
        Ok(Self(watcher))
    }
}

/// What the operator can do about an error. The kernel counts both per user, over all processes,
/// and its own words for the first one are those for too many open files.
pub(super) fn remedy(error: &notify::Error) -> Option<&'static str> {
    use notify::ErrorKind;
    match &error.kind {
        ErrorKind::Io(error) if error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) => {
            Some("raise the sysctl fs.inotify.max_user_instances")
        }
        ErrorKind::MaxFilesWatch => Some("raise the sysctl fs.inotify.max_user_watches"),
        _ => None,
    }
}

fn is_change(event: &Event, names: &HashSet<PathBuf>, folders: &HashSet<PathBuf>) -> bool {
    // Reading a file, as this process does itself, is not a change.
    let written = !matches!(event.kind, EventKind::Access(kind) if kind != AccessKind::Close(AccessMode::Write));
    // The kernel's queue overflowed: any event may have been lost.
    event.need_rescan()
        || (written
            && event.paths.iter().any(|path| {
                names.contains(path) || path.parent().is_some_and(|folder| folders.contains(folder))
            }))
}

/// Every name that is looked up on the way to `path`: each component, and the components of links
/// among them, up to the first one that is missing.
fn trail(path: &Path) -> Vec<PathBuf> {
    let mut names = Vec::new();
    let mut here = PathBuf::new();
    let mut links = 0;
    let mut ahead: Vec<OsString> = components(path);
    while let Some(component) = ahead.pop() {
        match Path::new(&component).components().next() {
            Some(Component::Normal(name)) => here.push(name),
            Some(Component::ParentDir) => {
                here.pop();
                continue;
            }
            Some(Component::RootDir | Component::Prefix(_)) => {
                here.push(&component);
                continue;
            }
            Some(Component::CurDir) | None => continue,
        }
        names.push(here.clone());
        match fs::read_link(&here) {
            Ok(target) => {
                links += 1;
                if links > LINKS_MAX {
                    break;
                }
                here.pop();
                ahead.extend(components(&target));
            }
            Err(_) if fs::symlink_metadata(&here).is_err() => break,
            Err(_) => {}
        }
    }
    names
}

/// The components in reverse order, so that the next one is popped.
fn components(path: &Path) -> Vec<OsString> {
    path.components().rev().map(|component| component.as_os_str().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Whether an event came within `ms`.
    async fn notified(changed: &Notify, ms: u64) -> bool {
        tokio::time::timeout(Duration::from_millis(ms), changed.notified()).await.is_ok()
    }

    #[tokio::test]
    async fn a_folder_that_is_made_meanwhile_is_watched() {
        for round in 0..300_u64 {
            let root = tempfile::tempdir().unwrap();
            let folder = root.path().join("folder");
            let files = [Watch::absent(folder.join("file"))];
            let changed = Arc::new(Notify::new());
            let made = folder.clone();
            let maker = thread::spawn(move || {
                thread::sleep(Duration::from_micros(round));
                fs::create_dir(made).unwrap();
            });
            let mut watches = Watches::new(&files, &changed).unwrap();
            maker.join().unwrap();
            // As after each event. None comes if the folder was there before it was watched.
            while notified(&changed, 5).await {
                let before = watches;
                watches = Watches::new(&files, &changed).unwrap();
                drop(before);
            }
            fs::write(folder.join("file"), "x").unwrap();
            assert!(notified(&changed, 5_000).await, "round {round}");
            drop(watches);
        }
    }

    #[test]
    fn what_the_kernel_has_no_more_of_is_named() {
        let instances = notify::Error::io(Errno::MFILE.into());
        assert!(remedy(&instances).unwrap().ends_with("max_user_instances"));
        let watches = notify::Error::new(notify::ErrorKind::MaxFilesWatch);
        assert!(remedy(&watches).unwrap().ends_with("max_user_watches"));
        assert_eq!(remedy(&notify::Error::path_not_found()), None);
    }
}
