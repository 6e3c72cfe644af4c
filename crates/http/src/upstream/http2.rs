//! One HTTP/2 connection to an upstream, shared by many requests. Knows nothing of which endpoint
//! is chosen, nor of how many connections there are.

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
use super::http1::{IDLE_TRUSTED, REPLY_HEAD_BYTES_MAX};
use super::outgoing::{self, Outgoing, PendingRequest, UploadProgress};
use super::reply_timeout::ReplyTimeout;
use super::requests::RequestPermit;
use super::{Cause, Inner, Overrides, Protocol, UpstreamError, sender};
use crate::clock;
use crate::telemetry::Label as _;
use crate::wire::{BodyEnd, OnEnd, Timer};

/// The result of sending a request.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "all but one come once in a while, and the one must not be boxed on every request"
)]
pub(super) enum Http2Outcome {
    /// The reply's head.
    Reply(http::Response<Incoming>),
    /// Nothing of it was sent. It was put back.
    Unsent(Cause),
    /// It was sent, and the upstream says that it did nothing with it.
    Refused(Cause),
    /// It failed, and the upstream may have seen it.
    Failed(UpstreamError),
    /// Like `Failed`: its connection, which had answered other requests before, ended without a
    /// reply.
    Lost(UpstreamError),
}

impl Http2Outcome {
    /// Checks a reply's head before it is passed on.
    fn replied(reply: http::Response<Incoming>, progress: Option<&UploadProgress>) -> Self {
        match progress.and_then(UploadProgress::error) {
            // The upstream answered before it had the whole request, so it did not answer what the
            // client sent.
            Some(error) => Self::Failed(UpstreamError::body(error.clone())),
            // HTTP/2 has no 101.
            None if reply.status() == http::StatusCode::SWITCHING_PROTOCOLS => {
                Self::Failed(UpstreamError::sent(Cause::Protocol))
            }
            None => Self::Reply(reply),
        }
    }
}

/// Maximum bytes of one reply that are buffered for a client that reads slowly.
pub(super) const STREAM_WINDOW_BYTES: u32 = 256 << 10;
/// Maximum bytes buffered for all replies of a connection: as many as its streams may hold
/// together, so that slow clients never block the others.
const CONNECTION_WINDOW_BYTES_MAX: u32 = i32::MAX as u32;
/// Maximum bytes of one request's body that wait for the upstream, besides the current piece.
const SEND_BUFFER_BYTES_MAX: usize = 256 << 10;
/// Placeholder until the upstream has announced its limit of streams. No upstream can announce this
/// number.
const STREAMS_UNKNOWN: usize = usize::MAX - 1;

/// A connection that carries several requests at once.
pub(super) struct Http2Connection {
    sender: SendRequest<Outgoing>,
    peer: Arc<PeerSettings>,
    streams: AtomicUsize,
    streams_max: usize,
    /// No more requests are begun on it.
    retired: AtomicBool,
    /// A request was answered on it.
    answered: AtomicBool,
    created: Instant,
    /// When the last request ended, in milliseconds since `created`.
    idle_since_ms: AtomicU64,
    /// Notified when a stream has become free.
    freed: Arc<Notify>,
    pub(super) upstream: Arc<Inner>,
}

/// What the upstream announces in its SETTINGS.
struct PeerSettings {
    streams_max: AtomicUsize,
    /// It takes an extended CONNECT (RFC 8441).
    has_tunnels: AtomicBool,
    /// The waker of the task that reads the connection. It is woken until the settings have
    /// arrived.
    reader: Mutex<Option<Waker>>,
    /// Notified when the settings have arrived, or never will.
    received: Notify,
    ended: AtomicBool,
}

/// The permit for one request on a connection. Held until the reply has ended, and returned on
/// drop.
pub(super) struct StreamPermit {
    connection: Arc<Http2Connection>,
}

