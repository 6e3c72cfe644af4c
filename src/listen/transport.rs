//! The two streams that HTTP comes over: TCP, or TLS on TCP. One type, so that everything above is
//! compiled once. Knows no HTTP.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::state::ConnectionState;
use crate::wire::Charge;

pub(super) enum Transport {
    Plain(TcpStream),
    /// Boxed: a TLS session is large, and most of the plain connections' memory would be its.
    Tls(Box<TlsStream<WriteCounter<TcpStream>>>, Charge),
    /// It was taken, for another protocol.
    Taken,
}

/// Notes each write that went out. TLS takes what it is given into a buffer of its own, so that
/// above it nobody sees whether the client takes anything.
pub(super) struct WriteCounter<S> {
    pub(super) stream: S,
    pub(super) state: Arc<ConnectionState>,
}

/// What rustls keeps of what a client does not take, at most.
const TLS_BYTES: usize = 64 << 10;

/// Counts what TLS may keep while the client is waited for.
fn waiting<T>(charge: &mut Charge, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
    charge.set(if polled.is_pending() { TLS_BYTES } else { 0 });
    polled
}

fn gone<T>() -> Poll<io::Result<T>> {
    Poll::Ready(Err(io::ErrorKind::NotConnected.into()))
}

impl AsyncRead for Transport {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream, _) => Pin::new(stream).poll_read(cx, buf),
            Self::Taken => gone(),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream, charge) => waiting(charge, Pin::new(stream).poll_write(cx, buf)),
            Self::Taken => gone(),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Tls(stream, charge) => {
                waiting(charge, Pin::new(stream).poll_write_vectored(cx, bufs))
            }
            Self::Taken => gone(),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream, _) => stream.is_write_vectored(),
            Self::Taken => false,
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream, charge) => waiting(charge, Pin::new(stream).poll_flush(cx)),
            Self::Taken => gone(),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream, _) => Pin::new(stream).poll_shutdown(cx),
            Self::Taken => gone(),
        }
    }
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
