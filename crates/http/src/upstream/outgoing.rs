//! A request's body sent over HTTP/2, and what the task that awaits the reply must know about it: a
//! client that uploads slowly is not an upstream that answers slowly, and a body that failed is not
//! the upstream's fault. Knows nothing of connections.

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

use super::phase::Phase;
use crate::clock;
use crate::wire::{Body, BodyError};

/// A request's body as the connection sees it. Boxed if there is one, because hyper moves it with
/// its request about a dozen times.
#[derive(Debug)]
pub(super) struct Outgoing(Option<Box<WatchedBody>>);

/// Only a streaming body is watched. The others can be neither late nor broken.
#[derive(Debug)]
struct WatchedBody {
    body: Body,
    progress: Option<Arc<UploadProgress>>,
}

/// A request to be sent. A connection takes it out, and puts it back if nothing of it was sent. It
/// is too large to pass by value.
pub(super) type PendingRequest = Option<http::Request<Outgoing>>;

/// The progress of a streaming request body.
#[derive(Debug)]
pub(super) struct UploadProgress {
    created: Instant,
    state: AtomicU8,
    /// When it entered that state, in milliseconds since `created`.
    since_ms: AtomicU64,
    error: OnceLock<BodyError>,
    given_up: AtomicBool,
    /// The waker of the task that reads the body, woken when the body is given up.
    reader: Mutex<Option<Waker>>,
}

/// A request's body that ended too early. The cause is in [`UploadProgress`]. The source is the
/// code with which hyper resets the HTTP/2 stream.
#[derive(Debug, thiserror::Error)]
#[error("the request's body was given up")]
pub(super) struct BodyAborted(#[source] h2::Error);

thread_local! {
    /// The upload whose body was read last, until hyper begins a task.
    static READ_LAST: RefCell<Option<Arc<UploadProgress>>> = const { RefCell::new(None) };
}

/// The upload of the request that hyper is starting a task for. hyper polls the body first, and
/// then starts at least one task for each request, so this is never the upload of another request.
pub(super) fn take_read_last() -> Option<Arc<UploadProgress>> {
    READ_LAST.try_with(RefCell::take).ok().flatten()
}

/// The upstream has not taken the last piece yet.
const HELD: u8 = 0;
/// The client has not sent the next piece yet.
const AWAITED: u8 = 1;
/// The whole body was handed over.
const ENDED: u8 = 2;

impl Outgoing {
    pub(super) fn new(body: Body) -> (Self, Option<Arc<UploadProgress>>) {
        if body.is_nothing() {
            return (Self(None), None);
        }
        let progress = body.is_streaming().then(|| Arc::new(UploadProgress::new()));
        (Self(Some(Box::new(WatchedBody { body, progress: progress.clone() }))), progress)
    }

    /// The body of a request that was not sent.
    pub(super) fn into_body(self) -> Body {
        self.0.map(|watched| watched.body).unwrap_or_default()
    }
}

impl UploadProgress {
    fn new() -> Self {
        Self {
            created: clock::monotonic(),
            state: AtomicU8::new(HELD),
            since_ms: AtomicU64::new(0),
            error: OnceLock::new(),
            given_up: AtomicBool::new(false),
            reader: Mutex::new(None),
        }
    }

    fn note(&self, state: u8) {
        let since = clock::monotonic().saturating_duration_since(self.created);
        self.since_ms
            .store(u64::try_from(since.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.state.store(state, Ordering::Release);
    }

    pub(super) fn phase(&self) -> Phase {
        let state = self.state.load(Ordering::Acquire);
        let since = self.created + Duration::from_millis(self.since_ms.load(Ordering::Relaxed));
        match state {
            HELD => Phase::Sending(since),
            AWAITED => Phase::AwaitingClient,
            _ => Phase::AwaitingReply(since),
        }
    }

    /// Gives up the rest of the body: its reader gets an error, which resets an HTTP/2 stream. Does
    /// nothing after the body's end.
    pub(super) fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
        let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Ready when the rest of the body is given up. Whoever asks is woken then.
    pub(super) fn poll_given_up(&self, cx: &Context<'_>) -> Poll<()> {
        self.await_give_up(cx);
        if self.given_up.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
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
    type Error = BodyAborted;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyAborted>>> {
        let Some(watched) = &mut self.0 else { return Poll::Ready(None) };
        let WatchedBody { body, progress } = &mut **watched;
        let Some(progress) = progress else {
            return Pin::new(body).poll_frame(cx).map_err(aborted);
        };
        let _ = READ_LAST.try_with(|last| last.replace(Some(Arc::clone(progress))));
        if progress.given_up.load(Ordering::Acquire) {
            // Tells the client's side that nothing reads the body any more.
            *body = Body::empty();
            return Poll::Ready(Some(Err(BodyAborted(h2::Reason::CANCEL.into()))));
        }
        let polled = Pin::new(&mut *body).poll_frame(cx);
        match &polled {
            Poll::Pending => {
                progress.note(AWAITED);
                progress.await_give_up(cx);
            }
            Poll::Ready(Some(Ok(_))) if !body.is_end_stream() => progress.note(HELD),
            Poll::Ready(Some(Err(error))) => {
                // Set once: a body that failed yields nothing more.
                let _ = progress.error.set(error.clone());
            }
            Poll::Ready(_) => progress.note(ENDED),
        }
        polled.map_err(aborted)
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|watched| watched.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or_else(|| SizeHint::with_exact(0), |watched| watched.body.size_hint())
    }
}

fn aborted(_error: BodyError) -> BodyAborted {
    BodyAborted(h2::Reason::CANCEL.into())
}
