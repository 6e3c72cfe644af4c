//! The body of an HTTP/1 request, read from the client on demand. Knows neither the route nor the
//! reader.

use std::task::{Context, Poll};

use http::HeaderMap;

use super::client::Client;
use crate::http1::Reader;
use crate::wire::{BodyEnd, BodyError, Source};

/// A request's body. It owns the connection's input until it is finished or dropped.
pub(super) struct Upload {
    client: Client,
    reader: Reader,
    /// The client waits for a 100 (Continue) before it sends the body.
    expects_continue: bool,
}

impl Upload {
    pub(super) fn new(client: Client, reader: Reader, expects_continue: bool) -> Self {
        // A client that has already begun to send is not waiting.
        let expects_continue = expects_continue && reader.input.is_empty();
        Self { client, reader, expects_continue }
    }
}

impl Source for Upload {
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        if std::mem::take(&mut self.expects_continue) {
            self.client.send_continue(cx);
        }
        self.reader.poll_content(|room| self.client.poll_into(cx, room))
    }

    fn data(&self) -> &[u8] {
        self.reader.content()
    }

    fn consume(&mut self, bytes: usize) {
        self.reader.consume(bytes);
    }

    fn remaining(&self) -> Option<u64> {
        self.reader.remaining()
    }

    fn is_end(&self) -> bool {
        self.reader.is_end()
    }

    fn take_trailers(&mut self) -> Option<HeaderMap> {
        self.reader.take_trailers()
    }

    fn finish(self: Box<Self>, _end: &BodyEnd) {
        let Self { client, reader, .. } = *self;
        client.give_back(reader);
    }
}
