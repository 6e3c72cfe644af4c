//! What the running proxy remembers for its operator: of single requests the last refusals, and a
//! sample of all others; of single keys those that use most, and that are refused most. Knows no
//! request and no limit: what is remembered of a request is its owner's type, and keys are digests.
//!
//! Each worker has a slot of its own. Its mutexes are contended only while the operator looks, so
//! no request waits for another. `recent` bounds what is remembered of requests, `top` counts keys
//! by limit, and `sketch` finds those that use most.

mod recent;
mod sketch;
mod top;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::telemetry::{self, WORKERS_MAX};
use recent::Recent;

pub use top::{KeyEvent, LimitName, Top, TopKey, TopKeys, TopOfLimit};

/// One rejection is remembered for this many refusals.
const REJECTIONS_PART: usize = 4;

/// The digests that name a key: of its tag and of itself.
pub type Digest = [u128; 2];

/// What is remembered. Numbers of requests are of the whole process, and are divided among its
/// workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Maximum number of refusals; 0 for none. A quarter as many rejections are remembered as well.
    pub refusals: usize,
    /// Maximum number of other requests; 0 for none.
    pub samples: usize,
    /// One in this many other requests is remembered; 0 for none.
    pub sample_one_in: u32,
    /// Maximum size of everything remembered, in bytes.
    pub bytes: usize,
    /// Maximum number of keys that each worker counts for each limit; 0 for none.
    pub keys: usize,
    /// The longest time over which they are counted.
    pub window: Duration,
    /// Whether keys and secrets are shown as text.
    pub show_keys: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            refusals: 4_096,
            samples: 1_024,
            sample_one_in: 1_000,
            bytes: 16 << 20,
            keys: 512,
            window: Duration::from_secs(300),
            show_keys: false,
        }
    }
}

impl Settings {
    /// Maximum number of rejections.
    #[must_use]
    pub fn rejections(&self) -> usize {
        self.refusals.div_ceil(REJECTIONS_PART)
    }

    /// The same settings, but nothing is remembered.
    #[must_use]
    pub fn off(self) -> Self {
        Self { refusals: 0, samples: 0, sample_one_in: 0, keys: 0, ..self }
    }
}

/// How many requests are remembered, by their kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Refused ones.
    pub refusals: usize,
    /// Rejections.
    pub rejections: usize,
    /// Those of the sample.
    pub samples: usize,
}

/// What is remembered of one request.
pub trait Entry: Send {
    /// The memory that it takes, in bytes.
    fn bytes(&self) -> usize;
}

/// Why a request is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It was refused.
    Refusal,
    /// The request itself was rejected: malformed, too large, or without a route. Anybody can send
    /// any number of those.
    Rejection,
    /// It is part of the sample.
    Sample,
}

/// What the workers of one process remember. Clones share it.
pub struct Insight<R> {
    /// One for each worker, and a last one for all other threads. Empty if it is always off.
    slots: Arc<[Worker<R>]>,
    /// The slot of the thread that uses this clone.
    mine: usize,
}

/// One worker's part, on cache lines of its own.
#[repr(align(64))]
struct Worker<R> {
    remembers: AtomicBool,
    /// Requests until the next one of the sample. 0 for no sample.
    until_sample: AtomicU32,
    sample_one_in: AtomicU32,
    counts_keys: AtomicBool,
    shows_keys: AtomicBool,
    recent: Mutex<Recent<R>>,
    top: Mutex<Top>,
}

impl<R: Entry> Insight<R> {
    /// Makes slots for this many workers, and one more that all other threads share. Remembers
    /// nothing until [`apply`](Self::apply).
    #[must_use]
    pub fn new(workers: usize) -> Self {
        let workers = workers.clamp(1, WORKERS_MAX);
        Self { slots: (0..=workers).map(|_| Worker::default()).collect(), mine: workers }
    }

    /// Never remembers anything.
    #[must_use]
    pub fn off() -> Self {
        Self { slots: Arc::default(), mine: 0 }
    }

    /// A clone for this thread alone: what it remembers goes to the worker's own slot.
    #[must_use]
    pub fn for_this_thread(&self) -> Self {
        let shared = self.slots.len().saturating_sub(1);
        let mine = telemetry::worker().filter(|worker| *worker < shared).unwrap_or(shared);
        Self { slots: Arc::clone(&self.slots), mine }
    }

    /// Sets what is remembered from now on. What is more than that is forgotten.
    pub fn apply(&self, settings: &Settings) {
        let workers = self.slots.len().saturating_sub(1).max(1);
        let share = |whole: usize| whole.div_ceil(workers);
        let one_in = if settings.samples == 0 { 0 } else { settings.sample_one_in };
        for worker in &*self.slots {
            worker.recent().bound(
                share(settings.refusals),
                share(settings.rejections()),
                share(settings.samples),
                settings.bytes / workers,
            );
            worker.top().bound(settings.keys, settings.window, settings.show_keys);
            worker.counts_keys.store(settings.keys > 0, Ordering::Relaxed);
            worker.shows_keys.store(settings.show_keys, Ordering::Relaxed);
            worker.remembers.store(settings.refusals > 0 || one_in > 0, Ordering::Relaxed);
            worker.sample_one_in.store(one_in, Ordering::Relaxed);
            worker.until_sample.store(gap(one_in), Ordering::Relaxed);
        }
    }

    fn mine(&self) -> Option<&Worker<R>> {
        self.slots.get(self.mine)
    }

