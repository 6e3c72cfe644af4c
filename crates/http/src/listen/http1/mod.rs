//! HTTP/1.1 and 1.0 on one connection. A single task reads the heads, calls the handler, drives the
//! upstream's connection and writes the replies. Knows neither how the connection was accepted nor
//! what the handler does.
//!
//! The states of a connection:
//!
//! | state | the client's bytes are | also waits for | ends with |
//! |---|---|---|---|
//! | waiting | the next head | a drain | a head; `keep_alive` or `request_header`; the client's close |
//! | calling | the request's body, read by its consumer; then the next request, up to `header_bytes` | the reply's head | the reply's head; the client's close, after `half_close` |
//! | replying | the same | the reply's body, and the client to read it | the reply's end; `send_idle` or `send_rate`; the client's close |
//! | closing | discarded | the client to read the reply | the client's close; `LINGER`, `LINGER_TOTAL` |
//!
//! A client that closes its sending side may still read (RFC 9112, 9.6), but a client that has gone
//! away looks the same. So the request goes on for `half_close`, and no longer.

mod close;

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode, Version};

use super::client::Client;
use super::context::ConnectionContext;
use super::error::ConnectionError;
use super::permits::Permit;
use super::progress::Progress;
use super::stream::ClientStream;
use super::transport::Transport;
use super::upgraded::UpgradedStream;
use super::upload::Upload;
use super::{ConnectionSettings, Handler};
use crate::clock;
use crate::http1::{
    self, Encoding, Framing, HTTP2_PREFACE, HeadError, Outbox, Reader, RequestHead, Scan, SendError,
};
use crate::wire::{Body, BodyError, Buffer, Known, Request, Response, Timer, Upgrade};

/// The start of a TLS hello: a handshake record, version 3.
const TLS_HELLO: [u8; 2] = [22, 3];
/// A connection that was opened or used this recently when a drain begins may send one more request
/// for as long: the client may just be about to. One that was idle for longer is closed at once.
pub(super) const DRAIN_GRACE: Duration = Duration::from_secs(1);

/// How often to check whether a client has left whose request's body is not being read.
const DEPARTURE_EVERY: Duration = Duration::from_millis(500);

/// How HTTP/1 ended on a connection.
pub(super) enum Http1End {
    /// The connection was closed, or an upgrade has taken its stream.
    Closed,
    /// The client speaks HTTP/2: its stream, and the bytes that were already read from it.
    Http2(Transport, Bytes),
}

/// Serves requests until the client, a timeout or a drain closes the connection.
///
/// # Errors
/// Mostly a client that went away or stalled.
pub(super) async fn serve<H: Handler>(
    transport: Transport,
    context: &Arc<ConnectionContext<H>>,
    permit: Arc<Permit>,
    settings: &ConnectionSettings,
) -> Result<Http1End, ConnectionError> {
    let mut connection = Connection {
        client: Client::new(transport),
        context,
        permit,
        settings,
        input: Buffer::default(),
        scan: Scan::default(),
        outbox: Outbox::default(),
        timer: Timer::default(),
        departure: Timer::default(),
        is_departing: false,
        is_first: true,
        accepted_in_drain: context.state.is_draining(),
        waiting_since: clock::monotonic(),
        last_chance: false,
        read_closed: false,
        body_pending: false,
    };
    loop {
        match connection.next().await? {
            ClientInput::Request(head) => match connection.exchange(head).await? {
                ConnectionFate::KeepAlive => {}
                ConnectionFate::Close => return connection.close().await,
                ConnectionFate::Gone => return Ok(Http1End::Closed),
            },
            ClientInput::Http2 => {
                let read_ahead = Bytes::copy_from_slice(connection.input.bytes());
                return Ok(Http1End::Http2(connection.client.take_transport(), read_ahead));
            }
            ClientInput::Rejected(status, error) => {
                connection.reject(status, error.why()).await?;
                let _ = connection.close().await;
                return Err(error);
            }
            ClientInput::Nothing => return connection.close().await,
            ClientInput::Aborted => return Ok(Http1End::Closed),
        }
    }
}

