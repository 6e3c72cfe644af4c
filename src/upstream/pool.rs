//! A worker's connections that can be used, by upstream and host, and the number of its requests
//! under way; and which host a request goes to. In a thread-local: never shared, never held across
//! an await. Knows nothing of HTTP.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::host::{Host, Turn};
use super::hosts::Hosts;
use super::link::Link;
use super::multi::Multi;
use super::slots::Slots;
use super::streams::Streams;
use super::{Cause, Inner};
use crate::clock;
use crate::wire::Network;

/// How often a worker looks for idle connections that have become too old, and for names that
/// should be asked again.
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
    upstream: Arc<Inner>,
    slots: Slots,
    outstanding: usize,
    /// Of those, by client: only those that came while many were under way.
    by_client: HashMap<Network, usize>,
    /// Requests that may be sent a second time, in hundredths: see [`Inner::retry_percent`].
    credit: usize,
}

/// Second tries that a worker may begin with, and that it may save up, in hundredths.
const CREDIT_FIRST: usize = 32 * 100;
const CREDIT_MAX: usize = 1_024 * 100;

/// Where more than one of so many places are taken, requests are counted by client.
const MANY_PART: usize = 2;
/// And each client has one of so many places then, beside those that it had before.
const CLIENT_PART: usize = 8;

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

/// A request under way, and the host that it goes to; its places are given back when dropped.
pub(super) struct Seat {
    upstream: u64,
    /// The host's place among this worker's, a moment ago at least.
    slot: usize,
    /// None where there is one host only.
    turn: Option<Turn>,
    /// The client, where its requests are counted.
    client: Option<Network>,
}

/// What [`admit`] says.
pub(super) enum Admitted {
    Here(Seat),
    /// This worker has too many requests there.
    Full,
    /// It has many, and enough of them are this client's.
    Share,
    /// Names are to be asked first.
    Unresolved,
}

/// A place for one more request, at the host that has least to do.
pub(super) fn admit(upstream: &Arc<Inner>, client: Option<Network>) -> Admitted {
    // What is gone is dropped after the borrow.
    let mut old = Old::default();
    let (admitted, begin_to_sweep) = POOLS.with_borrow_mut(|pools| {
        let (pool, new) = pools.of(upstream);
        if pool.outstanding >= upstream.requests_per_worker {
            return (Admitted::Full, false);
        }
        let places = upstream.places(pool.slots.len());
        let client = client.filter(|_| pool.outstanding >= places / MANY_PART);
        if client.is_some_and(|client| pool.has_share(client, (places / CLIENT_PART).max(1))) {
            return (Admitted::Share, false);
        }
        pool.slots.follow(upstream, &mut old);
        if new && upstream.hosts.is_due(upstream) {
            return (Admitted::Unresolved, !std::mem::replace(&mut pools.sweeping, true));
        }
        let Some((slot, turn)) = pool.slots.choose(upstream, &[]) else {
            return (Admitted::Unresolved, false);
        };
        pool.outstanding += 1;
        if let Some(client) = client {
            *pool.by_client.entry(client).or_insert(0) += 1;
        }
        pool.credit = (pool.credit + upstream.retry_percent).min(CREDIT_MAX);
        let seat = Seat { upstream: upstream.id, slot, turn, client };
        (Admitted::Here(seat), new && !std::mem::replace(&mut pools.sweeping, true))
    });
    if begin_to_sweep {
        start_sweeping();
    }
    admitted
}

/// Another host for the request of `seat`, none of `tried`; says whether there is one.
pub(super) fn another(upstream: &Arc<Inner>, seat: &mut Seat, tried: &[Arc<Host>]) -> bool {
    let mut old = Old::default();
    POOLS.with_borrow_mut(|pools| {
        let (pool, _) = pools.of(upstream);
        pool.slots.follow(upstream, &mut old);
        let Some((slot, Some(turn))) = pool.slots.choose(upstream, tried) else { return false };
        seat.slot = slot;
        seat.turn = Some(turn);
        true
    })
}

/// Takes one second try off what the worker's requests have earned.
pub(super) fn spend_retry(upstream: &Arc<Inner>) -> bool {
    POOLS.with_borrow_mut(|pools| {
        let (pool, _) = pools.of(upstream);
        let left = pool.credit.checked_sub(100);
        pool.credit = left.unwrap_or(pool.credit);
        left.is_some()
    })
}

/// The connection to the seat's host that was used last, if one can still be used; else the host to
/// connect to.
pub(super) fn take(
    upstream: &Arc<Inner>,
    seat: &Seat,
    now: Instant,
) -> Result<Box<Link>, Option<Arc<Host>>> {
    // Those that can't be used are dropped after the borrow.
    let mut old = Old::default();
    POOLS.with_borrow_mut(|pools| {
        pools.of(upstream).0.slots.take(upstream, seat.slot, seat.host(), now, &mut old)
    })
}

/// The host that the seat's request goes to.
pub(super) fn host_of(upstream: &Arc<Inner>, seat: &Seat) -> Option<Arc<Host>> {
    seat.host().cloned().or_else(|| {
        POOLS.with_borrow_mut(|pools| pools.of(upstream).0.slots.host(seat.slot).cloned())
    })
}

