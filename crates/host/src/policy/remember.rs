//! A cache of a pure policy's decisions, by the facts they were made from: a set-associative table
//! that grows with the facts in use, up to a bound.
//!
//! Facts come from clients. Each list of facts may be in two sets of [`WAYS`] entries, chosen by a
//! keyed hash. So a look-up compares a fixed number of hashes, whatever clients send. The facts
//! themselves are compared, too, so no list is mistaken for another. A new entry replaces one that
//! was not used for a long time; where there is none, it is not cached. Once a table is not small
//! any more, a list is cached when it is seen for the second time. A flood of facts that come only
//! once therefore displaces only itself, and fills no memory.

use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use foldhash::quality::RandomState;

use super::{Decision, Verdict};
use crate::clock::Clock;
use crate::plan::Limit;

/// Entries in a set.
const WAYS: usize = 8;
/// Sets of a new table, and of the largest one on a thread with [`THREAD_BYTES_MAX`]. Powers of
/// two. With two sets to choose from, the table is four fifths full before both are full: the
/// largest one holds more than 12,000 decisions.
const SETS_MIN: usize = 8;
const SETS_MAX: usize = 2_048;
/// Where a table may be larger than that, it has one set for this many bytes.
const BYTES_PER_SET: usize = THREAD_BYTES_MAX / SETS_MAX;
/// Maximum size of facts or decisions that are cached, in bytes.
const FACTS_BYTES_MAX: usize = 512;
const DECISION_BYTES_MAX: usize = 2_048;
/// Bytes that the tables of one thread share equally, if it asked for no other number. When a table
/// is added, the others shrink to their share with their next new entries.
pub(super) const THREAD_BYTES_MAX: usize = 32 << 20;
/// The size from which a list of facts is cached when it comes a second time, and not the first.
const SEEN_AGAIN_FROM_BYTES: usize = 1 << 20;
/// Number of lists of facts that are remembered to have come once. A power of two, above the number
/// of decisions that a table holds: lists that come in turn must not be forgotten in between.
const SEEN_ONCE_MAX: usize = 32_768;
/// Bytes that are counted for what consumers derive from each limit and keep in the slots of plan
/// and decision. Fields that they derive count as much as those of the decision.
const DERIVED_LIMIT_BYTES: usize = 512;
/// After this many look-ups one set is aged, each set in turn. So a set is aged once in this many
/// look-ups for each set of the table, and an entry that is used in between stays in a full table.
const LOOKUPS_PER_AGING: usize = 32;
/// Maximum number of sets that are searched for bytes to free for one new entry.
const SETS_FREED_MAX: usize = 32;

#[derive(Default)]
pub(super) struct DecisionCache {
    /// Empty until the first decision is cached.
    sets: Vec<Set>,
    /// The approximate size of all entries, in bytes.
    bytes: usize,
    /// The set that was aged or searched last.
    hand: usize,
    /// Look-ups so far.
    lookups: usize,
    /// Parts of the hashes of lists that came once, each at its hash. Empty while it is not needed.
    seen_once: Vec<u16>,
    hasher: RandomState,
}

/// Hashes are separate from entries: a look-up reads one cache line of a set, and then the one
/// entry that matches.
#[derive(Default)]
#[repr(align(64))]
struct Set {
    hashes: [u64; WAYS],
    entries: [Option<Entry>; WAYS],
    /// A bit for each entry that was found since the set was last aged, and between the last two
    /// agings.
    used: u8,
    used_before: u8,
}

struct Entry {
    /// The facts as [`packed`] writes them.
    facts: Box<[u8]>,
    decision: Arc<Decision>,
    expiry: Expiry,
}

/// The time until which a decision may be used, by [`Clock::steady_us`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Expiry(i64);

impl Expiry {
    pub(super) const NEVER: Self = Self(i64::MAX);

    pub(super) fn at(steady_us: i64) -> Self {
        Self(steady_us)
    }

    /// Whether it has passed. The clock is only read if it ever does.
    fn has_passed(self, clock: &Clock) -> bool {
        self != Self::NEVER && clock.steady_us() >= self.0
    }
}

