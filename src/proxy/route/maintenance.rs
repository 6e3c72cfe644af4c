//! The switch that takes a route out of service while a file exists. Does not look at the file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A route's switch. Clones share its position, so that it can be moved without a new snapshot: a
/// configuration that is refused for another reason must not hold it.
#[derive(Clone, Debug)]
pub struct Maintenance(Arc<Switch>);

#[derive(Debug)]
struct Switch {
    file: PathBuf,
    is_on: AtomicBool,
}

impl Maintenance {
    /// A switch that is on while `file` exists; `is_on` is whether it does now.
    #[must_use]
    pub fn new(file: PathBuf, is_on: bool) -> Self {
        Self(Arc::new(Switch { file, is_on: AtomicBool::new(is_on) }))
    }

    /// Its file.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.0.file
    }

    /// Whether the route is out of service.
    #[must_use]
    #[inline]
    pub fn is_on(&self) -> bool {
        self.0.is_on.load(Ordering::Relaxed)
    }

    /// Moves the switch. Returns whether it was in the other position.
    pub fn set(&self, is_on: bool) -> bool {
        self.0.is_on.swap(is_on, Ordering::Relaxed) != is_on
    }
}

impl PartialEq for Maintenance {
    fn eq(&self, other: &Self) -> bool {
        (self.file(), self.is_on()) == (other.file(), other.is_on())
    }
}

impl Eq for Maintenance {}
