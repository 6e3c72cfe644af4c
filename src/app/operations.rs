//! The threads of a hand-over that outlive it: one sends what the old process still decides, one
//! carries it out in the new process.

use std::io::{self, BufReader, BufWriter};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::Builder;
use std::time::Duration;

use crate::engine::{Engine, OperationCounts, OperationReceiver, OperationSender};

/// A thread that sends or receives operations.
#[derive(Debug)]
pub(super) struct Operations {
    /// Nothing is ever sent: it is closed when the thread ends.
    ended: Receiver<std::convert::Infallible>,
}

impl Operations {
    /// Sends operations until [`Engine::end_operations`].
    ///
    /// # Errors
    /// The thread can't be started.
    pub(super) fn send(sending: OperationSender<BufWriter<UnixStream>>) -> io::Result<Self> {
        Self::start("weir-send-ops", move || match sending.run() {
            // Also where the new process failed.
            Ok(OperationCounts { done: 0, lost: 0 }) => {}
            Ok(OperationCounts { done, lost }) => {
                tracing::info!(
                    operations = done,
                    lost,
                    "the decisions made here since the copy were sent to the new process"
                );
            }
            Err(error) => {
                tracing::warn!(%error, "decisions still made here do not reach the new process");
            }
        })
    }

    /// Carries out what the old process decides, until that process ends.
    ///
    /// # Errors
    /// The thread can't be started.
    pub(super) fn receive(
        receiving: OperationReceiver<BufReader<UnixStream>>,
        engine: Arc<Engine>,
    ) -> io::Result<Self> {
        Self::start("weir-get-ops", move || match receiving.run(&engine) {
            Ok(OperationCounts { done, lost }) => {
                tracing::info!(operations = done, lost, "the old process has ended");
            }
            Err(error) => {
                tracing::warn!(%error, "the last decisions of the old process did not arrive");
            }
        })
    }

    fn start(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let (running, ended) = channel();
        Builder::new().name(name.into()).spawn(move || {
            work();
            drop(running);
        })?;
        Ok(Self { ended })
    }

    /// Waits until it ends, for at most `most`.
    pub(super) fn join(self, most: Duration) {
        // It only ever says that the thread has ended.
        let _ = self.ended.recv_timeout(most);
    }
}
