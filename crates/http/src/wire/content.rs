//! What is inside a [`Body`](super::Body) that is not empty. Knows neither which side it came from
//! nor where it goes.
//!
//! Its methods are documented at `Body`.

use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use http::HeaderMap;
use http_body::{Body as _, Frame, SizeHint};
use smallvec::SmallVec;

use super::read_on::{self, ReadOn};
use super::stream::StreamBody;
use super::timeouts::ReadTimeouts;
use super::{
    BodyEnd, BodyError, BodyOutcome, Charge, OnEnd, Rate, Source, TrailerFilter, counted,
    is_padded, linger,
};

/// Maximum size of a frame made from a source. The frame is a copy, which waits for its reader in
/// addition to what the source holds.
pub(crate) const FRAME_BYTES_MAX: usize = 64 << 10;

/// See the module documentation.
pub(super) struct Content {
    kind: Kind,
    unread: Option<Box<UnreadBytes>>,
    bytes: u64,
    bytes_max: u64,
    timeouts: ReadTimeouts,
    trailer_filter: TrailerFilter,
    linger: bool,
    watch: Option<Box<Watch>>,
    /// How much of a stream the peer may send before it is read.
    window_bytes: usize,
    /// Charged with `window_bytes` while nobody waits for the next piece, since it may have
    /// arrived.
    charge: Charge,
    on_end: SmallVec<[Box<dyn OnEnd>; 2]>,
}

/// A function that is shown a body's content, piece by piece.
pub type Observer = Box<dyn FnMut(&[u8]) + Send>;

/// What is done with what the reader reads, besides reading it.
struct Watch {
    /// Called with each piece, in order.
    see: Observer,
    /// How long the rest is read if the reader goes away. `None` if it has.
    read_on: Option<ReadOn>,
}

/// What has arrived and was not taken yet. Boxed, since few bodies have any.
#[derive(Default)]
struct UnreadBytes {
    /// A frame's data, not [consumed](Content::consume) yet.
    piece: Bytes,
    trailers: Option<HeaderMap>,
}

enum Kind {
    Empty,
    Full(Bytes),
    Stream(StreamBody),
    Source(Box<dyn Source>),
    /// An error was returned: the body has ended, but is not complete.
    Failed,
}

impl Watch {
    /// The first `bytes` of `data` are read.
    fn see(&mut self, data: &[u8], bytes: usize) {
        (self.see)(data.get(..bytes).unwrap_or(data));
    }
}

impl Content {
    /// No body, for hooks that wait for its end.
    #[inline]
    pub(super) fn nothing() -> Self {
        Self::of(Kind::Empty)
    }

    #[inline]
    pub(super) fn full(bytes: Bytes) -> Self {
        Self::of(Kind::Full(bytes))
    }

    #[inline]
    pub(super) fn stream(stream: StreamBody) -> Self {
        Self::of(Kind::Stream(stream))
    }

    #[inline]
    pub(super) fn source(source: Box<dyn Source>) -> Self {
        Self::of(Kind::Source(source))
    }

    #[inline]
    fn of(kind: Kind) -> Self {
        Self {
            kind,
            unread: None,
            bytes: 0,
            bytes_max: u64::MAX,
            timeouts: ReadTimeouts::default(),
            trailer_filter: TrailerFilter::All,
            linger: false,
            watch: None,
            window_bytes: 0,
            charge: Charge::nothing(),
            on_end: SmallVec::new(),
        }
    }

    pub(super) fn limit(&mut self, bytes_max: u64) {
        self.bytes_max = bytes_max;
    }

    pub(super) fn idle_timeout(&mut self, idle: Duration) {
        self.timeouts.idle = Some(idle);
    }

    pub(super) fn min_rate(&mut self, rate: Option<Rate>) {
        self.timeouts.rate = rate;
    }

    pub(super) fn with_deadline(&mut self, deadline: Instant) {
        self.timeouts.deadline = Some(deadline);
    }

