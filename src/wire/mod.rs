//! What both ends of the proxy share: the body that streams through it, how a body ends, and a timer that is cheap to move. Knows no route, no
//! limit and no upstream.

use bytes::Bytes;

mod alarm;
mod body;
mod end;
mod stream;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use alarm::Alarm;
pub use body::{Body, BodyError};
pub use end::{End, Ending, Failure, OnEnd};
pub(crate) use stream::Gathering;

/// A request on its way through.
pub type Request = http::Request<Body>;
/// A reply on its way through.
pub type Response = http::Response<Body>;

/// A short whole body.
#[must_use]
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Body::full(bytes.into())
}
