//! A message's body: none, a complete one, or a stream from a peer with a size limit and timeouts.
//! Knows neither which side it came from nor where it goes.
//!
//! An HTTP/1.1 connection lends the bytes in its buffer ([`Source`], [`Body::poll_fill`]), while
//! HTTP/2 hands over frames ([`http_body::Body`]). The two ends may use different versions, so
//! every body can be read in both ways. Most requests have no body, and a body is moved often with
//! its message: so no body is a null pointer, and any other is a single box.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;

use super::content::{Content, Observer};
use super::read_on::ReadOn;
use super::stream::{RequestStream, StreamBody};
use super::{BodyEnd, BodyFailure, OnEnd, Rate, TrailerFilter};

/// A request's or a reply's body.
#[derive(Default)]
pub struct Body(Option<Box<Content>>);

/// A body that is read from the buffer of the connection that it arrives on.
pub trait Source: Send {
    /// Ready when [`data`](Self::data) is not empty, or at the end of the body, where it is empty.
    ///
    /// # Errors
    /// The body ended early, or its framing is broken.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyError>>;

    /// The bytes that were read and not consumed yet.
    fn data(&self) -> &[u8];

    /// Consumes the first `bytes` of [`data`](Self::data).
    fn consume(&mut self, bytes: usize);

    /// The number of bytes left, if the peer declared it.
    fn remaining(&self) -> Option<u64>;

    /// Whether the whole body was consumed.
    fn is_end(&self) -> bool;

    /// Whether what it reads from makes progress only while it is polled, as a connection does
    /// that is driven together with the reply.
    fn is_lent(&self) -> bool {
        true
    }

    /// Takes the trailers. They are available after the end of the body.
    #[inline]
    fn take_trailers(&mut self) -> Option<HeaderMap> {
        None
    }

    /// Drives the connection's other work while the reader waits for something else.
    fn poll_background(&mut self, _cx: &mut Context<'_>) {}

    /// The reader is done with the body: it has ended, or was dropped.
    fn finish(self: Box<Self>, end: &BodyEnd);
}

/// Why a body ended early.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BodyError {
    /// The peer's connection failed.
    #[error("the peer's body ended early: {0}")]
    Cut(#[source] Arc<dyn std::error::Error + Send + Sync>),
    /// The peer is still connected, but the framing is wrong: an invalid chunk size, or invalid
    /// trailers.
    #[error("the body's framing is broken")]
    Malformed,
    /// The peer reset the stream.
    #[error("the body's stream was reset")]
    Reset,
    /// Nothing arrived within the idle timeout.
    #[error("the body stalled")]
    Idle,
    /// It arrived more slowly than the minimum rate.
    #[error("the body came too slowly")]
    Slow,
    /// The deadline of its message passed.
    #[error("the body took too long")]
    Overdue,
    /// It is larger than the route allows.
    #[error("the body is larger than {limit_bytes} bytes")]
    TooLarge {
        /// The most that the route allows.
        limit_bytes: u64,
    },
}

impl BodyError {
    /// The kind of error, without its details.
    #[must_use]
    #[inline]
    pub fn failure(&self) -> BodyFailure {
        match self {
            // Metrics count all three as a body that broke off.
            Self::Cut(_) | Self::Malformed | Self::Reset => BodyFailure::Cut,
            Self::Idle | Self::Slow => BodyFailure::Idle,
            Self::Overdue => BodyFailure::Overdue,
            Self::TooLarge { .. } => BodyFailure::TooLarge,
        }
    }
}

impl Body {
    /// No body.
    #[must_use]
    #[inline]
    pub fn empty() -> Self {
        Self(None)
    }

    /// A complete body.
    #[must_use]
    #[inline]
    pub fn full(bytes: Bytes) -> Self {
        if bytes.is_empty() { Self(None) } else { Self::of(Content::full(bytes)) }
    }

    /// A reply's stream of HTTP/2. It has no limits until [`limit`](Self::limit) and
    /// [`idle_timeout`](Self::idle_timeout) set them.
    #[must_use]
    #[inline]
    pub fn incoming(incoming: Incoming) -> Self {
        Self::stream(StreamBody::Reply(incoming))
    }

    /// A request's stream of HTTP/2, without limits as above.
    #[must_use]
    #[inline]
    pub fn request(stream: RequestStream) -> Self {
        Self::stream(StreamBody::Request(stream))
    }

    #[inline]
    fn stream(stream: StreamBody) -> Self {
        if stream.is_end_stream() { Self(None) } else { Self::of(Content::stream(stream)) }
    }

    /// A stream out of a connection's buffer, without limits as above.
    #[must_use]
    #[inline]
    pub fn source(source: Box<dyn Source>) -> Self {
        Self::of(Content::source(source))
    }

    #[inline]
    fn of(content: Content) -> Self {
        Self(Some(Box::new(content)))
    }

    /// Fails with [`BodyError::TooLarge`] when more than `bytes_max` bytes arrive, or at once if a
    /// larger length is declared.
    #[must_use]
    #[inline]
    pub fn limit(self, bytes_max: u64) -> Self {
        self.with(|content| content.limit(bytes_max))
    }

    /// Fails with [`BodyError::Idle`] when its reader waits longer than `idle` for the next piece.
    /// Time in which the reader does not wait is not counted: it is not the peer's fault.
    #[must_use]
    #[inline]
    pub fn idle_timeout(self, idle: Duration) -> Self {
        self.with(|content| content.idle_timeout(idle))
    }

    /// Fails with [`BodyError::Slow`] when its reader has waited for so long that the peer is below
    /// `rate`. [`idle_timeout`](Self::idle_timeout) bounds how much credit a fast start earns.
    #[must_use]
    #[inline]
    pub fn min_rate(self, rate: Option<Rate>) -> Self {
        self.with(|content| content.min_rate(rate))
    }

