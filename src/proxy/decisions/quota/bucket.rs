//! One bucket of a stream: takes its units, and gives back those that were not used.

use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::sync::PoisonError;

use http::StatusCode;
use smallvec::SmallVec;
use weir_lease::{Remote, Step, TIME_TO_LIVE_UNIT_US, seconds_to_live, units_to_assign};

use super::StreamScope;
use crate::clock;
use crate::limit::Grant;
use crate::plan::{Limit, LimitOutcome};
use crate::policy;
use crate::proxy::context::RequestContext;
use crate::proxy::decide::Decided;
use crate::proxy::decisions::decide::decide;
use crate::proxy::decisions::streams::Part;
use crate::proxy::receive::call::Call;
use crate::proxy::receive::call::api::Operation;
use crate::proxy::receive::call::quota_messages::BucketAction;
use crate::proxy::refusal::{CallError, Refusal};
use crate::proxy::reply::quota::{Assignment, abandon, assign};
use crate::proxy::verdict::Verdict;
use crate::wire::{Body, Response};

/// Calls of the limits for one assignment: one to see what is there, one to take it, and as many
/// again if others are faster.
const TAKES_MAX: usize = 4;
/// How long something is told for that no unit was taken for, in microseconds.
const BLANKET_US: u64 = 4_000_000;

/// A bucket of a stream.
pub(super) struct Bucket {
    entries: BTreeMap<String, String>,
    call: Call,
    remote: Remote,
    /// What was handed out, the oldest first.
    handed: VecDeque<Handed>,
    /// Requests that the limits had room for when they were asked last.
    left: u64,
    part: Part,
    /// When it needs something.
    pub(super) due_us: u64,
}

/// Units that were handed out together.
struct Handed {
    lease: u64,
    taken: Taken,
}

/// What was taken for an assignment, with the units of it that are handed out.
type Taken = SmallVec<[(Grant, u64, u64); 2]>;

/// What the caller is told about a bucket.
pub(super) enum Told {
    Nothing,
    Actions(Vec<BucketAction>),
    /// To forget it.
    Abandoned(BucketAction),
}

/// Why the whole stream ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stop {
    /// No route has its domain any more.
    NoDomain,
    /// Its token is not for its domain.
    NotAllowed,
}

/// What the limits said.
enum Answer {
    /// They let all of it through.
    Granted { grant: Option<Grant>, left: u64, life_us: u64 },
    /// They have too little room.
    Refused { left: u64, retry_us: u64 },
    /// There are none, or they can't be reached and let everything through.
    Unlimited,
    /// They can't be asked.
    Failed,
    /// They can't be handed out.
    Unfit(String),
}

impl Bucket {
    /// `None` if no rule could be for it.
    pub(super) fn new(
        domain: &str,
        entries: BTreeMap<String, String>,
        part: Part,
        now_us: u64,
    ) -> Option<Self> {
        let call = Call::about(domain, &entries)?;
        let remote = Remote::new(now_us, BLANKET_US);
        let handed = VecDeque::new();
        Some(Self { entries, call, remote, handed, left: 0, part, due_us: now_us })
    }

    /// Notes a report.
    pub(super) fn report(&mut self, now_us: u64, allowed: u64, denied: u64) {
        for unspent in self.remote.report(now_us, allowed, denied) {
            // In the order in which they were handed out.
            while let Some(handed) = self.handed.pop_front() {
                if handed.lease == unspent.lease {
                    give_back(handed.taken, unspent.units);
                    break;
                }
            }
        }
        self.note_due(now_us);
    }

    fn note_due(&mut self, now_us: u64) {
        self.due_us = match self.remote.next(now_us) {
            Step::Wait { until_us } => until_us,
            Step::Assign { .. } | Step::Abandon => now_us,
        };
    }

    /// Takes what is needed, if something is.
    pub(super) async fn assign(&mut self, scope: &StreamScope) -> Result<Told, Stop> {
        let told = match self.remote.next(clock::boottime_us()) {
            Step::Wait { .. } => Ok(Told::Nothing),
            Step::Abandon => {
                scope.count("abandoned");
                Ok(Told::Abandoned(abandon(&self.entries)))
            }
            Step::Assign { owed, wanted } => {
                self.take(scope, owed, wanted).await.map(|actions| match actions {
                    Some(actions) => Told::Actions(actions),
                    None => Told::Nothing,
                })
            }
        };
        self.note_due(clock::boottime_us());
        told
    }

