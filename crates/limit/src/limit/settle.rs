//! Settles a grant when its request ends: gives back what the limits declare, and charges what a
//! policy adds.
//!
//! In memory this is done at once. On Redis the calls go through a bounded queue (`queue`) to tasks
//! of the same worker. Settling is best effort and errs on the strict side: calls that fail or are
//! dropped are counted, and none is repeated, because it may have run. Only the places of a
//! `concurrency` are given back again (`unknown`).

use std::sync::Arc;
use std::task::{Context, Waker};

use smallvec::SmallVec;

use super::local;
use super::prepared::{self, CellRequest};
use super::queue::{Job, Queued, Worker};
use super::round::GroupStore;
use super::shared::Shared;
use super::unknown;
use super::{Ending, Grant};
use crate::engine::{Cell, Cells, ChargeReply, Embedded, Engine, EngineError, Part, TakeReply};
use crate::plan::{AMOUNT_MAX, Adjustment, Algorithm, Change, Debt, Limit, Refund, Role};
use crate::telemetry::{Counter, names};

/// What to do for one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Settlement {
    /// Units to give back, at most what was taken.
    pub(super) give_back: u64,
    /// Units to charge in addition, if they fit.
    pub(super) charge: u64,
    /// Units to charge in addition, into debt if need be.
    pub(super) owe: u64,
    /// Delete the counter, and do nothing else.
    reset: bool,
}

/// One for each limit, in the plan's order. Empty if there is nothing to do.
pub(super) type Settlements = SmallVec<[Settlement; 2]>;

/// Settles `grant`. Returns what that was for each limit.
pub(super) fn settle(grant: &Grant, ending: Ending, adjustments: &[Adjustment]) -> Settlements {
    // No limit declares a refund for a request that completed.
    if ending == Ending::Completed && adjustments.is_empty() {
        return Settlements::new();
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
        return Settlements::new();
    }
    run_all(grant, &settlements);
    settlements
}

/// Settles a grant of which nothing came, and which no policy knows of: what only that could give
/// back is given back, too. Not by names: a plan that was joined may have a name twice.
pub(super) fn cancel(grant: &Grant) {
    let each = grant.plan.limits().iter().zip(&grant.charged);
    let settlements: Settlements = each
        .map(|(limit, charged)| {
            let ending = match limit.refund {
                Refund::BySettle => Ending::Withdrawn,
                _ => Ending::Unsent,
            };
            declared_refund(limit, charged.is_some(), ending)
        })
        .collect();
    run_all(grant, &settlements);
}

/// Gives back a part of what was taken of each limit.
pub(super) fn give_back_part(grant: &Grant, part: u64, whole: u64) {
    let share = |(limit, charged): (&Limit, &Option<u64>)| {
        let units = u128::from(limit.cost) * u128::from(part) / u128::from(whole.max(1));
        let units = u64::try_from(units).unwrap_or(u64::MAX).min(limit.cost);
        let is_possible = charged.is_some() && limit.algorithm.settles();
        Settlement { give_back: if is_possible { units } else { 0 }, ..Settlement::default() }
    };
    let settlements: Settlements =
        grant.plan.limits().iter().zip(&grant.charged).map(share).collect();
    run_all(grant, &settlements);
}

/// Carries out what is to be done for each limit of a grant.
fn run_all(grant: &Grant, settlements: &[Settlement]) {
    let (worker, jobs) = jobs(grant, settlements);
    for (place, owed, job) in jobs {
        match place {
            GroupStore::Store => run(&grant.shared, &worker, job),
            GroupStore::Local => {
                let charged = run_on(grant.shared.standby(), &grant.shared, &job);
                settle_ledger(&grant.shared, &worker, &job, (owed, charged));
            }
        }
    }
}

/// What is settled in this process is settled in what Redis will be charged, too, and on Redis if
/// it was charged there already. `charged` are the units that a charge came to. Without `owed`,
/// what is given back is none of what Redis will be charged: its take may have run there.
fn settle_ledger(
    shared: &Arc<Shared>,
    worker: &Arc<Worker>,
    job: &Job,
    (owed, charged): (bool, u64),
) {
    let ledger = &shared.ledger;
    match job {
        Job::GiveBack { .. } if !owed => {}
        Job::GiveBack { cells, .. } => {
            for (cell, taken_at_us) in
                cells.iter().filter_map(|cell| ledger.remove(&cell.key, cell.cost))
            {
                let cells = Cells::from_iter([cell]);
                queue(shared, worker, Job::GiveBack { cells, taken_at_us });
            }
        }
        Job::Charge { cells, algorithm, .. } => {
            // A charge has one cell.
            for cell in cells {
                shared.owe(algorithm, &Cell { cost: charged, ..cell.clone() });
            }
        }
        Job::Reset(key) => {
            if ledger.remove(key, u64::MAX).is_some() {
                queue(shared, worker, Job::Reset(key.clone()));
            }
        }
    }
}