    /// Fails with [`BodyError::Overdue`] when its reader still waits for it at `deadline`. A reader
    /// that waits for something else must check [`deadline`](Self::deadline) itself.
    #[must_use]
    #[inline]
    pub fn with_deadline(self, deadline: Instant) -> Self {
        self.with(|content| content.with_deadline(deadline))
    }

    /// When the body must have ended, if it has a deadline.
    #[must_use]
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        self.0.as_ref().and_then(|content| content.deadline())
    }

    /// Reads and discards a little more of a stream when its reader drops it. This is for HTTP/2,
    /// where a stream that is dropped before its end is reset after the reply. Clients that are
    /// still sending, or have sent everything but the final empty frame, treat the reset as a
    /// failure and lose the reply.
    #[must_use]
    #[inline]
    pub fn lingering(self) -> Self {
        self.with(Content::lingering)
    }

    /// Calls `see` with each piece as it is read. If the reader goes away before the end, the rest
    /// is read as long as `read_on` says, and shown too. The hooks are called after that, and learn
    /// that the body was dropped, and whether its rest was read to the end.
    #[must_use]
    #[inline]
    pub fn watched(self, see: Observer, read_on: ReadOn) -> Self {
        self.with(|content| content.watched(see, read_on))
    }

    /// Counts a stream as `window_bytes` of [buffered bytes](super::buffered_bytes) while its
    /// reader does not wait for it: over HTTP/2 the peer may send this much ahead.
    #[must_use]
    #[inline]
    pub fn window(self, window_bytes: usize) -> Self {
        self.with(|content| content.window(window_bytes))
    }

    /// Filters the trailers before they are passed on.
    #[must_use]
    #[inline]
    pub fn filter_trailers(self, filter: TrailerFilter) -> Self {
        self.with(|content| content.filter_trailers(filter))
    }

    fn with(mut self, change: impl FnOnce(&mut Content)) -> Self {
        if let Some(content) = &mut self.0 {
            change(content);
        }
        self
    }

    /// Calls `hook` once when the body ends: when its last byte is read, when it fails, or when it
    /// is dropped. Several hooks are called in the order in which they were added.
    #[must_use]
    #[inline]
    pub fn on_end(self, hook: impl OnEnd + 'static) -> Self {
        self.on_end_boxed(Box::new(hook))
    }

    /// [`on_end`](Self::on_end) for a hook that is already boxed.
    #[must_use]
    pub fn on_end_boxed(mut self, hook: Box<dyn OnEnd>) -> Self {
        self.0.get_or_insert_with(|| Box::new(Content::nothing())).on_end_boxed(hook);
        self
    }

    /// Whether it arrives from a peer, and so may be late or fail.
    #[must_use]
    #[inline]
    pub fn is_streaming(&self) -> bool {
        self.0.as_ref().is_some_and(|content| content.is_streaming())
    }

    /// Whether its connection makes progress only while the body is polled: see
    /// [`Source::is_lent`].
    #[must_use]
    #[inline]
    pub fn is_lent(&self) -> bool {
        self.0.as_ref().is_some_and(|content| content.is_lent())
    }

    /// Whether there is no body and no hook waits for its end.
    #[must_use]
    #[inline]
    pub fn is_nothing(&self) -> bool {
        self.0.as_ref().is_none_or(|content| content.is_nothing())
    }

    /// Whether the peer declared a length above the limit, so that it can be refused unread.
    #[must_use]
    #[inline]
    pub fn is_declared_too_large(&self) -> bool {
        self.0.as_ref().is_some_and(|content| content.is_declared_too_large())
    }

    /// Its length, if known.
    #[must_use]
    #[inline]
    pub fn length(&self) -> Option<u64> {
        self.0.as_ref().map_or(Some(0), |content| content.length())
    }

    /// Ready when there is [data](Self::data), or with `None` at the end. Then the trailers can be
    /// [taken](Self::take_trailers).
    #[inline]
    pub fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<(), BodyError>>> {
        self.0.as_mut().map_or(Poll::Ready(None), |content| content.poll_fill(cx))
    }

    /// The bytes that were read and not consumed. Empty unless [`poll_fill`](Self::poll_fill) was
    /// ready.
    #[must_use]
    #[inline]
    pub fn data(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |content| content.data())
    }

    /// Consumes the first `bytes` of [`data`](Self::data).
    pub fn consume(&mut self, bytes: usize) {
        if let Some(content) = &mut self.0 {
            content.consume(bytes);
        }
    }

    /// Calls the hooks if the whole body was consumed, rather than at the next
    /// [`poll_fill`](Self::poll_fill).
    pub fn end_if_read(&mut self) {
        if let Some(content) = &mut self.0 {
            content.end_if_read();
        }
    }

    /// Takes the trailers. They are available after the end of the body.
    #[inline]
    pub fn take_trailers(&mut self) -> Option<HeaderMap> {
        self.0.as_mut()?.take_trailers()
    }

    /// Drives its connection's other work while the reader waits for something else.
    pub fn poll_background(&mut self, cx: &mut Context<'_>) {
        if let Some(content) = &mut self.0 {
            content.poll_background(cx);
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    #[inline]
    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.0.as_mut().map_or(Poll::Ready(None), |content| Pin::new(&mut **content).poll_frame(cx))
    }

    #[inline]
    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|content| content.is_end_stream())
    }

    #[inline]
    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or_else(|| SizeHint::with_exact(0), |content| content.size_hint())
    }
}

impl fmt::Debug for Body {
    #[inline]
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Body")
            .field("length", &self.length())
            .field("streams", &self.is_streaming())
            .finish()
    }
}
