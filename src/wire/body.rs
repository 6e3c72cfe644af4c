//! The body that passes through the proxy: nothing, a whole one, or a stream from a peer under a size limit and an idle timeout. Knows neither
//! which side it came from nor where it goes.
//!
//! No allocation of its own: a stream's timer is made when the peer first lets us wait, which a body that came with its head never does.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use smallvec::SmallVec;

use super::{Alarm, End, Ending, Failure, OnEnd};
use crate::clock;

/// What is still taken of a [`lingering`](Body::lingering) stream that nobody reads any more, and for how long.
const LINGER_BYTES_MAX: usize = 256 << 10;
const LINGER_TIME: Duration = Duration::from_secs(5);

/// A request's or a reply's body.
pub struct Body {
    kind: Kind,
    bytes: u64,
    bytes_max: u64,
    idle: Option<Duration>,
    alarm: Alarm,
    sift: Option<fn(&mut HeaderMap)>,
    linger: bool,
    on_end: SmallVec<[Box<dyn OnEnd>; 2]>,
}

enum Kind {
    Empty,
    Full(Bytes),
    Stream(Incoming),
    /// An error was given out: it is over, and yet it is not complete.
    Failed,
}

/// Why a body ended early.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BodyError {
    /// The other side's connection failed.
    #[error("the peer's body ended early: {0}")]
    Cut(#[source] Arc<hyper::Error>),
    /// The other side is still there, but what it sends is no body: chunks without a size, trailers that are none.
    #[error("the body's framing is broken")]
    Malformed,
    /// The other side took it back in the middle.
    #[error("the body's stream was reset")]
    Reset,
    /// Nothing came for the idle timeout.
    #[error("the body stood still")]
    Idle,
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
    pub fn failure(&self) -> Failure {
        match self {
            // To whoever counts, both are a body that broke off.
            Self::Cut(_) | Self::Malformed | Self::Reset => Failure::Cut,
            Self::Idle => Failure::Idle,
            Self::TooLarge { .. } => Failure::TooLarge,
        }
    }
}

impl Body {
    /// No body.
    #[must_use]
    pub fn empty() -> Self {
        Self::of(Kind::Empty)
    }

    /// A whole body.
    #[must_use]
    pub fn full(bytes: Bytes) -> Self {
        Self::of(if bytes.is_empty() { Kind::Empty } else { Kind::Full(bytes) })
    }

    /// What a peer sends, as it comes. Without limits until [`limit`](Self::limit) and [`idle_timeout`](Self::idle_timeout) set them.
    #[must_use]
    pub fn incoming(incoming: Incoming) -> Self {
        Self::of(if incoming.is_end_stream() { Kind::Empty } else { Kind::Stream(incoming) })
    }

    fn of(kind: Kind) -> Self {
        Self {
            kind,
            bytes: 0,
            bytes_max: u64::MAX,
            idle: None,
            alarm: Alarm::default(),
            sift: None,
            linger: false,
            on_end: SmallVec::new(),
        }
    }

    /// Fails with [`BodyError::TooLarge`] when more than `bytes_max` bytes of a stream come; at once when its declared length is larger.
    #[must_use]
    pub fn limit(mut self, bytes_max: u64) -> Self {
        self.bytes_max = bytes_max;
        self
    }

    /// Fails with [`BodyError::Idle`] when whoever reads a stream waits longer than `idle` for its next piece. Time during which nobody reads
    /// does not count: that is the reader's slowness, not the peer's.
    #[must_use]
    pub fn idle_timeout(mut self, idle: Duration) -> Self {
        self.idle = Some(idle);
        self
    }

    /// When nobody reads a stream any more, a little more of it is taken and thrown away. For HTTP/2: a stream that is dropped before its end is
    /// reset behind the reply, and clients that are still sending - or have sent all but the empty frame that says so - take that for a failure
    /// and lose the reply.
    #[must_use]
    pub fn lingering(mut self) -> Self {
        self.linger = true;
        self
    }

    /// Takes off the trailers what may not pass.
    #[must_use]
    pub fn sift_trailers(mut self, sift: fn(&mut HeaderMap)) -> Self {
        self.sift = Some(sift);
        self
    }

    /// Tells `hook` how the body ended, once: when its last byte was read, when it failed, or when it is dropped. Several hooks are told in the
    /// order in which they were added.
    #[must_use]
    pub fn on_end(self, hook: impl OnEnd + 'static) -> Self {
        self.on_end_boxed(Box::new(hook))
    }

    /// [`on_end`](Self::on_end) for a hook that is boxed already.
    #[must_use]
    pub fn on_end_boxed(mut self, hook: Box<dyn OnEnd>) -> Self {
        self.on_end.push(hook);
        self
    }

    /// Whether it comes from a peer, so that it may be late or fail.
    #[must_use]
    pub fn is_streaming(&self) -> bool {
        matches!(self.kind, Kind::Stream(_))
    }

