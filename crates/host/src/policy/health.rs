//! What is counted for each policy, for `/metrics` and `/status`. Each worker counts separately.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::error::Cause;
use crate::clock;
use crate::telemetry::{Counter, CounterSet, Label as _, Metrics, labels, names};

/// One call in this many is timed on each thread. A power of two.
const TIMED_EVERY: u32 = 64;
/// One call in this many has its facts kept for the breaker's trials. A power of two.
const SAMPLED_EVERY: u32 = 4_096;

thread_local! {
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

labels! {
    /// What a guest was called for.
    pub(super) enum CallKind {
        Decide = "decide",
        Settle = "settle",
    }
}

/// What is known about a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyStats {
    /// BLAKE3 of the module, in hexadecimal digits.
    pub digest: String,
    /// Calls of the guest since the process started, under this policy's name: decisions that were
    /// not remembered, and settling.
    pub calls: u64,
    /// Those that failed.
    pub errors: u64,
    /// Decisions that were refused without a call, because the policy was stopped.
    pub not_called: u64,
    /// Time of all calls, in microseconds, estimated from one call in 64.
    pub time_us: u64,
    /// Linear memory of the largest instance since the policy was built.
    pub memory_bytes: usize,
    /// The policy is stopped, because it kept failing.
    pub stopped: bool,
}

#[derive(Debug)]
pub(super) struct Health {
    digest: String,
    calls: CounterSet<CallKind>,
    errors: CounterSet<Cause>,
    pub(super) stops: Counter,
    timed_ns: Counter,
    largest: Arc<AtomicUsize>,
}

/// A call that was begun.
pub(super) struct CallTimer {
    nth: u32,
    /// If it is timed.
    at: Option<Instant>,
}

impl CallTimer {
    /// Whether the facts of this call should be kept.
    pub(super) fn is_sampled(&self) -> bool {
        self.nth.is_multiple_of(SAMPLED_EVERY)
    }
}

impl Health {
    pub(super) fn new(
        policy: &str,
        digest: &blake3::Hash,
        largest: &Arc<AtomicUsize>,
        metrics: &Metrics,
    ) -> Self {
        Self {
            digest: digest.to_hex().to_string(),
            calls: metrics.counters(names::POLICY_CALLS, &[policy]),
            errors: metrics.counters(names::POLICY_ERRORS, &[policy]),
            stops: metrics.counter(names::POLICY_STOPS, &[policy]),
            timed_ns: metrics.unshown(),
            largest: Arc::clone(largest),
        }
    }

    pub(super) fn begin(&self) -> CallTimer {
        // Counts up from 1: the first call of a thread starts an instance, which is not typical.
        let nth = CALLS.try_with(|calls| {
            let nth = calls.get().wrapping_add(1);
            calls.set(nth);
            nth
        });
        let nth = nth.unwrap_or(1);
        CallTimer { nth, at: nth.is_multiple_of(TIMED_EVERY).then(clock::monotonic) }
    }

    pub(super) fn end(&self, called: CallKind, begun: &CallTimer) {
        self.calls.inc(called);
        if let Some(at) = begun.at {
            self.timed(clock::monotonic().saturating_duration_since(at));
        }
    }

    #[cold]
    fn timed(&self, time: Duration) {
        self.timed_ns.add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    #[cold]
    pub(super) fn failed(&self, cause: Cause) {
        self.errors.inc(cause);
    }

    /// Decisions that the guest was called for.
    pub(super) fn decisions(&self) -> u64 {
        self.calls.get(CallKind::Decide)
    }

    pub(super) fn stats(&self, stopped: bool) -> PolicyStats {
        let failed = Cause::ALL.iter().filter(|cause| **cause != Cause::Stopped);
        let all_ns = self.timed_ns.get().saturating_mul(u64::from(TIMED_EVERY));
        PolicyStats {
            digest: self.digest.clone(),
            calls: CallKind::ALL.iter().map(|called| self.calls.get(*called)).sum(),
            errors: failed.map(|cause| self.errors.get(*cause)).sum(),
            not_called: self.errors.get(Cause::Stopped),
            time_us: all_ns / 1_000,
            memory_bytes: self.largest.load(Ordering::Relaxed),
            stopped,
        }
    }
}
