//! What is to be sent on a connection: a head, and a body as it comes. Knows neither whose
//! connection it is nor what the body is of.
//!
//! Small pieces are gathered, so that a head and a short body leave in one call. Large ones are
//! sent from where they lie.

use std::fmt::Write as _;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::HeaderMap;
use tokio::io::AsyncWrite;

use crate::wire::{Body, BodyError, Charge};

/// Pieces up to this size are gathered, and gathered bytes are sent when there are so many.
const GATHER_BYTES_MAX: usize = 16 << 10;
/// What a buffer keeps from message to message.
const KEPT_BYTES_MAX: usize = 4 << 10;

/// How a body is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// There is none, and nothing is said of its length.
    NoBody,
    /// So many bytes.
    Length(u64),
    /// Chunks.
    Chunked,
    /// Until the connection closes.
    Close,
}

/// What is to be sent.
#[derive(Debug)]
pub(crate) struct Outbox {
    out: Vec<u8>,
    /// Bytes of `out` that are sent.
    sent: usize,
    encoding: Encoding,
    /// Bytes of the body's piece at hand that follow `out` directly.
    direct: usize,
    /// The body's end is in `out`.
    ended: bool,
    /// When it was last polled, the body had nothing more.
    awaits_body: bool,
    /// In all, so that progress can be told.
    sent_bytes: u64,
    /// Whoever reads it takes trailers.
    trailers: bool,
    /// What `out` holds while it waits.
    charge: Charge,
}

/// Why sending stopped.
#[derive(Debug)]
pub(crate) enum SendError {
    /// The connection.
    Io(io::Error),
    /// The body.
    Body(BodyError),
    /// The body is not as long as was said.
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
    /// Where a head is to be written; its body follows as `encoding` says.
    pub(crate) fn begin(&mut self, encoding: Encoding) -> &mut Vec<u8> {
        self.encoding = encoding;
        self.ended = false;
        self.direct = 0;
        &mut self.out
    }

    /// Whether the trailers of this message are sent.
    pub(crate) fn set_trailers(&mut self, trailers: bool) {
        self.trailers = trailers;
    }

    /// Whether nothing waits to be sent but what the body may still bring.
    pub(crate) fn is_empty(&self) -> bool {
        self.sent == self.out.len() && self.direct == 0
    }

    /// Whether all that is held up is the body: when it was last polled, all that had come was
    /// sent.
    pub(crate) fn awaits_body(&self) -> bool {
        self.awaits_body && self.is_empty()
    }

    /// Whether the body's end was reached.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Bytes that were sent since the connection began.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    /// Gives memory back that no small message needs.
    pub(crate) fn shrink(&mut self) {
        if self.is_empty() {
            self.out.clear();
            self.sent = 0;
            self.out.shrink_to(KEPT_BYTES_MAX);
            self.charge.set(0);
        }
    }

    /// Sends head and body. Ready when all of it is sent.
    ///
    /// # Errors
    /// See [`SendError`]: the message can't be completed.
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
                    // The body has nothing more for now.
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

    /// Takes the body's piece at hand.
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
        // A declared length that is reached needs no further look.
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

    /// Sends what is gathered, and the piece that follows it. Ready when both are sent; a piece's
    /// own end is gathered then, for what follows.
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

/// What comes next.
#[derive(Debug)]
enum Step {
    /// Something is to be sent; and then the body has nothing more for now.
    Send(bool),
    /// All was taken.
    Done,
    Failed(SendError),
}

fn push_size(out: &mut Vec<u8>, bytes: usize) {
    let mut digits = String::new();
    // Writing to a String can't fail.
    let _ = write!(digits, "{bytes:x}\r\n");
    out.extend_from_slice(digits.as_bytes());
}
