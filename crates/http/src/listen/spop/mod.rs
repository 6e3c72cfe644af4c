//! SPOP on one connection: HAProxy's filter `spoe` asks about requests of its clients, and gets
//! variables. A question is turned into the request that it is about, which goes to the handler
//! like any other, and the reply into variables. `frame` reads and writes what is sent.
//!
//! A question has the arguments `method`, `uri`, `headers` (`req.hdrs`), `src`, and `tls`
//! (`ssl_fc`). An answer has the variables `status`, `body`, and one for each header field, named
//! `h_retry_after` for `Retry-After`.

pub(super) mod frame;

use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use bytes::{Buf as _, BytesMut};
use http::StatusCode;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::task::JoinSet;

use self::frame::{Fault, Frame, Hello, Notice, Value, Variable};
use super::context::ConnectionContext;
use super::error::ConnectionError;
use super::http1::DRAIN_GRACE;
use super::{ConnectionSettings, Handler, read_head};
use crate::clock;
use crate::wire::{Response, Timer};

/// Maximum number of questions on one connection that are not answered yet. Beyond it nothing more
/// is read.
const QUESTIONS_MAX: usize = 256;
/// Maximum bytes of a reply's body that become a variable. Beyond it there is none.
const BODY_BYTES_MAX: usize = 16 << 10;
/// What the variables of header fields begin with.
const FIELD_PREFIX: &str = "h_";

/// Answers questions until HAProxy, a timeout or a drain closes the connection.
///
/// # Errors
/// What came is not SPOP, nothing came in time, or the connection failed.
pub(super) async fn serve<S, H>(
    stream: S,
    context: Arc<ConnectionContext<H>>,
    settings: &ConnectionSettings,
) -> Result<(), ConnectionError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    H: Handler,
{
    let mut connection = Connection {
        stream,
        context,
        settings,
        input: BytesMut::new(),
        hello: None,
        answers: JoinSet::new(),
        timer: Timer::default(),
        phase: None,
        used: clock::monotonic(),
        drain: None,
        drain_timer: Timer::default(),
    };
    let ended = connection.run().await;
    let last = match &ended {
        Ok(End::Gone) => None,
        Ok(End::Disconnect(fault)) => Some(*fault),
        Err(_) => None,
    };
    if let Some(fault) = last {
        connection.write(&frame::disconnect(fault)).await?;
        connection.stream.shutdown().await.map_err(ConnectionError::Socket)?;
    }
    match ended? {
        End::Gone | End::Disconnect(Fault::Normal) => Ok(()),
        End::Disconnect(fault) => Err(ConnectionError::Malformed(fault.why())),
    }
}

/// How a connection ends.
enum End {
    /// There is nobody to tell.
    Gone,
    /// HAProxy is told why.
    Disconnect(Fault),
}

struct Connection<'a, S, H> {
    stream: S,
    context: Arc<ConnectionContext<H>>,
    settings: &'a ConnectionSettings,
    input: BytesMut,
    /// What HAProxy can do, once it has said so.
    hello: Option<Hello>,
    /// Answers to questions, as frames.
    answers: JoinSet<Vec<u8>>,
    timer: Timer,
    /// What the timer is armed for. `None` after each frame.
    phase: Option<Phase>,
    /// When the last frame came.
    used: Instant,
    /// Once a drain has begun, until when questions are still read.
    drain: Option<Instant>,
    drain_timer: Timer,
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The greeting, or the rest of a frame.
    Frame,
    /// A question, while none is open.
    Idle,
    /// Answers, or room for more of them.
    Busy,
}

enum Event {
    /// So many bytes have come; none if there will be no more.
    Read(usize),
    Answer(Vec<u8>),
    Expired(Phase),
    Drained,
    Aborted,
}

