//! The body that passes through the proxy: nothing, a whole one, or a stream from a peer under a
//! size limit and an idle timeout. Knows neither which side it came from nor where it goes.
//!
//! HTTP/1.1 lends its bytes where they were read ([`Source`], [`Body::poll_fill`]); HTTP/2 hands
//! over frames ([`http_body::Body`]). Either end may be either version, so a body can be read both
//! ways. Most requests have none, and it moves with its message from hand to hand: so nothing is a
//! null pointer, and anything else is boxed once.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;

use super::content::Content;
use super::{BodyEnd, BodyFailure, OnEnd, Rate};

/// A request's or a reply's body.
#[derive(Default)]
pub struct Body(Option<Box<Content>>);

/// A body that lies in the buffer of the connection that brings it.
pub trait Source: Send {
    /// Ready when there is something to read, or nothing is left: then [`data`](Self::data) is
    /// empty.
    ///
    /// # Errors
    /// It ended early, or its framing is broken.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyError>>;

    /// What has been read and not consumed.
    fn data(&self) -> &[u8];

    /// Gives up the first `bytes` of [`data`](Self::data).
    fn consume(&mut self, bytes: usize);

    /// Bytes that are left, where they were declared.
    fn remaining(&self) -> Option<u64>;

    /// Whether all of it has been consumed.
    fn is_end(&self) -> bool;

    /// The trailers, once, after its end.
    fn take_trailers(&mut self) -> Option<HeaderMap> {
        None
    }

    /// Goes on with what the connection has to do besides, while the reader takes nothing.
    fn poll_background(&mut self, _cx: &mut Context<'_>) {}

    /// Nobody reads any more: it is over, or was given up.
    fn finish(self: Box<Self>, end: &BodyEnd);
}

/// Why a body ended early.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BodyError {
    /// The other side's connection failed.
    #[error("the peer's body ended early: {0}")]
    Cut(#[source] Arc<dyn std::error::Error + Send + Sync>),
    /// The other side is still there, but what it sends is no body: chunks without a size, trailers
    /// that are none.
    #[error("the body's framing is broken")]
    Malformed,
    /// The other side took it back in the middle.
    #[error("the body's stream was reset")]
    Reset,
    /// Nothing came for the idle timeout.
    #[error("the body stood still")]
    Idle,
    /// What came was less than the rate allows.
    #[error("the body came too slowly")]
    Slow,
    /// Its message took too long as a whole.
    #[error("the body's time is over")]
    Overdue,
    /// More than the route takes.
    #[error("the body is larger than {limit_bytes} bytes")]
    TooLarge {
        /// What the route takes.
        limit_bytes: u64,
    },
}

impl BodyError {
    /// The same without its details.
    #[must_use]
    pub fn failure(&self) -> BodyFailure {
        match self {
            // To whoever counts, both are a body that broke off.
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
    pub fn empty() -> Self {
        Self(None)
    }

    /// A whole body.
    #[must_use]
    pub fn full(bytes: Bytes) -> Self {
        if bytes.is_empty() { Self(None) } else { Self::of(Content::full(bytes)) }
    }

    /// What a peer sends, as it comes. Without limits until [`limit`](Self::limit) and
    /// [`idle_timeout`](Self::idle_timeout) set them.
    #[must_use]
    pub fn incoming(incoming: Incoming) -> Self {
        if http_body::Body::is_end_stream(&incoming) {
            Self(None)
        } else {
            Self::of(Content::incoming(incoming))
        }
    }

    /// What a connection lends, without limits as above.
    #[must_use]
    pub fn source(source: Box<dyn Source>) -> Self {
        Self::of(Content::source(source))
    }

    fn of(content: Content) -> Self {
        Self(Some(Box::new(content)))
    }

    /// Fails with [`BodyError::TooLarge`] when more than `bytes_max` bytes of a stream come; at
    /// once when its declared length is larger.
    #[must_use]
    pub fn limit(self, bytes_max: u64) -> Self {
        self.with(|content| content.limit(bytes_max))
    }

    /// Fails with [`BodyError::Idle`] when whoever reads a stream waits longer than `idle` for its
    /// next piece. Time during which nobody reads does not count: that is the reader's slowness,
    /// not the peer's.
    #[must_use]
    pub fn idle_timeout(self, idle: Duration) -> Self {
        self.with(|content| content.idle_timeout(idle))
    }

    /// Fails with [`BodyError::Slow`] when the reader of a stream has waited so long for it that it
    /// is slower than `rate`. [`idle_timeout`](Self::idle_timeout) bounds how long a fast beginning
    /// pays for.
    #[must_use]
    pub fn min_rate(self, rate: Option<Rate>) -> Self {
        self.with(|content| content.min_rate(rate))
    }

    /// Fails with [`BodyError::Overdue`] when the reader of a stream still waits for it at
    /// `deadline`. A reader that waits for something else then has to look at
    /// [`deadline`](Self::deadline) itself.
    #[must_use]
    pub fn with_deadline(self, deadline: Instant) -> Self {
        self.with(|content| content.with_deadline(deadline))
    }

    /// When it must be over.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.0.as_ref().and_then(|content| content.deadline())
    }

    /// When nobody reads a stream any more, a little more of it is taken and thrown away. For
    /// HTTP/2: a stream that is dropped before its end is reset behind the reply, and clients that
    /// are still sending - or have sent all but the empty frame that says so - take that for a
    /// failure and lose the reply.
    #[must_use]
    pub fn lingering(self) -> Self {
        self.with(Content::lingering)
    }

    /// Counts a stream as `window_bytes` that the process [holds](super::buffered_bytes) while its
    /// reader does not wait for it: so much may its peer send ahead over HTTP/2.
    #[must_use]
    pub fn window(self, window_bytes: usize) -> Self {
        self.with(|content| content.window(window_bytes))
    }

    /// Takes off the trailers what may not pass.
    #[must_use]
    pub fn filter_trailers(self, filter: fn(&mut HeaderMap)) -> Self {
        self.with(|content| content.filter_trailers(filter))
    }

    fn with(mut self, change: impl FnOnce(&mut Content)) -> Self {
        if let Some(content) = &mut self.0 {
            change(content);
        }
        self
    }

    /// Tells `hook` how the body ended, once: when its last byte was read, when it failed, or when
    /// it is dropped. Several hooks are told in the order in which they were added.
    #[must_use]
    pub fn on_end(self, hook: impl OnEnd + 'static) -> Self {
        self.on_end_boxed(Box::new(hook))
    }

    /// [`on_end`](Self::on_end) for a hook that is boxed already.
    #[must_use]
    pub fn on_end_boxed(mut self, hook: Box<dyn OnEnd>) -> Self {
        self.0.get_or_insert_with(|| Box::new(Content::nothing())).on_end_boxed(hook);
        self
    }

    /// Whether it comes from a peer, so that it may be late or fail.
    #[must_use]
    pub fn is_streaming(&self) -> bool {
        self.0.as_ref().is_some_and(|content| content.is_streaming())
    }

    /// Whether it lies in the buffer of a connection that is driven by the task which sends the
    /// reply.
    #[must_use]
    pub fn is_source(&self) -> bool {
        self.0.as_ref().is_some_and(|content| content.is_source())
    }

    /// Whether there is none, and nobody waits for its end.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.0.as_ref().is_none_or(|content| content.is_nothing())
    }

