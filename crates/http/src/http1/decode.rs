//! Decodes a body from the bytes of a connection. It says what the first bytes are and is told when
//! they are consumed, so it copies nothing. Knows nothing about connections.
//!
//! Chunks are parsed more strictly than the RFC demands: a size has 1 to 15 digits, lines end in
//! CRLF, extensions are visible characters and bounded, and trailers are valid fields.

use http::{HeaderMap, HeaderName, HeaderValue};
use memchr::memchr;

use super::{Framing, FramingError};

/// Maximum bytes of a chunk's first line, including extensions.
const CHUNK_LINE_BYTES_MAX: usize = 4 << 10;
/// Maximum bytes of all extensions of one body.
const EXTENSION_BYTES_MAX: usize = 16 << 10;
/// Maximum digits of a chunk's size, so that it can't overflow.
const SIZE_DIGITS_MAX: usize = 15;
/// Maximum bytes and number of a body's trailers.
pub(crate) const TRAILER_BYTES_MAX: usize = 16 << 10;
const TRAILERS_MAX: usize = 64;

/// See the table in `mod.rs`.
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

/// The state of decoding one body.
#[derive(Debug)]
pub(crate) struct Decoder {
    state: State,
    extension_bytes: usize,
    trailers: Option<Box<HeaderMap>>,
}

/// What the first bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyPart {
    /// This many bytes of content.
    Data(usize),
    /// Incomplete: more bytes are needed.
    More,
    /// Not part of the body, which has ended.
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

    /// Says what `bytes` begin with. Calls `skip` with the length of each run of framing, which the
    /// caller has to remove from the front of its input. The result describes what follows it.
    ///
    /// # Errors
    /// The framing is broken.
    pub(crate) fn next(
        &mut self,
        mut bytes: &[u8],
        mut skip: impl FnMut(usize),
    ) -> Result<BodyPart, FramingError> {
        loop {
            let (skipped, state) = match self.state {
                State::Length(left) | State::Data(left) => {
                    let here = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                    return Ok(if here == 0 { BodyPart::More } else { BodyPart::Data(here) });
                }
                State::UntilClose => {
                    return Ok(if bytes.is_empty() {
                        BodyPart::More
                    } else {
                        BodyPart::Data(bytes.len())
                    });
                }
                State::End => return Ok(BodyPart::End),
                State::Size => match self.size(bytes)? {
                    None => return Ok(BodyPart::More),
                    Some((line, 0)) => (line, State::Trailers),
                    Some((line, size)) => (line, State::Data(size)),
                },
                State::DataEnd => match bytes {
                    [b'\r', b'\n', ..] => (2, State::Size),
                    [] | [b'\r'] => return Ok(BodyPart::More),
                    _ => return Err(FramingError("a chunk is longer than its size")),
                },
                State::Trailers => match self.trailers(bytes)? {
                    None => return Ok(BodyPart::More),
                    Some(length) => (length, State::End),
                },
            };
            self.state = state;
            skip(skipped);
            bytes = bytes.get(skipped..).unwrap_or_default();
        }
    }

    /// The caller has consumed the first `bytes` of content.
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

    /// The connection has ended. Returns whether the body is complete.
    pub(crate) fn close(&mut self) -> bool {
        if self.state == State::UntilClose {
            self.state = State::End;
        }
        self.state == State::End
    }

    pub(crate) fn is_end(&self) -> bool {
        self.state == State::End
    }

    /// The number of bytes left, if it was declared.
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

    /// Parses a chunk's first line: its length and the chunk's size (RFC 9112, 7.1).
    fn size(&mut self, bytes: &[u8]) -> Result<Option<(usize, u64)>, FramingError> {
        let digits = bytes.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        if digits > SIZE_DIGITS_MAX || (digits == 0 && !bytes.is_empty()) {
            return Err(FramingError("a chunk's size is not a number"));
        }
        let searched = bytes.get(..bytes.len().min(CHUNK_LINE_BYTES_MAX)).unwrap_or_default();
        let Some(end) = memchr(b'\n', searched) else {
            let rest = bytes.get(digits..).unwrap_or_default();
            check_extension(rest.strip_suffix(b"\r").unwrap_or(rest))?;
            return if bytes.len() >= CHUNK_LINE_BYTES_MAX {
                Err(FramingError("a chunk's first line is too long"))
            } else {
                Ok(None)
            };
        };
        let line = bytes
            .get(..end)
            .and_then(|line| line.strip_suffix(b"\r"))
            .ok_or(FramingError("a chunk's line ends without a carriage return"))?;
        let (digits, extension) =
            line.split_at_checked(digits).ok_or(FramingError("a chunk's size is not a number"))?;
        check_extension(extension)?;
        self.extension_bytes += extension.len();
        if self.extension_bytes > EXTENSION_BYTES_MAX {
            return Err(FramingError("the chunks' extensions are too long"));
        }
        let size = std::str::from_utf8(digits)
            .ok()
            .and_then(|digits| u64::from_str_radix(digits, 16).ok());
        Ok(Some((end + 1, size.ok_or(FramingError("a chunk's size is not a number"))?)))
    }

    /// Parses the trailers and returns their length with the empty line (RFC 9112, 7.1.2).
    fn trailers(&mut self, bytes: &[u8]) -> Result<Option<usize>, FramingError> {
        match bytes {
            [b'\r', b'\n', ..] => return Ok(Some(2)),
            [] | [b'\r'] => return Ok(None),
            _ => {}
        }
        let searched = bytes.get(..bytes.len().min(TRAILER_BYTES_MAX)).unwrap_or_default();
        let Some(end) = memchr::memmem::find(searched, b"\r\n\r\n") else {
            // Reported early, and not only when the limit is reached.
            return if bytes.len() >= TRAILER_BYTES_MAX || has_bare_line_end(searched) {
                Err(FramingError("the trailers are not valid"))
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
                        .map_err(|_| FramingError("a trailer's name is not valid"))?;
                    map.append(
                        name,
                        HeaderValue::from_bytes(field.value)
                            .map_err(|_| FramingError("a trailer's value is not valid"))?,
                    );
                }
                self.trailers = Some(Box::new(map));
                Ok(Some(end))
            }
            _ => Err(FramingError("the trailers are not valid")),
        }
    }
}

/// Checks what follows a chunk's size on its line: blanks, or extensions of visible characters.
fn check_extension(text: &[u8]) -> Result<(), FramingError> {
    let begins = text.iter().find(|byte| !matches!(byte, b' ' | b'\t'));
    let visible = text.iter().all(|byte| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7F));
    if visible && begins.is_none_or(|byte| *byte == b';') {
        Ok(())
    } else {
        Err(FramingError("a chunk's extension is not valid"))
    }
}

fn has_bare_line_end(block: &[u8]) -> bool {
    memchr::memchr_iter(b'\n', block)
        .any(|at| at.checked_sub(1).and_then(|before| block.get(before)) != Some(&b'\r'))
}