    #[inline]
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.timeouts.deadline
    }

    pub(super) fn lingering(&mut self) {
        self.linger = true;
    }

    pub(super) fn watched(&mut self, see: Observer, read_on: ReadOn) {
        self.watch = Some(Box::new(Watch { see, read_on: Some(read_on) }));
    }

    pub(super) fn window(&mut self, window_bytes: usize) {
        self.window_bytes = window_bytes;
        self.charge_window();
    }

    fn charge_window(&mut self) {
        if let Kind::Stream(stream) = &self.kind {
            let left = stream
                .size_hint()
                .upper()
                .and_then(|left| usize::try_from(left).ok())
                .unwrap_or(usize::MAX);
            self.charge.set(self.window_bytes.min(left));
        }
    }

    pub(super) fn filter_trailers(&mut self, trailer_filter: TrailerFilter) {
        self.trailer_filter = trailer_filter;
    }

    pub(super) fn on_end_boxed(&mut self, hook: Box<dyn OnEnd>) {
        self.on_end.push(hook);
    }

    #[inline]
    pub(super) fn is_streaming(&self) -> bool {
        matches!(self.kind, Kind::Stream(_) | Kind::Source(_))
    }

    #[inline]
    pub(super) fn is_lent(&self) -> bool {
        matches!(&self.kind, Kind::Source(source) if source.is_lent())
    }

    #[inline]
    pub(super) fn is_nothing(&self) -> bool {
        matches!(self.kind, Kind::Empty) && self.on_end.is_empty()
    }

    #[inline]
    pub(super) fn is_declared_too_large(&self) -> bool {
        self.declared().saturating_add(self.bytes) > self.bytes_max
    }

    /// The bytes that the peer has declared and not sent yet.
    #[inline]
    fn declared(&self) -> u64 {
        match &self.kind {
            Kind::Stream(stream) => stream.declared(),
            Kind::Source(source) => source.remaining().unwrap_or(0),
            Kind::Empty | Kind::Full(_) | Kind::Failed => 0,
        }
    }

    #[inline]
    pub(super) fn length(&self) -> Option<u64> {
        match &self.kind {
            Kind::Source(source) => source.remaining(),
            _ => self.size_hint().exact(),
        }
    }

    pub(super) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<(), BodyError>>> {
        loop {
            if !self.data().is_empty() {
                return Poll::Ready(Some(Ok(())));
            }
            match self.kind {
                Kind::Source(_) => return self.poll_source(cx),
                Kind::Stream(_) => {}
                Kind::Full(_) | Kind::Empty => {
                    self.complete(false);
                    return Poll::Ready(None);
                }
                Kind::Failed => return Poll::Ready(None),
            }
            match ready!(Pin::new(&mut *self).poll_frame(cx)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.unread.get_or_insert_default().piece = data,
                    Err(frame) => {
                        self.unread.get_or_insert_default().trailers = frame.into_trailers().ok();
                        return Poll::Ready(None);
                    }
                },
            }
        }
    }

    fn poll_source(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<(), BodyError>>> {
        if self.bytes == 0 && self.is_declared_too_large() {
            let error = self.too_large();
            self.failed(&error);
            return Poll::Ready(Some(Err(error)));
        }
        let Kind::Source(source) = &mut self.kind else { return Poll::Ready(None) };
        let filled = match source.poll_fill(cx) {
            Poll::Pending => return self.poll_wait(cx).map(|error| Some(Err(error))),
            Poll::Ready(filled) => filled,
        };
        self.timeouts.end();
        let Kind::Source(source) = &mut self.kind else { return Poll::Ready(None) };
        let error = match filled {
            Ok(()) if source.data().is_empty() => {
                self.end_source();
                return Poll::Ready(None);
            }
            Ok(()) if self.bytes.saturating_add(source.data().len() as u64) <= self.bytes_max => {
                return Poll::Ready(Some(Ok(())));
            }
            Ok(()) => self.too_large(),
            Err(error) => error,
        };
        self.failed(&error);
        Poll::Ready(Some(Err(error)))
    }

    #[inline]
    pub(super) fn data(&self) -> &[u8] {
        match &self.kind {
            Kind::Source(source) => source.data(),
            Kind::Full(bytes) => bytes,
            _ => self.unread.as_ref().map_or(&[], |unread| &unread.piece),
        }
    }

    pub(super) fn consume(&mut self, bytes: usize) {
        if let Some(watch) = &mut self.watch {
            match &self.kind {
                Kind::Source(source) => watch.see(source.data(), bytes),
                Kind::Full(whole) => watch.see(whole, bytes),
                // Seen when it arrived.
                _ => {}
            }
        }
        match &mut self.kind {
            Kind::Source(source) => source.consume(bytes),
            Kind::Full(whole) => whole.advance(bytes.min(whole.len())),
            // These bytes were counted when they arrived.
            _ => {
                let piece = self.unread.as_mut().map(|unread| &mut unread.piece);
                return piece.into_iter().for_each(|piece| piece.advance(bytes.min(piece.len())));
            }
        }
        self.bytes = self.bytes.saturating_add(bytes as u64);
    }

    #[inline]
    pub(super) fn end_if_read(&mut self) {
        match &self.kind {
            Kind::Source(source) if source.is_end() => self.end_source(),
            Kind::Full(bytes) if bytes.is_empty() => self.complete(false),
            _ => {}
        }
    }

    #[inline]
    pub(super) fn take_trailers(&mut self) -> Option<HeaderMap> {
        self.unread.as_mut()?.trailers.take()
    }

    pub(super) fn poll_background(&mut self, cx: &mut Context<'_>) {
        if let Kind::Source(source) = &mut self.kind {
            source.poll_background(cx);
        }
    }

    /// A source has reached its end.
    fn end_source(&mut self) {
        let Kind::Source(mut source) = mem::replace(&mut self.kind, Kind::Empty) else { return };
        let mut trailers = source.take_trailers();
        if let Some(trailers) = &mut trailers {
            self.trailer_filter.apply(trailers);
            self.on_end.iter_mut().for_each(|hook| hook.on_trailers(trailers));
        }
        let end = BodyEnd {
            outcome: BodyOutcome::Complete,
            bytes: self.bytes,
            trailers: trailers.is_some(),
            rest_read: false,
        };
        if trailers.is_some() {
            self.unread.get_or_insert_default().trailers = trailers;
        }
        source.finish(&end);
        self.notify(end.outcome, end.trailers);
    }

    #[inline]
    fn too_large(&self) -> BodyError {
        BodyError::TooLarge { limit_bytes: self.bytes_max }
    }

    fn notify(&mut self, outcome: BodyOutcome, trailers: bool) {
        if self.on_end.is_empty() {
            return;
        }
        let abandoned = self.watch.take().is_some_and(|watch| watch.read_on.is_none());
        let rest_read = abandoned && outcome == BodyOutcome::Complete;
        let outcome = if abandoned { BodyOutcome::Dropped } else { outcome };
        let end = BodyEnd { outcome, bytes: self.bytes, trailers, rest_read };
        for hook in mem::take(&mut self.on_end) {
            hook.on_end(&end);
        }
    }

    fn complete(&mut self, trailers: bool) {
        self.kind = Kind::Empty;
        self.charge.set(0);
        self.notify(BodyOutcome::Complete, trailers);
    }

    fn fail(&mut self, error: BodyError) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.failed(&error);
        Poll::Ready(Some(Err(error)))
    }

    fn failed(&mut self, error: &BodyError) {
        let outcome = BodyOutcome::Failed(error.failure());
        // Dropping the stream says that the rest is not wanted.
        self.release(Kind::Failed, outcome);
        self.notify(outcome, false);
    }

    /// Drops a stream, or hands a source back to its connection.
    fn release(&mut self, next: Kind, outcome: BodyOutcome) {
        self.charge.set(0);
        let stream = match mem::replace(&mut self.kind, next) {
            Kind::Stream(stream) => stream,
            Kind::Source(source) => {
                let (bytes, trailers, rest_read) = (self.bytes, false, false);
                return source.finish(&BodyEnd { outcome, bytes, trailers, rest_read });
            }
            Kind::Empty | Kind::Full(_) | Kind::Failed => return,
        };
        if self.linger && !stream.is_end_stream() && tokio::runtime::Handle::try_current().is_ok() {
            // There is at most one such task per open stream: the stream counts as open until it
            // ends.
            linger::discard(stream);
        }
    }

    /// Has the rest read in a task of its own, if that was asked for and is possible. The hooks are
    /// called when it ends.
    fn is_read_on(&mut self) -> bool {
        let Some(watch) = &mut self.watch else { return false };
        let wanted = watch.read_on.as_ref().is_some_and(ReadOn::is_wanted);
        if !wanted || matches!(self.kind, Kind::Failed) {
            return false;
        }
        let (Some(place), Ok(runtime)) = (read_on::place(), tokio::runtime::Handle::try_current())
        else {
            return false;
        };
        let Some(read_on) = watch.read_on.take() else { return false };
        let mut rest = mem::replace(self, Self::nothing());
        runtime.spawn(async move {
            read_on::limited(rest.read_to_end(), read_on).await;
            // What was read by now is all that will be known. It is settled before the place is
            // free.
            drop(rest);
            drop(place);
        });
        true
    }

    /// Reads what is left, for the hooks and the observer alone.
    async fn read_to_end(&mut self) {
        while let Some(Ok(())) = poll_fn(|cx| self.poll_fill(cx)).await {
            let bytes = self.data().len();
            self.consume(bytes);
            self.end_if_read();
        }
    }

    /// Pending while the peer is within its timeouts.
    fn poll_wait(&mut self, cx: &mut Context<'_>) -> Poll<BodyError> {
        let error = ready!(self.timeouts.poll(cx, self.bytes));
        self.failed(&error);
        Poll::Ready(error)
    }

    fn on_frame(
        &mut self,
        item: Option<Result<Frame<Bytes>, BodyError>>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.timeouts.end();
        let mut frame = match item {
            None => {
                self.complete(false);
                return Poll::Ready(None);
            }
            Some(Err(error)) => return self.fail(error),
            Some(Ok(frame)) => frame,
        };
        if let Some(data) = frame.data_ref() {
            if let Some(watch) = &mut self.watch {
                watch.see(data, data.len());
            }
            let bytes = self.bytes.saturating_add(data.len() as u64);
            if bytes > self.bytes_max {
                return self.fail(BodyError::TooLarge { limit_bytes: self.bytes_max });
            }
            self.bytes = bytes;
            // The declared length was reached. The reader sees that too and will not poll again.
            if self.is_end_stream() {
                self.complete(false);
            }
        } else if let Some(trailers) = frame.trailers_mut() {
            // As in a head: a client's are malformed.
            if self.linger && trailers.values().any(|value| is_padded(value.as_bytes())) {
                return self.fail(BodyError::Malformed);
            }
            self.trailer_filter.apply(trailers);
            self.on_end.iter_mut().for_each(|hook| hook.on_trailers(trailers));
            self.complete(true);
        }
        Poll::Ready(Some(Ok(frame)))
    }
}

