//! One HTTP/2 connection to an upstream, which many requests share. Knows nothing of which endpoint
//! is chosen, and how many connections there are.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, Connection, SendRequest};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio::time::timeout_at;

use super::connect::connect;
use super::host::Host;
use super::link::{IDLE_TRUSTED, REPLY_HEAD_BYTES_MAX};
use super::outgoing::{Load, Outgoing, Watch};
use super::patience::Patience;
use super::pool::{self, Seat};
use super::{Cause, Inner, Protocol, UpstreamError};
use crate::clock;
use crate::wire::{BodyEnd, OnEnd, Timer};

/// What came of a request.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "all but one come once in a while, and the one must not be boxed on every request"
)]
pub(super) enum Sent {
    /// The reply's head.
    Reply(http::Response<Incoming>),
    /// Nothing of it was sent: it is back in its place.
    Unsent(Cause),
    /// It was sent, and the upstream says that it has done nothing with it.
    Refused(Cause),
    /// It failed and may have been seen.
    Failed(UpstreamError),
    /// The same, and its connection, on which others were answered before, has ended without a
    /// word.
    Lost(UpstreamError),
}

impl Sent {
    /// A reply's head has come: whether it can be passed on.
    fn replied(reply: http::Response<Incoming>, watch: Option<&Watch>) -> Self {
        match watch.and_then(Watch::error) {
            // The upstream answered before it had all; what it answered to is not what the client
            // sent.
            Some(error) => Self::Failed(UpstreamError::body(error.clone())),
            // HTTP/2 has no such thing.
            None if reply.status() == http::StatusCode::SWITCHING_PROTOCOLS => {
                Self::Failed(UpstreamError::sent(Cause::Protocol))
            }
            None => Self::Reply(reply),
        }
    }
}

/// Bytes of one reply that wait for a client which takes it slowly, at most.
pub(super) const STREAM_WINDOW_BYTES: u32 = 256 << 10;
/// Bytes that wait in all of a connection's replies: as much as the streams may hold together, so
/// that slow clients never hold up the others.
const CONNECTION_WINDOW_BYTES_MAX: u32 = i32::MAX as u32;
/// Bytes of one request's body that wait for the upstream, at most, besides the piece at hand.
const SEND_BUFFER_BYTES_MAX: usize = 256 << 10;
/// Stands for how many streams the upstream takes until it has said so: no upstream can say this.
const UNTOLD: usize = usize::MAX - 1;

/// A connection that takes several requests at once.
pub(super) struct Multi {
    sender: SendRequest<Outgoing>,
    terms: Arc<Terms>,
    streams: AtomicUsize,
    streams_max: usize,
    /// No request is begun on it any more.
    retired: AtomicBool,
    /// A request was answered on it.
    answered: AtomicBool,
    born: Instant,
    /// Milliseconds after `born` at which the last request ended.
    idle_since_ms: AtomicU64,
    pub(super) host: Arc<Host>,
    pub(super) upstream: Arc<Inner>,
}

/// What the upstream has said of its connection.
struct Terms {
    streams_max: AtomicUsize,
    /// The task that reads them off the connection; woken until they are known.
    reader: Mutex<Option<Waker>>,
    /// They are known, or there will be none.
    told: Notify,
    ended: AtomicBool,
}

/// A request's place on a connection, given back when dropped. Held until the reply has ended.
pub(super) struct Ticket {
    multi: Arc<Multi>,
}

impl Multi {
    /// Connects, within the upstream's time, and lets the connection run in tasks of its own. It is
    /// used when the upstream has said how many requests it takes, which is the first thing that it
    /// says: what speaks something else got none, and none is sent only to be refused.
    pub(super) async fn connect(
        upstream: &Arc<Inner>,
        host: &Arc<Host>,
    ) -> Result<Arc<Self>, Cause> {
        let deadline = tokio::time::Instant::from_std(clock::monotonic() + upstream.connect);
        let terms = Arc::new(Terms::default());
        let sender = begin(connect(upstream, host, Protocol::H2).await?, upstream, &terms).await?;
        if timeout_at(deadline, terms.wait()).await.is_err() {
            upstream.warn_unconnected(host, &"it says nothing in HTTP/2");
            return Err(Cause::Timeout);
        }
        if terms.streams_max.load(Ordering::Relaxed) == UNTOLD {
            upstream.warn_unconnected(host, &"it does not speak HTTP/2");
            return Err(Cause::Protocol);
        }
        Ok(Arc::new(Self {
            sender,
            terms,
            streams: AtomicUsize::new(0),
            streams_max: upstream.http2.streams_per_connection,
            retired: AtomicBool::new(false),
            answered: AtomicBool::new(false),
            born: clock::monotonic(),
            idle_since_ms: AtomicU64::new(0),
            host: Arc::clone(host),
            upstream: Arc::clone(upstream),
        }))
    }

