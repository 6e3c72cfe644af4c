//! A worker's usable connections by upstream and host, and whether and to which host it sends a
//! further request. Lives in a thread-local: never shared, never held across an await. Knows
//! nothing of HTTP.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::host::Host;
use super::hosts::Hosts;
use super::http1::Http1Connection;
use super::requests::{RequestPermit, Requests};
use super::slots::{DiscardedConnections, Slots};
use super::streams::{StreamUse, Streams};
use super::{Affinity, Inner, Sender};
use crate::clock;

/// How often a worker closes idle connections that are too old, and resolves names that are due.
pub(super) const SWEEP: Duration = Duration::from_millis(1_000);

thread_local! {
    static POOLS: RefCell<Pools> = RefCell::new(Pools::default());
}

#[derive(Default)]
struct Pools {
    by_upstream: HashMap<u64, Pool, BuildHasherDefault<IdHasher>>,
    sweeping: bool,
}

/// One upstream's pool in this worker.
struct Pool {
    upstream: Arc<Inner>,
    slots: Slots,
    requests: Arc<Requests>,
    /// How many requests may be sent a second time, in hundredths. See [`Inner::retry_percent`].
    credit: usize,
}

/// The retries that a worker starts with, and the most that it can save up, in hundredths.
const CREDIT_FIRST: usize = 32 * 100;
const CREDIT_MAX: usize = 1_024 * 100;

/// Once more than one in this many of a worker's requests is under way, further ones are counted by
/// client.
const MANY_PART: usize = 2;
/// The part that each client may have from then on: one in this many of the worker's requests, not
/// counting those that it had before.
const CLIENT_PART: usize = 8;

/// Upstream ids are consecutive, so one multiplication mixes them well enough.
#[derive(Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 << 8) | u64::from(*byte);
        }
    }

    fn write_u64(&mut self, id: u64) {
        // The table takes its tag from the top seven bits and the bucket from the lowest.
        self.0 = id.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

/// The result of [`admit`].
pub(super) enum Admission {
    Granted(RequestPermit),
    /// This worker has too many requests there.
    Full,
    /// The worker is busy, and the client already has its share.
    Share,
    /// Names must be resolved first.
    Unresolved,
}

/// A permit for one more request, at the host that is chosen for it.
pub(super) fn admit(upstream: &Arc<Inner>, sender: &Sender<'_>) -> Admission {
    // Discarded connections are dropped after the borrow.
    let mut discarded = DiscardedConnections::default();
    let (admitted, begin_to_sweep) = POOLS.with_borrow_mut(|pools| {
        let (pool, new) = pools.of(upstream);
        let outstanding = pool.requests.outstanding();
        if outstanding >= upstream.settings.requests_per_worker {
            return (Admission::Full, false);
        }
        let capacity = upstream.request_capacity(pool.slots.len());
        let client = sender.client.filter(|_| outstanding >= capacity / MANY_PART);
        let share = (capacity / CLIENT_PART).max(1);
        if client.is_some_and(|client| pool.requests.of(client) >= share) {
            return (Admission::Share, false);
        }
        pool.slots.update_hosts(upstream, &mut discarded);
        if new && upstream.hosts.is_due(upstream) {
            return (Admission::Unresolved, !std::mem::replace(&mut pools.sweeping, true));
        }
        let Some((slot, in_flight)) = pool.slots.choose(upstream, &[], sender.affinity) else {
            return (Admission::Unresolved, false);
        };
        pool.credit = (pool.credit + upstream.settings.retry_percent).min(CREDIT_MAX);
        let permit = pool.requests.begin(slot, in_flight, client);
        (Admission::Granted(permit), new && !std::mem::replace(&mut pools.sweeping, true))
    });
    if begin_to_sweep {
        start_sweeping();
    }
    admitted
}

/// Moves the request of `permit` to a host that is not in `tried`. Returns false if there is none.
pub(super) fn move_to_another_host(
    upstream: &Arc<Inner>,
    permit: &mut RequestPermit,
    tried: &[Arc<Host>],
    affinity: Option<Affinity>,
) -> bool {
    let mut discarded = DiscardedConnections::default();
    POOLS.with_borrow_mut(|pools| {
        let (pool, _) = pools.of(upstream);
        pool.slots.update_hosts(upstream, &mut discarded);
        let Some((slot, Some(in_flight))) = pool.slots.choose(upstream, tried, affinity) else {
            return false;
        };
        permit.move_to(slot, in_flight);
        true
    })
}

/// Takes one retry from what the worker's requests have earned.
pub(super) fn spend_retry(upstream: &Arc<Inner>) -> bool {
    POOLS.with_borrow_mut(|pools| {
        let (pool, _) = pools.of(upstream);
        let left = pool.credit.checked_sub(100);
        pool.credit = left.unwrap_or(pool.credit);
        left.is_some()
    })
}

/// The most recently used connection to the permit's host that is still usable, or else the host to
/// connect to.
pub(super) fn take(
    upstream: &Arc<Inner>,
    permit: &RequestPermit,
    now: Instant,
) -> Result<Box<Http1Connection>, Option<Arc<Host>>> {
    // Unusable connections are dropped after the borrow.
    let mut discarded = DiscardedConnections::default();
    POOLS.with_borrow_mut(|pools| {
        pools.of(upstream).0.slots.take(upstream, permit.slot(), permit.host(), now, &mut discarded)
    })
}

/// The host that the permit's request goes to.
pub(super) fn host_of(upstream: &Arc<Inner>, permit: &RequestPermit) -> Option<Arc<Host>> {
    permit.host().cloned().or_else(|| {
        POOLS.with_borrow_mut(|pools| pools.of(upstream).0.slots.host(permit.slot()).cloned())
    })
}

/// Keeps `connection`, which can take another request, unless enough are kept.
pub(super) fn put(mut connection: Box<Http1Connection>) {
    if connection.upstream.is_closed() {
        return;
    }
    connection.idle_since = clock::recent();
    // While the thread ends its thread-locals are gone. The closure then drops the connection.
    let begin_to_sweep = POOLS.try_with(|pools| {
        let mut pools = pools.borrow_mut();
        let upstream = Arc::clone(&connection.upstream);
        pools.of(&upstream).0.slots.put(&upstream, connection);
        !std::mem::replace(&mut pools.sweeping, true)
    });
    if begin_to_sweep == Ok(true) {
        start_sweeping();
    }
}

/// Closes idle connections of this worker to any upstream, since their descriptors are needed.
pub(super) fn release_idle() {
    // Dropped after the borrow.
    let mut discarded = DiscardedConnections::default();
    let _ = POOLS.try_with(|pools| {
        pools
            .borrow_mut()
            .by_upstream
            .values_mut()
            .for_each(|pool| pool.slots.release_idle(&mut discarded))
    });
}

/// Calls `look` with this worker's HTTP/2 connections to `host` for this use. `None` if the host is
/// gone, or the thread is ending.
pub(super) fn with_streams<T>(
    upstream: &Arc<Inner>,
    host: &Arc<Host>,
    stream_use: StreamUse,
    look: impl FnOnce(&mut Streams) -> T,
) -> Option<T> {
    POOLS
        .try_with(|pools| {
            Some(look(pools.borrow_mut().of(upstream).0.slots.streams(host, stream_use)?))
        })
        .ok()
        .flatten()
}

fn start_sweeping() {
    let sweeping = SweepGuard;
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(sweep(sweeping));
    }
}