    /// Whether the peer declared a length above the limit: it can be refused before anything of it
    /// is read.
    #[must_use]
    pub fn is_declared_too_large(&self) -> bool {
        self.0.as_ref().is_some_and(|content| content.is_declared_too_large())
    }

    /// Its length, where that is known.
    #[must_use]
    pub fn length(&self) -> Option<u64> {
        self.0.as_ref().map_or(Some(0), |content| content.length())
    }

    /// Ready when there is [data](Self::data), or with `None` at the end; trailers are then to be
    /// [taken](Self::take_trailers).
    pub fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<(), BodyError>>> {
        self.0.as_mut().map_or(Poll::Ready(None), |content| content.poll_fill(cx))
    }

    /// What was read and not consumed; empty unless [`poll_fill`](Self::poll_fill) has said that
    /// there is something.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |content| content.data())
    }

    /// Gives up the first `bytes` of [`data`](Self::data).
    pub fn consume(&mut self, bytes: usize) {
        if let Some(content) = &mut self.0 {
            content.consume(bytes);
        }
    }

    /// Tells the body's end where all of it was consumed: sooner than the next
    /// [`poll_fill`](Self::poll_fill) would.
    pub fn end_if_read(&mut self) {
        if let Some(content) = &mut self.0 {
            content.end_if_read();
        }
    }

    /// The trailers, once, after the end.
    pub fn take_trailers(&mut self) -> Option<HeaderMap> {
        self.0.as_mut()?.take_trailers()
    }

    /// Goes on with what its connection has to do besides, while whoever reads the body waits for
    /// something else.
    pub fn poll_background(&mut self, cx: &mut Context<'_>) {
        if let Some(content) = &mut self.0 {
            content.poll_background(cx);
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.0.as_mut().map_or(Poll::Ready(None), |content| Pin::new(&mut **content).poll_frame(cx))
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|content| content.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or_else(|| SizeHint::with_exact(0), |content| content.size_hint())
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Body")
            .field("length", &self.length())
            .field("streams", &self.is_streaming())
            .finish()
    }
}
