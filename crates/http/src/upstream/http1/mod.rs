//! One HTTP/1.1 connection to an upstream: opened, used for one request at a time, and returned to
//! its pool when the reply's body has ended (`reply`). Driven by the task that awaits the reply or
//! reads its body. Knows nothing of which endpoint is chosen.
//!
//! | state | the upstream's bytes | the request's body | ends with |
//! |---|---|---|---|
//! | in the pool | none expected: any close the connection | - | close, age |
//! | sending | interim replies, the reply's head | sent as it comes | the head; `response_header`, `idle`; cut |
//! | replying | the reply's body | still sent if it has not ended | the body's end: back to the pool, unless the request's body continues |
//! | upgraded | another protocol's | - | its owner |

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use http::{Method, StatusCode};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::task::AbortHandle;

use super::connect::connect;
use super::host::Host;
use super::phase::Phase;
use super::requests::RequestPermit;
use super::stream::UpstreamStream;
use super::{Cause, Inner, Overrides, Protocol, UpstreamError};
use crate::clock;
use crate::http1::{self, Encoding, Outbox, Reader, ReplyHead, Scan, SendError};
use crate::telemetry::Label as _;
use crate::wire::{Body, BodyError, Known, PLAIN_BYTES, Request, Timer};

mod reply;

/// Maximum size of a reply's head, in bytes.
pub(super) const REPLY_HEAD_BYTES_MAX: usize = 64 << 10;
/// A connection that was idle for less than this is assumed to be open, without a check. Under load
/// that is every connection, and no server's keep-alive is that short.
pub(super) const IDLE_TRUSTED: Duration = Duration::from_millis(50);

/// An HTTP/1.1 connection. Boxed once when it is opened, so that passing it on moves a pointer.
pub(super) struct Http1Connection {
    stream: UpstreamStream,
    /// Bytes read and not passed on yet, and the reply's body in them.
    reader: Reader,
    outbox: Outbox,
    /// The request's body.
    upload: Upload,
    scan: Scan,
    /// The upstream accepts another request after this one.
    keep_alive: bool,
    /// It has answered in HTTP/1.0.
    http10: bool,
    /// An interim reply has come.
    answered: bool,
    /// The reply's deadline. The timer stays registered from request to request.
    timer: Timer,
    phase: Phase,
    /// Of the outbox, when the upstream last took no more of the request. `None`: it took all.
    sent_bytes: Option<u64>,
    pub(super) host: Arc<Host>,
    /// The index of the host's slot when it was last looked up.
    pub(super) slot: usize,
    /// When it was put into the pool.
    pub(super) idle_since: Instant,
    pub(super) upstream: Arc<Inner>,
    /// What the request's route asks instead of the upstream's settings.
    overrides: Option<Arc<Overrides>>,
    /// Held while a reply's body is under way.
    pub(super) permit: Option<RequestPermit>,
}

/// The request's body while it is sent.
enum Upload {
    Inline(Body),
    /// Sent by a task of its own: whoever reads the reply may not be polled while the client reads
    /// nothing.
    Spawned {
        task: AbortHandle,
        done: Arc<AtomicBool>,
    },
    Done,
}

/// The result of sending a request.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "the large one comes on every request")]
pub(super) enum Http1Outcome {
    /// The reply's head.
    Reply(ReplyHead),
    /// It failed, and the upstream may have seen it.
    Failed(UpstreamError),
}

impl Http1Connection {
    /// Connects, within the upstream's time to connect. `ends` and `make_room` are those of
    /// [`connect`].
    pub(super) async fn connect(
        upstream: &Arc<Inner>,
        host: &Arc<Host>,
        ends: Option<&(SocketAddr, SocketAddr)>,
        make_room: fn(),
    ) -> Result<Box<Self>, Cause> {
        let stream = connect(upstream, host, (Protocol::H1, ends), make_room).await?;
        Ok(Box::new(Self {
            stream: UpstreamStream::new(stream),
            reader: Reader::default(),
            outbox: Outbox::default(),
            upload: Upload::Done,
            scan: Scan::default(),
            keep_alive: true,
            http10: false,
            answered: false,
            timer: Timer::default(),
            phase: Phase::AwaitingClient,
            sent_bytes: None,
            host: Arc::clone(host),
            slot: 0,
            idle_since: clock::monotonic(),
            upstream: Arc::clone(upstream),
            overrides: None,
            permit: None,
        }))
    }