    /// Whether anything is remembered.
    #[must_use]
    pub fn remembers(&self) -> bool {
        self.mine().is_some_and(|worker| worker.remembers.load(Ordering::Relaxed))
    }

    /// Whether the request that asks is part of the sample.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        let Some(worker) = self.mine() else { return false };
        // Written by this worker alone, but for a reload and for threads that are not workers: what
        // is lost then is a number of the countdown.
        match worker.until_sample.load(Ordering::Relaxed) {
            0 => false,
            1 => {
                let one_in = worker.sample_one_in.load(Ordering::Relaxed);
                worker.until_sample.store(gap(one_in), Ordering::Relaxed);
                one_in > 0
            }
            left => {
                worker.until_sample.store(left - 1, Ordering::Relaxed);
                false
            }
        }
    }

    /// Remembers a request. The oldest of its kind may be forgotten for it.
    pub fn remember(&self, request: R, kind: Kind) {
        if let Some(worker) = self.mine() {
            worker.recent().push(request, kind);
        }
    }

    /// Whether keys are counted.
    #[must_use]
    pub fn counts_keys(&self) -> bool {
        self.mine().is_some_and(|worker| worker.counts_keys.load(Ordering::Relaxed))
    }

    /// Whether keys are shown as text.
    #[must_use]
    pub fn shows_keys(&self) -> bool {
        self.mine().is_some_and(|worker| worker.shows_keys.load(Ordering::Relaxed))
    }

    /// Has `count` count the keys of a request that came at `now`.
    pub fn count(&self, now: Instant, count: impl FnOnce(&mut Top)) {
        if let Some(worker) = self.mine() {
            let mut top = worker.top();
            top.turn(now);
            count(&mut top);
        }
    }

    /// The `count` keys that use most of each limit, or of those called `only`, at `now`.
    #[must_use]
    pub fn top(&self, now: Instant, only: Option<&str>, count: usize) -> TopKeys {
        let workers: Vec<&Mutex<Top>> = self.slots.iter().map(|worker| &worker.top).collect();
        top::merged(&workers, now, only, count)
    }

    /// What `look` makes of requests: the newest of each worker first, and at most `count` of each
    /// worker. `look` is called while the worker may wait.
    pub fn look<T>(&self, count: usize, mut look: impl FnMut(&R, Kind) -> Option<T>) -> Vec<T> {
        let mut found = Vec::new();
        for worker in &*self.slots {
            let recent = worker.recent();
            found.extend(
                recent.iter().filter_map(|(request, kind)| look(request, kind)).take(count),
            );
        }
        found
    }

    /// How many are remembered now.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let each = self.slots.iter().map(|worker| worker.recent().counts());
        each.fold(Counts::default(), |all, of| Counts {
            refusals: all.refusals + of.refusals,
            rejections: all.rejections + of.rejections,
            samples: all.samples + of.samples,
        })
    }
}

/// How many requests pass until the next one of the sample: one in `one_in` on average, and not at
/// equal distances, which a client that repeats itself would always miss or always meet.
fn gap(one_in: u32) -> u32 {
    match one_in {
        0 => 0,
        1 => 1,
        _ => fastrand::u32(1..one_in.saturating_mul(2)),
    }
}

impl<R> Worker<R> {
    fn recent(&self) -> MutexGuard<'_, Recent<R>> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn top(&self) -> MutexGuard<'_, Top> {
        self.top.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R> Default for Worker<R> {
    fn default() -> Self {
        Self {
            remembers: AtomicBool::new(false),
            until_sample: AtomicU32::new(0),
            sample_one_in: AtomicU32::new(0),
            counts_keys: AtomicBool::new(false),
            shows_keys: AtomicBool::new(false),
            recent: Mutex::default(),
            top: Mutex::default(),
        }
    }
}

impl<R> Clone for Insight<R> {
    fn clone(&self) -> Self {
        Self { slots: Arc::clone(&self.slots), mine: self.mine }
    }
}

impl<R> fmt::Debug for Insight<R> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Insight").field("slots", &self.slots.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Entry for u32 {
        fn bytes(&self) -> usize {
            100
        }
    }

    fn settings(refusals: usize, sample_one_in: u32) -> Settings {
        Settings { refusals, samples: 10, sample_one_in, ..Settings::default() }
    }

    #[test]
    fn the_last_ones_are_remembered_and_a_reload_changes_how_many() {
        let insight = Insight::new(1);
        insight.apply(&settings(3, 0));
        (0..10).for_each(|number| insight.remember(number, Kind::Refusal));
        let all = |insight: &Insight<u32>| insight.look(100, |number, _| Some(*number));
        assert_eq!(all(&insight), [9, 8, 7]);
        insight.apply(&settings(2, 0));
        let counts = Counts { refusals: 2, ..Counts::default() };
        assert_eq!((all(&insight), insight.counts()), (vec![9, 8], counts));
        insight.apply(&Settings::default().off());
        assert!(all(&insight).is_empty() && !insight.remembers());
        assert!(!Insight::<u32>::off().is_sampled());
    }

    #[test]
    fn about_one_in_so_many_is_sampled() {
        let insight = Insight::<u32>::new(1);
        for one_in in [1, 10, 1_000] {
            insight.apply(&settings(1, one_in));
            let sampled = (0..100_000).filter(|_| insight.is_sampled()).count();
            let expected = 100_000 / one_in as usize;
            assert!(sampled.abs_diff(expected) <= expected / 2, "1 in {one_in}: {sampled}");
        }
    }
}
