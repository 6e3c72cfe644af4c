//! HTTP/2 on one connection: a task for each stream, on the connection's own worker. Knows neither
//! how it was accepted nor what the handler does.
//!
//! What hyper and h2 leave to us: closing a connection that has no streams, giving up on a stream
//! whose client takes nothing of its reply, and not reading on while more streams end than their
//! tasks can be told of (rapid reset, CVE-2023-44487). h2 itself bounds streams, header lists,
//! CONTINUATION frames, resets that were never accepted, and answers one PING at a time.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use pin_project_lite::pin_project;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connection::Served;
use super::failure::Failure;
use super::http2_reply::{self, Sent};
use super::places::Place;
use super::pulse::Pulse;
use super::{ConnectionSettings, Handler};
use crate::clock;
use crate::wire::{Alarm, Body, Request};

/// What a client may send of one request's body before the upstream has taken it.
const STREAM_WINDOW_BYTES: u32 = 128 << 10;
/// And of all bodies of a connection: so much that those which an upstream does not take hold up no
/// other, whoever's they are. Many a client is a proxy for many.
const CONNECTION_WINDOW_BYTES_MAX: u32 = i32::MAX as u32;
/// What is taken from an upstream for a stream whose client is slow, beside the piece that filled
/// it.
const SEND_BUFFER_BYTES_MAX: usize = 64 << 10;
/// The largest frame that we take: the least that the protocol allows.
const FRAME_BYTES_MAX: u32 = 16 << 10;
/// Streams that were reset before they were seen, and streams that we had to reset: beyond, the
/// connection ends with `ENHANCE_YOUR_CALM`.
const UNSEEN_RESETS_MAX: usize = 20;
const ERROR_RESETS_MAX: usize = 256;
/// How long a client that had no streams when it was told to close may take for it.
const GOODBYE: Duration = Duration::from_millis(GOODBYE_MS);
pub(super) const GOODBYE_MS: u64 = 2_000;
/// Tasks of streams for each stream that may be open: beyond, the connection is not read until some
/// have ended.
const TASKS_PER_STREAM_MAX: usize = 2;

