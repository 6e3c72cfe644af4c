//! A body that is compressed while it streams.
//!
//! Nothing is held back: when the upstream has nothing more for now, what has come is let out. The
//! body that is compressed keeps its observers and hooks, so meters, settling and the access log
//! see the reply as the upstream sent it, also where its client leaves and it is read on.

use std::io;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::HeaderMap;

use super::encoder::Encoder;
use super::head::DIGESTS;
use crate::wire::{Body, BodyEnd, BodyError, Charge, Source};

/// Maximum number of bytes that are compressed before other requests of the worker have their turn:
/// well under a millisecond of work.
const PIECE_BYTES: usize = 16 << 10;

/// See the module documentation.
pub(super) struct CompressedBody {
    inner: Body,
    /// None once the end is in `output`.
    encoder: Option<Encoder>,
    /// What is to be read next, of which the first `read` bytes were consumed.
    output: Vec<u8>,
    read: usize,
    /// The encoder may hold something that the client could have.
    unflushed: bool,
    /// How the body failed. Said once the client has what came before.
    failure: Option<BodyError>,
    /// Bytes compressed since other requests last had their turn.
    spent_bytes: usize,
    /// What the encoder and its output hold.
    charge: Charge,
}

impl CompressedBody {
    /// Compresses `inner`.
    pub(super) fn of(inner: Body, encoder: Encoder) -> Body {
        let deadline = inner.deadline();
        let charge = Charge::of(encoder.held_bytes());
        let source = Box::new(Self {
            inner,
            encoder: Some(encoder),
            output: Vec::new(),
            read: 0,
            unflushed: false,
            failure: None,
            spent_bytes: 0,
            charge,
        });
        match deadline {
            Some(deadline) => Body::source(source).with_deadline(deadline),
            None => Body::source(source),
        }
    }

    /// Ready when there is output, or at the end.
    fn poll_output(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        while self.encoder.is_some() && self.output.is_empty() {
            // Without the end of the coding, and of the body: the client sees that it is cut.
            if let Some(error) = self.failure.take() {
                return Poll::Ready(Err(error));
            }
            self.inner.end_if_read();
            if self.inner.data().is_empty() && http_body::Body::is_end_stream(&self.inner) {
                self.finish_encoder().map_err(failed)?;
                break;
            }
            if self.spent_bytes >= PIECE_BYTES {
                self.spent_bytes = 0;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            match self.inner.poll_fill(cx) {
                Poll::Ready(Some(Ok(()))) => self.feed().map_err(failed)?,
                Poll::Ready(Some(Err(error))) => {
                    self.failure = Some(error);
                    self.flush_encoder().map_err(failed)?;
                }
                Poll::Ready(None) => self.finish_encoder().map_err(failed)?,
                Poll::Pending => {
                    self.spent_bytes = 0;
                    self.flush_encoder().map_err(failed)?;
                    if self.output.is_empty() {
                        return Poll::Pending;
                    }
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    fn feed(&mut self) -> io::Result<()> {
        let Some(encoder) = &mut self.encoder else { return Ok(()) };
        let data = self.inner.data();
        let piece = data.get(..PIECE_BYTES).unwrap_or(data);
        encoder.feed(piece, &mut self.output)?;
        let bytes = piece.len();
        self.inner.consume(bytes);
        self.unflushed = true;
        self.spent_bytes += bytes;
        Ok(())
    }

    fn flush_encoder(&mut self) -> io::Result<()> {
        let is_needed = mem::take(&mut self.unflushed);
        match self.encoder.as_mut().filter(|_| is_needed) {
            Some(encoder) => encoder.flush(&mut self.output),
            None => Ok(()),
        }
    }

    fn finish_encoder(&mut self) -> io::Result<()> {
        self.encoder.take().map_or(Ok(()), |encoder| encoder.finish(&mut self.output))
    }
}

/// It has no cause outside: there was no memory, say.
fn failed(error: io::Error) -> BodyError {
    BodyError::Cut(Arc::new(error))
}

impl Source for CompressedBody {
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        let filled = ready!(self.poll_output(cx));
        let held_bytes = self.encoder.as_ref().map_or(0, Encoder::held_bytes);
        self.charge.set(held_bytes.saturating_add(self.output.capacity()));
        Poll::Ready(filled)
    }

    fn data(&self) -> &[u8] {
        self.output.get(self.read..).unwrap_or_default()
    }

    fn consume(&mut self, bytes: usize) {
        self.read = self.read.saturating_add(bytes);
        if self.read >= self.output.len() {
            self.output.clear();
            self.read = 0;
        }
    }

    fn remaining(&self) -> Option<u64> {
        None
    }

    fn is_end(&self) -> bool {
        self.encoder.is_none() && self.output.is_empty()
    }

    fn take_trailers(&mut self) -> Option<HeaderMap> {
        let mut trailers = self.inner.take_trailers()?;
        for name in DIGESTS {
            trailers.remove(name);
        }
        Some(trailers)
    }

    fn poll_background(&mut self, cx: &mut Context<'_>) {
        self.inner.poll_background(cx);
    }

    fn finish(self: Box<Self>, _end: &BodyEnd) {}
}
