//! A request's body on its way out over HTTP/2, and what the waiting side must know of it: a client
//! that uploads slowly is not an upstream that answers slowly, and a body that failed is not the
//! upstream's fault. Knows nothing of connections.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

use crate::clock;
use crate::wire::{Body, BodyError};

/// A request's body as the connection sees it. Boxed where there is one: hyper moves it, with its
/// request, from place to place a dozen times.
#[derive(Debug)]
pub(super) struct Outgoing(Option<Box<Carried>>);

/// Only one that streams is watched: the others can neither be late nor fail.
#[derive(Debug)]
struct Carried {
    body: Body,
    watch: Option<Arc<Watch>>,
}

/// A request on its way, in a place where a connection takes it from and puts it back if nothing of
/// it was sent: it is large to hand on.
pub(super) type Load = Option<http::Request<Outgoing>>;

/// How far a streaming request body is.
#[derive(Debug)]
pub(super) struct Watch {
    began: Instant,
    state: AtomicU8,
    /// Milliseconds after `began` at which it came into that state.
    since_ms: AtomicU64,
    error: OnceLock<BodyError>,
    given_up: AtomicBool,
    /// Who reads the body, to be told when it is given up.
    reader: Mutex<Option<Waker>>,
}

/// A request's body that ends before its end. What ended it stands in the [`Watch`]. hyper finds
/// the code here with which an HTTP/2 stream is reset.
#[derive(Debug, thiserror::Error)]
#[error("the request's body was given up")]
pub(super) struct Broken(#[source] h2::Error);

/// The upstream has not taken the last piece yet.
const HELD: u8 = 0;
/// The client has not sent the next piece yet.
const AWAITED: u8 = 1;
/// All of it was handed over.
const ENDED: u8 = 2;

/// Whose turn it is, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// The upstream's, to take the next piece.
    Taking(Instant),
    /// The client's; its own idle timeout watches over it.
    Client,
    /// The upstream's, to answer.
    Answering(Instant),
}

impl Outgoing {
    pub(super) fn new(body: Body) -> (Self, Option<Arc<Watch>>) {
        if body.is_nothing() {
            return (Self(None), None);
        }
        let watch = body.is_streaming().then(|| Arc::new(Watch::new()));
        (Self(Some(Box::new(Carried { body, watch: watch.clone() }))), watch)
    }

    /// The body itself, of a request that was not sent.
    pub(super) fn into_body(self) -> Body {
        self.0.map(|carried| carried.body).unwrap_or_default()
    }
}

impl Watch {
    fn new() -> Self {
        Self {
            began: clock::monotonic(),
            state: AtomicU8::new(HELD),
            since_ms: AtomicU64::new(0),
            error: OnceLock::new(),
            given_up: AtomicBool::new(false),
            reader: Mutex::new(None),
        }
    }

    fn note(&self, state: u8) {
        let since = clock::monotonic().saturating_duration_since(self.began);
        self.since_ms
            .store(u64::try_from(since.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.state.store(state, Ordering::Release);
    }

    pub(super) fn turn(&self) -> Turn {
        let state = self.state.load(Ordering::Acquire);
        let since = self.began + Duration::from_millis(self.since_ms.load(Ordering::Relaxed));
        match state {
            HELD => Turn::Taking(since),
            AWAITED => Turn::Client,
            _ => Turn::Answering(since),
        }
    }

    /// Nobody wants the rest: whoever reads the body is told that it is broken, which resets an
    /// HTTP/2 stream. After the body's end this does nothing.
    pub(super) fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
        let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    fn await_give_up(&self, cx: &Context<'_>) {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *reader {
            Some(known) => known.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
    }

    /// Why the body failed, if it did.
    pub(super) fn error(&self) -> Option<&BodyError> {
        self.error.get()
    }
}

impl http_body::Body for Outgoing {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let Some(carried) = &mut self.0 else { return Poll::Ready(None) };
        let Carried { body, watch } = &mut **carried;
        let Some(watch) = watch else { return Pin::new(body).poll_frame(cx).map_err(broken) };
        if watch.given_up.load(Ordering::Acquire) {
            // Tells the client's side that nobody reads any more.
            *body = Body::empty();
            return Poll::Ready(Some(Err(Broken(h2::Reason::CANCEL.into()))));
        }
        let polled = Pin::new(&mut *body).poll_frame(cx);
        match &polled {
            Poll::Pending => {
                watch.note(AWAITED);
                watch.await_give_up(cx);
            }
            Poll::Ready(Some(Ok(_))) if !body.is_end_stream() => watch.note(HELD),
            Poll::Ready(Some(Err(error))) => {
                // Told once: a body that failed yields nothing more.
                let _ = watch.error.set(error.clone());
            }
            Poll::Ready(_) => watch.note(ENDED),
        }
        polled.map_err(broken)
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|carried| carried.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or_else(|| SizeHint::with_exact(0), |carried| carried.body.size_hint())
    }
}

fn broken(_told: BodyError) -> Broken {
    Broken(h2::Reason::CANCEL.into())
}
