//! A client's connection after an upgrade: its stream, preceded by what was read ahead. Knows
//! nothing about the new protocol.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::stream::ClientStream;
use super::transport::Transport;
use crate::wire::{Buffer, delegate_write};

/// See the module documentation.
pub(super) struct UpgradedStream {
    ahead: Buffer,
    stream: ClientStream<Transport>,
}

impl UpgradedStream {
    pub(super) fn new(ahead: Buffer, stream: ClientStream<Transport>) -> Self {
        Self { ahead, stream }
    }
}

impl AsyncRead for UpgradedStream {
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

impl AsyncWrite for UpgradedStream {
    delegate_write! { this => this.stream }
}
