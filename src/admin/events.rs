//! Server-sent events: a reply's body that goes on for as long as its sender has events. Knows
//! nothing of what they say.

use std::fmt::Write as _;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::wire::{Body, BodyEnd, BodyError, Source};

/// Maximum number of batches of events that wait for a slow reader.
const WAITING_MAX: usize = 2;

/// Sends events to one reader. Dropping it ends the reply.
#[derive(Debug)]
pub struct Events(Sender<Bytes>);

/// What became of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOutcome {
    /// They will be written.
    Queued,
    /// The reader has not read earlier ones yet. These are dropped.
    Slow,
    /// The reader has left.
    Gone,
}

impl Events {
    /// The sender, and the body of the reply to its reader.
    #[must_use]
    pub fn new() -> (Self, Body) {
        let (sender, receiver) = channel(WAITING_MAX);
        let stream = Stream { waiting: receiver, piece: Bytes::new(), has_ended: false };
        (Self(sender), Body::source(Box::new(stream)))
    }

    /// Whether the reader has left.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.0.is_closed()
    }

    /// Sends events in the format of [`event`].
    pub fn send(&self, events: Bytes) -> SendOutcome {
        match self.0.try_send(events) {
            Ok(()) => SendOutcome::Queued,
            Err(TrySendError::Full(_)) => SendOutcome::Slow,
            Err(TrySendError::Closed(_)) => SendOutcome::Gone,
        }
    }
}

/// One event in the format of text/event-stream. `name` is one line.
#[must_use]
pub fn event(name: &str, data: &str) -> String {
    let mut text = format!("event: {name}\n");
    for line in data.split(['\n', '\r']) {
        let _ = writeln!(text, "data: {line}");
    }
    text.push('\n');
    text
}

/// The body of a reply.
struct Stream {
    waiting: Receiver<Bytes>,
    /// What was not read yet of the current batch.
    piece: Bytes,
    has_ended: bool,
}

impl Source for Stream {
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        while self.piece.is_empty() && !self.has_ended {
            match ready!(self.waiting.poll_recv(cx)) {
                Some(piece) => self.piece = piece,
                None => self.has_ended = true,
            }
        }
        Poll::Ready(Ok(()))
    }

    fn data(&self) -> &[u8] {
        &self.piece
    }

    fn consume(&mut self, bytes: usize) {
        self.piece.advance(bytes.min(self.piece.len()));
    }

    fn remaining(&self) -> Option<u64> {
        None
    }

    fn is_end(&self) -> bool {
        self.has_ended && self.piece.is_empty()
    }

    fn finish(self: Box<Self>, _end: &BodyEnd) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_an_event_is_one_of_its_data() {
        assert_eq!(event("now", "a\nb"), "event: now\ndata: a\ndata: b\n\n");
        assert_eq!(
            event("now", "a\r\nevent: x"),
            "event: now\ndata: a\ndata: \ndata: event: x\n\n"
        );
    }

    #[test]
    fn a_reader_that_does_not_read_gets_nothing_more_and_one_that_left_is_reported() {
        let (events, body) = Events::new();
        let send = || events.send(Bytes::from_static(b"x"));
        let sent: Vec<_> = (0..=WAITING_MAX).map(|_| send()).collect();
        assert_eq!(sent.last(), Some(&SendOutcome::Slow));
        assert!(sent.iter().rev().skip(1).all(|sent| *sent == SendOutcome::Queued));
        drop(body);
        assert_eq!(send(), SendOutcome::Gone);
    }
}
