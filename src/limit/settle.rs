//! What a grant does at its request's end: gives back what was declared, charges what a policy
//! adds.
//!
//! Embedded, it is done at once. On Redis it is queued for tasks of the same worker (`queue`),
//! bounded, and what fails or is dropped is counted: settling is best effort and errs on the strict
//! side. A call is never repeated, because it may have run.

use std::sync::Arc;

use smallvec::SmallVec;

use super::local;
use super::prepared::{self, Asked};
use super::queue::{Job, Worker};
use super::shared::Shared;
use super::{Ending, Grant};
use crate::engine::{Cell, Cells, Embedded, Engine, EngineError, Taken};
use crate::plan::{AMOUNT_MAX, Adjustment, Algorithm, Change, Limit, Refund};
use crate::telemetry::{Counter, names};

/// What is to be done about one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Due {
    /// Units to give back, at most what was taken.
    back: u64,
    /// Units to charge more.
    more: u64,
    /// Forget the counter, and do nothing else.
    reset: bool,
}

type Dues = SmallVec<[Due; 2]>;

/// Settles `grant`.
pub(super) fn settle(grant: &Grant, ending: Ending, adjustments: &[Adjustment]) {
    // No limit declares a refund for a request that completed.
    if ending == Ending::Completed && adjustments.is_empty() {
        return;
    }
    let limits = grant.plan.limits();
    let mut changes: Dues = limits
        .iter()
        .zip(&grant.charged)
        .map(|(limit, charged)| declared(limit, charged.is_some(), ending))
        .collect();
    if !adjustments.is_empty() {
        adjust(grant, adjustments, &mut changes);
    }
    if changes.iter().all(|change| *change == Due::default()) {
        return;
    }
    let (worker, jobs) = jobs(grant, &changes);
    for job in jobs {
        run(&grant.shared, &worker, job);
    }
}

/// Does `job` at once in memory; on Redis it is queued.
pub(super) fn run(shared: &Arc<Shared>, worker: &Arc<Worker>, job: Job) {
    match &*shared.engine {
        Engine::Embedded(embedded) => {
            let result = match &job {
                Job::GiveBack { cells, taken_at_us } => {
                    embedded.give_back(cells, *taken_at_us).map(|()| true)
                }
                Job::Charge { cells, algorithm } => charge_here(shared, embedded, cells, algorithm),
                Job::Reset(key) => {
                    embedded.reset(key);
                    Ok(true)
                }
            };
            Pending::new(shared, &job).end(result);
        }
        Engine::Redis(_) => queue(shared, worker, job),
    }
}

