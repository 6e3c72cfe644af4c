//! Saves counters in memory periodically, and once more at the end. Knows no format and no file,
//! only when it is time.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Instance;
use crate::clock;
use crate::engine::{Engine, SaveSummary};
use crate::telemetry::{Counter, Metrics, names};

/// Maximum time between two looks at the settings, so that a reload takes effect.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The pause between two saves is at least this many times the CPU time that the last one took:
/// saving takes at most a tenth of one core.
const REST: u32 = 9;
/// While saving fails, it is tried at least this often.
const RETRY_EVERY: Duration = Duration::from_secs(5);
/// While saving fails, how often that is logged.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// How long a shutdown or a hand-over waits for the disk before it says so.
const SAID_AFTER: Duration = Duration::from_secs(1);

/// Saves until it is ended, or the last handle is dropped. Of several that end it, the first one
/// does.
#[derive(Clone, Debug)]
pub(super) struct Snapshots(Arc<Mutex<Option<SaveThread>>>);

#[derive(Debug)]
struct SaveThread {
    /// Never used to send: the thread ends when this is dropped.
    end: Sender<std::convert::Infallible>,
    thread: JoinHandle<()>,
}

impl Snapshots {
    /// Starts saving as the current configuration says.
    ///
    /// # Errors
    /// The thread can't be started.
    pub(super) fn start(running: &Arc<Instance>) -> std::io::Result<Self> {
        Ok(Self(Arc::new(Mutex::new(Some(SaveThread::start(running)?)))))
    }

    /// Starts again after [`Snapshots::end`].
    ///
    /// # Errors
    /// The thread can't be started.
    pub(super) fn restart(&self, running: &Arc<Instance>) -> std::io::Result<()> {
        let thread = SaveThread::start(running)?;
        *self.lock() = Some(thread);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Option<SaveThread>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends without saving a last time, and leaves the file to another process. A save that is
    /// under way is finished.
    pub(super) fn end(&self, engine: &Engine) {
        let Some(saving) = self.lock().take() else { return };
        said_if_slow("the hand-over", || saving.join());
        engine.release_snapshot();
    }

    /// Saves a last time, once a save that is under way is done. Nothing saves after it. Where
    /// another thread does that already, waits for it.
    pub(super) fn finish(&self, engine: &Engine) {
        let mut saving = self.lock();
        let Some(thread) = saving.take() else { return };
        said_if_slow("the shutdown", || {
            thread.join();
            save_last(engine);
        });
    }
}

impl SaveThread {
    fn start(running: &Arc<Instance>) -> std::io::Result<Self> {
        let (end, ended) = channel();
        let mut saver = Saver::new(&running.metrics);
        let running = Arc::downgrade(running);
        let save = move || {
            let mut wait = Duration::ZERO;
            while ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                wait = saver.look(&running).min(LOOK_EVERY);
            }
        };
        let thread = std::thread::Builder::new().name("weir-snapshot".into()).spawn(save)?;
        Ok(Self { end, thread })
    }

    fn join(self) {
        drop(self.end);
        // The thread does not panic.
        let _ = self.thread.join();
    }
}

/// Does `work`, and says in the log what waits for it if that takes long.
fn said_if_slow(waiting: &'static str, work: impl FnOnce()) {
    let (working, done) = channel::<std::convert::Infallible>();
    let say = move || {
        if done.recv_timeout(SAID_AFTER) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("{waiting} waits for counters to be saved, as the disk is slow");
        }
    };
    std::thread::scope(|scope| {
        // If it can't be started, nothing is said.
        let _ = std::thread::Builder::new().name("weir-slow".into()).spawn_scoped(scope, say);
        work();
        drop(working);
    });
}

/// Saves the counters of an engine that is no longer used, and leaves the file to others.
pub(super) fn save_last(engine: &Engine) {
    match engine.save() {
        Ok(Some(SaveSummary { counters, bytes, .. })) => {
            tracing::info!(counters, bytes, "counters saved");
        }
        Ok(None) => {}
        Err(error) => tracing::error!("counts since the last snapshot are lost: {error}"),
    }
    engine.release_snapshot();
}

#[derive(Debug)]
struct Saver {
    metrics: Metrics,
    failed: Counter,
    /// When the last save began.
    last: Option<Instant>,
    /// When the next may begin.
    rested: Instant,
    /// When a failure was last logged, if the last save failed.
    warned: Option<Instant>,
}

impl Saver {
    fn new(metrics: &Metrics) -> Self {
        Self {
            metrics: metrics.clone(),
            failed: metrics.counter(names::SNAPSHOTS_FAILED, &[]),
            last: None,
            rested: clock::monotonic(),
            warned: None,
        }
    }

    /// Saves if it is time; returns how long to wait.
    fn look(&mut self, running: &Weak<Instance>) -> Duration {
        let Some(running) = running.upgrade() else { return LOOK_EVERY };
        let built = &running.current.load().built;
        let Some(every) = built.snapshot_every() else {
            built.engine.release_snapshot();
            return LOOK_EVERY;
        };
        let now = clock::monotonic();
        // What failed is tried again soon.
        let every = if self.warned.is_some() { every.min(RETRY_EVERY) } else { every };
        let due = self.last.map_or(now, |last| last + every).max(self.rested);
        if now < due {
            return due - now;
        }
        self.last = Some(now);
        let cpu = clock::thread_cpu();
        let saved = self.save(&built.engine);
        let at_s = running.clock.wall_us() / 1_000_000;
        if saved.is_some() {
            self.metrics.gauge(names::SNAPSHOT_SAVED).set(at_s);
        }
        // Waiting for the disk uses no core.
        self.rested = clock::monotonic() + (clock::thread_cpu() - cpu) * REST;
        (now + every).max(self.rested).saturating_duration_since(clock::monotonic())
    }

    fn save(&mut self, engine: &Engine) -> Option<SaveSummary> {
        match engine.save() {
            Ok(saved) => {
                if self.warned.take().is_some() {
                    tracing::info!("counters are saved again");
                }
                if let Some(SaveSummary { counters, bytes, took }) = saved {
                    let took_ms = took.as_millis() as u64;
                    tracing::debug!(counters, bytes, took_ms, "counters saved");
                }
                saved
            }
            Err(error) => {
                self.failed.inc();
                if self.warned.is_none_or(|warned| warned.elapsed() >= WARN_EVERY) {
                    self.warned = Some(clock::monotonic());
                    tracing::warn!(
                        "counters can't be saved, so a restart would lose what is counted from now on: {error}"
                    );
                }
                None
            }
        }
    }
}
