//! The places for connections: how many there are over all workers, how many one client network may
//! have, and which idle connections are closed to make room. Knows nothing of HTTP.
//!
//! Listeners that are served with the same settings share one [`Permits`]. Each `serve` has a list
//! of its own connections ([`Connections`]), which it tells of a drain; the shared part knows all
//! lists, since the longest idle connection may be another worker's.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use super::ConnectionSettings;
use super::addresses::{Addresses, NetworkPermit};
use super::state::ConnectionState;
use crate::clock;
use crate::telemetry::Gauge;
use crate::wire::Network;

/// Under pressure, one connection of so many is closed at a time: the search looks at all of them,
/// and is paid for by as many further places.
const RECLAIM_PART: usize = 64;
/// Pressure begins where fewer places are left than one of so many.
const SPARE_PART: usize = 16;
/// After a search that found too few idle connections, the next one waits: otherwise each
/// connection that is refused would cost another.
const SEARCH_AGAIN: Duration = Duration::from_millis(100);

/// What connections under the same settings share.
#[derive(Debug, Default)]
pub(super) struct Permits {
    open: AtomicUsize,
    addresses: Arc<Addresses>,
    lists: Mutex<Vec<Weak<OpenConnections>>>,
    /// When the last search found too few, in milliseconds of [`ConnectionState::millis`]; 0: it found
    /// enough.
    barren_ms: AtomicU64,
    /// Told of each connection that closes.
    freed: Notify,
}

/// Why a connection gets no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoPermit {
    /// All are taken. Some may be free in a moment, where `reclaimed` idle connections were just
    /// told to close.
    Full { reclaimed: usize },
    /// The client's network has as many as it may.
    Address,
}

/// The connections that one `serve` has open.
#[derive(Clone)]
pub(super) struct Connections(Arc<OpenConnections>);

#[derive(Debug)]
struct OpenConnections {
    states: Mutex<HashMap<usize, Arc<ConnectionState>>>,
    permits: Arc<Permits>,
    gauge: Gauge,
    emptied: Notify,
}

/// A connection's place in the count; given back when dropped.
#[derive(Debug)]
pub(super) struct Permit {
    open: Arc<OpenConnections>,
    key: usize,
    _network: Option<NetworkPermit>,
}

impl Permits {
    /// Connections that are open.
    #[cfg(test)]
    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Told of each connection that closes from now on.
    pub(super) fn freed(&self) -> tokio::sync::futures::Notified<'_> {
        self.freed.notified()
    }

    /// Closes the connections that have been idle for longest, some at a time; says how many were
    /// told.
    pub(super) fn reclaim(&self) -> usize {
        let now_ms = ConnectionState::millis(clock::monotonic());
        let barren_ms = self.barren_ms.load(Ordering::Relaxed);
        if barren_ms != 0
            && now_ms.saturating_sub(barren_ms)
                < u64::try_from(SEARCH_AGAIN.as_millis()).unwrap_or(u64::MAX)
        {
            return 0;
        }
        let mut idle = self.idle();
        let wanted = (self.open.load(Ordering::Relaxed) / RECLAIM_PART).max(1);
        let count = wanted.min(idle.len());
        if count < idle.len() {
            idle.select_nth_unstable_by_key(count, |(since_ms, _)| *since_ms);
        }
        idle.iter().take(count).for_each(|(_, state)| state.reclaim());
        self.barren_ms.store(if count < wanted { now_ms } else { 0 }, Ordering::Relaxed);
        count
    }

    /// All idle connections that were not told to close yet, and when each became idle.
    fn idle(&self) -> Vec<(u64, Arc<ConnectionState>)> {
        let lists: Vec<_> = self.lists().iter().filter_map(Weak::upgrade).collect();
        let mut idle = Vec::new();
        for list in lists {
            let states = list.states();
            idle.extend(
                states
                    .values()
                    .filter_map(|state| Some((state.idle_since_ms()?, Arc::clone(state)))),
            );
        }
        idle
    }

    fn lists(&self) -> MutexGuard<'_, Vec<Weak<OpenConnections>>> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one of `max` places.
    fn take(&self, max: usize) -> bool {
        let taken = self.open.fetch_add(1, Ordering::Relaxed) < max;
        if !taken {
            self.open.fetch_sub(1, Ordering::Relaxed);
        }
        taken
    }
}

impl Connections {
    pub(super) fn new(permits: &Arc<Permits>, gauge: Gauge) -> Self {
        let open = Arc::new(OpenConnections {
            states: Mutex::default(),
            permits: Arc::clone(permits),
            gauge,
            emptied: Notify::new(),
        });
        let mut lists = permits.lists();
        lists.retain(|list| list.strong_count() > 0);
        lists.push(Arc::downgrade(&open));
        drop(lists);
        Self(open)
    }

    /// A place for one more connection, from `client`. Also where there is one, and few are left,
    /// idle connections are told to close: `reclaimed` counts them.
    ///
    /// # Errors
    /// There is none for it.
    pub(super) fn acquire(
        &self,
        state: &Arc<ConnectionState>,
        client: IpAddr,
        settings: &ConnectionSettings,
        reclaimed: &mut usize,
    ) -> Result<Permit, NoPermit> {
        let permits = &self.0.permits;
        // First, so that a network that is over its bound closes no other connection.
        let counted = match settings.counts(client) {
            false => None,
            true => {
                let network = Network::of(client, settings.ipv6_prefix);
                Some(
                    permits
                        .addresses
                        .acquire(network, settings.connections_per_address_max)
                        .ok_or(NoPermit::Address)?,
                )
            }
        };
        let max = settings.connections_max;
        if permits.open.load(Ordering::Relaxed) >= max - max / SPARE_PART {
            *reclaimed = permits.reclaim();
        }
        if !permits.take(max) {
            return Err(NoPermit::Full { reclaimed: *reclaimed });
        }
        self.0.gauge.add(1);
        let key = Arc::as_ptr(state) as usize;
        self.0.states().insert(key, Arc::clone(state));
        Ok(Permit { open: Arc::clone(&self.0), key, _network: network })
    }

    /// What it shares with others under the same settings.
    pub(super) fn permits(&self) -> &Arc<Permits> {
        &self.0.permits
    }

    /// Tells each to close: now where it is idle, else after the reply that is under way.
    pub(super) fn drain(&self) {
        self.0.states().values().for_each(|state| state.drain());
    }

    /// Ends each at once.
    pub(super) fn abort(&self) {
        self.0.states().values().for_each(|state| state.abort());
    }

    /// Waits until none is left.
    pub(super) async fn emptied(&self) {
        while !self.0.states().is_empty() {
            self.0.emptied.notified().await;
        }
    }
}

impl OpenConnections {
    fn states(&self) -> MutexGuard<'_, HashMap<usize, Arc<ConnectionState>>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.open.permits.open.fetch_sub(1, Ordering::Relaxed);
        self.open.gauge.add(-1);
        let mut states = self.open.states();
        states.remove(&self.key);
        if states.is_empty() {
            // Stored where `emptied` does not wait yet; it looks again after each wake-up.
            self.open.emptied.notify_one();
        }
        drop(states);
        self.open.permits.freed.notify_waiters();
    }
}
