//! A worker's connections that can be used, by upstream and endpoint, and the number of its requests under way. In a thread-local: never shared, never held
//! across an await. Knows nothing of HTTP.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Inner;
use super::link::Link;
use super::multi::Multi;
use super::streams::Streams;
use crate::clock;

/// Requests that one worker has at one upstream, at most, replies that still stream included: above, [`Cause::Overload`](super::Cause). Each holds
/// a connection, so this also bounds a storm of connects.
pub(super) const OUTSTANDING_PER_WORKER_MAX: usize = 16_384;
/// How often a worker looks for idle connections that have become too old.
pub(super) const SWEEP: Duration = Duration::from_millis(1_000);

thread_local! {
    static POOLS: RefCell<Pools> = RefCell::new(Pools::default());
}

#[derive(Default)]
struct Pools {
    by_upstream: HashMap<u64, Pool, BuildHasherDefault<IdHasher>>,
    sweeping: bool,
}

/// One upstream's, in this worker.
struct Pool {
    /// One for each endpoint.
    slots: Vec<Slot>,
    idle_total: usize,
    outstanding: usize,
    /// The endpoint whose turn is next.
    next: usize,
}

/// One endpoint's.
#[derive(Default)]
struct Slot {
    /// HTTP/1.1, the longest unused first.
    #[allow(clippy::vec_box, reason = "a connection is boxed once for its life: unboxing it here would move it twice for every request")]
    idle: Vec<Box<Link>>,
    /// HTTP/2.
    streams: Streams,
}

/// Upstreams' ids are counted up: they need no mixing.
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
        // The table takes its tag from the top seven bits and its place from the lowest.
        self.0 = id.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

/// A request under way; its place is given back when dropped.
pub(super) struct Seat {
    upstream: u64,
}

/// A place for one more request, and the endpoint whose turn it is; none when this worker has too many there.
pub(super) fn admit(upstream: &Inner) -> Option<(Seat, usize)> {
    POOLS.with_borrow_mut(|pools| {
        let pool = pools.of(upstream);
        if pool.outstanding >= OUTSTANDING_PER_WORKER_MAX {
            return None;
        }
        pool.outstanding += 1;
        let endpoint = pool.next;
        pool.next = (endpoint + 1) % upstream.endpoints.len().max(1);
        Some((Seat { upstream: upstream.id }, endpoint))
    })
}

/// The connection to `endpoint` that was used last, if it can still be used.
pub(super) fn take(upstream: &Inner, endpoint: usize, now: Instant) -> Option<Box<Link>> {
    // Those that can't be used are dropped after the borrow.
    let mut unusable = Vec::new();
    POOLS.with_borrow_mut(|pools| {
        let pool = pools.of(upstream);
        let idle = &mut pool.slots.get_mut(endpoint)?.idle;
        while let Some(link) = idle.pop() {
            pool.idle_total -= 1;
            if link.is_ready() && now.saturating_duration_since(link.idle_since) < upstream.idle {
                return Some(link);
            }
            unusable.push(link);
        }
        None
    })
}

/// Keeps `link` for the next request, unless it can't take one or enough are kept.
pub(super) fn put(mut link: Box<Link>) {
    if link.upstream.is_closed() || !link.is_ready() {
        return;
    }
    link.idle_since = clock::monotonic();
    // Not kept while the thread ends, and its thread-locals with it; the closure then drops the connection.
    let begin_to_sweep = POOLS.try_with(|pools| {
        let mut pools = pools.borrow_mut();
        let upstream = Arc::clone(&link.upstream);
        let pool = pools.of(&upstream);
        if pool.idle_total >= upstream.pool_idle_per_worker {
            return false;
        }
        if let Some(slot) = pool.slots.get_mut(link.endpoint) {
            slot.idle.push(link);
            pool.idle_total += 1;
        }
        !std::mem::replace(&mut pools.sweeping, true)
    });
    if begin_to_sweep == Ok(true) {
        start_sweeping();
    }
}

/// Looks at this worker's HTTP/2 connections to `endpoint`. Nothing while the thread ends.
pub(super) fn with_streams<T>(upstream: &Inner, endpoint: usize, look: impl FnOnce(&mut Streams) -> T) -> Option<T> {
    let looked = POOLS.try_with(|pools| {
        let mut pools = pools.borrow_mut();
        let looked = look(&mut pools.of(upstream).slots.get_mut(endpoint)?.streams);
        let begin_to_sweep = !std::mem::replace(&mut pools.sweeping, true);
        Some((looked, begin_to_sweep))
    });
    let (looked, begin_to_sweep) = looked.ok().flatten()?;
    if begin_to_sweep {
        start_sweeping();
    }
    Some(looked)
}

/// A place on `multi` is free again.
pub(super) fn freed(multi: &Multi) {
    let _ = POOLS.try_with(|pools| {
        if let Some(slot) = pools.borrow().by_upstream.get(&multi.upstream.id).and_then(|pool| pool.slots.get(multi.endpoint)) {
            slot.streams.freed();
        }
    });
}

fn start_sweeping() {
    let sweeping = Sweeping;
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(sweep(sweeping));
    }
}

/// Closes what has become too old, also where no request comes that would notice; ends when nothing is left.
async fn sweep(_sweeping: Sweeping) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let now = clock::monotonic();
        // Dropped after the borrow.
        let mut old = Old::default();
        let left = POOLS.with_borrow_mut(|pools| {
            pools.by_upstream.values_mut().for_each(|pool| pool.sweep(now, &mut old));
            pools.by_upstream.retain(|_, pool| !pool.is_empty());
            !pools.by_upstream.is_empty()
        });
        drop(old);
        if !left {
            return;
        }
    }
}

/// What is closed.
#[derive(Default)]
struct Old {
    #[allow(clippy::vec_box, reason = "as in `Slot`")]
    links: Vec<Box<Link>>,
    multis: Vec<Arc<Multi>>,
}

/// The sweeping task lives. Where it ends, with its runtime at the latest, the next connection kept begins another.
struct Sweeping;

impl Drop for Sweeping {
    fn drop(&mut self) {
        let _ = POOLS.try_with(|pools| pools.borrow_mut().sweeping = false);
    }
}

impl Pools {
    fn of(&mut self, upstream: &Inner) -> &mut Pool {
        self.by_upstream.entry(upstream.id).or_insert_with(|| Pool {
            slots: upstream.endpoints.iter().map(|_| Slot::default()).collect(),
            idle_total: 0,
            outstanding: 0,
            // Workers begin at different endpoints.
            next: fastrand::usize(..upstream.endpoints.len().max(1)),
        })
    }
}

impl Pool {
    fn is_empty(&self) -> bool {
        self.idle_total == 0 && self.outstanding == 0 && self.slots.iter().all(|slot| slot.streams.is_empty())
    }

    fn sweep(&mut self, now: Instant, old: &mut Old) {
        for slot in &mut self.slots {
            let before = slot.idle.len();
            old.links.extend(slot.idle.extract_if(.., |link| {
                link.upstream.is_closed() || !link.is_ready() || now.saturating_duration_since(link.idle_since) >= link.upstream.idle
            }));
            self.idle_total -= before - slot.idle.len();
            slot.streams.sweep(now, &mut old.multis);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // A reply that outlives its worker's pools has nothing to give back.
        let _ = POOLS.try_with(|pools| {
            if let Some(pool) = pools.borrow_mut().by_upstream.get_mut(&self.upstream) {
                pool.outstanding = pool.outstanding.saturating_sub(1);
            }
        });
    }
}
