//! Runs an app until a signal: logs the addresses, reloads when files change or on SIGHUP, hands
//! over to a new process on SIGUSR2, and shuts down on SIGTERM, SIGINT or SIGQUIT.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;

use super::folder::StartFolder;
use super::handover::{Abort, CommandLine, HandOverError};
use super::signals::{HAND_OVER, Shutdown, Signals};
use super::{App, Reloader, documents, manager};
use crate::reload::{BuildReport, ReloadResult, Settings, Watcher};
use crate::telemetry;

/// Serves until SIGTERM, SIGINT or SIGQUIT, or until a new process has taken over on SIGUSR2; then
/// shuts down. With `watch`, that configuration file and the files it names are watched and
/// reloaded. Returns whether everything that was under way could finish.
///
/// A second signal cuts what is in flight, and ends the process once counters are saved.
#[must_use]
pub fn serve(mut app: App, mut signals: Signals, watch: Option<&Path>) -> bool {
    for address in app.addresses() {
        tracing::info!(listener = "http", %address, "listening");
    }
    if let Some(address) = app.admin_address() {
        tracing::info!(listener = "admin", %address, "listening");
    }
    let watcher = watch.map(|path| watcher(&app, path)).transpose();
    // Open until this process is about to end.
    let (ending, ended) = channel::<Infallible>();
    let finished = match watcher {
        Ok(watcher) => {
            let why = wait_for_exit(&mut app, &mut signals);
            // The service manager may end all its processes while an old one finishes its requests.
            let spared = matches!(why, ExitCause::HandedOver);
            signals.cut_at_the_next(spared, Shutdown::of(&app, ended));
            if let ExitCause::Signal(signal) = why {
                manager::stopping();
                let delay = app.announce_shutdown();
                if !delay.is_zero() {
                    tracing::info!(
                        signal,
                        delay_s = delay.as_secs_f64(),
                        "shutting down soon: /ready answers 503, and requests are still served"
                    );
                    std::thread::sleep(delay);
                }
                tracing::info!(
                    signal,
                    "shutting down: no new connections, requests in flight may finish"
                );
            }
            // A reload that is under way may take long, and would not be applied any more.
            if let Some(watcher) = watcher {
                watcher.leave();
            }
            app.shutdown()
        }
        Err(error) => {
            tracing::error!(%error, "can't watch for changes");
            app.shutdown();
            false
        }
    };
    tracing::info!(finished, "stopped");
    telemetry::flush();
    drop(ending);
    finished
}

/// Why a process ends.
enum ExitCause {
    Signal(&'static str),
    HandedOver,
}

fn wait_for_exit(app: &mut App, signals: &mut Signals) -> ExitCause {
    let (command_line, folder) = (CommandLine::current(), StartFolder::current());
    tracing::info!("ready");
    // Before the old process ends: the service manager must know then which one is the main one.
    manager::started();
    app.say_serving();
    loop {
        let signal = signals.next();
        if signal != HAND_OVER {
            return ExitCause::Signal(signal);
        }
        // The new process is started in this one's folder, which may have been replaced.
        if let Err(error) = folder.enter() {
            tracing::warn!("the folder that this process was started in is gone: {error}");
        }
        match hand_over(app, &command_line, signals) {
            (Ok(()), _) => return ExitCause::HandedOver,
            (Err(error), Some(signal)) => {
                tracing::info!("the hand-over was aborted by a {signal}: {error}");
                return ExitCause::Signal(signal);
            }
            (Err(error), None) => {
                tracing::error!("the hand-over failed, so this process keeps serving: {error}");
            }
        }
    }
}

/// Hands over in a thread of its own; a signal that ends this process ends the hand-over, too, and
/// is returned.
fn hand_over(
    app: &mut App,
    command_line: &CommandLine,
    signals: &mut Signals,
) -> (Result<(), HandOverError>, Option<&'static str>) {
    let (abort, (done, ended)) = (Abort::default(), tokio::sync::oneshot::channel());
    std::thread::scope(|scope| {
        let work = scope.spawn(|| {
            let result = app.hand_over(command_line, &abort);
            // Nobody waits for it if a signal came first.
            let _ = done.send(());
            result
        });
        let signal = signals.next_before(ended);
        if signal.is_some() {
            abort.abort();
        }
        let failed = |_| Err(HandOverError::Start(std::io::Error::other("its thread panicked")));
        (work.join().unwrap_or_else(failed), signal)
    })
}

fn watcher(app: &App, path: &Path) -> std::io::Result<Watcher> {
    let (reloader, file): (Reloader, PathBuf) = (app.reloader(), path.to_owned());
    let folder = StartFolder::current();
    let settings = Settings { files: reloader.watched(), on_sighup: true };
    let reloads = app.reloader();
    let watcher = Watcher::start(settings, app.metrics().clone(), move |reason| {
        // A process that ends says nothing more about itself.
        if !reloader.is_leaving() {
            manager::reloading();
        }
        let (reloaded, report) = reloader.reload_for(&folder.find(&file), Some(reason));
        if !reloader.is_leaving() {
            manager::reloaded();
        }
        let answer = match reloaded {
            Ok(files) if reloader.is_draining() => {
                BuildReport { result: ReloadResult::Unchanged, ..BuildReport::applied(files) }
            }
            Ok(files) => BuildReport::applied(files),
            Err(errors) => {
                // A constant message that can be searched for; the details are in its fields.
                tracing::error!(count = errors.count, %errors, "the new configuration was refused, the old one stays in use");
                BuildReport::refused(errors.watched)
            }
        };
        BuildReport { report, ..answer }
    })?;
    reloads.0.reloads.set_trigger(watcher.trigger());
    // After the watcher, which applies what is fetched.
    documents::keep(app, path)?;
    Ok(watcher)
}
