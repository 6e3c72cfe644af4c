//! Notices that the configuration changed - a file was saved, `SIGHUP` came, somebody asked - and
//! calls the builder that `app` hands in.
//!
//! Knows neither TOML nor what is built. A [`Watcher`] has a thread of its own, so that compiling a
//! policy never holds a request:
//!
//! ```no_run
//! # fn build() -> Result<Vec<weir::reload::Watch>, Vec<weir::reload::Watch>> { Ok(Vec::new()) }
//! # fn start(files: Vec<weir::reload::Watch>, metrics: weir::telemetry::Metrics) -> std::io::Result<weir::reload::Watcher> {
//! use weir::reload::{Answer, Settings, Watcher};
//!
//! Watcher::start(Settings { files, on_sighup: true }, metrics, move |_reason| match build() {
//!     Ok(files) => Answer::applied(files), // built aside, swapped, and these are the files to watch from now on
//!     Err(files) => Answer::refused(files), // the old house serves on; the builder has logged why
//! })
//! # }
//! ```
//!
//! What counts as a change is content: each file comes with a digest of what was *read* when the
//! running house was built ([`Watch`]), and the builder is called when the disk says something
//! else. So nothing is lost that changed while the house was being built, and saving a file without
//! changing it rebuilds nothing. `SIGHUP` always rebuilds.

mod digest;
mod files;
mod run;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use tokio::sync::Notify;

use crate::telemetry::Metrics;

pub use digest::Watch;

/// What to watch, and how to be told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The configuration and every file that it names, with what was read there.
    pub files: Vec<Watch>,
    /// Whether `SIGHUP` reloads; until the process ends it then no longer kills it. A program that
    /// embeds Weir may keep it for itself.
    pub on_sighup: bool,
}

/// Why the builder is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A watched file's content is another than what was read.
    FileChanged,
    /// `SIGHUP`.
    Signal,
    /// [`Watcher::reload`].
    Asked,
}

/// What the builder did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reloaded {
    /// The new house serves.
    Applied,
    /// What was built is what serves already.
    Unchanged,
    /// A mistake: the old house serves on.
    Refused,
}

/// The builder's answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// What it did.
    pub result: Reloaded,
    /// What to watch from now on, also what a refused file names: it is there that it will be
    /// mended.
    pub files: Vec<Watch>,
}

/// Watches until it is dropped. Dropping waits for a build that is under way,
/// [`leave`](Watcher::leave) does not.
#[derive(Debug)]
pub struct Watcher {
    wishes: Arc<Wishes>,
    thread: Option<JoinHandle<()>>,
}

/// What others ask of the watcher's thread. Each is a flag and not a queue: asked twice is asked
/// once.
#[derive(Debug, Default)]
struct Wishes {
    reload: Notify,
    stop: Notify,
}

impl Answer {
    /// The new house serves.
    #[must_use]
    pub fn applied(files: Vec<Watch>) -> Self {
        Self { result: Reloaded::Applied, files }
    }

    /// The old house serves on.
    #[must_use]
    pub fn refused(files: Vec<Watch>) -> Self {
        Self { result: Reloaded::Refused, files }
    }
}

impl Reloaded {
    /// Its label in `weir_reloads`.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Unchanged => "unchanged",
            Self::Refused => "refused",
        }
    }
}

impl Watcher {
    /// Begins to watch. When it returns, no later change is missed, nor one since the files were
    /// read. Where the system has no watches left, the files are read every two seconds instead,
    /// which the log says.
    ///
    /// `build` runs on the watcher's thread and may take its time. A panic in it counts as refused.
    ///
    /// # Errors
    /// No thread, or no handler for `SIGHUP`.
    pub fn start<B>(settings: Settings, metrics: Metrics, build: B) -> io::Result<Self>
    where
        B: FnMut(Reason) -> Answer + Send + 'static,
    {
        let wishes = Arc::new(Wishes::default());
        let (ready, started) = std::sync::mpsc::sync_channel(1);
        let theirs = Arc::clone(&wishes);
        let body = move || run::run(settings, &metrics, build, &theirs, &ready);
        let thread = thread::Builder::new().name("weir-reload".into()).spawn(body)?;
        started.recv().map_err(|_| io::Error::other("the watcher's thread ended"))??;
        Ok(Self { wishes, thread: Some(thread) })
    }

    /// Rebuilds now, as `SIGHUP` does.
    pub fn reload(&self) {
        self.wishes.reload.notify_one();
    }

    /// Stops watching without waiting for a build that is under way: its thread ends after it, or
    /// with the process.
    pub fn leave(mut self) {
        self.thread = None;
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.wishes.stop.notify_one();
        // A builder that owns the watcher drops it on the watcher's own thread, which can't wait
        // for itself.
        if let Some(thread) =
            self.thread.take().filter(|thread| thread.thread().id() != thread::current().id())
        {
            // It ends without a panic: the builder's are caught. Nothing could be done about one
            // here.
            let _ = thread.join();
        }
    }
}
