//! A request's body on its way out, and what the waiting side must know of it: a client that uploads slowly is not an upstream that answers slowly,
//! and a body that failed is not the upstream's fault. Knows nothing of connections.

use std::pin::Pin;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

use crate::clock;
use crate::wire::{Body, BodyError};

/// A request's body as the connection sees it. Only one that streams is watched: the others can neither be late nor fail.
#[derive(Debug)]
pub(super) struct Outgoing {
    body: Body,
    watch: Option<Arc<Watch>>,
}

/// How far a streaming request body is.
#[derive(Debug)]
pub(super) struct Watch {
    began: Instant,
    state: AtomicU8,
    /// Milliseconds after `began` at which it came into that state.
    since_ms: AtomicU64,
    error: OnceLock<BodyError>,
}

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
        let watch = body.is_streaming().then(|| Arc::new(Watch::new()));
        (Self { body, watch: watch.clone() }, watch)
    }
}

impl Watch {
    fn new() -> Self {
        Self { began: clock::monotonic(), state: AtomicU8::new(HELD), since_ms: AtomicU64::new(0), error: OnceLock::new() }
    }

    fn note(&self, state: u8) {
        let since = clock::monotonic().saturating_duration_since(self.began);
        self.since_ms.store(u64::try_from(since.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
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

    /// Why the body failed, if it did.
    pub(super) fn error(&self) -> Option<&BodyError> {
        self.error.get()
    }
}

impl http_body::Body for Outgoing {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Some(watch) = &self.watch {
            match &polled {
                Poll::Pending => watch.note(AWAITED),
                Poll::Ready(Some(Ok(_))) if !self.body.is_end_stream() => watch.note(HELD),
                Poll::Ready(Some(Err(error))) => {
                    // Told once: a body that failed yields nothing more.
                    let _ = watch.error.set(error.clone());
                }
                Poll::Ready(_) => watch.note(ENDED),
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
