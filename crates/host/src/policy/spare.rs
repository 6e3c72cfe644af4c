//! Instances of a slow policy that were started before a request needs them. A policy is slow if
//! its `configure` takes so long that no request should wait for it.
//!
//! Requests start no instance of such a policy. There is one more than there are workers, so that a
//! worker which has to throw its own away has another at once. A thread in the background replaces
//! it. A client that makes each request trap gets the failure of a policy with too much to do, and
//! its worker goes on serving others.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use wasmtime::component::InstancePre;

use super::abi;
use super::bounds::Bounds;
use super::instance::{Instance, StartError, State};
use super::runtime::Runtime;
use super::workers::Token;

/// Instances beyond those of the workers.
const BEYOND_WORKERS: usize = 1;

/// What starts instances of a policy.
#[derive(Clone)]
pub(super) struct Starter {
    pub(super) pre: InstancePre<State>,
    pub(super) label: abi::Label,
    pub(super) bounds: Bounds,
    pub(super) config_json: Arc<str>,
}

impl Starter {
    /// Starts an instance.
    pub(super) fn start(&self) -> Result<Instance, StartError> {
        let Self { pre, label, bounds, config_json } = self;
        Instance::start(pre, label, bounds, config_json).map(|(instance, _)| instance)
    }
}

/// What a request without an instance does.
pub(super) enum Next {
    /// Uses this one.
    Use(Box<Instance>),
    /// Starts one.
    Start,
    /// Fails at once: one is being started.
    Fail,
}

/// The instances of one policy that have not been used yet.
#[derive(Clone)]
pub(super) struct SpareInstances(Arc<Mutex<Spares>>);

#[derive(Default)]
struct Spares {
    instances: Vec<Instance>,
    is_slow: bool,
    /// How many there should be; none before [`SpareInstances::prepare`].
    wanted: usize,
    /// The most that there should be.
    most: usize,
    /// A thread is starting some.
    is_refilled: bool,
    /// The last one did not start. A request finds out why.
    has_failed: bool,
}

impl SpareInstances {
    /// With the instance that told whether the policy is slow.
    pub(super) fn new(first: Instance, is_slow: bool) -> Self {
        let instances = if is_slow { vec![first] } else { Vec::new() };
        Self(Arc::new(Mutex::new(Spares { instances, is_slow, ..Spares::default() })))
    }

    fn lock(&self) -> MutexGuard<'_, Spares> {
        // A `Spares` is whole after each statement that changes it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has instances for this many workers, if the policy is slow. Returns whether they are to be
    /// started now: not if this was called before.
    pub(super) fn prepare(&self, workers: usize) -> bool {
        let mut spares = self.lock();
        if !spares.is_slow || spares.most > 0 {
            return false;
        }
        spares.most = workers + BEYOND_WORKERS;
        spares.wanted = spares.most;
        true
    }

    /// Starts what is missing, while `goes_on`.
    pub(super) fn fill(&self, starter: &Starter, goes_on: impl Fn() -> bool) {
        while self.lock().are_missing() && goes_on() && starter.bounds.may_keep() {
            let started = starter.start();
            let mut spares = self.lock();
            match started {
                Ok(instance) => spares.instances.push(instance),
                Err(_) => {
                    spares.has_failed = true;
                    return;
                }
            }
        }
    }

    /// What a request without an instance does, which it may get here.
    pub(super) fn next(&self, starter: &Starter) -> Next {
        let mut spares = self.lock();
        if let Some(instance) = spares.instances.pop() {
            spares.wanted = spares.wanted.saturating_sub(1).max(spares.most.min(BEYOND_WORKERS));
            return Next::Use(Box::new(instance));
        }
        let is_filled = spares.most > 0 && starter.bounds.may_keep();
        if !is_filled || std::mem::take(&mut spares.has_failed) {
            return Next::Start;
        }
        Next::Fail
    }

    /// Whether requests would have to wait for an instance.
    pub(super) fn are_awaited(&self) -> bool {
        let spares = self.lock();
        spares.most > 0 && spares.instances.is_empty() && !spares.has_failed
    }

    /// A worker has thrown its instance away.
    pub(super) fn lost_one(&self) {
        let mut spares = self.lock();
        spares.wanted = (spares.wanted + 1).min(spares.most);
    }

    /// Starts what is missing on a thread of its own, unless one does so already. It ends early
    /// when the policy is gone.
    pub(super) fn refill(&self, starter: &Starter, runtime: &Arc<Runtime>, policy: Weak<Token>) {
        let mut spares = self.lock();
        let is_useless = spares.is_refilled || spares.has_failed || !spares.are_missing();
        if is_useless || !starter.bounds.may_keep() {
            return;
        }
        spares.is_refilled = true;
        drop(spares);
        let refill = Refill(self.clone());
        let (starter, kept) = (starter.clone(), Arc::clone(runtime));
        let started = runtime.in_background(move || {
            refill.0.fill(&starter, || policy.strong_count() > 0);
            drop(refill);
            // It interrupts guests, so it is needed until here.
            drop(kept);
        });
        if let Err(error) = started {
            self.lock().has_failed = true;
            tracing::warn!("no thread could be started to start instances of policies: {error}");
        }
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.lock().instances.len()
    }
}

impl Spares {
    fn are_missing(&self) -> bool {
        self.instances.len() < self.wanted
    }
}

/// A refill under way. It has ended when this is dropped, also if its thread did not start.
struct Refill(SpareInstances);

impl Drop for Refill {
    fn drop(&mut self) {
        self.0.lock().is_refilled = false;
    }
}
