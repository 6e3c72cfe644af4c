//! A client's connection that speaks HTTP no more: its bytes, with those that were read ahead.
//! Knows no protocol.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::stream::ClientStream;
use super::transport::Transport;
use crate::wire::Buffer;

/// See the file's head.
pub(super) struct Upgraded {
    ahead: Buffer,
    stream: ClientStream<Transport>,
}

impl Upgraded {
    pub(super) fn new(ahead: Buffer, stream: ClientStream<Transport>) -> Self {
        Self { ahead, stream }
    }
}

impl AsyncRead for Upgraded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            self.ahead.release_if_empty();
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let bytes = self.ahead.len().min(buf.remaining());
        buf.put_slice(self.ahead.bytes().get(..bytes).unwrap_or_default());
        self.ahead.consume(bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Upgraded {
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
