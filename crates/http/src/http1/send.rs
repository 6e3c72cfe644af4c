//! Sends messages on a connection: a head, followed by a body as it arrives. Knows neither whose
//! connection it is nor what the body contains.
//!
//! Small pieces are gathered, so that a head and a short body leave in one call. Large pieces are
//! sent from where they lie.

use std::fmt::Write as _;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::HeaderMap;
use tokio::io::AsyncWrite;

use crate::wire::{Body, BodyError, Charge};

/// Larger pieces are sent directly. Gathered bytes are sent when there are this many.
const GATHER_BYTES_MAX: usize = 16 << 10;
/// The capacity that the buffer keeps between messages.
const KEPT_BYTES_MAX: usize = 4 << 10;

/// How a body is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// No body, and the head's `Content-Length` is left as it is.
    NoBody,
    /// This many bytes.
    Length(u64),
    /// The body is sent in chunks.
    Chunked,
    /// The body ends when the connection closes.
    Close,
}

/// The outgoing side of a connection.
#[derive(Debug)]
pub(crate) struct Outbox {
    out: Vec<u8>,
    /// How many bytes of `out` are sent.
    sent: usize,
    encoding: Encoding,
    /// How many bytes of the body's current piece follow `out` directly.
    direct: usize,
    /// The body's end is in `out`.
    ended: bool,
    /// The body was pending when it was last polled.
    awaits_body: bool,
    /// Bytes sent in total, to tell whether there was progress.
    sent_bytes: u64,
    /// The receiver accepts trailers.
    trailers: bool,
    /// Charged with the capacity of `out` while it waits to be sent.
    charge: Charge,
}

/// Why sending failed.
#[derive(Debug)]
pub(crate) enum SendError {
    /// The connection failed.
    Io(io::Error),
    /// The body failed.
    Body(BodyError),
    /// The body does not have the declared length.
    Length,
}

impl Default for Outbox {
    fn default() -> Self {
        Self {
            out: Vec::new(),
            sent: 0,
            encoding: Encoding::NoBody,
            direct: 0,
            ended: true,
            awaits_body: false,
            sent_bytes: 0,
            trailers: true,
            charge: Charge::nothing(),
        }
    }
}

impl Outbox {
    /// Starts a message: returns where to write its head. Its body is framed as `encoding` says.
    pub(crate) fn begin(&mut self, encoding: Encoding) -> &mut Vec<u8> {
        self.encoding = encoding;
        self.ended = false;
        self.direct = 0;
        &mut self.out
    }

    /// Sets whether the trailers of this message are sent.
    pub(crate) fn set_trailers(&mut self, trailers: bool) {
        self.trailers = trailers;
    }

    /// Whether nothing is left to send until the body brings more.
    pub(crate) fn is_empty(&self) -> bool {
        self.sent == self.out.len() && self.direct == 0
    }

    /// Whether only the body is waited for: everything that it had brought when it was last polled
    /// is sent.
    pub(crate) fn awaits_body(&self) -> bool {
        self.awaits_body && self.is_empty()
    }

    /// Whether the body's end was reached.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Bytes sent since the connection began.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    /// Frees memory that small messages don't need, if nothing is left to send.
    pub(crate) fn shrink(&mut self) {
        if self.is_empty() {
            self.out.clear();
            self.sent = 0;
            self.out.shrink_to(KEPT_BYTES_MAX);
            self.charge.set(0);
        }
    }

