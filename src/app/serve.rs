//! From start to signal: says where Weir listens, reloads when files change or on SIGHUP, and shuts
//! down on SIGTERM and SIGINT.

use std::path::{Path, PathBuf};

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{App, Reloader};
use crate::reload::{Answer, Reloaded, Settings, Watcher};
use crate::telemetry;

/// Serves until the process is told to stop, then shuts down. With `watch`, that configuration file
/// and the files it names are watched and reloaded. Says whether everything that was under way
/// could finish.
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
    let finished = match watcher.and_then(|watcher| until_told().map(|signal| (watcher, signal))) {
        Ok((watcher, signal)) => {
            tracing::info!(
                signal,
                "shutting down: no new connections, what is under way may finish"
            );
            // A reload that is under way may take long, and is applied no more.
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
            // One message that can be searched for; what differs stands in its fields.
            tracing::error!(count = mistakes.count, %mistakes, "the new configuration was refused, the old one serves on");
            Answer::refused(mistakes.watched)
        }
    })
}

/// Waits for SIGTERM or SIGINT and names it. From then on, a second one ends the process.
fn until_told() -> std::io::Result<&'static str> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (told, mut signals) = runtime.block_on(async {
        let mut signals = Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        };
        tracing::info!("ready");
        std::io::Result::Ok((signals.next().await, signals))
    })?;
    // The handlers stay installed for the process's life, so somebody must go on listening for a
    // second signal.
    let second = move || {
        let signal = runtime.block_on(signals.next());
        tracing::warn!(
            signal,
            "a second signal: ending at once, and what is still under way is cut"
        );
        telemetry::flush();
        std::process::exit(1);
    };
    // Without this thread a second signal is not heard; the first is being obeyed all the same.
    let _ = std::thread::Builder::new().name("weir-signal".into()).spawn(second);
    Ok(told)
}

/// What tells the process to end. Kept from the first to the second, so that none in between is
/// lost.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// The next one's name.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
