//! Runs a plan's round and builds its outcome. Knows both engines, but no algorithm.
//!
//! The embedded engine answers at once, so its round runs inline and can't be dropped half-way. On
//! Redis the round is [`DetachOnDrop`], so that a call which was sent is always followed up. A
//! request may be dropped in the middle of a take, when its client disconnects. The round then runs
//! to completion in a task, and the unclaimed grant is cancelled, because nothing reached the
//! upstream.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::runtime::Handle;

use super::held::Hold;
use super::keys::Identities;
use super::leased::{self, Acquired, Acquiring, LeasedPart};
use super::leases::{self, LeaseGuard};
use super::prepared::{self, CellRequest, PreparedPlan, TakeContext};
use super::queue::{Job, WaitPermit, Worker};
use super::round::{Calls, ChargeTimes, GroupStore, LimitSet, Numbers, Round, RoundResult, Step};
use super::shared::Shared;
use super::{Grant, Scope, Take, settle};
use super::{hand_back, held, local};
use crate::clock::monotonic;
use crate::engine::{Cause, Embedded, Engine, EngineError, Execution, NUMBERS_MAX, TakeReply};
use crate::plan::{Enforcement, Limit, LimitOutcome, OnStoreError, Plan, PlanOutcome, Role};
use crate::telemetry::Label as _;

/// Too many takes are in flight on this worker: nothing was sent.
const OVERLOADED: EngineError = EngineError { cause: Cause::Overload, ran: Execution::No };

/// Looks may use at most the decision's deadline divided by this, each time they are made.
const LOOKS_SHARE: u32 = 2;

/// The answers to looks, each with its group's index.
type LookAnswers = SmallVec<[(usize, Result<TakeReply, EngineError>); 4]>;

/// Charges all limits of `plan`, or none. `identities` gets what each of them counts under.
pub(super) async fn take(
    shared: &Arc<Shared>,
    scope: &Arc<Scope>,
    plan: &Arc<Plan>,
    identities: Option<&mut Identities>,
) -> Take {
    let identify = |prepared: &PreparedPlan| {
        if let Some(identities) = identities {
            *identities = Identities::from_slice(&prepared.identities);
        }
    };
    match &*shared.engine {
        Engine::Embedded(embedded) => {
            let (answer, permit) = prepared::with(shared, scope, plan, |prepared| {
                identify(prepared);
                if prepared.always_refuses {
                    return (refused_without_call(shared, scope, plan), None);
                }
                let (context, permit) = begin(shared, prepared);
                let mut round = prepared.round(shared, scope, plan.limits(), context);
                run_embedded(&mut round, embedded, shared, plan);
                let leased = LeasedPart::default();
                (finish(shared, scope, plan, prepared, (&round, leased), context.member), permit)
            });
            // The common case without a wait: avoids moving the large answer once more.
            if permit.is_none() || !shared.clock.waits() {
                answer
            } else {
                wait(SettleOnDrop(Some(answer)), permit).await
            }
        }
        Engine::Redis(_) => match begin_round(shared, scope, plan, identify) {
            Ok((round, permit)) => {
                let (answer, in_flight) = round.await;
                drop(in_flight);
                wait(answer, permit).await
            }
            Err(answer) => *answer,
        },
    }
}

/// Waits as long as the leaky bucket says, on the monotonic clock. A request that is dropped during
/// the wait frees its wait permit. Its slot in the bucket stays taken, because later requests were
/// already given their own delays.
async fn wait(answer: SettleOnDrop, permit: Option<WaitPermit>) -> Take {
    if let Some(Take::Granted(outcome, _)) = &answer.0
        && outcome.delay_us() > 0
    {
        tokio::time::sleep(Duration::from_micros(outcome.delay_us())).await;
    }
    drop(permit);
    answer.accept()
}

/// The context of a take, with a wait permit if the request may have to wait.
fn begin(shared: &Arc<Shared>, prepared: &PreparedPlan) -> (TakeContext, Option<WaitPermit>) {
    let mut permit = None;
    let context = prepared.context(shared, || {
        // Acquired before it is known whether the request must wait: many takes may be in flight
        // on Redis.
        permit = local::with(shared, |local| local.worker().wait_permit(shared.waiting_max));
        permit.is_some()
    });
    (context, permit)
}

