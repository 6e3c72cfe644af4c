//! One address of an upstream, as all workers see it: its requests under way, and whether it is
//! ejected. Knows nothing of connections.
//!
//! An upstream with a single address neither counts nor ejects, so its requests touch nothing that
//! workers share.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::endpoint::HostAddress;
use super::{Cause, Inner};
use crate::clock;
use crate::telemetry::Label as _;

/// Maximum number of times that the ejection time is doubled: far beyond what `time_max` lets
/// through.
const DOUBLINGS_MAX: u32 = 20;

/// The share of requests that a host gets at the beginning of a slow start.
const RAMP_MIN: f64 = 0.05;

/// One address. On cache lines of its own, since every worker writes its counts.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Host {
    outstanding: AtomicUsize,
    /// Failures since the last success, as [`failed`](Self::failed) counts them.
    failures: AtomicU32,
    /// When the last of them was counted, in microseconds since the upstream's creation. 0 before
    /// the first.
    counted_us: AtomicU64,
    /// How often it was ejected since it last answered.
    ejections: AtomicU32,
    /// The end of its ejection, in milliseconds since the upstream's creation. 0 if it is not
    /// ejected.
    ejected_until_ms: AtomicU64,
    /// A request is probing whether it answers again.
    probing: AtomicBool,
    /// Whether it passes its health checks, as far as there are any.
    healthy: AtomicBool,
    /// When it was found healthy again, in milliseconds since the upstream's creation. 0 if it
    /// always was.
    healthy_since_ms: AtomicU64,
    /// What its last check came to: why it failed, if it did. `None` before the first.
    checked: Mutex<Option<Result<(), String>>>,
    /// Its last connection over HTTP/2 had no tunnels (RFC 8441).
    pub(super) lacks_tunnels: AtomicBool,
    pub(super) address: HostAddress,
    /// [`HostAddress::tag`] of its address.
    pub(super) tag: u64,
    /// The index of its endpoint in the configuration.
    pub(super) endpoint: usize,
    pub(super) standing: Standing,
}

/// How much of the requests a host gets, compared with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    /// Among those of the same rank.
    pub(super) weight: u32,
    /// Hosts of a higher rank get requests while none of a lower one can take them.
    pub(super) rank: u32,
    /// It is in this process' own zone.
    pub(super) is_local: bool,
    /// What the DNS answer says of it.
    pub(super) share: Share,
}

/// What is kept of a host's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeptState {
    pub(super) health: bool,
    pub(super) ejection: bool,
}

impl KeptState {
    pub(super) const ALL: Self = Self { health: true, ejection: true };
    pub(super) const NONE: Self = Self { health: false, ejection: false };
}

/// What a DNS answer says of an address among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Share {
    /// How much of the requests it gets, compared with others of the same rank.
    pub(super) weight: u32,
    /// Those of a higher rank are for when none of a lower one can take requests.
    pub(super) rank: u32,
}

impl Default for Share {
    fn default() -> Self {
        Self { weight: 1, rank: 0 }
    }
}

/// A request in flight at a host, counted there as long as this lives.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) host: Arc<Host>,
    /// When the request was begun there.
    pub(super) began: Option<Instant>,
}

impl Host {
    pub(super) fn new(endpoint: usize, address: HostAddress, standing: Standing) -> Self {
        Self {
            outstanding: AtomicUsize::new(0),
            failures: AtomicU32::new(0),
            counted_us: AtomicU64::new(0),
            ejections: AtomicU32::new(0),
            ejected_until_ms: AtomicU64::new(0),
            probing: AtomicBool::new(false),
            healthy: AtomicBool::new(true),
            healthy_since_ms: AtomicU64::new(0),
            checked: Mutex::default(),
            lacks_tunnels: AtomicBool::new(false),
            tag: address.tag(),
            address,
            endpoint,
            standing,
        }
    }

