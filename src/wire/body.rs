//! SKELETON
use bytes::Bytes;
use std::pin::Pin;
use std::task::{Context, Poll};
/// A streaming body. SKELETON
#[derive(Debug)]
pub struct Body(Option<Bytes>);
/// Why a body ended early.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The other side's connection failed, or its framing was wrong.
    #[error("the peer's body ended early: {0}")]
    Cut(#[source] hyper::Error),
    /// Nothing came for the idle timeout.
    #[error("the body stood still")]
    Idle,
    /// More than the route takes.
    #[error("the body is larger than {limit_bytes} bytes")]
    TooLarge {
        /// What the route takes.
        limit_bytes: u64,
    },
}
impl Body {
    /// No body.
    #[must_use]
    pub fn empty() -> Self {
        Self(None)
    }
    /// A whole body.
    #[must_use]
    pub fn full(bytes: Bytes) -> Self {
        Self(Some(bytes))
    }
}
impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;
    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<http_body::Frame<Bytes>, BodyError>>> {
        todo!()
    }
}
