//! Begins a plan's take, and follows it to its end. Knows both engines, but no algorithm.
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

use futures_util::FutureExt as _;
use tokio::runtime::Handle;

use super::calls::Calls;
use super::finish::{Decided, count, finish, refused_without_call};
use super::keys::Identities;
use super::leased::{self, Acquired, Acquiring, LeasedPart};
use super::local;
use super::prepared::{self, PreparedPlan, TakeContext};
use super::queue::{WaitPermit, Worker};
use super::round::Round;
use super::run::{PlanNumbers, run_at_once, run_embedded, run_on_redis};
use super::shared::Shared;
use super::take_leased::{self, Request};
use super::{Scope, Take};
use crate::clock::monotonic;
use crate::engine::{Cause, Engine, EngineError, Execution};
use crate::plan::{Limit, OnStoreError, Plan, PlanOutcome};

/// Too many takes are in flight on this worker: nothing was sent.
const OVERLOADED: EngineError = EngineError { cause: Cause::Overload, ran: Execution::No };

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
                if !prepared.apart.is_empty() {
                    let worker = &local::with(shared, |local| Arc::clone(local.worker()));
                    let request = Request { shared, worker, scope, plan, prepared };
                    let answer = take_leased::take(&request, context, None).now_or_never();
                    // In memory nothing waits.
                    return (answer.unwrap_or(Take::Unavailable("")), permit);
                }
                let mut round = prepared.round(shared, scope, plan.limits(), context);
                run_embedded(&mut round, embedded, shared, plan);
                let decided = Decided::of(&round, context.member);
                (finish(shared, scope, plan, prepared, decided), permit)
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
    finish(shared, scope, plan, prepared, Decided::of(&round, context.member))
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
            count(shared, scope, plan, &outcome);
            return Err(Box::new(Take::Refused(outcome)));
        }
        let acquiring = match (plan.limits(), &*prepared.leased) {
            ([limit], [(_, spec)]) => Some(leased::acquire(shared, spec, limit.cost)),
            _ => None,
        };
        match acquiring {
            Some(Acquiring::Done(Acquired::Units(units))) => {
                let none = Calls::default();
                let round = Round::new(&none, |_| None, |_| OnStoreError::Deny);
                let decided =
                    Decided { leased: LeasedPart::of(0, units), ..Decided::of(&round, 0) };
                Err(Box::new(finish(shared, scope, plan, prepared, decided)))
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
        let decided = Decided::of(&round, context.member);
        return Err(Box::new(finish(shared, scope, plan, &prepared, decided)));
    }
    let Some(in_flight) = InFlightTake::begin(shared) else {
        shared.counters.overload.inc();
        return Err(Box::new(failed(shared, scope, plan, &prepared, context, OVERLOADED)));
    };
    let (scope, plan) = (Arc::clone(scope), Arc::clone(plan));
    let round = async move {
        let resets = || in_flight.shared.resets.load(Ordering::Relaxed);
        let from = prepared.may_hold_refusal.then(|| (monotonic(), resets()));
        let answer = if prepared.leased.is_empty() {
            let mut round = prepared.round(&in_flight.shared, &scope, plan.limits(), context);
            run_on_redis(&mut round, &in_flight.shared, &in_flight.worker, &plan, None).await;
            let decided = Decided::of(&round, context.member);
            finish(&in_flight.shared, &scope, &plan, &prepared, decided)
        } else {
            let InFlightTake { shared, worker } = &in_flight;
            let (scope, plan, prepared) = (&scope, &plan, &prepared);
            let request = Request { shared, worker, scope, plan, prepared };
            take_leased::take(&request, context, acquiring).await
        };
        if let (Take::Refused(outcome), Some(from)) = (&answer, from) {
            remember_refusal(&in_flight.shared, &prepared, plan.limits(), outcome, from);
        }
        // Dropped in this order where the request is gone: a drain waits for the settling.
        (SettleOnDrop(Some(answer)), in_flight)
    };
    Ok((DetachOnDrop::new(round), permit))
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

/// Remembers a refusal that was asked for at this time, when so many counters had been reset.
fn remember_refusal(
    shared: &Arc<Shared>,
    prepared: &PreparedPlan,
    limits: &[Limit],
    outcome: &PlanOutcome,
    (from, version): (Instant, u64),
) {
    // It may be of a counter that was reset since.
    if version != shared.resets.load(Ordering::Relaxed) {
        return;
    }
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