    /// The same address in another list, as it is now, as far as that is kept. Requests that are
    /// under way stay with the old one.
    pub(super) fn after(
        before: &Self,
        endpoint: usize,
        standing: Standing,
        keeps: KeptState,
    ) -> Self {
        let number = |of: &AtomicU64| AtomicU64::new(of.load(Ordering::Relaxed));
        let count = |of: &AtomicU32| AtomicU32::new(of.load(Ordering::Relaxed));
        let flag = |of: &AtomicBool| AtomicBool::new(of.load(Ordering::Relaxed));
        let mut host = Self::new(endpoint, before.address.clone(), standing);
        if keeps.ejection {
            host.failures = count(&before.failures);
            host.counted_us = number(&before.counted_us);
            host.ejections = count(&before.ejections);
            host.ejected_until_ms = number(&before.ejected_until_ms);
            host.probing = flag(&before.probing);
        }
        if keeps.health {
            host.healthy = flag(&before.healthy);
            host.healthy_since_ms = number(&before.healthy_since_ms);
            host.checked = Mutex::new(before.last_check());
        }
        host
    }

    /// As it was found.
    pub(super) fn found(&self) -> (HostAddress, Share) {
        (self.address.clone(), self.standing.share)
    }

    /// The requests of all workers that are in flight there.
    pub(super) fn outstanding(&self) -> usize {
        self.outstanding.load(Ordering::Relaxed)
    }

    /// Whether it is ejected, or only probed.
    pub(super) fn is_ejected(&self) -> bool {
        self.ejected_until_ms.load(Ordering::Relaxed) != 0
    }

    /// Whether it passes its health checks.
    pub(super) fn is_healthy(&self) -> bool {
        self.healthy.load(Ordering::Relaxed)
    }

    /// Whether it can take requests at all: it is neither ejected nor unhealthy, unless health
    /// decides nothing.
    pub(super) fn is_able(&self, ignores_health: bool) -> bool {
        !self.is_ejected() && (ignores_health || self.is_healthy())
    }

    /// Whether it may get a request, as far as health checks go. Soon after it was found healthy
    /// again only now and then: the longer ago, the more often. `drawn` is from 0 to 1, the same
    /// for all hosts that a request may go to.
    pub(super) fn takes_requests(&self, upstream: &Inner, drawn: f64) -> bool {
        let Some(check) = &upstream.settings.health else { return true };
        if upstream.hosts.ignores_health() {
            return true;
        }
        if !self.is_healthy() {
            return false;
        }
        let since_ms = self.healthy_since_ms.load(Ordering::Relaxed);
        let Some(ramp) = check.slow_start.filter(|_| since_ms != 0) else { return true };
        let passed = upstream.now_ms().saturating_sub(since_ms) as f64 / 1_000.0;
        let share = passed / ramp.as_secs_f64();
        share >= 1.0 || drawn < share.max(RAMP_MIN)
    }

    /// It was found to be healthy, or not.
    pub(super) fn set_healthy(&self, upstream: &Inner, healthy: bool) {
        // Of those that had requests all the time, none starts slowly.
        if healthy && !upstream.hosts.ignores_health() {
            self.healthy_since_ms.store(upstream.now_ms().max(1), Ordering::Relaxed);
        }
        self.healthy.store(healthy, Ordering::Relaxed);
    }

    /// Keeps what its last check came to.
    pub(super) fn note_check(&self, why: Option<String>) {
        *self.checked.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(why.map_or(Ok(()), Err));
    }

