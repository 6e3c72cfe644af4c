//! One HTTP/1.1 connection to an upstream: made, used for one request at a time, and given back to
//! its pool when a reply's body has ended. Driven by whoever waits for the reply or reads its body.
//! Knows nothing of which endpoint is chosen.
//!
//! | state | the upstream's bytes | the request's body | ends with |
//! |---|---|---|---|
//! | in the pool | none may come: any close it | - | close, age |
//! | sending | interim replies, the reply's head | sent as it comes | the head; `response_header`, `idle`; cut |
//! | replying | the reply's body | still sent, where it has not ended | the body's end: back to the pool, unless the request's body goes on |
//! | upgraded | another protocol's | - | its owner |

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use http::{HeaderMap, Method, StatusCode, Version};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::AbortHandle;

use super::connect::connect;
use super::host::Host;
use super::pool::{self, Seat};
use super::stream::UpstreamStream;
use super::{Cause, Inner, Protocol, UpstreamError};
use crate::clock;
use crate::http1::{self, Encoding, Outbox, Reader, ReplyHead, Scan, SendError};
use crate::wire::{
    Body, BodyEnd, BodyError, BodyOutcome, Known, PLAIN_BYTES, Request, Response, Source, Timer,
    delegate_write,
};

/// Bytes of a reply's head, at most.
pub(super) const REPLY_HEAD_BYTES_MAX: usize = 64 << 10;
/// Unused for less than this, a connection is taken to be open without a look: under load that is
/// all of them, and no server's keep-alive is so short.
pub(super) const IDLE_TRUSTED: Duration = Duration::from_millis(50);

/// A connection. Boxed once when it is made, so that handing it around moves a pointer.
pub(super) struct Link {
    stream: UpstreamStream,
    /// What was read and not passed on, and the reply's body in it.
    reader: Reader,
    outbox: Outbox,
    /// The request's body.
    upload: Upload,
    scan: Scan,
    /// The upstream takes another request after this one.
    keep_alive: bool,
    /// It has answered in HTTP/1.0.
    old: bool,
    /// Something of the reply has come: an interim one.
    answered: bool,
    /// The reply's deadline. It stays registered from request to request.
    alarm: Timer,
    turn: Turn,
    pub(super) host: Arc<Host>,
    /// The host's place among its worker's, when it was last looked up.
    pub(super) slot: usize,
    /// Since when it is in the pool.
    pub(super) idle_since: Instant,
    pub(super) upstream: Arc<Inner>,
    /// Held while a reply's body is under way.
    pub(super) seat: Option<Seat>,
}

/// The request's body, while it is sent.
enum Upload {
    Here(Body),
    /// By a task of its own, since whoever reads the reply may not be polled while its client takes
    /// nothing.
    Elsewhere {
        task: AbortHandle,
        done: Arc<AtomicBool>,
    },
    Done,
}

/// Who is waited for, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// The upstream, to take the next piece.
    Taking(Instant),
    /// The client, to send the next piece; its own idle timeout watches over it.
    Client,
    /// The upstream, to answer.
    Answering(Instant),
}

/// What came of a request.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "the large one comes on every request")]
pub(super) enum Sent {
    /// The reply's head.
    Reply(ReplyHead),
    /// It failed and may have been seen.
    Failed(UpstreamError),
}

impl Link {
    /// Connects, within the upstream's time.
    pub(super) async fn connect(
        upstream: &Arc<Inner>,
        host: &Arc<Host>,
    ) -> Result<Box<Self>, Cause> {
        let stream = connect(upstream, host, Protocol::H1).await?;
        Ok(Box::new(Self {
            stream: UpstreamStream::new(stream),
            reader: Reader::default(),
            outbox: Outbox::default(),
            upload: Upload::Done,
            scan: Scan::default(),
            keep_alive: true,
            old: false,
            answered: false,
            alarm: Timer::default(),
            turn: Turn::Client,
            host: Arc::clone(host),
            slot: 0,
            idle_since: clock::monotonic(),
            upstream: Arc::clone(upstream),
            seat: None,
        }))
    }

