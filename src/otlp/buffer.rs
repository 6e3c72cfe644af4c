//! Where requests put their finished traces: a bounded buffer for each worker, which the exporter
//! empties. A trace that does not fit is dropped and counted, so that no request ever waits.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::span::Trace;
use crate::telemetry::{self, Counter, WORKERS_MAX};

/// Maximum number of traces that wait in a worker's buffer.
pub(super) const BUFFER_TRACES_MAX: usize = 2_048;
/// Maximum size of these traces, in bytes.
pub(super) const BUFFER_BYTES_MAX: usize = 4 << 20;

/// The share of requests that are traced, where nobody else has decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// The share in parts of 2^64; the maximum stands for all.
    below: u64,
}

impl Sampling {
    /// Samples a share from 0 to 1.
    #[must_use]
    pub fn of_share(share: f64) -> Self {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a share of random numbers: the cast saturates, and rounding does not matter"
        )]
        let below = (share * u64::MAX as f64) as u64;
        Self { below }
    }

    /// Whether the request that asks is traced.
    #[must_use]
    pub fn hits(self) -> bool {
        match self.below {
            0 => false,
            u64::MAX => true,
            below => fastrand::u64(..) < below,
        }
    }
}

/// What requests see of the export. Clones share it.
#[derive(Clone)]
pub struct Tracer(Arc<Shared>);

struct Shared {
    /// One for each worker, and a last one for all other threads. Empty in a tracer that is always
    /// off.
    slots: Box<[Slot]>,
    /// `None` while nothing is traced.
    sampling: Mutex<Option<Sampling>>,
    /// Whether traces are taken. Read by requests that were traced, and by no other.
    takes: AtomicBool,
    /// Wakes the exporter before its time.
    filled: Notify,
    dropped: Option<Counter>,
}

/// One worker's buffer, on cache lines of its own. Its mutex is contended only while the exporter
/// takes what is there, which is a swap.
#[repr(align(64))]
#[derive(Default)]
struct Slot(Mutex<Buffer>);

#[derive(Default)]
struct Buffer {
    traces: Vec<Trace>,
    bytes: usize,
}

impl Tracer {
    /// A tracer for this many workers. Traces nothing until [`apply`](Self::apply). Spans that
    /// don't fit are counted in `dropped`.
    pub(super) fn new(workers: usize, dropped: Counter) -> Self {
        Self::of((0..=workers.clamp(1, WORKERS_MAX)).map(|_| Slot::default()), Some(dropped))
    }

    /// Never traces anything.
    #[must_use]
    pub fn off() -> Self {
        Self::of(std::iter::empty(), None)
    }

    fn of(slots: impl Iterator<Item = Slot>, dropped: Option<Counter>) -> Self {
        Self(Arc::new(Shared {
            slots: slots.collect(),
            sampling: Mutex::default(),
            takes: AtomicBool::new(false),
            filled: Notify::new(),
            dropped,
        }))
    }

    /// Sets what is traced from now on.
    pub(super) fn apply(&self, sampling: Option<Sampling>) {
        *self.0.sampling.lock().unwrap_or_else(PoisonError::into_inner) = sampling;
        self.0.takes.store(sampling.is_some(), Ordering::Relaxed);
    }

