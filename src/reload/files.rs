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
use tokio::sync::Notify;

use super::Watch;

/// Maximum number of files that are watched; the rest is ignored.
const FILES_MAX: usize = 2_048;
/// Maximum number of directories that are watched; the rest is ignored.
const DIRECTORIES_MAX: usize = 1_024;
/// Symbolic links that are followed on the way to one file: the kernel's limit.
const LINKS_MAX: usize = 40;

/// The system's watches. Dropping it ends them.
#[derive(Debug)]
pub(super) struct Watches(#[allow(dead_code, reason = "held for its drop")] RecommendedWatcher);

impl Watches {
    /// Watches all names that decide what the paths of `files` resolve to. `changed` is notified of
    /// each event, and stores one notification at most.
    pub(super) fn new(files: &[Watch], changed: &Arc<Notify>) -> notify::Result<Self> {
        let mut names = HashSet::new();
        let mut directories = Vec::new();
        let folders: HashSet<PathBuf> = files
            .iter()
            .filter(|file| file.is_folder())
            .map(|file| file.path().to_path_buf())
            .collect();
        for file in files.iter().take(FILES_MAX) {
            if folders.contains(file.path())
                && !directories.iter().any(|known| known == file.path())
            {
                directories.push(file.path().to_path_buf());
            }
            for name in trail(file.path()) {
                if let Some(directory) = name
                    .parent()
                    .filter(|directory| !directories.iter().any(|known| known == directory))
                {
                    directories.push(directory.to_path_buf());
                }
                names.insert(name);
            }
        }
        let changed = Arc::clone(changed);
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if event.as_ref().map_or(true, |event| is_change(event, &names, &folders)) {
                changed.notify_one();
            }
        })?;
        for directory in directories.iter().take(DIRECTORIES_MAX) {
            let watched = watcher.watch(directory, RecursiveMode::NonRecursive);
            let needed = files.iter().any(|file| file.path().parent() == Some(directory));
            match watched {
                Ok(()) => {}
                // It was removed in the meantime. The directory above it is watched already and
                // reports when it comes back.
                Err(_) if !directory.is_dir() => {}
                Err(error) if needed => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, directory = %directory.display(), "not watched")
                }
            }
        }
        Ok(Self(watcher))
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
