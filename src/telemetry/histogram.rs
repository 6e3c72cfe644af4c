//! Histograms of times: fixed buckets, a set of them for each worker.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use super::metrics::{add, slot, slots};
use super::names::Name;

/// Upper bounds in microseconds: from a decision in memory to a slow upstream.
const BOUNDS_US: [u64; 16] = [
    1, 2, 5, 10, 25, 50, 100, 250, 1_000, 5_000, 25_000, 100_000, 500_000, 2_500_000, 10_000_000,
    60_000_000,
];

#[repr(align(64))]
#[derive(Debug, Default)]
struct Slot {
    counts: [AtomicU64; BOUNDS_US.len() + 1],
    sum_ns: AtomicU64,
}

/// A histogram of times. Clones share it.
#[derive(Clone, Debug)]
pub struct Histogram(Arc<[Slot]>);

impl Histogram {
    pub(super) fn new(workers: usize) -> Self {
        Self(slots(workers))
    }

    /// Adds one time.
    pub fn observe(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let Some((slot, alone)) = slot(&self.0) else { return };
        let us = ns / 1_000;
        // Most times are short: a linear search finds them sooner than a binary one.
        let bucket = BOUNDS_US.iter().position(|bound| us <= *bound).unwrap_or(BOUNDS_US.len());
        if let Some(count) = slot.counts.get(bucket) {
            add(count, 1, alone);
        }
        add(&slot.sum_ns, ns, alone);
    }

    pub(super) fn encode(
        &self,
        name: Name,
        encoder: &mut DescriptorEncoder<'_>,
    ) -> Result<(), fmt::Error> {
        let mut counts = [0_u64; BOUNDS_US.len() + 1];
        let mut sum_ns = 0_u64;
        for slot in self.0.iter() {
            for (sum, count) in counts.iter_mut().zip(&slot.counts) {
                *sum += count.load(Ordering::Relaxed);
            }
            sum_ns = sum_ns.wrapping_add(slot.sum_ns.load(Ordering::Relaxed));
        }
        #[allow(
            clippy::cast_precision_loss,
            reason = "bounds and sums for a graph: seconds as a double is the format"
        )]
        let (bounds, sum) = (BOUNDS_US.map(|us| us as f64 / 1e6), sum_ns as f64 / 1e9);
        let buckets: Vec<(f64, u64)> =
            bounds.into_iter().chain([f64::INFINITY]).zip(counts).collect();
        let mut metric =
            encoder.encode_descriptor(name.name, name.help, None, MetricType::Histogram)?;
        metric.encode_histogram::<NoLabelSet>(sum, counts.iter().sum(), &buckets, None)
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
        seconds.observe(Duration::from_micros(2));
        seconds.observe(Duration::from_secs(100));
        let text = metrics.encode();
        assert!(
            text.contains("weir_decision_duration_seconds_bucket{le=\"0.000001\"} 0"),
            "{text}"
        );
        assert!(
            text.contains("weir_decision_duration_seconds_bucket{le=\"0.000002\"} 1"),
            "{text}"
        );
        assert!(text.contains("weir_decision_duration_seconds_bucket{le=\"+Inf\"} 2"), "{text}");
        assert!(text.contains("weir_decision_duration_seconds_count 2"), "{text}");
    }
}
