//! Saves the counters of the embedded engine to a file, and restores them after a restart.
//!
//! A save goes through the shards in small steps, each under its shard's lock for microseconds, so
//! no worker waits for it. Each counter is saved as it was at some moment of the save. `format` is
//! the file's format, `file` is where it is kept, `transfer` moves counters to a new process, and
//! `operations` what is done to them after that. Must not know what a counter means.

mod file;
mod format;
mod operations;
#[cfg(test)]
mod tests;
mod transfer;

use std::io::{self, Read, Write};
use std::sync::Arc;

use super::bytes::Bytes;
use super::counters::CounterContent;
use super::embedded::{SALT_BYTES, SHARDS, SecretId};
use super::journal::Journal;
use super::shard::{CopyMode, CopyPosition, Entry};
use super::{Embedded, Space};
use format::{FormatError, Kind, Reader, Writer};

pub use file::SaveSummary;
pub use operations::{OperationCounts, OperationReceiver, OperationSender};
pub use transfer::{CounterReceiver, CounterSender, ReceiveError};

/// A block is written when it is this long. A log or a ring may make it longer, but never longer
/// than a block may be: a log of 10,000 records takes 320 kB.
const BLOCK_BYTES: usize = 64 << 10;
/// Copied under one lock, in keys as `max_keys` counts them: some ten microseconds.
const KEYS_PER_LOCK: usize = 256;

/// What a snapshot begins with.
struct Header {
    salt: [u8; SALT_BYTES],
    secret_id: SecretId,
    /// When saving began, in microseconds since 1970.
    at_us: u64,
}

impl Header {
    fn write(&self) -> Vec<u8> {
        [&self.salt[..], &self.secret_id, &self.at_us.to_le_bytes()].concat()
    }

    fn read(payload: &[u8]) -> Option<Self> {
        let mut bytes = Bytes(payload);
        let header = Self { salt: bytes.array()?, secret_id: bytes.array()?, at_us: bytes.u64()? };
        bytes.is_empty().then_some(header)
    }
}

/// What was restored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RestoreSummary {
    counters: u64,
    /// Counters that had lost their meaning meanwhile.
    expired: u64,
}

impl Embedded {
    /// Writes the header, and the spaces for searches.
    fn write_head<W: Write>(&self, out: W) -> io::Result<Writer<W>> {
        let mut writer = Writer::new(out)?;
        let header =
            Header { salt: self.salt(), secret_id: self.secret_id(), at_us: self.now_us() };
        writer.block(Kind::Header, &header.write())?;
        let mut block = Vec::new();
        for space in self.spaces() {
            let Ok(length) = u16::try_from(space.text.len()) else { continue };
            block.extend_from_slice(&space.digest.to_le_bytes());
            block.extend_from_slice(&length.to_le_bytes());
            block.extend_from_slice(space.text.as_bytes());
            write_if_full(&mut writer, Kind::Spaces, &mut block)?;
        }
        writer.block(Kind::Spaces, &block)?;
        Ok(writer)
    }

    /// Writes counters, those of each shard in blocks that begin with its index (2 bytes); returns
    /// how many. In a hand-over, what was removed comes before what changed.
    fn write_counters<W: Write>(&self, writer: &mut Writer<W>, which: CopyMode) -> io::Result<u64> {
        let (mut block, mut count) = (Vec::with_capacity(2 * BLOCK_BYTES), 0);
        for index in 0..SHARDS {
            let shard = (index as u16).to_le_bytes();
            let Some(copying) = ShardCopy::begin(self, index, which) else { continue };
            if which == CopyMode::SinceFirst {
                for ids in copying.removed().chunks(BLOCK_BYTES / size_of::<u128>()) {
                    let ids = ids.iter().flat_map(|id| id.to_le_bytes());
                    let block: Vec<u8> = shard.into_iter().chain(ids).collect();
                    writer.block(Kind::Removed, &block)?;
                }
            }
            let mut place = Some(CopyPosition::FIRST);
            while let Some(from) = place {
                if block.is_empty() {
                    block.extend_from_slice(&shard);
                }
                place = copying
                    .next(from, which, |id, entry| count += write_counter(id, entry, &mut block));
                write_if_full(writer, Kind::Counters, &mut block)?;
            }
            if block.len() > shard.len() {
                writer.block(Kind::Counters, &block)?;
            }
            block.clear();
        }
        Ok(count)
    }

