//! The watcher's thread: waits for an event, waits until the files are quiet, compares them,
//! builds, and watches the files that the answer names.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

use super::files::{Watches, remedy};
use super::{BuildReport, Reason, ReloadOutcome, ReloadResult, Settings, Watch};
use crate::clock;
use crate::telemetry::{CounterSet, Label as _, Metrics, names};

/// Quiet time after an event before the files are read: an editor writes in several steps.
const QUIET_MS: u64 = 100;
/// Time after the first event after which the files are read in any case.
const SETTLE_MS_MAX: u64 = 1_000;
/// The same two limits for a file that looks half written: it is written in place, and has become
/// shorter or has lost its last line end.
const UNFINISHED_QUIET_MS: u64 = 1_000;
const UNFINISHED_MS_MAX: u64 = 3_000;
/// How often the files are read where the system has no watches left.
const POLL_MS: u64 = 2_000;
/// How often they are read besides the watches: file systems over a network, and some that
/// containers see, give no event for what is changed elsewhere.
const COMPARE_MS: u64 = 30_000;
/// Between two comparisons is at least this many times what the last one took.
const COMPARE_REST: u32 = 100;

/// The state of the watcher's thread.
struct WatchLoop<'a, B> {
    build: B,
    reloads: CounterSet<ReloadResult>,
    stop: &'a Notify,
    files: Vec<Watch>,
    /// None where the system has none left: then the files are polled.
    watches: Option<Watches>,
    /// How long to wait before the next comparison without an event.
    pause: Duration,
    changed: Arc<Notify>,
    hangup: Option<Signal>,
    asks: mpsc::Receiver<Ask>,
    /// Those who wait for the next build.
    asking: Vec<Ask>,
}

/// Where somebody waits for a reload.
type Ask = oneshot::Sender<ReloadOutcome>;

/// The other ends of a watcher.
pub(super) struct WatcherEnds<'a> {
    pub(super) stop: &'a Notify,
    pub(super) asks: mpsc::Receiver<Ask>,
}

/// Why the thread wakes up.
enum Wake {
    Stop,
    /// A watched name changed, or it is time to poll.
    Compare,
    Build(Reason),
}

/// Runs until `stop` is notified. Reports through `ready` that it watches.
pub(super) fn run<B>(
    settings: Settings,
    metrics: &Metrics,
    build: B,
    ends: WatcherEnds<'_>,
    ready: &SyncSender<io::Result<()>>,
) where
    B: FnMut(Reason) -> BuildReport,
{
    let (runtime, hangup) = match prepare(settings.on_sighup) {
        Ok(prepared) => prepared,
        Err(error) => {
            // `start` waits for this message, so the receiver exists.
            let _ = ready.send(Err(error));
            return;
        }
    };
    let changed = Arc::new(Notify::new());
    let watches = Watches::new(&settings.files, &changed).inspect_err(say_lost).ok();
    let reloads = metrics.counters(names::RELOADS, &[]);
    let mut watch_loop = WatchLoop {
        build,
        reloads,
        stop: ends.stop,
        files: settings.files,
        watches,
        pause: Duration::from_millis(COMPARE_MS),
        changed,
        hangup,
        asks: ends.asks,
        asking: Vec::new(),
    };
    watch_loop.notice_missed();
    let _ = ready.send(Ok(()));
    runtime.block_on(watch_loop.run());
}

fn prepare(on_sighup: bool) -> io::Result<(Runtime, Option<Signal>)> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let entered = runtime.enter();
    let hangup = if on_sighup { Some(signal(SignalKind::hangup())?) } else { None };
    drop(entered);
    Ok((runtime, hangup))
}

fn say_lost(error: &notify::Error) {
    tracing::warn!(%error, remedy = remedy(error), "files can't be watched: they are read every {POLL_MS} ms instead");
}