    /// Takes units, and what was let through without any.
    async fn take(
        &mut self,
        scope: &StreamScope,
        mut owed: u64,
        wanted: u64,
    ) -> Result<Option<Vec<BucketAction>>, Stop> {
        let began_us = clock::boottime_us();
        let (mut taken, mut units, mut life_us) = (Taken::new(), 0_u64, u64::MAX);
        let mut retry_us = 0;
        for _ in 0..TAKES_MAX {
            let left = self.left.saturating_sub(owed).saturating_add(units);
            let share = units_to_assign(wanted, left, self.part.holders());
            let more = share.max(1).saturating_sub(units);
            if more == 0 && owed == 0 {
                break;
            }
            let hits = owed.saturating_add(more);
            let sent_us = clock::boottime_us();
            let answer = Box::pin(self.ask(scope, hits)).await?;
            match answer {
                Answer::Granted { grant, left, life_us: lives_us } => {
                    self.left = left;
                    self.remote.paid(owed);
                    owed = 0;
                    units += more;
                    life_us = life_us.min((sent_us - began_us).saturating_add(lives_us));
                    taken.extend(grant.map(|grant| (grant, hits, more)));
                }
                Answer::Refused { left, retry_us: us } => {
                    (self.left, retry_us) = (left, us);
                    if owed > 0 && left <= owed {
                        // What is there, if anything, pays for a part. Limits with a debt owe the
                        // rest.
                        if left > 0 {
                            Box::pin(self.ask(scope, left)).await?;
                        }
                        self.call.is_spent = true;
                        let owes = Box::pin(self.ask(scope, owed - left)).await;
                        self.call.is_spent = false;
                        owes?;
                        self.left = 0;
                        self.remote.paid(owed);
                        owed = 0;
                    }
                    if units > 0 || self.left == 0 {
                        break;
                    }
                }
                Answer::Unlimited => {
                    scope.count("unlimited");
                    self.remote.unlimited(clock::boottime_us(), BLANKET_US);
                    return Ok(Some(self.blanket(Assignment::AllowAll)));
                }
                Answer::Failed => {
                    scope.count("failed");
                    self.remote.failed(clock::boottime_us());
                    return Ok(None);
                }
                Answer::Unfit(why) => {
                    scope.count("unfit");
                    scope.warn(&self.call.domain, &format!("{:?}", self.entries), &why);
                    self.remote.failed(clock::boottime_us());
                    return Ok(None);
                }
            }
        }
        let now_us = clock::boottime_us();
        let seconds = seconds_to_live(began_us, life_us, now_us);
        if units == 0 || seconds == 0 {
            if units > 0 {
                // Its window ends too soon for it to be handed out.
                retry_us = life_us.saturating_sub(now_us - began_us);
                give_back(taken, units);
            }
            scope.count("denied");
            self.remote.refused(now_us, retry_us);
            return Ok(Some(self.blanket(Assignment::DenyAll)));
        }
        scope.count("assigned");
        let deadline_us = began_us.saturating_add(life_us);
        let lease = self.remote.assigned(now_us, units, seconds, deadline_us);
        self.handed.push_back(Handed { lease, taken });
        Ok(Some(assign(&self.entries, Assignment::Units(units), seconds)))
    }

    fn blanket(&self, assignment: Assignment) -> Vec<BucketAction> {
        assign(&self.entries, assignment, BLANKET_US / TIME_TO_LIVE_UNIT_US)
    }

    /// Asks the limits of the bucket's policy for so many requests.
    async fn ask(&mut self, scope: &StreamScope, hits: u64) -> Result<Answer, Stop> {
        for descriptor in &mut self.call.descriptors {
            descriptor.hits = hits;
        }
        let local = scope.live.load();
        let mut request = scope.request.lock().unwrap_or_else(PoisonError::into_inner).head();
        let mut context = RequestContext::begin(&local, &request, &scope.peer);
        context.received.note_call(&request, &local);
        let settings = &local.snapshot().settings;
        let caller = match settings.callers.admit(&request.fields, Operation::Decide) {
            Ok(caller) => caller.map(|caller| &**caller),
            Err(refusal) => {
                context.refuse(&refusal);
                return Err(Stop::NotAllowed);
            }
        };
        let by = (&*scope.peer, caller);
        let (_, decided) = pin!(decide(&local, &self.call, &mut request, by, &mut context)).await;
        let refusal = decided.err();
        let answer = self.answer(refusal.as_ref(), context.decided.as_mut(), hits);
        context.received.grpc = false;
        let reply = Response::new(StatusCode::OK, Body::empty());
        context.answer_call(refusal.as_ref(), reply);
        answer
    }

