//! Histograms of times: fixed buckets, a set of them for each worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::slots::{add, slot, slots};

/// Upper bounds in microseconds: from a decision in memory to a slow upstream.
const BOUNDS_US: [u64; 23] = [
    1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000,
    250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000, 60_000_000,
];
const BUCKETS: usize = BOUNDS_US.len() + 1;

#[repr(align(64))]
#[derive(Debug, Default)]
struct Slot {
    counts: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

/// A histogram of times. Clones share it.
#[derive(Clone, Debug)]
pub struct Histogram(Arc<[Slot]>);

/// What a histogram held at a moment, over all workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistogramSnapshot {
    counts: [u64; BUCKETS],
    sum_ns: u64,
}

impl HistogramSnapshot {
    /// The number of times in it.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The number of times in each bucket. The last one has no upper bound.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// The upper bounds of all buckets but the last, in seconds. A time that equals one is in its
    /// bucket.
    #[allow(clippy::cast_precision_loss, reason = "seconds as a double is the format")]
    pub fn bounds_s() -> impl Iterator<Item = f64> {
        BOUNDS_US.into_iter().map(|us| us as f64 / 1e6)
    }

    /// The sum of all times, in seconds.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "seconds as a double is the format")]
    pub fn sum_s(&self) -> f64 {
        self.sum_ns as f64 / 1e9
    }

    /// The times that were added after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut since = self.clone();
        for (count, before) in since.counts.iter_mut().zip(&earlier.counts) {
            *count = count.saturating_sub(*before);
        }
        since.sum_ns = self.sum_ns.wrapping_sub(earlier.sum_ns);
        since
    }

    /// Adds the times of another histogram.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
    }

    /// The time, in seconds, that this share of all times (0 to 1) does not exceed; none where
    /// there are no times. Inside a bucket, times are taken to be spread evenly. Above the last
    /// bound it is that bound.
    #[must_use]
    pub fn quantile_s(&self, share: f64) -> Option<f64> {
        let all = self.count();
        if all == 0 {
            return None;
        }
        #[expect(clippy::cast_precision_loss, reason = "an estimate for a graph")]
        let (wanted, mut below, mut lower_us) = (share.clamp(0.0, 1.0) * all as f64, 0.0, 0.0);
        for (bound_us, count) in BOUNDS_US.iter().zip(&self.counts) {
            #[expect(clippy::cast_precision_loss, reason = "an estimate for a graph")]
            let (upper_us, count) = (*bound_us as f64, *count as f64);
            if count > 0.0 && below + count >= wanted {
                let within = ((wanted - below) / count).clamp(0.0, 1.0);
                return Some((lower_us + (upper_us - lower_us) * within) / 1e6);
            }
            (below, lower_us) = (below + count, upper_us);
        }
        Some(lower_us / 1e6)
    }
}

impl Histogram {
    pub(super) fn new(workers: usize) -> Self {
        Self(slots(workers))
    }

    /// Adds one time.
    #[inline]
    pub fn observe(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let Some((slot, alone)) = slot(&self.0) else { return };
        // Rounded up: more than a bound is beyond it.
        let us = ns.saturating_add(999) / 1_000;
        // Most times are short: a linear search finds them sooner than a binary one.
        let bucket = BOUNDS_US.iter().position(|bound| us <= *bound).unwrap_or(BOUNDS_US.len());
        if let Some(count) = slot.counts.get(bucket) {
            add(count, 1, alone);
        }
        add(&slot.sum_ns, ns, alone);
    }

    /// What it holds now.
    #[must_use]
    pub fn times(&self) -> HistogramSnapshot {
        let mut times = HistogramSnapshot::default();
        for slot in self.0.iter() {
            for (sum, count) in times.counts.iter_mut().zip(&slot.counts) {
                *sum += count.load(Ordering::Relaxed);
            }
            times.sum_ns = times.sum_ns.wrapping_add(slot.sum_ns.load(Ordering::Relaxed));
        }
        times
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Metrics, names};
    use super::*;

    #[test]
    fn a_time_lands_in_the_bucket_whose_bound_holds_it() {
        let metrics = Metrics::new(1);
        let seconds = metrics.histogram(names::DECISION_SECONDS);
        seconds.observe(Duration::from_nanos(1_001));
        seconds.observe(Duration::from_micros(2));
        seconds.observe(Duration::from_nanos(2_001));
        seconds.observe(Duration::from_secs(100));
        let text = metrics.encode();
        assert!(
            text.contains("weir_decision_duration_seconds_bucket{le=\"0.000001\"} 0"),
            "{text}"
        );
        assert!(
            text.contains("weir_decision_duration_seconds_bucket{le=\"0.000002\"} 2"),
            "{text}"
        );
        assert!(text.contains("weir_decision_duration_seconds_bucket{le=\"+Inf\"} 4"), "{text}");
        assert!(text.contains("weir_decision_duration_seconds_count 4"), "{text}");
    }

    #[test]
    fn a_quantile_lies_in_its_bucket() {
        let times = Metrics::new(1).histogram(names::DECISION_SECONDS);
        let before = times.times();
        assert_eq!(before.quantile_s(0.5), None);
        (0..90).for_each(|_| times.observe(Duration::from_micros(4)));
        let middle = times.times();
        (0..10).for_each(|_| times.observe(Duration::from_millis(40)));
        let now = times.times();
        assert_eq!((now.count(), now.since(&middle).count()), (100, 10));
        let within = |share, low: f64, high: f64| {
            let found = now.quantile_s(share).unwrap();
            assert!(found >= low && found <= high, "{share}: {found}");
        };
        within(0.5, 2e-6, 5e-6);
        within(0.9, 2e-6, 5e-6);
        within(0.99, 0.025, 0.05);
        within(1.0, 0.05, 0.05);
        let mut twice = now.clone();
        twice.add(&now);
        assert_eq!((twice.count(), twice.quantile_s(0.5)), (200, now.quantile_s(0.5)));
        times.observe(Duration::from_secs(1_000));
        assert_eq!(times.times().quantile_s(1.0), Some(60.0));
    }

    #[test]
    fn times_of_several_labels_are_shown_apart() {
        let metrics = Metrics::new(1);
        metrics.times_of(names::UPSTREAM_SECONDS, &["api"]).observe(Duration::from_millis(2));
        drop(metrics.times_of(names::UPSTREAM_SECONDS, &["b"]));
        let text = metrics.encode();
        let series = |rest: &str| format!("weir_upstream_duration_seconds{rest}\n");
        assert!(text.contains(&series("_bucket{le=\"0.0025\",upstream=\"api\"} 1")), "{text}");
        assert!(text.contains(&series("_count{upstream=\"b\"} 0")), "{text}");
        assert_eq!(metrics.times(names::UPSTREAM_SECONDS).len(), 2);
    }
}