fn charge_here(
    shared: &Shared,
    embedded: &Embedded,
    cells: &Cells,
    algorithm: &Algorithm,
) -> Result<bool, EngineError> {
    let taken = embedded.take(cells)?;
    match asked_again(shared, cells, algorithm, &taken) {
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
    match asked_again(shared, cells, algorithm, &taken) {
        Some(cells) => shared.engine.take(&cells).await.map(|taken| taken.admitted),
        None => Ok(taken.admitted),
    }
}

/// The charge with numbers at the store's time, where that lay outside what its numbers were about
/// and nothing was decided.
fn asked_again(
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
fn declared(limit: &Limit, charged: bool, ending: Ending) -> Due {
    // A place in a concurrency limit is given back by itself, and a turn in a leaky bucket not at
    // all.
    if !limit.algorithm.settles() {
        return Due::default();
    }
    let refunds = match limit.refund {
        // `by-settle` gives back what the policy's adjustments say, and nothing by itself.
        Refund::Never | Refund::BySettle => false,
        Refund::Unsent => ending == Ending::Unsent,
        Refund::UpstreamError => matches!(ending, Ending::Unsent | Ending::UpstreamFailed),
    };
    Due { back: if refunds && charged { limit.cost } else { 0 }, ..Due::default() }
}

/// Adds the policy's own words to `changes`. What can't be done is counted as a policy's wrong
/// answer.
fn adjust(grant: &Grant, adjustments: &[Adjustment], changes: &mut Dues) {
    for adjustment in adjustments {
        let limits = grant.plan.limits();
        let place = limits.iter().position(|limit| limit.name == adjustment.limit);
        let named = place.and_then(|place| {
            Some((limits.get(place)?, grant.charged.get(place)?, changes.get_mut(place)?))
        });
        if let Err(why) = apply(adjustment.change, named) {
            grant.shared.metrics.count(names::POLICY_ERRORS, &[&grant.scope.policy, "answer"]);
            tracing::debug!(policy = grant.scope.policy, limit = adjustment.limit, change = %adjustment.change, why, "adjustment ignored");
        }
    }
}

fn apply(
    wanted: Change,
    limit: Option<(&Limit, &Option<u64>, &mut Due)>,
) -> Result<(), &'static str> {
    let (limit, charged, change) = limit.ok_or("the plan has no such limit")?;
    if !limit.algorithm.settles() {
        return Err("changes a place in flight or a turn, which are not counted");
    }
    let units = match wanted {
        Change::Reset if limit.refund != Refund::BySettle => {
            return Err("resets, but the limit's refund is not by-settle");
        }
        Change::Reset => {
            // What was taken goes with the counter, and what else was asked for would race with it.
            *change = Due { reset: true, ..Due::default() };
            return Ok(());
        }
        Change::Units(_) if change.reset => return Err("the limit is reset already"),
        Change::Units(units) => units,
    };
    if units.unsigned_abs() > AMOUNT_MAX {
        return Err("more than 2^31 units");
    }
    if units > 0 {
        change.more = (change.more + units.unsigned_abs()).min(AMOUNT_MAX);
    } else if limit.refund != Refund::BySettle {
        return Err("gives back, but the limit's refund is not by-settle");
    } else if charged.is_some() {
        change.back = (change.back + units.unsigned_abs()).min(limit.cost);
    }
    Ok(())
}

/// The calls that do `changes`: give-backs together where they were taken together, each charge and
/// each reset alone, so that one which does not fit holds back no other.
fn jobs(grant: &Grant, changes: &[Due]) -> (Arc<Worker>, Vec<Job>) {
    let Grant { shared, scope, plan, charged, member, .. } = grant;
    let worker = local::with(shared, |local| Arc::clone(local.worker()));
    let jobs = prepared::with(shared, scope, plan, |prepared| {
        let mut jobs = Vec::new();
        let due = plan
            .limits()
            .iter()
            .enumerate()
            .zip(changes)
            .map(|((place, limit), change)| (place, limit, change));
        let cell = |limit, place, cost, member, now_us| {
            prepared.cell(shared, scope, (limit, place), Asked { cost, member, now_us })
        };
        for ((place, limit, change), charged) in due.clone().zip(charged) {
            if let (1.., Some(taken_at_us)) = (change.back, charged) {
                give_back(
                    &mut jobs,
                    cell(limit, place, change.back, *member, *taken_at_us as i64),
                    *taken_at_us,
                );
            }
        }
        for (place, limit, change) in due.clone().filter(|(_, _, change)| change.more > 0) {
            if limit.algorithm.refuses_all() {
                shared.counters.charge_refused.inc();
                continue;
            }
            let cell =
                cell(limit, place, change.more, prepared.new_member(), prepared.now_us(shared));
            // Enforced, so that `admitted` says whether it fitted.
            let cells = Cells::from_iter([Cell { shadow: false, ..cell }]);
            jobs.push(Job::Charge { cells, algorithm: limit.algorithm.clone() });
        }
        for (place, limit, _) in due.filter(|(_, _, change)| change.reset) {
            jobs.push(Job::Reset(cell(limit, place, 0, 0, 0).key));
        }
        jobs
    });
    (worker, jobs)
}

/// Adds a give-back, to the call for what was taken with it where there is one.
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

/// Queues `job` and sees to it that a task will do it.
pub(super) fn queue(shared: &Arc<Shared>, worker: &Arc<Worker>, job: Job) {
    if !worker.push(job) {
        return;
    }
    let drainer = Drainer { shared: Arc::clone(shared), worker: Arc::clone(worker), ended: false };
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn(drainer.run())),
        // Outside a runtime nothing can be done now: it waits for the next task, or is counted as
        // dropped with its worker.
        Err(_) => drop(drainer),
    }
}

/// Does queued jobs, one after another, until there are none.
struct Drainer {
    shared: Arc<Shared>,
    worker: Arc<Worker>,
    ended: bool,
}

impl Drainer {
    async fn run(mut self) {
        while !self.ended {
            while let Some(job) = self.worker.pop() {
                let pending = Pending::new(&self.shared, &job);
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

/// A call under way: counted as failed unless it ends well, also when its runtime goes down around
/// it.
struct Pending {
    failed: Option<Counter>,
    refused: Counter,
}

impl Pending {
    fn new(shared: &Shared, job: &Job) -> Self {
        Self {
            failed: Some(shared.counters.failed.of(job).clone()),
            refused: shared.counters.charge_refused.clone(),
        }
    }

    /// `Ok(false)`: a charge that did not fit. Nothing was charged, and the limit is full or nearly
    /// so.
    fn end(mut self, result: Result<bool, EngineError>) {
        if let Ok(fitted) = result {
            self.failed = None;
            if !fitted {
                self.refused.inc();
            }
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(failed) = &self.failed {
            failed.inc();
        }
    }
}