/// Computes the numbers of a plan's limits.
struct PlanNumbers<'a> {
    shared: &'a Shared,
    plan: &'a Plan,
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

fn run_embedded(round: &mut Round<'_>, embedded: &Embedded, shared: &Shared, plan: &Plan) {
    run_at_once(round, embedded, &PlanNumbers { shared, plan }, None);
}

/// Runs a round of which no step waits: on `embedded`, or, if the store has failed with `failure`,
/// those steps on it that are counted in this process.
fn run_at_once(
    round: &mut Round<'_>,
    embedded: &Embedded,
    numbers: &PlanNumbers<'_>,
    failure: Option<EngineError>,
) {
    let failed = |place| failure.filter(|_| place == GroupStore::Store).map_or(Ok(()), Err);
    loop {
        match round.next() {
            Step::Look => {
                let looks = round.looks().into_iter();
                let answers: LookAnswers = looks
                    .map(|(at, cells, place)| {
                        (at, failed(place).and_then(|()| embedded.look(cells)))
                    })
                    .collect();
                answers.into_iter().for_each(|(at, answer)| round.looked(at, answer, numbers));
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

async fn run_on_redis(
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
                let looks = round.looks().into_iter().map(async |(at, cells, place)| {
                    let answer = match place {
                        GroupStore::Store => shared.engine.look(cells, left).await,
                        GroupStore::Local => shared.standby().look(cells),
                    };
                    (at, answer)
                });
                let answers = join_all(looks).await;
                answers.into_iter().for_each(|(at, answer)| round.looked(at, answer, numbers));
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
                match answer {
                    Ok(_) if place == GroupStore::Store => hand_back::start(shared),
                    Err(EngineError { ran: Execution::Unknown, .. }) => {
                        leases::give_back_unknown(shared, worker, cells);
                    }
                    Ok(_) | Err(_) => {}
                }
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
                    // It may have run. A second give-back could admit too much, so it stays taken.
                    Err(EngineError { ran: Execution::Unknown, .. }) => {
                        shared.counters.failed.give_back.inc()
                    }
                }
            }
            Step::Done => return,
        }
    }
}

/// The result of a take when the store can't be called.
fn failed(
    shared: &Arc<Shared>,
    scope: &Arc<Scope>,
    plan: &Arc<Plan>,
    prepared: &PreparedPlan,
    context: TakeContext,
    error: EngineError,
) -> Take {
    let mut round = prepared.round(shared, scope, plan.limits(), context);
    run_at_once(&mut round, shared.standby(), &PlanNumbers { shared, plan }, Some(error));
    finish(shared, scope, plan, prepared, (&round, LeasedPart::default()), context.member)
}

/// A round on Redis, or the answer if no call is needed or allowed.
fn begin_round(
    shared: &Arc<Shared>,
    scope: &Arc<Scope>,
    plan: &Arc<Plan>,
    identify: impl FnOnce(&PreparedPlan),
) -> Result<
    StartedRound<impl Future<Output = (SettleOnDrop, InFlightTake)> + Send + 'static>,
    Box<Take>,