    /// What its last check came to.
    pub(super) fn last_check(&self) -> Option<Result<(), String>> {
        self.checked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether its ejection is over and the caller should probe it. A probe that never reports its
    /// result is repeated after the same interval.
    pub(super) fn may_probe(&self, upstream: &Inner, drawn: f64) -> bool {
        let until = self.ejected_until_ms.load(Ordering::Relaxed);
        if until == 0 || !self.takes_requests(upstream, drawn) {
            return false;
        }
        let now = upstream.now_ms();
        let again = now.saturating_add(millis(upstream.settings.ejection.time)).max(1);
        let mine = now >= until
            && self
                .ejected_until_ms
                .compare_exchange(until, again, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if mine {
            self.probing.store(true, Ordering::Relaxed);
        }
        mine
    }

    /// It answered.
    pub(super) fn succeeded(&self, upstream: &Inner) {
        // Read before writing: nothing is written while all is well.
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
        if self.ejected_until_ms.load(Ordering::Relaxed) != 0
            && self.ejected_until_ms.swap(0, Ordering::Relaxed) != 0
        {
            self.ejections.store(0, Ordering::Relaxed);
            self.probing.store(false, Ordering::Relaxed);
            tracing::info!(upstream = upstream.settings.name, endpoint = upstream.text_of(self), address = %self.address, "an endpoint answers again");
        }
    }

    /// It did not answer, through its own fault. The request was begun there at `began`.
    ///
    /// Requests that were under way together and fail count as one observation, however many they
    /// are: one client that asks for several slow things at once does not prove that the host is
    /// down.
    pub(super) fn failed(&self, upstream: &Inner, cause: Cause, began: Option<Instant>) {
        let failures_max = upstream.settings.ejection.failures;
        let not_its = matches!(
            cause,
            Cause::Body | Cause::Overload | Cause::Shed | Cause::Share | Cause::Descriptors
        );
        if failures_max == 0 || not_its || !self.is_independent(upstream, began) {
            return;
        }
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let probed = self.probing.swap(false, Ordering::Relaxed);
        // Requests that were under way at the ejection may fail later, which is nothing new.
        if probed || (failures >= failures_max && !self.is_ejected()) {
            self.eject(upstream, cause);
        }
    }

    /// Whether a failed request that was begun at `began` counts as an observation of its own: it
    /// was begun after the last failure was counted.
    fn is_independent(&self, upstream: &Inner, began: Option<Instant>) -> bool {
        let counted = self.counted_us.load(Ordering::Relaxed);
        if counted != 0 && began.is_some_and(|began| upstream.at_us(began) <= counted) {
            return false;
        }
        let now = upstream.at_us(clock::monotonic()).max(1);
        // If two workers count at the same time, one of them does.
        self.counted_us.compare_exchange(counted, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    fn eject(&self, upstream: &Inner, cause: Cause) {
        let time = upstream
            .settings
            .ejection
            .time
            .saturating_mul(1 << self.ejections.load(Ordering::Relaxed).min(DOUBLINGS_MAX));
        let time = time.min(upstream.settings.ejection.time_max);
        let ejected_until_ms = upstream.now_ms().saturating_add(millis(time)).max(1);
        if !upstream.hosts.eject(self, ejected_until_ms, upstream.settings.ejection.max_percent) {
            return upstream.warn_unejected(self);
        }
        self.ejections.fetch_add(1, Ordering::Relaxed);
        self.failures.store(0, Ordering::Relaxed);
        upstream.count_ejection(self);
        let endpoint = upstream.text_of(self);
        tracing::warn!(upstream = upstream.settings.name, endpoint, address = %self.address, cause = cause.label(), time_ms = time.as_millis(), "an endpoint is ejected after repeated failures");
    }

    /// Ejects it until then. Called by [`Hosts::eject`](super::hosts::Hosts::eject).
    pub(super) fn eject_until(&self, ejected_until_ms: u64) {
        self.ejected_until_ms.store(ejected_until_ms, Ordering::Relaxed);
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl InFlight {
    pub(super) fn new(host: &Arc<Host>) -> Self {
        host.outstanding.fetch_add(1, Ordering::Relaxed);
        Self { host: Arc::clone(host), began: None }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.host.outstanding.fetch_sub(1, Ordering::Relaxed);
    }
}
