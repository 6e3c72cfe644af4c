//! A reply's body on HTTP/2, and whether its client takes it. Knows no connection.
//!
//! hyper asks a body for its next piece only when the client has taken the one before. The task of
//! the stream wants to know which of the two is waited for; the body, polled inside that task,
//! tells it through a thread-local, which costs no allocation.

use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http_body::{Frame, SizeHint};

use crate::wire::{Body, BodyError};

/// What the body did last, during one turn of its stream's task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// It was not asked: whoever was waited for before is waited for still.
    Nothing,
    /// It gave a piece: the client is waited for.
    Piece,
    /// It had none: the upstream is waited for.
    Awaited,
}

thread_local! {
    static SENT: Cell<Sent> = const { Cell::new(Sent::Nothing) };
    static DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Polls a stream, and says what its body did, and when it must be over if it was asked and knows.
pub(super) fn watch<T>(poll: impl FnOnce() -> T) -> (T, Sent, Option<Instant>) {
    SENT.set(Sent::Nothing);
    let polled = poll();
    (polled, SENT.get(), DEADLINE.take())
}

/// A reply's body that tells.
pub(super) struct Reply(pub(super) Body);

impl http_body::Body for Reply {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = Pin::new(&mut self.0).poll_frame(cx);
        if let deadline @ Some(_) = self.0.deadline() {
            DEADLINE.set(deadline);
        }
        SENT.set(if polled.is_ready() { Sent::Piece } else { Sent::Awaited });
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}
