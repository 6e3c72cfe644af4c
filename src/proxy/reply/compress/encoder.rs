//! The three compressors behind one interface, each with bounded memory. Knows no body.

use std::io::{self, Write as _};
use std::mem;

use brotli::CompressorWriter;
use brotli::enc::BrotliEncoderParams;
use flate2::write::GzEncoder;
use zstd::zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd::zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer, get_error_name};

use crate::proxy::settings::{CompressionLevel, ContentCoding};

/// The window of zstd and of brotli, as a power of two: 64 KiB. Larger ones gain little with what
/// APIs answer, and each reply under way would hold them.
const WINDOW_LOG: u32 = 16;
/// How much room is made for output at a time, in bytes.
const ROOM_BYTES: usize = 8 << 10;
/// The buffer between brotli and its output, in bytes.
const BROTLI_BUFFER_BYTES: usize = 4 << 10;
/// What a compressor of gzip holds, in bytes, as measured.
const GZIP_BYTES: usize = 300 << 10;

/// A compressor under way.
pub(super) enum Encoder {
    Gzip(Box<GzEncoder<Vec<u8>>>),
    /// With the bytes that it holds.
    Brotli(Box<CompressorWriter<Vec<u8>>>, usize),
    Zstd(CCtx<'static>),
}

impl Encoder {
    /// A compressor for content of this length, if that is known. None without memory for it.
    pub(super) fn new(
        coding: ContentCoding,
        level: CompressionLevel,
        length: Option<u64>,
    ) -> Option<Self> {
        match coding {
            ContentCoding::Gzip => {
                let level = match level {
                    CompressionLevel::Fast => 1,
                    CompressionLevel::Default => 5,
                    CompressionLevel::Best => 9,
                };
                let level = flate2::Compression::new(level);
                Some(Self::Gzip(Box::new(GzEncoder::new(Vec::new(), level))))
            }
            ContentCoding::Brotli => {
                // What each quality holds with this window, as measured.
                let (quality, held_bytes) = match level {
                    CompressionLevel::Fast => (1, 128 << 10),
                    CompressionLevel::Default => (4, 512 << 10),
                    CompressionLevel::Best => (5, 1_536 << 10),
                };
                let parameters = BrotliEncoderParams {
                    quality,
                    lgwin: i32::try_from(WINDOW_LOG).ok()?,
                    size_hint: length.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0),
                    ..BrotliEncoderParams::default()
                };
                let writer =
                    CompressorWriter::with_params(Vec::new(), BROTLI_BUFFER_BYTES, &parameters);
                Some(Self::Brotli(Box::new(writer), held_bytes))
            }
            ContentCoding::Zstd => zstd(level, length).map(Self::Zstd),
        }
    }

    /// About how many bytes it holds.
    pub(super) fn held_bytes(&self) -> usize {
        match self {
            Self::Gzip(_) => GZIP_BYTES,
            Self::Brotli(_, held_bytes) => *held_bytes,
            Self::Zstd(context) => context.sizeof(),
        }
    }

    /// Compresses a piece. `out`, which is empty, gets what comes out by now, if anything.
    ///
    /// # Errors
    /// The compressor failed, after which nothing more may be asked of it.
    pub(super) fn feed(&mut self, piece: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        match self {
            Self::Gzip(writer) => {
                writer.write_all(piece)?;
                mem::swap(out, writer.get_mut());
            }
            Self::Brotli(writer, _) => {
                writer.write_all(piece)?;
                mem::swap(out, writer.get_mut());
            }
            Self::Zstd(context) => run(context, piece, ZSTD_EndDirective::ZSTD_e_continue, out)?,
        }
        Ok(())
    }

    /// Lets out all that was fed, so that the client can decode it.
    ///
    /// # Errors
    /// As for [`feed`](Self::feed).
    pub(super) fn flush(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        match self {
            Self::Gzip(writer) => {
                writer.flush()?;
                mem::swap(out, writer.get_mut());
            }
            Self::Brotli(writer, _) => {
                writer.flush()?;
                mem::swap(out, writer.get_mut());
            }
            Self::Zstd(context) => run(context, &[], ZSTD_EndDirective::ZSTD_e_flush, out)?,
        }
        Ok(())
    }

    /// Lets out the rest, with the end of the coding.
    ///
    /// # Errors
    /// As for [`feed`](Self::feed).
    pub(super) fn finish(self, out: &mut Vec<u8>) -> io::Result<()> {
        match self {
            Self::Gzip(writer) => *out = writer.finish()?,
            Self::Brotli(writer, _) => *out = writer.into_inner(),
            Self::Zstd(mut context) => {
                run(&mut context, &[], ZSTD_EndDirective::ZSTD_e_end, out)?;
            }
        }
        Ok(())
    }
}

/// A compressor of zstd whose tables are of the window's size: with those that belong to its levels
/// it would hold megabytes.
fn zstd(level: CompressionLevel, length: Option<u64>) -> Option<CCtx<'static>> {
    let (level, table_log) = match level {
        CompressionLevel::Fast => (1, 14),
        CompressionLevel::Default => (3, 14),
        CompressionLevel::Best => (6, 15),
    };
    let mut context = CCtx::try_create()?;
    for parameter in [
        CParameter::CompressionLevel(level),
        CParameter::WindowLog(WINDOW_LOG),
        CParameter::HashLog(table_log),
        CParameter::ChainLog(table_log),
    ] {
        context.set_parameter(parameter).ok()?;
    }
    context.set_pledged_src_size(length).ok()?;
    Some(context)
}

fn run(
    context: &mut CCtx<'static>,
    piece: &[u8],
    end: ZSTD_EndDirective,
    out: &mut Vec<u8>,
) -> io::Result<()> {
    let mut input = InBuffer::around(piece);
    loop {
        out.reserve(ROOM_BYTES);
        let start = out.len();
        let mut output = OutBuffer::around_pos(out, start);
        let left = context
            .compress_stream2(&mut output, &mut input, end)
            .map_err(|code| io::Error::other(get_error_name(code)))?;
        let is_done = match end {
            ZSTD_EndDirective::ZSTD_e_continue => input.pos() == piece.len(),
            _ => left == 0,
        };
        if is_done {
            return Ok(());
        }
    }
}
