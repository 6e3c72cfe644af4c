//! One shard of the embedded map: linear hashing over small tables, so that no insert, sweep or
//! copy ever handles more than one table's counters, and memory shrinks as it grew.
//!
//! There are `n` segments. A hash modulo the power of two above `n` selects one; where there is no
//! such segment yet, the highest bit is left out. When the average segment is full, one more is
//! added at the end and takes its half of the segment that stood in for it (W. Litwin, "Linear
//! hashing", VLDB 1980). When counters become few, the last segment is merged back.
//!
//! Must not know Lua. Expiry only frees memory and decides nothing: an expired counter that is
//! still there is read like any other.

use std::hash::{BuildHasher, Hasher};

use indexmap::{IndexMap, IndexSet};

use super::counters::CounterContent;
use super::journal::Journal;

/// Counters in the average segment when one is added. Just before its split a segment has twice as
/// many, which still fits into a table of 512 (at 7/8).
const SEGMENT_COUNTERS: usize = 208;
/// When the average segment has fewer, the last one is merged. Far enough below for counters that
/// come and go to cause neither.
const SEGMENT_COUNTERS_MIN: usize = SEGMENT_COUNTERS / 2;
/// Maximum number of removed counters that a shard remembers during a hand-over. Others stay in the
/// new process until they expire.
const REMOVED_MAX: usize = 65_536;
/// The lowest bit of a hash that selects the segment. Lower ones select a place in its table.
const SEGMENT_SHIFT: u32 = 16;

/// A counter, its expiry, and whether it changed since the copy [`CopyMode::First`].
pub(super) struct Entry {
    pub(super) counter: CounterContent,
    /// The expiry, shifted by one, and in the lowest bit whether the counter changed. Together they
    /// take no more memory than the expiry alone.
    expire_and_changed: u64,
}

/// The expiry of a counter that is never forgotten.
pub(super) const NEVER_US: u64 = u64::MAX >> 1;

impl Entry {
    pub(super) fn new(counter: CounterContent, expire_us: u64) -> Self {
        let mut entry = Self { counter, expire_and_changed: 1 };
        entry.expire_at(expire_us);
        entry
    }

    /// When it may be forgotten, in microseconds since 1970, or [`NEVER_US`].
    pub(super) fn expire_us(&self) -> u64 {
        self.expire_and_changed >> 1
    }

    pub(super) fn expire_at(&mut self, expire_us: u64) {
        self.expire_and_changed = (expire_us.min(NEVER_US) << 1) | (self.expire_and_changed & 1);
    }

    fn changed(&self) -> bool {
        self.expire_and_changed & 1 == 1
    }

    fn set_changed(&mut self, changed: bool) {
        self.expire_and_changed = (self.expire_and_changed & !1) | u64::from(changed);
    }
}

type Segment = IndexMap<u128, Entry, DigestHashBuilder>;

/// The counters whose tags map to one shard.
pub(super) struct Shard {
    hasher: DigestHashBuilder,
    /// The segments, at least one.
    segments: Vec<Segment>,
    counters: usize,
    /// Where the next sweep continues: a segment, and a place in it.
    cursor: (usize, usize),
    /// How many copies are under way. Meanwhile no segment is merged: its counters could be missed.
    copies: u32,
    /// What was removed since the copy [`CopyMode::First`] and not made again: a counter that is
    /// there is sent itself. `None` if none is under way.
    removed: Option<IndexSet<u128, DigestHashBuilder>>,
    /// Whether a counter changed since this was last asked.
    unsaved: bool,
    /// Where operations are noted, once this shard was handed over.
    journal: Option<Journal>,
}

/// Which counters are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyMode {
    /// All.
    All,
    /// All, and from now on it is remembered which of them change.
    First,
    /// Those that changed since the copy [`CopyMode::First`], or since the last copy of this kind.
    SinceFirst,
}

/// Where a copy continues.
#[derive(Clone, Copy, Debug)]
pub(super) struct CopyPosition {
    segment: usize,
    /// The counters of that segment that are still to be copied: those before this index. Counters
    /// only ever move to lower indexes, and new ones are added after it.
    below: usize,
}

impl CopyPosition {
    pub(super) const FIRST: Self = Self { segment: 0, below: usize::MAX };
}