> {
    // A copy for the round: the plan may be taken again before it ends. A remembered refusal needs
    // none, nor do units at hand.
    let prepared = prepared::with(shared, scope, plan, |prepared| {
        identify(prepared);
        if let Some(outcome) = remembered_refusal(shared, prepared, plan.limits()) {
            count(shared, scope, plan.limits(), &outcome);
            return Err(Box::new(Take::Refused(outcome)));
        }
        let acquiring = match (plan.limits(), &*prepared.leased) {
            ([limit], [(_, spec)]) => Some(leased::acquire(shared, spec, limit.cost)),
            _ => None,
        };
        match acquiring {
            Some(Acquiring::Done(Acquired::Units(units))) => {
                let (none, leased) = (Calls::default(), LeasedPart::of(0, units));
                let round = Round::new(&none, |_| None, |_| OnStoreError::Deny);
                Err(Box::new(finish(shared, scope, plan, prepared, (&round, leased), 0)))
            }
            acquiring => Ok((prepared.clone(), acquiring)),
        }
    });
    let (prepared, acquiring) = prepared?;
    if prepared.always_refuses {
        return Err(Box::new(refused_without_call(shared, scope, plan)));
    }
    let (context, permit) = begin(shared, &prepared);
    if prepared.calls.is_empty() {
        let round = prepared.round(shared, scope, plan.limits(), context);
        let decided = (&round, LeasedPart::default());
        return Err(Box::new(finish(shared, scope, plan, &prepared, decided, context.member)));
    }
    let Some(in_flight) = InFlightTake::begin(shared) else {
        shared.counters.overload.inc();
        return Err(Box::new(failed(shared, scope, plan, &prepared, context, OVERLOADED)));
    };
    let (scope, plan) = (Arc::clone(scope), Arc::clone(plan));
    let round = async move {
        let from = prepared.may_hold_refusal.then(monotonic);
        let answer = if prepared.leased.is_empty() {
            let mut round = prepared.round(&in_flight.shared, &scope, plan.limits(), context);
            run_on_redis(&mut round, &in_flight.shared, &in_flight.worker, &plan, None).await;
            let decided = (&round, LeasedPart::default());
            finish(&in_flight.shared, &scope, &plan, &prepared, decided, context.member)
        } else {
            take_leased(&in_flight, (&scope, &plan), &prepared, context, acquiring).await
        };
        if let (Take::Refused(outcome), Some(from)) = (&answer, from) {
            remember_refusal(&in_flight.shared, &prepared, plan.limits(), outcome, from);
        }
        // Dropped in this order where the request is gone: a drain waits for the settling.
        (SettleOnDrop(Some(answer)), in_flight)
    };
    Ok((DetachOnDrop::new(round), permit))
}

/// Takes a plan of which some limits are leased: first what is leased, and with that the others.
/// `first` is what became of the first leased limit, if it was asked for before.
async fn take_leased(
    InFlightTake { shared, worker }: &InFlightTake,
    (scope, plan): (&Arc<Scope>, &Arc<Plan>),
    prepared: &PreparedPlan,
    context: TakeContext,
    mut first: Option<Acquiring>,
) -> Take {
    let (from, limits) = (monotonic(), plan.limits());
    let began = Some(from);
    let mut leased = LeasedPart::default();
    for (index, spec) in &prepared.leased {
        let index = usize::from(*index);
        let Some(limit) = limits.get(index) else { continue };
        let first = first.take();
        let acquiring = first.unwrap_or_else(|| leased::acquire(shared, spec, limit.cost));
        // Nobody waits for longer than a whole decision may take.
        let left = shared.deadline.saturating_sub(monotonic().saturating_duration_since(from));
        let acquired = tokio::time::timeout(left, acquiring.finish()).await;
        match acquired.unwrap_or(Acquired::Alone) {
            Acquired::Units(units) => leased.add(index, Ok(units)),
            Acquired::Refused(answer) => leased.add(index, Err(spec.refused(answer))),
            Acquired::Alone => {}
        }
    }
    let others = prepared.without(leased.limits());
    let mut round = others.round(shared, scope, limits, context);
    if leased.refuses(limits) {
        round.only_look();
    }
    run_on_redis(&mut round, shared, worker, plan, began).await;
    if round.result() == RoundResult::Admitted && !leased.is_valid() {
        // A lease has ended while the other limits were asked. Once more, all of them by the store.
        round.roll_back();
        run_on_redis(&mut round, shared, worker, plan, began).await;
        drop(leased);
        // Other members than those that are being given back.
        let context = TakeContext { member: prepared.new_member(), ..context };
        let mut round = prepared.round(shared, scope, limits, context);
        run_on_redis(&mut round, shared, worker, plan, began).await;
        let decided = (&round, LeasedPart::default());
        return finish(shared, scope, plan, prepared, decided, context.member);
    }
    finish(shared, scope, plan, prepared, (&round, leased), context.member)
}

