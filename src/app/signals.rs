//! The signals of a process that serves: which end it, which one hands over, and what a second one
//! does.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::snapshots::Snapshots;
use super::workers::{CUT_MAX, SETTLE_MIN};
use super::{App, Instance};
use crate::telemetry;

/// How long the last save may take once a second signal has come.
const LAST_SAVE_MAX: Duration = Duration::from_secs(2);

/// The signal that asks for a hand-over.
pub(super) const HAND_OVER: &str = "SIGUSR2";

/// Keeps signals for a running Weir from ending the process. To be called at its start: they may
/// reach one that does not serve yet.
///
/// # Errors
/// The system refuses.
pub fn ignore_early_signals() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let _entered = runtime.enter();
    let kinds = [SignalKind::user_defined1(), SignalKind::user_defined2(), SignalKind::hangup()];
    // The handlers stay installed when these are dropped.
    kinds.into_iter().try_for_each(|kind| signal(kind).map(drop))
}

/// The signals of a process that serves. From [`Signals::new`] on, those that come wait for
/// [`serve`](super::serve).
#[derive(Debug)]
pub struct Signals {
    runtime: Runtime,
    ending: EndSignals,
    hand_over: Signal,
}

/// The signals that end the process, and the one that means nothing here.
#[derive(Debug)]
struct EndSignals {
    terminate: Signal,
    interrupt: Signal,
    /// As nginx has it for a stop that lets requests finish.
    quit: Signal,
    /// Elsewhere it has a log opened again.
    reopen: Signal,
}

impl EndSignals {
    /// The next one that ends the process.
    async fn next(&mut self) -> &'static str {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = self.quit.recv() => return "SIGQUIT",
                _ = self.reopen.recv() => tracing::info!(
                    "SIGUSR1 does nothing: the log goes to standard output, and there is no file to open again"
                ),
            }
        }
    }
}

impl Signals {
    /// Handles them from now on, and for good.
    pub(super) fn new() -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let entered = runtime.enter();
        let ending = EndSignals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            reopen: signal(SignalKind::user_defined1())?,
        };
        let hand_over = signal(SignalKind::user_defined2())?;
        drop(entered);
        Ok(Self { runtime, ending, hand_over })
    }

    /// Waits for the next one and returns its name.
    pub(super) fn next(&mut self) -> &'static str {
        self.runtime.block_on(async {
            tokio::select! {
                signal = self.ending.next() => signal,
                _ = self.hand_over.recv() => HAND_OVER,
            }
        })
    }

    /// The next one that ends the process; `None` if `ended` comes first.
    pub(super) fn next_before(
        &mut self,
        ended: tokio::sync::oneshot::Receiver<()>,
    ) -> Option<&'static str> {
        self.runtime.block_on(async {
            tokio::select! {
                signal = self.ending.next() => Some(signal),
                _ = ended => None,
            }
        })
    }

    /// Lets a second signal cut what is in flight, from now on; the first one does not if it is
    /// `spared`. The handlers stay installed for good, so they must be waited for.
    pub(super) fn cut_at_the_next(mut self, mut spared: bool, shutdown: Shutdown) {
        let second = move || {
            let mut signal = self.next();
            while signal == HAND_OVER || spared {
                if signal == HAND_OVER {
                    tracing::warn!("this process is shutting down and can't hand over any more");
                } else {
                    spared = false;
                    tracing::info!(
                        signal,
                        "this process is already shutting down: it exits once its requests have ended"
                    );
                }
                signal = self.next();
            }
            tracing::warn!(signal, "a second signal: requests still in flight are cut");
            shutdown.cut();
        };
        // If the thread can't be started, a second signal is ignored. The first one still takes
        // effect.
        let _ = std::thread::Builder::new().name("weir-signal".into()).spawn(second);
    }
}

/// Time for what a shutdown does when its workers have ended, before counters are saved.
const AFTER_WORKERS: Duration = Duration::from_millis(500);

/// A shutdown that another thread does.
pub(super) struct Shutdown {
    running: Arc<Instance>,
    snapshots: Snapshots,
    /// Closed when the shutdown is over.
    ended: Receiver<Infallible>,
}

impl Shutdown {
    pub(super) fn of(app: &App, ended: Receiver<Infallible>) -> Self {
        Self { running: Arc::clone(&app.running), snapshots: app.snapshots.clone(), ended }
    }

    /// Cuts what is in flight. The shutdown is over soon then; if something holds it up, this
    /// saves counters in its place and ends the process.
    fn cut(self) {
        self.running.cut();
        if !self.is_over_within(CUT_MAX + SETTLE_MIN + AFTER_WORKERS)
            && !self.is_saved_within(LAST_SAVE_MAX)
        {
            tracing::error!(
                "counts since the last snapshot are lost: saving them takes longer than {LAST_SAVE_MAX:?}"
            );
        }
        if self.is_over_within(Duration::ZERO) {
            // The process is about to end by itself.
            return;
        }
        telemetry::flush();
        std::process::exit(1);
    }

    fn is_over_within(&self, most: Duration) -> bool {
        self.ended.recv_timeout(most) == Err(RecvTimeoutError::Disconnected)
    }

    /// Whether counters are saved, or another process has taken them over.
    fn is_saved_within(&self, most: Duration) -> bool {
        let (saving, saved) = channel::<Infallible>();
        let (snapshots, running) = (self.snapshots.clone(), Arc::clone(&self.running));
        let save = move || {
            snapshots.finish(&running.current.load().built.engine);
            drop(saving);
        };
        let thread = std::thread::Builder::new().name("weir-last-save".into()).spawn(save);
        thread.is_ok() && saved.recv_timeout(most) == Err(RecvTimeoutError::Disconnected)
    }
}
