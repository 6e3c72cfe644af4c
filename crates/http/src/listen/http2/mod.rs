//! HTTP/2 on one connection, with a task for each stream (`stream`) on the connection's own worker.
//! Knows neither how the connection was accepted nor what the handler does.
//!
//! h2 leaves three things to us: closing a connection that has no streams, resetting a stream whose
//! client does not read its reply (`reply`, `unsent`), and not reading on while too many tasks of
//! reset streams are still alive (rapid reset, CVE-2023-44487). h2 itself bounds streams, header
//! lists, CONTINUATION frames and resets of streams that were never accepted, and answers one PING
//! at a time.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Builder, Connection, Handshake};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::context::ConnectionContext;
use super::error::ConnectionError;
use super::permits::Permit;
use super::state::ConnectionState;
use super::{ConnectionSettings, Handler};
use crate::clock;
use crate::wire::{Timer, delegate_write};

mod reply;
mod shared;
mod stream;
mod tunnel;
mod unsent;

use shared::Shared;
use stream::Streams;
use unsent::Piece;

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
/// How long a client without open streams may take to close after a GOAWAY.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(CLOSE_TIMEOUT_MS);
pub(in crate::listen) const CLOSE_TIMEOUT_MS: u64 = 2_000;
/// Maximum stream tasks per stream that may be open. Beyond it the connection is not read until
/// some have ended.
const TASKS_PER_STREAM_MAX: usize = 2;

/// Serves requests until the client, a timeout or a drain closes the connection. `read_ahead` was
/// already read from `stream`.
///
/// # Errors
/// An error of h2, mostly because the client went away, or no request arrived in time.
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
    let unseen_resets_max = match context.handler.serves(context.peer.listener).is_of_calls() {
        true => UNSEEN_RESETS_OF_PROXIES_MAX,
        false => UNSEEN_RESETS_MAX,
    };
    let tasks_max = TASKS_PER_STREAM_MAX
        .saturating_mul(usize::try_from(settings.streams_max).unwrap_or(usize::MAX));
    let stream = FloodGuard { stream, read_ahead, state: Arc::clone(&state), tasks_max };
    let handshake = Builder::new()
        .max_concurrent_streams(settings.streams_max)
        .max_header_list_size(u32::try_from(settings.header_bytes_max).unwrap_or(u32::MAX))
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(
            STREAM_WINDOW_BYTES
                .saturating_mul(settings.streams_max)
                .min(CONNECTION_WINDOW_BYTES_MAX),
        )
        .max_frame_size(FRAME_BYTES_MAX)
        .max_send_buffer_size(SEND_BUFFER_BYTES_MAX)
        .max_pending_accept_reset_streams(unseen_resets_max)
        .max_local_error_reset_streams(Some(ERROR_RESETS_MAX))
        .enable_connect_protocol()
        .handshake(stream);
    let shared = Arc::new(Shared::new(&context, permit, settings.send_idle));
    let streams = Streams::new(context, Arc::clone(&shared));
    let mut connection = Protocol { phase: Phase::Opening(handshake), is_closing: false, streams };
    let mut idle = IdleTimeout::new(settings);
    poll_fn(|cx| {
        state.set_waker(cx.waker());
        if state.is_aborted() {
            return Poll::Ready(Ok(()));
        }
        if state.is_draining() {
            connection.close();
        }
        loop {
            if let Poll::Ready(done) = connection.poll(cx) {
                return Poll::Ready(done.map_err(ConnectionError::Http2));
            }
            match idle.poll(&state, &shared, connection.is_closing, cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Expiry::NoRequest) => {
                    return Poll::Ready(Err(ConnectionError::HeadTimeout));
                }
                Poll::Ready(Expiry::NotClosed) => return Poll::Ready(Ok(())),
                Poll::Ready(Expiry::Idle) => connection.close(),
            }
        }
    })
    .await
}

/// The protocol's side of a connection: it opens, and then accepts streams until it is closed.
struct Protocol<S, H> {
    phase: Phase<S>,
    /// A GOAWAY was sent, or will be once it is open.
    is_closing: bool,
    streams: Streams<H>,
}

impl<S, H> Drop for Protocol<S, H> {
    fn drop(&mut self) {
        self.streams.shared.unsent.forget();
    }
}

enum Phase<S> {
    Opening(Handshake<S, Piece>),
    Open(Connection<S, Piece>),
}

impl<S, H> Protocol<S, H>
where
    S: AsyncRead + AsyncWrite + Unpin,
    H: Handler,
{
    /// Says that no more streams are accepted. Those that are open go on.
    fn close(&mut self) {
        if !std::mem::replace(&mut self.is_closing, true)
            && let Phase::Open(connection) = &mut self.phase
        {
            connection.graceful_shutdown();
        }
    }

    /// Drives the connection, and starts a task for each stream that arrives. Ready when it has
    /// ended.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        loop {
            match &mut self.phase {
                Phase::Opening(handshake) => {
                    let mut connection = ready!(Pin::new(handshake).poll(cx))?;
                    if self.is_closing {
                        connection.graceful_shutdown();
                    }
                    self.phase = Phase::Open(connection);
                }
                Phase::Open(connection) => match ready!(connection.poll_accept(cx)) {
                    Some(accepted) => {
                        let (request, replier) = accepted?;
                        self.streams.begin(request, replier);
                    }
                    None => return Poll::Ready(Ok(())),
                },
            }
        }
    }
}

/// Closes a connection that has no streams.
struct IdleTimeout {
    timer: Timer,
    activity: Activity,
    request_header: Duration,
    keep_alive: Duration,
    /// How long the client may take to read the rest of its last replies.
    send_idle: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Activity {
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
}

impl IdleTimeout {
    fn new(settings: &ConnectionSettings) -> Self {
        let ConnectionSettings { request_header, keep_alive, send_idle, .. } = *settings;
        Self {
            timer: Timer::default(),
            activity: Activity::Busy,
            request_header,
            keep_alive,
            send_idle,
        }
    }

    /// `closing` says whether a GOAWAY was sent.
    fn poll(
        &mut self,
        state: &ConnectionState,
        shared: &Shared,
        closing: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Expiry> {
        let (open, seen) = state.has_streams();
        while let Some(until) = shared.unsent.deadline() {
            self.activity = Activity::Busy;
            self.timer.arm(until);
            ready!(self.timer.poll(cx));
            shared.reset_late();
        }
        if open {
            self.activity = Activity::Busy;
            self.timer.disarm();
            return Poll::Pending;
        }
        let activity = if closing { Activity::Closing } else { Activity::Idle };
        if self.activity != activity {
            let wait = match (self.activity, activity) {
                (Activity::Busy, Activity::Closing) if seen => self.send_idle,
                (_, Activity::Closing) => CLOSE_TIMEOUT,
                // A new connection gets the shorter time limit until its first request.
                _ if !seen => self.request_header,
                _ => self.keep_alive,
            };
            let now = clock::monotonic();
            self.timer.arm(now + wait);
            self.activity = activity;
            state.mark_idle(now);
        }
        self.timer.poll(cx).map(|()| match activity {
            Activity::Closing => Expiry::NotClosed,
            _ if !seen => Expiry::NoRequest,
            Activity::Busy | Activity::Idle => Expiry::Idle,
        })
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
