//! One connection to an upstream: made, used for one request at a time, and given back to its pool when a reply's body has ended. Knows nothing of
//! which endpoint is chosen.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use http_body::Body as _;
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::connect::{Stream, connect};
use super::drive::Drive;
use super::framing;
use super::host::Host;
use super::outgoing::{Load, Outgoing, Watch};
use super::patience::Patience;
use super::pool::{self, Seat};
use super::stream::UpstreamStream;
use super::{Cause, Inner, Protocol, UpstreamError};
use crate::clock;
use crate::wire::{Alarm, End, Ending, OnEnd, Read};

/// Bytes of a reply's head, at most; hyper also takes no more than 100 fields.
pub(super) const REPLY_HEAD_BYTES_MAX: usize = 64 << 10;
/// Bytes that are read ahead of a client which takes a reply slowly, at most, besides what the kernel keeps.
pub(super) const READ_AHEAD_BYTES_MAX: usize = 64 << 10;

/// Unused for less than this, a connection is taken to be open without a look: under load that is all of them, and no server's keep-alive is so short.
pub(super) const IDLE_TRUSTED: Duration = Duration::from_millis(50);

/// A connection. Boxed once when it is made, so that handing it around moves a pointer.
pub(super) struct Link {
    sender: SendRequest<Outgoing>,
    pub(super) drive: Drive,
    /// The reply's deadline. It stays registered from request to request.
    alarm: Alarm,
    pub(super) host: Arc<Host>,
    /// The host's place among its worker's, when it was last looked up.
    pub(super) slot: usize,
    /// Since when it is in the pool.
    pub(super) idle_since: Instant,
    pub(super) upstream: Arc<Inner>,
    /// Held while a reply's body is under way.
    pub(super) seat: Option<Seat>,
}

/// What came of a request.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "all but one come once in a while, and the one must not be boxed on every request")]
pub(super) enum Sent {
    /// The reply's head.
    Reply(http::Response<Incoming>),
    /// Nothing of it was sent: here it is again, and why.
    Unsent(Cause),
    /// It was sent, and the upstream says that it has done nothing with it.
    Refused(Cause),
    /// It failed and may have been seen.
    Failed(UpstreamError),
}

impl Sent {
    /// A reply's head has come: whether it can be passed on. A 101 only where it was asked for (`upgrade`).
    pub(super) fn replied(mut reply: http::Response<Incoming>, watch: Option<&Watch>, upgrade: bool) -> Self {
        match watch.and_then(Watch::error) {
            // The upstream answered before it had all; what it answered to is not what the client sent.
            Some(error) => Self::Failed(UpstreamError::body(error.clone())),
            // What follows is another protocol, which nobody has asked for.
            None if reply.status() == http::StatusCode::SWITCHING_PROTOCOLS && !upgrade => {
                Self::Failed(UpstreamError::sent(Cause::Protocol))
            }
            None if !framing::is_clear(reply.headers_mut()) => Self::Failed(UpstreamError::sent(Cause::Protocol)),
            None => Self::Reply(reply),
        }
    }
}

impl Link {
    /// Connects, within the upstream's time.
    pub(super) async fn connect(upstream: &Arc<Inner>, host: &Arc<Host>) -> Result<Box<Self>, Cause> {
        let (sender, drive) = match connect(upstream, host, Protocol::H1).await? {
            Stream::Plain(stream) => begin(stream).await?,
            Stream::Tls(stream) => begin(stream).await?,
        };
        Ok(Box::new(Self {
            sender,
            drive,
            alarm: Alarm::default(),
            host: Arc::clone(host),
            slot: 0,
            idle_since: clock::monotonic(),
            upstream: Arc::clone(upstream),
            seat: None,
        }))
    }

    /// Whether a request may be sent: the one before is over, and the upstream has not closed.
    pub(super) fn is_ready(&self) -> bool {
        self.sender.is_ready() && !self.sender.is_closed()
    }

    /// Whether a connection that was not used for some time can still be. A close that came meanwhile is in the kernel, but the runtime may not have
    /// looked: yielding makes it look.
    pub(super) async fn is_still_open(&mut self, now: Instant) -> bool {
        if now >= self.idle_since + IDLE_TRUSTED {
            tokio::task::yield_now().await;
            self.drive.look();
        }
        self.is_ready()
    }