impl http_body::Body for Content {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(unread) = &mut self.unread
            && !unread.piece.is_empty()
        {
            return Poll::Ready(Some(Ok(Frame::data(mem::take(&mut unread.piece)))));
        }
        if self.bytes == 0 && self.is_declared_too_large() {
            let error = self.too_large();
            return self.fail(error);
        }
        match &mut self.kind {
            Kind::Stream(stream) => match stream.poll_frame(cx) {
                Poll::Pending => {
                    // What arrives now is read at once.
                    self.charge.set(0);
                    self.poll_wait(cx).map(|error| Some(Err(error)))
                }
                Poll::Ready(item) => {
                    let item = item.map(|item| item.map(|frame| frame.map_data(counted)));
                    let passed = self.on_frame(item);
                    self.charge_window();
                    passed
                }
            },
            Kind::Source(_) => match ready!(self.poll_source(cx)) {
                None => {
                    Poll::Ready(self.take_trailers().map(|trailers| Ok(Frame::trailers(trailers))))
                }
                Some(Err(error)) => Poll::Ready(Some(Err(error))),
                Some(Ok(())) => {
                    let data = self.data();
                    let data = Bytes::copy_from_slice(
                        data.get(..data.len().min(FRAME_BYTES_MAX)).unwrap_or_default(),
                    );
                    self.consume(data.len());
                    self.end_if_read();
                    Poll::Ready(Some(Ok(Frame::data(counted(data)))))
                }
            },
            Kind::Full(bytes) => {
                let bytes = mem::take(bytes);
                if let Some(watch) = &mut self.watch {
                    watch.see(&bytes, bytes.len());
                }
                self.bytes = self.bytes.saturating_add(bytes.len() as u64);
                self.complete(false);
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Kind::Empty => {
                if let Some(trailers) = self.take_trailers() {
                    return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                }
                self.complete(false);
                Poll::Ready(None)
            }
            Kind::Failed => Poll::Ready(None),
        }
    }

