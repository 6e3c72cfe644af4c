//! What bounds a policy's instances, and what they share.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
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
    /// Linear memory of the largest instance so far, in bytes.
    pub(super) largest: Arc<AtomicUsize>,
    pub(super) ticker: Arc<Ticker>,
    /// What all instances of the policy may log together.
    pub(super) log: Arc<LogThrottle>,
    /// What it is told when it asks for the time.
    pub(super) clock: Clock,
}
