//! From a plan to what came of it: runs its round and reads its outcome. Knows both engines, and no
//! algorithm.
//!
//! The embedded engine answers at once, so its round runs inline and can't be dropped half-way. On
//! Redis the round runs in a task of its own: once something is sent, the outcome belongs to the
//! limiter. hyper drops a handler in mid-take when its client goes; the task then runs to its end,
//! and a grant that nobody receives settles itself as [`Ending::Unsent`], because nothing reached
//! the upstream.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::leases::Held;
use super::local;
use super::prepared::{self, Asked, Moment, Prepared};
use super::queue::{Job, Waits, Worker};
use super::round::{Charged, Round, Step, Verdict};
use super::shared::Shared;
use super::{Ending, Grant, Scope, Take, settle};
use crate::clock::monotonic;
use crate::engine::{Cause, Embedded, Engine, EngineError, NUMBERS_MAX, Ran, Taken};
use crate::plan::{Enforcement, Limit, LimitOutcome, Outcome, Plan};

/// Too many takes are under way here: nothing was sent.
const OVERLOADED: EngineError = EngineError { cause: Cause::Timeout, ran: Ran::No };
/// The take's task was torn down with its runtime.
const CUT_OFF: EngineError = EngineError { cause: Cause::Timeout, ran: Ran::Unknown };

/// Of a decision's deadline, the part that each round of looks may last at most.
const LOOKS_SHARE: u32 = 2;

/// What looks answered, each with its group's place.
type Answers = SmallVec<[(usize, Result<Taken, EngineError>); 4]>;

/// Charges all limits of `plan`, or none.
pub(super) async fn take(shared: &Arc<Shared>, scope: &Arc<Scope>, plan: &Arc<Plan>) -> Take {
    let (receiver, place) = match &*shared.engine {
        Engine::Embedded(embedded) => {
            let (answer, place) = prepared::with(shared, scope, plan, |prepared| {
                if prepared.refuses {
                    return (refused_unasked(shared, scope, plan), None);
                }
                let (moment, place) = begin(shared, prepared);
                let mut round = prepared.round(shared, scope, plan.limits(), moment);
                run_here(&mut round, embedded, shared, plan);
                (finish(shared, scope, plan, prepared, &round, moment.member), place)
            });
            // Mostly nobody may wait, and an answer is large to hand on.
            return if place.is_none() {
                answer
            } else {
                wait(Delivery(Some(answer)), place).await
            };
        }
        Engine::Redis(_) => match send(shared, scope, plan) {
            Ok(sent) => sent,
            Err(answer) => return *answer,
        },
    };
    match receiver.await {
        Ok(delivery) => wait(delivery, place).await,
        // Whether it charged is unknown, and it stands.
        Err(_) => prepared::with(shared, scope, plan, |prepared| {
            failed(shared, scope, plan, prepared, CUT_OFF)
        }),
    }
}

/// Waits for the request's turn, on the monotonic clock. A request that goes away meanwhile frees
/// its place; its turn stays taken, since those behind it have been told theirs.
async fn wait(delivery: Delivery, place: Option<Waits>) -> Take {
    if let Some(Take::Granted(outcome, _)) = &delivery.0
        && outcome.delay_us() > 0
    {
        tokio::time::sleep(Duration::from_micros(outcome.delay_us())).await;
    }
    drop(place);
    delivery.accept()
}

/// The moment of a take, and a place to wait where it may have to.
fn begin(shared: &Arc<Shared>, prepared: &Prepared) -> (Moment, Option<Waits>) {
    let mut place = None;
    let moment = prepared.moment(shared, || {
        // Taken before it is known whether it is needed: many takes may be under way on Redis.
        place = local::with(shared, |local| local.worker().place(shared.waiting_max));
        place.is_some()
    });
    (moment, place)
}

/// The numbers of a plan's limit at the store's time.
fn numbers_at(shared: &Shared, plan: &Plan) -> impl Fn(usize, u64) -> Option<[i64; NUMBERS_MAX]> {
    |place, at_us| {
        plan.limits().get(place).map(|limit| shared.numbers(&limit.algorithm, at_us as i64))
    }
}

