//! How a body ended, and who wants to know. Knows nothing of why they want to.

use http::HeaderMap;

/// How a body ended; told once to everybody who asked with [`Body::on_end`](super::Body::on_end).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyEnd {
    /// In which way.
    pub outcome: BodyOutcome,
    /// Bytes of data that passed, framing and trailers not counted.
    pub bytes: u64,
    /// Whether trailers came.
    pub trailers: bool,
}

/// The three ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyOutcome {
    /// All of it was read by whoever held the body.
    Complete,
    /// It failed while it was read.
    Failed(BodyFailure),
    /// Whoever held it dropped it before its end: the other side went away.
    Dropped,
}

/// A [`BodyError`](super::BodyError) without its details.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFailure {
    /// The connection failed, or its framing was wrong.
    Cut,
    /// Nothing came for the idle timeout, or too little.
    Idle,
    /// Its message took too long as a whole.
    Overdue,
    /// It was larger than the limit.
    TooLarge,
}

/// Wants to know how a body ended. Called exactly once, from wherever the body was polled or
/// dropped: it must not block.
///
/// A trait and not only a closure, so that something that is boxed already (a connection going back
/// to its pool) costs no further allocation.
pub trait OnEnd: Send {
    /// Trailers came; the end follows.
    fn on_trailers(&mut self, _trailers: &HeaderMap) {}

    /// The body has ended.
    fn on_end(self: Box<Self>, end: &BodyEnd);
}

impl<F: FnOnce(&BodyEnd) + Send> OnEnd for F {
    fn on_end(self: Box<Self>, end: &BodyEnd) {
        (*self)(end);
    }
}
