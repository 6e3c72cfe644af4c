//! From a plan to what came of it: builds the round, runs it, reads its outcome. Knows both engines, and no algorithm.
//!
//! The embedded engine answers at once, so its round runs inline and can't be dropped half-way. On Redis the round runs in a task of its own:
//! once something is sent, the outcome belongs to the limiter. hyper drops a handler in mid-take when its client goes; the task then runs to
//! its end, and a grant that nobody receives settles itself as [`Ending::Unsent`], because nothing reached the upstream.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::keys::PlanDigests;
use super::local::{self, KnownScope};
use super::queue::{Job, Worker};
use super::round::{Charged, Round, Step, Verdict};
use super::shared::Shared;
use super::{Ending, Grant, Scope, Take, failure, programs, settle};
use crate::clock::monotonic;
use crate::engine::{Cause, Cell, Embedded, Engine, EngineError, Key, Ran};
use crate::plan::{Enforcement, Limit, LimitOutcome, Outcome, Plan};

/// Too many takes are under way here: nothing was sent.
const OVERLOADED: EngineError = EngineError { cause: Cause::Timeout, ran: Ran::No };
/// The take's task was torn down with its runtime.
const CUT_OFF: EngineError = EngineError { cause: Cause::Timeout, ran: Ran::Unknown };

/// Charges all limits of `plan`, or none.
pub(super) async fn take(shared: &Arc<Shared>, scope: &Arc<Scope>, plan: &Arc<Plan>) -> Take {
    if plan.limits().iter().any(|limit| limit.enforcement == Enforcement::Enforce && programs::never_passes(&limit.algorithm)) {
        return refused_unasked(shared, scope, plan);
    }
    let receiver = match &*shared.engine {
        Engine::Embedded(embedded) => {
            let mut round = begin(shared, scope, plan);
            run_here(&mut round, embedded, shared);
            return finish(shared, scope, plan, &round);
        }
        Engine::Redis(_) => match send(shared, scope, plan, begin(shared, scope, plan)) {
            Ok(receiver) => receiver,
            Err(answer) => return answer,
        },
    };
    match receiver.await {
        Ok(delivery) => delivery.accept(),
        // Whether it charged is unknown, and it stands.
        Err(_) => finish(shared, scope, plan, &failed(begin(shared, scope, plan), CUT_OFF)),
    }
}

/// The round of `plan`, with each limit's cell under its tag. Limits that never pass (here only shadows) are not in it.
fn begin(shared: &Arc<Shared>, scope: &Arc<Scope>, plan: &Plan) -> Round {
    let mut round = Round::new();
    let mut digests = PlanDigests::new(&shared.digests);
    local::with(shared, |local| {
        local.scope(scope, |known| {
            for (limit, place) in plan.limits().iter().zip(0_u8..) {
                if !programs::never_passes(&limit.algorithm) {
                    round.add(cell(&mut digests, scope, known, limit, limit.cost), place, failure::denies(scope, limit));
                }
            }
        });
    });
    round
}

/// `limit`'s counter, with `cost` units to take from it or to give back.
pub(super) fn cell<'a>(digests: &mut PlanDigests<'a>, scope: &Scope, known: &mut KnownScope, limit: &'a Limit, cost: u64) -> Cell {
    let tag = digests.of(limit.tag_or_key());
    let key = digests.of(&limit.key);
    Cell {
        program: programs::program(&limit.algorithm),
        key: Key { tag, key, space: known.space(scope, &limit.name, &limit.algorithm) },
        unit_us: programs::unit_us(&limit.algorithm),
        shadow: limit.enforcement == Enforcement::Shadow,
        cost,
        numbers: programs::numbers(&limit.algorithm),
    }
}

fn run_here(round: &mut Round, embedded: &Embedded, shared: &Shared) {
    loop {
        match round.next() {
            Step::Take(cells) => {
                let answer = embedded.take(cells);
                round.took(answer);
            }
            Step::GiveBack(cells, taken_at_us) => {
                if embedded.give_back(cells, taken_at_us).is_err() {
                    shared.counters.failed.give_back.inc();
                }
            }
            Step::Done => return,
        }
    }
}

async fn run_on_redis(round: &mut Round, shared: &Arc<Shared>, worker: &Arc<Worker>) {
    // With one group the engine's own deadline, which is the same, is enough.
    let mut began = None;
    let several = round.groups() > 1;
    loop {
        match round.next() {
            Step::Take(cells) => {
                let answer = match began {
                    None => {
                        began = several.then(monotonic);
                        shared.engine.take(cells).await
                    }
                    // A later group has what is left of the whole decision's deadline.
                    Some(began) => shared.engine.take_within(cells, shared.deadline.saturating_sub(monotonic() - began)).await,
                };
                round.took(answer);
            }
            Step::GiveBack(cells, taken_at_us) => match shared.engine.give_back(cells, taken_at_us).await {
                Ok(()) => {}
                // It did not run: one more try, later. Otherwise it might be given back twice, so it stays taken: never over.
                Err(EngineError { ran: Ran::No, .. }) => settle::queue(shared, worker, Job::GiveBack { cells: cells.clone(), taken_at_us }),
                Err(EngineError { ran: Ran::Unknown, .. }) => shared.counters.failed.give_back.inc(),
            },
            Step::Done => return,
        }
    }
}

