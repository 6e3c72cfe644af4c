//! An upstream's byte stream as hyper sees it: what can't be written any more is no reason not to read. Knows nothing of HTTP.
//!
//! An upstream that refuses an upload answers and closes with most of it unread, and the kernel then resets the connection. hyper takes the failed
//! write for the end of everything, although the answer lies there to be read: the client would be told 502 in the place of 413 or 401.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream whose writes go nowhere once the other side takes none. The next read says how it ends: with an answer, or with the error.
#[derive(Debug)]
pub(super) struct UpstreamStream<S> {
    stream: S,
    deaf: bool,
}

impl<S> UpstreamStream<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, deaf: false }
    }

    /// `offered` bytes count as written where the other side has closed.
    fn heard(&mut self, wrote: Poll<io::Result<usize>>, offered: usize) -> Poll<io::Result<usize>> {
        match wrote {
            Poll::Ready(Err(error)) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                self.deaf = true;
                Poll::Ready(Ok(offered))
            }
            other => other,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for UpstreamStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for UpstreamStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.deaf {
            return Poll::Ready(Ok(buf.len()));
        }
        let wrote = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.heard(wrote, buf.len())
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let offered = bufs.iter().map(|buf| buf.len()).sum();
        if self.deaf {
            return Poll::Ready(Ok(offered));
        }
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.heard(wrote, offered)
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
