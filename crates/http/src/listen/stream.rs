//! A client's byte stream as h2 and a tunnel use it. It adds two things that both lack:
//! a time limit for a client that does not read, and a close that lets the client read the last
//! reply. Knows neither TLS nor HTTP.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::permits::Permit;
use super::state::ConnectionState;
use crate::clock;
use crate::wire::{Timer, delegate_write};

/// How long to wait for more bytes while closing; they are discarded. See
/// [`ClientStream::poll_linger`].
const LINGER: Duration = Duration::from_millis(LINGER_MS);
pub(super) const LINGER_MS: u64 = 2_000;
/// How long to linger in total: a slow HTTP/2 reader keeps sending WINDOW_UPDATE frames.
pub(super) const LINGER_TOTAL: Duration = Duration::from_secs(30);
/// How many bytes to discard in total.
const LINGER_BYTES_MAX: usize = 8 << 20;
/// How much to read at once, on the stack.
const LINGER_PIECE_BYTES: usize = 8 << 10;

pub(super) struct ClientStream<S> {
    stream: S,
    state: Arc<ConnectionState>,
    /// Armed while a write is pending, and while lingering.
    timer: Timer,
    send_idle: Duration,
    /// Completed writes below TLS when the timer was armed.
    writes: u64,
    /// The timer was armed by a flush.
    armed_by_flush: bool,
    /// Keeps the connection counted as open while the stream lives, even after an upgrade.
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

    /// Holds `permit` until the stream is dropped.
    pub(super) fn with_permit(self, permit: Arc<Permit>) -> Self {
        Self { _permit: Some(permit), ..self }
    }

    /// Limits how long a write may be pending. A client that stops reading would otherwise hold its
    /// reply, the upstream's connection and any lease forever.
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

    /// Pending until the client has read nothing at all for `send_idle`; then fails.
    fn poll_send_timeout<T>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        loop {
            if !self.timer.is_armed() {
                self.writes = self.state.writes();
                self.timer.arm(clock::monotonic() + self.send_idle);
            }
            ready!(self.timer.poll(cx));
            // TLS buffers data: a write may be pending for long while bytes still go out below.
            if self.writes == self.state.writes() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
    }

    /// Reads and discards for a while before the socket is closed (nginx: lingering close). Closing
    /// a socket with unread bytes resets the connection, and the reset may overtake the reply. A
    /// 413 or 429 to an upload would be lost, and so would the rest of a reply to an HTTP/2 client
    /// that still sends window updates.
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
            // Nothing else checks this: the connection's own task has ended.
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

    delegate_write! { this => this.stream; is_write_vectored }

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
            // TLS sends a close_notify alert, which the client may not read.
            match Pin::new(&mut self.stream).poll_shutdown(cx) {
                Poll::Ready(shut) => shut?,
                Poll::Pending => return self.poll_send_timeout(cx),
            }
            self.write_closed = true;
            self.timer.disarm();
        }
        // One direction of an upgraded stream may be closed while the other is still read.
        if !self.state.is_upgraded() {
            ready!(self.poll_linger(cx));
        }
        Poll::Ready(Ok(()))
    }
}
