//! One shard of the embedded map: counters in a dense row, so that a sweep can go through them step
//! by step and never pauses for long.
//!
//! Must not know Lua. Expiry frees memory and decides nothing: an expired counter that still stands
//! is read like any other.

use std::hash::{BuildHasher, Hasher};

use indexmap::IndexMap;

use super::counters::Stored;

/// A counter.
pub(super) struct Entry {
    pub(super) counter: Stored,
    /// Microseconds since 1970 from which it may be forgotten.
    pub(super) expire_us: u64,
}

/// Counters whose tags fall into one shard.
pub(super) struct Shard {
    entries: IndexMap<u128, Entry, Fold>,
    /// Where the next sweep goes on.
    cursor: usize,
}

impl Shard {
    pub(super) fn new(seed: u64) -> Self {
        Self { entries: IndexMap::with_hasher(Fold(seed)), cursor: 0 }
    }

    pub(super) fn get(&self, id: u128) -> Option<&Stored> {
        self.entries.get(&id).map(|entry| &entry.counter)
    }

    pub(super) fn entry_of(&self, id: u128) -> Option<&Entry> {
        self.entries.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: u128) -> Option<&mut Entry> {
        self.entries.get_mut(&id)
    }

    /// The counter of `id`, made if there is none.
    pub(super) fn entry(&mut self, id: u128, new: impl FnOnce() -> Stored) -> &mut Entry {
        self.entries.entry(id).or_insert_with(|| Entry { counter: new(), expire_us: 0 })
    }

    /// How many keys it stood for; 0 where there was none.
    pub(super) fn remove(&mut self, id: u128) -> usize {
        self.entries.swap_remove(&id).map_or(0, |entry| entry.counter.weight())
    }

    /// Looks at the next `steps` counters in turn and forgets the expired ones; how many keys those
    /// stood for. A counter that is moved into a freed place is looked at next, so that a full
    /// round misses none.
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

/// Hashes a number that is a digest already: folded with a seed of the process, so that nobody can
/// choose keys that meet in one place.
#[derive(Clone)]
pub(super) struct Fold(u64);

/// [`Fold`] at work.
pub(super) struct Folding(u64);

impl BuildHasher for Fold {
    type Hasher = Folding;

    fn build_hasher(&self) -> Folding {
        Folding(self.0)
    }
}

impl Hasher for Folding {
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
            // A place in the row (hash, key, counter), and for each an index of 8 bytes and a
            // control byte, at most half of them used.
            let row = size_of::<(usize, u128, Entry)>() * shard.entries.capacity();
            let index = 2 * 9 * shard.entries.capacity();
            assert!(
                id < 100 || row + index < 200 * shard.entries.len(),
                "{} bytes for {}",
                row + index,
                shard.entries.len()
            );
        }
    }
}