    /// Whether nothing has come on a connection from which nothing may come now. The runtime knows,
    /// so that this is no call to the system.
    pub(super) fn is_quiet(&mut self) -> bool {
        self.reader.input.is_empty()
            && matches!(
                self.poll_read(&mut Context::from_waker(Waker::noop()), PLAIN_BYTES),
                Poll::Pending
            )
    }

    /// Whether a connection that was not used for some time can still be. A close that came
    /// meanwhile is in the kernel, but the runtime may not have looked: yielding makes it look.
    pub(super) async fn is_still_open(&mut self, now: Instant) -> bool {
        if now >= self.idle_since + IDLE_TRUSTED {
            tokio::task::yield_now().await;
        }
        self.is_quiet()
    }

    /// Whether another request can be sent on it. One with a body is not sent to an upstream that
    /// has answered in HTTP/1.0: it need not know chunks (RFC 9112, 6.1), and would read them as
    /// its next request; and many close without a word, so that the body would be lost.
    pub(super) fn takes(&self, bodiless: bool) -> bool {
        bodiless || !self.old
    }

    /// Whether nothing has come since the request was begun.
    pub(super) fn is_unanswered(&self) -> bool {
        !self.answered && self.reader.input.is_empty()
    }

    /// Whether an idle connection can be kept.
    pub(super) fn is_worth_keeping(&mut self, now: Instant) -> bool {
        !self.upstream.is_closed()
            && now.saturating_duration_since(self.idle_since) < self.upstream.idle
            && self.is_quiet()
    }

    /// Writes the head of `request`, to be sent by [`poll_exchange`](Self::poll_exchange). `now` is
    /// at most a moment ago.
    pub(super) fn begin(&mut self, request: &mut Request, body: Body, now: Instant) {
        let declares = request.fields.has(Known::ContentLength)
            || matches!(request.method, Method::POST | Method::PUT | Method::PATCH);
        let encoding = match body.length() {
            Some(0) if !declares => Encoding::NoBody,
            Some(length) => Encoding::Length(length),
            None => Encoding::Chunked,
        };
        http1::request_head(self.outbox.begin(encoding), request, encoding);
        self.upload = if body.is_nothing() { Upload::Done } else { Upload::Here(body) };
        self.scan = Scan::default();
        self.answered = false;
        self.turn = Turn::Taking(now);
    }

    /// Sends the request that was begun, and waits for the reply's head.
    pub(super) fn poll_exchange(
        &mut self,
        request: &mut Request,
        cx: &mut Context<'_>,
    ) -> Poll<Sent> {
        if let Err(error) = self.poll_upload(cx) {
            return Poll::Ready(Sent::Failed(error));
        }
        loop {
            match self.scan.reply(self.reader.input.bytes(), &request.method) {
                Ok(Some((head, end))) => {
                    self.reader.input.consume(end);
                    self.scan = Scan::default();
                    self.answered = true;
                    match Self::head(head, request) {
                        Ok(None) => continue,
                        Ok(Some(head)) => return Poll::Ready(Sent::Reply(head)),
                        Err(why) => return Poll::Ready(self.failed(Cause::Protocol, &why)),
                    }
                }
                Ok(None) if self.reader.input.len() >= REPLY_HEAD_BYTES_MAX => {
                    return Poll::Ready(self.failed(Cause::Protocol, &"a head without an end"));
                }
                Ok(None) => {}
                Err(refused) => return Poll::Ready(self.failed(Cause::Protocol, &refused)),
            }
            match self.poll_read(cx, REPLY_HEAD_BYTES_MAX) {
                Poll::Ready(Ok(0)) => {
                    return Poll::Ready(self.failed(Cause::Cut, &"closed before its reply"));
                }
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(self.failed(Cause::Cut, &error)),
                Poll::Pending => break,
            }
        }
        ready!(self.poll_deadline(cx));
        Poll::Ready(Sent::Failed(UpstreamError::sent(Cause::Timeout)))
    }