/// Closes what is too old even if no further request comes. Ends when nothing is left.
async fn sweep(_sweeping: SweepGuard) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let now = clock::monotonic();
        // Dropped after the borrow.
        let mut discarded = DiscardedConnections::default();
        let mut emptied = Vec::new();
        let mut used = Vec::new();
        let left = POOLS.with_borrow_mut(|pools| {
            for pool in pools.by_upstream.values_mut() {
                pool.slots.update_hosts(&pool.upstream, &mut discarded);
                pool.slots.sweep(now, &mut discarded);
                if pool.upstream.budget.is_tight() {
                    // Another worker may need their descriptors.
                    pool.slots.release_idle(&mut discarded);
                }
                if pool.upstream.hosts.is_due(&pool.upstream) && !pool.upstream.is_closed() {
                    used.push(Arc::clone(&pool.upstream));
                }
            }
            emptied.extend(pools.by_upstream.extract_if(|_, pool| pool.is_empty()));
            !pools.by_upstream.is_empty()
        });
        drop((discarded, emptied));
        used.iter().for_each(Hosts::resolve_in_background);
        // A burst of large bodies leaves buffers behind that may not be needed for long.
        crate::wire::trim_buffers();
        if !left {
            return;
        }
    }
}

/// Marks the sweeping task as running. When it ends, at the latest with its runtime, the next
/// connection kept starts another.
struct SweepGuard;

impl Drop for SweepGuard {
    fn drop(&mut self) {
        let _ = POOLS.try_with(|pools| pools.borrow_mut().sweeping = false);
    }
}

impl Pools {
    /// The upstream's pool, and whether it was just created.
    fn of(&mut self, upstream: &Arc<Inner>) -> (&mut Pool, bool) {
        let mut new = false;
        let pool = self.by_upstream.entry(upstream.id).or_insert_with(|| {
            new = true;
            Pool {
                upstream: Arc::clone(upstream),
                slots: Slots::default(),
                requests: Arc::default(),
                credit: CREDIT_FIRST,
            }
        });
        (pool, new)
    }
}

impl Pool {
    fn is_empty(&self) -> bool {
        self.requests.outstanding() == 0 && self.slots.are_empty()
    }
}
