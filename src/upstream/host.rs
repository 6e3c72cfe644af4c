//! One address that may answer, as all workers see it: what is under way there, and whether it is
//! left alone for a while. Knows nothing of connections.
//!
//! Where an upstream has one address only, nobody counts and nobody ejects: its requests touch
//! nothing that workers share.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::{Cause, Inner};
use crate::clock;
use crate::telemetry::Label as _;

/// Doublings of the time for which a host is left alone, at most: far beyond what `time_max` lets
/// through.
const DOUBLINGS_MAX: u32 = 20;

/// An address. On cache lines of its own: its counts are written by every worker.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Host {
    outstanding: AtomicUsize,
    /// Failures since the last success, as [`failed`](Self::failed) counts them.
    failures: AtomicU32,
    /// When the last of them was counted, in the upstream's microseconds; 0 before the first.
    counted_us: AtomicU64,
    /// Times that it was ejected since it last answered.
    times: AtomicU32,
    /// Until when it is left alone, in the upstream's milliseconds; 0: it is not.
    until_ms: AtomicU64,
    /// One request is finding out whether it answers again.
    probing: AtomicBool,
    pub(super) address: SocketAddr,
    /// The place of its endpoint in the configuration.
    pub(super) endpoint: usize,
}

/// A request under way at a host, counted there while it lives.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) host: Arc<Host>,
    /// When the request was begun there, once it was.
    pub(super) began: Option<Instant>,
}

impl Host {
    pub(super) fn new(endpoint: usize, address: SocketAddr) -> Self {
        Self {
            outstanding: AtomicUsize::new(0),
            failures: AtomicU32::new(0),
            counted_us: AtomicU64::new(0),
            times: AtomicU32::new(0),
            until_ms: AtomicU64::new(0),
            probing: AtomicBool::new(false),
            address,
            endpoint,
        }
    }

    /// Requests of all workers that are under way there.
    pub(super) fn outstanding(&self) -> usize {
        self.outstanding.load(Ordering::Relaxed)
    }

    /// Whether it is left alone, or asked by one request only.
    pub(super) fn is_ejected(&self) -> bool {
        self.until_ms.load(Ordering::Relaxed) != 0
    }

    /// Whether its time is over and the caller is the one to try it. Who never tells what came of
    /// it is replaced after the same time again.
    pub(super) fn may_probe(&self, upstream: &Inner) -> bool {
        let until = self.until_ms.load(Ordering::Relaxed);
        if until == 0 {
            return false;
        }
        let now = upstream.now_ms();
        let again = now.saturating_add(millis(upstream.ejection.time)).max(1);
        let mine = now >= until
            && self
                .until_ms
                .compare_exchange(until, again, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if mine {
            self.probing.store(true, Ordering::Relaxed);
        }
        mine
    }

    /// It answered.
    pub(super) fn succeeded(&self, upstream: &Inner) {
        // Read first: while all is well nothing is written.
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
        if self.until_ms.load(Ordering::Relaxed) != 0
            && self.until_ms.swap(0, Ordering::Relaxed) != 0
        {
            self.times.store(0, Ordering::Relaxed);
            self.probing.store(false, Ordering::Relaxed);
            tracing::info!(upstream = upstream.name, endpoint = upstream.text_of(self), address = %self.address, "an endpoint answers again");
        }
    }

    /// It did not, and that was its own fault. The request was begun there at `began`.
    ///
    /// Requests that were under way together and fail are one observation, however many they are:
    /// one client that asks for several slow things at once is no proof that the host is down.
    pub(super) fn failed(&self, upstream: &Inner, cause: Cause, began: Option<Instant>) {
        let failures_max = upstream.ejection.failures;
        let not_its =
            matches!(cause, Cause::Body | Cause::Overload | Cause::Share | Cause::Descriptors);
        if failures_max == 0 || not_its || !self.is_new(upstream, began) {
            return;
        }
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let probed = self.probing.swap(false, Ordering::Relaxed);
        // What was under way when it was ejected may fail late: that says nothing new.
        if probed || (failures >= failures_max && !self.is_ejected()) {
            self.eject(upstream, cause);
        }
    }

    /// Whether a failure of a request that was begun at `began` is an observation of its own: the
    /// request was begun after the last one was counted.
    fn is_new(&self, upstream: &Inner, began: Option<Instant>) -> bool {
        let counted = self.counted_us.load(Ordering::Relaxed);
        if counted != 0 && began.is_some_and(|began| upstream.at_us(began) <= counted) {
            return false;
        }
        let now = upstream.at_us(clock::monotonic()).max(1);
        // Of two workers that count at the same time, one does.
        self.counted_us.compare_exchange(counted, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    fn eject(&self, upstream: &Inner, cause: Cause) {
        let time = upstream
            .ejection
            .time
            .saturating_mul(1 << self.times.load(Ordering::Relaxed).min(DOUBLINGS_MAX));
        let time = time.min(upstream.ejection.time_max);
        let until_ms = upstream.now_ms().saturating_add(millis(time)).max(1);
        if !upstream.hosts.eject(self, until_ms, upstream.ejection.max_percent) {
            return upstream.warn_unejected(self);
        }
        self.times.fetch_add(1, Ordering::Relaxed);
        self.failures.store(0, Ordering::Relaxed);
        upstream.count_ejection(self);
        let endpoint = upstream.text_of(self);
        tracing::warn!(upstream = upstream.name, endpoint, address = %self.address, cause = cause.label(), time_ms = time.as_millis(), "an endpoint fails: it is left alone for a while");
    }

    /// Leaves it alone until then. Called by [`Hosts::eject`](super::hosts::Hosts::eject).
    pub(super) fn leave_alone(&self, until_ms: u64) {
        self.until_ms.store(until_ms, Ordering::Relaxed);
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Turn {
    pub(super) fn new(host: &Arc<Host>) -> Self {
        host.outstanding.fetch_add(1, Ordering::Relaxed);
        Self { host: Arc::clone(host), began: None }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.host.outstanding.fetch_sub(1, Ordering::Relaxed);
    }
}