    /// Whether an idle connection can be kept.
    pub(super) fn is_worth_keeping(&mut self, now: Instant) -> bool {
        self.drive.look();
        !self.upstream.is_closed() && self.is_ready() && now.saturating_duration_since(self.idle_since) < self.upstream.idle
    }

    /// Sends `request` and waits for the reply's head. `now` is at most a moment ago; `upgrade`: a 101 was asked for.
    pub(super) async fn exchange(&mut self, request: &mut Load, watch: Option<&Watch>, now: Instant, upgrade: bool) -> Sent {
        let Self { sender, drive, alarm, upstream, .. } = self;
        let Some(sent) = request.take() else { return Sent::Unsent(Cause::Connect) };
        let mut patience = Patience { alarm, upstream, watch, checked: now };
        let mut answer = pin!(sender.try_send_request(sent));
        // Whoever else has a request to send does so in the same stretch, so that an upstream that is woken once finds them all: under load 1.5 us a request.
        others_first().await;
        let answer = poll_fn(|cx| match drive.poll(cx, |cx| answer.as_mut().poll(cx)) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending => patience.poll(&mut Context::from_waker(drive.waker(cx.waker()))).map(|()| None),
        });
        match answer.await {
            Some(Ok(reply)) => Sent::replied(reply, watch, upgrade),
            Some(Err(mut failed)) => {
                let cause = cause_of(failed.error());
                match (failed.take_message(), watch.and_then(Watch::error)) {
                    (Some(unsent), _) => {
                        *request = Some(unsent);
                        Sent::Unsent(cause)
                    }
                    (None, Some(error)) => Sent::Failed(UpstreamError::body(error.clone())),
                    (None, None) => {
                        tracing::debug!(error = %failed.error(), ?cause, "an upstream gave no reply");
                        Sent::Failed(UpstreamError::sent(cause))
                    }
                }
            }
            None => Sent::Failed(UpstreamError::sent(Cause::Timeout)),
        }
    }
}

/// Lets all tasks that are ready have their turn first.
async fn others_first() {
    let mut turn = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut turn, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Begins to speak HTTP/1.1 on `stream`.
async fn begin<S>(stream: S) -> Result<(SendRequest<Outgoing>, Drive), Cause>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let handshake = Builder::new()
        .max_header_size(REPLY_HEAD_BYTES_MAX)
        .max_buf_size(READ_AHEAD_BYTES_MAX)
        .handshake(TokioIo::new(UpstreamStream::new(stream)))
        .await;
    let (sender, connection) = handshake.map_err(|_| Cause::Protocol)?;
    Ok((sender, Drive::new(connection.with_upgrades())))
}

pub(super) fn cause_of(error: &hyper::Error) -> Cause {
    // hyper tells of a failed read or write only by what caused it.
    let io = std::error::Error::source(error).is_some_and(|source| source.is::<io::Error>());
    if error.is_timeout() {
        // A ping that got no answer.
        return Cause::Timeout;
    }
    if error.is_incomplete_message() || error.is_canceled() || error.is_closed() || io { Cause::Cut } else { Cause::Protocol }
}

/// A connection that speaks HTTP no more. Its place is taken for as long as whoever has the 101's body keeps that.
pub(super) struct Upgraded(pub(super) Box<Link>);

impl OnEnd for Upgraded {
    fn on_end(self: Box<Self>, _end: &End) {
        drop(self.0);
    }
}

impl OnEnd for Link {
    fn read(&mut self, incoming: &mut Incoming, cx: &mut Context<'_>) -> Option<Read> {
        let mut incoming = Pin::new(incoming);
        // What has come already comes without a turn of the connection.
        let polled = incoming.as_mut().poll_frame(&mut Context::from_waker(Waker::noop()));
        Some(if polled.is_ready() { polled } else { self.drive.poll(cx, |cx| incoming.as_mut().poll_frame(cx)) })
    }

    /// The reply's body has ended.
    fn on_end(mut self: Box<Self>, end: &End) {
        if let Some(seat) = self.seat.take() {
            self.upstream.ended(&seat, end);
        }
        // Not ready although the body is whole: the upstream closes, another protocol has followed, or the request's own body is still under way.
        if end.ending == Ending::Complete {
            pool::put(self);
        }
    }
}
