//! Runs an app until a signal: logs the addresses, reloads when files change or on SIGHUP, and
//! shuts down on SIGTERM or SIGINT.

use std::path::{Path, PathBuf};

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{App, Reloader};
use crate::reload::{Answer, Reloaded, Settings, Watcher};
use crate::telemetry;

/// Serves until SIGTERM or SIGINT, then shuts down. With `watch`, that configuration file and the
/// files it names are watched and reloaded. Returns whether everything that was under way could
/// finish.
///
/// A second SIGTERM or SIGINT ends the process at once.
#[must_use]
pub fn serve(app: App, watch: Option<&Path>) -> bool {
    for address in app.addresses() {
        tracing::info!(listener = "http", %address, "listening");
    }
    if let Some(address) = app.admin_address() {
        tracing::info!(listener = "admin", %address, "listening");
    }
    let watcher = watch.map(|path| watcher(&app, path)).transpose();
    let finished = match watcher.and_then(|watcher| until_signal().map(|signal| (watcher, signal)))
    {
        Ok((watcher, signal)) => {
            tracing::info!(
                signal,
                "shutting down: no new connections, what is under way may finish"
            );
            // A reload that is under way may take long, and would not be applied any more.
            if let Some(watcher) = watcher {
                watcher.leave();
            }
            app.shutdown()
        }
        Err(error) => {
            tracing::error!(%error, "can't watch for changes or signals");
            app.shutdown();
            false
        }
    };
    tracing::info!(finished, "stopped");
    telemetry::flush();
    finished
}

fn watcher(app: &App, path: &Path) -> std::io::Result<Watcher> {
    let (reloader, path): (Reloader, PathBuf) = (app.reloader(), path.to_owned());
    let settings = Settings { files: reloader.watched(), on_sighup: true };
    Watcher::start(settings, app.metrics().clone(), move |_reason| match reloader.reload(&path) {
        Ok(files) if reloader.is_draining() => Answer { result: Reloaded::Unchanged, files },
        Ok(files) => Answer::applied(files),
        Err(mistakes) => {
            // A constant message that can be searched for; the details are in its fields.
            tracing::error!(count = mistakes.count, %mistakes, "the new configuration was refused, the old one serves on");
            Answer::refused(mistakes.watched)
        }
    })
}

/// Waits for SIGTERM or SIGINT and names it. From then on, a second one ends the process.
fn until_signal() -> std::io::Result<&'static str> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (first, mut signals) = runtime.block_on(async {
        let mut signals = Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        };
        tracing::info!("ready");
        std::io::Result::Ok((signals.next().await, signals))
    })?;
    // The handlers stay installed for good, so a second signal must be waited for, too.
    let second = move || {
        let signal = runtime.block_on(signals.next());
        tracing::warn!(
            signal,
            "a second signal: ending at once, and what is still under way is cut"
        );
        telemetry::flush();
        std::process::exit(1);
    };
    // If the thread can't be started, a second signal is ignored. The first one still takes effect.
    let _ = std::thread::Builder::new().name("weir-signal".into()).spawn(second);
    Ok(first)
}

/// The signals that end the process. Kept after the first one, so that a second is not lost.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Waits for the next one and returns its name.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
