//! One bucket of a stream: takes its units, and gives back those that were not used.

use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::sync::PoisonError;

use http::StatusCode;
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
use crate::wire::{Body, Response};

/// Calls of the limits for one assignment: one to see what is there, one to take it, and as many
/// again if others are faster.
const TAKES_MAX: usize = 4;
/// How long a bucket without limits may let everything through, in microseconds.
const UNLIMITED_US: u64 = 4_000_000;
/// For how much longer than until the next attempt requests are turned away, in microseconds: that
/// one may take a while.
const DENIED_LONGER_US: u64 = 6_000_000;

/// A bucket of a stream.
pub(super) struct Bucket {
    entries: BTreeMap<String, String>,
    call: Call,
    remote: Remote,
    /// What was handed out, the oldest first.
    handed: VecDeque<Handed>,
    /// Requests that the limits had room for when they were asked last.
    left: u64,
    /// The most units of one assignment, as the limits have it.
    units_max: u64,
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
pub(super) type Taken = Vec<(Grant, u64, u64)>;

/// What came of asking a bucket's limits.
pub(super) enum Asked {
    /// Nothing was needed.
    Nothing,
    /// Nobody has asked for it for long.
    Idle,
    /// They can't be asked.
    Failed,
    /// They can't be handed out.
    Unfit,
    /// There are none that would refuse.
    Unlimited,
    /// So many units were taken, if any, by calls from `began_us` on. They may be spent for
    /// `life_us` from then, and others may be there in `retry_us`.
    Taken { taken: Taken, units: u64, began_us: u64, life_us: u64, retry_us: u64 },
}

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
    /// There are no limits, or none can be reached and the configuration says to allow.
    Unlimited,
    /// There are none but shadow limits, which have counted it.
    Free { grant: Option<Grant> },
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
        let remote = Remote::new(now_us, UNLIMITED_US);
        let (handed, due_us) = (VecDeque::new(), now_us);
        let (left, units_max) = (0, u64::MAX);
        Some(Self { entries, call, remote, handed, left, units_max, part, due_us })
    }

    /// Notes a report, which arrived at the second instant or later. Returns whether units were
    /// given back.
    pub(super) fn report(&mut self, at: (u64, u64), (allowed, denied): (u64, u64)) -> bool {
        let over = self.remote.report(at, allowed, denied);
        for unspent in &over {
            // In the order in which they were handed out.
            while let Some(handed) = self.handed.pop_front() {
                if handed.lease == unspent.lease {
                    give_back(handed.taken, unspent.units);
                    break;
                }
            }
        }
        self.note_due(at.0);
        over.iter().any(|unspent| unspent.units > 0)
    }

    fn note_due(&mut self, now_us: u64) {
        self.due_us = match self.remote.next(now_us) {
            Step::Wait { until_us } => until_us,
            Step::Assign { .. } | Step::Abandon => now_us,
        };
    }

    /// Takes what is needed, if something is.
    pub(super) async fn ask_limits(&mut self, scope: &StreamScope) -> Result<Asked, Stop> {
        match self.remote.next(clock::boottime_us()) {
            Step::Wait { .. } => Ok(Asked::Nothing),
            Step::Abandon => Ok(Asked::Idle),
            Step::Assign { owed, wanted } => self.take(scope, owed, wanted).await,
        }
    }

    /// Takes units, and what was let through without any.
    async fn take(
        &mut self,
        scope: &StreamScope,
        mut owed: u64,
        wanted: u64,
    ) -> Result<Asked, Stop> {
        let began_us = clock::boottime_us();
        let (mut taken, mut units, mut life_us) = (Taken::new(), 0_u64, u64::MAX);
        let mut retry_us = 0;
        for _ in 0..TAKES_MAX {
            let left = self.left.saturating_sub(owed).saturating_add(units);
            let share = units_to_assign(wanted, left, self.part.holders()).min(self.units_max);
            let more = share.max(1).saturating_sub(units);
            let hits = owed.saturating_add(more);
            if hits == 0 {
                break;
            }
            let sent_us = clock::boottime_us();
            let answer = match Box::pin(self.ask(scope, hits)).await {
                Ok(answer) => answer,
                Err(stop) => {
                    give_back(taken, units);
                    return Err(stop);
                }
            };
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
                        self.pay(scope, owed, left).await?;
                        owed = 0;
                    }
                    if units > 0 || self.left == 0 {
                        break;
                    }
                }
                // What was taken before is handed out all the same.
                Answer::Failed if units > 0 => break,
                Answer::Failed => return Ok(Asked::Failed),
                Answer::Unlimited => {
                    give_back(taken, units);
                    return Ok(Asked::Unlimited);
                }
                Answer::Free { grant } => {
                    // Shadow limits count what was let through, and nothing is handed out.
                    self.remote.paid(owed);
                    give_back(grant.map(|grant| (grant, hits, more)).into_iter().collect(), more);
                    return Ok(Asked::Unlimited);
                }
                Answer::Unfit(why) => {
                    scope.count("unfit");
                    scope.warn(&self.call.domain, &format!("{:?}", self.entries), &why);
                    return Ok(Asked::Unfit);
                }
            }
        }
        Ok(Asked::Taken { taken, units, began_us, life_us, retry_us })
    }

    /// Takes what is there, if anything, for a part of what is owed. Limits with a debt owe the
    /// rest; from others it is never charged.
    async fn pay(&mut self, scope: &StreamScope, owed: u64, left: u64) -> Result<(), Stop> {
        let mut paid = 0;
        if left > 0
            && let Answer::Granted { left: rest, .. } = Box::pin(self.ask(scope, left)).await?
        {
            (paid, self.left) = (left, rest);
        }
        if paid < owed {
            self.call.is_spent = true;
            let rest = Box::pin(self.ask(scope, owed - paid)).await;
            self.call.is_spent = false;
            rest?;
        }
        self.remote.paid(owed);
        Ok(())
    }

    /// What is told about it at `now_us`, when those that were asked together with it have
    /// answered.
    pub(super) fn tell(&mut self, scope: &StreamScope, asked: Asked, now_us: u64) -> Told {
        let told = match asked {
            Asked::Nothing => Told::Nothing,
            Asked::Idle => {
                scope.count("abandoned");
                Told::Abandoned(abandon(&self.entries))
            }
            Asked::Failed => {
                scope.count("failed");
                self.remote.failed(now_us);
                Told::Nothing
            }
            Asked::Unfit => {
                self.remote.failed(now_us);
                Told::Nothing
            }
            Asked::Unlimited => {
                scope.count("unlimited");
                self.remote.unlimited(now_us, UNLIMITED_US);
                let seconds = UNLIMITED_US / TIME_TO_LIVE_UNIT_US;
                Told::Actions(assign(&self.entries, Assignment::AllowAll, seconds))
            }
            Asked::Taken { taken, units, began_us, life_us, retry_us } => {
                let lives = (began_us, life_us);
                self.tell_units(scope, (taken, units), lives, retry_us, now_us)
            }
        };
        self.note_due(now_us);
        told
    }

    fn tell_units(
        &mut self,
        scope: &StreamScope,
        (taken, units): (Taken, u64),
        (began_us, life_us): (u64, u64),
        mut retry_us: u64,
        now_us: u64,
    ) -> Told {
        let seconds = seconds_to_live(began_us, life_us, now_us);
        let usable = if seconds > 0 { units } else { 0 };
        // What is left of a bucket that nobody asks for is to come back.
        if let Some((left, ends_us)) = self.remote.live()
            && !self.remote.is_quiet()
            && usable <= left
            && now_us.saturating_add(TIME_TO_LIVE_UNIT_US) < ends_us
        {
            // It would only lose what it has.
            give_back(taken, units);
            self.remote.kept(now_us);
            return Told::Nothing;
        }
        if usable > 0 {
            scope.count("assigned");
            let deadline_us = began_us.saturating_add(life_us);
            let lease = self.remote.assigned(now_us, units, seconds, deadline_us);
            self.handed.push_back(Handed { lease, taken });
            return Told::Actions(assign(&self.entries, Assignment::Units(units), seconds));
        }
        if units > 0 {
            // Its window ends too soon for it to be handed out, or the calls took too long.
            retry_us = life_us.saturating_sub(now_us.saturating_sub(began_us));
            give_back(taken, units);
        }
        scope.count("denied");
        self.remote.refused(now_us, retry_us);
        let Step::Wait { until_us } = self.remote.next(now_us) else { return Told::Nothing };
        let denied_us = until_us.saturating_sub(now_us).saturating_add(DENIED_LONGER_US);
        let seconds = denied_us.div_ceil(TIME_TO_LIVE_UNIT_US);
        Told::Actions(assign(&self.entries, Assignment::DenyAll, seconds))
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
                let retry_us = wait_ms.map_or(u64::MAX, |ms| ms.saturating_mul(1_000));
                return Ok(Answer::Refused { left: 0, retry_us });
            }
            Some(Refusal::Call(CallError::Malformed(why))) => {
                return Ok(Answer::Unfit(why.clone()));
            }
            Some(Refusal::Call(CallError::NoDomain)) => return Err(Stop::NoDomain),
            Some(Refusal::Call(CallError::OutOfScope(_) | CallError::UnknownCaller)) => {
                return Err(Stop::NotAllowed);
            }
            Some(_) => return Ok(Answer::Failed),
        }
        let Some(decided) = decided else { return Ok(Answer::Failed) };
        let grant = decided.grant.take();
        let plan = match decided.decision.as_ref().map(|decision| &decision.verdict) {
            Some(policy::Verdict::Check(plan)) => plan,
            _ => return Ok(Answer::Unlimited),
        };
        let Some(outcome) = &decided.outcome else {
            // More hits than any limit has.
            return Ok(Answer::Refused { left: 0, retry_us: u64::MAX });
        };
        if !plan.limits().iter().any(Limit::is_enforced) {
            return Ok(Answer::Free { grant });
        }
        // A limit that can't be reached, and lets through what it does not count, bounds nothing.
        let measured = || {
            let all = plan.limits().iter().zip(&outcome.limits);
            all.filter(|(limit, own)| limit.is_enforced() && own.unmeasured.is_none())
        };
        let Some(left) = measured().map(|(limit, own)| requests_left(limit, own, hits)).min()
        else {
            return Ok(Answer::Unlimited);
        };
        let units_max = measured().filter_map(|(limit, _)| limit.lease?.units_max).min();
        self.units_max = units_max.unwrap_or(u64::MAX);
        let whole = measured().filter_map(|(limit, _)| Some(limit.leased()?.terms.life_us)).min();
        self.remote.set_life(whole.unwrap_or(UNLIMITED_US));
        if refusal.is_some() {
            let retry_us = outcome.retry_after_us(plan.limits()).unwrap_or(u64::MAX);
            return Ok(Answer::Refused { left, retry_us });
        }
        let lives = measured().filter_map(|(limit, own)| life_us(limit, own));
        let life_us = lives.min().unwrap_or(UNLIMITED_US);
        Ok(Answer::Granted { grant, left, life_us })
    }
}

/// For how many requests a limit has room, which takes `cost` for so many `hits`.
fn requests_left(limit: &Limit, outcome: &LimitOutcome, hits: u64) -> u64 {
    let each = (limit.cost / hits.max(1)).max(1);
    outcome.remaining / each
}

/// How long what was just taken of a limit may be spent, in microseconds.
fn life_us(limit: &Limit, outcome: &LimitOutcome) -> Option<u64> {
    let terms = limit.leased()?.terms;
    // One that never ends has none.
    let left = Some(outcome.reset_us / limit.algorithm.unit_us().max(1)).filter(|left| *left > 0);
    Some(terms.life_of_grant_us(left))
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
