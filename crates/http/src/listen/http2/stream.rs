//! One stream of an HTTP/2 connection, from its request to the end of its reply, in a task of its
//! own. Knows nothing about the connection's other streams.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::header::DATE;
use http::{Method, StatusCode};
use http_body::Body as _;

use super::super::Handler;
use super::super::context::ConnectionContext;
use super::reply::ReplySender;
use super::shared::Shared;
use super::unsent::Piece;
use super::{STREAM_WINDOW_BYTES, tunnel};
use crate::clock;
use crate::http1;
use crate::wire::{
    Body, Fields, InterimSender, Known, KnownSet, Request, RequestStream, Response, Timer,
    declared_length, is_padded,
};

/// The message to a client whose field has blanks around its value.
const PADDED: &str = "a header field's value begins or ends with a blank";
/// Maximum bytes of the interim replies to one request. Further ones are dropped: they may wait
/// for a client that reads nothing.
const INTERIM_BYTES_MAX: usize = 16 << 10;
/// What a field counts for besides its name and value (RFC 9113, 6.5.2).
const FIELD_OVERHEAD_BYTES: usize = 32;
/// How long the end of a body is waited for that a reply does not have.
const END_WAIT: Duration = Duration::from_secs(1);
/// Starts the tasks of a connection's streams on its worker.
pub(super) struct Streams<H> {
    context: Arc<ConnectionContext<H>>,
    pub(super) shared: Arc<Shared>,
}

impl<H: Handler> Streams<H> {
    pub(super) fn new(context: Arc<ConnectionContext<H>>, shared: Arc<Shared>) -> Self {
        Self { context, shared }
    }

    /// Answers a request.
    pub(super) fn begin(&self, request: http::Request<RecvStream>, replier: SendResponse<Piece>) {
        self.shared.state.stream_opened();
        let open = OpenStream(Arc::clone(&self.shared));
        let replier = Arc::new(Replier::new(replier));
        // Boxed: a task is moved when it is started and when it has ended, and what answers a
        // request is kilobytes.
        let answer = Box::pin(answer(request, Arc::clone(&self.context), Arc::clone(&replier)));
        let phase = Phase::Answering { answer, replier: OwnedReplier(replier) };
        tokio::spawn(StreamTask { phase, open });
    }
}

/// Keeps the connection informed until the stream's task has ended.
struct OpenStream(Arc<Shared>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.state.stream_ended();
    }
}

/// The task of one stream. When it is dropped, so is the stream, and h2 resets it if its reply has
/// not ended.
struct StreamTask<A> {
    phase: Phase<A>,
    open: OpenStream,
}

enum Phase<A> {
    /// The handler works.
    Answering {
        answer: Pin<Box<A>>,
        replier: OwnedReplier,
    },
    /// The reply's body is sent.
    Sending(ReplySender),
    /// The reply has no body, and this is read to its end to be known as whole.
    Reading(Body, Timer),
    Ended,
}

impl<A: Future<Output = Answer>> Future for StreamTask<A> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if let Phase::Answering { answer, replier } = &mut this.phase {
            let Poll::Ready(answer) = answer.as_mut().poll(cx) else {
                return replier.0.poll_gone(cx);
            };
            let shared = &this.open.0;
            this.phase = match replier.0.send(answer, shared) {
                AfterHead::Send(stream, body) => Phase::Sending(ReplySender::new(stream, body)),
                AfterHead::Read(body) => {
                    let mut timer = Timer::default();
                    timer.arm(clock::monotonic() + END_WAIT);
                    Phase::Reading(body, timer)
                }
                AfterHead::Nothing => Phase::Ended,
            };
        }
        match &mut this.phase {
            Phase::Sending(sender) => {
                ready!(sender.poll(&this.open.0, cx));
                if let Phase::Sending(sender) = std::mem::replace(&mut this.phase, Phase::Ended) {
                    sender.end(&this.open.0);
                }
            }
            // Whatever comes first ends it: the end, an error, data that no client gets, or time.
            Phase::Reading(body, timer) => {
                if Pin::new(body).poll_frame(cx).is_pending() {
                    return timer.poll(cx);
                }
            }
            Phase::Answering { .. } | Phase::Ended => {}
        }
        Poll::Ready(())
    }
}

/// What the handler has answered.
struct Answer {
    reply: Response,
    /// The client's half of a stream that asked for a tunnel. The tunnel begins if the reply says
    /// so.
    tunnel: Option<RecvStream>,
    /// To a HEAD request.
    is_head: bool,
}

/// Asks the handler.
async fn answer<H: Handler>(
    request: http::Request<RecvStream>,
    context: Arc<ConnectionContext<H>>,
    replier: Arc<Replier>,
) -> Answer {
    let (head, stream) = request.into_parts();
    let is_head = head.method == Method::HEAD;
    let mut tunnel = None;
    let mut reply = if head.headers.values().any(|value| is_padded(value.as_bytes())) {
        // Upstreams cut blanks off. What is compared must not have them either, and a proxy must
        // refuse them (RFC 9113, 8.2.1).
        context.handler.unreadable(StatusCode::BAD_REQUEST, PADDED, &context.peer)
    } else if let Some(protocol) = tunnel::protocol(&head) {
        tunnel = Some(stream);
        // Boxed: few streams are tunnels, and each would carry its state.
        Box::pin(tunnel::ask(head, protocol, &context)).await
    } else {
        let mut request = Request::from_parts(&head, Body::empty());
        let length = declared_length(&head.headers);
        drop(head);
        let waits = request
            .fields
            .get(Known::Expect)
            .is_some_and(|expected| expected.eq_ignore_ascii_case(b"100-continue"));
        let waiting = waits.then(|| Arc::clone(&replier) as Arc<dyn InterimSender>);
        request.body = Body::request(RequestStream::new(stream, length, waiting))
            .lingering()
            .window(STREAM_WINDOW_BYTES as usize);
        request.interim = Some(replier);
        context.handler.call(request, &context.peer).await
    };
    if let Some(bytes @ 1..) = reply.body.length()
        && !reply.fields.has(Known::ContentLength)
    {
        reply.fields.append(Known::ContentLength, itoa::Buffer::new().format(bytes));
    }
    Answer { reply, tunnel, is_head }
}

