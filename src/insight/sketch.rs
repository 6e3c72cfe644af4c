//! Finds heavy hitters: the keys of a stream with the largest sums, in bounded memory.
//!
//! This is Space-Saving (Metwally, Agrawal, El Abbadi: Efficient Computation of Frequent and Top-k
//! Elements in Data Streams, ICDT 2005), for amounts rather than occurrences: a key that has no
//! entry takes over the entry with the least units, and what that one had is the new key's possible
//! error. So with `n` entries and `N` units in all,
//!
//! - a key's true units are at most its `units`, and at least its `units` less its `error`,
//! - no `error` is above `N / n`, and each key with more than `N / n` units has an entry.
//!
//! The entry with the least units is the root of a heap, since amounts of any size rule out the
//! paper's list of counts one apart. An update allocates nothing once a text's entry has had a text
//! as long.

use super::Digest;

/// Maximum number of bytes kept of a key's text.
pub(super) const TEXT_BYTES_MAX: usize = 128;
/// What ends a text that was cut.
const CUT: char = '\u{2026}';
/// Maximum number of entries of one sketch: an index is 16 bits, and 0 is none.
pub(super) const ENTRIES_MAX: usize = 16_384;

/// A key with its units.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HeavyKey {
    pub(super) key: Digest,
    /// An upper bound of the units.
    pub(super) units: u64,
    /// The units are at least `units` less this.
    pub(super) error: u64,
    /// Empty if no texts are kept.
    pub(super) text: String,
}

/// Finds the keys with the most units. Each property of its entries is a list of its own, so that
/// an update touches few cache lines.
#[derive(Debug, Default)]
pub(super) struct Sketch {
    /// Units of all keys.
    total: u64,
    /// An entry was taken over: from then on a key that has none may have had one.
    is_full: bool,
    keys: Vec<Digest>,
    errors: Vec<u64>,
    texts: Vec<String>,
    /// The entries' places in the heap.
    places: Vec<u16>,
    /// Units and entry, the least first: a heap whose nodes have [`CHILDREN`] children.
    heap: Vec<(u64, u16)>,
    /// Entries by the hash of their keys. Its length is a power of two, and at least twice the
    /// number of entries. One that collides is in one of the next slots.
    table: Box<[Slot]>,
}

/// A slot of the table.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// The key's hash, so that other keys are told apart, and moved, without looking at them.
    hash: u32,
    /// The entry plus one; 0 if the slot is free.
    entry: u16,
}

/// Children of a node of the heap: those of one node are on two or three cache lines in a row.
const CHILDREN: usize = 8;

impl Slot {
    fn entry(self) -> Option<u16> {
        self.entry.checked_sub(1)
    }
}

impl Sketch {
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// No key that has no entry has more units than this.
    pub(super) fn unseen_max(&self) -> u64 {
        if self.is_full { self.heap.first().map_or(0, |(least, _)| *least) } else { 0 }
    }

    pub(super) fn clear(&mut self) {
        (self.total, self.is_full) = (0, false);
        self.keys.clear();
        self.errors.clear();
        self.texts.clear();
        self.places.clear();
        self.heap.clear();
        self.table.fill(Slot::default());
    }

    /// Adds units of a key. With `grows`, a key that has no entry gets a new one, unless one was
    /// taken over since the last [`clear`](Self::clear). `seed` is the same for each call.
    #[inline]
    pub(super) fn add(&mut self, key: Digest, units: u64, text: &str, grows: bool, seed: u64) {
        self.total = self.total.saturating_add(units);
        let hash = hash(key, seed);
        if let Some(entry) = self.find(key, hash) {
            let place = self.places.get(usize::from(entry)).map_or(0, |place| usize::from(*place));
            if let Some((has, _)) = self.heap.get(place).copied() {
                self.sink(place, (has.saturating_add(units), entry));
            }
        } else if grows && !self.is_full && self.len() < ENTRIES_MAX {
            self.push(key, hash, units, text, seed);
        } else {
            self.take_over(key, hash, units, text, seed);
        }
    }

    #[cold]
    fn push(&mut self, key: Digest, own: u32, units: u64, text: &str, seed: u64) {
        let Ok(entry) = u16::try_from(self.len()) else { return };
        let mut kept = String::new();
        copy(text, &mut kept);
        self.keys.push(key);
        self.errors.push(0);
        self.texts.push(kept);
        self.places.push(entry);
        self.heap.push((units, entry));
        if self.table.len() < 2 * self.len() {
            self.table = vec![Slot::default(); (4 * self.len()).next_power_of_two()].into();
            for before in 0..entry {
                if let Some(key) = self.keys.get(usize::from(before)) {
                    self.list(hash(*key, seed), before);
                }
            }
        }
        self.list(own, entry);
        self.rise(usize::from(entry), (units, entry));
    }