fn run_here(round: &mut Round<'_>, embedded: &Embedded, shared: &Shared, plan: &Plan) {
    loop {
        match round.next() {
            Step::Look => {
                let answers: Answers = round
                    .looks()
                    .into_iter()
                    .map(|(at, cells)| (at, embedded.look(cells)))
                    .collect();
                answers
                    .into_iter()
                    .for_each(|(at, answer)| round.looked(at, answer, numbers_at(shared, plan)));
            }
            Step::Take(cells) => {
                let answer = embedded.take(cells);
                round.took(answer, numbers_at(shared, plan));
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

async fn run_on_redis(
    round: &mut Round<'_>,
    shared: &Arc<Shared>,
    worker: &Arc<Worker>,
    plan: &Plan,
) {
    // With one call the engine's own deadline, which is the same, is enough.
    let mut began = None;
    let left = |began: &mut Option<_>| {
        let now = monotonic();
        shared.deadline.saturating_sub(now - *began.get_or_insert(now))
    };
    // More than one group, or one that may have to be asked again.
    let several =
        round.groups() > 1 || plan.limits().iter().any(|limit| limit.algorithm.is_dated());
    loop {
        match round.next() {
            Step::Look => {
                // A shard that does not answer must leave time for what the others are to be
                // charged.
                let left = left(&mut began).min(shared.deadline / LOOKS_SHARE);
                let looks = round
                    .looks()
                    .into_iter()
                    .map(async |(at, cells)| (at, shared.engine.look(cells, left).await));
                let answers = join_all(looks).await;
                answers
                    .into_iter()
                    .for_each(|(at, answer)| round.looked(at, answer, numbers_at(shared, plan)));
            }
            Step::Take(cells) => {
                let answer = if several {
                    // A later group has what is left of the whole decision's deadline.
                    shared.engine.take_within(cells, left(&mut began)).await
                } else {
                    shared.engine.take(cells).await
                };
                round.took(answer, numbers_at(shared, plan));
            }
            Step::GiveBack(cells, taken_at_us) => {
                match shared.engine.give_back(cells, taken_at_us).await {
                    Ok(()) => {}
                    // It did not run: one more try, later. Otherwise it might be given back twice,
                    // so it stays taken: never over.
                    Err(EngineError { ran: Ran::No, .. }) => settle::queue(
                        shared,
                        worker,
                        Job::GiveBack { cells: cells.clone(), taken_at_us },
                    ),
                    Err(EngineError { ran: Ran::Unknown, .. }) => {
                        shared.counters.failed.give_back.inc()
                    }
                }
            }
            Step::Done => return,
        }
    }
}

/// What a take comes to when no group can be asked.
fn failed(
    shared: &Arc<Shared>,
    scope: &Arc<Scope>,
    plan: &Arc<Plan>,
    prepared: &Prepared,
    error: EngineError,
) -> Take {
    let mut round = prepared.round(shared, scope, plan.limits(), Moment::default());
    loop {
        match round.next() {
            Step::Look => {
                let looks: SmallVec<[usize; 4]> =
                    round.looks().into_iter().map(|(at, _)| at).collect();
                looks.into_iter().for_each(|at| round.looked(at, Err(error), |_, _| None));
            }
            Step::Take(_) => round.took(Err(error), |_, _| None),
            Step::GiveBack(..) | Step::Done => break,
        }
    }
    finish(shared, scope, plan, prepared, &round, 0)
}

/// Starts the round's task, or answers at once where nothing may be or need be asked.
fn send(shared: &Arc<Shared>, scope: &Arc<Scope>, plan: &Arc<Plan>) -> Result<Sent, Box<Take>> {
    // The task's own: another take of the plan may come before it ends.
    let prepared = prepared::with(shared, scope, plan, Prepared::clone);
    if prepared.refuses {
        return Err(Box::new(refused_unasked(shared, scope, plan)));
    }
    let (moment, place) = begin(shared, &prepared);
    if prepared.calls.is_empty() {
        let round = prepared.round(shared, scope, plan.limits(), moment);
        return Err(Box::new(finish(shared, scope, plan, &prepared, &round, moment.member)));
    }
    let Some(under_way) = UnderWay::begin(shared) else {
        shared.counters.overload.inc();
        return Err(Box::new(failed(shared, scope, plan, &prepared, OVERLOADED)));
    };
    let (sender, receiver) = oneshot::channel();
    let (scope, plan) = (Arc::clone(scope), Arc::clone(plan));
    tokio::spawn(async move {
        let mut round = prepared.round(&under_way.shared, &scope, plan.limits(), moment);
        run_on_redis(&mut round, &under_way.shared, &under_way.worker, &plan).await;
        let answer = finish(&under_way.shared, &scope, &plan, &prepared, &round, moment.member);
        // When the request is gone the answer comes back and is dropped here, before `under_way`: a
        // drain sees it through.
        drop(sender.send(Delivery(Some(answer))));
        drop(under_way);
    });
    Ok((receiver, place))
}

/// A round's task: where its answer comes, and the request's place to wait.
type Sent = (oneshot::Receiver<Delivery>, Option<Waits>);

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
fn finish(
    shared: &Arc<Shared>,
    scope: &Arc<Scope>,
    plan: &Arc<Plan>,
    prepared: &Prepared,
    round: &Round<'_>,
    member: u128,
) -> Take {
    let verdict = round.verdict();
    if verdict == Verdict::Unavailable {
        return Take::Unavailable;
    }
    let limits = plan.limits();
    // The round tells of each limit that was asked. The others never pass: nothing is left of them.
    let mut outcome = Outcome {
        admitted: verdict == Verdict::Admitted,
        limits: vec![LimitOutcome::default(); limits.len()],
    };
    let mut charged: Charged = SmallVec::from_elem(None, limits.len());
    round.report(limits, &mut outcome.limits, &mut charged);
    count(shared, scope, limits, &outcome);
    if outcome.admitted {
        let held = hold(shared, scope, plan, prepared, &charged, member);
        let grant = Grant {
            shared: Arc::clone(shared),
            scope: Arc::clone(scope),
            plan: Arc::clone(plan),
            charged,
            member,
            _held: held,
        };
        Take::Granted(outcome, grant)
    } else {
        Take::Refused(outcome)
    }
}

/// The places that an admitted plan has in its concurrency limits.
fn hold(
    shared: &Arc<Shared>,
    scope: &Arc<Scope>,
    plan: &Plan,
    prepared: &Prepared,
    charged: &Charged,
    member: u128,
) -> Vec<Held> {
    if !prepared.named {
        return Vec::new();
    }
    let worker = local::with(shared, |local| Arc::clone(local.worker()));
    let limits = plan.limits().iter().enumerate().zip(charged);
    let held = limits.filter_map(|((place, limit), charged)| {
        if !limit.algorithm.holds() {
            return None;
        }
        let asked = Asked { cost: limit.cost, member, now_us: 0 };
        Some(Held::new(
            shared,
            &worker,
            prepared.cell(shared, scope, (limit, place), asked),
            (*charged)?,
        ))
    });
    held.collect()
}

/// An enforced limit of amount or burst 0 refuses whatever the counters say, so none is asked: to
/// be blocked costs the store nothing. The plan's other limits are shown with their whole
/// allowance, as counters that nobody has touched.
fn refused_unasked(shared: &Arc<Shared>, scope: &Arc<Scope>, plan: &Plan) -> Take {
    let outcome =
        Outcome { admitted: false, limits: plan.limits().iter().map(untouched).collect() };
    count(shared, scope, plan.limits(), &outcome);
    Take::Refused(outcome)
}

/// What a limit answers when nothing was ever taken from it; with an amount or a burst of 0, what
/// it answers always.
fn untouched(limit: &Limit) -> LimitOutcome {
    if limit.algorithm.refuses_all() {
        return LimitOutcome::default();
    }
    let fits = limit.algorithm.cost_max().is_none_or(|most| limit.cost.max(1) <= most);
    LimitOutcome {
        fits,
        remaining: limit.algorithm.capacity().unwrap_or(0),
        ..LimitOutcome::default()
    }
}

/// Counts refusals, what shadows would have refused, and a request that goes through uncounted.
fn count(shared: &Arc<Shared>, scope: &Arc<Scope>, limits: &[Limit], outcome: &Outcome) {
    if outcome.limits.iter().all(|limit| limit.fits && limit.unmeasured.is_none()) {
        return;
    }
    local::with(shared, |local| {
        local.scope(scope, |known| {
            for (limit, _) in limits.iter().zip(&outcome.limits).filter(|(_, it)| !it.fits) {
                match limit.enforcement {
                    Enforcement::Shadow => {
                        known.count_would_refuse(scope, &limit.name, &shared.metrics);
                    }
                    Enforcement::Enforce => {
                        known.count_refused(scope, &limit.name, &shared.metrics);
                    }
                }
            }
            if outcome.is_uncounted(limits) {
                known.count_degraded(scope, &shared.metrics);
            }
        });
    });
}