impl<S, H> Connection<'_, S, H>
where
    S: AsyncRead + AsyncWrite + Unpin,
    H: Handler,
{
    async fn run(&mut self) -> Result<End, ConnectionError> {
        loop {
            self.arm();
            match self.next().await? {
                Event::Read(0) | Event::Aborted => return Ok(End::Gone),
                Event::Read(_) => {
                    if let Some(end) = self.frames().await? {
                        return Ok(end);
                    }
                }
                Event::Answer(mut answers) => {
                    // All that are there, in one write.
                    while let Some(done) = self.answers.try_join_next() {
                        answers.extend_from_slice(&done.unwrap_or_default());
                    }
                    self.write(&answers).await?;
                    // What there was no room for.
                    if let Some(end) = self.frames().await? {
                        return Ok(end);
                    }
                }
                Event::Expired(Phase::Frame) => return Err(ConnectionError::HeadTimeout),
                Event::Expired(Phase::Idle | Phase::Busy) | Event::Drained => {
                    return Ok(End::Disconnect(Fault::Normal));
                }
            }
        }
    }

    /// Arms the timer for what is waited for.
    fn arm(&mut self) {
        let phase = match (&self.hello, self.answers.is_empty()) {
            (None, _) => Phase::Frame,
            _ if self.answers.len() >= QUESTIONS_MAX => Phase::Busy,
            _ if !self.input.is_empty() => Phase::Frame,
            (_, true) => Phase::Idle,
            (_, false) => Phase::Busy,
        };
        if self.phase == Some(phase) {
            return;
        }
        self.phase = Some(phase);
        let now = clock::monotonic();
        match phase {
            Phase::Frame => self.timer.arm(now + self.settings.request_header),
            Phase::Idle => self.timer.arm(now + self.settings.keep_alive),
            Phase::Busy => self.timer.disarm(),
        }
        self.note(phase, now);
    }

    fn note(&self, phase: Phase, now: Instant) {
        // One that has not said anything yet may be closed for others, too.
        let is_silent = self.hello.is_none() && self.input.is_empty();
        match phase {
            Phase::Frame if is_silent => self.context.state.mark_idle(now),
            Phase::Idle => self.context.state.mark_idle(now),
            Phase::Frame | Phase::Busy => self.context.state.mark_busy(),
        }
    }

    async fn next(&mut self) -> Result<Event, ConnectionError> {
        let Self {
            stream, context, input, answers, timer, phase, used, drain, drain_timer, ..
        } = self;
        let state = &context.state;
        poll_fn(|cx| {
            state.set_waker(cx.waker());
            if state.is_aborted() {
                return Poll::Ready(Ok(Event::Aborted));
            }
            if let Poll::Ready(Some(done)) = answers.poll_join_next(cx) {
                // One that panicked has no answer, and HAProxy's own deadline ends the question.
                return Poll::Ready(Ok(Event::Answer(done.unwrap_or_default())));
            }
            // Read on, if only once more: HAProxy fails what it has sent and is not answered.
            let is_over = drain.is_some_and(|until| clock::monotonic() >= until);
            if !is_over
                && answers.len() < QUESTIONS_MAX
                && let Poll::Ready(read) = pin!(stream.read_buf(input)).poll(cx)
            {
                return Poll::Ready(read.map(Event::Read).map_err(ConnectionError::Socket));
            }
            if state.is_draining() {
                let now = clock::monotonic();
                let until = *drain.get_or_insert_with(|| {
                    let is_in_use = now.saturating_duration_since(*used) < DRAIN_GRACE;
                    if is_in_use { now + DRAIN_GRACE } else { now }
                });
                if now < until {
                    drain_timer.arm(until);
                    if drain_timer.poll(cx).is_ready() {
                        cx.waker().wake_by_ref();
                    }
                } else if answers.is_empty() {
                    return Poll::Ready(Ok(Event::Drained));
                }
            }
            timer.poll(cx).map(|()| Ok(Event::Expired(phase.unwrap_or(Phase::Frame))))
        })
        .await
    }

    /// Takes all frames that have arrived.
    async fn frames(&mut self) -> Result<Option<End>, ConnectionError> {
        while self.answers.len() < QUESTIONS_MAX {
            let (frame, length) = match frame::first(&self.input) {
                Ok(None) => return Ok(None),
                Ok(Some(found)) => found,
                Err(fault) => return Ok(Some(End::Disconnect(fault))),
            };
            self.phase = None;
            self.used = clock::monotonic();
            let read = match frame::read(frame) {
                Ok(read) => read,
                Err(fault) => return Ok(Some(End::Disconnect(fault))),
            };
            let greeting = match (read, self.hello) {
                (None, Some(_)) => None,
                (Some(Frame::Disconnect), _) => return Ok(Some(End::Disconnect(Fault::Normal))),
                (Some(Frame::Hello(hello)), None) => {
                    self.hello = Some(hello);
                    Some(hello)
                }
                (Some(Frame::Notify(notice)), Some(hello)) => {
                    let context = Arc::clone(&self.context);
                    let (id, question) = (notice.id, Question::of(&notice));
                    self.answers.spawn(async move {
                        let variables = question.ask(&context).await;
                        frame::answer(id, &variables, hello.frame_bytes_max)
                    });
                    None
                }
                (Some(Frame::Hello(_)), Some(_)) | (Some(Frame::Notify(_)) | None, None) => {
                    return Ok(Some(End::Disconnect(Fault::Invalid)));
                }
            };
            self.input.advance(length);
            if let Some(hello) = greeting {
                self.write(&frame::greeting(hello)).await?;
                if hello.is_check {
                    return Ok(Some(End::Gone));
                }
            }
        }
        Ok(None)
    }

    async fn write(&mut self, frames: &[u8]) -> Result<(), ConnectionError> {
        self.stream.write_all(frames).await.map_err(ConnectionError::Socket)?;
        self.stream.flush().await.map_err(ConnectionError::Socket)
    }
}

