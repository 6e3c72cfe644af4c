//! A reply's body over HTTP/2, which records whether the client or the upstream is slow. Knows
//! nothing about the connection.
//!
//! hyper polls a body for its next piece only when the client has taken the previous one. The
//! stream's task needs to know which of the two is being waited for. The body is polled inside that
//! task, so it reports through a thread-local, which costs no allocation.

use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http_body::{Frame, SizeHint};

use crate::wire::{Body, BodyError};

/// What the body did while its stream's task was polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyPoll {
    /// It was not polled: what was waited for before is still waited for.
    NotPolled,
    /// It returned a piece: now the client is waited for.
    Piece,
    /// It had nothing: now the upstream is waited for.
    Pending,
}

thread_local! {
    static LAST_POLL: Cell<BodyPoll> = const { Cell::new(BodyPoll::NotPolled) };
    static DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Polls a stream. Returns what its body did, and the body's deadline if it was polled and has one.
pub(super) fn watch<T>(poll: impl FnOnce() -> T) -> (T, BodyPoll, Option<Instant>) {
    LAST_POLL.set(BodyPoll::NotPolled);
    let polled = poll();
    (polled, LAST_POLL.get(), DEADLINE.take())
}

/// A reply's body that records its polls.
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
