//! HTTP/1.1 for both ends: parsing and writing heads, finding where a body ends, and sending
//! messages. Knows nothing about routes, pools or timeouts: `listen` and `upstream` own the
//! connections and use this to drive them.
//!
//! Where to read on: `head` parses the head of a request or a reply, `framing` decides how long its
//! body is, `decode` decodes the body, and `reader` does so on a connection's input. `write` writes
//! heads, `send` sends a head with its body. `error` has the errors of parsing and decoding.
//!
//! The states of [`Decoder`] while it reads a body (RFC 9112, 6 and 7), with the error if the
//! connection ends early:
//!
//! | state | the next bytes are | next state | ends early |
//! |---|---|---|---|
//! | `Length` | content, as many bytes as declared | `End` | `Cut` |
//! | `UntilClose` | content | `End` when the connection ends | - |
//! | `Size` | a chunk's size, extensions, CRLF | `Data`, or `Trailers` after size 0 | `Cut`; anything else is `FramingError` |
//! | `Data` | content, as many bytes as the chunk's size | `DataEnd` | `Cut` |
//! | `DataEnd` | CRLF | `Size` | `Cut`; anything else is `FramingError` |
//! | `Trailers` | field lines and an empty line | `End` | `Cut`; anything else is `FramingError` |
//! | `End` | the next message | - | - |

mod date;
mod decode;
mod error;
mod framing;
mod head;
mod reader;
mod send;
#[cfg(test)]
mod tests;
mod write;

pub(crate) use date::value as date_value;
pub(crate) use decode::{BodyPart, Decoder};
pub(crate) use error::{FramingError, HeadError};
pub(crate) use framing::Framing;
pub(crate) use head::{ReplyHead, RequestHead, Scan};
#[cfg(test)]
use head::{reply, request};
pub(crate) use reader::Reader;
pub(crate) use send::{Encoding, Outbox, SendError};
pub(crate) use write::{reply_head, request_head};

/// How an HTTP/2 connection begins (RFC 9113, 3.4).
pub(crate) const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