/// Keeps `link`, which can take another request, unless enough are kept.
pub(super) fn put(mut link: Box<Link>) {
    if link.upstream.is_closed() {
        return;
    }
    link.idle_since = clock::monotonic();
    // Not kept while the thread ends, and its thread-locals with it; the closure then drops the
    // connection.
    let begin_to_sweep = POOLS.try_with(|pools| {
        let mut pools = pools.borrow_mut();
        let upstream = Arc::clone(&link.upstream);
        pools.of(&upstream).0.slots.put(&upstream, link);
        !std::mem::replace(&mut pools.sweeping, true)
    });
    if begin_to_sweep == Ok(true) {
        start_sweeping();
    }
}

/// Closes idle connections of this worker, to whichever upstream: their descriptors are needed.
pub(super) fn release_idle() {
    // Dropped after the borrow.
    let mut old = Old::default();
    let _ = POOLS.try_with(|pools| {
        pools
            .borrow_mut()
            .by_upstream
            .values_mut()
            .for_each(|pool| pool.slots.release_idle(&mut old))
    });
}

/// Looks at this worker's HTTP/2 connections to `host`. Nothing where it is gone, and while the
/// thread ends.
pub(super) fn with_streams<T>(
    upstream: &Arc<Inner>,
    host: &Arc<Host>,
    look: impl FnOnce(&mut Streams) -> T,
) -> Option<T> {
    POOLS
        .try_with(|pools| Some(look(pools.borrow_mut().of(upstream).0.slots.streams(host)?)))
        .ok()
        .flatten()
}

/// A place on `multi` is free again.
pub(super) fn freed(multi: &Multi) {
    let _ = POOLS.try_with(|pools| {
        if let Some(pool) = pools.borrow_mut().by_upstream.get_mut(&multi.upstream.id)
            && let Some(streams) = pool.slots.streams(&multi.host)
        {
            streams.freed();
        }
    });
}

fn start_sweeping() {
    let sweeping = Sweeping;
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(sweep(sweeping));
    }
}

/// Closes what has become too old, also where no request comes that would notice; ends when nothing
/// is left.
async fn sweep(_sweeping: Sweeping) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let now = clock::monotonic();
        // Dropped after the borrow.
        let mut old = Old::default();
        let mut used = Vec::new();
        let left = POOLS.with_borrow_mut(|pools| {
            for pool in pools.by_upstream.values_mut() {
                pool.slots.follow(&pool.upstream, &mut old);
                pool.slots.sweep(now, &mut old);
                if pool.upstream.budget.is_tight() {
                    // Another worker may need their descriptors.
                    pool.slots.release_idle(&mut old);
                }
                if pool.upstream.hosts.is_due(&pool.upstream) && !pool.upstream.is_closed() {
                    used.push(Arc::clone(&pool.upstream));
                }
            }
            old.pools.extend(
                pools.by_upstream.extract_if(|_, pool| pool.is_empty()).map(|(_, pool)| pool),
            );
            !pools.by_upstream.is_empty()
        });
        drop(old);
        used.iter().for_each(Hosts::ask_in_background);
        // A burst of large bodies leaves buffers behind that nobody may need for long.
        crate::wire::trim_buffers();
        if !left {
            return;
        }
    }
}

/// What is closed.
#[derive(Default)]
pub(super) struct Old {
    #[allow(clippy::vec_box, reason = "as in `Slot`")]
    pub(super) links: Vec<Box<Link>>,
    pub(super) multis: Vec<Arc<Multi>>,
    pools: Vec<Pool>,
}

/// The sweeping task lives. Where it ends, with its runtime at the latest, the next connection kept
/// begins another.
struct Sweeping;

impl Drop for Sweeping {
    fn drop(&mut self) {
        let _ = POOLS.try_with(|pools| pools.borrow_mut().sweeping = false);
    }
}

impl Pools {
    /// The upstream's pool, and whether it was made just now.
    fn of(&mut self, upstream: &Arc<Inner>) -> (&mut Pool, bool) {
        let mut new = false;
        let pool = self.by_upstream.entry(upstream.id).or_insert_with(|| {
            new = true;
            Pool {
                upstream: Arc::clone(upstream),
                slots: Slots::default(),
                outstanding: 0,
                by_client: HashMap::new(),
                credit: CREDIT_FIRST,
            }
        });
        (pool, new)
    }
}

impl Pool {
    fn has_share(&self, client: Network, share: usize) -> bool {
        self.by_client.get(&client).is_some_and(|count| *count >= share)
    }

    fn leave(&mut self, client: Option<Network>) {
        self.outstanding = self.outstanding.saturating_sub(1);
        if let Some(client) = client
            && let Some(count) = self.by_client.get_mut(&client)
        {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.by_client.remove(&client);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.outstanding == 0 && self.slots.are_empty()
    }
}

impl Seat {
    pub(super) fn host(&self) -> Option<&Arc<Host>> {
        self.turn.as_ref().map(|turn| &turn.host)
    }

    /// Its request is begun at its host.
    pub(super) fn begin(&mut self, now: Instant) {
        if let Some(turn) = &mut self.turn {
            turn.began = Some(now);
        }
    }

    /// Its host has answered.
    pub(super) fn succeeded(&self, upstream: &Inner) {
        if let Some(turn) = &self.turn {
            turn.host.succeeded(upstream);
        }
    }

    /// Its host has failed it.
    pub(super) fn failed(&self, upstream: &Inner, cause: Cause) {
        if let Some(turn) = &self.turn {
            turn.host.failed(upstream, cause, turn.began);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // A reply that outlives its worker's pools has nothing to give back.
        let _ = POOLS.try_with(|pools| {
            if let Some(pool) = pools.borrow_mut().by_upstream.get_mut(&self.upstream) {
                pool.leave(self.client);
            }
        });
    }
}