impl Shard {
    pub(super) fn new(seed: u64) -> Self {
        let hasher = DigestHashBuilder(seed);
        let segments = vec![IndexMap::with_hasher(hasher.clone())];
        Self {
            hasher,
            segments,
            counters: 0,
            cursor: (0, 0),
            copies: 0,
            removed: None,
            unsaved: false,
            journal: None,
        }
    }

    /// The index of the segment that holds `id`.
    fn segment_of(&self, id: u128) -> usize {
        if self.segments.len() == 1 {
            return 0;
        }
        let hash = (self.hasher.hash_one(id) >> SEGMENT_SHIFT) as usize;
        let above = self.segments.len().next_power_of_two();
        let index = hash & (above - 1);
        if index < self.segments.len() { index } else { index - above / 2 }
    }

    pub(super) fn get(&self, id: u128) -> Option<&CounterContent> {
        self.entry_at(id).map(|entry| &entry.counter)
    }

    pub(super) fn entry_at(&self, id: u128) -> Option<&Entry> {
        self.segments.get(self.segment_of(id))?.get(&id)
    }

    /// The counter of `id`, to be changed.
    pub(super) fn get_mut(&mut self, id: u128) -> Option<&mut Entry> {
        let index = self.segment_of(id);
        let entry = self.segments.get_mut(index)?.get_mut(&id)?;
        self.unsaved = true;
        entry.set_changed(true);
        Some(entry)
    }

