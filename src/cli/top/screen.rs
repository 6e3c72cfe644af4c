//! The tables on a terminal, asked for each second, until a person or a signal ends it. `state` is
//! what the keyboard changes, `draw` puts it on the screen.

mod draw;
mod state;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, SyncSender, TryRecvError};
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event;
use tokio::signal::unix::{SignalKind, signal};

use super::failed;
use super::table::TopTable;
use crate::clock;
use state::State;

/// The time between two questions.
const EVERY: Duration = Duration::from_secs(1);
/// How long the keyboard is waited for before an answer or a signal is looked for.
const KEYBOARD: Duration = Duration::from_millis(100);
/// Answers that wait to be shown.
const ANSWERS_MAX: usize = 1;
/// How long the loop may take to end after a signal.
const SIGNAL_GRACE: Duration = Duration::from_secs(1);
/// A shell's exit code for a program that a signal ended is this and the signal's number.
const EXIT_SIGNAL: u8 = 128;

/// What other threads send to the loop.
#[derive(Debug)]
enum Event {
    Answer(Result<TopTable, String>),
    Signal(u8),
}

/// Why there is no more to show.
#[derive(Debug)]
enum ScreenEnd {
    Quit,
    Signal(u8),
    Failed(String),
}

/// Shows what `look` returns until a person quits. If the first look fails, that is reported and
/// the terminal stays as it is. Later errors are shown: the proxy may be back a second later.
pub(super) fn show<L>(address: SocketAddr, look: L) -> ExitCode
where
    L: Fn() -> Result<TopTable, String> + Send + 'static,
{
    let state = match look() {
        Ok(table) => State::new(address, table, clock::monotonic()),
        Err(error) => return failed(&error),
    };
    let (news, heard) = mpsc::sync_channel(ANSWERS_MAX);
    if let Err(error) = watch_signals(news.clone()) {
        return failed(&format!("can't watch for signals: {error}"));
    }
    // Threads of their own, as an admin that stalls must not stop the keyboard. They end with the
    // process.
    std::thread::spawn(move || ask(&news, &look));
    let ended = match ratatui::try_init() {
        Ok(mut terminal) => run(&mut terminal, state, &heard),
        Err(error) => ScreenEnd::Failed(unusable(&error)),
    };
    // Also after a failure: it may have been half initialized.
    let restored = ratatui::try_restore();
    match (ended, restored) {
        (ScreenEnd::Quit, Ok(())) => ExitCode::SUCCESS,
        // The terminal may be gone, with nobody there to read about it.
        (ScreenEnd::Signal(signal), _) => ExitCode::from(EXIT_SIGNAL.saturating_add(signal)),
        (ScreenEnd::Failed(error), _) => failed(&error),
        (ScreenEnd::Quit, Err(error)) => {
            failed(&format!("the terminal can't be restored: {error}"))
        }
    }
}

fn unusable(error: &std::io::Error) -> String {
    format!("this terminal can't be drawn on: {error} (--once prints the keys)")
}

/// Asks each second, until nobody listens.
fn ask(news: &SyncSender<Event>, look: &impl Fn() -> Result<TopTable, String>) {
    loop {
        std::thread::sleep(EVERY);
        if news.send(Event::Answer(look())).is_err() {
            return;
        }
    }
}

/// Sends the first signal that asks this process to end, which would leave the terminal as it is.
fn watch_signals(news: SyncSender<Event>) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let kinds = [SignalKind::hangup(), SignalKind::interrupt(), SignalKind::terminate()];
    let guard = runtime.enter();
    let [mut hangup, mut interrupt, mut terminate] = {
        let [first, second, third] = kinds.map(signal);
        [first?, second?, third?]
    };
    drop(guard);
    std::thread::spawn(move || {
        let kind = runtime.block_on(async {
            tokio::select! {
                _ = hangup.recv() => SignalKind::hangup(),
                _ = interrupt.recv() => SignalKind::interrupt(),
                _ = terminate.recv() => SignalKind::terminate(),
            }
        });
        let number = u8::try_from(kind.as_raw_value()).unwrap_or(0);
        // An error says that the loop is over already.
        drop(news.send(Event::Signal(number)));
        // A terminal that is gone can keep crossterm from returning. Then nothing is left to put
        // back.
        std::thread::sleep(SIGNAL_GRACE);
        std::process::exit(i32::from(EXIT_SIGNAL.saturating_add(number)));
    });
    Ok(())
}

fn run(terminal: &mut DefaultTerminal, mut state: State, heard: &Receiver<Event>) -> ScreenEnd {
    loop {
        let now = clock::monotonic();
        if let Err(error) = terminal.draw(|frame| draw::draw(frame, &mut state, now)) {
            return ScreenEnd::Failed(unusable(&error));
        }
        match event::poll(KEYBOARD).and_then(|is_there| is_there.then(event::read).transpose()) {
            Err(error) => return ScreenEnd::Failed(unusable(&error)),
            Ok(Some(event)) if state.is_over_after(&event) => return ScreenEnd::Quit,
            // The size has changed: it is drawn again in any case.
            Ok(_) => {}
        }
        if let Some(end) = listen(&mut state, heard, clock::monotonic()) {
            return end;
        }
    }
}

/// Takes what other threads have sent.
fn listen(state: &mut State, heard: &Receiver<Event>, now: Instant) -> Option<ScreenEnd> {
    loop {
        match heard.try_recv() {
            Ok(Event::Answer(answer)) => state.hear(answer, now),
            Ok(Event::Signal(signal)) => return Some(ScreenEnd::Signal(signal)),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => return None,
        }
    }
}
