//! Settles a grant when its request ends: gives back what the limits declare, and charges what a
//! policy adds.
//!
//! In memory this is done at once. On Redis the calls go through a bounded queue (`queue`) to tasks
//! of the same worker. Settling is best effort and errs on the strict side: calls that fail or are
//! dropped are counted, and none is repeated, because it may have run.

use std::sync::Arc;

use smallvec::SmallVec;

use super::local;
use super::prepared::{self, CellRequest};
use super::queue::{Job, Worker};
use super::shared::Shared;
use super::{Ending, Grant};
use crate::engine::{Cell, Cells, Embedded, Engine, EngineError, Taken};
use crate::plan::{AMOUNT_MAX, Adjustment, Algorithm, Change, Limit, Refund};
use crate::telemetry::{Counter, names};

/// What to do for one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Settlement {
    /// Units to give back, at most what was taken.
    give_back: u64,
    /// Units to charge in addition.
    charge: u64,
    /// Delete the counter, and do nothing else.
    reset: bool,
}

/// One for each limit, in the plan's order.
type Settlements = SmallVec<[Settlement; 2]>;

/// Settles `grant`.
pub(super) fn settle(grant: &Grant, ending: Ending, adjustments: &[Adjustment]) {
    // No limit declares a refund for a request that completed.
    if ending == Ending::Completed && adjustments.is_empty() {
        return;
    }
    let limits = grant.plan.limits();
    let mut settlements: Settlements = limits
        .iter()
        .zip(&grant.charged)
        .map(|(limit, charged)| declared_refund(limit, charged.is_some(), ending))
        .collect();
    if !adjustments.is_empty() {
        adjust(grant, adjustments, &mut settlements);
    }
    if settlements.iter().all(|settlement| *settlement == Settlement::default()) {
        return;
    }
    let (worker, jobs) = jobs(grant, &settlements);
    for job in jobs {
        run(&grant.shared, &worker, job);
    }
}

/// Runs `job`: at once in memory, through the queue on Redis.
pub(super) fn run(shared: &Arc<Shared>, worker: &Arc<Worker>, job: Job) {
    match &*shared.engine {
        Engine::Embedded(embedded) => {
            let result = match &job {
                Job::GiveBack { cells, taken_at_us } => {
                    embedded.give_back(cells, *taken_at_us).map(|()| true)
                }
                Job::Charge { cells, algorithm } => {
                    charge_embedded(shared, embedded, cells, algorithm)
                }
                Job::Reset(key) => {
                    embedded.reset(key);
                    Ok(true)
                }
            };
            PendingCall::new(shared, &job).end(result);
        }
        Engine::Redis(_) => queue(shared, worker, job),
    }
}

fn charge_embedded(
    shared: &Shared,
    embedded: &Embedded,
    cells: &Cells,
    algorithm: &Algorithm,
) -> Result<bool, EngineError> {
    let taken = embedded.take(cells)?;
    match cells_for_retry(shared, cells, algorithm, &taken) {
        Some(cells) => embedded.take(&cells).map(|taken| taken.admitted),
        None => Ok(taken.admitted),
    }
}

async fn charge(
    shared: &Shared,
    cells: &Cells,
    algorithm: &Algorithm,
) -> Result<bool, EngineError> {
    let taken = shared.engine.take(cells).await?;
    match cells_for_retry(shared, cells, algorithm, &taken) {
        Some(cells) => shared.engine.take(&cells).await.map(|taken| taken.admitted),
        None => Ok(taken.admitted),
    }
}

/// The cells for a second try, if the store's time lay outside the period that their numbers
/// describe and so nothing was decided. Their numbers are those of the store's time.
fn cells_for_retry(
    shared: &Shared,
    cells: &Cells,
    algorithm: &Algorithm,
    taken: &Taken,
) -> Option<Cells> {
    if !taken.cells.iter().any(|reply| reply.outside) {
        return None;
    }
    let numbers = shared.numbers(algorithm, taken.at_us as i64);
    Some(cells.iter().map(|cell| Cell { numbers, ..cell.clone() }).collect())
}

