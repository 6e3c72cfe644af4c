//! From a plan to what came of it: builds the round, runs it, reads its outcome. Knows both engines, and no algorithm.
//!
//! The embedded engine answers at once, so its round runs inline and can't be dropped half-way. On Redis the round runs in a task of its own:
//! once something is sent, the outcome belongs to the limiter. hyper drops a handler in mid-take when its client goes; the task then runs to
//! its end, and a grant that nobody receives settles itself as [`Ending::Unsent`], because nothing reached the upstream.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::keys::PlanDigests;
use super::leases::Held;
use super::local::{self, KnownScope};
use super::queue::{Job, Waits, Worker};
use super::round::{Charged, Round, Step, Verdict};
use super::shared::Shared;
use super::{Ending, Grant, Scope, Take, failure, programs, settle};
use crate::clock::monotonic;
use crate::engine::{Cause, Cell, Embedded, Engine, EngineError, Key, NUMBERS_MAX, Ran};
use crate::plan::{Algorithm, Enforcement, Limit, LimitOutcome, Outcome, Plan};

/// Too many takes are under way here: nothing was sent.
const OVERLOADED: EngineError = EngineError { cause: Cause::Timeout, ran: Ran::No };
/// The take's task was torn down with its runtime.
const CUT_OFF: EngineError = EngineError { cause: Cause::Timeout, ran: Ran::Unknown };

/// Charges all limits of `plan`, or none.
pub(super) async fn take(shared: &Arc<Shared>, scope: &Arc<Scope>, plan: &Arc<Plan>) -> Take {
    if plan.limits().iter().any(|limit| limit.enforcement == Enforcement::Enforce && programs::never_passes(&limit.algorithm)) {
        return refused_unasked(shared, scope, plan);
    }
    let (receiver, place) = match &*shared.engine {
        Engine::Embedded(embedded) => {
            let member = member(plan);
            let (mut round, place) = begin(shared, scope, plan, member);
            run_here(&mut round, embedded, shared, plan);
            let answer = finish(shared, scope, plan, &round, member);
            // Mostly nobody may wait, and an answer is large to hand on.
            return if place.is_none() { answer } else { wait(Delivery(Some(answer)), place).await };
        }
        Engine::Redis(_) => match send(shared, scope, plan) {
            Ok(sent) => sent,
            Err(answer) => return *answer,
        },
    };
    match receiver.await {
        Ok(delivery) => wait(delivery, place).await,
        // Whether it charged is unknown, and it stands.
        Err(_) => finish(shared, scope, plan, &failed(begin(shared, scope, plan, 0).0, CUT_OFF), 0),
    }
}

/// Waits for the request's turn, on the monotonic clock. A request that goes away meanwhile frees its place; its turn stays taken, since those behind it
/// have been told theirs.
async fn wait(delivery: Delivery, place: Option<Waits>) -> Take {
    if let Some(Take::Granted(outcome, _)) = &delivery.0
        && outcome.delay_us() > 0
    {
        tokio::time::sleep(Duration::from_micros(outcome.delay_us())).await;
    }
    drop(place);
    delivery.accept()
}

/// A name for what a plan takes, where that is kept by name.
pub(super) fn member(plan: &Plan) -> u128 {
    let kept = |limit: &Limit| matches!(limit.algorithm, Algorithm::SlidingWindowLog { .. } | Algorithm::Concurrency { .. });
    // As good as unique: 128 random bits, and only among the members of one key.
    if plan.limits().iter().any(kept) { fastrand::u128(..) } else { 0 }
}

/// The proxy's idea of now, in microseconds since 1970, for those that name periods of a calendar; the store's time decides among them.
pub(super) fn now_us(shared: &Shared, plan: &Plan) -> i64 {
    let counts_in_periods = |limit: &Limit| matches!(limit.algorithm, Algorithm::Quota { .. });
    if plan.limits().iter().any(counts_in_periods) { shared.clock.wall_us() } else { 0 }
}

/// The round of `plan`, with each limit's cell under its tag, and a place to wait where it may have to. Limits that never pass (here only shadows) are
/// not in it.
fn begin(shared: &Arc<Shared>, scope: &Arc<Scope>, plan: &Plan, member: u128) -> (Round, Option<Waits>) {
    let mut round = Round::new();
    let mut last = None;
    let mut waiting = None;
    let now_us = now_us(shared, plan);
    let mut digests = PlanDigests::new(&shared.digests);
    local::with(shared, |local| {
        if plan.limits().iter().any(may_wait) {
            // Taken before it is known whether it is needed: many takes may be under way on Redis.
            waiting = local.worker().place(shared.waiting_max);
        }
        local.scope(scope, |known| {
            for (limit, place) in plan.limits().iter().zip(0_u8..) {
                if programs::never_passes(&limit.algorithm) {
                    continue;
                }
                let mut cell = cell(&mut digests, shared, scope, known, limit, Asked { cost: limit.cost, member, now_us });
                let tag = cell.key.tag;
                if matches!(limit.algorithm, Algorithm::LeakyBucket { .. }) {
                    last = Some(tag);
                }
                if waiting.is_none() && may_wait(limit) {
                    cell.numbers[programs::MAY_WAIT] = 0;
                }
                round.add(cell, place, failure::denies(scope, limit));
            }
        });
    });
    last.into_iter().for_each(|tag| round.ask_last(tag));
    (round, waiting)
}

/// Whether a request may have to wait for this limit's turn. A shadow has nobody wait.
fn may_wait(limit: &Limit) -> bool {
    matches!(limit.algorithm, Algorithm::LeakyBucket { .. }) && limit.enforcement == Enforcement::Enforce
}

