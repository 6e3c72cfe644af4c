//! HTTP/2 on one connection, with a task for each stream on the connection's own worker. Knows
//! neither how the connection was accepted nor what the handler does.
//!
//! hyper and h2 leave three things to us: closing a connection that has no streams, resetting a
//! stream whose client does not read its reply, and not reading on while too many tasks of reset
//! streams are still alive (rapid reset, CVE-2023-44487). h2 itself bounds streams, header lists,
//! CONTINUATION frames and resets of streams that were never accepted, and answers one PING at a
//! time.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode};
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use pin_project_lite::pin_project;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::context::ConnectionContext;
use super::error::ConnectionError;
use super::http2_reply::{self, BodyPoll};
use super::http2_tunnel;
use super::permits::Permit;
use super::state::ConnectionState;
use super::{ConnectionSettings, Handler};
use crate::clock;
use crate::wire::{Body, Known, Request, Response, Timer, delegate_write, is_padded};

/// How much of one request's body a client may send before the upstream has taken it.
const STREAM_WINDOW_BYTES: u32 = 128 << 10;
/// The most that a client may send ahead for all request bodies of a connection, which is their sum
/// up to this. So bodies that an upstream does not read can't block others: many a client is itself
/// a proxy for many clients.
const CONNECTION_WINDOW_BYTES_MAX: u32 = i32::MAX as u32;
/// How much of a reply is buffered for a slow client, plus the piece that exceeds it.
const SEND_BUFFER_BYTES_MAX: usize = 64 << 10;
/// The largest frame we accept: the smallest limit that the protocol allows.
const FRAME_BYTES_MAX: u32 = 16 << 10;
/// Maximum resets of streams that were never accepted, and of streams that we reset for errors.
/// Beyond these the connection ends with `ENHANCE_YOUR_CALM`.
const UNSEEN_RESETS_MAX: usize = 20;
/// The same of a proxy that resets what takes longer than its deadline: all at once after a pause,
/// and the end of the connection would fail its other calls.
const UNSEEN_RESETS_OF_PROXIES_MAX: usize = 4_096;
const ERROR_RESETS_MAX: usize = 256;
/// The message to a client whose field has blanks around its value.
const PADDED: &str = "a header field's value begins or ends with a blank";
/// How long a client without open streams may take to close after a GOAWAY.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(CLOSE_TIMEOUT_MS);
pub(super) const CLOSE_TIMEOUT_MS: u64 = 2_000;
/// How many times `send_idle` the last pieces of replies may wait to be read. They end with the
/// connection alone, and share it with each other.
const LAST_PIECE_PATIENCE: u32 = 5;
/// Maximum stream tasks per stream that may be open. Beyond it the connection is not read until
/// some have ended.
const TASKS_PER_STREAM_MAX: usize = 2;