/// What the limit's `refund` gives back for `ending`.
fn declared_refund(limit: &Limit, charged: bool, ending: Ending) -> Settlement {
    // A concurrency permit is released with its lease, and a slot in a leaky bucket is never given
    // back.
    if !limit.algorithm.settles() {
        return Settlement::default();
    }
    let refunds = match limit.refund {
        // With `by-settle` only the policy's adjustments give anything back.
        Refund::Never | Refund::BySettle => false,
        Refund::Unsent => ending == Ending::Unsent,
        Refund::UpstreamError => matches!(ending, Ending::Unsent | Ending::UpstreamFailed),
    };
    Settlement {
        give_back: if refunds && charged { limit.cost } else { 0 },
        ..Settlement::default()
    }
}

/// Adds the policy's adjustments to `settlements`. One that is not allowed is counted as a wrong answer
/// of the policy.
fn adjust(grant: &Grant, adjustments: &[Adjustment], settlements: &mut Settlements) {
    for adjustment in adjustments {
        let limits = grant.plan.limits();
        let index = limits.iter().position(|limit| limit.name == adjustment.limit);
        let limit = index.and_then(|index| {
            Some((limits.get(index)?, grant.charged.get(index)?, settlements.get_mut(index)?))
        });
        if let Err(why) = apply(adjustment.change, limit) {
            grant.shared.metrics.count(names::POLICY_ERRORS, &[&grant.scope.policy, "answer"]);
            tracing::debug!(policy = grant.scope.policy, limit = adjustment.limit, change = %adjustment.change, why, "adjustment ignored");
        }
    }
}

fn apply(
    requested: Change,
    limit: Option<(&Limit, &Option<u64>, &mut Settlement)>,
) -> Result<(), &'static str> {
    let (limit, charged, settlement) = limit.ok_or("the plan has no such limit")?;
    if !limit.algorithm.settles() {
        return Err("changes a concurrency or leaky_bucket limit, which can't be adjusted");
    }
    let units = match requested {
        Change::Reset if limit.refund != Refund::BySettle => {
            return Err("resets, but the limit's refund is not by-settle");
        }
        Change::Reset => {
            // What was taken is deleted with the counter. Other changes would race with that.
            *settlement = Settlement { reset: true, ..Settlement::default() };
            return Ok(());
        }
        Change::Units(_) if settlement.reset => return Err("the limit is reset already"),
        Change::Units(units) => units,
    };
    if units.unsigned_abs() > AMOUNT_MAX {
        return Err("more than 2^31 units");
    }
    if units > 0 {
        settlement.charge = (settlement.charge + units.unsigned_abs()).min(AMOUNT_MAX);
    } else if limit.refund != Refund::BySettle {
        return Err("gives back, but the limit's refund is not by-settle");
    } else if charged.is_some() {
        settlement.give_back = (settlement.give_back + units.unsigned_abs()).min(limit.cost);
    }
    Ok(())
}

