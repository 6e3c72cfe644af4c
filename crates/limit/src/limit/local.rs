//! Per-worker caches, so that a decision formats nothing and takes no lock: the spaces of the
//! limits seen so far, the counters of their metrics, and the worker's queue of settling calls.
//!
//! Stored in a thread-local that is borrowed only inside [`with`], never across an await. Limit
//! names come from guests, so every cache is bounded: one that is full is cleared.

use std::cell::{OnceCell, RefCell};
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, Weak};

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use super::queue::Worker;
use super::refusals::Refusals;
use super::shared::{SCOPES_MAX, Shared};
use super::{Scope, keys};
use crate::engine::Space;
use crate::plan::Algorithm;
use crate::telemetry::{Counter, Metrics, names};

/// Maximum number of limits that one worker remembers to have noted.
const GIVEN_BACK_MAX: usize = 4_096;
/// Maximum number of limit names cached for one scope.
const NAMES_MAX: usize = 1_024;
/// Maximum number of shapes cached for one limit name.
const SHAPES_MAX: usize = 16;

thread_local! {
    static LOCALS: RefCell<Vec<Local>> = const { RefCell::new(Vec::new()) };
}

/// One worker's caches for one limiter.
pub(super) struct Local {
    limiter: Weak<Shared>,
    worker: Arc<Worker>,
    refusals: Refusals,
    /// The limits that this worker has added to [`Shared::given_back`].
    given_back: HashSet<u128, RandomState>,
    /// Cached scopes by their address. The `Weak` in the value keeps the address from being reused.
    scopes: HashMap<usize, ScopeCache, Addresses>,
}

/// Hashes addresses by a multiplication. SipHash is not needed, because no client can choose an
/// address.
#[derive(Clone, Copy, Default)]
struct Addresses;

impl BuildHasher for Addresses {
    type Hasher = AddressHasher;

    fn build_hasher(&self) -> AddressHasher {
        AddressHasher(0)
    }
}

struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_usize(usize::from(*byte)));
    }

    fn write_usize(&mut self, address: usize) {
        // 2^64 divided by the golden ratio, which spreads consecutive addresses. The bytes are
        // swapped because the table uses the low bits first.
        self.0 = (self.0 ^ address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).swap_bytes();
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// What is cached for a scope.
pub(super) struct ScopeCache {
    scope: Weak<Scope>,
    degraded: OnceCell<Counter>,
    /// Policies choose these names. A random seed is protection enough, because the map is bounded.
    names: HashMap<String, LimitCache, RandomState>,
}

/// What is cached for a limit name in a scope.
#[derive(Default)]
struct LimitCache {
    /// Each space with its algorithm, whose amounts are left out.
    spaces: SmallVec<[(Algorithm, Arc<Space>); 1]>,
    refused: OnceCell<Counter>,
    would_refuse: OnceCell<Counter>,
    held: OnceCell<Counter>,
}

/// Calls `work` with this worker's caches for `shared`. `work` must not call `with` again.
pub(super) fn with<T>(shared: &Arc<Shared>, work: impl FnOnce(&mut Local) -> T) -> T {
    LOCALS.with_borrow_mut(|locals| {
        let at = locals
            .iter()
            .position(|local| std::ptr::eq(local.limiter.as_ptr(), Arc::as_ptr(shared)));
        if let Some(local) = at.and_then(|at| locals.get_mut(at)) {
            return work(local);
        }
        // A limiter's first use on this thread: remove the entries of limiters that are gone, so
        // that only as many stay as there are limiters.
        locals.retain(|local| local.limiter.strong_count() > 0);
        let mut local = Local {
            limiter: Arc::downgrade(shared),
            worker: shared.new_worker(),
            refusals: Refusals::default(),
            given_back: HashSet::default(),
            scopes: HashMap::default(),
        };
        let answer = work(&mut local);
        locals.push(local);
        answer
    })
}

impl Local {
    pub(super) fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }

    pub(super) fn refusals(&mut self) -> &mut Refusals {
        &mut self.refusals
    }

    /// Whether this worker notes for the first time that units of a limit are given back.
    pub(super) fn is_first_given_back(&mut self, limit: u128) -> bool {
        if self.given_back.len() >= GIVEN_BACK_MAX {
            self.given_back.clear();
        }
        self.given_back.insert(limit)
    }

    /// Calls `work` with the cache of `scope`.
    pub(super) fn scope<T>(
        &mut self,
        scope: &Arc<Scope>,
        work: impl FnOnce(&mut ScopeCache) -> T,
    ) -> T {
        let address = Arc::as_ptr(scope).addr();
        if let Some(cache) = self.scopes.get_mut(&address) {
            return work(cache);
        }
        // New scopes come with a reload: remove the old ones then.
        self.scopes.retain(|_, cache| cache.scope.strong_count() > 0);
        if self.scopes.len() >= SCOPES_MAX {
            self.scopes.clear();
        }
        let mut cache = ScopeCache {
            scope: Arc::downgrade(scope),
            degraded: OnceCell::new(),
            names: HashMap::default(),
        };
        let answer = work(&mut cache);
        self.scopes.insert(address, cache);
        answer
    }
}

