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
use crate::plan::{Algorithm, Limit, OnStoreError, Plan, Refund};
use crate::replay::{Demand, LimitTally, QuotaCounter, with_quota};
use crate::telemetry::Metrics;

/// Maximum number of counters.
const KEYS_MAX: usize = 10_000;
/// Keys that are counted in one engine, before another takes its place and frees their counters.
const KEYS_AT_ONCE: u32 = 4_096;

/// Maximum number of costs of a key for which plans are kept.
const PLANS_MAX: usize = 16;

/// The limit that is counted again.
#[derive(Clone, Debug)]
struct RecountedLimit {
    scope: String,
    name: String,
    algorithm: Algorithm,
    refund: Refund,
}

impl RecountedLimit {
    /// `None` for limits whose quota only a script knows, and for those that requests ask nothing
    /// of.
    fn of(limit: &LimitTally) -> Option<Self> {
        if limit.free || with_quota(&limit.algorithm, limit.algorithm.amount()?).is_none() {
            return None;
        }
        let LimitTally { scope, name, algorithm, refund, .. } = limit;
        Some(Self {
            scope: scope.clone(),
            name: name.clone(),
            algorithm: algorithm.clone(),
            refund: *refund,
        })
    }
}

/// One limit, counted alone.
pub(super) struct LimitRecount {
    of: RecountedLimit,
    metrics: Metrics,
    clock: Clock,
    /// Runs what a grant's end may start.
    runtime: tokio::runtime::Runtime,
    scope: Arc<Scope>,
    /// The count with the quota that is tried now.
    now: Option<QuotaCount>,
}

struct QuotaCount {
    limiter: Limiter,
    quota: u64,
    limit: Limit,
    /// The plans of the key that is counted, by cost.
    plans: Vec<(u32, Arc<Plan>)>,
    held: HashMap<u64, (Grant, Ending)>,
    ends: BinaryHeap<Reverse<(i64, u64)>>,
    keys: u32,
    number: u64,
}

impl LimitRecount {
    /// Returns what makes counters of `limit`, one for each thread; `None` if it can't be counted
    /// again.
    pub(super) fn maker(
        limit: &LimitTally,
    ) -> Option<impl Fn() -> Option<Box<dyn QuotaCounter>> + Sync + use<>> {
        let of = RecountedLimit::of(limit)?;
        Some(move || -> Option<Box<dyn QuotaCounter>> { Some(Box::new(Self::new(of.clone())?)) })
    }

    /// `None` if this machine can't run it.
    fn new(of: RecountedLimit) -> Option<Self> {
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

impl QuotaCounter for LimitRecount {
    fn begin(&mut self, quota: u64) -> bool {
        let _entered = self.runtime.enter();
        self.now = None;
        let Some(algorithm) = with_quota(&self.of.algorithm, quota) else { return false };
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
        self.now = Some(QuotaCount {
            limiter,
            quota,
            limit,
            plans: Vec::new(),
            held: HashMap::new(),
            ends: BinaryHeap::new(),
            keys: 0,
            number: 0,
        });
        true
    }

    fn next_key(&mut self) {
        let Some(now) = &mut self.now else { return };
        if now.keys == KEYS_AT_ONCE {
            let quota = now.quota;
            self.begin(quota);
            return;
        }
        let _entered = self.runtime.enter();
        now.keys += 1;
        now.plans.clear();
        now.end_until(i64::MAX, &self.clock);
    }

    fn fits(&mut self, demand: &Demand) -> bool {
        let gives_back = self.gives_back();
        let _entered = self.runtime.enter();
        let Some(now) = &mut self.now else { return false };
        now.end_until(demand.at_us, &self.clock);
        self.clock.set(demand.at_us);
        let Some(plan) = now.plan(demand) else { return false };
        let taken = {
            let take = pin!(now.limiter.take(&self.scope, &plan));
            take.poll(&mut Context::from_waker(Waker::noop()))
        };
        let Poll::Ready(Take::Granted(outcome, grant)) = taken else { return false };
        if gives_back {
            let delay_us = i64::try_from(outcome.delay_us()).unwrap_or(i64::MAX);
            let due_us = demand
                .at_us
                .saturating_add(i64::try_from(demand.took_us()).unwrap_or(i64::MAX))
                .saturating_add(delay_us);
            now.hold(due_us, grant, demand);
        }
        true
    }
}

impl QuotaCount {
    /// Keys are told apart by their numbers. A plan of a key that comes again is at hand.
    fn plan(&mut self, demand: &Demand) -> Option<Arc<Plan>> {
        let Demand { key, cost, .. } = *demand;
        if let Some((_, plan)) = self.plans.iter().find(|(of, _)| *of == cost) {
            return Some(Arc::clone(plan));
        }
        let limit = Limit { key: key.to_string(), cost: u64::from(cost), ..self.limit.clone() };
        let plan = Arc::new(Plan::new(vec![limit]).ok()?.quiet());
        if self.plans.len() < PLANS_MAX {
            self.plans.push((cost, Arc::clone(&plan)));
        }
        Some(plan)
    }

    fn hold(&mut self, due_us: i64, grant: Grant, demand: &Demand) {
        let ending = if demand.failed() { Ending::UpstreamFailed } else { Ending::Completed };
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