    /// The counter of `id`, to be changed; created if it does not exist. Returns also how many keys
    /// it counted as, 0 if it did not exist.
    #[allow(
        clippy::indexing_slicing,
        reason = "`segment_of` and `get_index_of` answer what exists"
    )]
    pub(super) fn entry(
        &mut self,
        id: u128,
        new: impl FnOnce() -> CounterContent,
    ) -> (&mut Entry, usize) {
        self.unsaved = true;
        let mut index = self.segment_of(id);
        if let Some(place) = self.segments[index].get_index_of(&id) {
            let entry = &mut self.segments[index][place];
            entry.set_changed(true);
            let weight = entry.counter.weight();
            return (entry, weight);
        }
        if let Some(ids) = &mut self.removed {
            ids.swap_remove(&id);
        }
        self.counters += 1;
        if self.counters > self.segments.len() * SEGMENT_COUNTERS {
            self.split();
            index = self.segment_of(id);
        }
        let entry = self.segments[index].entry(id).or_insert_with(|| Entry::new(new(), 0));
        (entry, 0)
    }

    /// Removes a counter; returns how many keys it counted as, 0 if it did not exist.
    pub(super) fn remove(&mut self, id: u128) -> usize {
        let index = self.segment_of(id);
        let removed = self.segments.get_mut(index).and_then(|segment| segment.swap_remove(&id));
        let Some(entry) = removed else { return 0 };
        self.unsaved = true;
        if let Some(ids) = self.removed.as_mut().filter(|ids| ids.len() < REMOVED_MAX) {
            ids.insert(id);
        }
        self.removed_from(index);
        entry.counter.weight()
    }

    /// Puts a counter in its place; returns how many keys the one counted as that was there before.
    pub(super) fn put(&mut self, id: u128, entry: Entry) -> usize {
        let (place, before) = self.entry(id, || CounterContent::Numbers([0.0; 3]));
        *place = entry;
        before
    }

    /// Adds a segment and moves to it what belongs there.
    fn split(&mut self) {
        let (new, hasher) = (self.segments.len(), self.hasher.clone());
        self.segments.push(IndexMap::with_hasher(hasher));
        let old = stands_in_for(new);
        let Some(segment) = self.segments.get_mut(old) else { return };
        let all = std::mem::replace(segment, IndexMap::with_hasher(self.hasher.clone()));
        // In their order, so that a copy under way misses none of those that stay.
        for (id, entry) in all {
            let index = self.segment_of(id);
            if let Some(segment) = self.segments.get_mut(index) {
                segment.insert(id, entry);
            }
        }
    }

    /// Merges the last segment into the one that stands in for it, if counters have become few.
    fn merge(&mut self) {
        let fewer = self.segments.len() - 1;
        if fewer == 0 || self.copies > 0 || self.counters > fewer * SEGMENT_COUNTERS_MIN {
            return;
        }
        let last = self.segments.pop();
        if let (Some(last), Some(segment)) = (last, self.segments.get_mut(stands_in_for(fewer))) {
            segment.extend(last);
        }
        if self.segments.capacity() > 4 * self.segments.len() {
            self.segments.shrink_to(2 * self.segments.len());
        }
    }

    /// Counts a counter that was removed from a segment, and gives memory back.
    fn removed_from(&mut self, index: usize) {
        self.counters -= 1;
        if let Some(segment) = self.segments.get_mut(index)
            && segment.capacity() > 4 * segment.len()
        {
            segment.shrink_to(2 * segment.len());
        }
        self.merge();
    }

    /// Checks the next `steps` counters in turn and drops expired ones; returns how many keys those
    /// counted as. A counter moved into a freed position is checked next.
    pub(super) fn sweep(&mut self, now_us: u64, steps: usize) -> usize {
        let mut freed = 0;
        for _ in 0..steps.min(self.counters) {
            let (segment, place) = self.next_to_sweep();
            let Some(entries) = self.segments.get_mut(segment) else { break };
            match entries.get_index(place) {
                Some((_, entry)) if entry.expire_us() <= now_us => {
                    let removed = entries.swap_remove_index(place);
                    freed += removed.map_or(0, |(_, entry)| entry.counter.weight());
                    self.removed_from(segment);
                }
                _ => self.cursor.1 = place + 1,
            }
        }
        freed
    }

    /// The next counter to check: skips the ends of segments, and empty ones.
    fn next_to_sweep(&mut self) -> (usize, usize) {
        for _ in 0..=self.segments.len() {
            let (segment, place) = self.cursor;
            match self.segments.get(segment) {
                Some(entries) if place < entries.len() => break,
                Some(_) => self.cursor = (segment + 1, 0),
                None => self.cursor = (0, 0),
            }
        }
        self.cursor
    }

    /// The number of counters.
    pub(super) fn len(&self) -> usize {
        self.counters
    }

    /// Whether a counter changed since this was last asked.
    pub(super) fn take_unsaved(&mut self) -> bool {
        std::mem::take(&mut self.unsaved)
    }

    /// Answers yes when next asked.
    pub(super) fn set_unsaved(&mut self) {
        self.unsaved = true;
    }

    /// Sets where operations on counters are noted from now on, if anywhere.
    pub(super) fn set_journal(&mut self, journal: Option<Journal>) {
        self.journal = journal;
    }

    /// Returns where to note an operation on a counter.
    pub(super) fn journal(&self) -> Option<&Journal> {
        self.journal.as_ref()
    }

    /// Begins a copy. From the first copy of a hand-over on, what is removed is remembered.
    pub(super) fn begin_copy(&mut self, which: CopyMode) {
        self.copies += 1;
        if which == CopyMode::First {
            self.removed = Some(IndexSet::with_hasher(self.hasher.clone()));
        }
    }

    /// Ends a copy, also one that was given up.
    pub(super) fn end_copy(&mut self) {
        self.copies -= 1;
    }

    /// What was removed since this was last asked in a hand-over.
    pub(super) fn take_removed(&mut self) -> Vec<u128> {
        self.removed.as_mut().map_or_else(Vec::new, |ids| ids.drain(..).collect())
    }

    /// The hand-over is over: what is removed is not remembered any more.
    pub(super) fn forget_removed(&mut self) {
        self.removed = None;
    }

    /// Passes counters to `copy`, from `place` on, until those passed count as `most` keys or a
    /// segment ends. Returns where to go on; `None` after the last. Counters that are added
    /// meanwhile may be left out, and others may come twice.
    pub(super) fn copy(
        &mut self,
        place: CopyPosition,
        which: CopyMode,
        most: usize,
        mut copy: impl FnMut(u128, &Entry),
    ) -> Option<CopyPosition> {
        let entries = self.segments.get_mut(place.segment)?;
        let mut below = place.below.min(entries.len());
        let mut weight = 0;
        while below > 0 && weight < most {
            below -= 1;
            let Some((id, entry)) = entries.get_index_mut(below) else { continue };
            if which != CopyMode::SinceFirst || entry.changed() {
                if which != CopyMode::All {
                    entry.set_changed(false);
                }
                weight += entry.counter.weight();
                copy(*id, entry);
            }
        }
        Some(match below {
            0 => CopyPosition { segment: place.segment + 1, below: usize::MAX },
            below => CopyPosition { below, ..place },
        })
    }
}

