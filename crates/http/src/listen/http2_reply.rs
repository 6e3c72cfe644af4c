//! A reply's body over HTTP/2, which records whether the client or the upstream is slow. Knows
//! nothing about the connection.
//!
//! hyper polls a body for its next piece only when the client has taken the previous one. The
//! stream's task needs to know which of the two is being waited for. The body is polled inside that
//! task, so it reports through a thread-local, which costs no allocation.

use std::cell::Cell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

use super::state::{ConnectionState, LastPiece};
use crate::clock;
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

/// Maximum bytes of a piece: h2 takes the whole of one as soon as a byte of it may be sent.
const PIECE_BYTES_MAX: usize = 64 << 10;

/// A reply's body that records its polls, and has its last piece watched: once h2 has that, the
/// stream's task is over, although the client may not read it.
pub(super) struct ReplyBody {
    body: Body,
    /// The rest of a piece that was too large.
    rest: Bytes,
    state: Arc<ConnectionState>,
    unread_max: Duration,
}

impl ReplyBody {
    pub(super) fn new(body: Body, state: &Arc<ConnectionState>, unread_max: Duration) -> Self {
        Self { body, rest: Bytes::new(), state: Arc::clone(state), unread_max }
    }

    /// At most so much of a piece as one may have; the last one is watched.
    fn cut(&mut self, mut piece: Bytes) -> Bytes {
        if piece.len() > PIECE_BYTES_MAX {
            self.rest = piece.split_off(PIECE_BYTES_MAX);
            return piece;
        }
        if !http_body::Body::is_end_stream(&self.body) {
            return piece;
        }
        let watched = self.state.last_piece(clock::monotonic() + self.unread_max);
        Bytes::from_owner(WatchedPiece { piece, _watched: watched })
    }
}

/// Bytes that are known to be unsent until they are dropped.
struct WatchedPiece {
    piece: Bytes,
    _watched: Arc<LastPiece>,
}

impl AsRef<[u8]> for WatchedPiece {
    fn as_ref(&self) -> &[u8] {
        &self.piece
    }
}

impl http_body::Body for ReplyBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let rest = std::mem::take(&mut self.rest);
        let polled = match rest.is_empty() {
            true => Pin::new(&mut self.body).poll_frame(cx),
            false => Poll::Ready(Some(Ok(Frame::data(rest)))),
        };
        if let deadline @ Some(_) = self.body.deadline() {
            DEADLINE.set(deadline);
        }
        LAST_POLL.set(if polled.is_ready() { BodyPoll::Piece } else { BodyPoll::Pending });
        polled.map_ok(|frame| frame.map_data(|piece| self.cut(piece)))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && http_body::Body::is_end_stream(&self.body)
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, mut hint) = (self.rest.len() as u64, http_body::Body::size_hint(&self.body));
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(hint.lower() + rest);
        hint
    }
}