impl Http2Connection {
    /// Connects, within the upstream's time to connect, and drives the connection in tasks of its
    /// own. The connection is used once the upstream's SETTINGS have arrived, which HTTP/2 requires
    /// it to send first. So nothing is sent to an endpoint that speaks another protocol, and no
    /// request is sent only to be refused.
    ///
    /// `freed` is notified when a stream has become free. `make_room` is that of [`connect`].
    pub(super) async fn connect(
        upstream: &Arc<Inner>,
        host: &Host,
        freed: Arc<Notify>,
        make_room: fn(),
    ) -> Result<Arc<Self>, Cause> {
        let deadline =
            tokio::time::Instant::from_std(clock::monotonic() + upstream.settings.connect);
        let peer = Arc::new(PeerSettings::default());
        let stream = connect(upstream, host, (Protocol::H2, None), make_room).await?;
        let sender = begin(stream, upstream, &peer).await?;
        if timeout_at(deadline, peer.wait()).await.is_err() {
            upstream.warn_unconnected(host, &"it sends nothing in HTTP/2");
            return Err(Cause::Timeout);
        }
        if peer.streams_max.load(Ordering::Relaxed) == STREAMS_UNKNOWN {
            upstream.warn_unconnected(host, &"it does not speak HTTP/2");
            return Err(Cause::Protocol);
        }
        upstream
            .streams_announced
            .store(peer.streams_max.load(Ordering::Relaxed), Ordering::Relaxed);
        host.lacks_tunnels.store(!peer.has_tunnels.load(Ordering::Relaxed), Ordering::Relaxed);
        Ok(Arc::new(Self {
            sender,
            peer,
            streams: AtomicUsize::new(0),
            streams_max: upstream.settings.http2.streams_per_connection,
            retired: AtomicBool::new(false),
            answered: AtomicBool::new(false),
            created: clock::monotonic(),
            idle_since_ms: AtomicU64::new(0),
            freed,
            upstream: Arc::clone(upstream),
        }))
    }

    /// A permit for one more request, if the connection has room.
    pub(super) fn try_acquire(self: &Arc<Self>) -> Option<StreamPermit> {
        let streams_max = self.streams_max.min(self.peer.streams_max.load(Ordering::Relaxed));
        if !self.is_usable() || self.streams.load(Ordering::Relaxed) >= streams_max {
            return None;
        }
        // All of a worker's requests run on one thread, so nothing came in between.
        self.streams.fetch_add(1, Ordering::Relaxed);
        Some(StreamPermit { connection: Arc::clone(self) })
    }

    /// Whether more requests may be begun on it.
    pub(super) fn is_usable(&self) -> bool {
        !self.sender.is_closed() && !self.retired.load(Ordering::Relaxed)
    }

    /// Whether it carries no request.
    pub(super) fn is_idle(&self) -> bool {
        self.streams.load(Ordering::Relaxed) == 0
    }

    /// Whether it was unused for the upstream's idle time.
    pub(super) fn is_expired(&self, now: Instant) -> bool {
        self.is_idle() && self.idle_time(now) >= self.upstream.settings.idle
    }

    /// How long ago the last request ended, or else the connection was opened.
    fn idle_time(&self, now: Instant) -> Duration {
        now.saturating_duration_since(
            self.created + Duration::from_millis(self.idle_since_ms.load(Ordering::Relaxed)),
        )
    }

    /// The number of requests on it.
    #[cfg(test)]
    pub(super) fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }
}

impl StreamPermit {
    /// Whether a connection that was idle can still be used. If the upstream has closed it, the
    /// kernel knows: yielding lets the runtime look, then hyper's task for the connection, and then
    /// the task that takes requests.
    pub(super) async fn is_still_open(&self, now: Instant) -> bool {
        if self.connection.streams.load(Ordering::Relaxed) == 1
            && self.connection.idle_time(now) >= IDLE_TRUSTED
        {
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
        }
        self.connection.is_usable()
    }

    /// Begins no more requests on its connection.
    pub(super) fn retire(&self) {
        self.connection.retired.store(true, Ordering::Relaxed);
    }

    /// Whether the upstream has tunnels (RFC 8441).
    pub(super) fn has_tunnels(&self) -> bool {
        self.connection.peer.has_tunnels.load(Ordering::Relaxed)
    }

