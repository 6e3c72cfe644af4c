//! What both ends of the proxy share: a request and a reply on their way through (`message`), their
//! fields (`fields`, `known`), the body that streams through (`body`) and how it ends, the bytes of
//! a connection (`buffer`) and how many of them the process holds (`budget`), a client's network
//! (`network`), how slowly a peer may move a body (`pace`), TLS material, a timer that is cheap to
//! move (`alarm`), and whether descriptors have run out. Knows no route, no limit and no upstream.

use bytes::Bytes;

mod body;
mod budget;
mod buffer;
mod content;
mod descriptors;
mod end;
mod fields;
mod known;
mod linger;
mod message;
mod network;
mod pace;
#[cfg(test)]
pub(crate) mod pki;
#[cfg(test)]
pub(crate) mod tests;
mod timeouts;
mod timer;
mod tls;

pub use body::{Body, BodyError, Source};
pub use budget::buffered_bytes;
pub(crate) use budget::{Charge, counted};
pub(crate) use buffer::{Buffer, PLAIN_BYTES, trim as trim_buffers};
#[cfg(test)]
pub(crate) use content::FRAME_BYTES_MAX;
pub use descriptors::is_out_of_descriptors;
pub use end::{BodyEnd, BodyFailure, BodyOutcome, OnEnd};
pub use fields::Fields;
pub(crate) use fields::Span;
pub use known::{Known, KnownSet, Name};
pub use message::{InterimSender, Request, Response, Stream, Upgrade};
pub use network::Network;
pub(crate) use pace::Pace;
pub use pace::Rate;
pub(crate) use timer::Timer;
pub use tls::{Identity, PEM_BYTES_MAX, Pem, provider};

/// A short whole body.
#[must_use]
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Body::full(bytes.into())
}