/// The segment that stands in for one that does not exist yet.
fn stands_in_for(index: usize) -> usize {
    index & !(1 << index.checked_ilog2().unwrap_or(0))
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
    use std::collections::HashMap;
    use std::time::Duration;

    use super::*;

    fn id(number: u128) -> u128 {
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
    }

    fn put(shard: &mut Shard, number: u128, expire_us: u64) {
        let numbers = [number as f64, 0.0, 0.0];
        shard.entry(id(number), || CounterContent::Numbers(numbers)).0.expire_at(expire_us);
    }

    #[test]
    fn each_counter_is_found_however_many_come_and_go() {
        let mut shard = Shard::new(7);
        for number in 0..20_000 {
            put(&mut shard, number, 1_000);
        }
        assert_eq!(shard.segments.len(), 20_000_usize.div_ceil(SEGMENT_COUNTERS));
        let largest = shard.segments.iter().map(IndexMap::len).max().unwrap();
        assert!(largest < 3 * SEGMENT_COUNTERS, "{largest}");
        let held = |shard: &Shard, number: u128| match shard.get(id(number)) {
            Some(CounterContent::Numbers([first, ..])) => *first == number as f64,
            _ => false,
        };
        assert!((0..20_000).all(|number| held(&shard, number)));
        for number in 0..19_900 {
            assert_eq!((shard.remove(id(number)), shard.remove(id(number))), (1, 0), "{number}");
        }
        assert_eq!((shard.len(), shard.segments.len()), (100, 1));
        assert!((0..20_000).all(|number| held(&shard, number) == (number >= 19_900)));
        assert!(shard.segments[0].capacity() < 512 && shard.segments.capacity() < 8);
    }

    #[test]
    fn bounded_steps_find_every_expired_counter_in_the_end_and_no_other() {
        let mut shard = Shard::new(7);
        for number in 0..1_000 {
            put(&mut shard, number, if number % 3 == 0 { 2_000 } else { 1_000 });
        }
        let mut calls = 0;
        while shard.len() > 334 {
            assert!(shard.sweep(1_000, 4) <= 4);
            calls += 1;
            assert!(calls < 1_000, "{} counters are left", shard.len());
        }
        assert!((0..1_000).all(|number| shard.get(id(number)).is_some() == (number % 3 == 0)));
        assert_eq!(shard.sweep(1_999, 2_000), 0);
        assert_eq!(shard.sweep(2_000, 334), 334);
        assert_eq!(shard.sweep(2_000, 10), 0);
    }

    /// Copies everything in steps of `most` and calls `between` after each.
    fn copied(
        shard: &mut Shard,
        which: CopyMode,
        most: usize,
        mut between: impl FnMut(&mut Shard),
    ) -> HashMap<u128, f64> {
        let (mut all, mut place) = (HashMap::new(), CopyPosition::FIRST);
        shard.begin_copy(which);
        loop {
            let next = shard.copy(place, which, most, |id, entry| {
                let CounterContent::Numbers([first, ..]) = entry.counter else { panic!() };
                all.insert(id, first);
            });
            let Some(next) = next else { break };
            place = next;
            between(shard);
        }
        shard.end_copy();
        all
    }

    #[test]
    fn a_copy_misses_nothing_while_counters_come_and_go() {
        let mut shard = Shard::new(7);
        for number in 0..5_000 {
            put(&mut shard, number, u64::MAX);
        }
        let mut next = 5_000;
        let all = copied(&mut shard, CopyMode::All, 50, |shard| {
            // Splits segments that are copied, and makes holes in those that are not yet.
            for number in next..next + 40 {
                put(shard, number, u64::MAX);
                shard.remove(id(number - 5_000));
            }
            next += 40;
        });
        assert!(next > 7_000, "{next}");
        for number in next - 5_000..5_000 {
            assert_eq!(all.get(&id(number)), Some(&(number as f64)), "{number}");
        }
    }

    #[test]
    fn a_second_copy_holds_what_changed_since_the_first() {
        let mut shard = Shard::new(7);
        for number in 0..1_000 {
            put(&mut shard, number, 1_000);
        }
        assert_eq!(copied(&mut shard, CopyMode::First, 100, |_| {}).len(), 1_000);
        assert_eq!(copied(&mut shard, CopyMode::SinceFirst, 100, |_| {}).len(), 0);
        shard.get_mut(id(7)).unwrap().expire_at(u64::MAX);
        put(&mut shard, 8, 1_000);
        put(&mut shard, 1_000, 1_000);
        assert_eq!(copied(&mut shard, CopyMode::All, 100, |_| {}).len(), 1_001);
        let changed = copied(&mut shard, CopyMode::SinceFirst, 100, |_| {});
        let mut changed: Vec<f64> = changed.into_values().collect();
        changed.sort_by(f64::total_cmp);
        assert_eq!(changed, [7.0, 8.0, 1_000.0]);
        assert_eq!(shard.entry_at(id(7)).unwrap().expire_us(), NEVER_US);
        shard.remove(id(9));
        assert_eq!((shard.take_removed(), shard.take_removed()), (vec![id(9)], vec![]));
        shard.forget_removed();
        shard.remove(id(10));
        assert_eq!(shard.take_removed(), []);
    }

    #[test]
    fn a_counter_that_is_removed_and_made_again_during_a_copy_is_not_lost() {
        let mut shard = Shard::new(7);
        (0..1_000).for_each(|number| put(&mut shard, number, u64::MAX));
        let mut sent = copied(&mut shard, CopyMode::First, 1_000, |_| {});
        // As the sender does in each pass: what was removed comes before what changed.
        let mut pass = |shard: &mut Shard, between: &mut dyn FnMut(&mut Shard)| {
            for id in shard.take_removed() {
                sent.remove(&id);
            }
            sent.extend(copied(shard, CopyMode::SinceFirst, 1, between));
            sent.clone()
        };
        (0..1_000).for_each(|number| put(&mut shard, number, u64::MAX));
        let mut left = 0..1_000;
        pass(&mut shard, &mut |shard| {
            // Some of them in segments that are still to be copied, and some behind.
            for number in left.by_ref().take(5) {
                assert_eq!(shard.remove(id(number)), 1);
                put(shard, number, u64::MAX);
            }
        });
        assert!(left.is_empty());
        let sent = pass(&mut shard, &mut |_| {});
        assert!((0..1_000).all(|number| sent.contains_key(&id(number))), "{}", sent.len());
    }

    #[test]
    fn of_two_copies_at_once_neither_misses_anything() {
        let mut shard = Shard::new(7);
        for number in 0..5_000 {
            put(&mut shard, number, u64::MAX);
        }
        let mut left = 0..4_900;
        let all = copied(&mut shard, CopyMode::All, 20, |shard| {
            // Another copy begins and ends, and counters become few.
            assert!(copied(shard, CopyMode::All, 5_000, |_| {}).len() > 50);
            left.by_ref().take(20).for_each(|number| assert_eq!(shard.remove(id(number)), 1));
        });
        assert!((4_900..5_000).all(|number| all.contains_key(&id(number))));
        let segments = shard.segments.len();
        assert!(segments > 20, "nothing was merged meanwhile");
        (4_950..5_000).for_each(|number| assert_eq!(shard.remove(id(number)), 1));
        assert!(shard.segments.len() < segments);
    }

    /// The tables' own memory, in bytes: an entry (hash, key, counter) for each place, and an index
    /// of 8 bytes and a control byte for each bucket, of which 7/8 are used at most.
    fn bytes(shard: &Shard) -> usize {
        let of_segment = |segment: &Segment| {
            let buckets = (segment.capacity() * 8 / 7).next_power_of_two();
            size_of::<(usize, u128, Entry)>() * segment.capacity() + 9 * buckets
        };
        shard.segments.capacity() * size_of::<Segment>()
            + shard.segments.iter().map(of_segment).sum::<usize>()
    }

    #[test]
    fn a_counter_costs_less_than_two_hundred_bytes_and_no_insert_moves_many() {
        let mut shard = Shard::new(7);
        let mut slowest = Duration::ZERO;
        for number in 0..100_000_u128 {
            let before = crate::clock::thread_cpu();
            put(&mut shard, number, 1);
            slowest = slowest.max(crate::clock::thread_cpu() - before);
            if number > 100 && number % 64 == 0 {
                let each = bytes(&shard) / shard.len();
                assert!(each < 200, "{each} bytes for each of {}", shard.len());
            }
        }
        // CPU time, as other threads may take the core; a generous bound for a build that is not
        // optimised.
        assert!(slowest < Duration::from_millis(5), "{slowest:?}");
        while shard.sweep(1, 512) > 0 {}
        assert!(bytes(&shard) < 4_096, "{} bytes for none", bytes(&shard));
    }
}