    /// Gives the key the entry with the fewest units.
    fn take_over(&mut self, key: Digest, own: u32, units: u64, text: &str, seed: u64) {
        let Some((least, entry)) = self.heap.first().copied() else { return };
        self.is_full = true;
        let at = usize::from(entry);
        let Some(of) = self.keys.get_mut(at) else { return };
        let old = std::mem::replace(of, key);
        self.unlist(hash(old, seed), entry);
        self.list(own, entry);
        if let Some(error) = self.errors.get_mut(at) {
            *error = least;
        }
        if let Some(kept) =
            self.texts.get_mut(at).filter(|kept| !(text.is_empty() && kept.is_empty()))
        {
            copy(text, kept);
        }
        self.sink(0, (least.saturating_add(units), entry));
    }

    /// All entries, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = HeavyKey> {
        self.heap.iter().filter_map(|(units, entry)| {
            let at = usize::from(*entry);
            let (key, error) = (*self.keys.get(at)?, *self.errors.get(at)?);
            Some(HeavyKey { key, units: *units, error, text: self.texts.get(at)?.clone() })
        })
    }

    // ---- The heap ----

    /// Puts an item at a place, or further away from the root while one below has less.
    fn sink(&mut self, mut place: usize, item: (u64, u16)) {
        loop {
            let first = CHILDREN * place + 1;
            let last = self.heap.len().min(first + CHILDREN);
            let Some([child, others @ ..]) = self.heap.get(first..last) else { break };
            let (mut least, mut at) = (*child, first);
            for (other, next) in others.iter().zip(first + 1..) {
                if other.0 < least.0 {
                    (least, at) = (*other, next);
                }
            }
            if item.0 <= least.0 {
                break;
            }
            self.put(place, least);
            place = at;
        }
        self.put(place, item);
    }

    /// Puts an item at a place, or further towards the root while the one above has more.
    fn rise(&mut self, mut place: usize, item: (u64, u16)) {
        while let Some(at) = place.checked_sub(1).map(|place| place / CHILDREN) {
            let Some(above) = self.heap.get(at).copied().filter(|above| above.0 > item.0) else {
                break;
            };
            self.put(place, above);
            place = at;
        }
        self.put(place, item);
    }

    fn put(&mut self, place: usize, item: (u64, u16)) {
        if let Some(slot) = self.heap.get_mut(place) {
            *slot = item;
        }
        if let Some(of) = self.places.get_mut(usize::from(item.1)) {
            // A place is below `ENTRIES_MAX`.
            *of = place as u16;
        }
    }

    // ---- The table ----

    /// The entry of a key.
    fn find(&self, key: Digest, hash: u32) -> Option<u16> {
        let mask = self.table.len().checked_sub(1)?;
        let mut at = hash as usize & mask;
        loop {
            let slot = *self.table.get(at)?;
            let entry = slot.entry()?;
            if slot.hash == hash && self.keys.get(usize::from(entry)) == Some(&key) {
                return Some(entry);
            }
            at = (at + 1) & mask;
        }
    }

    fn list(&mut self, hash: u32, entry: u16) {
        let Some(mask) = self.table.len().checked_sub(1) else { return };
        let mut at = hash as usize & mask;
        // At least half of the table is free.
        while let Some(slot) = self.table.get_mut(at) {
            if slot.entry == 0 {
                *slot = Slot { hash, entry: entry + 1 };
                return;
            }
            at = (at + 1) & mask;
        }
    }

    /// Frees the slot of an entry whose key had this hash. Those after it move up, so that none is
    /// cut off from its own.
    fn unlist(&mut self, hash: u32, entry: u16) {
        let Some(mask) = self.table.len().checked_sub(1) else { return };
        let mut hole = hash as usize & mask;
        while self.table.get(hole).is_some_and(|slot| slot.entry != entry + 1 && slot.entry != 0) {
            hole = (hole + 1) & mask;
        }
        let mut next = hole;
        loop {
            next = (next + 1) & mask;
            let slot = self.table.get(next).copied().unwrap_or_default();
            if slot.entry == 0 {
                break;
            }
            let distance = |from: usize| next.wrapping_sub(from) & mask;
            // Its own slot is not after the hole.
            if distance(slot.hash as usize & mask) >= distance(hole) {
                if let Some(free) = self.table.get_mut(hole) {
                    *free = slot;
                }
                hole = next;
            }
        }
        if let Some(free) = self.table.get_mut(hole) {
            *free = Slot::default();
        }
    }
}

/// Decides a key's first slot. Digests without a secret can be computed by anybody, so a seed takes
/// part.
fn hash(key: Digest, seed: u64) -> u32 {
    let [tag, key] = key;
    let low = (key as u64 ^ seed).wrapping_add(tag as u64);
    let mixed = u128::from(low) * u128::from((key >> 64) as u64 ^ seed.rotate_left(32) | 1);
    (mixed >> 64) as u32 ^ (mixed >> 32) as u32
}