    /// Writes what changed, each shard under one lock, and has `journal` note what is done to it
    /// from then on; returns how many counters. A shard of 40,000 counters, of which few changed,
    /// is locked for a millisecond.
    fn write_last<W: Write>(&self, writer: &mut Writer<W>, journal: &Journal) -> io::Result<u64> {
        let mut count = 0;
        for index in 0..SHARDS {
            let (mut removed, mut counters) = (Blocks::of(index), Blocks::of(index));
            {
                let Some(mut shard) = self.shard_at(index) else { continue };
                for id in shard.take_removed() {
                    removed.last().extend_from_slice(&id.to_le_bytes());
                }
                let mut place = Some(CopyPosition::FIRST);
                while let Some(from) = place {
                    place = shard.copy(from, CopyMode::SinceFirst, usize::MAX, |id, entry| {
                        count += write_counter(id, entry, counters.last());
                    });
                }
                shard.set_journal(Some(journal.clone()));
            }
            removed.write(writer, Kind::Removed)?;
            counters.write(writer, Kind::Counters)?;
        }
        Ok(count)
    }

    /// Writes a whole snapshot; returns the number of counters.
    fn write_snapshot<W: Write>(&self, out: W) -> io::Result<(Writer<W>, u64)> {
        let mut writer = self.write_head(out)?;
        let count = self.write_counters(&mut writer, CopyMode::All)?;
        writer.block(Kind::End, &count.to_le_bytes())?;
        writer.flush()?;
        Ok((writer, count))
    }

    /// Reads the header, which must name the secret that is configured.
    fn read_header<R: Read>(&self, reader: &mut Reader<R>) -> Result<Header, FormatError> {
        let at = reader.at();
        let header = match reader.block()? {
            (Kind::Header, payload) => Header::read(payload).ok_or(FormatError::Nonsense(at))?,
            _ => return Err(FormatError::Nonsense(at)),
        };
        if header.secret_id == self.secret_id() { Ok(header) } else { Err(FormatError::Secret) }
    }

    /// Reads counters up to a block of the kind `until`. Unless they are `used`, they are only
    /// checked.
    fn read_counters<R: Read>(
        &self,
        reader: &mut Reader<R>,
        until: Kind,
        used: bool,
    ) -> Result<RestoreSummary, FormatError> {
        let (mut restored, now_us) = (RestoreSummary::default(), self.now_us());
        loop {
            let at = reader.at();
            let (kind, payload) = reader.block()?;
            let mut bytes = Bytes(payload);
            match kind {
                Kind::End if until == Kind::End => {
                    let count = restored.counters + restored.expired;
                    let whole = bytes.u64() == Some(count) && bytes.is_empty();
                    return if whole { Ok(restored) } else { Err(FormatError::Nonsense(at)) };
                }
                _ if kind == until => return Ok(restored),
                Kind::Spaces => while self.read_space(&mut bytes, used).is_some() {},
                Kind::Counters | Kind::Removed => {
                    let shard = bytes.u16().map(usize::from).filter(|shard| *shard < SHARDS);
                    let shard = shard.ok_or(FormatError::Nonsense(at))?;
                    while kind == Kind::Removed && !bytes.is_empty() {
                        let id = bytes.u128().ok_or(FormatError::Nonsense(at))?;
                        if used {
                            self.remove(shard, id);
                        }
                    }
                    while let Some((id, entry)) = read_counter(&mut bytes) {
                        if entry.expire_us() <= now_us {
                            restored.expired += 1;
                        } else {
                            restored.counters += 1;
                            if used {
                                self.put(shard, id, entry);
                            }
                        }
                    }
                }
                Kind::Header | Kind::Pause | Kind::End | Kind::Operations => {
                    return Err(FormatError::Nonsense(at));
                }
            }
            if !bytes.is_empty() {
                return Err(FormatError::Nonsense(at));
            }
        }
    }

