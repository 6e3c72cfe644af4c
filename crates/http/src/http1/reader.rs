//! A connection's input and the body that is decoded from it. Knows neither whose connection it is
//! nor who reads the body.

use std::io;
use std::sync::Arc;
use std::task::{Poll, ready};

use http::HeaderMap;

use super::{BodyPart, Decoder, Framing};
use crate::wire::{BodyError, Buffer};

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Reader {
    /// Bytes that were read but not used yet.
    pub(crate) input: Buffer,
    decoder: Decoder,
    /// How many bytes at the start of `input` are content.
    content_bytes: usize,
}

impl Default for Reader {
    fn default() -> Self {
        Self::new(Buffer::default(), Framing::Length(0))
    }
}

impl Reader {
    /// A body with this framing starts with `input`.
    pub(crate) fn new(input: Buffer, framing: Framing) -> Self {
        Self { input, decoder: Decoder::new(framing), content_bytes: 0 }
    }

    /// Starts a body with this framing.
    pub(crate) fn begin(&mut self, framing: Framing) {
        self.decoder = Decoder::new(framing);
        self.content_bytes = 0;
    }

    /// Ready when there is content, or the body has ended. `read` fills the slice it is given and
    /// returns the number of bytes, 0 at the end of the connection.
    pub(crate) fn poll_content(
        &mut self,
        mut read: impl FnMut(&mut [u8]) -> Poll<io::Result<usize>>,
    ) -> Poll<Result<(), BodyError>> {
        loop {
            match self.next() {
                Ok(BodyPart::Data(bytes)) => {
                    self.content_bytes = bytes;
                    return Poll::Ready(Ok(()));
                }
                Ok(BodyPart::End) => return Poll::Ready(Ok(())),
                Ok(BodyPart::More) => {}
                Err(_) => return Poll::Ready(Err(BodyError::Malformed)),
            }
            match ready!(self.input.poll_fill_body(&mut read)) {
                Ok(0) if self.decoder.close() => return Poll::Ready(Ok(())),
                Ok(0) => {
                    return Poll::Ready(Err(BodyError::Cut(Arc::new(io::Error::from(
                        io::ErrorKind::UnexpectedEof,
                    )))));
                }
                Ok(_) => {}
                Err(error) => return Poll::Ready(Err(BodyError::Cut(Arc::new(error)))),
            }
        }
    }

    /// Discards what has arrived of the body. Returns whether that was the rest of it.
    pub(crate) fn discard(&mut self) -> bool {
        self.content_bytes = 0;
        while let Ok(BodyPart::Data(bytes)) = self.next() {
            self.input.consume(bytes);
            self.decoder.consumed(bytes);
        }
        self.decoder.is_end()
    }

    fn next(&mut self) -> Result<BodyPart, super::FramingError> {
        let mut skipped = 0;
        let next = self.decoder.next(self.input.bytes(), |bytes| skipped += bytes);
        self.input.consume(skipped);
        next
    }

    /// The content that is available now.
    pub(crate) fn content(&self) -> &[u8] {
        self.input.bytes().get(..self.content_bytes).unwrap_or_default()
    }

    /// Consumes the first `bytes` of it.
    pub(crate) fn consume(&mut self, bytes: usize) {
        let bytes = bytes.min(self.content_bytes);
        self.content_bytes -= bytes;
        self.input.consume(bytes);
        self.decoder.consumed(bytes);
    }

    /// The bytes of content still to come, if known.
    pub(crate) fn remaining(&self) -> Option<u64> {
        self.decoder.remaining()
    }

    /// Whether the body has ended.
    pub(crate) fn is_end(&self) -> bool {
        self.decoder.is_end()
    }

    /// Takes the body's trailers.
    pub(crate) fn take_trailers(&mut self) -> Option<HeaderMap> {
        self.decoder.take_trailers()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a body that arrives in these pieces, with a `Pending` before each, followed by the end
    /// of the connection. Returns its content and how it ended.
    fn read(framing: Framing, pieces: &[&str]) -> (String, Result<(), BodyError>, Reader) {
        let mut answers =
            pieces.iter().flat_map(|piece| [None, Some(*piece)]).chain([None, Some("")]);
        let (mut reader, mut content) = (Reader::new(Buffer::default(), framing), String::new());
        loop {
            let filled = reader.poll_content(|room| match answers.next() {
                Some(Some(piece)) => {
                    room[..piece.len()].copy_from_slice(piece.as_bytes());
                    Poll::Ready(Ok(piece.len()))
                }
                Some(None) => Poll::Pending,
                None => panic!("read on after the end"),
            });
            match filled {
                Poll::Pending => {}
                Poll::Ready(Err(error)) => return (content, Err(error), reader),
                Poll::Ready(Ok(())) if reader.content().is_empty() => {
                    return (content, Ok(()), reader);
                }
                Poll::Ready(Ok(())) => {
                    content.push(char::from(reader.content()[0]));
                    reader.consume(1);
                }
            }
        }
    }

    #[test]
    fn a_body_is_its_content_and_what_follows_stays() {
        for (framing, pieces, left) in [
            (Framing::Length(5), &["he", "lloGET"][..], "GET"),
            (Framing::Chunked, &["2\r", "\nhe\r\n3\r\nl", "lo\r\n0\r\n\r\nGET"], "GET"),
            (Framing::UntilClose, &["he", "llo"], ""),
        ] {
            let (content, end, reader) = read(framing, pieces);
            assert!(end.is_ok() && reader.is_end(), "{framing:?}: {end:?}");
            assert_eq!(
                (content.as_str(), reader.input.bytes()),
                ("hello", left.as_bytes()),
                "{framing:?}"
            );
        }
    }

    #[test]
    fn a_body_that_ends_early_or_is_none_is_an_error() {
        assert!(matches!(read(Framing::Length(6), &["hello"]).1, Err(BodyError::Cut(_))));
        assert!(matches!(read(Framing::Chunked, &["5\r\nhello\r\n"]).1, Err(BodyError::Cut(_))));
        assert!(matches!(read(Framing::Chunked, &["5\r\nhelloX"]).1, Err(BodyError::Malformed)));
    }

    #[test]
    fn unread_bytes_are_discarded_as_far_as_they_have_come() {
        let put = |reader: &mut Reader, bytes: &str| reader.input.push(bytes.as_bytes());
        let mut reader = Reader::new(Buffer::default(), Framing::Chunked);
        put(&mut reader, "5\r\nhello\r\n3\r\nab");
        assert!(!reader.discard() && reader.input.is_empty());
        put(&mut reader, "c\r\n0\r\n\r\nGET");
        assert!(reader.discard());
        assert_eq!(reader.input.bytes(), b"GET");
    }
}