impl DecisionCache {
    pub(super) fn get(&mut self, facts: &[(&str, &str)], clock: &Clock) -> Option<Arc<Decision>> {
        if self.sets.is_empty() {
            return None;
        }
        self.lookups = self.lookups.wrapping_add(1);
        if self.lookups.is_multiple_of(LOOKUPS_PER_AGING) {
            self.next_set()?.age();
        }
        let hash = self.hash(facts);
        for place in places(hash, self.sets.len()) {
            match self.sets.get_mut(place)?.find(hash, facts, clock) {
                Found::Nothing => {}
                Found::Decision(decision) => return Some(decision),
                Found::Expired(entry) => {
                    self.bytes -= entry.bytes();
                    return None;
                }
            }
        }
        None
    }

    /// Caches a decision on facts that [`DecisionCache::get`] has not found, if the table is small
    /// or they came before. See [`DecisionCache::put`].
    pub(super) fn offer(
        &mut self,
        facts: &[(&str, &str)],
        decision: &Arc<Decision>,
        expiry: Expiry,
        bytes_max: usize,
    ) {
        if self.bytes < SEEN_AGAIN_FROM_BYTES || self.comes_again(self.hash(facts)) {
            self.put(facts, decision, expiry, bytes_max);
        }
    }

    /// Caches a decision on facts that [`DecisionCache::get`] has not found, unless it is too large
    /// or both of its sets are full of entries in use. The table holds at most `bytes_max` bytes.
    fn put(
        &mut self,
        facts: &[(&str, &str)],
        decision: &Arc<Decision>,
        expiry: Expiry,
        bytes_max: usize,
    ) {
        let (facts_bytes, decision_bytes) = (packed_bytes(facts), weight(decision));
        if facts_bytes > FACTS_BYTES_MAX || decision_bytes > DECISION_BYTES_MAX {
            return;
        }
        let hash = self.hash(facts);
        let bytes = entry_bytes(facts_bytes, decision);
        if !self.has_room(bytes, bytes_max) {
            return;
        }
        if let Some((place, way)) = self.place_for(hash, sets_max(bytes_max))
            && let Some(set) = self.sets.get_mut(place)
        {
            let facts = packed(facts, facts_bytes);
            let entry = Entry { facts, decision: Arc::clone(decision), expiry };
            let replaced = set.put(way, hash, entry);
            self.bytes = self.bytes + bytes - replaced.map_or(0, |replaced| replaced.bytes());
        }
    }

    /// Whether facts with this hash came before, as far as is remembered.
    fn comes_again(&mut self, hash: u64) -> bool {
        if self.seen_once.is_empty() {
            self.seen_once.resize(SEEN_ONCE_MAX, 0);
        }
        // The table itself uses the lowest bits of both halves.
        let place = usize::try_from(hash >> 16).unwrap_or(0) & (SEEN_ONCE_MAX - 1);
        // Zero is an empty place.
        let part = u16::try_from(hash >> 48).unwrap_or(0) | 1;
        let Some(seen) = self.seen_once.get_mut(place) else { return false };
        if *seen == part {
            return true;
        }
        // By chance, or two lists that have one place and come in turn would always find each other
        // there.
        if *seen == 0 || fastrand::bool() {
            *seen = part;
        }
        false
    }

    /// Drops unused entries until there is room for `bytes` more. `false` if a bounded search does
    /// not free enough.
    fn has_room(&mut self, bytes: usize, bytes_max: usize) -> bool {
        for _ in 0..SETS_FREED_MAX {
            if self.bytes + bytes <= bytes_max {
                return true;
            }
            let freed = self.next_set().map_or(0, Set::drop_unused);
            self.bytes -= freed;
        }
        self.bytes + bytes <= bytes_max
    }

    fn next_set(&mut self) -> Option<&mut Set> {
        self.hand = if self.hand + 1 < self.sets.len() { self.hand + 1 } else { 0 };
        self.sets.get_mut(self.hand)
    }