/// What is asked of a counter.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    /// Units to take, or to give back.
    pub(super) cost: u64,
    /// What they are called.
    pub(super) member: u128,
    /// Around which instant a calendar's periods are named.
    pub(super) now_us: i64,
}

/// `limit`'s counter, and what is asked of it.
pub(super) fn cell<'a>(
    digests: &mut PlanDigests<'a>,
    shared: &Shared,
    scope: &Scope,
    known: &mut KnownScope,
    limit: &'a Limit,
    Asked { cost, member, now_us }: Asked,
) -> Cell {
    let tag = digests.of(limit.tag_or_key());
    let key = digests.of(&limit.key);
    Cell {
        program: shared.program(&limit.algorithm),
        key: Key { tag, key, space: known.space(scope, &limit.name, &limit.algorithm, shared) },
        unit_us: programs::unit_us(&limit.algorithm),
        shadow: limit.enforcement == Enforcement::Shadow,
        cost,
        numbers: programs::numbers(&limit.algorithm, shared.lease, now_us),
        member,
    }
}

/// The numbers of a plan's limit at the store's time.
fn numbers_at(shared: &Shared, plan: &Plan) -> impl Fn(usize, u64) -> Option<[i64; NUMBERS_MAX]> {
    |place, at_us| plan.limits().get(place).map(|limit| programs::numbers(&limit.algorithm, shared.lease, at_us as i64))
}

fn run_here(round: &mut Round, embedded: &Embedded, shared: &Shared, plan: &Plan) {
    loop {
        match round.next() {
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

async fn run_on_redis(round: &mut Round, shared: &Arc<Shared>, worker: &Arc<Worker>, plan: &Plan) {
    // With one call the engine's own deadline, which is the same, is enough.
    let mut began = None;
    // More than one group, or one that may have to be asked again.
    let several = round.groups() > 1 || plan.limits().iter().any(|limit| matches!(limit.algorithm, Algorithm::Quota { .. }));
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
                round.took(answer, numbers_at(shared, plan));
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
        round.took(Err(error), |_, _| None);
    }
    round
}

/// Starts the round's task, or answers at once where nothing may be or need be asked.
fn send(shared: &Arc<Shared>, scope: &Arc<Scope>, plan: &Arc<Plan>) -> Result<Sent, Box<Take>> {
    let member = member(plan);
    let (mut round, place) = begin(shared, scope, plan, member);
    if round.groups() == 0 {
        return Err(Box::new(finish(shared, scope, plan, &round, member)));
    }
    let Some(under_way) = UnderWay::begin(shared) else {
        shared.counters.overload.inc();
        return Err(Box::new(finish(shared, scope, plan, &failed(round, OVERLOADED), member)));
    };
    let (sender, receiver) = oneshot::channel();
    let (scope, plan) = (Arc::clone(scope), Arc::clone(plan));
    tokio::spawn(async move {
        run_on_redis(&mut round, &under_way.shared, &under_way.worker, &plan).await;
        let answer = finish(&under_way.shared, &scope, &plan, &round, member);
        // When the request is gone the answer comes back and is dropped here, before `under_way`: a drain sees it through.
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
fn finish(shared: &Arc<Shared>, scope: &Arc<Scope>, plan: &Arc<Plan>, round: &Round, member: u128) -> Take {
    let verdict = round.verdict();
    if verdict == Verdict::Unavailable {
        return Take::Unavailable;
    }
    let limits = plan.limits();
    // The round tells of each limit that was asked. The others never pass: nothing is left of them.
    let mut outcome = Outcome { admitted: verdict == Verdict::Admitted, limits: vec![LimitOutcome::default(); limits.len()] };
    let mut charged: Charged = SmallVec::from_elem(None, limits.len());
    round.report(limits, &mut outcome.limits, &mut charged);
    count(shared, scope, limits, &outcome);
    if outcome.admitted {
        let held = hold(shared, scope, plan, &charged, member);
        let grant = Grant { shared: Arc::clone(shared), scope: Arc::clone(scope), plan: Arc::clone(plan), charged, member, _held: held };
        Take::Granted(outcome, grant)
    } else {
        Take::Refused(outcome)
    }
}

/// The places that an admitted plan has in its concurrency limits.
fn hold(shared: &Arc<Shared>, scope: &Arc<Scope>, plan: &Plan, charged: &Charged, member: u128) -> Vec<Held> {
    let in_flight = |limit: &Limit| matches!(limit.algorithm, Algorithm::Concurrency { .. });
    if !plan.limits().iter().any(in_flight) {
        return Vec::new();
    }
    let mut digests = PlanDigests::new(&shared.digests);
    local::with(shared, |local| {
        let worker = Arc::clone(local.worker());
        local.scope(scope, |known| {
            let limits = plan.limits().iter().zip(charged).filter(|(limit, _)| in_flight(limit));
            let held = limits.filter_map(|(limit, charged)| {
                let asked = Asked { cost: limit.cost, member, now_us: 0 };
                Some(Held::new(shared, &worker, cell(&mut digests, shared, scope, known, limit, asked), (*charged)?))
            });
            held.collect()
        })
    })
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
    if programs::never_passes(&limit.algorithm) {
        return LimitOutcome::default();
    }
    let fits = limit.algorithm.most().is_none_or(|most| limit.cost.max(1) <= most);
    LimitOutcome { fits, remaining: limit.algorithm.capacity().unwrap_or(0), ..LimitOutcome::default() }
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
