//! A reply whose body is read from its HTTP/1.1 connection, and what becomes of the connection when
//! that has ended: it returns to the pool, or is another protocol's from then on.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use http::{HeaderMap, StatusCode, Version};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{Http1Connection, Upload, read};
use crate::http1::ReplyHead;
use crate::upstream::requests::RequestPermit;
use crate::upstream::{pool, sender};
use crate::wire::{Body, BodyEnd, BodyError, BodyOutcome, Response, Source, delegate_write};

impl Http1Connection {
    /// The reply for the proxy, its body read from this connection. `lent`: the request's body
    /// comes from a connection that is driven together with the reply's.
    pub(in crate::upstream) fn reply(
        mut self: Box<Self>,
        head: ReplyHead,
        permit: RequestPermit,
        lent: bool,
    ) -> Response {
        let ReplyHead { mut reply, framing, keep_alive, version } = head;
        self.keep_alive = keep_alive;
        self.http10 = version == Version::HTTP_10;
        self.reader.begin(framing);
        self.timer.disarm();
        if reply.status == StatusCode::SWITCHING_PROTOCOLS {
            self.permit = Some(permit);
            reply.upgrade = Some(crate::wire::Upgrade::Stream(Box::new(UpgradedConnection(self))));
            return reply;
        }
        if self.reader.is_end() {
            drop(permit);
            self.put();
            return reply;
        }
        if !lent {
            self.spawn_upload();
        }
        self.permit = Some(permit);
        let idle = sender::idle(&self.upstream.settings, self.overrides.as_ref());
        reply.body = Body::source(self).idle_timeout(idle);
        reply
    }

    /// Spawns a task that sends the rest of the request's body.
    fn spawn_upload(&mut self) {
        let body = match std::mem::replace(&mut self.upload, Upload::Done) {
            Upload::Inline(body) => body,
            other => {
                self.upload = other;
                return;
            }
        };
        let done = Arc::new(AtomicBool::new(false));
        let (mut outbox, mut stream) = (std::mem::take(&mut self.outbox), self.stream.share());
        let (mut body, is_done) = (body, Arc::clone(&done));
        let task = tokio::spawn(async move {
            let sent =
                std::future::poll_fn(|cx| outbox.poll_send(cx, &mut stream, &mut body)).await;
            is_done.store(sent.is_ok(), Ordering::Release);
        });
        self.upload = Upload::Spawned { task: task.abort_handle(), done };
    }

    /// Returns the connection to the pool if it can take another request: the request is sent, and
    /// nothing follows the reply.
    fn put(mut self: Box<Self>) {
        let sent = match &self.upload {
            Upload::Done => self.outbox.is_empty() && self.outbox.has_ended(),
            Upload::Spawned { done, .. } => done.load(Ordering::Acquire),
            Upload::Inline(_) => false,
        };
        // One that says whose it is can't be another client's.
        let may_serve = self.upstream.settings.proxy_protocol.is_none();
        if sent && may_serve && self.keep_alive && self.reader.input.is_empty() {
            self.upload = Upload::Done;
            self.reader.input.release_if_empty();
            pool::put(self);
        }
    }
}

impl Source for Http1Connection {
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        self.poll_background(cx);
        self.reader.poll_content(|room| read(&mut self.stream, room, cx))
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

    fn poll_background(&mut self, cx: &mut Context<'_>) {
        if matches!(self.upload, Upload::Inline(_)) && self.poll_upload(cx).is_err() {
            // Only the reply matters now. The connection is not used again, since the request is
            // incomplete.
            self.upload = Upload::Done;
            self.keep_alive = false;
        }
    }

    /// The reply's body has ended.
    fn finish(mut self: Box<Self>, end: &BodyEnd) {
        if let Some(permit) = self.permit.take() {
            self.upstream.reply_ended(&permit, end);
        }
        if end.outcome == BodyOutcome::Complete {
            self.put();
        }
    }
}

/// A connection that no longer speaks HTTP. It holds its request's permit as long as it lives.
struct UpgradedConnection(Box<Http1Connection>);

impl AsyncRead for UpgradedConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let connection = &mut *self.0;
        if connection.reader.input.is_empty() {
            connection.reader.input.release_if_empty();
            return Pin::new(&mut connection.stream).poll_read(cx, buf);
        }
        let ahead = connection.reader.input.bytes();
        let bytes = ahead.len().min(buf.remaining());
        buf.put_slice(ahead.get(..bytes).unwrap_or_default());
        connection.reader.input.consume(bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for UpgradedConnection {
    delegate_write! { this => this.0.stream }
}
