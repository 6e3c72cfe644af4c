//! Counters and gauges. Knows nothing about their names and labels.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use super::slots::{add, slot, slots};

#[repr(align(64))]
#[derive(Default)]
struct Slot(AtomicU64);

/// One series of a counter. Cheap to clone and to increment from any thread: look it up once and
/// keep it.
#[derive(Clone)]
pub struct Counter(Arc<[Slot]>);

impl Counter {
    /// A counter for `workers` worker threads.
    pub(super) fn new(workers: usize) -> Self {
        Self(slots(workers))
    }

    /// Adds one.
    #[inline]
    pub fn inc(&self) {
        self.add(1);
    }

    /// Adds `n`.
    #[inline]
    pub fn add(&self, n: u64) {
        if let Some((slot, alone)) = slot(&self.0) {
            add(&slot.0, n, alone);
        }
    }

    /// The sum over all workers.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.iter().map(|slot| slot.0.load(Ordering::Relaxed)).sum()
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Counter({})", self.get())
    }
}

/// A value that goes up and down, shared by all threads.
#[derive(Clone, Debug, Default)]
pub struct Gauge(Arc<GaugeValue>);

#[derive(Debug, Default)]
struct GaugeValue {
    now: AtomicI64,
    /// The highest value since [`Gauge::take_most`].
    most: AtomicI64,
}

impl Gauge {
    /// Sets it.
    #[inline]
    pub fn set(&self, value: i64) {
        self.0.now.store(value, Ordering::Relaxed);
        self.0.most.fetch_max(value, Ordering::Relaxed);
    }

    /// Adds `n`, which may be negative.
    #[inline]
    pub fn add(&self, n: i64) {
        let now = self.0.now.fetch_add(n, Ordering::Relaxed) + n;
        self.0.most.fetch_max(now, Ordering::Relaxed);
    }

    /// The highest value since the last call of this, including peaks between two calls.
    #[must_use]
    pub fn take_most(&self) -> i64 {
        self.0.most.swap(self.get(), Ordering::Relaxed)
    }

    /// Its value.
    #[must_use]
    pub fn get(&self) -> i64 {
        self.0.now.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Metrics, enter_worker, names};

    #[test]
    fn workers_count_apart_and_a_scrape_sums_them() {
        let metrics = Metrics::new(2);
        let counter = metrics.counter(names::REQUESTS, &["api", "200"]);
        let other = counter.clone();
        let thread = std::thread::spawn(move || {
            enter_worker(1);
            other.add(2);
        });
        counter.inc();
        thread.join().unwrap();
        assert!(
            metrics.encode().contains("weir_requests_total{route=\"api\",code=\"200\"} 3"),
            "{}",
            metrics.encode()
        );
    }

    #[test]
    fn threads_that_are_no_workers_of_these_metrics_lose_no_counts() {
        let metrics = Metrics::new(1);
        let counter = metrics.counter(names::REQUESTS, &["api", "200"]);
        std::thread::scope(|scope| {
            for index in [None, None, Some(0), Some(1), Some(1)] {
                let counter = counter.clone();
                scope.spawn(move || {
                    index.into_iter().for_each(enter_worker);
                    (0..100_000).for_each(|_| counter.inc());
                });
            }
        });
        assert_eq!(counter.get(), 500_000);
    }
}
