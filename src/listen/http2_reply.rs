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
pub(super) enum BodyPoll {
    /// It was not asked: whoever was waited for before is waited for still.
    NotPolled,
    /// It gave a piece: the client is waited for.
    Piece,
    /// It had none: the upstream is waited for.
    Pending,
}

thread_local! {
    static LAST_POLL: Cell<BodyPoll> = const { Cell::new(BodyPoll::NotPolled) };
    static DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Polls a stream, and says what its body did, and when it must be over if it was asked and knows.
pub(super) fn watch<T>(poll: impl FnOnce() -> T) -> (T, BodyPoll, Option<Instant>) {
    LAST_POLL.set(BodyPoll::NotPolled);
    let polled = poll();
    (polled, LAST_POLL.get(), DEADLINE.take())
}

/// A reply's body that tells.
pub(super) struct ReplyBody(pub(super) Body);

impl http_body::Body for ReplyBody {
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
        LAST_POLL.set(if polled.is_ready() { BodyPoll::Piece } else { BodyPoll::Pending });
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}
