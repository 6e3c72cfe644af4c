//! The keys that use most, and that are refused most, by limit. Each worker counts by itself;
//! [`merged`] adds the workers up.
//!
//! A limit has two windows: one that is counted in, and the one before. So what is shown covers at
//! least one half of the configured time and at most all of it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Digest;
use super::sketch::{ENTRIES_MAX, HeavyKey, Sketch};

/// Maximum number of limits of one worker that are watched.
const LIMITS_MAX: usize = 256;
/// Maximum number of entries of one worker's sketches: some 8 MiB with their texts.
const WORKER_ENTRIES_MAX: usize = 32_768;

/// A limit whose keys are counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LimitName {
    /// The policy's name.
    pub policy: String,
    /// The route, where its counters are the route's own.
    pub route: Option<String>,
    /// The limit's name.
    pub limit: String,
}

/// What one worker has counted.
#[derive(Debug)]
pub struct Top {
    /// The limits by the digest of their names.
    limits: HashMap<u128, Limit, BuildHasherDefault<DigestHasher>>,
    /// Where keys are in sketches.
    seed: u64,
    /// When the windows that are counted in began.
    began: Option<Instant>,
    /// When they end. Kept, since each request compares with it.
    ends: Option<Instant>,
    /// When those before began.
    before_began: Option<Instant>,
    /// The half of the time that is shown.
    window: Duration,
    /// Maximum number of entries of one sketch.
    keys_max: usize,
    /// Entries of all sketches.
    entries: usize,
    keeps_texts: bool,
    /// Requests to limits beyond [`LIMITS_MAX`].
    left_out: u64,
}

#[derive(Debug)]
struct Limit {
    name: LimitName,
    /// The one that is counted in, and the one before.
    windows: [Window; 2],
}

#[derive(Debug, Default)]
struct Window {
    used: Sketch,
    refused: Sketch,
}

/// What happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyEvent {
    /// This many units were taken.
    Used(u64),
    /// It was refused once.
    Refused,
}

/// Digests are spread well.
#[derive(Debug, Default)]
struct DigestHasher(u64);

impl Hasher for DigestHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u128(&mut self, digest: u128) {
        self.0 = digest as u64 ^ (digest >> 64) as u64;
    }
}

impl Default for Top {
    fn default() -> Self {
        Self {
            limits: HashMap::default(),
            seed: fastrand::u64(..),
            began: None,
            ends: None,
            before_began: None,
            window: Duration::ZERO,
            keys_max: 0,
            entries: 0,
            keeps_texts: false,
            left_out: 0,
        }
    }
}

impl Top {
    /// Sets new bounds. What was counted under other bounds is dropped.
    pub(super) fn bound(&mut self, keys_max: usize, time: Duration, keeps_texts: bool) {
        let keys_max = keys_max.min(ENTRIES_MAX);
        let window = time / 2;
        if (self.keys_max, self.window, self.keeps_texts) == (keys_max, window, keeps_texts) {
            return;
        }
        *self = Self { keys_max, window, keeps_texts, ..Self::default() };
    }

    /// Begins a new window if this one is over.
    #[inline]
    pub(super) fn turn(&mut self, now: Instant) {
        if self.ends.is_none_or(|ends| now >= ends) {
            self.begin(now);
        }
    }

    /// Begins the first window, or the one after that which is over.
    #[cold]
    fn begin(&mut self, now: Instant) {
        let Some(began) = self.began else {
            self.starts(now);
            return;
        };
        let passed = now.saturating_duration_since(began);
        if passed < self.window {
            return;
        }
        // More than both: nothing was counted in the last one.
        let both = passed >= 2 * self.window;
        for limit in self.limits.values_mut() {
            limit.windows.swap(0, 1);
            let [current, before] = &mut limit.windows;
            self.entries -= current.clear();
            if both {
                self.entries -= before.clear();
            }
        }
        self.limits.retain(|_, limit| !limit.is_empty());
        self.left_out = 0;
        // By whole windows, so that both together are never longer than the time that is shown.
        let into_ns = passed.as_nanos().checked_rem(self.window.as_nanos()).unwrap_or(0);
        let into = Duration::from_nanos(u64::try_from(into_ns).unwrap_or(u64::MAX));
        self.before_began = Some(began).filter(|_| !both);
        self.starts(now.checked_sub(into).unwrap_or(now));
    }

    fn starts(&mut self, at: Instant) {
        self.began = Some(at);
        self.ends = at.checked_add(self.window);
    }

