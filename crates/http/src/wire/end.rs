//! How a body ended, and hooks that are called when it does. Knows nothing about what the hooks do.

use http::HeaderMap;

/// How a body ended, as passed to the hooks added with [`Body::on_end`](super::Body::on_end).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyEnd {
    /// Whether it is complete, and if not, why.
    pub outcome: BodyOutcome,
    /// Bytes of data that were read, without framing and trailers.
    pub bytes: u64,
    /// Whether there were trailers.
    pub trailers: bool,
    /// Its reader went away, but the rest was read on to its end.
    pub rest_read: bool,
}

/// The possible outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyOutcome {
    /// It was read to its end.
    Complete,
    /// Reading it failed.
    Failed(BodyFailure),
    /// It was dropped before its end: the reader, or the connection it was sent to, went away.
    Dropped,
}

/// A [`BodyError`](super::BodyError) without its details.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFailure {
    /// The connection failed, or the framing was wrong.
    Cut,
    /// Nothing arrived within the idle timeout, or too slowly.
    Idle,
    /// The deadline of its message passed.
    Overdue,
    /// It was larger than the limit.
    TooLarge,
}

/// A hook that is called when a body ends. `on_end` is called exactly once, wherever the body is
/// polled or dropped, so it must not block.
///
/// This is a trait, and not just a closure, so that a value that is already boxed (such as a
/// connection on its way back to its pool) needs no further allocation.
pub trait OnEnd: Send {
    /// The body has trailers. Called before `on_end`.
    fn on_trailers(&mut self, _trailers: &HeaderMap) {}

    /// The body has ended.
    fn on_end(self: Box<Self>, end: &BodyEnd);
}

impl<F: FnOnce(&BodyEnd) + Send> OnEnd for F {
    fn on_end(self: Box<Self>, end: &BodyEnd) {
        (*self)(end);
    }
}