/// The calls for `settlements`. Give-backs of one take share a call. Each charge and each reset is a
/// call of its own, so that a charge which does not fit does not prevent the others.
fn jobs(grant: &Grant, settlements: &[Settlement]) -> (Arc<Worker>, Vec<Job>) {
    let Grant { shared, scope, plan, charged, member, .. } = grant;
    let worker = local::with(shared, |local| Arc::clone(local.worker()));
    let jobs = prepared::with(shared, scope, plan, |prepared| {
        let mut jobs = Vec::new();
        let settled = plan
            .limits()
            .iter()
            .enumerate()
            .zip(settlements)
            .map(|((index, limit), settlement)| (index, limit, settlement));
        let cell = |limit, index, cost, member, now_us| {
            prepared.cell(shared, scope, (limit, index), CellRequest { cost, member, now_us })
        };
        for ((index, limit, settlement), charged) in settled.clone().zip(charged) {
            if let (1.., Some(taken_at_us)) = (settlement.give_back, charged) {
                give_back(
                    &mut jobs,
                    cell(limit, index, settlement.give_back, *member, *taken_at_us as i64),
                    *taken_at_us,
                );
            }
        }
        for (index, limit, settlement) in
            settled.clone().filter(|(_, _, settlement)| settlement.charge > 0)
        {
            if limit.algorithm.refuses_all() {
                shared.counters.charge_refused.inc();
                continue;
            }
            let cell = cell(
                limit,
                index,
                settlement.charge,
                prepared.new_member(),
                prepared.now_us(shared),
            );
            // Enforced, so that `admitted` says whether it fitted.
            let cells = Cells::from_iter([Cell { shadow: false, ..cell }]);
            jobs.push(Job::Charge { cells, algorithm: limit.algorithm.clone() });
        }
        for (index, limit, _) in settled.filter(|(_, _, settlement)| settlement.reset) {
            jobs.push(Job::Reset(cell(limit, index, 0, 0, 0).key));
        }
        jobs
    });
    (worker, jobs)
}

/// Adds a give-back: to an existing call of the same take and tag if there is one.
fn give_back(jobs: &mut Vec<Job>, cell: Cell, taken_at_us: u64) {
    let same = |job: &&mut Job| {
        matches!(job, Job::GiveBack { cells, taken_at_us: at }
        if *at == taken_at_us && cells.first().is_some_and(|first| first.key.tag == cell.key.tag))
    };
    match jobs.iter_mut().find(same) {
        Some(Job::GiveBack { cells, .. }) => cells.push(cell),
        _ => jobs.push(Job::GiveBack { cells: Cells::from_iter([cell]), taken_at_us }),
    }
}

/// Queues `job`, and spawns a task for the queue if fewer than the maximum are running.
pub(super) fn queue(shared: &Arc<Shared>, worker: &Arc<Worker>, job: Job) {
    if !worker.push(job) {
        return;
    }
    let drainer = Drainer { shared: Arc::clone(shared), worker: Arc::clone(worker), ended: false };
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn(drainer.run())),
        // No runtime here: the job waits for the next task, or is counted as dropped when its
        // worker is dropped.
        Err(_) => drop(drainer),
    }
}

/// Runs queued jobs, one after another, until the queue is empty.
struct Drainer {
    shared: Arc<Shared>,
    worker: Arc<Worker>,
    ended: bool,
}

impl Drainer {
    async fn run(mut self) {
        while !self.ended {
            while let Some(job) = self.worker.pop() {
                let pending = PendingCall::new(&self.shared, &job);
                let result = match &job {
                    Job::GiveBack { cells, taken_at_us } => {
                        self.shared.engine.give_back(cells, *taken_at_us).await.map(|()| true)
                    }
                    Job::Charge { cells, algorithm } => {
                        charge(&self.shared, cells, algorithm).await
                    }
                    Job::Reset(key) => self.shared.engine.reset(key).await.map(|()| true),
                };
                pending.end(result);
            }
            self.ended = self.worker.end_drainer(false);
        }
    }
}

impl Drop for Drainer {
    fn drop(&mut self) {
        if !self.ended {
            self.worker.end_drainer(true);
        }
        self.shared.done();
    }
}

/// A call in flight. Counted as failed unless it succeeds, also when its task is dropped with the
/// runtime.
struct PendingCall {
    failed: Option<Counter>,
    refused: Counter,
}

impl PendingCall {
    fn new(shared: &Shared, job: &Job) -> Self {
        Self {
            failed: Some(shared.counters.failed.of(job).clone()),
            refused: shared.counters.charge_refused.clone(),
        }
    }

    /// `Ok(false)` is a charge that did not fit: nothing was charged.
    fn end(mut self, result: Result<bool, EngineError>) {
        if let Ok(fitted) = result {
            self.failed = None;
            if !fitted {
                self.refused.inc();
            }
        }
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        if let Some(failed) = &self.failed {
            failed.inc();
        }
    }
}
