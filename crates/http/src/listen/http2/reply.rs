//! A reply's body on its way to a stream of HTTP/2, as fast as the client takes it. Knows nothing
//! about the request.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, SendStream};
use http_body::Body as _;

use super::shared::Shared;
use super::unsent::{Piece, Pieces};
use crate::clock;
use crate::wire::{Body, BodyError, Timer};

/// Maximum bytes of a piece: h2 takes the whole of one as soon as a byte of it may be sent.
const PIECE_BYTES_MAX: usize = 64 << 10;

/// Sends one body. When the client has not taken a piece within `send_idle`, or at the request's
/// deadline, the stream is reset.
pub(super) struct ReplySender {
    stream: SendStream<Piece>,
    body: Body,
    /// What was read of the body and not given to h2 yet.
    unsent: Bytes,
    pieces: Arc<Pieces>,
    timer: Timer,
}

impl ReplySender {
    pub(super) fn new(stream: SendStream<Piece>, body: Body) -> Self {
        let (unsent, pieces, timer) = (Bytes::new(), Arc::default(), Timer::default());
        Self { stream, body, unsent, pieces, timer }
    }

    /// Sends on. Ready when the stream has ended, with everything given to h2 or a reset.
    pub(super) fn poll(&mut self, shared: &Shared, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if !self.unsent.is_empty() {
                match self.poll_capacity(cx) {
                    Poll::Ready(true) => {}
                    Poll::Ready(false) => return Poll::Ready(()),
                    Poll::Pending => return self.poll_client(shared, cx),
                }
                let piece = self.unsent.split_to(self.unsent.len().min(PIECE_BYTES_MAX));
                let ends = self.unsent.is_empty() && self.body.is_end_stream();
                if self.send(piece, ends).is_err() || ends {
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
                    if self.stream.send_trailers(trailers).is_err() {
                        // They have a field that HTTP/2 does not, or the stream has ended.
                        self.stream.send_reset(Reason::INTERNAL_ERROR);
                    }
                    return Poll::Ready(());
                }
                Some(Err(error)) => {
                    self.stream.send_reset(reason(&error));
                    return Poll::Ready(());
                }
                None => {
                    let _ = self.send(Bytes::new(), true);
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
    fn poll_client(&mut self, shared: &Shared, cx: &mut Context<'_>) -> Poll<()> {
        if self.stream.poll_reset(cx).is_ready() {
            return Poll::Ready(());
        }
        if !self.timer.is_armed() {
            let until = clock::monotonic() + shared.send_idle;
            self.timer.arm(self.body.deadline().map_or(until, |deadline| deadline.min(until)));
        }
        ready!(self.timer.poll(cx));
        shared.errors.count_unread();
        // The task ends, but the rest of the request may still be read.
        self.stream.send_reset(Reason::CANCEL);
        Poll::Ready(())
    }

    /// What h2 has not sent yet is the connection's to watch.
    pub(super) fn end(self, shared: &Shared) {
        shared.ended(&self.pieces, self.stream);
    }

    /// Gives h2 a piece.
    ///
    /// # Errors
    /// The stream has ended.
    fn send(&mut self, bytes: Bytes, is_last: bool) -> Result<(), h2::Error> {
        self.stream.send_data(Piece::new(bytes, &self.pieces), is_last)
    }
}

/// Why a reply is reset whose body has failed: for the upstream's own reason, if that can be the
/// reply's. gRPC tells its errors by it.
fn reason(error: &BodyError) -> Reason {
    let BodyError::Cut(error) = error else { return Reason::INTERNAL_ERROR };
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&**error);
    while let Some(error) = source {
        if let Some(reason) = error.downcast_ref::<h2::Error>().and_then(h2::Error::reason) {
            return match reason {
                // The other codes are about our own connection to the upstream.
                Reason::CANCEL | Reason::ENHANCE_YOUR_CALM | Reason::INADEQUATE_SECURITY => reason,
                _ => Reason::INTERNAL_ERROR,
            };
        }
        source = error.source();
    }
    Reason::INTERNAL_ERROR
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_reset_for_the_upstreams_reason_if_that_can_be_its_own() {
        let of = |reason: Reason| super::reason(&BodyError::Cut(Arc::new(h2::Error::from(reason))));
        assert_eq!(of(Reason::CANCEL), Reason::CANCEL);
        assert_eq!(of(Reason::ENHANCE_YOUR_CALM), Reason::ENHANCE_YOUR_CALM);
        assert_eq!(of(Reason::REFUSED_STREAM), Reason::INTERNAL_ERROR, "it is not to be repeated");
        assert_eq!(of(Reason::PROTOCOL_ERROR), Reason::INTERNAL_ERROR, "the client broke no rule");
        assert_eq!(super::reason(&BodyError::Reset), Reason::INTERNAL_ERROR);
        let cut = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        assert_eq!(super::reason(&BodyError::Cut(Arc::new(cut))), Reason::INTERNAL_ERROR);
    }
}
