//! The streams that carry HTTP: TCP, or TLS over TCP. They are one type, so that everything above
//! is compiled once. Knows nothing about HTTP.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

#[cfg(target_os = "linux")]
use rustix::event::{PollFd, PollFlags, Timespec};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::state::ConnectionState;
use crate::wire::{Charge, DisconnectedStream, delegate_write};

pub(super) enum Transport {
    Plain(TcpStream),
    Tls(TlsTransport),
    /// Taken out, for another protocol.
    Taken,
}

/// TLS over a socket.
pub(super) struct TlsTransport {
    /// Boxed: a TLS session is large, and plain connections should not pay for it.
    stream: Box<TlsStream<WriteCounter<TcpStream>>>,
    /// The charge for what rustls may buffer while the client is waited for.
    charge: Charge,
}

/// Counts completed writes to the socket. TLS buffers what is written to it, so from above it can't
/// be seen whether the client reads.
pub(super) struct WriteCounter<S> {
    pub(super) stream: S,
    pub(super) state: Arc<ConnectionState>,
}

/// The most that rustls buffers for a client that does not read.
const TLS_BYTES: usize = 64 << 10;

impl Transport {
    pub(super) fn tls(stream: Box<TlsStream<WriteCounter<TcpStream>>>) -> Self {
        Self::Tls(TlsTransport { stream, charge: Charge::nothing() })
    }
}

impl Transport {
    /// Whether the client has closed its side, even while bytes that it sent before are unread. A
    /// system call.
    #[cfg(target_os = "linux")]
    pub(super) fn has_ended(&self) -> bool {
        let socket = match self {
            Self::Plain(socket) => socket,
            Self::Tls(tls) => &tls.stream.get_ref().0.stream,
            Self::Taken => return false,
        };
        let ended = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let mut asked = [PollFd::new(socket, PollFlags::RDHUP)];
        let is_known = rustix::event::poll(&mut asked, Some(&Timespec::default())).is_ok();
        is_known && asked.iter().any(|socket| socket.revents().intersects(ended))
    }

    /// Other kernels report it only once all bytes before it are read.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn has_ended(&self) -> bool {
        false
    }
}

impl AsyncRead for Transport {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(tls) => Pin::new(&mut tls.stream).poll_read(cx, buf),
            Self::Taken => Pin::new(&mut DisconnectedStream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Transport {
    delegate_write! {
        Self::Plain(stream) => *stream,
        Self::Tls(tls) => *tls,
        Self::Taken => DisconnectedStream,
    }
}

impl TlsTransport {
    /// Charges for rustls's buffer while a write is pending.
    fn charged<T>(&mut self, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        self.charge.set(if polled.is_pending() { TLS_BYTES } else { 0 });
        polled
    }
}

impl AsyncWrite for TlsTransport {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.charged(wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.charged(wrote)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.charged(flushed)
    }

    delegate_write! { this => this.stream; is_write_vectored, poll_shutdown }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteCounter<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S> WriteCounter<S> {
    fn note<T>(&self, wrote: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Ok(_)) = wrote {
            self.state.count_write();
        }
        wrote
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteCounter<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.note(wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.note(wrote)
    }

    delegate_write! { this => this.stream; is_write_vectored, poll_flush, poll_shutdown }
}
