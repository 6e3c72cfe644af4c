//! The hand-over from a running Weir to a new process (SIGUSR2), without a refused connection and
//! with its counters.
//!
//! The old process starts the same command again and passes its listening sockets and one end of a
//! socket pair. Over that, the new one receives all counters, and answers [`READY`] once it is
//! built. Then the old one accepts nothing more, sends the counters that changed meanwhile, and
//! finishes what is under way; the new one accepts. Connections that come in between wait in the
//! sockets' queues. If the new one fails, the old one goes on.

use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::sockets::{Passing, Socket};
use crate::clock;
use crate::engine::{Engine, NotReceived, Receiving, Sending};

/// What the new process says when it could accept.
const READY: u8 = b'r';
/// Time for the new process to build what its configuration says, and for each step after that.
const STEP_MAX: Duration = Duration::from_secs(60);

/// Why the old process goes on.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandOverError {
    #[error("can't start a new process: {0}")]
    Start(io::Error),
    #[error("the new process did not take over: {0}")]
    Ended(String),
}

/// The command that this process was started with.
#[derive(Debug)]
pub(super) struct Again {
    program: PathBuf,
    arguments: Vec<std::ffi::OsString>,
}

impl Again {
    /// To be called at the start: the path of a program that was replaced meanwhile can't be found
    /// any more.
    pub(super) fn of_this_process() -> io::Result<Self> {
        let arguments = std::env::args_os().skip(1).collect();
        Ok(Self { program: std::env::current_exe()?, arguments })
    }
}

/// A new process that is ready to accept.
pub(super) struct Successor<'a> {
    child: Child,
    sending: Sending<'a, BufWriter<UnixStream>>,
}

/// Starts the new process and sends it all counters; returns once it is ready.
pub(super) fn start<'a>(
    again: &Again,
    sockets: &[Socket],
    engine: &'a Engine,
) -> Result<Successor<'a>, HandOverError> {
    let (ours, theirs) = UnixStream::pair().map_err(HandOverError::Start)?;
    ours.set_read_timeout(Some(STEP_MAX)).map_err(HandOverError::Start)?;
    ours.set_write_timeout(Some(STEP_MAX)).map_err(HandOverError::Start)?;
    let passing = Passing::new(&theirs, sockets).map_err(HandOverError::Start)?;
    let (variable, value) = passing.variable();
    let mut command = Command::new(&again.program);
    command.args(&again.arguments).env(variable, value).stdin(Stdio::null());
    for name in Passing::NOT_PASSED {
        command.env_remove(name);
    }
    let child = command.spawn();
    drop(passing);
    // So that the end of the new process is seen.
    drop(theirs);
    let mut child = child.map_err(HandOverError::Start)?;
    tracing::info!(pid = child.id(), "a new process takes over");
    match send(engine, ours) {
        Ok(sending) => Ok(Successor { child, sending }),
        Err(error) => Err(HandOverError::Ended(end(&mut child, &error))),
    }
}

fn send(engine: &Engine, control: UnixStream) -> io::Result<Sending<'_, BufWriter<UnixStream>>> {
    let mut answers = control.try_clone()?;
    let sending = Sending::begin(engine, BufWriter::new(control))?;
    let mut answer = [0; 1];
    answers.read_exact(&mut answer)?;
    if answer == [READY] { Ok(sending) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Makes sure that a process that failed is gone; returns how it ended.
fn end(child: &mut Child, error: &io::Error) -> String {
    // If it ended by itself, its status says more than what was seen of it from here.
    let patience = clock::monotonic() + Duration::from_secs(1);
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
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends what changed meanwhile. From then on, the new process accepts.
    pub(super) fn finish(self) {
        match self.sending.finish() {
            Ok(counters) => tracing::info!(counters, "counters that changed meanwhile handed over"),
            Err(error) => tracing::error!(
                %error,
                "the new process did not take the last counters: it serves with older ones"
            ),
        }
    }
}

/// The process that this one takes over from.
#[derive(Debug)]
pub(super) struct Predecessor {
    control: UnixStream,
    receiving: Mutex<Option<Receiving<BufReader<UnixStream>>>>,
}

impl Predecessor {
    pub(super) fn new(control: UnixStream) -> io::Result<Self> {
        control.set_read_timeout(Some(STEP_MAX))?;
        control.set_write_timeout(Some(STEP_MAX))?;
        Ok(Self { control, receiving: Mutex::default() })
    }

    /// Receives all counters, before any is used.
    pub(super) fn counters(&self, engine: &Engine) -> Result<(), NotReceived> {
        let input = self.control.try_clone().map_err(NotReceived::from)?;
        let (receiving, counters) = Receiving::begin(engine, BufReader::new(input))?;
        *self.receiving.lock().unwrap_or_else(PoisonError::into_inner) = Some(receiving);
        tracing::info!(counters, "counters of the old process taken over");
        Ok(())
    }

    /// Says that this process could accept, and receives what changed meanwhile. The old process
    /// accepts no more then.
    pub(super) fn take_over(&self, engine: &Engine) {
        let receiving = self.receiving.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut control = &self.control;
        let received = control
            .write_all(&[READY])
            .map_err(NotReceived::from)
            .and_then(|()| receiving.map_or(Ok(0), |receiving| receiving.finish(engine)));
        match received {
            Ok(counters) => tracing::info!(counters, "took over from the old process"),
            Err(error) => tracing::error!(
                %error,
                "the old process did not send its last counters: this one serves with older ones"
            ),
        }
    }
}
