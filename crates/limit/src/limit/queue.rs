//! One worker's bounded queue of settling calls to Redis, and its counts of calls in flight. Knows
//! no engine.
//!
//! A full queue drops give-backs and resets before charges: a lost give-back leaves a limit too
//! strict until it expires, while a lost charge would let too much through.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::holders::Holders;
use super::lease_table::Leases;
use crate::engine::{Cells, Key};
use crate::plan::Algorithm;
use crate::telemetry::Counter;

/// Maximum number of settling calls queued on one worker.
pub(super) const SETTLES_QUEUED_MAX: usize = 4_096;
/// Maximum number of settling calls that one worker has in flight.
pub(super) const SETTLES_IN_FLIGHT_MAX: usize = 32;
/// Maximum number of takes that one worker has in flight, on all shards. Beyond it the store counts
/// as unreachable. A single shard, which may be frozen, has a smaller maximum of its own.
pub(super) const TAKES_IN_FLIGHT_MAX: usize = 16_384;

/// A settling call.
#[derive(Clone, Debug)]
pub(super) enum Job {
    /// Give back what was taken at that time, in microseconds since 1970.
    GiveBack { cells: Cells, taken_at_us: u64 },
    /// Charge in addition. If the store's time lies outside the period that the cell's numbers
    /// describe, it is called once more, with other numbers.
    /// `owes`: into debt if need be; else only if it fits.
    Charge { cells: Cells, algorithm: Algorithm, owes: bool },
    /// Delete the counter.
    Reset(Key),
}

/// What became of the queue with one more job.
#[derive(Debug)]
pub(super) struct Queued {
    /// The caller must start one more drainer.
    pub(super) needs_drainer: bool,
    /// It was full, and this is what was dropped.
    pub(super) dropped: Option<Job>,
}

/// A counter for each kind of settling call.
#[derive(Clone, Debug)]
pub(super) struct ByKind {
    pub(super) give_back: Counter,
    pub(super) charge: Counter,
    pub(super) reset: Counter,
}

impl ByKind {
    pub(super) fn of(&self, job: &Job) -> &Counter {
        match job {
            Job::GiveBack { .. } => &self.give_back,
            Job::Charge { .. } => &self.charge,
            Job::Reset(_) => &self.reset,
        }
    }
}

/// One worker's queue and calls in flight for one limiter.
#[derive(Debug)]
pub(super) struct Worker {
    queue: Mutex<Queue>,
    takes: AtomicUsize,
    /// Requests that wait for a leaky bucket, or may have to because their take is in flight.
    waiting: AtomicUsize,
    dropped: ByKind,
    pub(super) leases: Leases,
    /// The units that it has taken in advance.
    pub(super) holders: Holders,
    /// Its name as a holder of leases.
    pub(super) name: String,
}

#[derive(Debug, Default)]
struct Queue {
    /// Give-backs and resets.
    give_backs: VecDeque<Job>,
    charges: VecDeque<Job>,
    /// Tasks that take jobs from here.
    drainers: usize,
}

impl Worker {
    pub(super) fn new(name: String, dropped: ByKind) -> Self {
        Self {
            queue: Mutex::default(),
            takes: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            dropped,
            leases: Leases::default(),
            holders: Holders::default(),
            name,
        }
    }

    /// Queues `job`. If the queue is full, a job is dropped and counted.
    pub(super) fn push(&self, job: Job) -> Queued {
        let mut queue = self.lock();
        let mut dropped = None;
        if queue.give_backs.len() + queue.charges.len() >= SETTLES_QUEUED_MAX {
            let displaced = match job {
                Job::Charge { .. } => queue.give_backs.pop_front(),
                Job::GiveBack { .. } | Job::Reset(_) => None,
            };
            let Some(oldest) = displaced else {
                self.dropped.of(&job).inc();
                return Queued { needs_drainer: false, dropped: Some(job) };
            };
            self.dropped.of(&oldest).inc();
            dropped = Some(oldest);
        }
        match job {
            Job::GiveBack { .. } | Job::Reset(_) => queue.give_backs.push_back(job),
            Job::Charge { .. } => queue.charges.push_back(job),
        }
        let more = queue.drainers < SETTLES_IN_FLIGHT_MAX;
        queue.drainers += usize::from(more);
        Queued { needs_drainer: more, dropped }
    }

    /// The next job for a drainer.
    pub(super) fn pop(&self) -> Option<Job> {
        let mut queue = self.lock();
        queue.charges.pop_front().or_else(|| queue.give_backs.pop_front())
    }

    /// Ends a drainer. `false` if it must continue because a job came in; never so with `force`.
    pub(super) fn end_drainer(&self, force: bool) -> bool {
        let mut queue = self.lock();
        let ends = force || (queue.charges.is_empty() && queue.give_backs.is_empty());
        queue.drainers -= usize::from(ends);
        ends
    }

