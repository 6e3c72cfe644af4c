//! A client's byte stream as hyper's HTTP/2 and a tunnel see it, with two things that both leave to
//! us: it gives up on a client that takes nothing, and it closes so that the client can still read
//! the last reply. Knows neither TLS nor HTTP.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::permits::Permit;
use super::state::ConnectionState;
use crate::clock;
use crate::wire::Timer;

/// How long we wait for more of what a client sends, and throw it away, while it may not have seen
/// our last reply.
const LINGER: Duration = Duration::from_millis(LINGER_MS);
pub(super) const LINGER_MS: u64 = 2_000;
/// How long in all: an HTTP/2 client that reads slowly says so again and again.
pub(super) const LINGER_TOTAL: Duration = Duration::from_secs(30);
/// And how much of it.
const LINGER_BYTES_MAX: usize = 8 << 20;
/// In pieces of this size, on the stack.
const LINGER_PIECE_BYTES: usize = 8 << 10;

pub(super) struct ClientStream<S> {
    stream: S,
    state: Arc<ConnectionState>,
    /// Armed while a write waits, and then while lingering.
    timer: Timer,
    send_idle: Duration,
    /// Writes below TLS when the alarm was armed.
    writes: u64,
    /// The alarm was armed by a flush.
    armed_by_flush: bool,
    /// Counted as open for as long as the stream lives, whoever has it: an upgrade takes it along.
    _permit: Option<Arc<Permit>>,
    /// The client has closed its side.
    read_closed: bool,
    /// We have closed ours.
    write_closed: bool,
    lingered_bytes: usize,
    lingers_until: Option<Instant>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> ClientStream<S> {
    pub(super) fn new(stream: S, state: Arc<ConnectionState>, send_idle: Duration) -> Self {
        Self {
            stream,
            state,
            timer: Timer::default(),
            send_idle,
            writes: 0,
            armed_by_flush: false,
            _permit: None,
            read_closed: false,
            write_closed: false,
            lingered_bytes: 0,
            lingers_until: None,
        }
    }

    /// Gives `place` back when it is dropped.
    pub(super) fn with_permit(self, permit: Arc<Permit>) -> Self {
        Self { _permit: Some(permit), ..self }
    }

    /// A client that stops reading would hold its reply, the upstream's connection and any lease
    /// for ever.
    fn with_timeout<T>(
        &mut self,
        cx: &mut Context<'_>,
        wrote: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if wrote.is_ready() {
            self.timer.disarm();
            return wrote;
        }
        self.poll_send_timeout(cx)
    }

    /// The client is waited for: not longer than it takes nothing at all.
    fn poll_send_timeout<T>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        loop {
            if !self.timer.is_armed() {
                self.writes = self.state.writes();
                self.timer.arm(clock::monotonic() + self.send_idle);
            }
            ready!(self.timer.poll(cx));
            // TLS has buffers of its own: it may be stuck for long and yet bring something out.
            if self.writes == self.state.writes() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
    }

    /// Closing a socket with unread bytes resets the connection, and the reset may overtake the
    /// reply: a 413 or 429 to an upload would be lost, and the end of what an HTTP/2 client reads
    /// while it widens its windows. So read on for a while (what nginx calls lingering close).
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut piece = [0; LINGER_PIECE_BYTES];
        while !self.read_closed && self.lingered_bytes < LINGER_BYTES_MAX {
            let mut buf = ReadBuf::new(&mut piece);
            match Pin::new(&mut self.stream).poll_read(cx, &mut buf) {
                Poll::Ready(Ok(())) if buf.filled().is_empty() => break,
                Poll::Ready(Ok(())) => {
                    self.lingered_bytes += buf.filled().len();
                    self.timer.disarm();
                }
                Poll::Ready(Err(_)) => break,
                Poll::Pending => {
                    if !self.timer.is_armed() {
                        let now = clock::monotonic();
                        let end = *self.lingers_until.get_or_insert(now + LINGER_TOTAL);
                        self.timer.arm(end.min(now + LINGER));
                    }
                    return self.timer.poll(cx);
                }
            }
        }
        Poll::Ready(())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for ClientStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.state.is_upgraded() {
            // Nobody else looks: the connection's own task is gone.
            self.state.set_upgraded_waker(cx.waker());
            if self.state.is_aborted() {
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if let Poll::Ready(Ok(())) = read {
            self.read_closed |= buf.filled().len() == before && buf.remaining() > 0;
        }
        read
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ClientStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.with_timeout(cx, wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.with_timeout(cx, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if flushed.is_pending() {
            self.armed_by_flush = true;
            return self.poll_send_timeout(cx);
        }
        if std::mem::take(&mut self.armed_by_flush) {
            self.timer.disarm();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.write_closed {
            // TLS has a last word to say, and the client may not take it.
            match Pin::new(&mut self.stream).poll_shutdown(cx) {
                Poll::Ready(shut) => shut?,
                Poll::Pending => return self.poll_send_timeout(cx),
            }
            self.write_closed = true;
            self.timer.disarm();
        }
        // An upgraded stream may be closed on one side only: what still comes is its reader's.
        if !self.state.is_upgraded() {
            ready!(self.poll_linger(cx));
        }
        Poll::Ready(Ok(()))
    }
}
