//! Counts the open connections of each client network, over all workers. Updated when a connection
//! opens or closes, never by a request. Knows nothing about what the connections do.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::wire::Network;

/// Enough that workers which accept at the same time rarely use the same shard.
const SHARDS: usize = 64;

/// Open connections by network. The hash is randomly keyed, so that nobody can choose addresses
/// that all fall into one shard.
#[derive(Debug)]
pub(super) struct Addresses {
    shards: [Mutex<HashMap<Network, usize>>; SHARDS],
    hasher: RandomState,
}

/// One connection, counted until it is dropped.
#[derive(Debug)]
pub(super) struct NetworkPermit {
    addresses: Arc<Addresses>,
    network: Network,
}

impl Default for Addresses {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()), hasher: RandomState::new() }
    }
}

impl Addresses {
    /// Counts one more connection of `network`, unless it already has `max`.
    pub(super) fn acquire(self: &Arc<Self>, network: Network, max: usize) -> Option<NetworkPermit> {
        let mut shard = self.shard(network)?;
        let open = shard.entry(network).or_insert(0);
        if *open >= max {
            return None;
        }
        *open += 1;
        Some(NetworkPermit { addresses: Arc::clone(self), network })
    }

    fn shard(&self, network: Network) -> Option<MutexGuard<'_, HashMap<Network, usize>>> {
        let index = usize::try_from(self.hasher.hash_one(network) % SHARDS as u64).unwrap_or(0);
        self.shards.get(index).map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for NetworkPermit {
    fn drop(&mut self) {
        let Some(mut shard) = self.addresses.shard(self.network) else { return };
        if let Some(open) = shard.get_mut(&self.network) {
            *open -= 1;
            if *open == 0 {
                shard.remove(&self.network);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_network_has_its_own_bound_and_an_empty_one_is_forgotten() {
        let addresses = Arc::<Addresses>::default();
        let network = |text: &str| Network::of(text.parse().unwrap(), 64);
        let (one, other) = (network("192.0.2.1"), network("192.0.2.2"));
        let held: Vec<_> = (0..3).map(|_| addresses.acquire(one, 3).unwrap()).collect();
        assert!(addresses.acquire(one, 3).is_none());
        let kept = addresses.acquire(other, 3).unwrap();
        drop(held);
        assert!(addresses.acquire(one, 3).is_some());
        drop(kept);
        assert!(addresses.shards.iter().all(|shard| shard.lock().unwrap().is_empty()));
    }

    #[test]
    fn many_threads_at_once_never_exceed_the_bound_and_leave_nothing_behind() {
        let addresses = Arc::<Addresses>::default();
        let network = Network::of("2001:db8::1".parse().unwrap(), 64);
        let most = std::sync::atomic::AtomicUsize::new(0);
        let open = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        if let Some(counted) = addresses.acquire(network, 4) {
                            let now = open.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1;
                            most.fetch_max(now, std::sync::atomic::Ordering::SeqCst);
                            open.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                            drop(counted);
                        }
                    }
                });
            }
        });
        assert!(most.into_inner() <= 4);
        assert!(addresses.shards.iter().all(|shard| shard.lock().unwrap().is_empty()));
    }
}