    /// How long ago what is counted began.
    fn covers(&self, now: Instant) -> Duration {
        let began = self.before_began.or(self.began);
        began.map_or(Duration::ZERO, |began| now.saturating_duration_since(began))
    }

    /// The limits that are watched.
    fn watched(&self) -> Vec<(u128, LimitName)> {
        self.limits.iter().map(|(digest, limit)| (*digest, limit.name.clone())).collect()
    }

    /// Copies of a limit's sketches: what was used, and what was refused.
    fn copied(&self, limit: u128) -> [Vec<SketchCopy>; 2] {
        let windows = || self.limits.get(&limit).into_iter().flat_map(|limit| &limit.windows);
        let of = |sketch: &Sketch| SketchCopy {
            total: sketch.total(),
            unseen: sketch.unseen_max(),
            keys: sketch.iter().collect(),
        };
        [
            windows().map(|window| of(&window.used)).collect(),
            windows().map(|window| of(&window.refused)).collect(),
        ]
    }

    /// Counts for a key of the limit whose name has this digest. `text` is the key's.
    #[inline]
    pub fn count(
        &mut self,
        limit: u128,
        name: impl FnOnce() -> LimitName,
        (key, text): (Digest, &str),
        happened: KeyEvent,
    ) {
        let counted = (key, if self.keeps_texts { text } else { "" });
        let bounds = (self.keys_max, self.entries < WORKER_ENTRIES_MAX);
        let is_full = self.limits.len() >= LIMITS_MAX;
        let grown = match self.limits.get_mut(&limit) {
            Some(limit) => limit.add(counted, happened, bounds, self.seed),
            None if is_full => {
                self.left_out += 1;
                0
            }
            None => {
                let limit = self.limits.entry(limit).or_insert_with(|| Limit::new(name()));
                limit.add(counted, happened, bounds, self.seed)
            }
        };
        self.entries += grown;
    }
}

impl Limit {
    fn new(name: LimitName) -> Self {
        Self { name, windows: Default::default() }
    }

    /// Counts what happened, and returns the number of new entries: 0 or 1. A sketch has at most
    /// `most` entries, and gets no new one without `room` unless it is empty.
    fn add(
        &mut self,
        (key, text): (Digest, &str),
        happened: KeyEvent,
        (most, room): (usize, bool),
        seed: u64,
    ) -> usize {
        let [window, _] = &mut self.windows;
        let (sketch, units) = match happened {
            KeyEvent::Used(units) => (&mut window.used, units),
            KeyEvent::Refused => (&mut window.refused, 1),
        };
        let before = sketch.len();
        // A sketch that is empty gets an entry in any case, or its limit would not be seen.
        let grows = before < most && (room || before == 0);
        sketch.add(key, units, text, grows, seed);
        sketch.len() - before
    }

    fn is_empty(&self) -> bool {
        self.windows.iter().all(|window| window.used.len() + window.refused.len() == 0)
    }
}

impl Window {
    /// Returns how many entries it had.
    fn clear(&mut self) -> usize {
        let entries = self.used.len() + self.refused.len();
        self.used.clear();
        self.refused.clear();
        entries
    }
}

/// The keys of one limit that use most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopOfLimit {
    /// The limit.
    pub name: LimitName,
    /// Units that were taken, of all keys.
    pub used_total: u64,
    /// The keys that used most, the first most.
    pub used: Vec<TopKey>,
    /// Refusals, of all keys.
    pub refused_total: u64,
    /// The keys that were refused most, the first most.
    pub refused: Vec<TopKey>,
}

/// A key and what it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopKey {
    /// Its digests: of its tag and of itself.
    pub key: Digest,
    /// Its text, or its beginning with an ellipsis: up to 128 bytes. Empty if no texts are kept.
    pub text: String,
    /// Its units or refusals: at most this many,
    pub units: u64,
    /// and at least this many less.
    pub error: u64,
}

/// What the workers have counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopKeys {
    /// The time that it covers.
    pub since: Duration,
    /// Sorted by name.
    pub limits: Vec<TopOfLimit>,
    /// Requests to limits that were too many to watch.
    pub left_out: u64,
}

/// A copy of a sketch, so that nothing is added up while its worker waits.
struct SketchCopy {
    total: u64,
    unseen: u64,
    keys: Vec<HeavyKey>,
}

/// Sketches of one limit, added up.
#[derive(Debug, Default)]
struct Sum {
    total: u64,
    keys: HashMap<Digest, SumOfKey>,
    /// What a key that has no entry anywhere may have.
    unseen: u64,
}

