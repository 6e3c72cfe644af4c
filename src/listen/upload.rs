//! The body of an HTTP/1 request, read from its client as its reader asks for it. Knows neither its route nor its reader.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::HeaderMap;

use super::client::Client;
use crate::http1::{Decoder, Next};
use crate::wire::{BodyError, Buffer, End, Source};

/// A request's body. It has its client's bytes for as long as it lives.
pub(super) struct Upload {
    client: Client,
    input: Buffer,
    decoder: Decoder,
    /// Content at the beginning of `input`.
    content_bytes: usize,
    /// The client holds it back until it is asked for.
    held_back: bool,
}

impl Upload {
    pub(super) fn new(client: Client, input: Buffer, decoder: Decoder, held_back: bool) -> Self {
        // A client that has begun to send does not wait any more.
        let held_back = held_back && input.is_empty();
        Self { client, input, decoder, content_bytes: 0, held_back }
    }
}

impl Source for Upload {
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        if std::mem::take(&mut self.held_back) {
            self.client.send_continue(cx);
        }
        loop {
            let mut skipped = 0;
            let next = self.decoder.next(self.input.bytes(), |bytes| skipped += bytes);
            self.input.consume(skipped);
            match next {
                Ok(Next::Data(bytes)) => {
                    self.content_bytes = bytes;
                    return Poll::Ready(Ok(()));
                }
                Ok(Next::End) => return Poll::Ready(Ok(())),
                Ok(Next::More) => {}
                Err(_) => return Poll::Ready(Err(BodyError::Malformed)),
            }
            let room = self.input.body_room();
            let read = self.client.poll_into(cx, room);
            if read.is_pending() {
                self.input.rest();
            }
            match ready!(read) {
                Ok(0) => return Poll::Ready(Err(BodyError::Cut(Arc::new(io::Error::from(io::ErrorKind::UnexpectedEof))))),
                Ok(bytes) => self.input.filled(bytes),
                Err(error) => return Poll::Ready(Err(BodyError::Cut(Arc::new(error)))),
            }
        }
    }

    fn data(&self) -> &[u8] {
        self.input.bytes().get(..self.content_bytes).unwrap_or_default()
    }

    fn consume(&mut self, bytes: usize) {
        let bytes = bytes.min(self.content_bytes);
        self.content_bytes -= bytes;
        self.input.consume(bytes);
        self.decoder.consumed(bytes);
    }

    fn remaining(&self) -> Option<u64> {
        self.decoder.remaining()
    }

    fn is_end(&self) -> bool {
        self.decoder.is_end()
    }

    fn take_trailers(&mut self) -> Option<HeaderMap> {
        self.decoder.take_trailers()
    }

    fn finish(self: Box<Self>, _end: &End) {
        let Self { client, input, decoder, .. } = *self;
        client.leave(input, decoder);
    }
}