/// The state of one connection.
struct Connection<'a, H> {
    client: Client,
    context: &'a Arc<ConnectionContext<H>>,
    permit: Arc<Permit>,
    settings: &'a ConnectionSettings,
    /// Bytes that were read but not used yet.
    input: Buffer,
    scan: Scan,
    outbox: Outbox,
    /// The timer of whichever timeout applies in the current state.
    timer: Timer,
    /// Until the next check for a client that has left while its request's body is unread.
    departure: Timer,
    /// It has closed its side.
    is_departing: bool,
    /// No request has arrived yet.
    is_first: bool,
    /// Accepted after the drain had begun: one request is still served.
    accepted_in_drain: bool,
    /// When the wait for the next request began, once it has.
    waiting_since: Instant,
    /// A drain has begun, and [`DRAIN_GRACE`] runs.
    last_chance: bool,
    /// The client has closed its sending side.
    read_closed: bool,
    /// The last request has a body that was not read to its end: more of it may arrive when we
    /// close.
    body_pending: bool,
}

/// What arrived from the client.
#[allow(clippy::large_enum_variant, reason = "the large one comes on every request")]
enum ClientInput {
    Request(RequestHead),
    Http2,
    /// Bytes that are not a valid request, and the status to reply with.
    Rejected(StatusCode, ConnectionError),
    /// The client closed the connection, or nothing more can be expected on it.
    Nothing,
    Aborted,
}

/// What happens to the connection after a reply.
enum ConnectionFate {
    KeepAlive,
    Close,
    /// The client is gone, or an upgrade has taken its socket.
    Gone,
}