/// The round as it ends when no group can be asked.
fn failed(mut round: Round, error: EngineError) -> Round {
    while let Step::Take(_) = round.next() {
        round.took(Err(error));
    }
    round
}

/// Starts the round's task, or answers at once where nothing may be or need be asked.
fn send(shared: &Arc<Shared>, scope: &Arc<Scope>, plan: &Arc<Plan>, mut round: Round) -> Result<oneshot::Receiver<Delivery>, Take> {
    if round.groups() == 0 {
        return Err(finish(shared, scope, plan, &round));
    }
    let Some(under_way) = UnderWay::begin(shared) else {
        shared.counters.overload.inc();
        return Err(finish(shared, scope, plan, &failed(round, OVERLOADED)));
    };
    let (sender, receiver) = oneshot::channel();
    let (scope, plan) = (Arc::clone(scope), Arc::clone(plan));
    tokio::spawn(async move {
        run_on_redis(&mut round, &under_way.shared, &under_way.worker).await;
        let answer = finish(&under_way.shared, &scope, &plan, &round);
        // When the request is gone the answer comes back and is dropped here, before `under_way`: a drain sees it through.
        drop(sender.send(Delivery(Some(answer))));
        drop(under_way);
    });
    Ok(receiver)
}

/// A take that is under way counts against its worker's maximum, and whoever drains waits for it.
struct UnderWay {
    shared: Arc<Shared>,
    worker: Arc<Worker>,
}

impl UnderWay {
    fn begin(shared: &Arc<Shared>) -> Option<Self> {
        let worker = local::with(shared, |local| Arc::clone(local.worker()));
        worker.begin_take().then(|| Self { shared: Arc::clone(shared), worker })
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.worker.end_take();
        self.shared.done();
    }
}

/// An answer on its way to the request. Dropped before it arrives, it settles what it granted.
#[derive(Debug)]
struct Delivery(Option<Take>);

impl Delivery {
    fn accept(mut self) -> Take {
        self.0.take().unwrap_or(Take::Unavailable)
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if let Some(Take::Granted(_, grant)) = self.0.take() {
            grant.settle(Ending::Unsent, &[]);
        }
    }
}

/// What came of a round that is done.
fn finish(shared: &Arc<Shared>, scope: &Arc<Scope>, plan: &Arc<Plan>, round: &Round) -> Take {
    let verdict = round.verdict();
    if verdict == Verdict::Unavailable {
        return Take::Unavailable;
    }
    let limits = plan.limits();
    let mut outcome = Outcome { admitted: verdict == Verdict::Admitted, limits: limits.iter().map(untouched).collect() };
    let mut charged: Charged = SmallVec::from_elem(None, limits.len());
    round.report(limits, &mut outcome.limits, &mut charged);
    count(shared, scope, limits, &outcome);
    if outcome.admitted {
        let grant = Grant { shared: Arc::clone(shared), scope: Arc::clone(scope), plan: Arc::clone(plan), charged };
        Take::Granted(outcome, grant)
    } else {
        Take::Refused(outcome)
    }
}

/// An enforced limit of amount or burst 0 refuses whatever the counters say, so none is asked: to be blocked costs the store nothing. The
/// plan's other limits are shown with their whole allowance, as counters that nobody has touched.
fn refused_unasked(shared: &Arc<Shared>, scope: &Arc<Scope>, plan: &Plan) -> Take {
    let outcome = Outcome { admitted: false, limits: plan.limits().iter().map(untouched).collect() };
    count(shared, scope, plan.limits(), &outcome);
    Take::Refused(outcome)
}

/// What a limit answers when nothing was ever taken from it; with an amount or a burst of 0, what it answers always.
fn untouched(limit: &Limit) -> LimitOutcome {
    let capacity = if programs::never_passes(&limit.algorithm) { 0 } else { limit.algorithm.capacity() };
    LimitOutcome { fits: limit.cost.max(1) <= capacity, remaining: capacity, retry_after_us: None, reset_us: 0, degraded: false }
}

/// Counts refusals, what shadows would have refused, and a request that goes through uncounted.
fn count(shared: &Arc<Shared>, scope: &Arc<Scope>, limits: &[Limit], outcome: &Outcome) {
    if outcome.limits.iter().all(|limit| limit.fits && !limit.degraded) {
        return;
    }
    local::with(shared, |local| {
        local.scope(scope, |known| {
            let mut uncounted = false;
            for (limit, answer) in limits.iter().zip(&outcome.limits) {
                match limit.enforcement {
                    Enforcement::Shadow if !answer.fits => known.count_would_refuse(scope, &limit.name, &shared.metrics),
                    Enforcement::Shadow => {}
                    Enforcement::Enforce if !answer.fits => known.count_refused(scope, &limit.name, &shared.metrics),
                    Enforcement::Enforce => uncounted |= answer.degraded,
                }
            }
            if outcome.admitted && uncounted {
                known.count_degraded(scope, &shared.metrics);
            }
        });
    });
}
