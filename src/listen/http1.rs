//! HTTP/1.1 and 1.0 on one connection, in one task: heads in, replies out, and the upstream's
//! connection driven with it, through the reply's body. Knows neither how it was accepted nor what
//! the handler does.
//!
//! | state | the client's bytes | what else is awaited | ends with |
//! |---|---|---|---|
//! | waiting | a head | drain | a head; `keep_alive`, `request_header`; close |
//! | calling | its body, by whoever reads that; else the next request, up to `header_bytes` | the reply's head | the head; the client's close, after `half_close` |
//! | replying | the same | the reply's body, and the client to take it | its end; `send_idle`; the client's close |
//! | closing | thrown away | the client to have read | its close; `LINGER`, `LINGER_ALL` |
//!
//! A client that closes its sending side may still read (RFC 9112, 9.6): it gets what is ready
//! within `half_close`. One that has gone looks just the same, and must not be worked for: that is
//! why there is such a time.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode, Version};
use tokio::io::AsyncWrite;

use super::client::Client;
use super::connection::Served;
use super::failure::Failure;
use super::places::Place;
use super::progress::Progress;
use super::stream::{ClientStream, LINGER_ALL};
use super::transport::Transport;
use super::tunnel::Tunnel;
use super::upload::Upload;
use super::{ConnectionSettings, Handler};
use crate::clock;
use crate::http1::{
    self, Encoding, Framing, HTTP2_PREFACE, Outbox, Reader, Refused, RequestHead, Scan, SendError,
};
use crate::wire::{Alarm, Body, BodyError, Buffer, Known, Request, Response, Upgrade};

/// How a TLS hello begins: a handshake record of version 3.
const TLS_HELLO: [u8; 2] = [22, 3];
/// How long we wait for more of what a client sends, and throw it away, while it may not have seen
/// our last reply.
const LINGER: Duration = Duration::from_millis(super::stream::LINGER_MS);

/// How a connection's HTTP/1 ended.
pub(super) enum End {
    /// With the connection, or in an upgrade: the stream then belongs to whoever asked for it.
    Closed,
    /// The client speaks HTTP/2: its stream, and what was read of it.
    Http2(Transport, Bytes),
}

/// Serves requests until the client or a timeout closes the connection, or the pulse says drain.
///
/// # Errors
/// Mostly a client that went away or stood still.
pub(super) async fn serve<H: Handler>(
    transport: Transport,
    served: &Arc<Served<H>>,
    place: Arc<Place>,
    settings: &ConnectionSettings,
) -> Result<End, Failure> {
    let mut connection = Connection {
        client: Client::new(transport),
        served,
        place,
        settings,
        input: Buffer::default(),
        scan: Scan::default(),
        outbox: Outbox::default(),
        alarm: Alarm::default(),
        first: true,
        late: served.pulse.is_draining(),
        ended: false,
        had_body: false,
    };
    loop {
        match connection.next().await? {
            Wanted::Request(head) => match connection.exchange(head).await? {
                Kept::Open => {}
                Kept::Closing => return connection.close().await,
                Kept::Gone => return Ok(End::Closed),
            },
            Wanted::Http2 => {
                let begun = Bytes::copy_from_slice(connection.input.bytes());
                return Ok(End::Http2(connection.client.take(), begun));
            }
            Wanted::Refused(refused, failure) => {
                connection.refuse(refused).await?;
                let _ = connection.close().await;
                return Err(failure);
            }
            Wanted::Nothing => return connection.close().await,
            Wanted::Abandoned => return Ok(End::Closed),
        }
    }
}

/// One connection.
struct Connection<'a, H> {
    client: Client,
    served: &'a Arc<Served<H>>,
    place: Arc<Place>,
    settings: &'a ConnectionSettings,
    /// Read and not used.
    input: Buffer,
    scan: Scan,
    outbox: Outbox,
    /// Of whatever is waited for.
    alarm: Alarm,
    /// No request has come yet.
    first: bool,
    /// The drain had begun before: one request is answered.
    late: bool,
    /// The client has closed its sending side.
    ended: bool,
    /// The last request had a body: more of it may still come when we close.
    had_body: bool,
}

/// What a client wants.
#[allow(clippy::large_enum_variant, reason = "the large one comes on every request")]
enum Wanted {
    Request(RequestHead),
    Http2,
    /// Something that is no request.
    Refused(StatusCode, Failure),
    /// It closed, or there is nothing to wait for.
    Nothing,
    Abandoned,
}

/// What becomes of the connection after a reply.
enum Kept {
    Open,
    Closing,
    /// The client is gone, or something else has its socket.
    Gone,
}