    /// Whether nothing has arrived on a connection on which nothing is expected. The runtime knows,
    /// so this is not a system call.
    pub(super) fn is_quiet(&mut self) -> bool {
        self.reader.input.is_empty()
            && matches!(
                self.poll_read(&mut Context::from_waker(Waker::noop()), PLAIN_BYTES),
                Poll::Pending
            )
    }

    /// Whether a connection that was idle can still be used. If the upstream has closed it, the
    /// kernel knows, but the runtime may not have looked yet: yielding makes it look.
    pub(super) async fn is_still_open(&mut self, now: Instant) -> bool {
        if now >= self.idle_since + IDLE_TRUSTED {
            tokio::task::yield_now().await;
        }
        self.is_quiet()
    }

    /// Whether another request can be sent on it. A request with a body is not sent to an upstream
    /// that has answered in HTTP/1.0: it need not understand chunks (RFC 9112, 6.1), and would read
    /// them as its next request. Many also close without notice, and the body would be lost.
    pub(super) fn accepts(&self, bodiless: bool) -> bool {
        bodiless || !self.http10
    }

    /// Whether nothing has come back since the request was begun.
    pub(super) fn is_unanswered(&self) -> bool {
        !self.answered && self.reader.input.is_empty()
    }

    /// Whether an idle connection can be kept.
    pub(super) fn is_worth_keeping(&mut self, now: Instant) -> bool {
        !self.upstream.is_closed()
            && now.saturating_duration_since(self.idle_since) < self.upstream.settings.idle
            && self.is_quiet()
    }

    /// What the exchange waits for.
    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    /// When the request was complete, if the reply is what is awaited.
    pub(super) fn awaited_since(&self) -> Option<Instant> {
        self.phase.awaited_since()
    }

    /// Writes the head of `request`, to be sent by [`poll_exchange`](Self::poll_exchange). `now` is
    /// at most a moment ago.
    pub(super) fn begin(
        &mut self,
        request: &mut Request,
        body: Body,
        overrides: Option<&Arc<Overrides>>,
        now: Instant,
    ) {
        let declares = request.fields.has(Known::ContentLength)
            || matches!(request.method, Method::POST | Method::PUT | Method::PATCH);
        let encoding = match body.length() {
            Some(0) if !declares => Encoding::NoBody,
            Some(length) => Encoding::Length(length),
            None => Encoding::Chunked,
        };
        http1::request_head(self.outbox.begin(encoding), request, encoding);
        self.upload = if body.is_nothing() { Upload::Done } else { Upload::Inline(body) };
        self.scan = Scan::default();
        self.answered = false;
        self.overrides = overrides.cloned();
        self.phase = Phase::Sending(now);
        self.sent_bytes = None;
    }