    /// The set and the index in it for a new entry: a free one, growing the table if needed, or
    /// that of an unused entry.
    fn place_for(&mut self, hash: u64, sets_max: usize) -> Option<(usize, usize)> {
        loop {
            let places = places(hash, self.sets.len());
            let free =
                places.into_iter().filter_map(|place| Some((self.sets.get(place)?.free()?, place)));
            // The emptier of the two sets, so that both are full as late as possible.
            if let Some(((_, way), place)) = free.max_by_key(|((free, _), _)| *free) {
                return Some((place, way));
            }
            if self.sets.len() >= sets_max {
                return places
                    .into_iter()
                    .find_map(|place| Some((place, self.sets.get(place)?.unused()?)));
            }
            self.grow(sets_max);
        }
    }

    /// Doubles the sets and moves the entries. An entry whose sets are full in the larger table is
    /// dropped, which almost never happens.
    fn grow(&mut self, sets_max: usize) {
        let sets = (2 * self.sets.len()).clamp(SETS_MIN, sets_max);
        let mut grown = Self {
            hasher: self.hasher.clone(),
            seen_once: std::mem::take(&mut self.seen_once),
            ..Self::default()
        };
        grown.sets.resize_with(sets, Set::default);
        for mut set in std::mem::take(&mut self.sets) {
            for (way, (hash, entry)) in set.hashes.into_iter().zip(&mut set.entries).enumerate() {
                let Some(entry) = entry.take() else { continue };
                let free = places(hash, sets)
                    .into_iter()
                    .filter_map(|place| Some((grown.sets.get(place)?.free()?, place)));
                let Some(((_, free), place)) = free.max_by_key(|((free, _), _)| *free) else {
                    continue;
                };
                if let Some(other) = grown.sets.get_mut(place) {
                    grown.bytes += entry.bytes();
                    other.put(free, hash, entry);
                    other.used |= (set.used >> way & 1) << free;
                    other.used_before |= (set.used_before >> way & 1) << free;
                }
            }
        }
        *self = grown;
    }

    fn hash(&self, facts: &[(&str, &str)]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        for (name, value) in facts {
            hasher.write(name.as_bytes());
            hasher.write(value.as_bytes());
        }
        hasher.finish()
    }
}

/// What a set has for some facts.
enum Found {
    Nothing,
    Decision(Arc<Decision>),
    /// One that may not be used any more. It has been taken out.
    Expired(Entry),
}

/// How many sets a table of this many bytes may have, a power of two.
fn sets_max(bytes_max: usize) -> usize {
    let sets = (bytes_max / BYTES_PER_SET).max(1);
    (1 << sets.ilog2()).max(SETS_MAX)
}

/// The two sets in which an entry may be. `sets` is a power of two.
fn places(hash: u64, sets: usize) -> [usize; 2] {
    let mask = (sets as u64).wrapping_sub(1);
    [hash & mask, hash >> 32 & mask].map(|place| usize::try_from(place).unwrap_or(0))
}

impl Set {
    fn find(&mut self, hash: u64, facts: &[(&str, &str)], clock: &Clock) -> Found {
        for (way, (known, place)) in self.hashes.iter().zip(&mut self.entries).enumerate() {
            if *known == hash
                && let Some(entry) = place
                && same(facts, &entry.facts)
            {
                if entry.expiry.has_passed(clock) {
                    return place.take().map_or(Found::Nothing, Found::Expired);
                }
                self.used |= 1 << way;
                return Found::Decision(Arc::clone(&entry.decision));
            }
        }
        Found::Nothing
    }

    /// How many entries are free, and the index of the first.
    fn free(&self) -> Option<(usize, usize)> {
        let first = self.entries.iter().position(Option::is_none)?;
        Some((self.entries.iter().filter(|entry| entry.is_none()).count(), first))
    }

    /// The index of a random unused entry, if any. In a fixed order, facts that recur in a cycle
    /// would replace each other for ever.
    fn unused(&self) -> Option<usize> {
        let start = fastrand::usize(..WAYS);
        (start..start + WAYS).map(|way| way % WAYS).find(|way| !self.is_used(*way))
    }

    fn is_used(&self, way: usize) -> bool {
        (self.used | self.used_before) >> way & 1 != 0
    }

    /// Entries that are not found until the next aging count as unused then.
    fn age(&mut self) {
        self.used_before = std::mem::take(&mut self.used);
    }

    /// Stores `entry` at `way`, marked as not used yet; returns the entry that it replaces.
    fn put(&mut self, way: usize, hash: u64, entry: Entry) -> Option<Entry> {
        self.used &= !(1 << way);
        self.used_before &= !(1 << way);
        *self.hashes.get_mut(way)? = hash;
        self.entries.get_mut(way)?.replace(entry)
    }