/// The outcome of a plan that was refused a moment ago, and would be refused again.
fn remembered_refusal(
    shared: &Arc<Shared>,
    prepared: &PreparedPlan,
    limits: &[Limit],
) -> Option<PlanOutcome> {
    if !prepared.may_hold_refusal {
        return None;
    }
    let version = shared.resets.load(Ordering::Relaxed);
    let outcome = local::with(shared, |local| {
        local.refusals().of(version).find(&prepared.identities, limits, monotonic())
    })?;
    shared.counters.refusals_remembered.inc();
    Some(outcome)
}

fn remember_refusal(
    shared: &Arc<Shared>,
    prepared: &PreparedPlan,
    limits: &[Limit],
    outcome: &PlanOutcome,
    from: Instant,
) {
    let version = shared.resets.load(Ordering::Relaxed);
    local::with(shared, |local| {
        let times = (from, monotonic());
        let rules = (shared.refusals_held, &shared.given_back);
        local.refusals().of(version).add(&prepared.identities, limits, outcome, times, rules);
    });
}

/// A round that was begun, and the request's wait permit.
type StartedRound<F> = (DetachOnDrop<F>, Option<WaitPermit>);

/// A future that runs to its end even if nobody waits for it any more: dropped before, it goes on
/// in a task.
struct DetachOnDrop<F: Future<Output: Send> + Send + 'static>(Option<Pin<Box<F>>>);

impl<F: Future<Output: Send> + Send + 'static> DetachOnDrop<F> {
    fn new(future: F) -> Self {
        Self(Some(Box::pin(future)))
    }
}

impl<F: Future<Output: Send> + Send + 'static> Future for DetachOnDrop<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Some(future) = &mut self.0 else { return Poll::Pending };
        let output = std::task::ready!(future.as_mut().poll(cx));
        self.0 = None;
        Poll::Ready(output)
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for DetachOnDrop<F> {
    fn drop(&mut self) {
        // Without a runtime the process is ending, and its calls with it.
        if let (Some(future), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(async move { drop(future.await) });
        }
    }
}

/// A take in flight. Counts against its worker's maximum, and a drain waits for it.
struct InFlightTake {
    shared: Arc<Shared>,
    worker: Arc<Worker>,
}

impl InFlightTake {
    fn begin(shared: &Arc<Shared>) -> Option<Self> {
        let worker = local::with(shared, |local| Arc::clone(local.worker()));
        worker.begin_take().then(|| Self { shared: Arc::clone(shared), worker })
    }
}

impl Drop for InFlightTake {
    fn drop(&mut self) {
        self.worker.end_take();
        self.shared.done();
    }
}

/// An answer on its way to the request. Settles the grant if it is dropped on the way.
#[derive(Debug)]
struct SettleOnDrop(Option<Take>);

impl SettleOnDrop {
    fn accept(mut self) -> Take {
        self.0.take().unwrap_or(Take::Unavailable(""))
    }
}

impl Drop for SettleOnDrop {
    fn drop(&mut self) {
        if let Some(Take::Granted(_, grant)) = self.0.take() {
            grant.cancel();
        }
    }
}

