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
    };
    let ended = connection.run().await;
    let last = match &ended {
        Ok(End::Gone) => None,
        Ok(End::Asked(fault)) => Some(*fault),
        Err(_) => None,
    };
    if let Some(fault) = last {
        connection.write(&frame::disconnect(fault)).await?;
        connection.stream.shutdown().await.map_err(ConnectionError::Socket)?;
    }
    match ended? {
        End::Gone | End::Asked(Fault::Normal) => Ok(()),
        End::Asked(fault) => Err(ConnectionError::Malformed(fault.why())),
    }
}

/// How a connection ends.
enum End {
    /// There is nobody to tell.
    Gone,
    /// HAProxy is told why.
    Asked(Fault),
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
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The greeting, or the rest of a frame.
    Frame,
    /// A question, while none is open.
    Idle,
    /// Answers.
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
                }
                Event::Expired(Phase::Frame) => return Err(ConnectionError::HeadTimeout),
                Event::Expired(Phase::Idle | Phase::Busy) | Event::Drained => {
                    return Ok(End::Asked(Fault::Normal));
                }
            }
        }
    }

    /// Arms the timer for what is waited for.
    fn arm(&mut self) {
        let phase = match (&self.hello, self.answers.is_empty()) {
            (None, _) => Phase::Frame,
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
        match phase {
            Phase::Idle => self.context.state.mark_idle(now),
            Phase::Frame | Phase::Busy => self.context.state.mark_busy(),
        }
    }

    async fn next(&mut self) -> Result<Event, ConnectionError> {
        let Self { stream, context, input, answers, timer, phase, .. } = self;
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
            if state.is_draining() && answers.is_empty() {
                return Poll::Ready(Ok(Event::Drained));
            }
            if answers.len() < QUESTIONS_MAX
                && let Poll::Ready(read) = pin!(stream.read_buf(input)).poll(cx)
            {
                return Poll::Ready(read.map(Event::Read).map_err(ConnectionError::Socket));
            }
            timer.poll(cx).map(|()| Ok(Event::Expired(phase.unwrap_or(Phase::Frame))))
        })
        .await
    }

    /// Takes all frames that have arrived.
    async fn frames(&mut self) -> Result<Option<End>, ConnectionError> {
        loop {
            let (frame, length) = match frame::first(&self.input) {
                Ok(None) => return Ok(None),
                Ok(Some(found)) => found,
                Err(fault) => return Ok(Some(End::Asked(fault))),
            };
            self.phase = None;
            let read = match frame::read(frame) {
                Ok(read) => read,
                Err(fault) => return Ok(Some(End::Asked(fault))),
            };
            let greeting = match (read, self.hello) {
                (None, Some(_)) => None,
                (Some(Frame::Disconnect), _) => return Ok(Some(End::Asked(Fault::Normal))),
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
                    return Ok(Some(End::Asked(Fault::Invalid)));
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
    }

    async fn write(&mut self, frames: &[u8]) -> Result<(), ConnectionError> {
        self.stream.write_all(frames).await.map_err(ConnectionError::Socket)?;
        self.stream.flush().await.map_err(ConnectionError::Socket)
    }
}

/// What HAProxy says of a request.
struct Question {
    /// Its head, or what is wrong with it.
    head: Result<Vec<u8>, &'static str>,
    source: Option<IpAddr>,
    is_tls: bool,
}

impl Question {
    fn of(notice: &Notice<'_>) -> Self {
        let source = match notice.argument("src") {
            Some(Value::Address(address)) => Some(*address),
            _ => None,
        };
        let is_tls = matches!(notice.argument("tls"), Some(Value::Bool(true) | Value::Number(1..)));
        Self { head: head(notice), source, is_tls }
    }

    async fn ask<H: Handler>(self, context: &ConnectionContext<H>) -> Vec<(String, Variable)> {
        let (handler, peer) = (&context.handler, &context.peer);
        let read = self.head.map_err(|why| (StatusCode::BAD_REQUEST, why));
        let reply = match read.and_then(|head| read_head(&head)) {
            Ok(mut request) => {
                // HAProxy's word, not its client's.
                request.fields.remove("x-forwarded-for");
                if let Some(source) = self.source {
                    request.fields.append("x-forwarded-for", source.to_string());
                }
                let scheme = if self.is_tls { "https" } else { "http" };
                request.fields.set("x-forwarded-proto", scheme);
                handler.call(request, peer).await
            }
            Err((status, why)) => handler.unreadable(status, why, peer),
        };
        variables(reply).await
    }
}

/// A request's head as HTTP/1.1 has it.
fn head(notice: &Notice<'_>) -> Result<Vec<u8>, &'static str> {
    let text = |name| match notice.argument(name) {
        Some(Value::Text(text)) => Ok(*text),
        _ => Err("a question without `method`, `uri` and `headers`"),
    };
    let (method, target, fields) = (text("method")?, text("uri")?, text("headers")?);
    if method.iter().chain(target).any(|byte| *byte <= b' ') {
        return Err("a method or a path with blanks");
    }
    let mut head = [method, b" ", target, b" HTTP/1.1\r\n", fields].concat();
    if !head.ends_with(b"\r\n\r\n") {
        head.extend_from_slice(b"\r\n");
    }
    Ok(head)
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