    /// Sends the request that was begun and waits for the reply's head.
    pub(super) fn poll_exchange(
        &mut self,
        request: &mut Request,
        cx: &mut Context<'_>,
    ) -> Poll<Http1Outcome> {
        if let Err(error) = self.poll_upload(cx) {
            return Poll::Ready(Http1Outcome::Failed(error));
        }
        loop {
            match self.scan.reply(self.reader.input.bytes(), &request.method) {
                Ok(Some((head, end))) => {
                    self.reader.input.consume(end);
                    self.scan = Scan::default();
                    self.answered = true;
                    match Self::check_head(head, request) {
                        Ok(None) => continue,
                        Ok(Some(head)) => return Poll::Ready(Http1Outcome::Reply(head)),
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
        Poll::Ready(Http1Outcome::Failed(UpstreamError::sent(Cause::Timeout)))
    }

    /// Checks a head. `None` if it is an interim one, which was passed on or dropped.
    fn check_head(
        mut head: ReplyHead,
        request: &Request,
    ) -> Result<Option<ReplyHead>, &'static str> {
        match head.reply.status {
            StatusCode::SWITCHING_PROTOCOLS if request.upgrade => Ok(Some(head)),
            StatusCode::SWITCHING_PROTOCOLS => Err("a switch to a protocol that was not requested"),
            // The only interim reply that tells a client anything. A 100 was sent when the body was
            // first read, if the client waited for it.
            StatusCode::EARLY_HINTS => {
                if let Some(interim) = &request.interim {
                    if let Some(filter) = &request.interim_filter {
                        filter.filter(&mut head.reply.fields);
                    }
                    interim.send(head.reply.status, &head.reply.fields);
                }
                Ok(None)
            }
            status if status.is_informational() => Ok(None),
            _ => Ok(Some(head)),
        }
    }

    fn failed(&self, cause: Cause, why: &dyn std::fmt::Display) -> Http1Outcome {
        tracing::debug!(upstream = self.upstream.settings.name, address = %self.host.address, cause = cause.label(), %why, "an upstream gave no reply");
        Http1Outcome::Failed(UpstreamError::sent(cause))
    }

    /// Sends what has come of the request's body, and notes what the exchange waits for.
    fn poll_upload(&mut self, cx: &mut Context<'_>) -> Result<(), UpstreamError> {
        let sent = match &mut self.upload {
            Upload::Inline(body) => self.outbox.poll_send(cx, &mut self.stream, body),
            Upload::Done if !self.outbox.is_empty() || !self.outbox.has_ended() => {
                self.outbox.poll_send(cx, &mut self.stream, &mut Body::empty())
            }
            Upload::Done | Upload::Spawned { .. } => return Ok(()),
        };
        match sent {
            Poll::Ready(Ok(())) => {
                self.outbox.shrink();
                self.upload = Upload::Done;
                if !matches!(self.phase, Phase::AwaitingReply(_)) {
                    let since = match (self.phase, self.sent_bytes) {
                        // All of it was there and was taken at once, which took no time.
                        (Phase::Sending(since), None) => since,
                        _ => clock::monotonic(),
                    };
                    self.phase = Phase::AwaitingReply(since);
                }
            }
            Poll::Pending => {
                let sent_bytes = Some(self.outbox.sent_bytes());
                let has_sent = std::mem::replace(&mut self.sent_bytes, sent_bytes) != sent_bytes;
                if self.outbox.awaits_body() {
                    self.phase = Phase::AwaitingClient;
                } else if has_sent || !matches!(self.phase, Phase::Sending(_)) {
                    self.phase = Phase::Sending(clock::monotonic());
                }
            }
            Poll::Ready(Err(SendError::Body(error))) => return Err(UpstreamError::body(error)),
            Poll::Ready(Err(SendError::Length)) => {
                return Err(UpstreamError::body(BodyError::Malformed));
            }
            Poll::Ready(Err(SendError::Io(error))) => {
                tracing::debug!(upstream = self.upstream.settings.name, %error, "a request could not be sent");
                return Err(UpstreamError::sent(Cause::Cut));
            }
        }
        Ok(())
    }

    /// Ready when the upstream has used up its time.
    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(deadline) = self.phase.deadline(&self.upstream, self.overrides.as_ref()) else {
            self.timer.disarm();
            return Poll::Pending;
        };
        self.timer.arm(deadline);
        self.timer.poll(cx)
    }

    /// Reads what has come. The input holds at most `most` bytes.
    fn poll_read(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<io::Result<usize>> {
        self.reader.input.poll_fill(most, |room| read(&mut self.stream, room, cx))
    }
}

/// Reads into `room`. Returns the number of bytes, 0 at the end.
fn read<S: AsyncRead + Unpin>(
    stream: &mut S,
    room: &mut [u8],
    cx: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    let mut room = ReadBuf::new(room);
    ready!(Pin::new(stream).poll_read(cx, &mut room))?;
    Poll::Ready(Ok(room.filled().len()))
}

impl Drop for Http1Connection {
    fn drop(&mut self) {
        // Once the reply is complete or given up, the rest of the request is of no use.
        if let Upload::Spawned { task, .. } = &self.upload {
            task.abort();
        }
    }
}