    /// Whether there is none, and nobody waits for its end.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        matches!(self.kind, Kind::Empty) && self.on_end.is_empty()
    }

    /// Whether the peer declared a length above the limit: it can be refused before anything of it is read.
    #[must_use]
    pub fn is_declared_too_large(&self) -> bool {
        matches!(&self.kind, Kind::Stream(incoming) if incoming.size_hint().lower().saturating_add(self.bytes) > self.bytes_max)
    }

    fn tell(&mut self, ending: Ending, trailers: bool) {
        if self.on_end.is_empty() {
            return;
        }
        let end = End { ending, bytes: self.bytes, trailers };
        for hook in mem::take(&mut self.on_end) {
            hook.on_end(&end);
        }
    }

    fn complete(&mut self, trailers: bool) {
        self.kind = Kind::Empty;
        self.tell(Ending::Complete, trailers);
    }

    fn fail(&mut self, error: BodyError) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        // Dropping the stream tells hyper that nobody wants the rest.
        self.leave(Kind::Failed);
        self.tell(Ending::Failed(error.failure()), false);
        Poll::Ready(Some(Err(error)))
    }

    /// Lets go of a stream.
    fn leave(&mut self, next: Kind) {
        let Kind::Stream(incoming) = mem::replace(&mut self.kind, next) else { return };
        if self.linger && !incoming.is_end_stream() && tokio::runtime::Handle::try_current().is_ok() {
            // At most one for each stream that is open: until it has ended the stream counts as such.
            tokio::spawn(tokio::time::timeout(LINGER_TIME, throw_away(incoming)));
        }
    }

    /// Whether an end that hyper shows is none: it takes an HTTP/2 stream that was reset without an error for one that has ended. A server may do that after
    /// a whole reply, of which no more is wanted (RFC 9113, 8.1), a client may not; nor does a declared length end early.
    fn is_reset(&self) -> bool {
        let Kind::Stream(incoming) = &self.kind else { return false };
        !incoming.is_end_stream() && (self.linger || incoming.size_hint().lower() > 0)
    }

    fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(idle) = self.idle else { return Poll::Pending };
        if !self.alarm.is_armed() {
            self.alarm.arm(clock::monotonic() + idle);
        }
        ready!(self.alarm.poll(cx));
        self.fail(BodyError::Idle)
    }

    fn pass(&mut self, item: Option<Result<Frame<Bytes>, hyper::Error>>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.alarm.disarm();
        let mut frame = match item {
            None if self.is_reset() => return self.fail(BodyError::Reset),
            None => {
                self.complete(false);
                return Poll::Ready(None);
            }
            Some(Err(error)) => return self.fail(failed(error)),
            Some(Ok(frame)) => frame,
        };
        if let Some(data) = frame.data_ref() {
            let bytes = self.bytes.saturating_add(data.len() as u64);
            if bytes > self.bytes_max {
                return self.fail(BodyError::TooLarge { limit_bytes: self.bytes_max });
            }
            self.bytes = bytes;
            // A length that was declared is known to have been reached: the reader will not ask again.
            if self.is_end_stream() {
                self.complete(false);
            }
        } else if let Some(trailers) = frame.trailers_mut() {
            if let Some(sift) = self.sift {
                sift(trailers);
            }
            self.on_end.iter_mut().for_each(|hook| hook.on_trailers(trailers));
            self.complete(true);
        }
        Poll::Ready(Some(Ok(frame)))
    }
}

/// Reads on until the end, or until it is enough.
async fn throw_away(mut incoming: Incoming) {
    let mut bytes = 0;
    while let Some(Ok(frame)) = poll_fn(|cx| Pin::new(&mut incoming).poll_frame(cx)).await {
        bytes += frame.data_ref().map_or(0, Bytes::len);
        if bytes > LINGER_BYTES_MAX {
            return;
        }
    }
}

/// hyper tells the two apart only by the kind of the input error underneath.
fn failed(error: hyper::Error) -> BodyError {
    let kind = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<io::Error>()).map(io::Error::kind);
    match kind {
        Some(io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput) => BodyError::Malformed,
        _ => BodyError::Cut(Arc::new(error)),
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.bytes == 0 && self.is_declared_too_large() {
            let limit_bytes = self.bytes_max;
            return self.fail(BodyError::TooLarge { limit_bytes });
        }
        let this = &mut *self;
        match &mut this.kind {
            Kind::Stream(incoming) => {
                let read = this.on_end.iter_mut().find_map(|hook| hook.read(incoming, cx));
                match read.unwrap_or_else(|| Pin::new(incoming).poll_frame(cx)) {
                    Poll::Pending => self.poll_idle(cx),
                    Poll::Ready(item) => self.pass(item),
                }
            }
            Kind::Full(bytes) => {
                let bytes = mem::take(bytes);
                self.bytes = bytes.len() as u64;
                self.complete(false);
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Kind::Empty => {
                self.complete(false);
                Poll::Ready(None)
            }
            Kind::Failed => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Empty => true,
            Kind::Full(_) | Kind::Failed => false,
            Kind::Stream(incoming) => incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Empty | Kind::Failed => SizeHint::with_exact(0),
            Kind::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Kind::Stream(incoming) => incoming.size_hint(),
        }
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if self.is_nothing() {
            return;
        }
        // hyper drops an empty body unread, and one whose declared length it has seen: both are whole, also where HTTP/2 has not said so yet.
        let whole = match &self.kind {
            Kind::Stream(incoming) => incoming.is_end_stream() || (self.bytes > 0 && incoming.size_hint().exact() == Some(0)),
            _ => self.is_end_stream(),
        };
        self.leave(Kind::Empty);
        self.tell(if whole { Ending::Complete } else { Ending::Dropped }, false);
    }
}

impl Default for Body {
    fn default() -> Self {
        Self::empty()
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.kind {
            Kind::Empty => "empty",
            Kind::Full(_) => "full",
            Kind::Stream(_) => "stream",
            Kind::Failed => "failed",
        };
        out.debug_struct("Body").field("kind", &kind).field("bytes", &self.bytes).finish_non_exhaustive()
    }
}