    /// Looks at a head; none where it is an interim one, which was passed on or left out.
    fn head(head: ReplyHead, request: &Request) -> Result<Option<ReplyHead>, &'static str> {
        match head.reply.status {
            StatusCode::SWITCHING_PROTOCOLS if request.upgrade => Ok(Some(head)),
            StatusCode::SWITCHING_PROTOCOLS => Err("another protocol, which nobody has asked for"),
            // The only one that says anything to a client: a 100 was sent when the body was wanted,
            // if the client waited for it.
            StatusCode::EARLY_HINTS => {
                if let Some(interim) = &request.interim {
                    interim.send(head.reply.status, &head.reply.fields);
                }
                Ok(None)
            }
            status if status.is_informational() => Ok(None),
            _ => Ok(Some(head)),
        }
    }

    fn failed(&self, cause: Cause, why: &dyn std::fmt::Display) -> Sent {
        tracing::debug!(upstream = self.upstream.name, address = %self.host.address, ?cause, %why, "an upstream gave no reply");
        Sent::Failed(UpstreamError::sent(cause))
    }

    /// Sends what has come of the request's body, and notes who is waited for.
    fn poll_upload(&mut self, cx: &mut Context<'_>) -> Result<(), UpstreamError> {
        let sent = match &mut self.upload {
            Upload::Here(body) => self.outbox.poll_send(cx, &mut self.stream, body),
            Upload::Done if !self.outbox.is_empty() || !self.outbox.has_ended() => {
                self.outbox.poll_send(cx, &mut self.stream, &mut Body::empty())
            }
            Upload::Done | Upload::Elsewhere { .. } => return Ok(()),
        };
        match sent {
            Poll::Ready(Ok(())) => {
                self.outbox.shrink();
                self.upload = Upload::Done;
                if !matches!(self.turn, Turn::Answering(_)) {
                    // A body that was there at once took no time.
                    let since = if let Turn::Taking(since) = self.turn {
                        since
                    } else {
                        clock::monotonic()
                    };
                    self.turn = Turn::Answering(since);
                }
            }
            Poll::Pending if self.outbox.awaits_body() => self.turn = Turn::Client,
            Poll::Pending => {
                if !matches!(self.turn, Turn::Taking(_)) {
                    self.turn = Turn::Taking(clock::monotonic());
                }
            }
            Poll::Ready(Err(SendError::Body(error))) => return Err(UpstreamError::body(error)),
            Poll::Ready(Err(SendError::Length)) => {
                return Err(UpstreamError::body(BodyError::Malformed));
            }
            Poll::Ready(Err(SendError::Io(error))) => {
                tracing::debug!(upstream = self.upstream.name, %error, "a request could not be sent");
                return Err(UpstreamError::sent(Cause::Cut));
            }
        }
        Ok(())
    }

    /// Ready when the upstream has used up its time.
    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.turn {
            Turn::Client => {
                self.alarm.disarm();
                return Poll::Pending;
            }
            Turn::Answering(since) => self.alarm.arm(since + self.upstream.response_header),
            Turn::Taking(since) => self.alarm.arm(since + self.upstream.idle),
        }
        self.alarm.poll(cx)
    }

    /// Reads what has come, so that the input takes up to `most` bytes.
    fn poll_read(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<io::Result<usize>> {
        self.reader.input.poll_fill(most, |room| read(&mut self.stream, room, cx))
    }

    /// The reply as the proxy gets it, its body with the connection. `lent`: the request's body
    /// comes from a connection that is driven with the reply's.
    pub(super) fn reply(mut self: Box<Self>, head: ReplyHead, seat: Seat, lent: bool) -> Response {
        let ReplyHead { mut reply, framing, keep_alive, version } = head;
        self.keep_alive = keep_alive;
        self.old = version == Version::HTTP_10;
        self.reader.begin(framing);
        self.alarm.disarm();
        if reply.status == StatusCode::SWITCHING_PROTOCOLS {
            self.seat = Some(seat);
            reply.upgrade = Some(crate::wire::Upgrade::Stream(Box::new(Upgraded(self))));
            return reply;
        }
        if self.reader.is_end() {
            drop(seat);
            self.put();
            return reply;
        }
        if !lent {
            self.upload_elsewhere();
        }
        self.seat = Some(seat);
        let idle = self.upstream.idle;
        reply.body = Body::source(self).idle_timeout(idle);
        reply
    }

    /// Lets the rest of the request's body be sent by a task of its own.
    fn upload_elsewhere(&mut self) {
        let body = match std::mem::replace(&mut self.upload, Upload::Done) {
            Upload::Here(body) => body,
            other => {
                self.upload = other;
                return;
            }
        };
        let done = Arc::new(AtomicBool::new(false));
        let (mut outbox, mut stream) = (std::mem::take(&mut self.outbox), self.stream.share());
        let (mut body, told) = (body, Arc::clone(&done));
        let task = tokio::spawn(async move {
            let sent =
                std::future::poll_fn(|cx| outbox.poll_send(cx, &mut stream, &mut body)).await;
            told.store(sent.is_ok(), Ordering::Release);
        });
        self.upload = Upload::Elsewhere { task: task.abort_handle(), done };
    }

    /// Keeps the connection for the next request, where it can take one: the request is sent, and
    /// nothing follows the reply.
    fn put(mut self: Box<Self>) {
        let sent = match &self.upload {
            Upload::Done => self.outbox.is_empty() && self.outbox.has_ended(),
            Upload::Elsewhere { done, .. } => done.load(Ordering::Acquire),
            Upload::Here(_) => false,
        };
        if sent && self.keep_alive && self.reader.input.is_empty() {
            self.upload = Upload::Done;
            self.reader.input.release_if_empty();
            pool::put(self);
        }
    }
}

