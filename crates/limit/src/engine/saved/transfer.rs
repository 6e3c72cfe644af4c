//! Moves counters from a process to the one that takes over from it: all of them while the old one
//! still decides, then those that changed meanwhile. What the old one does to them after that
//! follows as `operations`.

use std::io::{self, Read, Write};

use super::format::{FormatError, Kind, Reader, Writer};
use super::operations::{OperationReceiver, OperationSender};
use super::{CopyMode, Embedded, RestoreSummary};
use crate::engine::Engine;

/// Sends the counters of this process.
pub struct CounterSender<'a, W> {
    engine: Option<&'a Embedded>,
    writer: Writer<W>,
    /// Counters sent since the first pass.
    total: u64,
    remembering: RemovalLog<'a>,
}

/// Maximum number of passes over what changed while this process still decides.
const ROUNDS_MAX: usize = 5;
/// So few counters are sent within a millisecond or two.
const FEW: u64 = 5_000;

impl<'a, W: Write> CounterSender<'a, W> {
    /// Sends all counters. On Redis there are none to send.
    ///
    /// # Errors
    /// The other process does not take them.
    pub fn begin(engine: &'a Engine, out: W) -> io::Result<Self> {
        let engine = match engine {
            Engine::Embedded(embedded) => Some(embedded),
            Engine::Redis(_) => None,
        };
        let writer = match engine {
            Some(engine) => engine.write_head(out)?,
            None => Writer::new(out)?,
        };
        let mut sending = Self { engine, writer, total: 0, remembering: RemovalLog(engine) };
        if let Some(engine) = engine {
            engine.write_counters(&mut sending.writer, CopyMode::First)?;
        }
        sending.writer.block(Kind::Pause, &[])?;
        sending.writer.flush()?;
        Ok(sending)
    }

    /// Sends what changed since, while this process still decides, and again until that is little:
    /// so that [`CounterSender::finish`] is short.
    ///
    /// # Errors
    /// The other process does not take them.
    pub fn catch_up(&mut self) -> io::Result<()> {
        for _ in 0..ROUNDS_MAX {
            let Some(engine) = self.engine else { break };
            let count = engine.write_counters(&mut self.writer, CopyMode::SinceFirst)?;
            self.total += count;
            self.writer.flush()?;
            if count <= FEW {
                break;
            }
        }
        Ok(())
    }

    /// Sends what changed since; returns how many counters, and what sends the operations that are
    /// decided here from then on. To be called once no new requests come.
    ///
    /// # Errors
    /// The other process does not take them.
    pub fn finish(self) -> io::Result<(u64, OperationSender<W>)> {
        let Self { engine, writer, total, remembering } = self;
        let (mut sending, journal) = OperationSender::new(writer);
        let mut count = 0;
        if let Some(engine) = engine {
            count = engine.write_last(sending.writer(), &journal)?;
        }
        sending.writer().block(Kind::End, &(total + count).to_le_bytes())?;
        sending.writer().flush()?;
        drop(remembering);
        Ok((count, sending))
    }
}

/// What is removed is remembered until this is dropped.
struct RemovalLog<'a>(Option<&'a Embedded>);

impl Drop for RemovalLog<'_> {
    fn drop(&mut self) {
        if let Some(engine) = self.0 {
            engine.forget_removed();
        }
    }
}

/// Receives the counters of the process before this one.
pub struct CounterReceiver<R> {
    reader: Reader<R>,
    /// Whether they can be used here.
    useful: bool,
}

impl<R> std::fmt::Debug for CounterReceiver<R> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Receiving {{ useful: {} }}", self.useful)
    }
}

/// Why counters were not received, or not all.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ReceiveError(#[from] FormatError);

impl From<io::Error> for ReceiveError {
    fn from(error: io::Error) -> Self {
        Self(error.into())
    }
}

impl<R: Read> CounterReceiver<R> {
    /// Receives all counters, before any is used; returns how many.
    ///
    /// # Errors
    /// The other process is gone, or sends something else.
    pub fn begin(engine: &Engine, input: R) -> Result<(Self, u64), ReceiveError> {
        let mut receiving = Self { reader: Reader::new(input)?, useful: false };
        let at = receiving.reader.at();
        let count = match (receiving.reader.peek()?, engine) {
            // It counted on Redis, so the last counters in memory are those of the snapshot.
            (Kind::Pause, _) => {
                receiving.reader.block()?;
                engine.restore();
                0
            }
            (Kind::Header, Engine::Embedded(embedded)) => {
                match embedded.read_header(&mut receiving.reader) {
                    Ok(header) => {
                        embedded.set_salt(header.salt);
                        receiving.useful = true;
                    }
                    Err(error @ FormatError::Secret) => {
                        tracing::warn!("the counters of the old process can't be used: {error}");
                    }
                    Err(error) => return Err(error.into()),
                }
                receiving.until(engine, Kind::Pause)?.counters
            }
            (Kind::Header, Engine::Redis(_)) => {
                receiving.reader.block()?;
                receiving.until(engine, Kind::Pause)?.counters
            }
            _ => return Err(FormatError::Nonsense(at).into()),
        };
        Ok((receiving, count))
    }