impl<H: Handler> Connection<'_, H> {
    /// Waits for a request's head.
    async fn next(&mut self) -> Result<Wanted, Failure> {
        self.scan = Scan::default();
        let mut since = None;
        poll_fn(|cx| self.poll_next(cx, &mut since)).await
    }

    fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
        since: &mut Option<(Instant, bool)>,
    ) -> Poll<Result<Wanted, Failure>> {
        let pulse = &self.served.pulse;
        pulse.wake_with(cx.waker());
        if pulse.is_abandoned() {
            return Poll::Ready(Ok(Wanted::Abandoned));
        }
        loop {
            if let Some(wanted) = self.look() {
                self.served.pulse.busy();
                self.alarm.disarm();
                return Poll::Ready(Ok(wanted));
            }
            if self.ended {
                return Poll::Ready(self.closed_early());
            }
            match self.client.poll_fill(cx, &mut self.input, self.settings.header_bytes_max) {
                Poll::Ready(Ok(0)) => self.ended = true,
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(Failure::Socket(error))),
                Poll::Pending => break,
            }
        }
        let begun = self.scan.has_begun();
        if !begun && self.served.pulse.is_draining() && !(self.late && self.first) {
            return Poll::Ready(Ok(Wanted::Nothing));
        }
        if since.is_none_or(|(_, before)| before != begun) {
            let now = clock::monotonic();
            *since = Some((now, begun));
            if begun {
                self.served.pulse.busy();
            } else {
                self.served.pulse.idle(now);
            }
            // A new connection has to show its first head in time: it has not earned the longer
            // wait.
            let wait = if begun || self.first {
                self.settings.request_header
            } else {
                self.settings.keep_alive
            };
            let first = since.map_or(now, |(first, _)| if self.first { first } else { now });
            self.alarm.arm(first + wait);
        }
        self.alarm
            .poll(cx)
            .map(|()| if begun || self.first { Err(Failure::Silent) } else { Ok(Wanted::Nothing) })
    }

    /// What has come so far is, where that can be told.
    fn look(&mut self) -> Option<Wanted> {
        let bytes = self.input.bytes();
        if bytes.is_empty() {
            return None;
        }
        if self.first {
            if bytes.starts_with(&TLS_HELLO) {
                return Some(Wanted::Refused(StatusCode::BAD_REQUEST, Failure::TlsHello));
            }
            if bytes.starts_with(HTTP2_PREFACE) {
                return Some(Wanted::Http2);
            }
            if HTTP2_PREFACE.starts_with(bytes) {
                return None;
            }
        }
        let refuse = |refused: Refused| {
            let failure = match refused {
                Refused::TooManyFields => Failure::HeadTooLarge,
                Refused::Malformed(why) => Failure::Malformed(why),
                Refused::UnknownCoding => Failure::Malformed("an unknown transfer coding"),
            };
            Wanted::Refused(refused.status(), failure)
        };
        match self.scan.request(bytes) {
            Ok(Some((head, end))) => {
                self.input.consume(end);
                Some(Wanted::Request(head))
            }
            Ok(None) if bytes.len() < self.settings.header_bytes_max => None,
            Ok(None) => Some(Wanted::Refused(
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                Failure::HeadTooLarge,
            )),
            Err(refused) => Some(refuse(refused)),
        }
    }

    fn closed_early(&self) -> Result<Wanted, Failure> {
        if self.scan.has_begun() {
            Err(Failure::Socket(io::ErrorKind::UnexpectedEof.into()))
        } else {
            Ok(Wanted::Nothing)
        }
    }

    /// Has one request answered.
    async fn exchange(&mut self, head: RequestHead) -> Result<Kept, Failure> {
        let RequestHead { mut request, framing, keep_alive, expects_continue } = head;
        self.first = false;
        self.had_body = framing != Framing::Length(0);
        // RFC 9110, 6.5.1: trailers are for those who say that they take them.
        let trailers = request
            .fields
            .get_all(Known::Te)
            .any(|value| value.split(|byte| *byte == b',').any(is_trailers));
        let asked = Asked {
            is_head: request.method == Method::HEAD,
            version: request.version,
            keep_alive,
            trailers,
        };
        self.client.set_replied(false);
        if self.had_body {
            let upload = Upload::new(
                self.client.clone(),
                Reader::new(std::mem::take(&mut self.input), framing),
                expects_continue,
            );
            request.body = Body::source(Box::new(upload));
        }
        if request.version == Version::HTTP_11 {
            request.interim = Some(self.client.interim());
        }
        match self.call(request).await {
            Some(reply) => self.reply(reply, asked).await,
            None => Ok(Kept::Gone),
        }
    }

    /// Calls the handler; none when the client has gone meanwhile.
    async fn call(&mut self, request: Request) -> Option<Response> {
        let served = self.served;
        let mut call = pin!(served.handler.call(request, &served.peer));
        poll_fn(|cx| {
            if served.pulse.is_abandoned() {
                return Poll::Ready(None);
            }
            if let Poll::Ready(reply) = call.as_mut().poll(cx) {
                return Poll::Ready(Some(reply));
            }
            self.poll_gone(cx).map(|()| None)
        })
        .await
    }

    /// Ready when the client has gone. Reads the next request meanwhile, as far as a head may be
    /// long.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.had_body && !self.regain() {
            // The request's body has the input now, and its reader notices a client that is gone.
            return Poll::Pending;
        }
        while !self.ended {
            match self.client.poll_fill(cx, &mut self.input, self.settings.header_bytes_max) {
                Poll::Ready(Ok(0)) => {
                    self.ended = true;
                    self.alarm.arm(clock::monotonic() + self.settings.half_close);
                }
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
        if !self.alarm.is_armed() {
            self.alarm.arm(clock::monotonic() + self.settings.half_close);
        }
        self.alarm.poll(cx)
    }

    /// Takes the client's bytes back from the request's body, once that is read or nobody reads it
    /// any more; what is left of it is thrown away, where it has come already.
    fn regain(&mut self) -> bool {
        let Some(mut reader) = self.client.take_left() else { return false };
        if !reader.discard() {
            // The rest is still to come, so the connection can't be kept: what follows on it is
            // this body's.
            self.client.leave(reader);
            return false;
        }
        self.input = reader.input;
        self.had_body = false;
        true
    }

    /// Sends a reply.
    async fn reply(&mut self, reply: Response, asked: Asked) -> Result<Kept, Failure> {
        let Response { status, reason, mut fields, mut body, upgrade } = reply;
        let bodiless = asked.is_head
            || status.is_informational()
            || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        let encoding = match body.length() {
            _ if bodiless => Encoding::Nothing,
            Some(length) => Encoding::Length(length),
            None if asked.version == Version::HTTP_10 => Encoding::Close,
            None => Encoding::Chunked,
        };
        match body.length() {
            _ if status == StatusCode::NO_CONTENT => drop(fields.remove(Known::ContentLength)),
            Some(length) if asked.is_head && length > 0 && !fields.has(Known::ContentLength) => {
                fields.append(Known::ContentLength, itoa::Buffer::new().format(length));
            }
            _ => {}
        }
        let unread = self.had_body && !self.regain() && self.is_left();
        let draining = self.served.pulse.is_draining();
        let closes =
            !asked.keep_alive || self.ended || draining || unread || encoding == Encoding::Close;
        self.client.set_replied(true);
        let reason = reason.as_deref();
        self.outbox.set_trailers(asked.trailers);
        http1::reply_head(
            self.outbox.begin(encoding),
            (status, reason),
            &mut fields,
            encoding,
            (asked.version, closes),
        );
        drop(fields);
        if !self.send(&mut body).await? {
            return Ok(Kept::Gone);
        }
        drop(body);
        self.outbox.rest();
        if let Some(Upgrade::Then(begin)) = upgrade {
            let stream = ClientStream::new(
                self.client.take(),
                Arc::clone(&self.served.pulse),
                self.settings.send_idle,
            );
            self.served.pulse.upgrade();
            begin(Box::new(Tunnel::new(
                std::mem::take(&mut self.input),
                stream.holding(Arc::clone(&self.place)),
            )));
            return Ok(Kept::Gone);
        }
        let unread = self.had_body && !self.regain();
        Ok(if closes || unread || self.served.pulse.is_draining() {
            Kept::Closing
        } else {
            Kept::Open
        })
    }

    /// Whether a request's body was given up before its end.
    fn is_left(&self) -> bool {
        let left = self.client.take_left();
        let is_left = left.is_some();
        if let Some(reader) = left {
            self.client.leave(reader);
        }
        is_left
    }

    /// Sends what the outbox begins and `body` goes on with; false when the client or the worker
    /// has gone meanwhile.
    async fn send(&mut self, body: &mut Body) -> Result<bool, Failure> {
        let mut progress = Progress::new(self.outbox.sent_bytes());
        poll_fn(|cx| {
            if self.served.pulse.is_abandoned() {
                return Poll::Ready(Ok(false));
            }
            match self.outbox.poll_send(cx, &mut self.client, body) {
                Poll::Ready(Ok(())) => {
                    self.alarm.disarm();
                    return Poll::Ready(Ok(true));
                }
                Poll::Ready(Err(SendError::Io(error))) => {
                    return Poll::Ready(Err(Failure::Socket(error)));
                }
                Poll::Ready(Err(SendError::Body(BodyError::Overdue))) => {
                    return Poll::Ready(Err(Failure::Overdue));
                }
                Poll::Ready(Err(SendError::Body(_) | SendError::Length)) => {
                    return Poll::Ready(Err(Failure::ReplyCut));
                }
                Poll::Pending => {}
            }
            if self.outbox.awaits_body() {
                let taken = (self.outbox.sent_bytes(), self.served.pulse.writes());
                if progress.awaits_upstream(taken) {
                    self.alarm.disarm();
                }
                return self.poll_gone(cx).map(|()| Ok(false));
            }
            body.poll_besides(cx);
            self.poll_taken(cx, &mut progress, body.deadline()).map(Err)
        })
        .await
    }

    /// Ready when the client has taken nothing for too long, or too little, or when the reply must
    /// be over: it would hold the upstream's connection and any lease for ever.
    fn poll_taken(
        &mut self,
        cx: &mut Context<'_>,
        progress: &mut Progress,
        deadline: Option<Instant>,
    ) -> Poll<Failure> {
        loop {
            // TLS has buffers of its own: it may be stuck for long and yet bring something out.
            let taken = (self.outbox.sent_bytes(), self.served.pulse.writes());
            if let Some(until) = progress.awaits_client(taken, deadline, self.settings) {
                self.alarm.arm(until);
            }
            std::task::ready!(self.alarm.poll(cx));
            if let Some(failure) =
                progress.is_over((self.outbox.sent_bytes(), self.served.pulse.writes()), deadline)
            {
                return Poll::Ready(failure);
            }
        }
    }

    /// Answers what is no request.
    async fn refuse(&mut self, status: StatusCode) -> Result<(), Failure> {
        self.had_body = true;
        let reply = self.served.handler.unreadable(status, &self.served.peer);
        let asked =
            Asked { is_head: false, version: Version::HTTP_11, keep_alive: false, trailers: false };
        // No bytes of a body are missing: there is none.
        self.reply(reply, asked).await.map(|_| ())
    }

    /// Closes so that the client can still read the last reply: closing a socket with unread bytes
    /// resets the connection, and the reset may overtake the reply, so that a 413 or 429 to an
    /// upload would be lost. nginx calls it lingering close.
    async fn close(&mut self) -> Result<End, Failure> {
        // Many clients look at the answer only when they have sent all of their upload, however
        // large it is: so the time bounds what is read, and not its size.
        let mut until = None;
        let expects_more = self.had_body || self.scan.has_begun();
        let mut shut = false;
        self.alarm.disarm();
        poll_fn(|cx| {
            if self.served.pulse.is_abandoned() {
                return Poll::Ready(());
            }
            if !shut {
                // TLS has a last word to say, and the client may not take it.
                match Pin::new(&mut self.client).poll_shutdown(cx) {
                    Poll::Ready(Ok(())) => shut = true,
                    Poll::Ready(Err(_)) => return Poll::Ready(()),
                    Poll::Pending => return self.poll_within(cx, self.settings.send_idle),
                }
                self.alarm.disarm();
            }
            while !self.ended {
                self.input.consume(usize::MAX);
                match self.client.poll_fill(cx, &mut self.input, crate::wire::PLAIN_BYTES) {
                    Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(()),
                    Poll::Ready(Ok(_)) => {
                        let now = clock::monotonic();
                        if now >= *until.get_or_insert(now + LINGER_ALL) {
                            return Poll::Ready(());
                        }
                        self.alarm.disarm();
                    }
                    Poll::Pending if until.is_none() && !expects_more => return Poll::Ready(()),
                    Poll::Pending => return self.poll_within(cx, LINGER),
                }
            }
            Poll::Ready(())
        })
        .await;
        Ok(End::Closed)
    }

    /// Ready `wait` after it was first asked.
    fn poll_within(&mut self, cx: &mut Context<'_>, wait: Duration) -> Poll<()> {
        if !self.alarm.is_armed() {
            self.alarm.arm(clock::monotonic() + wait);
        }
        self.alarm.poll(cx)
    }
}

/// What a reply needs to know of its request.
#[derive(Clone, Copy)]
struct Asked {
    is_head: bool,
    version: Version,
    keep_alive: bool,
    trailers: bool,
}

fn is_trailers(coding: &[u8]) -> bool {
    coding.trim_ascii().eq_ignore_ascii_case(b"trailers")
}