/// Turns a finished round into the answer.
fn finish(
    shared: &Arc<Shared>,
    scope: &Arc<Scope>,
    plan: &Arc<Plan>,
    prepared: &PreparedPlan,
    (round, leased): (&Round<'_>, LeasedPart),
    member: u128,
) -> Take {
    let limits = plan.limits();
    let result = round.result();
    if result == RoundResult::Unavailable && !leased.refuses(limits) {
        return Take::Unavailable(round.failure().map_or("", |cause| cause.label()));
    }
    // The round reports each limit that was called. The others never pass: nothing remains of them.
    let mut outcome = PlanOutcome {
        admitted: result == RoundResult::Admitted,
        limits: vec![LimitOutcome::default(); limits.len()],
        store_failure: round.failure().map(|cause| cause.label()),
    };
    let mut charged: ChargeTimes = SmallVec::from_elem(None, limits.len());
    round.report(limits, &mut outcome.limits, &mut charged);
    let leased = leased.report(limits, &mut outcome, &mut charged);
    outcome.join_children(limits);
    let key = |index: usize| prepared.calls.cell(index).map(|cell| &cell.key);
    if !outcome.admitted {
        held::report(&shared.held, plan, &mut outcome.limits, key);
    }
    if !plan.is_quiet() {
        count(shared, scope, limits, &outcome);
    }
    if outcome.admitted {
        let leases = hold(shared, scope, plan, prepared, &charged, member);
        let owed = round.owed();
        if !owed.is_empty() {
            owe(shared, limits, prepared, (&charged, owed));
        }
        let holding = Hold::new(&shared.held, plan, (&outcome.limits, &charged), key);
        let grant = Grant {
            shared: Arc::clone(shared),
            scope: Arc::clone(scope),
            plan: Arc::clone(plan),
            charged,
            local: round.local(),
            member,
            _leases: leases,
            _holding: holding,
            leased,
        };
        Take::Granted(outcome, grant)
    } else {
        Take::Refused(outcome)
    }
}

/// Remembers what was charged in this process, to charge it on Redis later.
fn owe(
    shared: &Shared,
    limits: &[Limit],
    prepared: &PreparedPlan,
    (charged, owed): (&ChargeTimes, LimitSet),
) {
    for (index, (limit, charged)) in limits.iter().zip(charged).enumerate() {
        if charged.is_some()
            && owed.contains(index)
            && let Some(cell) = prepared.calls.cell(index)
        {
            shared.owe(&shared.counting(limit), cell);
        }
    }
}

/// The permits that an admitted plan holds in its concurrency limits.
fn hold(
    shared: &Arc<Shared>,
    scope: &Arc<Scope>,
    plan: &Plan,
    prepared: &PreparedPlan,
    charged: &ChargeTimes,
    member: u128,
) -> Vec<LeaseGuard> {
    if !prepared.keeps_members {
        return Vec::new();
    }
    let worker = local::with(shared, |local| Arc::clone(local.worker()));
    let limits = plan.limits().iter().enumerate().zip(charged);
    let leases = limits.filter_map(|((index, limit), charged)| {
        if !limit.algorithm.holds() {
            return None;
        }
        let request = CellRequest { cost: limit.cost, member, now_us: 0 };
        Some(LeaseGuard::new(
            shared,
            &worker,
            prepared.cell(shared, scope, (limit, index), request),
            (*charged)?,
        ))
    });
    leases.collect()
}

/// Refuses without a call. An enforced limit with an amount or a burst of 0 always refuses, so a
/// blocked client costs the store nothing. The plan's other limits are shown with their whole
/// allowance.
fn refused_without_call(shared: &Arc<Shared>, scope: &Arc<Scope>, plan: &Plan) -> Take {
    let outcome = PlanOutcome {
        admitted: false,
        limits: plan.limits().iter().map(untouched).collect(),
        store_failure: None,
    };
    count(shared, scope, plan.limits(), &outcome);
    Take::Refused(outcome)
}

/// The outcome of a limit from which nothing was taken yet. With an amount or a burst of 0, this is
/// the only outcome it has.
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

/// Counts refusals, refusals by shadow limits, and a request that goes through uncounted.
fn count(shared: &Arc<Shared>, scope: &Arc<Scope>, limits: &[Limit], outcome: &PlanOutcome) {
    // An assured limit that is used up refuses nothing.
    let refuses =
        |(limit, outcome): &(&Limit, &LimitOutcome)| !outcome.fits && limit.role != Role::Assured;
    let mut all = limits.iter().zip(&outcome.limits);
    if all.all(|it| !refuses(&it) && it.1.unmeasured.is_none()) {
        return;
    }
    local::with(shared, |local| {
        local.scope(scope, |known| {
            for (limit, outcome) in limits.iter().zip(&outcome.limits).filter(refuses) {
                match limit.enforcement {
                    Enforcement::Shadow => {
                        known.count_would_refuse(scope, &limit.name, &shared.metrics);
                    }
                    Enforcement::Enforce => {
                        known.count_refused(scope, &limit.name, &shared.metrics);
                        if outcome.is_held(limit.cost) {
                            known.count_held(scope, &limit.name, &shared.metrics);
                        }
                    }
                }
            }
            if outcome.is_uncounted(limits) {
                known.count_degraded(scope, &shared.metrics);
            }
        });
    });
}
