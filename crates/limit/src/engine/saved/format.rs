//! The format of saved counters: blocks, each with a digest of itself and of all before it, so that
//! a file that is torn, mixed up or changed is noticed before anything of it is used.
//!
//! After [`MAGIC`], each block is a kind (1 byte), the payload's length (4 bytes), the payload, and
//! 16 bytes of BLAKE3. Numbers are little-endian. The first block is [`Kind::Header`], the last one
//! [`Kind::End`], which [`Kind::Operations`] follow in a hand-over. Must not know what a counter
//! is.

use std::io::{self, Read, Write};

/// How saved counters begin. The number is the format's version.
pub(super) const MAGIC: &[u8; 16] = b"weir snapshot 1\n";
/// What every version begins with.
const MAGIC_OF_ANY_VERSION: &[u8] = b"weir snapshot ";
/// Maximum length of a payload.
pub(super) const BLOCK_BYTES_MAX: usize = 1 << 20;
const DIGEST_BYTES: usize = 16;

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Header = 1,
    Spaces = 2,
    Counters = 3,
    /// Counters are complete, as far as they had been counted when saving began. More follows.
    Pause = 4,
    /// The number of counters.
    End = 5,
    /// Counters that are gone, in a hand-over.
    Removed = 6,
    /// What is done to counters after the end of a hand-over.
    Operations = 7,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        let all = [
            Self::Header,
            Self::Spaces,
            Self::Counters,
            Self::Pause,
            Self::End,
            Self::Removed,
            Self::Operations,
        ];
        all.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// Why saved counters can't be used.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("found no Weir snapshot, expected one that begins with \"weir snapshot 1\"")]
    Foreign,
    #[error("found a snapshot of another version of Weir, expected version 1 of the format")]
    Version,
    #[error("found its end after {0} bytes, expected more: it was not written completely")]
    Torn(u64),
    #[error("found bytes that do not match their digest in the block at byte {0}")]
    Digest(u64),
    #[error("found an invalid block at byte {0}")]
    Nonsense(u64),
    #[error(
        "found counters under another store.key_secret, expected the one that they were counted under"
    )]
    Secret,
}

/// Writes blocks.
pub(super) struct Writer<W> {
    out: W,
    digest: [u8; DIGEST_BYTES],
    bytes: u64,
}

impl<W: Write> Writer<W> {
    pub(super) fn new(mut out: W) -> io::Result<Self> {
        out.write_all(MAGIC)?;
        Ok(Self { out, digest: first_digest(), bytes: MAGIC.len() as u64 })
    }

    /// Writes a block. Its payload is at most [`BLOCK_BYTES_MAX`] long.
    pub(super) fn block(&mut self, kind: Kind, payload: &[u8]) -> io::Result<()> {
        let length = u32::try_from(payload.len()).ok().filter(|_| payload.len() <= BLOCK_BYTES_MAX);
        let length = length.ok_or(io::ErrorKind::InvalidInput)?.to_le_bytes();
        self.digest = next_digest(&self.digest, kind as u8, payload);
        self.out.write_all(&[kind as u8])?;
        self.out.write_all(&length)?;
        self.out.write_all(payload)?;
        self.out.write_all(&self.digest)?;
        self.bytes += (1 + length.len() + payload.len() + DIGEST_BYTES) as u64;
        Ok(())
    }

    /// Bytes written so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Reads blocks.
pub(super) struct Reader<R> {
    input: R,
    digest: [u8; DIGEST_BYTES],
    at: u64,
    /// The kind of the next block, if it was read already.
    peeked: Option<u8>,
    payload: Vec<u8>,
}

impl<R: Read> Reader<R> {
    pub(super) fn new(mut input: R) -> Result<Self, FormatError> {
        let mut magic = [0; MAGIC.len()];
        read_exact(&mut input, &mut magic, 0).map_err(|error| match error {
            FormatError::Torn(_) => FormatError::Foreign,
            other => other,
        })?;
        match magic {
            _ if magic == *MAGIC => {}
            _ if magic.starts_with(MAGIC_OF_ANY_VERSION) => return Err(FormatError::Version),
            _ => return Err(FormatError::Foreign),
        }
        let at = MAGIC.len() as u64;
        Ok(Self { input, digest: first_digest(), at, peeked: None, payload: Vec::new() })
    }

    /// The byte at which the next block begins.
    pub(super) fn at(&self) -> u64 {
        self.at - u64::from(self.peeked.is_some())
    }

    /// The kind of the next block, which may turn out to be wrong when that is read.
    pub(super) fn peek(&mut self) -> Result<Kind, FormatError> {
        let byte = self.kind()?;
        Kind::of(byte).ok_or(FormatError::Nonsense(self.at()))
    }

    fn kind(&mut self) -> Result<u8, FormatError> {
        if let Some(byte) = self.peeked {
            return Ok(byte);
        }
        let mut kind = [0; 1];
        self.read(&mut kind)?;
        let [byte] = kind;
        self.peeked = Some(byte);
        Ok(byte)
    }