/// What HAProxy says of a request, or what is wrong with that.
struct Question(Result<About, &'static str>);

struct About {
    head: Vec<u8>,
    /// Its client.
    source: IpAddr,
    is_tls: bool,
}

impl Question {
    fn of(notice: &Notice<'_>) -> Self {
        Self(About::of(notice))
    }

    async fn ask<H: Handler>(self, context: &ConnectionContext<H>) -> Vec<(String, Variable)> {
        let (handler, peer) = (&context.handler, &context.peer);
        let about = self.0.map_err(|why| (StatusCode::BAD_REQUEST, why));
        let read = about.and_then(|about| read_head(&about.head).map(|request| (request, about)));
        let reply = match read {
            Ok((mut request, about)) => {
                // HAProxy's word, not its client's.
                request.fields.set("x-forwarded-for", about.source.to_string());
                let scheme = if about.is_tls { "https" } else { "http" };
                request.fields.set("x-forwarded-proto", scheme);
                handler.call(request, peer).await
            }
            Err((status, why)) => handler.unreadable(status, why, peer),
        };
        variables(reply).await
    }
}

impl About {
    fn of(notice: &Notice<'_>) -> Result<Self, &'static str> {
        let text = |name| match notice.argument(name) {
            Some(Value::Text(text)) => Ok(*text),
            _ => Err("a question without the texts `method`, `uri` and `headers`"),
        };
        let (method, target, fields) = (text("method")?, text("uri")?, text("headers")?);
        let Some(Value::Address(source)) = notice.argument("src") else {
            // All clients would share one.
            return Err("a question without the address `src`");
        };
        let is_tls = match notice.argument("tls") {
            Some(Value::Bool(is_tls)) => *is_tls,
            Some(Value::Number(number)) => *number != 0,
            _ => return Err("a question without the boolean `tls`"),
        };
        if method.iter().any(|byte| *byte <= b' ') {
            return Err("a method with blanks");
        }
        // What a request line can't have, or has no meaning in it: HAProxy passes on a fragment,
        // which its server may cut off.
        let is_path = target.first() == Some(&b'/') || target == b"*";
        if !is_path || target.iter().any(|byte| *byte <= b' ' || *byte == b'#' || *byte == 0x7f) {
            return Err("a `uri` that is not a path with a query");
        }
        let mut head = [method, b" ", target, b" HTTP/1.1\r\n", fields].concat();
        if !head.ends_with(b"\r\n\r\n") {
            head.extend_from_slice(b"\r\n");
        }
        Ok(Self { head, source: *source, is_tls })
    }
}

/// What HAProxy is told of a reply.
async fn variables(mut reply: Response) -> Vec<(String, Variable)> {
    let status = Variable::Number(reply.status.as_u16().into());
    let mut variables = vec![("status".to_owned(), status)];
    for (name, value) in reply.fields.iter() {
        let name: String = name
            .iter()
            .map(|byte| if byte.is_ascii_alphanumeric() { char::from(*byte) } else { '_' })
            .collect();
        let name = format!("{FIELD_PREFIX}{}", name.to_ascii_lowercase());
        match variables.iter_mut().find(|(own, _)| *own == name) {
            // A list, as of the fields themselves (RFC 9110, 5.3).
            Some((_, Variable::Text(before))) => {
                before.extend_from_slice(b", ");
                before.extend_from_slice(value);
            }
            _ => variables.push((name, Variable::Text(value.to_vec()))),
        }
    }
    let mut body = Vec::new();
    while let Some(Ok(())) = poll_fn(|cx| reply.body.poll_fill(cx)).await {
        let data = reply.body.data();
        if body.len() + data.len() > BODY_BYTES_MAX {
            return variables;
        }
        body.extend_from_slice(data);
        let bytes = data.len();
        reply.body.consume(bytes);
        reply.body.end_if_read();
    }
    // What HAProxy writes of a variable escapes line feeds, and a document ends with one.
    body.truncate(body.trim_ascii_end().len());
    if !body.is_empty() {
        variables.push(("body".to_owned(), Variable::Text(body)));
    }
    variables
}
