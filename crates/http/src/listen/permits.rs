//! Connection permits: limits how many connections are open over all workers and per client
//! network, and closes idle connections when permits run out. Knows nothing about HTTP.
//!
//! Listeners with the same settings share one [`Permits`]. Each `serve` has a list of its own
//! connections ([`Connections`]), which it uses to drain them. `Permits` knows all lists, because
//! the connection that has been idle longest may belong to another worker.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use super::ConnectionSettings;
use super::addresses::{Addresses, NetworkPermit};
use super::state::ConnectionState;
use crate::clock::{self, LogThrottle};
use crate::telemetry::Gauge;
use crate::wire::Network;

/// When permits run low, one in this many open connections is closed at a time. A search looks at
/// all connections, so its cost is spread over as many new ones.
const RECLAIM_PART: usize = 64;
/// Permits run low when fewer than one in this many are left.
const SPARE_PART: usize = 16;
/// How long to wait after a search that found too few idle connections. Otherwise each refused
/// connection would cost another search.
const SEARCH_AGAIN: Duration = Duration::from_millis(100);

/// Shared by all listeners with the same settings.
#[derive(Debug, Default)]
pub(super) struct Permits {
    open: AtomicUsize,
    addresses: Arc<Addresses>,
    lists: Mutex<Vec<Weak<OpenConnections>>>,
    /// When a search last found too few idle connections, in [`ConnectionState::millis`]. 0 if the
    /// last one found enough.
    shortfall_ms: AtomicU64,
    /// Notified when a connection closes.
    freed: Notify,
    /// Rate-limits the warning that accepting fails, over all workers.
    pub(super) accept_warnings: LogThrottle,
    /// Likewise, that all permits are taken.
    pub(super) full_warnings: LogThrottle,
}

/// Why a connection gets no permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PermitError {
    /// All are taken. If `reclaimed` is not 0, that many idle connections were just told to close.
    Full { reclaimed: usize },
    /// The client's network has its maximum of connections.
    Address,
}

/// The open connections of one `serve`.
#[derive(Clone)]
pub(super) struct Connections(Arc<OpenConnections>);

#[derive(Debug)]
struct OpenConnections {
    states: Mutex<HashMap<usize, Arc<ConnectionState>>>,
    permits: Arc<Permits>,
    gauge: Gauge,
    emptied: Notify,
}

/// A permit to have one connection open. Dropping it gives it back.
#[derive(Debug)]
pub(super) struct Permit {
    open: Arc<OpenConnections>,
    key: usize,
    _network: Option<NetworkPermit>,
    /// Of the client that a trusted proxy connects for.
    proxied: OnceLock<NetworkPermit>,
}

impl Permits {
    /// The number of open connections.
    #[cfg(test)]
    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Completes when a connection closes after this call.
    pub(super) fn freed(&self) -> tokio::sync::futures::Notified<'_> {
        self.freed.notified()
    }

    /// Tells some of the connections that have been idle longest to close. Returns how many.
    pub(super) fn reclaim(&self) -> usize {
        let now_ms = ConnectionState::millis(clock::monotonic());
        let shortfall_ms = self.shortfall_ms.load(Ordering::Relaxed);
        if shortfall_ms != 0
            && now_ms.saturating_sub(shortfall_ms)
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
        self.shortfall_ms.store(if count < wanted { now_ms } else { 0 }, Ordering::Relaxed);
        count
    }

    /// The idle connections that were not told to close yet, and when each became idle.
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

    /// Counts a connection of the client's network, unless it is a trusted proxy.
    fn network(
        &self,
        client: IpAddr,
        settings: &ConnectionSettings,
    ) -> Result<Option<NetworkPermit>, PermitError> {
        if !settings.counts(client) {
            return Ok(None);
        }
        let network = Network::of(client, settings.ipv6_prefix);
        let permit = self.addresses.acquire(network, settings.connections_per_address_max);
        permit.map(Some).ok_or(PermitError::Address)
    }

    fn lists(&self) -> MutexGuard<'_, Vec<Weak<OpenConnections>>> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one permit, unless `max` are taken.
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

    /// Takes a permit for a connection from `client`. If permits run low, idle connections are told
    /// to close, even if this one gets a permit; `reclaimed` is set to their number.
    ///
    /// # Errors
    /// No permit is left, in total or for the client's network.
    pub(super) fn acquire(
        &self,
        state: &Arc<ConnectionState>,
        client: IpAddr,
        settings: &ConnectionSettings,
        reclaimed: &mut usize,
    ) -> Result<Permit, PermitError> {
        let permits = &self.0.permits;
        // First, so that a network over its limit does not cause other connections to be closed.
        let network = permits.network(client, settings)?;
        let max = settings.connections_max;
        if permits.open.load(Ordering::Relaxed) >= max - max / SPARE_PART {
            *reclaimed = permits.reclaim();
        }
        if !permits.take(max) {
            return Err(PermitError::Full { reclaimed: *reclaimed });
        }
        self.0.gauge.add(1);
        let key = Arc::as_ptr(state) as usize;
        self.0.states().insert(key, Arc::clone(state));
        let proxied = OnceLock::new();
        Ok(Permit { open: Arc::clone(&self.0), key, _network: network, proxied })
    }

    /// The permits that it shares with other workers.
    pub(super) fn permits(&self) -> &Arc<Permits> {
        &self.0.permits
    }

    /// Tells each connection to close: at once if it is idle, otherwise after the current reply.
    pub(super) fn drain(&self) {
        self.0.states().values().for_each(|state| state.drain());
    }

    /// Closes each connection at once.
    pub(super) fn abort(&self) {
        self.0.states().values().for_each(|state| state.abort());
    }

    /// Waits until no connection is open.
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

impl Permit {
    /// Counts the connection as one of `client`, whom a trusted proxy connects for.
    ///
    /// # Errors
    /// The client's network has its maximum of connections.
    pub(super) fn network(
        &self,
        client: IpAddr,
        settings: &ConnectionSettings,
    ) -> Result<(), PermitError> {
        if let Some(network) = self.open.permits.network(client, settings)? {
            // A connection has one header of the PROXY protocol.
            let _ = self.proxied.set(network);
        }
        Ok(())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.open.permits.open.fetch_sub(1, Ordering::Relaxed);
        self.open.gauge.add(-1);
        let mut states = self.open.states();
        states.remove(&self.key);
        if states.is_empty() {
            // If `emptied` is not waiting yet, the notification is stored. It checks again after
            // each one.
            self.open.emptied.notify_one();
        }
        drop(states);
        self.open.permits.freed.notify_waiters();
    }
}