    /// A place for one more request, if there is one.
    pub(super) fn enter(self: &Arc<Self>) -> Option<Ticket> {
        let streams_max = self.streams_max.min(self.terms.streams_max.load(Ordering::Relaxed));
        if !self.is_usable() || self.streams.load(Ordering::Relaxed) >= streams_max {
            return None;
        }
        // All of a worker's requests are in one thread: nobody came between.
        self.streams.fetch_add(1, Ordering::Relaxed);
        Some(Ticket { multi: Arc::clone(self) })
    }

    /// Whether further requests may be begun on it.
    pub(super) fn is_usable(&self) -> bool {
        !self.sender.is_closed() && !self.retired.load(Ordering::Relaxed)
    }

    /// Whether nothing was on it for the upstream's idle time.
    pub(super) fn is_old(&self, now: Instant) -> bool {
        self.streams.load(Ordering::Relaxed) == 0 && self.idle_time(now) >= self.upstream.idle
    }

    /// How long ago the last request ended, or the connection began.
    fn idle_time(&self, now: Instant) -> Duration {
        now.saturating_duration_since(
            self.born + Duration::from_millis(self.idle_since_ms.load(Ordering::Relaxed)),
        )
    }

    /// Requests that are on it.
    #[cfg(test)]
    pub(super) fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }
}

impl Ticket {
    /// Whether a connection that was not used for some time can still be. A close that came
    /// meanwhile is in the kernel: yielding lets the runtime look, then hyper's task for the
    /// connection, and then the one that takes requests.
    pub(super) async fn is_still_open(&self, now: Instant) -> bool {
        if self.multi.streams.load(Ordering::Relaxed) == 1
            && self.multi.idle_time(now) >= IDLE_TRUSTED
        {
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
        }
        self.multi.is_usable()
    }

    /// Sends `request` and waits for the reply's head. `now` is at most a moment ago.
    pub(super) async fn exchange(
        &self,
        request: &mut Load,
        watch: Option<&Watch>,
        now: Instant,
    ) -> Sent {
        let Some(sent) = request.take() else { return Sent::Unsent(Cause::Connect) };
        let mut alarm = Timer::default();
        let mut patience =
            Patience { alarm: &mut alarm, upstream: &self.multi.upstream, watch, checked: now };
        let mut sender = self.multi.sender.clone();
        let mut answer = pin!(sender.try_send_request(sent));
        let answer = poll_fn(|cx| match answer.as_mut().poll(cx) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending => patience.poll(cx).map(|()| None),
        });
        match answer.await {
            Some(Ok(reply)) => {
                self.multi.answered.store(true, Ordering::Relaxed);
                Sent::replied(reply, watch)
            }
            Some(Err(mut failed)) => {
                let h2 = std::error::Error::source(failed.error())
                    .and_then(|source| source.downcast_ref::<h2::Error>());
                // hyper gives up a request that waited for a free stream when its connection ends.
                let unprocessed = h2.is_some_and(is_unprocessed) || failed.error().is_user();
                if h2.is_some_and(h2::Error::is_go_away) {
                    self.multi.retired.store(true, Ordering::Relaxed);
                }
                let cause = h2.map_or_else(|| cause_of(failed.error()), cause_of_h2);
                let ended = cause == Cause::Cut && h2.is_none_or(h2::Error::is_io);
                let lost = ended && self.multi.answered.load(Ordering::Relaxed);
                match (failed.take_message(), watch.and_then(Watch::error)) {
                    (Some(unsent), _) => {
                        *request = Some(unsent);
                        Sent::Unsent(Cause::Cut)
                    }
                    (None, Some(error)) => Sent::Failed(UpstreamError::body(error.clone())),
                    (None, None) if unprocessed => Sent::Refused(Cause::Cut),
                    (None, None) => {
                        tracing::debug!(error = %failed.error(), ?cause, "an upstream gave no reply");
                        (if lost { Sent::Lost } else { Sent::Failed })(UpstreamError::sent(cause))
                    }
                }
            }
            None => {
                // Perhaps only this request is slow, and perhaps the whole connection is dead: what
                // is on it goes on, and others take another.
                self.multi.retired.store(true, Ordering::Relaxed);
                Sent::Failed(UpstreamError::sent(Cause::Timeout))
            }
        }
    }
}

/// Whether the upstream says that it has done nothing with the request: it refused its stream, or
/// closes and counts only up to an earlier one (RFC 9113, 8.7).
fn is_unprocessed(error: &h2::Error) -> bool {
    error.is_remote() && (error.is_go_away() || error.reason() == Some(h2::Reason::REFUSED_STREAM))
}

fn cause_of(error: &hyper::Error) -> Cause {
    // hyper tells of a failed read or write only by what caused it.
    let io = std::error::Error::source(error).is_some_and(|source| source.is::<io::Error>());
    if error.is_timeout() {
        // A ping that got no answer.
        return Cause::Timeout;
    }
    if error.is_incomplete_message() || error.is_canceled() || error.is_closed() || io {
        Cause::Cut
    } else {
        Cause::Protocol
    }
}