#[derive(Debug, Default)]
struct SumOfKey {
    units: u64,
    error: u64,
    /// The part of [`Sum::unseen`] that is of sketches in which it has an entry.
    seen: u64,
    text: String,
}

impl Sum {
    fn add(&mut self, SketchCopy { total, unseen, keys }: SketchCopy) {
        self.total = self.total.saturating_add(total);
        self.unseen = self.unseen.saturating_add(unseen);
        for HeavyKey { key, units, error, text } in keys {
            let sum = self.keys.entry(key).or_default();
            sum.units = sum.units.saturating_add(units);
            sum.error = sum.error.saturating_add(error);
            sum.seen = sum.seen.saturating_add(unseen);
            if sum.text.is_empty() {
                sum.text = text;
            }
        }
    }

    /// The keys with most. Where a key has no entry, it may have had what is unseen there.
    fn top(self, count: usize) -> (u64, Vec<TopKey>) {
        let unseen = self.unseen;
        let each = self.keys.into_iter().map(|(key, of)| {
            let missed = unseen.saturating_sub(of.seen);
            let (units, error) = (of.units.saturating_add(missed), of.error.saturating_add(missed));
            TopKey { key, text: of.text, units, error }
        });
        let mut keys: Vec<TopKey> = each.collect();
        keys.sort_by_key(|key| (Reverse(key.units), key.error, key.key));
        keys.truncate(count);
        (self.total, keys)
    }
}

fn lock(worker: &Mutex<Top>) -> MutexGuard<'_, Top> {
    worker.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What all workers have counted: of each limit, or of those called `only`, the `count` keys that
