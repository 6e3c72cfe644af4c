//! A body's content out of a connection's bytes. Says what the first bytes are and is told when
//! they are gone; copies nothing. Knows no connection.
//!
//! Chunks are read more strictly than a message that is passed on unread would have to be: a size
//! is 1 to 15 digits, lines end in CRLF, extensions are visible and bounded, trailers are fields.

use http::{HeaderMap, HeaderName, HeaderValue};
use memchr::memchr;

use super::{Framing, Malformed};

/// Bytes of one chunk's first line, extensions and all, at most.
const CHUNK_LINE_BYTES_MAX: usize = 4 << 10;
/// Bytes of all extensions of one body, at most.
const EXTENSION_BYTES_MAX: usize = 16 << 10;
/// Digits of a chunk's size, at most: no sum of them overflows.
const SIZE_DIGITS_MAX: usize = 15;
/// Bytes of a body's trailers, and their number, at most.
pub(crate) const TRAILER_BYTES_MAX: usize = 16 << 10;
const TRAILERS_MAX: usize = 64;

/// See the table in this module's `mod.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Length(u64),
    UntilClose,
    Size,
    Data(u64),
    DataEnd,
    Trailers,
    End,
}

/// Where one body is.
#[derive(Debug)]
pub(crate) struct Decoder {
    state: State,
    extension_bytes: usize,
    trailers: Option<Box<HeaderMap>>,
}

/// What the first bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// So many bytes of content.
    Data(usize),
    /// Too few to tell.
    More,
    /// No part of the body: it is over.
    End,
}

impl Decoder {
    pub(crate) fn new(framing: Framing) -> Self {
        let state = match framing {
            Framing::Length(0) => State::End,
            Framing::Length(bytes) => State::Length(bytes),
            Framing::Chunked => State::Size,
            Framing::UntilClose => State::UntilClose,
        };
        Self { state, extension_bytes: 0, trailers: None }
    }

    /// What `bytes` begin with. `skip` is called for each run of framing: so many of the first
    /// bytes are to be thrown away, and are gone for this method.
    ///
    /// # Errors
    /// They are no body.
    pub(crate) fn next(
        &mut self,
        mut bytes: &[u8],
        mut skip: impl FnMut(usize),
    ) -> Result<Next, Malformed> {
        loop {
            let (skipped, state) = match self.state {
                State::Length(left) | State::Data(left) => {
                    let here = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                    return Ok(if here == 0 { Next::More } else { Next::Data(here) });
                }
                State::UntilClose => {
                    return Ok(if bytes.is_empty() { Next::More } else { Next::Data(bytes.len()) });
                }
                State::End => return Ok(Next::End),
                State::Size => match self.size(bytes)? {
                    None => return Ok(Next::More),
                    Some((line, 0)) => (line, State::Trailers),
                    Some((line, size)) => (line, State::Data(size)),
                },
                State::DataEnd => match bytes {
                    [b'\r', b'\n', ..] => (2, State::Size),
                    [] | [b'\r'] => return Ok(Next::More),
                    _ => return Err(Malformed("a chunk is longer than its size")),
                },
                State::Trailers => match self.trailers(bytes)? {
                    None => return Ok(Next::More),
                    Some(length) => (length, State::End),
                },
            };
            self.state = state;
            skip(skipped);
            bytes = bytes.get(skipped..).unwrap_or_default();
        }
    }

    /// The first `bytes` of content are gone.
    pub(crate) fn consumed(&mut self, bytes: usize) {
        let taken = bytes as u64;
        self.state = match self.state {
            State::Length(left) if left <= taken => State::End,
            State::Length(left) => State::Length(left - taken),
            State::Data(left) if left <= taken => State::DataEnd,
            State::Data(left) => State::Data(left - taken),
            state => state,
        };
    }

    /// The connection's bytes have ended: whether that is the body's end too.
    pub(crate) fn close(&mut self) -> bool {
        if self.state == State::UntilClose {
            self.state = State::End;
        }
        self.state == State::End
    }

    pub(crate) fn is_end(&self) -> bool {
        self.state == State::End
    }

    /// Bytes that are left, where they were declared.
    pub(crate) fn remaining(&self) -> Option<u64> {
        match self.state {
            State::Length(left) => Some(left),
            State::End if self.trailers.is_none() => Some(0),
            _ => None,
        }
    }

