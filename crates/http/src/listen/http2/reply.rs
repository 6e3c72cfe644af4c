//! A reply's body on its way to a stream of HTTP/2, as fast as the client takes it. Knows nothing
//! about the request.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use h2::{Reason, SendStream};
use http_body::Body as _;

use super::super::state::{ConnectionState, LastPiece};
use crate::clock;
use crate::wire::{Body, Timer};

/// Maximum bytes of a piece: h2 takes the whole of one as soon as a byte of it may be sent.
const PIECE_BYTES_MAX: usize = 64 << 10;
/// How many times `send_idle` the last pieces of replies may wait to be read. They end with the
/// connection alone, and share it with each other.
const LAST_PIECE_PATIENCE: u32 = 5;

/// What is given to h2. The last piece of a reply is watched: once h2 has it, the stream's task is
/// over, although the client may not read it.
pub(super) struct Piece {
    bytes: Bytes,
    _watched: Option<Arc<LastPiece>>,
}

impl Piece {
    pub(super) fn new(bytes: Bytes) -> Self {
        Self { bytes, _watched: None }
    }
}

impl Buf for Piece {
    #[inline]
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    #[inline]
    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    #[inline]
    fn advance(&mut self, bytes: usize) {
        self.bytes.advance(bytes);
    }
}

/// Sends one body. When the client takes nothing for `send_idle`, or at the request's deadline, the
/// stream is reset.
pub(super) struct ReplySender {
    stream: SendStream<Piece>,
    body: Body,
    /// What was read of the body and not given to h2 yet.
    unsent: Bytes,
    timer: Timer,
    send_idle: Duration,
    state: Arc<ConnectionState>,
}

impl ReplySender {
    pub(super) fn new(
        stream: SendStream<Piece>,
        body: Body,
        state: &Arc<ConnectionState>,
        send_idle: Duration,
    ) -> Self {
        let (unsent, timer, state) = (Bytes::new(), Timer::default(), Arc::clone(state));
        Self { stream, body, unsent, timer, send_idle, state }
    }

    /// Sends on. Ready when everything was given to h2, or the stream was reset.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if !self.unsent.is_empty() {
                match self.poll_capacity(cx) {
                    Poll::Ready(true) => {}
                    Poll::Ready(false) => return Poll::Ready(()),
                    Poll::Pending => return self.poll_client(cx),
                }
                let piece = self.unsent.split_to(self.unsent.len().min(PIECE_BYTES_MAX));
                let ends = self.unsent.is_empty() && self.body.is_end_stream();
                if self.send(piece, ends) || ends {
                    return Poll::Ready(());
                }
                continue;
            }
            let Poll::Ready(frame) = std::pin::Pin::new(&mut self.body).poll_frame(cx) else {
                // The upstream is slow, and not the client.
                self.timer.disarm();
                return self.stream.poll_reset(cx).map(drop);
            };
            match frame.map(|frame| frame.map(http_body::Frame::into_data)) {
                Some(Ok(Ok(data))) if data.is_empty() => {}
                Some(Ok(Ok(data))) => self.unsent = data,
                Some(Ok(Err(frame))) => {
                    let Ok(trailers) = frame.into_trailers() else { continue };
                    // No more data: other streams may have what was asked for.
                    self.stream.reserve_capacity(0);
                    let _ = self.stream.send_trailers(trailers);
                    return Poll::Ready(());
                }
                Some(Err(_)) => {
                    self.stream.send_reset(Reason::INTERNAL_ERROR);
                    return Poll::Ready(());
                }
                None => {
                    self.send(Bytes::new(), true);
                    return Poll::Ready(());
                }
            }
        }
    }

    /// Ready if the client takes a byte; `false` if the stream has ended instead.
    fn poll_capacity(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        // h2 asks for the rest of a piece when it has that. Asking for more than a byte before
        // would keep it from other streams while this one waits.
        self.stream.reserve_capacity(1);
        while self.stream.capacity() == 0 {
            match self.stream.poll_capacity(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(false),
            }
        }
        // The next wait begins anew.
        self.timer.disarm();
        Poll::Ready(true)
    }

    /// Waits for the client to take something.
    fn poll_client(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.stream.poll_reset(cx).is_ready() {
            return Poll::Ready(());
        }
        if !self.timer.is_armed() {
            let until = clock::monotonic() + self.send_idle;
            self.timer.arm(self.body.deadline().map_or(until, |deadline| deadline.min(until)));
        }
        // The task ends, but the rest of the request may still be read.
        self.timer.poll(cx).map(|()| self.stream.send_reset(Reason::CANCEL))
    }

    /// Gives h2 a piece. Returns whether it was refused, since the stream has ended.
    fn send(&mut self, bytes: Bytes, is_last: bool) -> bool {
        let unread_max = self.send_idle.saturating_mul(LAST_PIECE_PATIENCE);
        let until = (is_last && !bytes.is_empty()).then(|| clock::monotonic() + unread_max);
        let _watched = until.map(|until: Instant| self.state.last_piece(until));
        self.stream.send_data(Piece { bytes, _watched }, is_last).is_err()
    }
}