    /// Counts one more take. `false` if too many are in flight.
    pub(super) fn begin_take(&self) -> bool {
        let begun = self.takes.fetch_add(1, Ordering::SeqCst) < TAKES_IN_FLIGHT_MAX;
        if !begun {
            self.takes.fetch_sub(1, Ordering::SeqCst);
        }
        begun
    }

    pub(super) fn end_take(&self) {
        self.takes.fetch_sub(1, Ordering::SeqCst);
    }

    /// A permit for a request that may have to wait for a leaky bucket. `None` if `waiting_max` are
    /// taken.
    pub(super) fn wait_permit(self: &Arc<Self>, waiting_max: usize) -> Option<WaitPermit> {
        let counted = self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |waiting| {
            (waiting < waiting_max).then_some(waiting + 1)
        });
        counted.is_ok().then(|| WaitPermit(Arc::clone(self)))
    }

    /// How many wait permits are taken.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Takes and settling calls that are not finished.
    pub(super) fn pending(&self) -> usize {
        let queue = self.lock();
        // Each drainer holds a job, or is about to see that the queue is empty.
        let queued = queue.give_backs.len() + queue.charges.len() + queue.drainers;
        let holders = self.holders.kept_at_end();
        self.takes.load(Ordering::SeqCst) + self.leases.pending_releases() + queued + holders
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Every change is complete before the lock is released: a panic leaves a sound state.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Permission to wait for a leaky bucket. Freed when dropped.
#[derive(Debug)]
pub(super) struct WaitPermit(Arc<Worker>);

impl Drop for WaitPermit {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Worker {
    /// Jobs that are still queued will never run, because the thread or runtime is gone.
    fn drop(&mut self) {
        while let Some(job) = self.pop() {
            self.dropped.of(&job).inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Concurrency;
    use crate::telemetry::{Metrics, names};

    fn worker() -> (Worker, ByKind) {
        let metrics = Metrics::new(1);
        let of = |kind| metrics.counter(names::SETTLES_DROPPED, &[kind]);
        let dropped =
            ByKind { give_back: of("give_back"), charge: of("charge"), reset: of("reset") };
        (Worker::new("a".into(), dropped.clone()), dropped)
    }

    fn charge() -> Job {
        Job::Charge {
            cells: Cells::new(),
            algorithm: Algorithm::Concurrency(Concurrency { amount: 1 }),
            owes: false,
        }
    }

    fn reset() -> Job {
        let space = Arc::new(crate::engine::Space { text: String::new(), digest: 0 });
        Job::Reset(Key { tag: 0, key: 0, space })
    }

    fn give_back(taken_at_us: u64) -> Job {
        Job::GiveBack { cells: Cells::new(), taken_at_us }
    }

    #[test]
    fn a_full_queue_drops_the_oldest_give_back_for_a_charge_and_counts_it() {
        let (worker, dropped) = worker();
        for at in 0..SETTLES_QUEUED_MAX as u64 {
            worker.push(give_back(at));
        }
        worker.push(give_back(9));
        worker.push(reset());
        assert_eq!((dropped.give_back.get(), dropped.charge.get(), dropped.reset.get()), (1, 0, 1));
        for _ in 0..SETTLES_QUEUED_MAX {
            worker.push(charge());
        }
        assert_eq!(
            (dropped.give_back.get(), dropped.charge.get()),
            (1 + SETTLES_QUEUED_MAX as u64, 0)
        );
        worker.push(charge());
        assert_eq!(dropped.charge.get(), 1);
        let waiting = std::iter::from_fn(|| worker.pop()).count();
        assert_eq!(waiting, SETTLES_QUEUED_MAX);
    }

    #[test]
    fn charges_leave_first_and_drainers_are_bounded() {
        let (worker, _) = worker();
        let started = (0..SETTLES_IN_FLIGHT_MAX + 5)
            .filter(|at| worker.push(give_back(*at as u64)).needs_drainer)
            .count();
        assert_eq!(started, SETTLES_IN_FLIGHT_MAX);
        worker.push(charge());
        assert!(matches!(worker.pop(), Some(Job::Charge { .. })));
        assert!(matches!(worker.pop(), Some(Job::GiveBack { taken_at_us: 0, .. })));
        assert!(!worker.end_drainer(false), "jobs wait");
    }

    #[test]
    fn calls_that_wait_when_a_worker_ends_are_counted_as_dropped() {
        let (worker, dropped) = worker();
        worker.push(give_back(1));
        worker.push(charge());
        worker.push(reset());
        drop(worker);
        assert_eq!((dropped.give_back.get(), dropped.charge.get(), dropped.reset.get()), (1, 1, 1));
    }

    #[test]
    fn takes_under_way_are_bounded() {
        let (worker, _) = worker();
        assert!((0..TAKES_IN_FLIGHT_MAX).all(|_| worker.begin_take()));
        assert!(!worker.begin_take());
        worker.end_take();
        assert!(worker.begin_take());
        assert_eq!(worker.pending(), TAKES_IN_FLIGHT_MAX);
    }
}