fn cause_of_h2(error: &h2::Error) -> Cause {
    // A library's error is what our side found wrong in what the other has sent.
    let wrong = error.is_library() || error.reason() == Some(h2::Reason::PROTOCOL_ERROR);
    if wrong && !error.is_io() { Cause::Protocol } else { Cause::Cut }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let multi = &self.multi;
        if multi.streams.fetch_sub(1, Ordering::Relaxed) == 1 {
            let since = clock::monotonic().saturating_duration_since(multi.born);
            multi
                .idle_since_ms
                .store(u64::try_from(since.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
        pool::freed(multi);
    }
}

/// What a reply under way holds.
pub(super) struct Held {
    ticket: Ticket,
    seat: Seat,
    watch: Option<Arc<Watch>>,
}

impl Held {
    pub(super) fn new(ticket: Ticket, seat: Seat, watch: Option<Arc<Watch>>) -> Box<Self> {
        Box::new(Self { ticket, seat, watch })
    }
}

impl OnEnd for Held {
    /// The reply's body has ended.
    fn on_end(self: Box<Self>, end: &BodyEnd) {
        self.ticket.multi.upstream.ended(&self.seat, end);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Of a request whose reply is whole or given up nothing more is wanted: without an end, its
        // body would hold its stream for ever.
        if let Some(watch) = &self.watch {
            watch.give_up();
        }
    }
}

/// Begins to speak HTTP/2 on `stream`.
async fn begin<S>(
    stream: S,
    upstream: &Inner,
    terms: &Arc<Terms>,
) -> Result<SendRequest<Outgoing>, Cause>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let http2 = &upstream.http2;
    let streams = u32::try_from(http2.streams_per_connection).unwrap_or(u32::MAX);
    let mut builder = Builder::new(Telling(Arc::clone(terms)));
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(
            STREAM_WINDOW_BYTES.saturating_mul(streams).min(CONNECTION_WINDOW_BYTES_MAX),
        )
        .initial_max_send_streams(UNTOLD)
        .max_send_buf_size(SEND_BUFFER_BYTES_MAX)
        .max_header_list_size(u32::try_from(REPLY_HEAD_BYTES_MAX).unwrap_or(u32::MAX));
    if let Some(interval) = http2.ping_interval {
        builder.keep_alive_interval(interval).keep_alive_timeout(http2.ping_timeout);
    }
    let (sender, connection) =
        builder.handshake(TokioIo::new(stream)).await.map_err(|_| Cause::Protocol)?;
    tokio::spawn(Moving { connection, terms: Arc::clone(terms) });
    Ok(sender)
}

/// Drives a connection, and notes how many streams the other side takes.
struct Moving<S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    connection: Connection<TokioIo<S>, Outgoing, Telling>,
    terms: Arc<Terms>,
}

impl<S> Future for Moving<S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let ended = Pin::new(&mut self.connection).poll(cx);
        self.terms.note(self.connection.current_max_send_streams(), cx);
        ended.map(|ended| {
            self.terms.end();
            if let Err(error) = ended {
                tracing::debug!(%error, "an upstream's connection failed");
            }
        })
    }
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            streams_max: AtomicUsize::new(UNTOLD),
            reader: Mutex::new(None),
            told: Notify::new(),
            ended: AtomicBool::new(false),
        }
    }
}

impl Terms {
    /// Waits until they are known, or there will be none.
    async fn wait(&self) {
        while self.streams_max.load(Ordering::Relaxed) == UNTOLD
            && !self.ended.load(Ordering::Relaxed)
        {
            self.told.notified().await;
        }
    }

    fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.told.notify_one();
    }

    fn note(&self, streams_max: usize, cx: &Context<'_>) {
        if self.streams_max.swap(streams_max, Ordering::Relaxed) == UNTOLD && streams_max != UNTOLD
        {
            self.told.notify_one();
        }
        let reader = (streams_max == UNTOLD).then(|| cx.waker().clone());
        *self.reader.lock().unwrap_or_else(PoisonError::into_inner) = reader;
    }

    /// Something came of the connection: perhaps its terms.
    fn look_again(&self) {
        if self.streams_max.load(Ordering::Relaxed) == UNTOLD {
            let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(reader) = reader {
                reader.wake();
            }
        }
    }
}

/// Runs hyper's tasks, and has the terms looked at after each of their turns.
#[derive(Clone)]
struct Telling(Arc<Terms>);

impl<F> hyper::rt::Executor<F> for Telling
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, task: F) {
        let terms = Arc::clone(&self.0);
        tokio::spawn(async move {
            let mut task = pin!(task);
            poll_fn(|cx| {
                let polled = task.as_mut().poll(cx);
                terms.look_again();
                polled
            })
            .await;
        });
    }
}
