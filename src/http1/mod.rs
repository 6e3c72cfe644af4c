//! HTTP/1.1 for both ends: heads in and out, where a body ends, and how bytes are sent. Knows no
//! route, no pool and no timeout: `listen` and `upstream` own the connections and drive them with
//! what is here.
//!
//! Read on in `head` (a request's or a reply's head out of a buffer), `framing` (how long its body
//! is), `decode` (a body's bytes out of the buffer) and `reader` (the buffer with them), `write`
//! (heads into a buffer) and `send` (head and body onto a connection).
//!
//! A message's body, as [`Decoder`] reads it (RFC 9112, 6 and 7); in each state, what the next
//! bytes mean:
//!
//! | state | the bytes are | then | ends early |
//! |---|---|---|---|
//! | `Length` | content, as many as declared | `End` | `Cut` |
//! | `UntilClose` | content | `End` at the connection's end | - |
//! | `Size` | a chunk's size, extensions, CRLF | `Data`, or `Trailers` after size 0 | `Cut`; anything else `Malformed` |
//! | `Data` | content, as many as the size said | `DataEnd` | `Cut` |
//! | `DataEnd` | CRLF | `Size` | `Cut`; anything else `Malformed` |
//! | `Trailers` | field lines, and an empty one | `End` | `Cut`; anything else `Malformed` |
//! | `End` | the next message's | - | - |

mod date;
mod decode;
mod framing;
mod head;
mod reader;
mod send;
#[cfg(test)]
mod tests;
mod write;

pub(crate) use decode::{Decoder, Next};
pub(crate) use framing::Framing;
pub(crate) use head::{HeadError, ReplyHead, RequestHead, Scan};
#[cfg(test)]
use head::{reply, request};
pub(crate) use reader::Reader;
pub(crate) use send::{Encoding, Outbox, SendError};
pub(crate) use write::{reply_head, request_head};

/// What an HTTP/2 connection begins with (RFC 9113, 3.4).
pub(crate) const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The body's framing is broken: its connection can't be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Malformed(pub(crate) &'static str);