/// Runs `job`: at once in memory, through the queue on Redis.
pub(super) fn run(shared: &Arc<Shared>, worker: &Arc<Worker>, job: Job) {
    match &*shared.engine {
        Engine::Embedded(embedded) => {
            run_on(embedded, shared, &job);
        }
        Engine::Redis(_) => queue(shared, worker, job),
    }
}

/// Runs `job` in memory. Returns the units that a charge came to.
fn run_on(embedded: &Embedded, shared: &Arc<Shared>, job: &Job) -> u64 {
    let result = match job {
        Job::GiveBack { cells, taken_at_us, .. } => {
            embedded.give_back(cells, *taken_at_us).map(|()| (SettleResult::Wholly, 0))
        }
        Job::Charge { cells, algorithm, owes } => {
            charge_embedded(shared, embedded, cells, algorithm, *owes)
        }
        Job::Reset(key) => {
            embedded.reset(key);
            Ok((SettleResult::Wholly, 0))
        }
    };
    PendingCall::new(shared, job).end(result.map(|(settled, _)| settled));
    result.map_or(0, |(_, units)| units)
}

/// The result of a settling call that the store answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SettleResult {
    /// Nothing was left out.
    Wholly,
    /// A charge that must fit did not, and nothing was charged.
    Refused,
    /// The debt had no room for a part of the charge.
    DebtFull,
}

/// The answer to a charge.
enum Answer {
    /// The store settled; with the units that were charged.
    Settled(SettleResult, u64),
    /// The store's time lay outside the periods that the cells' numbers name, so nothing was
    /// decided.
    Outside { at_us: u64 },
}

impl Answer {
    fn of_take(cells: &Cells, taken: &TakeReply) -> Self {
        if taken.cells.iter().any(|reply| reply.outside) {
            return Self::Outside { at_us: taken.at_us };
        }
        if !taken.admitted {
            return Self::Settled(SettleResult::Refused, 0);
        }
        Self::Settled(SettleResult::Wholly, cells.iter().map(|cell| cell.cost).sum())
    }

    fn of_charge(cells: &Cells, charged: &ChargeReply) -> Self {
        if charged.units.contains(&None) {
            return Self::Outside { at_us: charged.at_us };
        }
        let wholly =
            cells.iter().zip(&charged.units).all(|(cell, units)| *units == Some(cell.cost));
        let units = charged.units.iter().flatten().sum();
        Self::Settled(if wholly { SettleResult::Wholly } else { SettleResult::DebtFull }, units)
    }
}

fn charge_embedded(
    shared: &Shared,
    embedded: &Embedded,
    cells: &Cells,
    algorithm: &Algorithm,
    owes: bool,
) -> Result<(SettleResult, u64), EngineError> {
    let call = |cells: &Cells| {
        if owes {
            embedded.charge(cells).map(|charged| Answer::of_charge(cells, &charged))
        } else {
            embedded.take(cells).map(|taken| Answer::of_take(cells, &taken))
        }
    };
    match call(cells)? {
        Answer::Settled(settled, units) => Ok((settled, units)),
        Answer::Outside { at_us } => call(&cells_at(shared, cells, algorithm, at_us)).map(at_last),
    }
}

async fn charge(
    shared: &Shared,
    cells: &Cells,
    algorithm: &Algorithm,
    owes: bool,
) -> Result<SettleResult, EngineError> {
    let call = async |cells: &Cells| {
        if owes {
            let charged = shared.engine.charge(cells).await?;
            Ok::<_, EngineError>(Answer::of_charge(cells, &charged))
        } else {
            shared.engine.take(cells).await.map(|taken| Answer::of_take(cells, &taken))
        }
    };
    match call(cells).await? {
        Answer::Settled(settled, _) => Ok(settled),
        Answer::Outside { at_us } => {
            let second = call(&cells_at(shared, cells, algorithm, at_us)).await;
            second.map(|answer| at_last(answer).0)
        }
    }
}

/// The cells for a second try, with the numbers of the store's time.
fn cells_at(shared: &Shared, cells: &Cells, algorithm: &Algorithm, at_us: u64) -> Cells {
    let numbers = shared.numbers(algorithm, at_us as i64);
    cells.iter().map(|cell| Cell { numbers, ..cell.clone() }).collect()
}

/// The second try's result. It can only be outside again if a clock stepped in between.
fn at_last(answer: Answer) -> (SettleResult, u64) {
    match answer {
        Answer::Settled(settled, units) => (settled, units),
        Answer::Outside { .. } => (SettleResult::Refused, 0),
    }
}

