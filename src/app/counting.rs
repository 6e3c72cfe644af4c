//! Counts what was asked of one limit again, with other quotas, by the limiter and the engine that
//! serve: for the quotas that `weir replay` suggests.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::clock::Clock;
use crate::engine::{self, EmbeddedSettings, Engine};
use crate::limit::{self, Ending, Grant, Limiter, Scope, Take};
use crate::plan::{Limit, OnStoreError, Plan, Refund};
use crate::replay::{Counting, Demand, LimitTally, with_quota};
use crate::telemetry::Metrics;

/// Counters, at most.
const KEYS_MAX: usize = 10_000_000;
/// Takes between two looks for expired counters.
const SWEEP_EVERY: u32 = 4_096;

/// One limit, counted alone.
pub(super) struct Counted<'t> {
    of: &'t LimitTally,
    metrics: Metrics,
    clock: Clock,
    /// For what a grant's end may start.
    runtime: tokio::runtime::Runtime,
    scope: Arc<Scope>,
    /// Of the quota that is counted now.
    now: Option<Now>,
}

struct Now {
    limiter: Limiter,
    limit: Limit,
    plans: HashMap<(u32, u32), Arc<Plan>>,
    held: HashMap<u64, (Grant, Ending)>,
    ends: BinaryHeap<Reverse<(i64, u64)>>,
    takes: u32,
    number: u64,
}

impl<'t> Counted<'t> {
    /// None of limits whose quota only a script knows.
    pub(super) fn new(of: &'t LimitTally) -> Option<Self> {
        with_quota(&of.algorithm, 1)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().ok()?;
        let scope = Scope::new(of.scope.clone(), of.scope.clone(), OnStoreError::Allow, false);
        Some(Self {
            of,
            metrics: Metrics::new(1),
            clock: Clock::simulated_at(0),
            runtime,
            scope: Arc::new(scope),
            now: None,
        })
    }

    /// Whether what is taken may come back before its time.
    fn gives_back(&self) -> bool {
        let refunds = matches!(self.of.refund, Refund::Unsent | Refund::UpstreamError);
        self.of.algorithm.holds() || refunds
    }
}

impl Counting for Counted<'_> {
    fn begin(&mut self, quota: u64) -> bool {
        let _entered = self.runtime.enter();
        self.now = None;
        let Some(algorithm) = with_quota(&self.of.algorithm, quota) else { return false };
        self.clock.set(self.of.demands.first().map_or(0, |demand| demand.at_us));
        let settings = engine::Settings::Embedded(EmbeddedSettings::new(KEYS_MAX));
        let Ok(engine) = Engine::build(&settings, self.clock.clone(), &self.metrics) else {
            return false;
        };
        let limiter = Limiter::new(
            limit::Settings::default(),
            Arc::new(engine),
            self.clock.clone(),
            self.metrics.clone(),
        );
        let limit = Limit { refund: self.of.refund, ..Limit::new(&self.of.name, "", algorithm) };
        self.now = Some(Now {
            limiter,
            limit,
            plans: HashMap::new(),
            held: HashMap::new(),
            ends: BinaryHeap::new(),
            takes: 0,
            number: 0,
        });
        true
    }

    fn fits(&mut self, demand: &Demand) -> bool {
        let gives_back = self.gives_back();
        let _entered = self.runtime.enter();
        let Some(now) = &mut self.now else { return false };
        now.end_until(demand.at_us, &self.clock);
        self.clock.set(demand.at_us);
        now.takes += 1;
        if now.takes.is_multiple_of(SWEEP_EVERY) {
            now.limiter.sweep();
        }
        let Some(plan) = now.plan(demand) else { return false };
        let taken = {
            let take = pin!(now.limiter.take(&self.scope, &plan));
            take.poll(&mut Context::from_waker(Waker::noop()))
        };
        let Poll::Ready(Take::Granted(outcome, grant)) = taken else { return false };
        if gives_back {
            let delay_us = i64::try_from(outcome.delay_us()).unwrap_or(i64::MAX);
            let due_us = demand.at_us + i64::from(demand.took_us) + delay_us;
            now.hold(due_us, grant, demand);
        }
        true
    }
}

impl Now {
    /// Keys are told apart by their numbers. A plan of a key that comes again is at hand.
    fn plan(&mut self, demand: &Demand) -> Option<Arc<Plan>> {
        let Demand { key, cost, .. } = *demand;
        if let Some(plan) = self.plans.get(&(key, cost)) {
            return Some(Arc::clone(plan));
        }
        let limit = Limit { key: key.to_string(), cost: u64::from(cost), ..self.limit.clone() };
        let plan = Arc::new(Plan::new(vec![limit]).ok()?.quiet());
        self.plans.insert((key, cost), Arc::clone(&plan));
        Some(plan)
    }

    fn hold(&mut self, due_us: i64, grant: Grant, demand: &Demand) {
        let ending = if demand.failed { Ending::UpstreamFailed } else { Ending::Completed };
        self.number += 1;
        self.held.insert(self.number, (grant, ending));
        self.ends.push(Reverse((due_us, self.number)));
    }

    fn end_until(&mut self, until_us: i64, clock: &Clock) {
        while let Some(Reverse((due_us, number))) = self.ends.peek().copied()
            && due_us <= until_us
        {
            self.ends.pop();
            clock.set(due_us);
            if let Some((grant, ending)) = self.held.remove(&number) {
                grant.settle(ending, &[]);
            }
        }
    }
}
