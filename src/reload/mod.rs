//! Notices that the configuration changed (a file was saved, `SIGHUP` was received, or somebody
//! asks through a [`Trigger`]) and calls the builder that `app` hands in.
//!
//! Knows neither TOML nor what is built. A [`Watcher`] has a thread of its own, so that compiling a
//! policy never delays a request:
//!
//! ```no_run
//! # fn build() -> Result<Vec<weir::reload::Watch>, Vec<weir::reload::Watch>> { Ok(Vec::new()) }
//! # fn start(files: Vec<weir::reload::Watch>, metrics: weir::telemetry::Metrics) -> std::io::Result<weir::reload::Watcher> {
//! use weir::reload::{BuildReport, Settings, Watcher};
//!
//! Watcher::start(Settings { files, on_sighup: true }, metrics, move |_reason| match build() {
//!     Ok(files) => BuildReport::applied(files), // built aside, swapped, and these are the files to watch from now on
//!     Err(files) => BuildReport::refused(files), // the old configuration stays in use; the builder has logged why
//! })
//! # }
//! ```
//!
//! Only content counts as a change. Each file comes with a digest of what was *read* when the
//! running configuration was built ([`Watch`]), and the builder is called when the content differs.
//! So a change during a build is not lost, and saving a file without changing it builds nothing.
//! `SIGHUP` and a trigger always rebuild.

mod digest;
mod files;
mod run;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use tokio::sync::{Notify, mpsc, oneshot};

use crate::telemetry::{Metrics, labels};

pub use digest::Watch;

/// What to watch.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The configuration and every file that it names, with what was read there.
    pub files: Vec<Watch>,
    /// Whether `SIGHUP` reloads. Then it no longer kills the process, until the process ends. A
    /// program that embeds Weir may want to keep the signal for itself.
    pub on_sighup: bool,
}

labels! {
    /// Why the builder is called.
    pub enum Reason {
        /// The content of a watched file differs from what was read.
        FileChanged = "file_changed",
        /// `SIGHUP`.
        Signal = "signal",
        /// A [`Trigger`].
        Asked = "asked",
    }
}

labels! {
    /// What a reload led to: a metric's label.
    pub enum ReloadResult {
        /// The new configuration serves.
        Applied = "applied",
        /// What was built is what serves already.
        Unchanged = "unchanged",
        /// An error: the old configuration stays in use.
        Refused = "refused",
    }
}

/// What the builder answers.
#[derive(Clone, Debug)]
pub struct BuildReport {
    /// What the reload led to.
    pub result: ReloadResult,
    /// What to watch from now on. Includes the files that a refused configuration names: the
    /// error may be corrected there.
    pub files: Vec<Watch>,
    /// The report for those who asked for this reload. Not read here.
    pub report: String,
}

/// Asks a [`Watcher`] to reload at once, whatever changed.
#[derive(Clone, Debug)]
pub struct Trigger(mpsc::Sender<oneshot::Sender<ReloadOutcome>>);

/// How a reload that somebody asked for has ended.
#[derive(Clone, Debug)]
pub struct ReloadOutcome {
    /// What it led to.
    pub result: ReloadResult,
    /// The builder's [`BuildReport::report`].
    pub report: String,
}

/// Why there is no outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TriggerError {
    /// [`ASKED_MAX`] callers already wait for a reload.
    #[error("{ASKED_MAX} callers already wait for a reload")]
    Busy,
    /// The watcher has ended.
    #[error("nothing is reloaded any more: this process is shutting down")]
    Ended,
}

/// Maximum number of callers that may wait for a reload that they asked for.
pub const ASKED_MAX: usize = 64;

/// Watches until it is dropped. Dropping waits for a build that is under way,
/// [`leave`](Watcher::leave) does not.
#[derive(Debug)]
pub struct Watcher {
    stop: Arc<Notify>,
    trigger: Trigger,
    thread: Option<JoinHandle<()>>,
}

impl BuildReport {
    /// The new configuration serves.
    #[must_use]
    pub fn applied(files: Vec<Watch>) -> Self {
        Self { result: ReloadResult::Applied, files, report: String::new() }
    }

    /// The old configuration stays in use.
    #[must_use]
    pub fn refused(files: Vec<Watch>) -> Self {
        Self { result: ReloadResult::Refused, files, report: String::new() }
    }
}

impl Watcher {
    /// Begins to watch. Once it has returned, no change since the files were read is missed. Where
    /// the system has no watches left, the files are read every two seconds instead, and a warning
    /// is logged.
    ///
    /// `build` runs on the watcher's thread and may take long. If it panics, that counts as
    /// refused.
    ///
    /// # Errors
    /// The thread can't be started, or the handler for `SIGHUP` can't be installed.
    pub fn start<B>(settings: Settings, metrics: Metrics, build: B) -> io::Result<Self>
    where
        B: FnMut(Reason) -> BuildReport + Send + 'static,
    {
        let stop = Arc::new(Notify::new());
        let (ready, started) = std::sync::mpsc::sync_channel(1);
        let (trigger, asks) = mpsc::channel(ASKED_MAX);
        let stopped = Arc::clone(&stop);
        let body = move || {
            run::run(settings, &metrics, build, run::WatcherEnds { stop: &stopped, asks }, &ready)
        };
        let thread = thread::Builder::new().name("weir-reload".into()).spawn(body)?;
        started.recv().map_err(|_| io::Error::other("the watcher's thread ended"))??;
        Ok(Self { stop, trigger: Trigger(trigger), thread: Some(thread) })
    }

    /// A handle that asks for reloads.
    #[must_use]
    pub fn trigger(&self) -> Trigger {
        self.trigger.clone()
    }

    /// Stops watching without waiting for a build that is under way. The thread ends after that
    /// build, or with the process.
    pub fn leave(mut self) {
        self.thread = None;
    }
}

impl Trigger {
    /// Has everything read and built again, and waits for the result. A build that is under way may
    /// have read the files before this call, so it does not count. Those who wait at the same time
    /// share one build.
    ///
    /// # Errors
    /// See [`TriggerError`].
    pub async fn reload(&self) -> Result<ReloadOutcome, TriggerError> {
        let (sender, outcome) = oneshot::channel();
        self.0.try_send(sender).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => TriggerError::Busy,
            mpsc::error::TrySendError::Closed(_) => TriggerError::Ended,
        })?;
        outcome.await.map_err(|_| TriggerError::Ended)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop.notify_one();
        // A builder that owns the watcher drops it on the watcher's own thread, which can't join
        // itself.
        if let Some(thread) =
            self.thread.take().filter(|thread| thread.thread().id() != thread::current().id())
        {
            // The builder's panics are caught, so the thread ends without one.
            let _ = thread.join();
        }
    }
}