/// Copies what is kept of a text, and marks where it is cut. Its memory is used again.
fn copy(text: &str, own: &mut String) {
    own.clear();
    if text.len() <= TEXT_BYTES_MAX {
        own.push_str(text);
        return;
    }
    let kept = text.floor_char_boundary(TEXT_BYTES_MAX - CUT.len_utf8());
    own.push_str(text.get(..kept).unwrap_or_default());
    own.push(CUT);
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    const SEED: u64 = 0x1234_5678_9abc_def0;

    fn digest(number: u128) -> Digest {
        // As spread as digests are.
        let spread = number.wrapping_mul(0x2545_f491_4f6c_dd1d_9e37_79b9_7f4a_7c15);
        [spread, spread]
    }

    fn check(sketch: &Sketch, truth: &HashMap<u128, u64>, entries_max: usize) {
        let total: u64 = truth.values().sum();
        assert_eq!(sketch.total(), total);
        assert!(sketch.len() <= entries_max);
        let found: HashMap<Digest, HeavyKey> =
            sketch.iter().map(|heavy| (heavy.key, heavy)).collect();
        assert_eq!(found.len(), sketch.len(), "each key once");
        for (number, units) in truth {
            match found.get(&digest(*number)) {
                Some(heavy) => {
                    assert!(heavy.units >= *units && heavy.units - heavy.error <= *units);
                    assert!(heavy.error <= total / entries_max as u64);
                    assert!(sketch.find(heavy.key, hash(heavy.key, SEED)).is_some());
                }
                None => assert!(*units <= sketch.unseen_max()),
            }
        }
        let least = sketch.iter().map(|heavy| heavy.units).min().unwrap_or(0);
        assert_eq!(sketch.heap.first().map_or(0, |(units, _)| *units), least, "the root");
        for (at, (_, entry)) in sketch.heap.iter().enumerate() {
            assert_eq!(usize::from(sketch.places[usize::from(*entry)]), at);
        }
    }

    proptest! {
        #[test]
        fn each_key_is_within_its_error(
            stream in proptest::collection::vec((0_u128..60, 0_u64..1_000), 0..400),
            entries_max in 1_usize..40,
        ) {
            let (mut sketch, mut truth) = (Sketch::default(), HashMap::new());
            for (number, units) in stream {
                let grows = sketch.len() < entries_max;
                sketch.add(digest(number), units, "", grows, SEED);
                *truth.entry(number).or_insert(0) += units;
            }
            check(&sketch, &truth, entries_max);
            sketch.clear();
            check(&sketch, &HashMap::new(), entries_max);
        }
    }

    #[test]
    fn keys_that_all_have_the_same_slot_are_still_told_apart() {
        // Only the lower half of a tag is hashed.
        let same = |number: u128| [number << 64, 5];
        let (mut sketch, mut truth) = (Sketch::default(), HashMap::new());
        for turn in 0..3_000_u128 {
            let (number, grows) = (turn * turn % 101, sketch.len() < 30);
            assert_eq!(hash(same(number), SEED), hash(same(0), SEED));
            sketch.add(same(number), 1, "", grows, SEED);
            *truth.entry(number).or_insert(0_u64) += 1;
        }
        assert_eq!((sketch.total(), sketch.len()), (3_000, 30));
        for heavy in sketch.iter() {
            assert!(sketch.find(heavy.key, hash(heavy.key, SEED)).is_some());
            let units = truth[&(heavy.key[0] >> 64)];
            assert!(heavy.units >= units && heavy.units - heavy.error <= units, "{heavy:?}");
        }
    }

    #[test]
    fn a_text_is_that_of_its_key_and_is_cut() {
        let mut sketch = Sketch::default();
        let long = "\u{e9}".repeat(TEXT_BYTES_MAX);
        sketch.add(digest(1), 5, "one", true, SEED);
        sketch.add(digest(2), 1, "two", true, SEED);
        sketch.add(digest(3), 1, &long, false, SEED);
        let mut heavies: Vec<HeavyKey> = sketch.iter().collect();
        heavies.sort_by_key(|heavy| heavy.units);
        let [three, one] = &heavies[..] else { panic!("{heavies:?}") };
        assert_eq!((one.text.as_str(), one.units, one.error), ("one", 5, 0));
        assert_eq!((three.units, three.error), (2, 1));
        assert_eq!(three.text, "\u{e9}".repeat(62) + "\u{2026}");
        for (bytes, kept) in [(TEXT_BYTES_MAX, TEXT_BYTES_MAX), (TEXT_BYTES_MAX + 1, 125)] {
            let (text, mut own) = ("k".repeat(bytes), String::new());
            copy(&text, &mut own);
            let whole = own.trim_end_matches(CUT);
            assert_eq!((own.len(), whole), (TEXT_BYTES_MAX, &text[..kept]));
        }
    }
}