    /// Sends `request` and waits for the reply's head. `now` is at most a moment ago.
    pub(super) async fn exchange(
        &self,
        request: &mut PendingRequest,
        (progress, overrides): (Option<&UploadProgress>, Option<&Arc<Overrides>>),
        now: Instant,
    ) -> Http2Outcome {
        let Some(sent) = request.take() else { return Http2Outcome::Unsent(Cause::Connect) };
        let mut timer = Timer::default();
        let mut reply_timeout = ReplyTimeout {
            timer: &mut timer,
            upstream: &self.connection.upstream,
            progress,
            overrides,
            checked: now,
        };
        let mut connection = self.connection.sender.clone();
        let mut answer = pin!(connection.try_send_request(sent));
        let answer = poll_fn(|cx| match answer.as_mut().poll(cx) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending => reply_timeout.poll(cx).map(|()| None),
        });
        match answer.await {
            Some(Ok(reply)) => {
                self.connection.answered.store(true, Ordering::Relaxed);
                Http2Outcome::replied(reply, progress)
            }
            Some(Err(mut failed)) => {
                let h2 = std::error::Error::source(failed.error())
                    .and_then(|source| source.downcast_ref::<h2::Error>());
                // When its connection ends, hyper gives up a request that waited for a free stream.
                let unprocessed = h2.is_some_and(is_unprocessed) || failed.error().is_user();
                if h2.is_some_and(h2::Error::is_go_away) {
                    self.connection.retired.store(true, Ordering::Relaxed);
                }
                let cause = h2.map_or_else(|| cause_of(failed.error()), cause_of_h2);
                let ended = cause == Cause::Cut && h2.is_none_or(h2::Error::is_io);
                let lost = ended && self.connection.answered.load(Ordering::Relaxed);
                match (failed.take_message(), progress.and_then(UploadProgress::error)) {
                    (Some(unsent), _) => {
                        *request = Some(unsent);
                        Http2Outcome::Unsent(Cause::Cut)
                    }
                    (None, Some(error)) => Http2Outcome::Failed(UpstreamError::body(error.clone())),
                    (None, None) if unprocessed => Http2Outcome::Refused(Cause::Cut),
                    (None, None) => {
                        tracing::debug!(error = %failed.error(), cause = cause.label(), "an upstream gave no reply");
                        (if lost { Http2Outcome::Lost } else { Http2Outcome::Failed })(
                            UpstreamError::sent(cause),
                        )
                    }
                }
            }
            None => {
                // Either only this request is slow, or the whole connection is dead. The requests
                // on it continue; new ones use another.
                if !sender::is_hurried(&self.connection.upstream.settings, overrides) {
                    self.connection.retired.store(true, Ordering::Relaxed);
                }
                Http2Outcome::Failed(UpstreamError::sent(Cause::Timeout))
            }
        }
    }
}

/// Whether the upstream says that it did nothing with the request: it refused the stream, or it
/// closes and will only finish earlier ones (RFC 9113, 8.7).
fn is_unprocessed(error: &h2::Error) -> bool {
    error.is_remote() && (error.is_go_away() || error.reason() == Some(h2::Reason::REFUSED_STREAM))
}

fn cause_of(error: &hyper::Error) -> Cause {
    // hyper reports a failed read or write only through the error's source.
    let io = std::error::Error::source(error).is_some_and(|source| source.is::<io::Error>());
    if error.is_timeout() {
        // A ping was not answered.
        return Cause::Timeout;
    }
    if error.is_incomplete_message() || error.is_canceled() || error.is_closed() || io {
        Cause::Cut
    } else {
        Cause::Protocol
    }
}