    /// Reads the next block, whose digest is right.
    pub(super) fn block(&mut self) -> Result<(Kind, &[u8]), FormatError> {
        let begins = self.at();
        let byte = self.kind()?;
        self.peeked = None;
        let kind = Kind::of(byte).ok_or(FormatError::Nonsense(begins))?;
        let mut length = [0; 4];
        self.read(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > BLOCK_BYTES_MAX {
            return Err(FormatError::Nonsense(begins));
        }
        let mut payload = std::mem::take(&mut self.payload);
        payload.resize(length, 0);
        self.read(&mut payload)?;
        let mut digest = [0; DIGEST_BYTES];
        self.read(&mut digest)?;
        self.digest = next_digest(&self.digest, byte, &payload);
        self.payload = payload;
        if digest != self.digest {
            return Err(FormatError::Digest(begins));
        }
        Ok((kind, &self.payload))
    }

    /// Whether nothing follows. Waits for the next block, or the end.
    pub(super) fn is_at_the_end(&mut self) -> Result<bool, FormatError> {
        if self.peeked.is_some() {
            return Ok(false);
        }
        let mut kind = [0; 1];
        loop {
            match self.input.read(&mut kind) {
                Ok(0) => return Ok(true),
                Ok(_) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        let [byte] = kind;
        self.at += 1;
        self.peeked = Some(byte);
        Ok(false)
    }

    /// Checks that nothing follows.
    pub(super) fn end(mut self) -> Result<(), FormatError> {
        match self.input.read(&mut [0; 1])? {
            0 => Ok(()),
            _ => Err(FormatError::Nonsense(self.at)),
        }
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<(), FormatError> {
        read_exact(&mut self.input, bytes, self.at)?;
        self.at += bytes.len() as u64;
        Ok(())
    }
}

/// Fills `bytes`, which begin at the byte `at` of the input.
fn read_exact(input: &mut impl Read, bytes: &mut [u8], at: u64) -> Result<(), FormatError> {
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match input.read(rest) {
            Ok(0) => return Err(FormatError::Torn(at + filled as u64)),
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn first_digest() -> [u8; DIGEST_BYTES] {
    shortened(blake3::hash(MAGIC))
}

fn next_digest(before: &[u8; DIGEST_BYTES], kind: u8, payload: &[u8]) -> [u8; DIGEST_BYTES] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(before).update(&[kind]).update(payload);
    shortened(hasher.finalize())
}

pub(super) fn shortened(hash: blake3::Hash) -> [u8; DIGEST_BYTES] {
    hash.as_bytes().first_chunk().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written() -> Vec<u8> {
        let mut writer = Writer::new(Vec::new()).unwrap();
        for (kind, payload) in [(Kind::Header, "h"), (Kind::Counters, "some"), (Kind::End, "")] {
            writer.block(kind, payload.as_bytes()).unwrap();
        }
        assert_eq!(writer.bytes() as usize, writer.out.len());
        writer.out
    }

    fn read(bytes: &[u8]) -> Result<Vec<(Kind, Vec<u8>)>, FormatError> {
        let mut reader = Reader::new(bytes)?;
        let mut all = Vec::new();
        loop {
            let (kind, payload) = reader.block()?;
            all.push((kind, payload.to_vec()));
            if kind == Kind::End {
                return Ok(all);
            }
        }
    }

    #[test]
    fn written_blocks_are_read_back() {
        let all = read(&written()).unwrap();
        let (kinds, payloads): (Vec<Kind>, Vec<Vec<u8>>) = all.into_iter().unzip();
        assert_eq!(kinds, [Kind::Header, Kind::Counters, Kind::End]);
        assert_eq!(payloads, [&b"h"[..], b"some", b""]);
        let mut writer = Writer::new(Vec::new()).unwrap();
        assert!(writer.block(Kind::Counters, &vec![0; BLOCK_BYTES_MAX + 1]).is_err());
    }

    #[test]
    fn every_torn_or_changed_file_is_noticed() {
        let whole = written();
        for length in 0..whole.len() {
            let error = read(&whole[..length]).unwrap_err();
            let torn = matches!(error, FormatError::Torn(at) if at == length as u64);
            assert!(torn || length < MAGIC.len(), "{length}: {error}");
        }
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut changed = whole.clone();
                changed[at] ^= 1 << bit;
                assert!(read(&changed).is_err(), "{at}");
            }
        }
        let version = [b"weir snapshot 9\n", &whole[MAGIC.len()..]].concat();
        assert!(matches!(read(&version), Err(FormatError::Version)));
        assert!(matches!(read(b"#!/bin/sh\necho hello, I am a script"), Err(FormatError::Foreign)));
    }

    #[test]
    fn a_block_of_another_file_is_noticed() {
        let (one, block) = (written(), MAGIC.len()..MAGIC.len() + 1 + 4 + 1 + DIGEST_BYTES);
        let twice = [&one[..block.end], &one[block.clone()], &one[block.end..]].concat();
        let error = read(&twice).unwrap_err();
        assert!(matches!(error, FormatError::Digest(at) if at == block.end as u64), "{error}");
    }
}