impl ScopeCache {
    /// The space of `limit` in this scope, built at its first use.
    pub(super) fn space(
        &mut self,
        scope: &Scope,
        limit: &str,
        algorithm: &Algorithm,
        shared: &Shared,
    ) -> Arc<Space> {
        self.limit(limit, |cache| {
            let of_shape = algorithm.of_shape();
            if let Some((_, space)) =
                cache.spaces.iter().find(|(algorithm, _)| *algorithm == of_shape)
            {
                return Arc::clone(space);
            }
            if cache.spaces.len() >= SHAPES_MAX {
                cache.spaces.clear();
            }
            let space =
                Arc::new(keys::space(&scope.name, limit, &shared.shape(algorithm).to_string()));
            shared.engine.note_space(&space);
            cache.spaces.push((of_shape, Arc::clone(&space)));
            space
        })
    }

    /// Counts a refusal by `limit`.
    pub(super) fn count_refused(&mut self, scope: &Scope, limit: &str, metrics: &Metrics) {
        let counter = || metrics.counter(names::LIMIT_REFUSALS, &[&scope.policy, limit]);
        self.limit(limit, |cache| cache.refused.get_or_init(counter).inc());
    }

    /// Counts a refusal by `limit` that what is held would have prevented.
    pub(super) fn count_held(&mut self, scope: &Scope, limit: &str, metrics: &Metrics) {
        let counter = || metrics.counter(names::LIMIT_REFUSALS_HELD, &[&scope.policy, limit]);
        self.limit(limit, |cache| cache.held.get_or_init(counter).inc());
    }

    /// Counts that the shadow limit `limit` would have refused.
    pub(super) fn count_would_refuse(&mut self, scope: &Scope, limit: &str, metrics: &Metrics) {
        let counter = || metrics.counter(names::LIMIT_WOULD_REFUSE, &[&scope.policy, limit]);
        self.limit(limit, |cache| cache.would_refuse.get_or_init(counter).inc());
    }

    /// Counts a request that was let through uncounted.
    pub(super) fn count_degraded(&self, scope: &Scope, metrics: &Metrics) {
        self.degraded
            .get_or_init(|| metrics.counter(names::STORE_DEGRADED, &[&scope.policy]))
            .inc();
    }

    fn limit<T>(&mut self, name: &str, work: impl FnOnce(&mut LimitCache) -> T) -> T {
        if let Some(cache) = self.names.get_mut(name) {
            return work(cache);
        }
        if self.names.len() >= NAMES_MAX {
            self.names.clear();
        }
        let mut cache = LimitCache::default();
        let answer = work(&mut cache);
        self.names.insert(name.to_owned(), cache);
        answer
    }
}

#[cfg(test)]
impl Local {
    /// Asserts that everything which guests or reloads can make grow is within its bound.
    pub(super) fn assert_bounded(&self) {
        assert!(self.scopes.len() <= SCOPES_MAX);
        for cache in self.scopes.values() {
            assert!(cache.names.len() <= NAMES_MAX);
            assert!(cache.names.values().all(|cache| cache.spaces.len() <= SHAPES_MAX));
        }
    }
}
