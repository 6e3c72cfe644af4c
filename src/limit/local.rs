//! What each worker keeps for itself, so that a decision formats nothing and takes no lock: the
//! spaces of the limits it has seen, the counters of their metrics, and its queue of settling
//! calls.
//!
//! In a thread-local that is borrowed only inside [`with`], never across an await. Limit names come
//! from guests, so everything here is bounded: what grows over its bound is forgotten and made
//! again.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, Weak};

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use super::queue::Worker;
use super::shared::Shared;
use super::{Scope, keys};
use crate::engine::Space;
use crate::plan::Algorithm;
use crate::telemetry::{Counter, Metrics, names};

/// Scopes that a worker remembers for one limiter, at most.
pub(super) const SCOPES_MAX: usize = 1_024;
/// Limit names that a worker remembers for one scope, at most.
const NAMES_MAX: usize = 1_024;
/// Shapes that a worker remembers for one limit's name, at most.
const SHAPES_MAX: usize = 16;

thread_local! {
    static LOCALS: RefCell<Vec<Local>> = const { RefCell::new(Vec::new()) };
}

/// One worker's memory of one limiter.
pub(super) struct Local {
    limiter: Weak<Shared>,
    worker: Arc<Worker>,
    /// By the scope's address. The `Weak` inside keeps the address from being used again.
    scopes: HashMap<usize, KnownScope, Addresses>,
}

/// Hashes an address that nobody outside can choose: spread by a multiplication, not guarded by
/// SipHash.
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
        // 2^64 divided by the golden ratio: consecutive addresses fall far apart. Swapped, because
        // the table reads the low bits first.
        self.0 = (self.0 ^ address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).swap_bytes();
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// What is known of a scope.
pub(super) struct KnownScope {
    scope: Weak<Scope>,
    degraded: OnceCell<Counter>,
    /// Policies choose these names, and what is kept of them is bounded: a seed of our own is guard
    /// enough.
    names: HashMap<String, KnownLimit, RandomState>,
}

/// What is known of a limit's name in a scope.
#[derive(Default)]
struct KnownLimit {
    /// Each with its algorithm, without amounts.
    spaces: SmallVec<[(Algorithm, Arc<Space>); 1]>,
    refused: OnceCell<Counter>,
    would_refuse: OnceCell<Counter>,
}

/// Calls `work` with this worker's memory of `shared`. `work` must not come back here.
pub(super) fn with<T>(shared: &Arc<Shared>, work: impl FnOnce(&mut Local) -> T) -> T {
    LOCALS.with_borrow_mut(|locals| {
        let at = locals
            .iter()
            .position(|local| std::ptr::eq(local.limiter.as_ptr(), Arc::as_ptr(shared)));
        if let Some(local) = at.and_then(|at| locals.get_mut(at)) {
            return work(local);
        }
        // A limiter is met for the first time: the moment to forget those that are gone. As many
        // stay as there are limiters.
        locals.retain(|local| local.limiter.strong_count() > 0);
        let mut local = Local {
            limiter: Arc::downgrade(shared),
            worker: shared.new_worker(),
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

    /// Calls `work` with what is known of `scope`.
    pub(super) fn scope<T>(
        &mut self,
        scope: &Arc<Scope>,
        work: impl FnOnce(&mut KnownScope) -> T,
    ) -> T {
        let address = Arc::as_ptr(scope).addr();
        if let Some(known) = self.scopes.get_mut(&address) {
            return work(known);
        }
        // New scopes come with a reload: the old ones go then.
        self.scopes.retain(|_, known| known.scope.strong_count() > 0);
        if self.scopes.len() >= SCOPES_MAX {
            self.scopes.clear();
        }
        let mut known = KnownScope {
            scope: Arc::downgrade(scope),
            degraded: OnceCell::new(),
            names: HashMap::default(),
        };
        let answer = work(&mut known);
        self.scopes.insert(address, known);
        answer
    }
}

impl KnownScope {
    /// The space of `limit` in this scope, made when it is met for the first time.
    pub(super) fn space(
        &mut self,
        scope: &Scope,
        limit: &str,
        algorithm: &Algorithm,
        shared: &Shared,
    ) -> Arc<Space> {
        self.limit(limit, |known| {
            let of_shape = algorithm.of_shape();
            if let Some((_, space)) = known.spaces.iter().find(|(known, _)| *known == of_shape) {
                return Arc::clone(space);
            }
            if known.spaces.len() >= SHAPES_MAX {
                known.spaces.clear();
            }
            let space =
                Arc::new(keys::space(&scope.name, limit, &shared.shape(algorithm).to_string()));
            shared.engine.note_space(&space);
            known.spaces.push((of_shape, Arc::clone(&space)));
            space
        })
    }

    /// Counts a refusal by `limit`.
    pub(super) fn count_refused(&mut self, scope: &Scope, limit: &str, metrics: &Metrics) {
        let counter = || metrics.counter(names::LIMIT_REFUSALS, &[&scope.policy, limit]);
        self.limit(limit, |known| known.refused.get_or_init(counter).inc());
    }

    /// Counts that the shadow `limit` would have refused.
    pub(super) fn count_would_refuse(&mut self, scope: &Scope, limit: &str, metrics: &Metrics) {
        let counter = || metrics.counter(names::LIMIT_WOULD_REFUSE, &[&scope.policy, limit]);
        self.limit(limit, |known| known.would_refuse.get_or_init(counter).inc());
    }

    /// Counts a request that was let through uncounted.
    pub(super) fn count_degraded(&self, scope: &Scope, metrics: &Metrics) {
        self.degraded
            .get_or_init(|| metrics.counter(names::STORE_DEGRADED, &[&scope.policy]))
            .inc();
    }

    fn limit<T>(&mut self, name: &str, work: impl FnOnce(&mut KnownLimit) -> T) -> T {
        if let Some(known) = self.names.get_mut(name) {
            return work(known);
        }
        if self.names.len() >= NAMES_MAX {
            self.names.clear();
        }
        let mut known = KnownLimit::default();
        let answer = work(&mut known);
        self.names.insert(name.to_owned(), known);
        answer
    }
}

#[cfg(test)]
impl Local {
    /// Everything that guests or reloads could make grow stands within its bound.
    pub(super) fn assert_bounded(&self) {
        assert!(self.scopes.len() <= SCOPES_MAX);
        for known in self.scopes.values() {
            assert!(known.names.len() <= NAMES_MAX);
            assert!(known.names.values().all(|known| known.spaces.len() <= SHAPES_MAX));
        }
    }
}