/// Serves requests until the client, a timeout or a drain closes the connection. `read_ahead` was
/// already read from `stream`.
///
/// # Errors
/// An error of hyper, mostly because the client went away, or no request arrived in time.
pub(super) async fn serve<S, H>(
    stream: S,
    read_ahead: Bytes,
    context: Arc<ConnectionContext<H>>,
    permit: Arc<Permit>,
    settings: &ConnectionSettings,
) -> Result<(), ConnectionError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Handler,
{
    let state = Arc::clone(&context.state);
    let streams =
        StreamExecutor { state: Arc::clone(&state), permit, send_idle: settings.send_idle };
    let unseen_resets_max = match context.handler.serves(context.peer.listener).is_of_calls() {
        true => UNSEEN_RESETS_OF_PROXIES_MAX,
        false => UNSEEN_RESETS_MAX,
    };
    let mut builder = http2::Builder::new(streams);
    builder
        .max_concurrent_streams(settings.streams_max)
        .max_header_list_size(u32::try_from(settings.header_bytes_max).unwrap_or(u32::MAX))
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(
            STREAM_WINDOW_BYTES
                .saturating_mul(settings.streams_max)
                .min(CONNECTION_WINDOW_BYTES_MAX),
        )
        .max_frame_size(FRAME_BYTES_MAX)
        .max_send_buf_size(SEND_BUFFER_BYTES_MAX)
        .max_pending_accept_reset_streams(unseen_resets_max)
        .max_local_error_reset_streams(ERROR_RESETS_MAX)
        .enable_connect_protocol();
    // Boxed: on its way from hyper into a task of its own, and when it has ended, a stream is moved
    // seven times, and what answers a request is kilobytes.
    let unread_max = settings.send_idle.saturating_mul(LAST_PIECE_PATIENCE);
    let service = service_fn(move |request: http::Request<Incoming>| {
        let context = Arc::clone(&context);
        Box::pin(async move {
            let reply = answer(request, &context).await;
            let watched = |body| http2_reply::ReplyBody::new(body, &context.state, unread_max);
            Ok::<_, Infallible>(reply.into_http().map(watched))
        })
    });
    let tasks_max = TASKS_PER_STREAM_MAX
        .saturating_mul(usize::try_from(settings.streams_max).unwrap_or(usize::MAX));
    let stream = FloodGuard { stream, read_ahead, state: Arc::clone(&state), tasks_max };
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let mut idle = IdleTimeout::new(settings);
    let mut closing = false;
    poll_fn(|cx| {
        state.set_waker(cx.waker());
        if state.is_aborted() {
            return Poll::Ready(Ok(()));
        }
        if !closing && state.is_draining() {
            closing = true;
            connection.as_mut().graceful_shutdown();
        }
        loop {
            if let Poll::Ready(done) = connection.as_mut().poll(cx) {
                return Poll::Ready(done.map_err(ConnectionError::Http2));
            }
            match idle.poll(&state, closing, cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Expiry::NoRequest) => {
                    return Poll::Ready(Err(ConnectionError::HeadTimeout));
                }
                Poll::Ready(Expiry::Unread) => {
                    return Poll::Ready(Err(ConnectionError::SendTimeout));
                }
                Poll::Ready(Expiry::NotClosed) => return Poll::Ready(Ok(())),
                Poll::Ready(Expiry::Idle) => {
                    closing = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    })
    .await
}

/// Answers the request of one stream.
async fn answer<H: Handler>(
    request: http::Request<Incoming>,
    context: &ConnectionContext<H>,
) -> Response {
    let is_head = request.method() == Method::HEAD;
    let mut reply = if request.headers().values().any(|value| is_padded(value.as_bytes())) {
        // Upstreams cut blanks off. What is compared must not have them either, and a proxy must
        // refuse them (RFC 9113, 8.2.1).
        context.handler.unreadable(StatusCode::BAD_REQUEST, PADDED, &context.peer)
    } else if let Some(protocol) = http2_tunnel::protocol(&request) {
        // Boxed: few streams are tunnels, and each would carry its state.
        Box::pin(http2_tunnel::serve(request, protocol, context)).await
    } else {
        let (head, body) = request.into_parts();
        let body = Body::incoming(body).lingering().window(STREAM_WINDOW_BYTES as usize);
        let request = Request::from_parts(&head, body);
        drop(head);
        context.handler.call(request, &context.peer).await
    };
    // hyper would send it.
    if is_head && let Some(bytes @ 1..) = reply.body.length() {
        if !reply.fields.has(Known::ContentLength) {
            reply.fields.append(Known::ContentLength, itoa::Buffer::new().format(bytes));
        }
        reply.body = Body::empty();
    }
    reply
}

/// Closes a connection that has no streams.
struct IdleTimeout {
    timer: Timer,
    phase: Phase,
    request_header: Duration,
    keep_alive: Duration,
    /// How long the client may take to read the rest of its last replies.
    send_idle: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Streams are open.
    Busy,
    /// No stream is open.
    Idle,
    /// No stream is open and a GOAWAY was sent.
    Closing,
}

enum Expiry {
    /// No request ever arrived.
    NoRequest,
    /// No request arrived for a while: a GOAWAY is due.
    Idle,
    /// The client did not close after a GOAWAY.
    NotClosed,
    /// The client does not read the end of a reply.
    Unread,
}

impl IdleTimeout {
    fn new(settings: &ConnectionSettings) -> Self {
        let ConnectionSettings { request_header, keep_alive, send_idle, .. } = *settings;
        Self { timer: Timer::default(), phase: Phase::Busy, request_header, keep_alive, send_idle }
    }

    /// `closing` says whether a GOAWAY was sent.
    fn poll(
        &mut self,
        state: &ConnectionState,
        closing: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Expiry> {
        let (open, seen) = state.has_streams();
        if let Some(until) = state.unsent_until() {
            self.phase = Phase::Busy;
            self.timer.arm(until);
            return self.timer.poll(cx).map(|()| Expiry::Unread);
        }
        if open {
            self.phase = Phase::Busy;
            self.timer.disarm();
            return Poll::Pending;
        }
        let phase = if closing { Phase::Closing } else { Phase::Idle };
        if self.phase != phase {
            let wait = match (self.phase, phase) {
                // A new connection gets the shorter time limit until its first request.
                _ if !seen => self.request_header,
                (Phase::Busy, Phase::Closing) => self.send_idle,
                (_, Phase::Closing) => CLOSE_TIMEOUT,
                _ => self.keep_alive,
            };
            let now = clock::monotonic();
            self.timer.arm(now + wait);
            self.phase = phase;
            state.mark_idle(now);
        }
        self.timer.poll(cx).map(|()| match phase {
            _ if !seen => Expiry::NoRequest,
            Phase::Closing => Expiry::NotClosed,
            Phase::Busy | Phase::Idle => Expiry::Idle,
        })
    }
}

/// Spawns each stream as a task on the worker.
#[derive(Clone)]
struct StreamExecutor {
    state: Arc<ConnectionState>,
    permit: Arc<Permit>,
    send_idle: Duration,
}

impl<F> Executor<F> for StreamExecutor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, work: F) {
        self.state.stream_opened();
        let open = OpenStream { state: Arc::clone(&self.state), _permit: Arc::clone(&self.permit) };
        tokio::spawn(StreamTask {
            work,
            open,
            timer: Timer::default(),
            send_idle: self.send_idle,
            deadline: None,
        });
    }
}

/// Keeps the connection counted as open, and its state informed, until the stream has ended.
struct OpenStream {
    state: Arc<ConnectionState>,
    _permit: Arc<Permit>,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.state.stream_ended();
    }
}

