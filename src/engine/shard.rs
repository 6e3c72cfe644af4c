//! One shard of the embedded map. Counters are in a dense array, so that a sweep can go through
//! them in small steps and never pauses for long.
//!
//! Must not know Lua. Expiry only frees memory and decides nothing: an expired counter that is
//! still there is read like any other.

use std::hash::{BuildHasher, Hasher};

use indexmap::IndexMap;

use super::counters::Stored;

/// A counter and its expiry.
pub(super) struct Entry {
    pub(super) counter: Stored,
    /// When it may be forgotten, in microseconds since 1970.
    pub(super) expire_us: u64,
}

/// The counters whose tags map to one shard.
pub(super) struct Shard {
    entries: IndexMap<u128, Entry, DigestHashBuilder>,
    /// Where the next sweep continues.
    cursor: usize,
}

impl Shard {
    pub(super) fn new(seed: u64) -> Self {
        Self { entries: IndexMap::with_hasher(DigestHashBuilder(seed)), cursor: 0 }
    }

    pub(super) fn get(&self, id: u128) -> Option<&Stored> {
        self.entries.get(&id).map(|entry| &entry.counter)
    }

    pub(super) fn entry_at(&self, id: u128) -> Option<&Entry> {
        self.entries.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: u128) -> Option<&mut Entry> {
        self.entries.get_mut(&id)
    }

    /// The counter of `id`, created if it does not exist.
    pub(super) fn entry(&mut self, id: u128, new: impl FnOnce() -> Stored) -> &mut Entry {
        self.entries.entry(id).or_insert_with(|| Entry { counter: new(), expire_us: 0 })
    }

    /// Removes a counter; returns how many keys it counted as, 0 if it did not exist.
    pub(super) fn remove(&mut self, id: u128) -> usize {
        self.entries.swap_remove(&id).map_or(0, |entry| entry.counter.weight())
    }

    /// Checks the next `steps` counters in turn and drops expired ones; returns how many keys those
    /// counted as. A counter moved into a freed position is checked next, so that a full round
    /// misses none.
    pub(super) fn sweep(&mut self, now_us: u64, steps: usize) -> usize {
        let mut freed = 0;
        for _ in 0..steps {
            if self.cursor >= self.entries.len() {
                self.cursor = 0;
            }
            match self.entries.get_index(self.cursor) {
                None => break,
                Some((_, entry)) if entry.expire_us <= now_us => {
                    freed += self
                        .entries
                        .swap_remove_index(self.cursor)
                        .map_or(0, |(_, entry)| entry.counter.weight());
                }
                Some(_) => self.cursor += 1,
            }
        }
        freed
    }
}

/// Builds hashers for keys that are digests already. They are folded with a seed chosen per
/// process, so that nobody can choose keys that collide.
#[derive(Clone)]
pub(super) struct DigestHashBuilder(u64);

/// The hasher of [`DigestHashBuilder`].
pub(super) struct DigestHasher(u64);

impl BuildHasher for DigestHashBuilder {
    type Hasher = DigestHasher;

    fn build_hasher(&self) -> DigestHasher {
        DigestHasher(self.0)
    }
}

impl Hasher for DigestHasher {
    fn write_u128(&mut self, number: u128) {
        let product = u128::from(number as u64 ^ self.0)
            * u128::from((number >> 64) as u64 ^ self.0.rotate_left(32));
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u128(u128::from(*byte) << 64 | u128::from(self.0));
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(shard: &mut Shard, id: u128, expire_us: u64) {
        shard.entry(id, || Stored::Numbers([1.0, 0.0, 0.0])).expire_us = expire_us;
    }

    #[test]
    fn bounded_steps_find_every_expired_counter_in_the_end_and_no_other() {
        let mut shard = Shard::new(7);
        for id in 0..1_000 {
            put(&mut shard, id, if id % 3 == 0 { 2_000 } else { 1_000 });
        }
        let mut calls = 0;
        while shard.entries.len() > 334 {
            assert!(shard.sweep(1_000, 4) <= 4);
            calls += 1;
            assert!(calls < 1_000, "{} counters are left", shard.entries.len());
        }
        assert!((0..1_000).all(|id| shard.get(id).is_some() == (id % 3 == 0)));
        assert_eq!(shard.sweep(1_999, 2_000), 0);
        assert_eq!(shard.sweep(2_000, 334), 334);
        assert_eq!(shard.sweep(2_000, 10), 0);
    }
    #[test]
    fn a_counter_costs_less_than_two_hundred_bytes() {
        let mut shard = Shard::new(7);
        for id in 0..100_000_u128 {
            put(&mut shard, id.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835), 1);
            // An entry (hash, key, counter), plus an index of 8 bytes and a control byte in a table
            // that is at most half full.
            let entries_bytes = size_of::<(usize, u128, Entry)>() * shard.entries.capacity();
            let index_bytes = 2 * 9 * shard.entries.capacity();
            assert!(
                id < 100 || entries_bytes + index_bytes < 200 * shard.entries.len(),
                "{} bytes for {}",
                entries_bytes + index_bytes,
                shard.entries.len()
            );
        }
    }
}
