//! Reads the same bytes with hyper, in one piece, on a connection without a runtime. The fuzz
//! targets include this file too.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::rt::{Read, ReadBufCursor, Write};

use super::drive::{Message, Start, of_map};

/// What hyper read.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) messages: Vec<Message>,
    /// hyper refused something, or the bytes ended early.
    pub(crate) failed: bool,
}

/// Reads requests.
pub(crate) fn requests(bytes: &[u8]) -> Seen {
    let messages = Rc::new(RefCell::new(Vec::new()));
    let service = hyper::service::service_fn(|request| {
        let messages = Rc::clone(&messages);
        async move {
            take_request(request, &messages).await;
            // Not 200, which would turn a CONNECT into a tunnel.
            Ok::<_, Infallible>(
                Response::builder().status(StatusCode::BAD_REQUEST).body(Nothing).unwrap(),
            )
        }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.header_read_timeout(None).half_close(true).max_buf_size(1 << 20);
    let failed = {
        let connection = builder.serve_connection(
            Pipe { bytes: bytes.to_vec(), read: 0, silent: false, reader: None },
            service,
        );
        !matches!(run(pin!(connection)), Some(Ok(())))
    };
    Seen { messages: messages.take(), failed }
}

/// Reads the reply to a `method` request; the connection closes after `bytes`.
pub(crate) fn reply(bytes: &[u8], method: &Method) -> Seen {
    let messages = RefCell::new(Vec::new());
    let wire = Pipe { bytes: bytes.to_vec(), read: 0, silent: true, reader: None };
    let failed = run(pin!(async {
        let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
            .max_buf_size(1 << 20)
            .handshake(wire)
            .await
            .map_err(|_| ())?;
        let request =
            Request::builder().method(method).uri("/").header("host", "a").body(Nothing).unwrap();
        let reply = sender.send_request(request);
        let exchange = async {
            let reply = reply.await.map_err(|_| ())?;
            let (head, body) = reply.into_parts();
            let fields = of_map(&head.headers);
            let start = Start::Reply(head.status);
            messages.borrow_mut().push(Message {
                start,
                version: head.version,
                fields,
                body: Vec::new(),
                trailers: Vec::new(),
                whole: false,
            });
            take_body(body, &messages).await;
            Ok(())
        };
        both(exchange, connection).await
    }))
    .is_none_or(|done| done.is_err());
    Seen { messages: messages.into_inner(), failed }
}

/// Runs both futures to completion.
async fn both(
    first: impl Future<Output = Result<(), ()>>,
    second: impl Future<Output = hyper::Result<()>>,
) -> Result<(), ()> {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let (mut one, mut other) = (None, None);
    std::future::poll_fn(move |cx| {
        // hyper's connection does the reading for both.
        if other.is_none()
            && let Poll::Ready(done) = second.as_mut().poll(cx)
        {
            other = Some(done.map_err(|_| ()));
        }
        if one.is_none()
            && let Poll::Ready(done) = first.as_mut().poll(cx)
        {
            one = Some(done);
        }
        match (one, other) {
            (Some(one), Some(other)) => Poll::Ready(one.and(other)),
            _ => Poll::Pending,
        }
    })
    .await
}

async fn take_request(request: Request<Incoming>, messages: &RefCell<Vec<Message>>) {
    let (head, body) = request.into_parts();
    let target =
        head.uri.path_and_query().map_or_else(String::new, |target| target.as_str().to_owned());
    let authority = head.uri.authority().map(|authority| authority.as_str().to_owned());
    let start = Start::Request { method: head.method, target, authority };
    let fields = of_map(&head.headers);
    messages.borrow_mut().push(Message {
        start,
        version: head.version,
        fields,
        body: Vec::new(),
        trailers: Vec::new(),
        whole: false,
    });
    take_body(body, messages).await;
}

/// Adds a body to the last message.
async fn take_body(mut body: Incoming, messages: &RefCell<Vec<Message>>) {
    while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let Ok(frame) = frame else { return };
        let mut messages = messages.borrow_mut();
        let message = messages.last_mut().unwrap();
        match frame.into_data() {
            Ok(data) => message.body.extend_from_slice(&data),
            Err(frame) => message.trailers = of_map(&frame.into_trailers().unwrap()),
        }
    }
    messages.borrow_mut().last_mut().unwrap().whole = true;
}

/// Polls while the waker was called; `None` if the future would never complete.
pub(crate) fn run<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    let woken = Arc::new(WakeFlag(AtomicBool::new(true)));
    let waker = Waker::from(Arc::clone(&woken));
    let mut cx = Context::from_waker(&waker);
    while woken.0.swap(false, Ordering::Relaxed) {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return Some(output);
        }
    }
    None
}

struct WakeFlag(AtomicBool);

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A connection that delivers `bytes` and ends. What is written to it is discarded.
struct Pipe {
    bytes: Vec<u8>,
    read: usize,
    /// Delivers nothing until the other side has written.
    silent: bool,
    reader: Option<Waker>,
}

impl Read for Pipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut room: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if self.silent {
            self.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let bytes = room.remaining().min(self.bytes.len() - self.read);
        room.put_slice(&self.bytes[self.read..self.read + bytes]);
        self.read += bytes;
        Poll::Ready(Ok(()))
    }
}

impl Write for Pipe {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.silent = false;
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A body without content.
struct Nothing;

impl http_body::Body for Nothing {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        true
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(0)
    }
}
