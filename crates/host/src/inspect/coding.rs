//! Undoes a content coding (RFC 9110, 8.4.1) of a stream that is itself passed on unchanged.

use std::io::{self, Write};
use std::mem;

/// The largest zstd window that is decoded, as a power of two: 8 MiB, as RFC 9659 says for HTTP.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;
/// The size of a decoder's output buffer, in bytes.
const BUFFER_BYTES: usize = 16 << 10;

/// Maximum number of bytes that are decoded at once, and of what they decode to. A body that
/// contains more in so few bytes is made to exhaust memory.
const PART_BYTES: usize = 2 << 10;
const CONTENT_BYTES_MAX: usize = 256 << 10;

/// What a decoder writes to. It is emptied after each part.
#[derive(Default)]
pub(super) struct DecodeBuffer(Vec<u8>);

impl Write for DecodeBuffer {
    fn write(&mut self, content: &[u8]) -> io::Result<usize> {
        if self.0.len() + content.len() > CONTENT_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.0.extend_from_slice(content);
        Ok(content.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Undoes the codings of one body.
pub(super) enum Decoder {
    /// The body has no coding.
    Identity,
    Gzip(Box<flate2::write::MultiGzDecoder<DecodeBuffer>>),
    Deflate(Box<flate2::write::ZlibDecoder<DecodeBuffer>>),
    Brotli(Box<brotli_decompressor::DecompressorWriter<DecodeBuffer>>),
    Zstd(Box<zstd::stream::write::Decoder<'static, DecodeBuffer>>),
    /// The coding is unknown, or the data is not encoded in it.
    Unreadable,
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::Identity => "identity",
            Self::Gzip(_) => "gzip",
            Self::Deflate(_) => "deflate",
            Self::Brotli(_) => "br",
            Self::Zstd(_) => "zstd",
            Self::Unreadable => "unreadable",
        })
    }
}

impl Decoder {
    /// A decoder for a body with this coding. Nested codings are not undone: each could make a
    /// thousand bytes of one.
    pub(super) fn of(codings: &str) -> Self {
        let names = codings.split(',').map(str::trim);
        let mut names =
            names.filter(|name| !name.is_empty() && !name.eq_ignore_ascii_case("identity"));
        match (names.next(), names.next()) {
            (None, _) => Self::Identity,
            (Some(name), None) => Self::named(name),
            (Some(_), Some(_)) => Self::Unreadable,
        }
    }

    fn named(coding: &str) -> Self {
        let is = |name: &str| coding.eq_ignore_ascii_case(name);
        if is("gzip") || is("x-gzip") {
            Self::Gzip(Box::new(flate2::write::MultiGzDecoder::new(DecodeBuffer::default())))
        } else if is("deflate") {
            Self::Deflate(Box::new(flate2::write::ZlibDecoder::new(DecodeBuffer::default())))
        } else if is("br") {
            let decoder =
                brotli_decompressor::DecompressorWriter::new(DecodeBuffer::default(), BUFFER_BYTES);
            Self::Brotli(Box::new(decoder))
        } else if is("zstd") {
            zstd_decoder().map_or(Self::Unreadable, |decoder| Self::Zstd(Box::new(decoder)))
        } else {
            Self::Unreadable
        }
    }

    /// Undoes the next piece, and calls `sink` with what it contains.
    pub(super) fn feed(&mut self, piece: &[u8], sink: &mut dyn FnMut(&[u8])) {
        if let Self::Identity = self {
            return sink(piece);
        }
        for part in piece.chunks(PART_BYTES) {
            self.part(part, sink);
        }
    }

    fn part(&mut self, part: &[u8], sink: &mut dyn FnMut(&[u8])) {
        let decoded = match self {
            Self::Identity => return sink(part),
            Self::Unreadable => return,
            Self::Gzip(decoder) => decoded(decoder, part).map(|()| mem::take(decoder.get_mut())),
            Self::Deflate(decoder) => decoded(decoder, part).map(|()| mem::take(decoder.get_mut())),
            Self::Brotli(decoder) => decoded(decoder, part).map(|()| mem::take(decoder.get_mut())),
            Self::Zstd(decoder) => decoded(decoder, part).map(|()| mem::take(decoder.get_mut())),
        };
        match decoded {
            Ok(DecodeBuffer(content)) => sink(&content),
            Err(_) => *self = Self::Unreadable,
        }
    }
}

fn decoded(decoder: &mut impl Write, part: &[u8]) -> io::Result<()> {
    decoder.write_all(part)?;
    decoder.flush()
}

fn zstd_decoder() -> io::Result<zstd::stream::write::Decoder<'static, DecodeBuffer>> {
    let mut decoder = zstd::stream::write::Decoder::new(DecodeBuffer::default())?;
    decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
    Ok(decoder)
}