/// Reads into `room`: the number of bytes, 0 at the end.
fn read<S: AsyncRead + Unpin>(
    stream: &mut S,
    room: &mut [u8],
    cx: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    let mut room = ReadBuf::new(room);
    ready!(Pin::new(stream).poll_read(cx, &mut room))?;
    Poll::Ready(Ok(room.filled().len()))
}

impl Source for Link {
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
        if matches!(self.upload, Upload::Here(_)) && self.poll_upload(cx).is_err() {
            // The reply is what counts now; the connection is not used again, since the request was
            // not whole.
            self.upload = Upload::Done;
            self.keep_alive = false;
        }
    }

    /// The reply's body has ended.
    fn finish(mut self: Box<Self>, end: &BodyEnd) {
        if let Some(seat) = self.seat.take() {
            self.upstream.ended(&seat, end);
        }
        if end.outcome == BodyOutcome::Complete {
            self.put();
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Nobody wants the rest of a request whose reply is whole or given up.
        if let Upload::Elsewhere { task, .. } = &self.upload {
            task.abort();
        }
    }
}

/// A connection that speaks HTTP no more. Its place is taken for as long as it lives.
struct Upgraded(Box<Link>);

impl AsyncRead for Upgraded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let link = &mut *self.0;
        if link.reader.input.is_empty() {
            link.reader.input.release_if_empty();
            return Pin::new(&mut link.stream).poll_read(cx, buf);
        }
        let ahead = link.reader.input.bytes();
        let bytes = ahead.len().min(buf.remaining());
        buf.put_slice(ahead.get(..bytes).unwrap_or_default());
        link.reader.input.consume(bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Upgraded {
    delegate_write! { this => this.0.stream }
}