/// Serves requests until the client or a timeout closes the connection, or the pulse says drain.
/// `begun` was read from `stream` before.
///
/// # Errors
/// What hyper says: mostly a client that went away; or that no request came at all.
pub(super) async fn serve<S, H>(
    stream: S,
    begun: Bytes,
    served: Arc<Served<H>>,
    place: Arc<Place>,
    settings: &ConnectionSettings,
) -> Result<(), Failure>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Handler,
{
    let pulse = Arc::clone(&served.pulse);
    let streams = Streams { pulse: Arc::clone(&pulse), place, send_idle: settings.send_idle };
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
        .max_pending_accept_reset_streams(UNSEEN_RESETS_MAX)
        .max_local_error_reset_streams(ERROR_RESETS_MAX);
    let service = service_fn(move |request: http::Request<Incoming>| {
        let served = Arc::clone(&served);
        async move {
            let (head, body) = request.into_parts();
            let request = Request::of_parts(
                &head,
                Body::incoming(body).lingering().within(STREAM_WINDOW_BYTES as usize),
            );
            drop(head);
            Ok::<_, Infallible>(
                served
                    .handler
                    .call(request, &served.peer)
                    .await
                    .into_http()
                    .map(http2_reply::Reply),
            )
        }
    });
    let tasks_max = TASKS_PER_STREAM_MAX
        .saturating_mul(usize::try_from(settings.streams_max).unwrap_or(usize::MAX));
    let stream = Guarded { stream, begun, pulse: Arc::clone(&pulse), tasks_max };
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let mut idle = Idle::new(settings);
    let mut told = false;
    poll_fn(|cx| {
        pulse.wake_with(cx.waker());
        if pulse.is_abandoned() {
            return Poll::Ready(Ok(()));
        }
        if !told && pulse.is_draining() {
            told = true;
            connection.as_mut().graceful_shutdown();
        }
        loop {
            if let Poll::Ready(done) = connection.as_mut().poll(cx) {
                return Poll::Ready(done.map_err(Failure::Http2));
            }
            match idle.poll(&pulse, told, cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Lapse::Silent) => return Poll::Ready(Err(Failure::Silent)),
                Poll::Ready(Lapse::Unclosed) => return Poll::Ready(Ok(())),
                Poll::Ready(Lapse::Idle) => {
                    told = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    })
    .await
}

/// Closes a connection without streams.
struct Idle {
    alarm: Alarm,
    phase: Phase,
    request_header: Duration,
    keep_alive: Duration,
    /// For the client to take the rest of its last replies.
    send_idle: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// There are streams.
    Busy,
    /// There are none.
    Idle,
    /// Nor will there be any: the client was told.
    Closing,
}

enum Lapse {
    /// No request ever came.
    Silent,
    /// None for a while: time to say goodbye.
    Idle,
    /// Goodbye was said, and the client does not close.
    Unclosed,
}

impl Idle {
    fn new(settings: &ConnectionSettings) -> Self {
        let ConnectionSettings { request_header, keep_alive, send_idle, .. } = *settings;
        Self { alarm: Alarm::default(), phase: Phase::Busy, request_header, keep_alive, send_idle }
    }

    /// `told` says whether the client was told to open no more streams.
    fn poll(&mut self, pulse: &Pulse, told: bool, cx: &mut Context<'_>) -> Poll<Lapse> {
        let (open, seen) = pulse.streams();
        if open > 0 {
            self.phase = Phase::Busy;
            self.alarm.disarm();
            return Poll::Pending;
        }
        let phase = if told { Phase::Closing } else { Phase::Idle };
        if self.phase != phase {
            let wait = match (self.phase, phase) {
                // A new connection has to show its first request in time: it has not earned the
                // longer wait.
                _ if !seen => self.request_header,
                (Phase::Busy, Phase::Closing) => self.send_idle,
                (_, Phase::Closing) => GOODBYE,
                _ => self.keep_alive,
            };
            let now = clock::monotonic();
            self.alarm.arm(now + wait);
            self.phase = phase;
            pulse.idle(now);
        }
        self.alarm.poll(cx).map(|()| match phase {
            _ if !seen => Lapse::Silent,
            Phase::Closing => Lapse::Unclosed,
            Phase::Busy | Phase::Idle => Lapse::Idle,
        })
    }
}

/// Runs each stream as a task of the worker.
#[derive(Clone)]
struct Streams {
    pulse: Arc<Pulse>,
    place: Arc<Place>,
    send_idle: Duration,
}

impl<F> Executor<F> for Streams
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, work: F) {
        self.pulse.stream_opened();
        let open = Open { pulse: Arc::clone(&self.pulse), _place: Arc::clone(&self.place) };
        tokio::spawn(Stream {
            work,
            open,
            alarm: Alarm::default(),
            send_idle: self.send_idle,
            deadline: None,
        });
    }
}

/// Keeps the connection counted until its last stream has ended, and tells it.
struct Open {
    pulse: Arc<Pulse>,
    _place: Arc<Place>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.pulse.stream_ended();
    }
}

pin_project! {
    /// One stream, the time for which its client takes nothing of the reply, and when that must be
    /// over. hyper waits for the client without a bound.
    struct Stream<F> {
        #[pin]
        work: F,
        open: Open,
        alarm: Alarm,
        send_idle: Duration,
        deadline: Option<Instant>,
    }
}

impl<F: Future<Output = ()>> Future for Stream<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        let (polled, sent, deadline) = http2_reply::watch(|| this.work.poll(cx));
        *this.deadline = deadline.or(*this.deadline);
        if polled.is_ready() {
            return polled;
        }
        match sent {
            Sent::Piece => {
                let still = clock::monotonic() + *this.send_idle;
                this.alarm.arm(this.deadline.map_or(still, |deadline| deadline.min(still)));
            }
            Sent::Awaited => this.alarm.disarm(),
            Sent::Nothing => {}
        }
        // Dropped without its end, the stream is reset.
        this.alarm.poll(cx)
    }
}

/// The client's stream with what was read of it before, and closed to a flood.
pub(super) struct Guarded<S> {
    pub(super) stream: S,
    pub(super) begun: Bytes,
    pub(super) pulse: Arc<Pulse>,
    pub(super) tasks_max: usize,
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.begun.is_empty() {
            let taken = self.begun.len().min(buf.remaining());
            let piece = self.begun.split_to(taken);
            buf.put_slice(&piece);
            return Poll::Ready(Ok(()));
        }
        // The streams' tasks that are too many belong to streams that were reset: each ends at its
        // next turn, and its end wakes us.
        if self.pulse.streams().0 >= self.tasks_max {
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
