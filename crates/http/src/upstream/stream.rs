//! An upstream's byte stream: TCP, a Unix socket, or TLS over TCP. A stream that can't be written
//! any more can still be read. Knows nothing of HTTP.
//!
//! An upstream that refuses an upload answers and closes with most of the upload unread, and the
//! kernel then resets the connection. The failed write says less than the answer, which is still
//! there to be read. So the client gets the upstream's 413 or 401 instead of a 502.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;

use super::budget::ConnectionPermit;
use crate::wire::{DisconnectedStream, delegate_write};

/// A connected stream and its permit.
pub(super) enum Stream {
    Plain {
        stream: TcpStream,
        _permit: ConnectionPermit,
    },
    Unix {
        stream: UnixStream,
        _permit: ConnectionPermit,
    },
    Tls {
        stream: Box<TlsStream<TcpStream>>,
        _permit: ConnectionPermit,
    },
    /// Shared by the task that sends a request's body and the one that reads the reply.
    Shared(Arc<Mutex<Stream>>),
    /// The stream was moved out.
    Gone,
}

/// A stream that discards writes once the other side has closed. The next read then returns the
/// reply, or the error.
pub(super) struct UpstreamStream {
    stream: Stream,
    write_closed: bool,
}

impl UpstreamStream {
    pub(super) fn new(stream: Stream) -> Self {
        Self { stream, write_closed: false }
    }

    /// A second handle to the same stream.
    pub(super) fn share(&mut self) -> Self {
        let shared = match std::mem::replace(&mut self.stream, Stream::Gone) {
            Stream::Shared(shared) => shared,
            stream => Arc::new(Mutex::new(stream)),
        };
        self.stream = Stream::Shared(Arc::clone(&shared));
        Self { stream: Stream::Shared(shared), write_closed: self.write_closed }
    }

    /// Once the other side has closed, the `offered` bytes count as written.
    fn note_close(
        &mut self,
        wrote: Poll<io::Result<usize>>,
        offered: usize,
    ) -> Poll<io::Result<usize>> {
        match wrote {
            Poll::Ready(Err(error))
                if matches!(
                    error.kind(),
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
                ) =>
            {
                self.write_closed = true;
                Poll::Ready(Ok(offered))
            }
            other => other,
        }
    }
}

impl AsyncRead for UpstreamStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for UpstreamStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.write_closed {
            return Poll::Ready(Ok(buf.len()));
        }
        let wrote = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.note_close(wrote, buf.len())
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let offered = bufs.iter().map(|buf| buf.len()).sum();
        if self.write_closed {
            return Poll::Ready(Ok(offered));
        }
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.note_close(wrote, offered)
    }

    delegate_write! { this => this.stream; is_write_vectored, poll_shutdown }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.write_closed {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain { stream, .. } => Pin::new(stream).poll_read(cx, buf),
            Self::Unix { stream, .. } => Pin::new(stream).poll_read(cx, buf),
            Self::Tls { stream, .. } => Pin::new(stream).poll_read(cx, buf),
            Self::Shared(shared) => Pin::new(&mut *lock(shared)).poll_read(cx, buf),
            Self::Gone => Pin::new(&mut DisconnectedStream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    delegate_write! {
        Self::Plain { stream, .. } => *stream,
        Self::Unix { stream, .. } => *stream,
        Self::Tls { stream, .. } => *stream,
        Self::Shared(shared) => *lock(shared),
        Self::Gone => DisconnectedStream;
        poll_write, poll_write_vectored, poll_flush, poll_shutdown
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}

fn lock(shared: &Mutex<Stream>) -> MutexGuard<'_, Stream> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
