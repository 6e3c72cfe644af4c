//! What both ends of the proxy share: the body type that streams through it, and its errors.

use bytes::Bytes;

mod body;

pub use body::{Body, BodyError};

/// A request on its way through.
pub type Request = http::Request<Body>;
/// A reply on its way through.
pub type Response = http::Response<Body>;

/// A short whole body.
#[must_use]
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Body::full(bytes.into())
}