/// What the limit's `refund` gives back for `ending`.
fn declared_refund(limit: &Limit, charged: bool, ending: Ending) -> Settlement {
    // A lease ends with its guard, and a turn in a leaky bucket is never given back.
    if !limit.algorithm.settles() {
        return Settlement::default();
    }
    let refunds = match limit.refund {
        _ if ending == Ending::Withdrawn => true,
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

/// Adds the policy's adjustments to `settlements`. One that is not allowed is ignored, counted as a
/// wrong answer of the policy, and logged, at most one a second.
fn adjust(grant: &Grant, adjustments: &[Adjustment], settlements: &mut Settlements) {
    for adjustment in adjustments {
        let limits = grant.plan.limits();
        let index = limits.iter().position(|limit| limit.name == adjustment.limit);
        let limit = index.and_then(|index| {
            Some((limits.get(index)?, grant.charged.get(index)?, settlements.get_mut(index)?))
        });
        if let Err(why) = apply(adjustment.change, limit) {
            grant.shared.metrics.count(names::POLICY_ERRORS, &[&grant.scope.policy, "answer"]);
            if let Some(held_back) = grant.shared.ignored.due() {
                tracing::warn!(policy = grant.scope.policy, limit = adjustment.limit, change = %adjustment.change, why, held_back, "adjustment ignored");
            }
        }
    }
}

fn apply(
    requested: Change,
    limit: Option<(&Limit, &Option<u64>, &mut Settlement)>,
) -> Result<(), &'static str> {
    let (limit, charged, settlement) = limit.ok_or("the plan has no such limit")?;
    if !limit.algorithm.settles() {
        return Err("a concurrency or leaky_bucket limit can't be adjusted");
    }
    if requested.units() > AMOUNT_MAX {
        return Err("more than 2^52 units");
    }
    let owes = matches!(limit.role, Role::Assured | Role::Parent);
    let requested = match requested {
        // Nothing refuses what a child's assured limit and its parent are charged at the end, and
        // the first only has a part in what it was charged at the beginning.
        Change::Units(1..) | Change::Debt(_)
            if limit.role == Role::Assured && charged.is_none() =>
        {
            return Ok(());
        }
        Change::Units(units @ 1..) if owes => Change::Debt(units.unsigned_abs()),
        other => other,
    };
    let units = match requested {
        Change::Reset if limit.refund != Refund::BySettle => {
            return Err("a reset needs `refund = \"by_settle\"` on the limit");
        }
        Change::Reset => {
            // What was taken is deleted with the counter. Other changes would race with that.
            *settlement = Settlement { reset: true, ..Settlement::default() };
            return Ok(());
        }
        Change::Units(_) | Change::Debt(_) if settlement.reset => {
            return Err("the limit is reset already");
        }
        Change::Debt(_) if limit.algorithm.debt() == Debt::None && !owes => {
            return Err("a charge into debt needs a `debt` on the limit");
        }
        Change::Debt(units) => {
            settlement.owe = (settlement.owe + units).min(AMOUNT_MAX);
            return Ok(());
        }
        Change::Units(units) => units,
    };
    if units > 0 {
        settlement.charge = (settlement.charge + units.unsigned_abs()).min(AMOUNT_MAX);
    } else if limit.refund != Refund::BySettle {
        return Err("giving back needs `refund = \"by_settle\"` on the limit");
    } else if charged.is_some() {
        settlement.give_back = (settlement.give_back + units.unsigned_abs()).min(limit.cost);
    }
    Ok(())
}

/// The calls for `settlements`. Give-backs of one take share a call. Each charge and each reset is
/// a call of its own, so that a charge which does not fit does not prevent the others. What was
/// counted in this process is settled there.
fn jobs(grant: &Grant, settlements: &[Settlement]) -> (Arc<Worker>, Jobs) {
    let Grant { shared, scope, plan, charged, local, owed, member, leased, .. } = grant;
    let place = |index| if local.contains(index) { GroupStore::Local } else { GroupStore::Store };
    let worker = local::with(shared, |local| Arc::clone(local.worker()));
    let jobs = prepared::with(shared, scope, plan, |prepared| {
        let mut jobs = Jobs::new();
        let settled = plan
            .limits()
            .iter()
            .enumerate()
            .zip(settlements)
            .map(|((index, limit), settlement)| (index, limit, settlement));
        let cell = |limit: &Limit, index, cost, member, now_us| {
            let request = CellRequest { cost, member, now_us };
            let mut cell = prepared.cell(shared, scope, (limit, index), request);
            if local.contains(index) {
                cell.numbers = shared.local_numbers(limit).unwrap_or(cell.numbers);
            }
            cell
        };
        for ((index, limit, settlement), charged) in settled.clone().zip(charged) {
            if let (1.., Some(taken_at_us)) = (settlement.give_back, charged) {
                if let Some((_, units)) = leased.iter().find(|(at, _)| *at == index) {
                    units.give_back(settlement.give_back);
                    continue;
                }
                let cell = cell(limit, index, settlement.give_back, *member, *taken_at_us as i64);
                if limit.refund == Refund::Never {
                    // Its refusals may be remembered: nothing said that units come back.
                    prepared.note_given_back(shared);
                }
                let at = (place(index), owed.contains(index));
                give_back(&mut jobs, at, cell, *taken_at_us);
            }
        }
        let charges = settled.clone().flat_map(|(index, limit, settlement)| {
            [(settlement.charge, false), (settlement.owe, true)]
                .map(|(units, owes)| (index, limit, units, owes))
        });
        for (index, limit, units, owes) in charges.filter(|(_, _, units, _)| *units > 0) {
            if limit.algorithm.refuses_all() {
                shared.counters.charge_refused.inc();
                continue;
            }
            let (member, now_us) = (prepared.new_member(), prepared.now_us(shared));
            let cell = cell(limit, index, units, member, now_us);
            // Enforced, so that `admitted` says whether it fitted.
            let cells = Cells::from_iter([Cell { shadow: false, part: Part::Alone, ..cell }]);
            let algorithm = shared.counting(limit).into_owned();
            let job = Job::Charge { cells, algorithm, owes };
            jobs.push((place(index), true, job));
        }
        for (index, limit, _) in settled.filter(|(_, _, settlement)| settlement.reset) {
            jobs.push((place(index), true, Job::Reset(cell(limit, index, 0, 0, 0).key)));
        }
        jobs
    });
    (worker, jobs)
}

/// Where each job runs, whether Redis will be charged what it settles, and the job.
type Jobs = Vec<(GroupStore, bool, Job)>;

/// Adds a give-back: to an existing call of the same take and tag if there is one.
fn give_back(jobs: &mut Jobs, (place, owed): (GroupStore, bool), cell: Cell, taken_at_us: u64) {
    let same = |job: &&mut (GroupStore, bool, Job)| {
        matches!(&job.2, Job::GiveBack { cells, taken_at_us: at, .. } if *at == taken_at_us
            && (job.0, job.1) == (place, owed)
            && cells.first().is_some_and(|first| first.key.tag == cell.key.tag))
    };
    match jobs.iter_mut().find(same) {
        Some((_, _, Job::GiveBack { cells, .. })) => cells.push(cell),
        _ => {
            let cells = Cells::from_iter([cell]);
            jobs.push((place, owed, Job::GiveBack { cells, taken_at_us }));
        }
    }
}

/// Queues `job`, and spawns a task for the queue if fewer than the maximum are running.
pub(super) fn queue(shared: &Arc<Shared>, worker: &Arc<Worker>, job: Job) {
    let Queued { needs_drainer, dropped } = worker.push(job);
    if let Some(Job::GiveBack { cells, .. }) = dropped {
        // Permits would count for long.
        unknown::give_back(shared, worker, &cells);
    }
    if !needs_drainer {
        return;
    }
    let drainer = Drainer { shared: Arc::clone(shared), worker: Arc::clone(worker), ended: false };
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => {
            // Its first call is sent now, and so before that of a take that follows.
            let mut run = Box::pin(drainer.run());
            if run.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                runtime.spawn(run);
            }
        }
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
                    Job::GiveBack { cells, taken_at_us, .. } => {
                        let given = self.shared.engine.give_back(cells, *taken_at_us).await;
                        given.map(|()| SettleResult::Wholly)
                    }
                    Job::Charge { cells, algorithm, owes } => {
                        charge(&self.shared, cells, algorithm, *owes).await
                    }
                    Job::Reset(key) => {
                        self.shared.engine.reset(key).await.map(|()| SettleResult::Wholly)
                    }
                };
                let failed = result.is_err();
                pending.end(result);
                if let Job::GiveBack { cells, .. } = &job
                    && failed
                {
                    // Places have names that are used once, so that they can go back twice. Others
                    // may have gone back.
                    unknown::give_back(&self.shared, &self.worker, cells);
                }
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

/// A call in flight. Counted as failed unless it succeeds, even if its task is dropped with the
/// runtime.
struct PendingCall {
    failed: Option<Counter>,
    refused: Counter,
    debt_full: Counter,
}

impl PendingCall {
    fn new(shared: &Shared, job: &Job) -> Self {
        Self {
            failed: Some(shared.counters.failed.of(job).clone()),
            refused: shared.counters.charge_refused.clone(),
            debt_full: shared.counters.debt_full.clone(),
        }
    }

    fn end(mut self, result: Result<SettleResult, EngineError>) {
        let Ok(settled) = result else { return };
        self.failed = None;
        match settled {
            SettleResult::Wholly => {}
            SettleResult::Refused => self.refused.inc(),
            SettleResult::DebtFull => self.debt_full.inc(),
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
