//! Runs a round's calls, on the embedded engine or on Redis, and those that are counted in this
//! process because a shard is away.

use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use smallvec::SmallVec;

use super::queue::{Job, Worker};
use super::round::{GroupStore, Numbers, Round, Step};
use super::shared::Shared;
use super::{hand_back, settle, unknown};
use crate::clock::monotonic;
use crate::engine::{Cells, Embedded, Engine, EngineError, Execution, NUMBERS_MAX, TakeReply};
use crate::plan::Plan;

/// Looks may use at most the decision's deadline divided by this, each time they are made.
const LOOKS_SHARE: u32 = 2;

/// The answers of several groups, each with its group's index.
type Answers = SmallVec<[(usize, Result<TakeReply, EngineError>); 4]>;

/// Computes the numbers of a plan's limits.
pub(super) struct PlanNumbers<'a> {
    pub(super) shared: &'a Shared,
    pub(super) plan: &'a Plan,
}

impl Numbers for PlanNumbers<'_> {
    fn at(&self, index: usize, at_us: u64) -> Option<[i64; NUMBERS_MAX]> {
        let limit = self.plan.limits().get(index)?;
        Some(self.shared.numbers(&self.shared.counting(limit), at_us as i64))
    }

    fn local(&self, index: usize) -> Option<[i64; NUMBERS_MAX]> {
        self.shared.local_numbers(self.plan.limits().get(index)?)
    }
}

/// Runs a round of one that began at `began`.
pub(super) async fn run(
    round: &mut Round<'_>,
    shared: &Arc<Shared>,
    worker: &Arc<Worker>,
    plan: &Plan,
    began: Instant,
) {
    match &*shared.engine {
        Engine::Embedded(embedded) => run_embedded(round, embedded, shared, plan),
        Engine::Redis(_) => run_on_redis(round, shared, worker, plan, Some(began)).await,
    }
}

/// Runs a round in memory.
pub(super) fn run_embedded(
    round: &mut Round<'_>,
    embedded: &Embedded,
    shared: &Shared,
    plan: &Plan,
) {
    run_at_once(round, embedded, &PlanNumbers { shared, plan }, None);
}

/// Runs a round of which no step waits: on `embedded`, or, if the store has failed with `failure`,
/// those steps on it that are counted in this process.
pub(super) fn run_at_once(
    round: &mut Round<'_>,
    embedded: &Embedded,
    numbers: &PlanNumbers<'_>,
    failure: Option<EngineError>,
) {
    let failed = |place| failure.filter(|_| place == GroupStore::Store).map_or(Ok(()), Err);
    loop {
        match round.next() {
            Step::Look => {
                let looks = round.due().into_iter();
                let answers: Answers = looks
                    .map(|(at, cells, place)| {
                        (at, failed(place).and_then(|()| embedded.look(cells)))
                    })
                    .collect();
                answers.into_iter().for_each(|(at, answer)| round.looked(at, answer, numbers));
            }
            Step::TakeAll => {
                let takes = round.due().into_iter();
                let answers: Answers = takes
                    .map(|(at, cells, place)| {
                        (at, failed(place).and_then(|()| embedded.take(cells)))
                    })
                    .collect();
                answers.into_iter().for_each(|(at, answer)| round.took_at(at, answer, numbers));
            }
            Step::Take(cells, place) => {
                let answer = failed(place).and_then(|()| embedded.take(cells));
                round.took(answer, numbers);
            }
            Step::GiveBack(cells, taken_at_us, _) => {
                if embedded.give_back(cells, taken_at_us).is_err() {
                    numbers.shared.counters.failed.give_back.inc();
                }
            }
            Step::Done => return,
        }
    }
}

/// Runs a round on Redis. `began` is when its decision began, if that is not now.
pub(super) async fn run_on_redis(
    round: &mut Round<'_>,
    shared: &Arc<Shared>,
    worker: &Arc<Worker>,
    plan: &Plan,
    mut began: Option<Instant>,
) {
    // With a single call the engine's own deadline is enough: it is the same.
    let left = |began: &mut Option<_>| {
        let now = monotonic();
        shared.deadline.saturating_sub(now - *began.get_or_insert(now))
    };
    // More than one group, or one that may have to be called twice, or some time has passed.
    let several = began.is_some()
        || round.groups() > 1
        || plan.limits().iter().any(|limit| limit.algorithm.is_dated());
    let numbers = &PlanNumbers { shared, plan };
    loop {
        match round.next() {
            Step::Look => {
                // A shard that does not answer must leave time to charge the others.
                let left = left(&mut began).min(shared.deadline / LOOKS_SHARE);
                let looks = round.due().into_iter().map(async |(at, cells, place)| {
                    let answer = match place {
                        GroupStore::Store => shared.engine.look(cells, left).await,
                        GroupStore::Local => shared.standby().look(cells),
                    };
                    (at, answer)
                });
                let answers = join_all(looks).await;
                answers.into_iter().for_each(|(at, answer)| round.looked(at, answer, numbers));
            }
            Step::TakeAll => {
                let left = left(&mut began);
                let takes = round.due().into_iter().map(async |(at, cells, place)| {
                    let answer = match place {
                        GroupStore::Store => shared.engine.take_within(cells, left).await,
                        GroupStore::Local => shared.standby().take(cells),
                    };
                    follow_up(shared, worker, (cells, place), &answer);
                    (at, answer)
                });
                let answers = join_all(takes).await;
                answers.into_iter().for_each(|(at, answer)| round.took_at(at, answer, numbers));
            }
            Step::Take(cells, place) => {
                let answer = match place {
                    GroupStore::Local => shared.standby().take(cells),
                    // Later groups get the rest of the whole decision's deadline.
                    GroupStore::Store if several => {
                        shared.engine.take_within(cells, left(&mut began)).await
                    }
                    GroupStore::Store => shared.engine.take(cells).await,
                };
                follow_up(shared, worker, (cells, place), &answer);
                round.took(answer, numbers);
            }
            Step::GiveBack(cells, taken_at_us, GroupStore::Local) => {
                if shared.standby().give_back(cells, taken_at_us).is_err() {
                    shared.counters.failed.give_back.inc();
                }
            }
            Step::GiveBack(cells, taken_at_us, GroupStore::Store) => {
                match shared.engine.give_back(cells, taken_at_us).await {
                    Ok(()) => {}
                    // It did not run: try once more, later.
                    Err(EngineError { ran: Execution::No, .. }) => settle::queue(
                        shared,
                        worker,
                        Job::GiveBack { cells: cells.clone(), taken_at_us },
                    ),
                    // It may have run. A second give-back could admit too much, so what it was
                    // about stays taken, apart from permits, which have names.
                    Err(EngineError { ran: Execution::Unknown, .. }) => {
                        shared.counters.failed.give_back.inc();
                        unknown::give_back(shared, worker, cells);
                    }
                }
            }
            Step::Done => return,
        }
    }
}

/// Begins what follows from the answer to a take.
fn follow_up(
    shared: &Arc<Shared>,
    worker: &Arc<Worker>,
    (cells, place): (&Cells, GroupStore),
    answer: &Result<TakeReply, EngineError>,
) {
    match answer {
        Ok(_) if place == GroupStore::Store => hand_back::start(shared),
        Err(EngineError { ran: Execution::Unknown, .. }) => {
            unknown::give_back(shared, worker, cells);
        }
        Ok(_) | Err(_) => {}
    }
}
