//! The hand-over from a running Weir to a new process (SIGUSR2), without a refused connection and
//! with its counters.
//!
//! | the old process | the new one |
//! |---|---|
//! | starts its own command line again, passes the sockets, sends all counters | builds what its configuration says, with these counters |
//! | | says [`READY`] |
//! | sends what changed, pauses accepting, sends what changed since | waits; connections wait in the sockets' queues |
//! | | accepts, and says [`SERVING`] |
//! | finishes what is under way, sends what it still takes, charges and gives back, and ends | does the same to its counters |
//!
//! If anything fails before [`SERVING`], the new process is ended, and the old one accepts again.

use std::ffi::OsString;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::operations::Operations;
use super::sockets::{Socket, SocketEnvironment};
use crate::clock;
use crate::engine::{CounterReceiver, CounterSender, Engine, ReceiveError};

/// What the new process says when it could accept, and when it does.
const READY: u8 = b'r';
const SERVING: u8 = b's';
/// How long one process waits for the other at each step. The longest one is to build what the
/// configuration says.
const STEP_MAX: Duration = Duration::from_secs(60);
/// How long a process that failed may take to end by itself.
const END_MAX: Duration = Duration::from_secs(1);

/// Why the old process keeps serving.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandOverError {
    #[error("can't start a new process: {0}")]
    Start(io::Error),
    #[error("the new process did not take over: {0}")]
    Ended(String),
}

/// The command that this process was started with.
#[derive(Debug)]
pub(super) struct CommandLine {
    program: OsString,
    arguments: Vec<OsString>,
}

impl CommandLine {
    #[cfg(test)]
    pub(super) fn of(program: &str, arguments: &[&str]) -> Self {
        Self { program: program.into(), arguments: arguments.iter().map(OsString::from).collect() }
    }

    /// The program as it was named, so that a link or a search path leads to the new one after an
    /// upgrade.
    pub(super) fn current() -> Self {
        let mut words = std::env::args_os();
        Self { program: words.next().unwrap_or_else(|| "weir".into()), arguments: words.collect() }
    }
}

/// Ends a hand-over from another thread.
#[derive(Debug, Default)]
pub(super) struct Abort(Mutex<AbortState>);

#[derive(Debug, Default)]
struct AbortState {
    is_asked: bool,
    control: Option<UnixStream>,
}

impl Abort {
    fn lock(&self) -> MutexGuard<'_, AbortState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Aborts: nothing more is received from the new process, or sent to it.
    pub(super) fn abort(&self) {
        let mut aborting = self.lock();
        aborting.is_asked = true;
        if let Some(control) = &aborting.control {
            // It fails only if the other end is gone.
            let _ = control.shutdown(Shutdown::Both);
        }
    }

    /// Notes that the new process serves: from now on nothing is aborted.
    pub(super) fn over(&self) {
        self.lock().control = None;
    }

    fn of(&self, control: &UnixStream) -> io::Result<()> {
        let mut aborting = self.lock();
        aborting.control = Some(control.try_clone()?);
        if aborting.is_asked { control.shutdown(Shutdown::Both) } else { Ok(()) }
    }
}

/// A new process that is ready to accept.
pub(super) struct Successor<'a> {
    child: Child,
    answers: UnixStream,
    sending: CounterSender<'a, BufWriter<UnixStream>>,
}

/// Starts the new process and sends it all counters; returns once it is ready.
pub(super) fn start<'a>(
    command_line: &CommandLine,
    sockets: &[Socket],
    engine: &'a Engine,
    abort: &Abort,
) -> Result<Successor<'a>, HandOverError> {
    let (ours, theirs) = pair().map_err(HandOverError::Start)?;
    let passing = SocketEnvironment::new(&theirs, sockets).map_err(HandOverError::Start)?;
    let (variable, value) = passing.variable();
    let mut command = Command::new(&command_line.program);
    command.args(&command_line.arguments).env(variable, value).stdin(Stdio::null());
    for name in SocketEnvironment::NOT_PASSED {
        command.env_remove(name);
    }
    let child = command.spawn();
    drop(passing);
    // So that the end of the new process is seen.
    drop(theirs);
    let mut child = child.map_err(HandOverError::Start)?;
    tracing::info!(pid = child.id(), "a new process takes over");
    match send(engine, ours, abort) {
        Ok((answers, sending)) => Ok(Successor { child, answers, sending }),
        Err(error) => Err(HandOverError::Ended(end(&mut child, &error))),
    }
}

fn pair() -> io::Result<(UnixStream, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_read_timeout(Some(STEP_MAX))?;
    ours.set_write_timeout(Some(STEP_MAX))?;
    Ok((ours, theirs))
}