    /// Receives what changed since; returns how many counters, and what receives the operations
    /// that the old process still decides.
    ///
    /// # Errors
    /// The other process is gone, or sends something else.
    pub fn finish(mut self, engine: &Engine) -> Result<(u64, OperationReceiver<R>), ReceiveError> {
        let counters = self.until(engine, Kind::End)?.counters;
        Ok((counters, OperationReceiver::new(self.reader, self.useful)))
    }

    fn until(&mut self, engine: &Engine, last: Kind) -> Result<RestoreSummary, FormatError> {
        match engine {
            Engine::Embedded(embedded) if self.useful => {
                embedded.read_counters(&mut self.reader, last, true)
            }
            _ => {
                while self.reader.block()?.0 != last {}
                Ok(RestoreSummary::default())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{FIXED_WINDOW, SECOND_US, START_US, cell, one};
    use super::super::super::{Cell, EmbeddedSettings, Key, Settings};
    use super::*;
    use crate::clock::Clock;
    use crate::telemetry::Metrics;

    fn engine(secret_id: u8) -> Engine {
        let settings =
            EmbeddedSettings { secret_id: [secret_id; 16], ..EmbeddedSettings::new(1_000_000) };
        let clock = Clock::virtual_at(START_US as i64);
        Engine::build(&Settings::Embedded(settings), clock, &Metrics::new(1)).unwrap()
    }

    fn take(engine: &Engine, tag: u128) -> u64 {
        let limit = cell(&FIXED_WINDOW, "moved", 100, 60 * SECOND_US, 0);
        let key = Key { tag, ..limit.key };
        let Engine::Embedded(engine) = engine else { panic!() };
        engine.take(&one(&Cell { key, ..limit })).unwrap().cells[0].remaining
    }

    fn reset(engine: &Engine, tag: u128) {
        let Engine::Embedded(engine) = engine else { panic!() };
        engine.reset(&Key { tag, ..cell(&FIXED_WINDOW, "moved", 100, 60 * SECOND_US, 0).key });
    }

    #[test]
    fn changes_made_while_counters_are_sent_follow() {
        let (old, new) = (engine(1), engine(1));
        for tag in 0..2_000 {
            take(&old, tag);
        }
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let sender = std::thread::spawn(move || {
            let mut sending = CounterSender::begin(&old, &ours).unwrap();
            assert_eq!((take(&old, 7), take(&old, 2_000)), (98, 99));
            reset(&old, 9);
            sending.catch_up().unwrap();
            assert_eq!((take(&old, 7), take(&old, 2_000)), (97, 98));
            reset(&old, 10);
            assert_eq!(take(&old, 10), 99);
            reset(&old, 11);
            // A file that is written meanwhile changes nothing about it.
            let Engine::Embedded(embedded) = &old else { panic!() };
            embedded.write_snapshot(Vec::new()).unwrap();
            assert_eq!(sending.finish().unwrap().0, 3);
            embedded.salt()
        });
        let (receiving, count) = CounterReceiver::begin(&new, &theirs).unwrap();
        assert_eq!((count, receiving.finish(&new).unwrap().0), (2_000, 2 + 3));
        let Engine::Embedded(embedded) = &new else { panic!() };
        assert_eq!(sender.join().unwrap(), embedded.salt());
        assert_eq!(embedded.keys(), 2_001 - 2);
        assert_eq!((take(&new, 7), take(&new, 2_000), take(&new, 8)), (96, 97, 98));
        assert_eq!((take(&new, 9), take(&new, 10), take(&new, 11)), (99, 98, 99));
    }

    #[test]
    fn counters_under_another_secret_are_received_and_not_used() {
        let (old, new, mut bytes) = (engine(1), engine(2), Vec::new());
        take(&old, 1);
        CounterSender::begin(&old, &mut bytes).unwrap().finish().unwrap();
        let (receiving, count) = CounterReceiver::begin(&new, bytes.as_slice()).unwrap();
        assert_eq!((count, receiving.finish(&new).unwrap().0, take(&new, 1)), (0, 0, 99));
    }

    #[test]
    fn a_process_that_ends_while_it_sends_is_noticed() {
        let (old, mut bytes) = (engine(1), Vec::new());
        take(&old, 1);
        CounterSender::begin(&old, &mut bytes).unwrap().finish().unwrap();
        for length in 0..bytes.len() {
            let new = engine(1);
            let received = CounterReceiver::begin(&new, &bytes[..length])
                .and_then(|(receiving, _)| receiving.finish(&new));
            assert!(received.is_err(), "{length}");
        }
    }
}