/// What is left to be done once the head of a reply was sent.
enum AfterHead {
    /// The body is sent there.
    Send(SendStream<Piece>, Body),
    /// The reply has no body, as a reply to a HEAD request, but the upstream may send one.
    Read(Body),
    /// Nothing, also if the client has gone away.
    Nothing,
}

/// Sends the heads of replies to one request. The stream's task shares it with the request, whose
/// body or upstream sends interim ones.
struct Replier(Mutex<ReplierState>);

struct ReplierState {
    /// `None` once the reply's own head was sent, or the task has ended.
    sender: Option<SendResponse<Piece>>,
    /// How many bytes of interim replies may still be sent.
    interim_left: usize,
    /// The stream's task, once it waits for its reply.
    task: Option<Waker>,
}

/// The task's handle. When it is dropped, nothing more is sent. h2 resets a stream by itself only
/// when its last handle is dropped, and the request's body may still have one.
struct OwnedReplier(Arc<Replier>);

impl Drop for OwnedReplier {
    fn drop(&mut self) {
        if let Some(mut sender) = self.0.lock().sender.take() {
            sender.send_reset(Reason::CANCEL);
        }
    }
}

impl Replier {
    fn new(sender: SendResponse<Piece>) -> Self {
        let (sender, interim_left) = (Some(sender), INTERIM_BYTES_MAX);
        Self(Mutex::new(ReplierState { sender, interim_left, task: None }))
    }

    /// Locked for one call at a time, on one worker: never contended.
    fn lock(&self) -> MutexGuard<'_, ReplierState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ready if the client has reset the stream, or the connection has failed.
    fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        let state = &mut *self.lock();
        if !state.task.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
            state.task = Some(cx.waker().clone());
        }
        match &mut state.sender {
            Some(sender) => sender.poll_reset(cx).map(drop),
            None => Poll::Ready(()),
        }
    }

    /// Sends the reply's head.
    fn send(&self, answer: Answer, shared: &Arc<Shared>) -> AfterHead {
        let Answer { mut reply, tunnel, is_head } = answer;
        reply.fields.remove_all(KnownSet::OF_CONNECTIONS);
        if reply.status == StatusCode::NO_CONTENT {
            // Clients take its length for an error (RFC 9110, 8.6).
            reply.fields.remove(Known::ContentLength);
        }
        let tunnel = reply.upgrade.take().zip(tunnel);
        let Response { status, fields, body, .. } = reply;
        let mut head = http::Response::new(());
        *head.status_mut() = status;
        *head.headers_mut() = fields.to_map();
        if !fields.has(Known::Date) {
            head.headers_mut().insert(DATE, http1::date_value());
        }
        drop(fields);
        let is_bodiless =
            is_head || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        let is_read = body.is_end_stream();
        let ends = tunnel.is_none() && (is_bodiless || is_read);
        let Some(mut sender) = self.lock().sender.take() else { return AfterHead::Nothing };
        let Ok(stream) = sender.send_response(head, ends) else {
            sender.send_reset(Reason::INTERNAL_ERROR);
            return AfterHead::Nothing;
        };
        if let Some((begin, requests)) = tunnel {
            tunnel::begin(begin, stream, requests, shared);
            return AfterHead::Nothing;
        }
        match ends {
            false => AfterHead::Send(stream, body),
            true if !is_read && body.is_streaming() => AfterHead::Read(body),
            true => AfterHead::Nothing,
        }
    }
}

impl InterimSender for Replier {
    fn send(&self, status: StatusCode, fields: &Fields) {
        let mut fields = fields.clone();
        fields.remove_all(KnownSet::OF_CONNECTIONS);
        let fields = fields.to_map();
        // The status is a field, too. A 100 is sent once, and always.
        let bytes = fields.iter().fold(FIELD_OVERHEAD_BYTES, |sum, (name, value)| {
            sum + name.as_str().len() + value.len() + FIELD_OVERHEAD_BYTES
        });
        let bytes = if status == StatusCode::CONTINUE { 0 } else { bytes };
        let state = &mut *self.lock();
        let (Some(sender), Some(left)) = (&mut state.sender, state.interim_left.checked_sub(bytes))
        else {
            return;
        };
        // h2 would queue it even on a stream that the client has reset. To ask replaces the waker,
        // so the task's own is given; if the task is running right now, it asks again itself.
        let task = state.task.as_ref().unwrap_or(Waker::noop());
        if sender.poll_reset(&mut Context::from_waker(task)).is_ready() {
            return;
        }
        let mut head = http::Response::new(());
        *head.status_mut() = status;
        *head.headers_mut() = fields;
        // It fails if the client has gone away.
        if sender.send_informational(head).is_ok() {
            state.interim_left = left;
        }
    }
}