    /// Sends the head and the body. Ready when all of it is sent.
    ///
    /// # Errors
    /// The message can't be completed; see [`SendError`].
    pub(crate) fn poll_send<S: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        io: &mut S,
        body: &mut Body,
    ) -> Poll<Result<(), SendError>> {
        let sent = self.poll_steps(cx, io, body);
        if sent.is_pending() {
            self.charge.set(self.out.capacity());
        }
        sent
    }

    fn poll_steps<S: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        io: &mut S,
        body: &mut Body,
    ) -> Poll<Result<(), SendError>> {
        loop {
            let step = self.step(cx, body);
            self.awaits_body = matches!(step, Step::Send(true));
            match step {
                Step::Send(wait) => {
                    let sent = self.poll_write(cx, io, body);
                    if !wait {
                        ready!(sent).map_err(SendError::Io)?;
                        continue;
                    }
                    // The body is pending.
                    return match sent {
                        Poll::Ready(Ok(())) => Poll::Pending,
                        Poll::Ready(Err(error)) => Poll::Ready(Err(SendError::Io(error))),
                        Poll::Pending => Poll::Pending,
                    };
                }
                Step::Done => return self.poll_flush(cx, io).map_err(SendError::Io),
                Step::Failed(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn step(&mut self, cx: &mut Context<'_>, body: &mut Body) -> Step {
        loop {
            if self.direct > 0 || self.out.len() - self.sent >= GATHER_BYTES_MAX {
                return Step::Send(false);
            }
            if self.ended {
                return Step::Done;
            }
            if let Encoding::NoBody = self.encoding {
                self.ended = true;
                continue;
            }
            match body.poll_fill(cx) {
                Poll::Pending => return Step::Send(true),
                Poll::Ready(Some(Ok(()))) => {
                    if let Err(error) = self.take(body) {
                        return Step::Failed(error);
                    }
                }
                Poll::Ready(Some(Err(error))) => return Step::Failed(SendError::Body(error)),
                Poll::Ready(None) => {
                    if let Err(error) = self.end(body.take_trailers().as_ref()) {
                        return Step::Failed(error);
                    }
                }
            }
        }
    }

    /// Takes the body's current piece.
    fn take(&mut self, body: &mut Body) -> Result<(), SendError> {
        let bytes = body.data().len();
        match &mut self.encoding {
            Encoding::Length(left) => {
                *left = left.checked_sub(bytes as u64).ok_or(SendError::Length)?
            }
            Encoding::Chunked => push_size(&mut self.out, bytes),
            Encoding::NoBody | Encoding::Close => {}
        }
        if bytes > GATHER_BYTES_MAX {
            self.direct = bytes;
            return Ok(());
        }
        self.out.extend_from_slice(body.data());
        self.end_piece();
        body.consume(bytes);
        body.end_if_read();
        // At a declared length's end, the body need not be polled again.
        self.ended = self.encoding == Encoding::Length(0);
        Ok(())
    }

    fn end_piece(&mut self) {
        if self.encoding == Encoding::Chunked {
            self.out.extend_from_slice(b"\r\n");
        }
    }

    fn end(&mut self, trailers: Option<&HeaderMap>) -> Result<(), SendError> {
        self.ended = true;
        match self.encoding {
            Encoding::Length(left) if left > 0 => return Err(SendError::Length),
            Encoding::Chunked => {
                self.out.extend_from_slice(b"0\r\n");
                for (name, value) in trailers.filter(|_| self.trailers).into_iter().flatten() {
                    for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
                        self.out.extend_from_slice(part);
                    }
                }
                self.out.extend_from_slice(b"\r\n");
            }
            Encoding::NoBody | Encoding::Length(_) | Encoding::Close => {}
        }
        Ok(())
    }

    /// Sends what is gathered, then the direct piece. When both are sent, the piece's line end is
    /// gathered for the next write.
    fn poll_write<S: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        io: &mut S,
        body: &mut Body,
    ) -> Poll<io::Result<()>> {
        while self.direct > 0 {
            let head = self.out.get(self.sent..).unwrap_or_default();
            let piece = body.data().get(..self.direct).unwrap_or_default();
            let wrote = if head.is_empty() {
                ready!(Pin::new(&mut *io).poll_write(cx, piece))?
            } else {
                ready!(
                    Pin::new(&mut *io)
                        .poll_write_vectored(cx, &[IoSlice::new(head), IoSlice::new(piece)])
                )?
            };
            if wrote == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            let of_head = wrote.min(head.len());
            self.sent_bytes += (wrote - of_head) as u64;
            self.advance(of_head);
            body.consume(wrote - of_head);
            self.direct -= wrote - of_head;
            if self.direct == 0 {
                self.end_piece();
                self.ended = self.encoding == Encoding::Length(0);
                return Poll::Ready(Ok(()));
            }
        }
        self.poll_flush(cx, io)
    }

    /// Sends what is gathered.
    pub(crate) fn poll_flush<S: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        io: &mut S,
    ) -> Poll<io::Result<()>> {
        while let Some(rest) = self.out.get(self.sent..).filter(|rest| !rest.is_empty()) {
            let wrote = ready!(Pin::new(&mut *io).poll_write(cx, rest))?;
            if wrote == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.advance(wrote);
        }
        Pin::new(io).poll_flush(cx)
    }

    fn advance(&mut self, bytes: usize) {
        self.sent_bytes += bytes as u64;
        self.sent += bytes;
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
        }
    }
}

/// What to do next.
#[derive(Debug)]
enum Step {
    /// Send what there is. `true` if the body is pending, so that nothing follows for now.
    Send(bool),
    /// The whole message was taken.
    Done,
    Failed(SendError),
}

fn push_size(out: &mut Vec<u8>, bytes: usize) {
    let mut digits = String::new();
    // Writing to a String can't fail.
    let _ = write!(digits, "{bytes:x}\r\n");
    out.extend_from_slice(digits.as_bytes());
}
