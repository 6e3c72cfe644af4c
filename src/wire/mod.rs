//! What both ends of the proxy share: the body that streams through it, how a body ends, TLS material, byte streams that save calls, and a timer that
//! is cheap to move. Knows no route, no limit and no upstream.

use bytes::Bytes;

mod alarm;
mod body;
mod end;
#[cfg(test)]
pub(crate) mod pki;
mod quiet;
mod stream;
#[cfg(test)]
pub(crate) mod tests;
mod tls;

pub(crate) use alarm::Alarm;
pub use body::{Body, BodyError};
pub use end::{End, Ending, Failure, OnEnd, Read};
pub(crate) use quiet::Quiet;
pub(crate) use stream::Gathering;
pub use tls::{Identity, PEM_BYTES_MAX, Pem, provider};

/// A request on its way through.
pub type Request = http::Request<Body>;
/// A reply on its way through.
pub type Response = http::Response<Body>;

/// A short whole body.
#[must_use]
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Body::full(bytes.into())
}