    fn answer(
        &mut self,
        refusal: Option<&Refusal>,
        decided: Option<&mut Decided>,
        hits: u64,
    ) -> Result<Answer, Stop> {
        match refusal {
            None | Some(Refusal::TooMany) => {}
            Some(Refusal::Denied | Refusal::Maintenance) => {
                let wait_ms = decided
                    .as_ref()
                    .and_then(|decided| decided.denial())
                    .and_then(|denial| denial.retry_after_ms);
                let retry_us = wait_ms.map_or(BLANKET_US, |ms| ms.saturating_mul(1_000));
                return Ok(Answer::Refused { left: 0, retry_us });
            }
            Some(Refusal::Call(CallError::NoDomain)) => return Err(Stop::NoDomain),
            Some(Refusal::Call(CallError::OutOfScope(_) | CallError::UnknownCaller)) => {
                return Err(Stop::NotAllowed);
            }
            Some(_) => return Ok(Answer::Failed),
        }
        let Some(decided) = decided else { return Ok(Answer::Failed) };
        if !matches!(decided.verdict, Some(Verdict::Admitted | Verdict::Refused | Verdict::Local)) {
            return Ok(Answer::Unlimited);
        }
        let grant = decided.grant.take();
        let policy::Verdict::Check(plan) = (match &decided.decision {
            Some(decision) => &decision.verdict,
            None => return Ok(Answer::Unlimited),
        }) else {
            return Ok(Answer::Unlimited);
        };
        let Some(outcome) = &decided.outcome else {
            // More hits than any limit has.
            return Ok(Answer::Refused { left: 0, retry_us: BLANKET_US });
        };
        let enforced =
            || plan.limits().iter().zip(&outcome.limits).filter(|(limit, _)| limit.is_enforced());
        if let Some((limit, _)) = enforced().find(|(limit, _)| !is_for_callers(limit)) {
            if let Some(grant) = grant {
                grant.give_back_part(1, 1);
            }
            return Ok(Answer::Unfit(format!(
                "the limit {:?} can't be handed out: found no `lease` with `callers = true`",
                limit.name
            )));
        }
        let left = enforced().map(|(limit, own)| requests_left(limit, own, hits)).min();
        let left = left.unwrap_or(u64::MAX);
        if refusal.is_some() {
            let retry_us = outcome.retry_after_us(plan.limits()).unwrap_or(u64::MAX);
            return Ok(Answer::Refused { left, retry_us });
        }
        let lives = enforced().filter_map(|(limit, own)| life_us(limit, own));
        let life_us = lives.min().unwrap_or(BLANKET_US + weir_lease::DELIVERY_US);
        self.remote.set_life(life_us);
        Ok(Answer::Granted { grant, left, life_us })
    }
}

fn is_for_callers(limit: &Limit) -> bool {
    limit.lease.is_some_and(|lease| lease.to_callers)
}

/// For how many requests a limit has room, which takes `cost` for so many `hits`.
fn requests_left(limit: &Limit, outcome: &LimitOutcome, hits: u64) -> u64 {
    let each = (limit.cost / hits.max(1)).max(1);
    outcome.remaining / each
}

/// How long what was just taken of a limit may be spent, in microseconds.
fn life_us(limit: &Limit, outcome: &LimitOutcome) -> Option<u64> {
    let terms = limit.leased()?.terms;
    let left = outcome.reset_us / limit.algorithm.unit_us().max(1);
    Some(terms.life_of_grant_us(Some(left)))
}

/// Gives back units that were handed out, the last first.
fn give_back(taken: Taken, mut units: u64) {
    for (grant, hits, handed) in taken.into_iter().rev() {
        let back = units.min(handed);
        units -= back;
        if back > 0 {
            grant.give_back_part(back, hits);
        }
    }
}
