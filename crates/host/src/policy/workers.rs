//! Each thread's instances, one for each policy, and its cached decisions of pure policies. Nothing
//! here is shared between threads.
//!
//! An instance is taken out for a call and put back after it. One that failed is not put back, and
//! nothing is borrowed while a guest runs.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::Decision;
use super::instance::Instance;
use super::remember::{DecisionCache, Expiry, THREAD_BYTES_MAX};
use crate::clock::Clock;

/// Maximum number of policies of which one thread keeps an instance and decisions; the oldest one
/// is replaced. More than a configuration has, as each would then be started and asked anew.
const POLICIES_PER_THREAD_MAX: usize = 4_096;

/// Bytes of cached decisions, of all workers together.
const PROCESS_BYTES_MAX: usize = 256 << 20;

/// How many policies have been dropped. When it changes, a thread removes the instances whose
/// policy is gone.
static GONE: AtomicU64 = AtomicU64::new(0);
static NEXT: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static WORKER: RefCell<Worker> = const {
        RefCell::new(Worker { slots: Vec::new(), gone: 0, cache_bytes_max: THREAD_BYTES_MAX })
    };
}

struct Worker {
    slots: Vec<Slot>,
    gone: u64,
    /// Bytes of cached decisions, of all policies together.
    cache_bytes_max: usize,
}

struct Slot {
    id: u64,
    owner: Weak<Token>,
    instance: Option<Instance>,
    remembered: DecisionCache,
}

/// Identifies a policy. Held by the policy; threads notice when it is dropped.
#[derive(Debug)]
pub(super) struct Token {
    id: u64,
}

impl Token {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { id: NEXT.fetch_add(1, Ordering::Relaxed) })
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        GONE.fetch_add(1, Ordering::Relaxed);
    }
}

impl Worker {
    fn slot(&mut self, token: &Arc<Token>) -> Option<&mut Slot> {
        let gone = GONE.load(Ordering::Relaxed);
        if gone != self.gone {
            self.gone = gone;
            self.slots.retain(|slot| slot.owner.strong_count() > 0);
        }
        let known = self.slots.iter().position(|slot| slot.id == token.id);
        let at = known.unwrap_or_else(|| {
            if self.slots.len() >= POLICIES_PER_THREAD_MAX {
                self.slots.remove(0);
            }
            self.slots.push(Slot {
                id: token.id,
                owner: Arc::downgrade(token),
                instance: None,
                remembered: DecisionCache::default(),
            });
            self.slots.len() - 1
        });
        self.slots.get_mut(at)
    }
}

/// A thread that is ending has no slots any more: then nothing is done.
fn with<R>(act: impl FnOnce(&mut Worker) -> Option<R>) -> Option<R> {
    WORKER.try_with(|worker| act(&mut *worker.try_borrow_mut().ok()?)).ok().flatten()
}

/// This thread's idle instance of a policy.
pub(super) fn take(token: &Arc<Token>) -> Option<Instance> {
    with(|worker| worker.slot(token)?.instance.take())
}

/// Keeps an instance for this thread's next call.
pub(super) fn put(token: &Arc<Token>, instance: Instance) {
    with(|worker| worker.slot(token)?.instance.replace(instance));
}

/// Drops all idle instances of this thread: the pool is full.
pub(super) fn release() {
    with(|worker| {
        worker.slots.iter_mut().for_each(|slot| slot.instance = None);
        Some(())
    });
}

/// Lets this thread cache decisions of this many bytes, over all policies. For a thread that
/// decides alone, as in a replay: a process has many workers.
pub fn set_cache_bytes_max(bytes: usize) {
    with(|worker| {
        worker.cache_bytes_max = bytes;
        Some(())
    });
}

/// Lets this thread cache its share of the process's, as one of `workers`.
pub fn share_cache(workers: usize) {
    set_cache_bytes_max(THREAD_BYTES_MAX.min(PROCESS_BYTES_MAX / workers.max(1)));
}

/// This thread's cached decision for the same facts.
pub(super) fn recall(
    token: &Arc<Token>,
    facts: &[(&str, &str)],
    clock: &Clock,
) -> Option<Arc<Decision>> {
    with(|worker| worker.slot(token)?.remembered.get(facts, clock))
}

/// Caches a pure policy's decision.
pub(super) fn remember(
    token: &Arc<Token>,
    facts: &[(&str, &str)],
    decision: &Arc<Decision>,
    expiry: Expiry,
) {
    with(|worker| {
        let share = worker.cache_bytes_max / worker.slots.len().max(1);
        worker.slot(token)?.remembered.offer(facts, decision, expiry, share);
        Some(())
    });
}

#[cfg(test)]
pub(super) fn kept() -> usize {
    WORKER.with_borrow(|worker| worker.slots.len())
}
