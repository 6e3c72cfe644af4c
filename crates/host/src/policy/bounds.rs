//! What bounds a policy's instances, and what they share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use super::caps::{Caps, RuntimeSettings};
use super::ticker::Ticker;
use crate::clock::{Clock, LogThrottle};

/// The bounds of all instances of a policy.
#[derive(Clone, Debug)]
pub(super) struct Bounds {
    pub(super) policy: Arc<str>,
    pub(super) cpu_time: Duration,
    pub(super) memory_bytes: usize,
    pub(super) caps: Arc<Caps>,
    pub(super) pool: Arc<RuntimeSettings>,
    pub(super) instances: InstanceCount,
    /// Linear memory of the largest instance so far, in bytes.
    pub(super) largest: Arc<AtomicUsize>,
    pub(super) ticker: Arc<Ticker>,
    /// What all instances of the policy may log together.
    pub(super) log: Arc<LogThrottle>,
    /// What it is told when it asks for the time.
    pub(super) clock: Clock,
}

/// Counts the instances of all policies.
#[derive(Clone, Debug, Default)]
pub(super) struct InstanceCount(Arc<AtomicU32>);

/// One of them, while it lives.
#[derive(Debug)]
pub(super) struct CountedInstance(InstanceCount);

impl InstanceCount {
    pub(super) fn one_more(&self) -> CountedInstance {
        self.0.fetch_add(1, Ordering::Relaxed);
        CountedInstance(self.clone())
    }
}

impl Drop for CountedInstance {
    fn drop(&mut self) {
        (self.0).0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Bounds {
    /// Whether an instance may be kept for a later call. The pool has room for some more, so that a
    /// thread without an instance can start one: it can't use those that other threads keep.
    pub(super) fn may_keep(&self) -> bool {
        self.instances.0.load(Ordering::Relaxed) <= self.pool.instances
    }
}