    fn read_space(&self, bytes: &mut Bytes<'_>, used: bool) -> Option<()> {
        let mut rest = Bytes(bytes.0);
        let (digest, length) = (rest.u128()?, rest.u16()?);
        let text = std::str::from_utf8(rest.bytes(usize::from(length))?).ok()?;
        if used {
            self.note_space(&Arc::new(Space { text: text.to_owned(), digest }));
        }
        *bytes = rest;
        Some(())
    }
}

/// Appends a counter, unless it ends with the process; returns how many were.
fn write_counter(id: u128, entry: &Entry, block: &mut Vec<u8>) -> u64 {
    if !entry.counter.outlives_the_process() {
        return 0;
    }
    block.extend_from_slice(&id.to_le_bytes());
    block.extend_from_slice(&entry.expire_us().to_le_bytes());
    entry.counter.write(block);
    1
}

/// Reads one counter; `None` at the end of the block, or where there is no counter.
fn read_counter(bytes: &mut Bytes<'_>) -> Option<(u128, Entry)> {
    let mut rest = Bytes(bytes.0);
    let (id, expire_us) = (rest.u128()?, rest.u64()?);
    let counter = CounterContent::read(&mut rest)?;
    *bytes = rest;
    Some((id, Entry::new(counter, expire_us)))
}

/// Writes what has been collected if it fills a block.
fn write_if_full<W: Write>(
    writer: &mut Writer<W>,
    kind: Kind,
    block: &mut Vec<u8>,
) -> io::Result<()> {
    if block.len() >= BLOCK_BYTES {
        writer.block(kind, block)?;
        block.clear();
    }
    Ok(())
}

/// Blocks of one shard, each of which begins with its index.
struct Blocks {
    shard: [u8; 2],
    blocks: Vec<Vec<u8>>,
}

impl Blocks {
    fn of(shard: usize) -> Self {
        Self { shard: (shard as u16).to_le_bytes(), blocks: Vec::new() }
    }

    /// The block for one entry more.
    fn last(&mut self) -> &mut Vec<u8> {
        match self.blocks.pop_if(|block| block.len() < BLOCK_BYTES) {
            Some(block) => self.blocks.push_mut(block),
            None => self.blocks.push_mut(self.shard.to_vec()),
        }
    }

    fn write<W: Write>(&self, writer: &mut Writer<W>, kind: Kind) -> io::Result<()> {
        self.blocks.iter().try_for_each(|block| writer.block(kind, block))
    }
}

/// A copy of one shard. While it lives, the shard merges no segments.
struct ShardCopy<'a> {
    engine: &'a Embedded,
    shard: usize,
}

impl<'a> ShardCopy<'a> {
    fn begin(engine: &'a Embedded, shard: usize, which: CopyMode) -> Option<Self> {
        engine.shard_at(shard)?.begin_copy(which);
        Some(Self { engine, shard })
    }

    /// What was removed since the last copy of a hand-over.
    fn removed(&self) -> Vec<u128> {
        self.engine.shard_at(self.shard).map_or_else(Vec::new, |mut shard| shard.take_removed())
    }

    /// Copies the next few counters.
    fn next(
        &self,
        from: CopyPosition,
        which: CopyMode,
        copy: impl FnMut(u128, &Entry),
    ) -> Option<CopyPosition> {
        self.engine.shard_at(self.shard)?.copy(from, which, KEYS_PER_LOCK, copy)
    }
}

impl Drop for ShardCopy<'_> {
    fn drop(&mut self) {
        if let Some(mut shard) = self.engine.shard_at(self.shard) {
            shard.end_copy();
        }
    }
}