impl<H: Handler> Connection<'_, H> {
    /// Waits for a request's head.
    async fn next(&mut self) -> Result<ClientInput, ConnectionError> {
        self.scan = Scan::default();
        let mut begun_before = None;
        poll_fn(|cx| self.poll_next(cx, &mut begun_before)).await
    }

    /// `begun_before` is whether a head had begun when the timer was armed; `None` before that.
    fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
        begun_before: &mut Option<bool>,
    ) -> Poll<Result<ClientInput, ConnectionError>> {
        let state = &self.context.state;
        state.set_waker(cx.waker());
        if state.is_aborted() {
            return Poll::Ready(Ok(ClientInput::Aborted));
        }
        loop {
            if let Some(received) = self.parse_head() {
                self.context.state.mark_busy();
                self.timer.disarm();
                return Poll::Ready(Ok(received));
            }
            if self.read_closed {
                return Poll::Ready(self.closed_early());
            }
            match self.client.poll_fill(cx, &mut self.input, self.settings.header_bytes_max) {
                Poll::Ready(Ok(0)) => self.read_closed = true,
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(ConnectionError::Socket(error))),
                Poll::Pending => break,
            }
        }
        let begun = self.scan.has_begun();
        if !begun && self.context.state.is_draining() {
            let now = clock::monotonic();
            let was_idle = begun_before.is_some()
                && !self.last_chance
                && now.saturating_duration_since(self.waiting_since) >= DRAIN_GRACE;
            if self.context.state.is_reclaimed() || was_idle && !self.accepted_in_drain {
                return Poll::Ready(Ok(ClientInput::Nothing));
            }
            if !self.accepted_in_drain && !self.last_chance {
                self.last_chance = true;
                *begun_before = Some(begun);
                self.timer.arm(now + DRAIN_GRACE);
            }
        }
        if *begun_before != Some(begun) {
            *begun_before = Some(begun);
            let now = clock::recent();
            if begun {
                self.context.state.mark_busy();
            } else {
                self.context.state.mark_idle(now);
                self.waiting_since = now;
            }
            // A new connection gets the shorter time limit until its first request.
            let wait = if begun || self.is_first {
                self.settings.request_header
            } else {
                self.settings.keep_alive
            };
            self.timer.arm(now + wait);
        }
        self.timer.poll(cx).map(|()| {
            if begun || self.is_first && !self.last_chance {
                Err(ConnectionError::HeadTimeout)
            } else {
                Ok(ClientInput::Nothing)
            }
        })
    }

    /// Parses what has arrived. `None` if more bytes are needed.
    fn parse_head(&mut self) -> Option<ClientInput> {
        let bytes = self.input.bytes();
        if bytes.is_empty() {
            return None;
        }
        if self.is_first {
            if bytes.starts_with(&TLS_HELLO) {
                return Some(ClientInput::Rejected(
                    StatusCode::BAD_REQUEST,
                    ConnectionError::TlsHello,
                ));
            }
            if bytes.starts_with(HTTP2_PREFACE) {
                return Some(ClientInput::Http2);
            }
            if HTTP2_PREFACE.starts_with(bytes) {
                return None;
            }
        }
        let reject = |error: HeadError| {
            let cause = match error {
                HeadError::TooManyFields => ConnectionError::HeadTooLarge,
                HeadError::Malformed(_) | HeadError::UnknownCoding => {
                    ConnectionError::Malformed(error.why())
                }
            };
            ClientInput::Rejected(error.status(), cause)
        };
        match self.scan.request(bytes) {
            // What follows a body may be in a buffer that is larger than a head may be.
            Ok(Some((_, end))) if end > self.settings.header_bytes_max => {
                Some(ClientInput::Rejected(
                    StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                    ConnectionError::HeadTooLarge,
                ))
            }
            Ok(Some((head, end))) => {
                self.input.consume(end);
                Some(ClientInput::Request(head))
            }
            Ok(None) if bytes.len() < self.settings.header_bytes_max => None,
            Ok(None) => Some(ClientInput::Rejected(
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                ConnectionError::HeadTooLarge,
            )),
            Err(error) => Some(reject(error)),
        }
    }

    fn closed_early(&self) -> Result<ClientInput, ConnectionError> {
        if self.scan.has_begun() {
            Err(ConnectionError::Socket(io::ErrorKind::UnexpectedEof.into()))
        } else {
            Ok(ClientInput::Nothing)
        }
    }

    /// Serves one request.
    async fn exchange(&mut self, head: RequestHead) -> Result<ConnectionFate, ConnectionError> {
        let RequestHead { mut request, framing, keep_alive, expects_continue } = head;
        self.is_first = false;
        self.body_pending = framing != Framing::Length(0);
        // Trailers are sent only to clients that announce support for them (RFC 9110, 6.5.1).
        let trailers = request
            .fields
            .get_all(Known::Te)
            .any(|value| value.split(|byte| *byte == b',').any(is_trailers));
        let info = RequestInfo {
            is_head: request.method == Method::HEAD,
            version: request.version,
            keep_alive,
            trailers,
        };
        self.client.set_replied(false);
        if self.body_pending {
            self.departure.disarm();
            self.is_departing = false;
            self.client.begin_body();
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
            Some(reply) => self.reply(reply, info).await,
            None => Ok(ConnectionFate::Gone),
        }
    }

    /// Calls the handler. `None` if the client went away.
    async fn call(&mut self, request: Request) -> Option<Response> {
        let context = self.context;
        let mut call = pin!(context.handler.call(request, &context.peer));
        poll_fn(|cx| {
            if context.state.is_aborted() {
                return Poll::Ready(None);
            }
            if let Poll::Ready(reply) = call.as_mut().poll(cx) {
                return Poll::Ready(Some(reply));
            }
            self.poll_client_gone(cx).map(|()| None)
        })
        .await
    }

    /// Ready when the client has gone away. Meanwhile reads the next request, up to the size of a
    /// head.
    fn poll_client_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.body_pending && !self.reclaim_input() {
            return self.poll_departed(cx);
        }
        while !self.read_closed {
            match self.client.poll_fill(cx, &mut self.input, self.settings.header_bytes_max) {
                Poll::Ready(Ok(0)) => {
                    self.read_closed = true;
                    self.timer.arm(clock::monotonic() + self.settings.half_close);
                }
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
        if !self.timer.is_armed() {
            self.timer.arm(clock::monotonic() + self.settings.half_close);
        }
        self.timer.poll(cx)
    }

    /// Ready when the client has gone away, while the request's body owns the input. The reader of
    /// the body notices that, but nobody reads it while the request waits for its turn, and reading
    /// its end does not wake this task. So it is looked for at intervals.
    fn poll_departed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if !self.departure.is_armed() {
                self.departure.arm(clock::monotonic() + DEPARTURE_EVERY);
            }
            ready!(self.departure.poll(cx));
            self.departure.disarm();
            if self.reclaim_input() {
                return self.poll_client_gone(cx);
            }
            let has_left = self.client.has_left_unread();
            if has_left && self.is_departing {
                return Poll::Ready(());
            }
            self.is_departing = has_left;
            if has_left {
                self.departure.arm(clock::monotonic() + self.settings.half_close);
            }
        }
    }

    /// Takes the input back from the request's body, once it was read to its end or dropped. The
    /// part of a dropped body that has arrived is discarded. Returns false while more of it is to
    /// come.
    fn reclaim_input(&mut self) -> bool {
        let Some(mut reader) = self.client.take_returned() else { return false };
        if !reader.discard() {
            // The rest of the body has not arrived. The connection can't be reused, since the next
            // bytes on it belong to this body.
            self.client.give_back(reader);
            return false;
        }
        self.input = reader.input;
        self.body_pending = false;
        true
    }

    /// Sends a reply.
    async fn reply(
        &mut self,
        reply: Response,
        info: RequestInfo,
    ) -> Result<ConnectionFate, ConnectionError> {
        let Response { status, reason, mut fields, mut body, upgrade } = reply;
        let bodiless = info.is_head
            || status.is_informational()
            || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        let encoding = match body.length() {
            _ if bodiless => Encoding::NoBody,
            Some(length) => Encoding::Length(length),
            None if info.version == Version::HTTP_10 => Encoding::Close,
            None => Encoding::Chunked,
        };
        match body.length() {
            _ if status == StatusCode::NO_CONTENT => drop(fields.remove(Known::ContentLength)),
            Some(length) if info.is_head && length > 0 && !fields.has(Known::ContentLength) => {
                fields.append(Known::ContentLength, itoa::Buffer::new().format(length));
            }
            _ => {}
        }
        let unread = self.body_pending && !self.reclaim_input() && self.is_body_dropped();
        let draining = self.context.state.is_draining();
        let closes = !info.keep_alive
            || self.read_closed
            || draining
            || unread
            || encoding == Encoding::Close;
        self.client.set_replied(true);
        let reason = reason.as_deref();
        self.outbox.set_trailers(info.trailers);
        http1::reply_head(
            self.outbox.begin(encoding),
            (status, reason),
            &mut fields,
            encoding,
            (info.version, closes),
        );
        drop(fields);
        let shows_cut = encoding != Encoding::Close;
        let sent = self.send(&mut body, shows_cut).await;
        drop(body);
        match sent {
            Ok(true) => {}
            Ok(false) => return Ok(ConnectionFate::Gone),
            Err(error) => {
                // What the client was sent of it would be lost if it is still sending: see `close`.
                let is_cut =
                    matches!(error, ConnectionError::ReplyCut | ConnectionError::RequestTimeout);
                if shows_cut && is_cut && self.outbox.is_empty() {
                    // Or has sent all of it meanwhile.
                    let _ = self.body_pending && self.reclaim_input();
                    self.close().await?;
                }
                return Err(error);
            }
        }
        self.outbox.shrink();
        if let Some(Upgrade::Callback(begin)) = upgrade {
            let stream = ClientStream::new(
                self.client.take_transport(),
                Arc::clone(&self.context.state),
                self.settings.send_idle,
            );
            self.context.state.mark_upgraded();
            begin(Box::new(UpgradedStream::new(
                std::mem::take(&mut self.input),
                stream.with_permit(Arc::clone(&self.permit)),
            )));
            return Ok(ConnectionFate::Gone);
        }
        let unread = self.body_pending && !self.reclaim_input();
        // If a drain has begun since the reply's head, the client does not know yet: it may send
        // one more request.
        Ok(if closes || unread { ConnectionFate::Close } else { ConnectionFate::KeepAlive })
    }

    /// Whether the request's body was dropped before its end.
    fn is_body_dropped(&self) -> bool {
        let reader = self.client.take_returned();
        let is_dropped = reader.is_some();
        if let Some(reader) = reader {
            self.client.give_back(reader);
        }
        is_dropped
    }

    /// Sends what the outbox holds, then `body`; of one that fails what came before that, if the
    /// client then sees that the reply is cut (`shows_cut`). Returns false if the client went away
    /// or the connection was aborted.
    async fn send(&mut self, body: &mut Body, shows_cut: bool) -> Result<bool, ConnectionError> {
        let (mut progress, mut cut) = (Progress::new(self.outbox.sent_bytes()), None);
        poll_fn(|cx| {
            if self.context.state.is_aborted() {
                return Poll::Ready(Ok(false));
            }
            if cut.is_none() {
                match self.outbox.poll_send(cx, &mut self.client, body) {
                    Poll::Ready(Ok(())) => {
                        self.timer.disarm();
                        return Poll::Ready(Ok(true));
                    }
                    Poll::Ready(Err(SendError::Io(error))) => {
                        return Poll::Ready(Err(ConnectionError::Socket(error)));
                    }
                    Poll::Ready(Err(SendError::Body(BodyError::Overdue))) => {
                        cut = Some(ConnectionError::RequestTimeout);
                    }
                    Poll::Ready(Err(SendError::Body(_) | SendError::Length)) => {
                        cut = Some(ConnectionError::ReplyCut);
                    }
                    Poll::Pending => {}
                }
            }
            if cut.is_some() {
                if shows_cut && self.outbox.poll_flush(cx, &mut self.client).is_pending() {
                    return self.poll_send_timeout(cx, &mut progress, body.deadline()).map(Err);
                }
                return Poll::Ready(cut.take().map_or(Ok(false), Err));
            }
            if self.outbox.awaits_body() {
                let taken = (self.outbox.sent_bytes(), self.context.state.writes());
                if progress.awaits_upstream(taken) {
                    self.timer.disarm();
                }
                return self.poll_client_gone(cx).map(|()| Ok(false));
            }
            body.poll_background(cx);
            self.poll_send_timeout(cx, &mut progress, body.deadline()).map(Err)
        })
        .await
    }

    /// Ready when the client has stalled, reads too slowly, or the request's deadline has passed.
    /// Without a limit the reply would hold the upstream's connection and any lease forever.
    fn poll_send_timeout(
        &mut self,
        cx: &mut Context<'_>,
        progress: &mut Progress,
        deadline: Option<Instant>,
    ) -> Poll<ConnectionError> {
        loop {
            // TLS buffers data: a write may be pending for long while bytes still go out below.
            let taken = (self.outbox.sent_bytes(), self.context.state.writes());
            if let Some(until) = progress.awaits_client(taken, deadline, self.settings) {
                self.timer.arm(until);
            }
            ready!(self.timer.poll(cx));
            if let Some(failure) =
                progress.is_over((self.outbox.sent_bytes(), self.context.state.writes()), deadline)
            {
                return Poll::Ready(failure);
            }
        }
    }

    /// Replies to bytes that are not a valid request.
    async fn reject(
        &mut self,
        status: StatusCode,
        why: &'static str,
    ) -> Result<(), ConnectionError> {
        self.body_pending = true;
        let reply = self.context.handler.unreadable(status, why, &self.context.peer);
        let info = RequestInfo {
            is_head: false,
            version: Version::HTTP_11,
            keep_alive: false,
            trailers: false,
        };
        // The connection is closed in either case.
        self.reply(reply, info).await.map(|_| ())
    }
}

/// What the reply depends on in its request.
#[derive(Clone, Copy)]
struct RequestInfo {
    is_head: bool,
    version: Version,
    keep_alive: bool,
    trailers: bool,
}

fn is_trailers(coding: &[u8]) -> bool {
    coding.trim_ascii().eq_ignore_ascii_case(b"trailers")
}