    pub(crate) fn take_trailers(&mut self) -> Option<HeaderMap> {
        self.trailers.take().map(|trailers| *trailers)
    }

    /// A chunk's first line and its size (RFC 9112, 7.1).
    fn size(&mut self, bytes: &[u8]) -> Result<Option<(usize, u64)>, Malformed> {
        let digits = bytes.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        if digits > SIZE_DIGITS_MAX || (digits == 0 && !bytes.is_empty()) {
            return Err(Malformed("a chunk's size is no number"));
        }
        let searched = bytes.get(..bytes.len().min(CHUNK_LINE_BYTES_MAX)).unwrap_or_default();
        let Some(end) = memchr(b'\n', searched) else {
            let rest = bytes.get(digits..).unwrap_or_default();
            check_extension(rest.strip_suffix(b"\r").unwrap_or(rest))?;
            return if bytes.len() >= CHUNK_LINE_BYTES_MAX {
                Err(Malformed("a chunk's first line is too long"))
            } else {
                Ok(None)
            };
        };
        let line = bytes
            .get(..end)
            .and_then(|line| line.strip_suffix(b"\r"))
            .ok_or(Malformed("a chunk's line ends without a carriage return"))?;
        let (digits, extension) =
            line.split_at_checked(digits).ok_or(Malformed("a chunk's size is no number"))?;
        check_extension(extension)?;
        self.extension_bytes += extension.len();
        if self.extension_bytes > EXTENSION_BYTES_MAX {
            return Err(Malformed("the chunks' extensions are too long"));
        }
        let size = std::str::from_utf8(digits)
            .ok()
            .and_then(|digits| u64::from_str_radix(digits, 16).ok());
        Ok(Some((end + 1, size.ok_or(Malformed("a chunk's size is no number"))?)))
    }

    /// The trailers' length with their empty line (RFC 9112, 7.1.2).
    fn trailers(&mut self, bytes: &[u8]) -> Result<Option<usize>, Malformed> {
        match bytes {
            [b'\r', b'\n', ..] => return Ok(Some(2)),
            [] | [b'\r'] => return Ok(None),
            _ => {}
        }
        let searched = bytes.get(..bytes.len().min(TRAILER_BYTES_MAX)).unwrap_or_default();
        let Some(end) = memchr::memmem::find(searched, b"\r\n\r\n") else {
            // Told early, not only when the limit is reached.
            return if bytes.len() >= TRAILER_BYTES_MAX || has_bare_line_end(searched) {
                Err(Malformed("the trailers are none"))
            } else {
                Ok(None)
            };
        };
        let end = end + 4;
        let block = bytes.get(..end).unwrap_or_default();
        let mut lines = [httparse::EMPTY_HEADER; TRAILERS_MAX];
        match httparse::parse_headers(block, &mut lines) {
            Ok(httparse::Status::Complete((length, fields)))
                if length == end && !has_bare_line_end(block) =>
            {
                let mut map = HeaderMap::with_capacity(fields.len());
                for field in fields {
                    let name = HeaderName::from_bytes(field.name.as_bytes())
                        .map_err(|_| Malformed("a trailer's name is none"))?;
                    map.append(
                        name,
                        HeaderValue::from_bytes(field.value)
                            .map_err(|_| Malformed("a trailer's value is none"))?,
                    );
                }
                self.trailers = Some(Box::new(map));
                Ok(Some(end))
            }
            _ => Err(Malformed("the trailers are none")),
        }
    }
}

/// What stands between a chunk's size and its line's end: blanks, or extensions that are visible.
fn check_extension(text: &[u8]) -> Result<(), Malformed> {
    let begins = text.iter().find(|byte| !matches!(byte, b' ' | b'\t'));
    let visible = text.iter().all(|byte| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7F));
    if visible && begins.is_none_or(|byte| *byte == b';') {
        Ok(())
    } else {
        Err(Malformed("a chunk's extension is none"))
    }
}

fn has_bare_line_end(block: &[u8]) -> bool {
    memchr::memchr_iter(b'\n', block)
        .any(|at| at.checked_sub(1).and_then(|before| block.get(before)) != Some(&b'\r'))
}