fn cause_of_h2(error: &h2::Error) -> Cause {
    // A library error is a violation that our side found in what the upstream sent.
    let wrong = error.is_library() || error.reason() == Some(h2::Reason::PROTOCOL_ERROR);
    if wrong && !error.is_io() { Cause::Protocol } else { Cause::Cut }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let connection = &self.connection;
        if connection.streams.fetch_sub(1, Ordering::Relaxed) == 1 {
            let since = clock::monotonic().saturating_duration_since(connection.created);
            connection
                .idle_since_ms
                .store(u64::try_from(since.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
        connection.freed.notify_one();
    }
}

/// What is held while a reply's body streams.
pub(super) struct ReplyGuard {
    stream: StreamPermit,
    permit: RequestPermit,
    progress: Option<Arc<UploadProgress>>,
}

impl ReplyGuard {
    pub(super) fn new(
        stream: StreamPermit,
        permit: RequestPermit,
        progress: Option<Arc<UploadProgress>>,
    ) -> Box<Self> {
        Box::new(Self { stream, permit, progress })
    }
}

impl OnEnd for ReplyGuard {
    /// The reply's body has ended.
    fn on_end(self: Box<Self>, end: &BodyEnd) {
        self.stream.connection.upstream.reply_ended(&self.permit, end);
    }
}

impl Drop for ReplyGuard {
    fn drop(&mut self) {
        // Once the reply is complete or given up, the rest of the request's body is of no use.
        // Without an end, it would hold its stream forever.
        if let Some(progress) = &self.progress {
            progress.give_up();
        }
    }
}

/// Starts HTTP/2 on `stream`.
async fn begin<S>(
    stream: S,
    upstream: &Inner,
    peer: &Arc<PeerSettings>,
) -> Result<SendRequest<Outgoing>, Cause>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let http2 = &upstream.settings.http2;
    let streams = u32::try_from(http2.streams_per_connection).unwrap_or(u32::MAX);
    let mut builder = Builder::new(CheckingExecutor(Arc::clone(peer)));
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(
            STREAM_WINDOW_BYTES.saturating_mul(streams).min(CONNECTION_WINDOW_BYTES_MAX),
        )
        .initial_max_send_streams(STREAMS_UNKNOWN)
        .max_send_buf_size(SEND_BUFFER_BYTES_MAX)
        .max_header_list_size(u32::try_from(REPLY_HEAD_BYTES_MAX).unwrap_or(u32::MAX));
    if let Some(interval) = http2.ping_interval {
        builder.keep_alive_interval(interval).keep_alive_timeout(http2.ping_timeout);
    }
    let (sender, connection) =
        builder.handshake(TokioIo::new(stream)).await.map_err(|_| Cause::Protocol)?;
    tokio::spawn(Driver { connection, peer: Arc::clone(peer) });
    Ok(sender)
}

/// Drives a connection, and records how many streams the upstream allows.
struct Driver<S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    connection: Connection<TokioIo<S>, Outgoing, CheckingExecutor>,
    peer: Arc<PeerSettings>,
}

impl<S> Future for Driver<S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let ended = Pin::new(&mut self.connection).poll(cx);
        outgoing::take_read_last();
        let has_tunnels = self.connection.is_extended_connect_protocol_enabled();
        self.peer.has_tunnels.store(has_tunnels, Ordering::Relaxed);
        self.peer.note(self.connection.current_max_send_streams(), cx);
        ended.map(|ended| {
            self.peer.end();
            if let Err(error) = ended {
                tracing::debug!(%error, "an upstream's connection failed");
            }
        })
    }
}

impl Default for PeerSettings {
    fn default() -> Self {
        Self {
            streams_max: AtomicUsize::new(STREAMS_UNKNOWN),
            has_tunnels: AtomicBool::new(false),
            reader: Mutex::new(None),
            received: Notify::new(),
            ended: AtomicBool::new(false),
        }
    }
}

impl PeerSettings {
    /// Waits until the settings have arrived, or never will.
    async fn wait(&self) {
        while self.streams_max.load(Ordering::Relaxed) == STREAMS_UNKNOWN
            && !self.ended.load(Ordering::Relaxed)
        {
            self.received.notified().await;
        }
    }

    fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.received.notify_one();
    }

    fn note(&self, streams_max: usize, cx: &Context<'_>) {
        if self.streams_max.swap(streams_max, Ordering::Relaxed) == STREAMS_UNKNOWN
            && streams_max != STREAMS_UNKNOWN
        {
            self.received.notify_one();
        }
        let reader = (streams_max == STREAMS_UNKNOWN).then(|| cx.waker().clone());
        *self.reader.lock().unwrap_or_else(PoisonError::into_inner) = reader;
    }

    /// The connection made progress, so its settings may have arrived.
    fn recheck(&self) {
        if self.streams_max.load(Ordering::Relaxed) == STREAMS_UNKNOWN {
            let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(reader) = reader {
                reader.wake();
            }
        }
    }
}

/// Runs hyper's tasks, and checks for the settings after each poll. A task that sends a body ends
/// when that is given up, which resets its stream.
#[derive(Clone)]
struct CheckingExecutor(Arc<PeerSettings>);

impl<F> hyper::rt::Executor<F> for CheckingExecutor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, task: F) {
        let peer = Arc::clone(&self.0);
        let upload = outgoing::take_read_last();
        tokio::spawn(async move {
            let mut task = pin!(task);
            poll_fn(|cx| {
                // hyper looks at a body only when it has room for more of it. One that nobody wants
                // any more may wait for that for ever, and keeps its stream.
                if upload.as_ref().is_some_and(|upload| upload.poll_given_up(cx).is_ready()) {
                    return Poll::Ready(());
                }
                let polled = task.as_mut().poll(cx);
                outgoing::take_read_last();
                peer.recheck();
                polled
            })
            .await;
        });
    }
}