    #[inline]
    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Empty => self
                .unread
                .as_ref()
                .is_none_or(|unread| unread.piece.is_empty() && unread.trailers.is_none()),
            Kind::Full(_) | Kind::Failed => false,
            Kind::Stream(stream) => stream.is_end_stream(),
            Kind::Source(source) => source.is_end(),
        }
    }

    #[inline]
    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Empty | Kind::Failed => SizeHint::with_exact(0),
            Kind::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Kind::Stream(stream) => stream.size_hint(),
            Kind::Source(source) => {
                source.remaining().map_or_else(SizeHint::default, SizeHint::with_exact)
            }
        }
    }
}

impl Drop for Content {
    fn drop(&mut self) {
        if self.is_nothing() {
            return;
        }
        // hyper drops a body unread if it is empty or its declared length was reached. Both are
        // complete, even if HTTP/2 has not signalled the end yet.
        let whole = match &self.kind {
            Kind::Stream(stream) => {
                stream.is_end_stream() || (self.bytes > 0 && stream.size_hint().exact() == Some(0))
            }
            Kind::Empty => true,
            Kind::Full(_) | Kind::Failed => false,
            Kind::Source(source) => source.is_end(),
        };
        let outcome = if whole { BodyOutcome::Complete } else { BodyOutcome::Dropped };
        if !whole && self.is_read_on() {
            return;
        }
        self.release(Kind::Empty, outcome);
        self.notify(outcome, false);
    }
}
