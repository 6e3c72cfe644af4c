//! The watcher's thread: waits for a reason, lets the dust settle, compares, builds, and watches
//! what the answer names.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use super::files::Watches;
use super::{Answer, Reason, Reloaded, Settings, Watch, Wishes};
use crate::clock::{self, Clock};
use crate::telemetry::{Metrics, names};

/// Quiet time after an event before the files are read: an editor writes in several steps.
const QUIET_MS: u64 = 100;
/// Time after the first event at which they are read even so.
const SETTLE_MS_MAX: u64 = 1_000;
/// The same where a file looks as if its writer were not done: it is written in place, and has
/// become shorter or has no end of line yet.
const UNFINISHED_QUIET_MS: u64 = 1_000;
const UNFINISHED_MS_MAX: u64 = 3_000;
/// How often the files are read where the system gives no watches.
const POLL_MS: u64 = 2_000;

/// What the thread holds.
struct Room<'a, B> {
    build: B,
    metrics: &'a Metrics,
    wishes: &'a Wishes,
    files: Vec<Watch>,
    /// None where the system gives none: then the files are polled.
    watches: Option<Watches>,
    changed: Arc<Notify>,
    hangup: Option<Signal>,
}

/// What the thread is woken by.
enum Wake {
    Stop,
    /// A watched name changed, or the time to poll has come.
    Look,
    Build(Reason),
}

/// Runs until it is told to stop; says through `ready` when it watches.
pub(super) fn run<B>(
    settings: Settings,
    metrics: &Metrics,
    build: B,
    wishes: &Wishes,
    ready: &SyncSender<io::Result<()>>,
) where
    B: FnMut(Reason) -> Answer,
{
    let (runtime, hangup) = match prepare(settings.on_sighup) {
        Ok(prepared) => prepared,
        Err(error) => {
            // `start` waits for this very message: it is there to take it.
            let _ = ready.send(Err(error));
            return;
        }
    };
    let changed = Arc::new(Notify::new());
    let watches = watch(&settings.files, &changed);
    let mut room = Room { build, metrics, wishes, files: settings.files, watches, changed, hangup };
    room.applied_now();
    room.look_once();
    let _ = ready.send(Ok(()));
    runtime.block_on(room.serve());
}

fn prepare(on_sighup: bool) -> io::Result<(Runtime, Option<Signal>)> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let entered = runtime.enter();
    let hangup = if on_sighup { Some(signal(SignalKind::hangup())?) } else { None };
    drop(entered);
    Ok((runtime, hangup))
}

fn watch(files: &[Watch], changed: &Arc<Notify>) -> Option<Watches> {
    let watches = Watches::new(files, changed);
    if let Err(error) = &watches {
        tracing::warn!(%error, "files can't be watched: they are read every {POLL_MS} ms instead");
    }
    watches.ok()
}

impl<B: FnMut(Reason) -> Answer> Room<'_, B> {
    async fn serve(&mut self) {
        loop {
            let wake = match self.wake().await {
                Wake::Look => self.settle().await,
                wake => wake,
            };
            match wake {
                Wake::Stop => return,
                Wake::Build(reason) => self.rebuild(reason),
                Wake::Look => self.look(),
            }
        }
    }

    fn look(&mut self) {
        let polled = self.watches.is_none();
        // Before the comparison, so that nothing falls between the two.
        self.watch_anew();
        if self.is_stale() {
            self.rebuild(Reason::FileChanged);
        } else if !polled {
            self.count(Reloaded::Unchanged);
        }
    }

    /// For files that were read before they were watched: what changed between gave no event.
    fn look_once(&self) {
        if self.is_stale() {
            self.changed.notify_one();
        }
    }

    fn is_stale(&self) -> bool {
        self.files.iter().any(Watch::is_stale)
    }

    async fn wake(&mut self) -> Wake {
        let polled = self.watches.is_none();
        let poll = async {
            if polled {
                sleep(Duration::from_millis(POLL_MS)).await;
            } else {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            () = self.wishes.stop.notified() => Wake::Stop,
            () = hung_up(&mut self.hangup) => Wake::Build(Reason::Signal),
            () = self.wishes.reload.notified() => Wake::Build(Reason::Asked),
            () = self.changed.notified() => Wake::Look,
            () = poll => Wake::Look,
        }
    }

    /// Waits until nothing changes any more, at most [`SETTLE_MS_MAX`]; longer where a file looks
    /// unfinished, at most [`UNFINISHED_MS_MAX`].
    async fn settle(&mut self) -> Wake {
        let began = Instant::now();
        let (mut quiet_ms, mut latest) = (QUIET_MS, began + Duration::from_millis(SETTLE_MS_MAX));
        loop {
            let quiet = (Instant::now() + Duration::from_millis(quiet_ms)).min(latest);
            tokio::select! {
                biased;
                () = self.wishes.stop.notified() => return Wake::Stop,
                () = hung_up(&mut self.hangup) => return Wake::Build(Reason::Signal),
                () = self.wishes.reload.notified() => return Wake::Build(Reason::Asked),
                () = sleep_until(quiet) => {
                    latest = began + Duration::from_millis(UNFINISHED_MS_MAX);
                    if quiet_ms == UNFINISHED_QUIET_MS || quiet >= latest || !self.looks_unfinished() {
                        return Wake::Look;
                    }
                    quiet_ms = UNFINISHED_QUIET_MS;
                }
                () = self.changed.notified() => quiet_ms = QUIET_MS,
            }
        }
    }

    fn looks_unfinished(&self) -> bool {
        self.files.iter().any(Watch::looks_unfinished)
    }

    fn watch_anew(&mut self) {
        // The new ones first: nothing is missed between them.
        self.watches = watch(&self.files, &self.changed);
    }

    fn rebuild(&mut self, reason: Reason) {
        let started = clock::monotonic();
        let answer = catch_unwind(AssertUnwindSafe(|| (self.build)(reason))).unwrap_or_else(|_| {
            tracing::error!("the new configuration could not be built: its builder panicked");
            // As they are now, so that the same files don't make it panic again at once.
            Answer::refused(self.files.iter().map(|file| Watch::now(file.path())).collect())
        });
        let same_paths =
            answer.files.iter().map(Watch::path).eq(self.files.iter().map(Watch::path));
        self.files = answer.files;
        if !same_paths {
            self.watch_anew();
            self.look_once();
        }
        self.count(answer.result);
        if answer.result == Reloaded::Applied {
            self.applied_now();
        }
        let ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::info!(result = answer.result.label(), ?reason, ms, "reload");
    }

    fn count(&self, result: Reloaded) {
        self.metrics.count(names::RELOADS, &[result.label()]);
    }

    fn applied_now(&self) {
        self.metrics.gauge(names::CONFIG_APPLIED).set(Clock::system().wall_us() / 1_000_000);
    }
}

async fn hung_up(hangup: &mut Option<Signal>) {
    if let Some(signal) = hangup
        && signal.recv().await.is_some()
    {
        return;
    }
    std::future::pending().await
}