    /// The share of requests that are traced; `None` while tracing is off. Takes a lock: workers
    /// keep the answer until their configuration changes.
    #[must_use]
    pub fn sampling(&self) -> Option<Sampling> {
        *self.0.sampling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands over a finished trace.
    pub fn push(&self, trace: Trace) {
        let Some((shared, own)) = self.0.slots.split_last() else { return };
        let slot = telemetry::worker().and_then(|index| own.get(index)).unwrap_or(shared);
        let (bytes, spans) = (trace.bytes(), trace.spans.len());
        let mut buffer = slot.lock();
        // Asked under the lock, so that nothing is added after the last `take`.
        if !self.0.takes.load(Ordering::Relaxed) {
            return;
        }
        if buffer.traces.len() >= BUFFER_TRACES_MAX || buffer.bytes + bytes > BUFFER_BYTES_MAX {
            drop(buffer);
            if let Some(dropped) = &self.0.dropped {
                dropped.add(spans as u64);
            }
            return;
        }
        let before = buffer.is_half_full();
        buffer.traces.push(trace);
        buffer.bytes += bytes;
        if !before && buffer.is_half_full() {
            drop(buffer);
            self.0.filled.notify_one();
        }
    }

    /// Returns when a buffer is half full.
    pub(super) async fn filled(&self) {
        self.0.filled.notified().await;
    }

    /// Takes all that the workers have handed over.
    pub(super) fn take(&self) -> Vec<Trace> {
        let mut all = Vec::new();
        for slot in &self.0.slots {
            let taken = std::mem::take(&mut *slot.lock());
            all.extend(taken.traces);
        }
        all
    }
}

impl Buffer {
    fn is_half_full(&self) -> bool {
        self.traces.len() >= BUFFER_TRACES_MAX / 2 || self.bytes >= BUFFER_BYTES_MAX / 2
    }
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, Buffer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Tracer").field("slots", &self.0.slots.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::super::context::{SpanId, TraceId};
    use super::super::span::{Kind, Span};
    use super::*;
    use crate::clock;

    fn trace(name: String) -> Trace {
        let now = clock::monotonic();
        let span = Span {
            id: SpanId::random(),
            parent: None,
            parent_is_remote: false,
            name: name.into(),
            kind: Kind::Server,
            start: now,
            end: now,
            attributes: Vec::new(),
            failed: false,
        };
        Trace { id: TraceId::random(), spans: smallvec![span.clone(), span] }
    }

    fn tracer() -> (Tracer, Counter) {
        let dropped = telemetry::Metrics::new(1).unshown();
        let tracer = Tracer::new(1, dropped.clone());
        tracer.apply(Some(Sampling::of_share(1.0)));
        (tracer, dropped)
    }

    #[test]
    fn about_that_share_is_sampled() {
        for (share, low, high) in [(0.0, 0, 0), (0.01, 600, 1_400), (0.5, 48_000, 52_000)] {
            let sampling = Sampling::of_share(share);
            let hits = (0..100_000).filter(|_| sampling.hits()).count();
            assert!((low..=high).contains(&hits), "{share}: {hits}");
        }
        let all = Sampling::of_share(1.0);
        assert!((0..100_000).all(|_| all.hits()));
    }

    #[test]
    fn a_buffer_has_two_limits_and_counts_the_spans_that_it_drops() {
        let (tracer, dropped) = tracer();
        (0..BUFFER_TRACES_MAX + 5).for_each(|_| tracer.push(trace("GET api".to_owned())));
        assert_eq!((tracer.take().len(), dropped.get()), (BUFFER_TRACES_MAX, 10));
        let large = || trace("x".repeat(BUFFER_BYTES_MAX / 8));
        (0..10).for_each(|_| tracer.push(large()));
        let taken = tracer.take();
        assert!((1..4).contains(&taken.len()), "{}", taken.len());
        assert!(taken.iter().map(Trace::bytes).sum::<usize>() <= BUFFER_BYTES_MAX);
        assert_eq!(dropped.get(), 10 + 2 * (10 - taken.len() as u64));
        assert!(tracer.take().is_empty());
    }

    #[test]
    fn nothing_is_taken_while_it_is_off() {
        let (tracer, dropped) = tracer();
        tracer.apply(None);
        tracer.push(trace("GET api".to_owned()));
        assert!(tracer.take().is_empty() && tracer.sampling().is_none());
        assert_eq!(dropped.get(), 0);
        let off = Tracer::off();
        off.push(trace("GET api".to_owned()));
        assert!(off.take().is_empty() && off.sampling().is_none());
    }

    #[tokio::test]
    async fn a_buffer_that_fills_wakes_the_exporter() {
        let (tracer, _) = tracer();
        (0..BUFFER_TRACES_MAX / 2).for_each(|_| tracer.push(trace("GET api".to_owned())));
        tracer.filled().await;
    }
}