/// use most.
pub(super) fn merged(
    workers: &[&Mutex<Top>],
    now: Instant,
    only: Option<&str>,
    count: usize,
) -> TopKeys {
    let mut all = TopKeys::default();
    let mut sums: BTreeMap<LimitName, [Sum; 2]> = BTreeMap::new();
    for worker in workers {
        let watched = {
            let mut top = lock(worker);
            top.turn(now);
            all.since = all.since.max(top.covers(now));
            all.left_out = all.left_out.saturating_add(top.left_out);
            top.watched()
        };
        let wanted = |name: &LimitName| only.is_none_or(|only| name.limit == only);
        for (digest, name) in watched.into_iter().filter(|(_, name)| wanted(name)) {
            // Locked for one limit at a time: the worker may wait.
            let [used, refused] = lock(worker).copied(digest);
            let [sum_used, sum_refused] = sums.entry(name).or_default();
            used.into_iter().for_each(|copied| sum_used.add(copied));
            refused.into_iter().for_each(|copied| sum_refused.add(copied));
        }
    }
    let limits = sums.into_iter().map(|(name, [used, refused])| {
        let ((used_total, used), (refused_total, refused)) = (used.top(count), refused.top(count));
        TopOfLimit { name, used_total, used, refused_total, refused }
    });
    all.limits = limits.collect();
    all
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const REQUESTS: usize = 1_000_000;
    const KEYS: usize = 100_000;
    const ENTRIES: usize = 512;
    const WORKERS: usize = 4;

    fn digest(number: usize) -> Digest {
        let spread = (number as u128 + 1).wrapping_mul(0x2545_f491_4f6c_dd1d_9e37_79b9_7f4a_7c15);
        [spread, spread]
    }

    fn name(limit: &str) -> LimitName {
        LimitName { policy: "p".into(), route: None, limit: limit.into() }
    }

    fn top(entries: usize, minutes: u64) -> Mutex<Top> {
        let mut top = Top::default();
        top.bound(entries, Duration::from_secs(60 * minutes), true);
        Mutex::new(top)
    }

    /// The place of a key in a Zipf distribution with exponent 1: by inverting the sum of the
    /// weights.
    fn zipf() -> impl FnMut() -> usize {
        let mut sums = Vec::with_capacity(KEYS);
        let mut sum = 0.0;
        for rank in 1..=KEYS {
            sum += 1.0 / rank as f64;
            sums.push(sum);
        }
        let mut random = fastrand::Rng::with_seed(7);
        move || sums.partition_point(|upto| *upto < random.f64() * sum).min(KEYS - 1)
    }

    #[track_caller]
    fn is_right(found: &TopKeys, truth: &HashMap<usize, u64>) {
        let [limit] = &found.limits[..] else { panic!("{:?}", found.limits.len()) };
        assert_eq!(limit.used_total, REQUESTS as u64);
        let mut most: Vec<(usize, u64)> = truth.iter().map(|(key, units)| (*key, *units)).collect();
        most.sort_by_key(|(key, units)| (Reverse(*units), *key));
        for (key, units) in &most[..20] {
            let one = limit.used.iter().find(|one| one.key == digest(*key));
            let one = one.unwrap_or_else(|| panic!("the key {key} with {units} is missing"));
            assert!(one.units >= *units && one.units - one.error <= *units, "{one:?}: {units}");
            assert!(one.error <= (REQUESTS / ENTRIES) as u64, "{one:?}");
            assert_eq!(one.text, key.to_string());
        }
    }

    #[test]
    fn the_first_twenty_of_a_zipf_stream_are_there_on_one_worker_and_on_several() {
        let now = Instant::now();
        let alone = [top(ENTRIES, 5)];
        let several: Vec<Mutex<Top>> = (0..WORKERS).map(|_| top(ENTRIES, 5)).collect();
        let (mut zipf, mut truth) = (zipf(), HashMap::new());
        for turn in 0..REQUESTS {
            let key = zipf();
            *truth.entry(key).or_insert(0) += 1;
            let text = key.to_string();
            for worker in [&alone[0], &several[turn % WORKERS]] {
                let mut top = worker.lock().unwrap();
                top.turn(now);
                top.count(1, || name("l"), (digest(key), &text), KeyEvent::Used(1));
            }
        }
        is_right(&merged(&alone.each_ref(), now, None, 40), &truth);
        let several: Vec<&Mutex<Top>> = several.iter().collect();
        is_right(&merged(&several, now, Some("l"), 40), &truth);
        assert!(merged(&several, now, Some("m"), 40).limits.is_empty());
    }

    #[test]
    fn the_page_shows_the_last_minutes() {
        let (worker, start) = (top(8, 10), Instant::now());
        let at = |minute: u64| start + Duration::from_secs(60 * minute);
        let count = |minute: u64, happened| {
            let mut top = worker.lock().unwrap();
            top.turn(at(minute));
            top.count(1, || name("l"), (digest(1), "k"), happened);
        };
        let shown = |minute: u64| {
            let found = merged(&[&worker], at(minute), None, 5);
            let units = |keys: &[TopKey]| keys.first().map_or(0, |key| key.units);
            let of = found.limits.first().map(|of| (units(&of.used), units(&of.refused)));
            (found.since.as_secs() / 60, of)
        };
        count(0, KeyEvent::Used(3));
        count(1, KeyEvent::Refused);
        assert_eq!(shown(4), (4, Some((3, 1))));
        count(6, KeyEvent::Used(4));
        assert_eq!(shown(9), (9, Some((7, 1))), "two windows");
        assert_eq!(shown(11), (6, Some((4, 0))), "the first is over");
        assert_eq!(shown(30), (0, None), "nothing for long");
        count(31, KeyEvent::Used(3));
        count(39, KeyEvent::Used(4));
        assert_eq!(shown(39), (9, Some((7, 0))), "idle for almost two windows");
        assert_eq!(shown(43), (8, Some((4, 0))), "and the first of them is over");
        assert_eq!(shown(60), (0, None));
        assert_eq!(worker.lock().unwrap().entries, 0);
    }

    #[test]
    fn limits_and_entries_are_bounded() {
        let (worker, now) = (top(ENTRIES_MAX, 5), Instant::now());
        let mut all = worker.lock().unwrap();
        all.turn(now);
        for limit in 0..LIMITS_MAX + 10 {
            for key in 0..200 {
                let name = || name(&limit.to_string());
                all.count(limit as u128, name, (digest(key), ""), KeyEvent::Used(1));
            }
        }
        assert_eq!((all.limits.len(), all.left_out), (LIMITS_MAX, 2_000));
        assert!(all.entries <= WORKER_ENTRIES_MAX + 2 * LIMITS_MAX, "{}", all.entries);
        drop(all);
        let found = merged(&[&worker], now, None, 1_000);
        assert_eq!(found.limits.len(), LIMITS_MAX);
        for limit in &found.limits {
            assert_eq!(limit.used_total, 200);
            let least: u64 = limit.used.iter().map(|key| key.units - key.error).sum();
            assert!(!limit.used.is_empty() && least <= 200);
        }
        worker.lock().unwrap().bound(4, Duration::from_secs(60), false);
        assert!(merged(&[&worker], now, None, 1).limits.is_empty(), "other bounds start afresh");
    }
}