    /// Drops unused entries and ages the rest. Returns how many bytes that frees.
    fn drop_unused(&mut self) -> usize {
        let mut freed = 0;
        for way in 0..WAYS {
            if !self.is_used(way)
                && let Some(entry) = self.entries.get_mut(way).and_then(Option::take)
            {
                freed += entry.bytes();
            }
        }
        self.age();
        freed
    }
}

impl Entry {
    fn bytes(&self) -> usize {
        entry_bytes(self.facts.len(), &self.decision)
    }
}

fn entry_bytes(facts_bytes: usize, decision: &Decision) -> usize {
    let limits = match &decision.verdict {
        Verdict::Check(plan) => plan.limits().len(),
        Verdict::Bypass | Verdict::Deny(_) => 0,
    };
    let derived = limits * DERIVED_LIMIT_BYTES
        + pairs(&decision.upstream_headers)
        + pairs(&decision.response_headers);
    facts_bytes + size_of::<Decision>() + weight(decision) + derived
}

fn packed_bytes(facts: &[(&str, &str)]) -> usize {
    facts.iter().map(|(name, value)| name.len() + value.len() + 8).sum()
}

/// All names and values, each after its length. `bytes` is the total size.
fn packed(facts: &[(&str, &str)], bytes: usize) -> Box<[u8]> {
    let mut packed = Vec::with_capacity(bytes);
    for text in facts.iter().flat_map(|(name, value)| [name, value]) {
        packed.extend_from_slice(&length(text));
        packed.extend_from_slice(text.as_bytes());
    }
    packed.into()
}

/// A length prefix, so that no two lists of facts have the same bytes. Only short facts are packed,
/// so the length fits.
fn length(text: &str) -> [u8; 4] {
    u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes()
}

fn same(facts: &[(&str, &str)], mut packed: &[u8]) -> bool {
    for text in facts.iter().flat_map(|(name, value)| [name, value]) {
        let rest =
            packed.strip_prefix(&length(text)).and_then(|rest| rest.strip_prefix(text.as_bytes()));
        match rest {
            Some(rest) => packed = rest,
            None => return false,
        }
    }
    packed.is_empty()
}

fn pairs(pairs: &[(String, String)]) -> usize {
    pairs.iter().map(|(name, value)| name.len() + value.len() + 48).sum()
}

/// The approximate size of a decision, in bytes.
fn weight(decision: &Decision) -> usize {
    // What such a decision reads of a body hardly comes twice.
    if decision.bodies.is_some() {
        return usize::MAX;
    }
    let verdict = match &decision.verdict {
        Verdict::Bypass => 0,
        Verdict::Check(plan) => {
            let limits = plan.limits().iter();
            limits
                .map(|limit| {
                    limit.name.len()
                        + limit.key.len()
                        + limit.tag.as_ref().map_or(0, String::len)
                        + limit.unit.as_ref().map_or(0, String::len)
                        + size_of::<Limit>()
                })
                .sum()
        }
        Verdict::Deny(denial) => {
            let body = denial.body.as_ref();
            let body = body.map_or(0, |(media_type, text)| media_type.len() + text.len());
            denial.reason.len() + body + pairs(&denial.headers)
        }
    };
    let memo = decision.settle_with.as_ref().map_or(0, String::len);
    let refusal = decision.refusal.as_ref();
    let refusal = refusal.map_or(0, |reply| reply.media_type.len() + reply.body.len());
    let fair_key = decision.fair_key.as_ref().map_or(0, String::len);
    let named = decision.joining.replaces.iter();
    let named = named.chain(decision.messages.iter().map(|(limit, _)| limit));
    let named: usize = named.map(|name| name.len() + size_of::<String>()).sum();
    let metadata = decision.joining.metadata.as_ref().map_or(0, |text| text.len());
    verdict
        + memo
        + metadata
        + refusal
        + fair_key
        + named
        + pairs(&decision.upstream_headers)
        + pairs(&decision.response_headers)
        + pairs(&decision.labels)
}

#[cfg(test)]
mod tests;