type Sent<'a> = (UnixStream, CounterSender<'a, BufWriter<UnixStream>>);

fn send<'a>(engine: &'a Engine, control: UnixStream, abort: &Abort) -> io::Result<Sent<'a>> {
    abort.of(&control)?;
    let answers = control.try_clone()?;
    let mut sending = CounterSender::begin(engine, BufWriter::new(control))?;
    expect_word(&answers, READY)?;
    sending.catch_up()?;
    Ok((answers, sending))
}

/// Waits until the new process says `word`.
fn expect_word(mut answers: &UnixStream, word: u8) -> io::Result<()> {
    let mut answer = [0; 1];
    answers.read_exact(&mut answer).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            io::Error::other(format!("it was not done within {STEP_MAX:?}"))
        }
        _ => error,
    })?;
    if answer == [word] { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Makes sure that a process that failed is gone; returns how it ended.
fn end(child: &mut Child, error: &io::Error) -> String {
    // If it ended by itself, its status says more than what was seen of it from here.
    let patience = clock::monotonic() + END_MAX;
    while clock::monotonic() < patience {
        if let Ok(Some(status)) = child.try_wait() {
            return format!("it ended with {status}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = child.kill();
    let _ = child.wait();
    format!("{error}; it was ended")
}

impl Successor<'_> {
    /// Sends what changed meanwhile, now that nothing is accepted here, and waits until the new
    /// process serves; returns its id, and the thread that sends the operations that are decided
    /// here from the last counters on.
    ///
    /// # Errors
    /// The new process failed. Call [`Engine::end_operations`] then.
    pub(super) fn finish(self) -> Result<(u32, Operations), HandOverError> {
        let Self { mut child, answers, sending } = self;
        let served = sending.finish().and_then(|(counters, operations)| {
            tracing::debug!(counters, "the last counters handed over");
            let operations = Operations::send(operations)?;
            expect_word(&answers, SERVING)?;
            Ok(operations)
        });
        match served {
            Ok(operations) => Ok((child.id(), operations)),
            Err(error) => Err(HandOverError::Ended(end(&mut child, &error))),
        }
    }
}

/// The process that this one takes over from.
#[derive(Debug)]
pub(super) struct Predecessor(Mutex<State>);

#[derive(Debug)]
struct State {
    /// None once [`SERVING`] was sent.
    control: Option<UnixStream>,
    receiving: Option<CounterReceiver<BufReader<UnixStream>>>,
    failure: Option<ReceiveError>,
}

impl Predecessor {
    pub(super) fn new(control: UnixStream) -> io::Result<Self> {
        control.set_read_timeout(Some(STEP_MAX))?;
        control.set_write_timeout(Some(STEP_MAX))?;
        let state = State { control: Some(control), receiving: None, failure: None };
        Ok(Self(Mutex::new(state)))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Receives all counters, before any is used. If that fails, [`Predecessor::take_over`] does.
    pub(super) fn counters(&self, engine: &Engine) {
        let mut state = self.lock();
        let Some(control) = &state.control else { return };
        let input = control.try_clone().map_err(ReceiveError::from);
        let received =
            input.and_then(|input| CounterReceiver::begin(engine, BufReader::new(input)));
        match received {
            Ok((receiving, counters)) => {
                state.receiving = Some(receiving);
                tracing::info!(counters, "counters of the old process taken over");
            }
            Err(error) => state.failure = Some(error),
        }
    }

    /// Says that this process could accept, and receives what changed meanwhile. The old process
    /// accepts no more then. Returns the thread that receives what it still decides.
    pub(super) fn take_over(
        &self,
        engine: &Arc<Engine>,
    ) -> Result<Option<Operations>, ReceiveError> {
        let mut state = self.lock();
        if let Some(failure) = state.failure.take() {
            return Err(failure);
        }
        if let Some(mut control) = state.control.as_ref() {
            control.write_all(&[READY])?;
        }
        let Some(receiving) = state.receiving.take() else { return Ok(None) };
        let (counters, operations) = receiving.finish(engine)?;
        tracing::info!(counters, "took over from the old process");
        // From here on it may have nothing to say for as long as its requests last.
        if let Some(control) = &state.control {
            control.set_read_timeout(None)?;
        }
        Ok(Some(Operations::receive(operations, Arc::clone(engine))?))
    }

    /// Says that this process serves. The old one ends then.
    pub(super) fn serving(&self) {
        if let Some(mut control) = self.lock().control.take()
            && let Err(error) = control.write_all(&[SERVING])
        {
            tracing::error!(%error, "the old process is gone");
        }
    }
}