impl<B: FnMut(Reason) -> BuildReport> WatchLoop<'_, B> {
    async fn run(&mut self) {
        loop {
            let wake = match self.wake().await {
                Wake::Compare => self.settle().await,
                wake => wake,
            };
            match wake {
                Wake::Stop => return,
                Wake::Build(reason) => self.rebuild(reason),
                Wake::Compare => self.compare(),
            }
        }
    }

    fn compare(&mut self) {
        let polled = self.watches.is_none();
        // Before the comparison, so that no change falls between the two.
        self.renew_watches();
        if let Some(changed) = self.files.iter().find(|file| file.is_stale()) {
            tracing::info!(file = %changed.path().display(), "a watched file changed");
            self.rebuild(Reason::FileChanged);
        } else if !polled {
            self.reloads.inc(ReloadResult::Unchanged);
        }
    }

    /// Files are read before they are watched, and a change in between gives no event.
    fn notice_missed(&self) {
        if self.is_stale() {
            self.changed.notify_one();
        }
    }

    fn is_stale(&self) -> bool {
        self.files.iter().any(Watch::is_stale)
    }

    async fn wake(&mut self) -> Wake {
        loop {
            let polled = self.watches.is_none();
            let pause = if polled { Duration::from_millis(POLL_MS) } else { self.pause };
            tokio::select! {
                biased;
                () = self.stop.notified() => return Wake::Stop,
                () = hung_up(&mut self.hangup) => return Wake::Build(Reason::Signal),
                () = asked(&mut self.asks, &mut self.asking) => return Wake::Build(Reason::Asked),
                () = self.changed.notified() => return Wake::Compare,
                () = sleep(pause) => if polled || self.changed_without_event() {
                    return Wake::Compare;
                },
            }
        }
    }

    fn changed_without_event(&mut self) -> bool {
        let began = clock::monotonic();
        let is_stale = self.is_stale();
        self.pause = (began.elapsed() * COMPARE_REST).max(Duration::from_millis(COMPARE_MS));
        is_stale
    }

    /// Waits until nothing changes any more, for at most [`SETTLE_MS_MAX`], or
    /// [`UNFINISHED_MS_MAX`] where a file looks half written.
    async fn settle(&mut self) -> Wake {
        let began = Instant::now();
        let (mut quiet_ms, mut latest) = (QUIET_MS, began + Duration::from_millis(SETTLE_MS_MAX));
        loop {
            let quiet = (Instant::now() + Duration::from_millis(quiet_ms)).min(latest);
            tokio::select! {
                biased;
                () = self.stop.notified() => return Wake::Stop,
                () = hung_up(&mut self.hangup) => return Wake::Build(Reason::Signal),
                () = asked(&mut self.asks, &mut self.asking) => return Wake::Build(Reason::Asked),
                () = sleep_until(quiet) => {
                    latest = began + Duration::from_millis(UNFINISHED_MS_MAX);
                    if quiet_ms == UNFINISHED_QUIET_MS || quiet >= latest || !self.looks_unfinished() {
                        return Wake::Compare;
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

    fn renew_watches(&mut self) {
        // The old watches end only when the new ones are there, so that nothing is missed.
        let renewed = Watches::new(&self.files, &self.changed);
        match (&self.watches, &renewed) {
            (Some(_), Err(error)) => say_lost(error),
            (None, Ok(_)) => tracing::info!("files are watched again"),
            _ => {}
        }
        self.watches = renewed.ok();
    }

    fn rebuild(&mut self, reason: Reason) {
        let started = clock::monotonic();
        tracing::info!(reason = reason.label(), "a reload begins");
        // All who have asked by now are served by this build.
        while let Ok(ask) = self.asks.try_recv() {
            self.asking.push(ask);
        }
        let answer = catch_unwind(AssertUnwindSafe(|| (self.build)(reason))).unwrap_or_else(|_| {
            tracing::error!("the new configuration could not be built: its builder panicked");
            // The files count as read, so that the same content does not cause the next panic.
            BuildReport::refused(self.files.iter().map(|file| Watch::now(file.path())).collect())
        });
        let same_paths =
            answer.files.iter().map(Watch::path).eq(self.files.iter().map(Watch::path));
        self.files = answer.files;
        // A change that was found by comparing files needs nothing here: the watches were renewed
        // before the comparison. A reload that was asked for may come right after a link was
        // replaced, while the watches are still on the link's old target.
        if !same_paths || reason != Reason::FileChanged {
            self.renew_watches();
            self.notice_missed();
        }
        self.reloads.inc(answer.result);
        let ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::info!(result = answer.result.label(), reason = reason.label(), ms, "reload");
        for ask in self.asking.drain(..) {
            // Whoever asked may have gone.
            let _ =
                ask.send(ReloadOutcome { result: answer.result, report: answer.report.clone() });
        }
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

/// Waits until somebody asks for a reload. Cancel safe: an ask is either in the channel or noted.
async fn asked(asks: &mut mpsc::Receiver<Ask>, asking: &mut Vec<Ask>) {
    match asks.recv().await {
        Some(ask) => asking.push(ask),
        // The watcher that holds the other end is being dropped, and stops this thread.
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_change_without_an_event_is_found_by_comparing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("proxy.toml");
        std::fs::write(&path, "one").unwrap();
        let (changed, stop) = (Arc::new(Notify::new()), Notify::new());
        let (_trigger, asks) = mpsc::channel(1);
        let mut watch_loop = WatchLoop {
            build: |_| panic!("nothing is built"),
            reloads: Metrics::new(1).counters(names::RELOADS, &[]),
            stop: &stop,
            files: vec![Watch::read(&path, b"one")],
            // Of no file.
            watches: Some(Watches::new(&[], &changed).unwrap()),
            pause: Duration::ZERO,
            changed,
            hangup: None,
            asks,
            asking: Vec::new(),
        };
        assert!(!watch_loop.changed_without_event(), "nothing has changed");
        assert!(watch_loop.pause >= Duration::from_millis(COMPARE_MS));
        watch_loop.pause = Duration::from_millis(1);
        std::fs::write(&path, "two").unwrap();
        assert!(matches!(watch_loop.wake().await, Wake::Compare));
    }
}