pin_project! {
    /// The task of one stream. hyper waits for the client without a time limit, so this resets the
    /// stream when the client has read nothing for `send_idle`, or at the request's deadline.
    struct StreamTask<F> {
        #[pin]
        work: F,
        open: OpenStream,
        timer: Timer,
        send_idle: Duration,
        deadline: Option<Instant>,
    }
}

impl<F: Future<Output = ()>> Future for StreamTask<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        let (polled, sent, deadline) = http2_reply::watch(|| this.work.poll(cx));
        *this.deadline = deadline.or(*this.deadline);
        if polled.is_ready() {
            return polled;
        }
        match sent {
            BodyPoll::Piece => {
                let still = clock::monotonic() + *this.send_idle;
                this.timer.arm(this.deadline.map_or(still, |deadline| deadline.min(still)));
            }
            BodyPoll::Pending => this.timer.disarm(),
            BodyPoll::NotPolled => {}
        }
        // Dropping the unfinished stream resets it.
        this.timer.poll(cx)
    }
}

/// The client's stream, preceded by what was read of it before, and not read during a flood of
/// streams.
pub(super) struct FloodGuard<S> {
    pub(super) stream: S,
    pub(super) read_ahead: Bytes,
    pub(super) state: Arc<ConnectionState>,
    pub(super) tasks_max: usize,
}

impl<S: AsyncRead + Unpin> AsyncRead for FloodGuard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.read_ahead.is_empty() {
            let taken = self.read_ahead.len().min(buf.remaining());
            let piece = self.read_ahead.split_to(taken);
            buf.put_slice(&piece);
            return Poll::Ready(Ok(()));
        }
        // The surplus tasks belong to streams that were reset. Each ends when it is polled next,
        // and then wakes this connection.
        if self.state.tasks() >= self.tasks_max {
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FloodGuard<S> {
    delegate_write! { this => this.stream }
}
