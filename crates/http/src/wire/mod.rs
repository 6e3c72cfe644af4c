//! What both ends of the proxy share: requests and replies (`message`), their header fields
//! (`fields`, `known`), their bodies (`body`, `stream`, `end`, `trailers`), a connection's buffers
//! (`buffer`) and how many bytes they hold in total (`budget`), a client's network (`network`), the
//! minimum rate of a transfer (`pace`), a cheap deadline (`timer`), wrappers around a byte stream
//! (`delegate`), and the proof of a WebSocket's handshake (`websocket`). Knows nothing about
//! routes, limits or upstreams.

use bytes::Bytes;

mod body;
mod budget;
mod buffer;
mod content;
mod delegate;
mod descriptors;
mod end;
mod fields;
mod known;
mod linger;
mod message;
mod network;
mod pace;
mod read_on;
mod stream;
#[cfg(test)]
pub(crate) mod tests;
mod timeouts;
mod timer;
mod trailers;
pub mod websocket;

pub use body::{Body, BodyError, Source};
pub use budget::{Charge, buffered_bytes, counted};
pub(crate) use buffer::{Buffer, PLAIN_BYTES, trim as trim_buffers};
#[cfg(test)]
pub(crate) use content::FRAME_BYTES_MAX;
pub use content::Observer;
pub(crate) use delegate::{DisconnectedStream, delegate_write};
pub use descriptors::is_out_of_descriptors;
pub use end::{BodyEnd, BodyFailure, BodyOutcome, OnEnd};
pub(crate) use fields::Span;
pub use fields::{Fields, is_padded};
pub use known::{Known, KnownSet, Name};
pub use message::{InterimFilter, InterimSender, Request, Response, Stream, Upgrade};
pub use network::Network;
pub(crate) use pace::Pace;
pub use pace::Rate;
pub use read_on::{ReadOn, wait_for_read_on};
pub use stream::{RequestStream, declared_length};
pub use timer::Timer;
pub use trailers::TrailerFilter;

/// A body that is complete in memory.
#[must_use]
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Body::full(bytes.into())
}
