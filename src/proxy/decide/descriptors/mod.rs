//! Several questions at once: the descriptors of a call of Envoy's rate limit service. The policy
//! is asked about each, their answers are joined to one (`join`), and the limits of all are taken
//! together or not at all, apart from those in quota mode (`quota_mode`). Knows nothing of how that
//! is answered.

mod join;
mod quota_mode;

use std::pin::pin;
use std::sync::Arc;

use smallvec::SmallVec;

use self::join::{join, leave_out_replaced};
use super::Decided;
use super::admit::{DecisionError, Question, charge, note_time, on_policy_error};
use super::policy_fields::PolicyFields;
use crate::limit::{Ending, Limiter};
use crate::plan::{Adjustment, Change, Debt, Limit, LimitOutcome, Plan, PlanOutcome};
use crate::policy::{Decision, Verdict as Answer};
use crate::proxy::receive::call::{Call, Descriptor, DescriptorView};
use crate::proxy::refusal::Refusal;
use crate::proxy::route::Routed;
use crate::proxy::verdict::Verdict;

/// What the policy says of each descriptor. `None` if it failed, and the route lets that through.
type Asked<'a> = SmallVec<[(Option<Arc<Decision>>, &'a Descriptor); 2]>;

/// What of the decision a descriptor has part in.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Share {
    /// The indices, in the plan, of the limits that its hits are charged to.
    pub(in crate::proxy) limits: SmallVec<[usize; 2]>,
    /// It is over its limit whatever the limits say: the policy refuses it, or it has more hits
    /// than any limit has units. Or it is in quota mode, and was left out.
    pub(in crate::proxy) is_over: bool,
    /// It is in quota mode, and not alone in that: the call passes without it, as long as another
    /// one in quota mode is not over its limit.
    pub(in crate::proxy) is_optional: bool,
    /// If it was left out: its limits, with what they said. They are not in the plan.
    pub(in crate::proxy) left_out: Vec<(Limit, LimitOutcome)>,
    /// What the policy has the caller told if it has room: the text of a JSON object.
    pub(in crate::proxy) metadata: Option<Arc<str>>,
}

/// One for each descriptor, in their order.
pub(in crate::proxy) type Shares = SmallVec<[Share; 2]>;

/// What the caller is told of each, if it has room.
type Metadata = SmallVec<[Option<Arc<str>>; 2]>;

/// The descriptors' decisions as one.
#[derive(Debug)]
struct Joined<'a> {
    decision: Arc<Decision>,
    shares: Shares,
    /// What one hit would take of each limit, of a look that is to say whether it would fit.
    wanted: SmallVec<[u64; 2]>,
    /// The limits that get units back before, with how many.
    returned: Vec<Limit>,
    /// What each was answered, where some are in quota mode.
    in_quota_mode: Option<Asked<'a>>,
}

/// What became of a call: what of the decision each descriptor has part in, and the fields that the
/// policy sets on the request that the call is about.
pub(in crate::proxy) type Decisions = (Shares, Result<PolicyFields, Refusal>);

/// Asks the policy about each descriptor, and takes the limits of all or none.
///
/// The policy is asked at once, and only the limits in the future: see [`Question::decide`].
pub(in crate::proxy) fn decide<'a>(
    question: Question<'a>,
    call: &'a Call,
    limiter: &'a Limiter,
    decided: &'a mut Decided,
) -> impl Future<Output = Decisions> + use<'a> {
    (decided.is_look, decided.is_held) = (call.is_look(), call.is_held);
    let asked = ask(question, call, decided);
    let (received, routed) = (question.received, question.routed);
    async move {
        let (joined, upstream_fields, metadata) = match asked {
            Ok(asked) => asked,
            Err(ended) => return (Shares::new(), ended),
        };
        let Joined { decision, mut shares, wanted, returned, in_quota_mode } = joined;
        let is_denied = matches!(decision.verdict, Answer::Deny(_));
        if !returned.is_empty() && !is_denied {
            let given_back = pin!(give_back(limiter, returned, routed)).await;
            if let Err(refusal) = given_back {
                decided.decision = Some(decision);
                decided.conclude(Verdict::Unavailable, &routed.handle);
                return (shares, Err(refusal));
            }
        }
        let is_over = |share: &Share| share.is_over && !share.is_optional;
        let admitted = if !is_denied && shares.iter().any(is_over) {
            // The limits are not asked: they could never have room.
            decided.decision = Some(decision);
            decided.conclude(Verdict::Refused, &routed.handle);
            Err(Refusal::TooMany)
        } else if let Some(asked) = in_quota_mode.filter(|_| !is_denied) {
            let (asked, of) = ((&asked, decision), (received, routed));
            let charged = Box::pin(quota_mode::charge(limiter, asked, &shares, of, decided)).await;
            if call.is_spent {
                owe(limiter, routed, charged.owing.iter());
            }
            shares = charged.shares;
            let out = shares.iter().flat_map(|share| &share.left_out);
            let over = out.filter(|(limit, of)| PlanOutcome::is_violated(limit, of));
            decided.left_out = over.map(|(limit, _)| limit.name.clone()).collect();
            charged.admitted
        } else {
            pin!(charge(limiter, decision, None, (received, routed), decided)).await
        };
        let admitted = match admitted {
            Ok(()) if lacks(&wanted, decided) => Err(Refusal::TooMany),
            admitted => admitted,
        };
        note_time((received, routed), decided);
        let verdict = decided.decision.as_ref().map(|decision| &decision.verdict);
        if let (Err(Refusal::TooMany), Some(Answer::Check(plan))) = (&admitted, verdict)
            && call.is_spent
        {
            owe(limiter, routed, debts(plan.limits().iter()));
        }
        for (share, metadata) in shares.iter_mut().zip(metadata) {
            share.metadata = metadata;
        }
        (shares, admitted.map(|()| upstream_fields))
    }
}

/// Whether a look found less than what it looks for: it has asked the limits for nothing.
fn lacks(wanted: &[u64], decided: &mut Decided) -> bool {
    let Decided { decision, outcome: Some(outcome), verdict, .. } = decided else { return false };
    let Some(Answer::Check(plan)) = decision.as_ref().map(|decision| &decision.verdict) else {
        return false;
    };
    let asked = plan.limits().iter().zip(&mut outcome.limits).zip(wanted);
    let lacking = asked.filter(|((limit, own), wanted)| {
        limit.is_enforced() && own.unmeasured.is_none() && own.remaining < **wanted
    });
    if lacking.map(|((_, own), _)| own.fits = false).count() == 0 {
        return false;
    }
    outcome.admitted = false;
    *verdict = Some(Verdict::Refused);
    true
}

/// Gives units back to limits, whoever has taken them.
async fn give_back(
    limiter: &Limiter,
    returned: Vec<Limit>,
    routed: &Routed,
) -> Result<(), Refusal> {
    let Some(policy) = &routed.handle.policy else { return Ok(()) };
    // Two of them may be one limit with different keys.
    let plan = Plan::joined(returned).map_err(|wrong| Refusal::malformed(wrong.to_string()))?;
    let given_back = limiter.give_back(&policy.scope, &plan).await;
    given_back.map_err(|_| Refusal::StoreUnavailable)
}

/// Those of limits that may owe what they refuse.
fn debts<'a>(limits: impl Iterator<Item = &'a Limit>) -> impl Iterator<Item = &'a Limit> {
    limits.filter(|limit| {
        limit.cost > 0 && limit.is_enforced() && limit.algorithm.debt() != Debt::None
    })
}

/// Charges what was refused to limits that may owe it. A caller that reports what was used already
/// can't be told that it was not.
fn owe<'a>(limiter: &Limiter, routed: &Routed, owing: impl Iterator<Item = &'a Limit>) {
    let Some(policy) = &routed.handle.policy else { return };
    for limit in owing {
        // By itself, as another of its name may be in the plan.
        let Ok(plan) = Plan::new(vec![limit.clone()]) else { continue };
        let change = Adjustment { limit: limit.name.clone(), change: Change::Debt(limit.cost) };
        let grant = limiter.empty_grant(&policy.scope, &Arc::new(plan));
        grant.settle(Ending::Completed, &[change]);
    }
}

/// What the policy says of all descriptors, the fields that it sets on the request, and what the
/// caller is told of each.
///
/// # Errors
/// How the call ends without the limits being asked.
fn ask<'a>(
    question: Question<'_>,
    call: &'a Call,
    decided: &mut Decided,
) -> Result<(Joined<'a>, PolicyFields, Metadata), Result<PolicyFields, Refusal>> {
    let handle = &question.routed.handle;
    let mut asked = Asked::new();
    let (mut upstream_fields, mut response_fields) = (PolicyFields::new(), PolicyFields::new());
    for descriptor in &call.descriptors {
        let view = DescriptorView { domain: &call.domain, descriptor };
        let question = Question { descriptor: Some(view), ..question };
        let (decision, upstream) = match question.ask(decided, |_| {}) {
            Ok(answered) => answered,
            // The other descriptors are decided on all the same.
            Err(DecisionError::Failed) if question.decider.allow_on_error => {
                decided.degraded = Some("policy");
                asked.push((None, descriptor));
                continue;
            }
            Err(failed) => {
                return Err(on_policy_error(question.decider, failed, handle, decided));
            }
        };
        if question.is_turned_away(&decision) {
            return Err(Err(Refusal::Overloaded));
        }
        upstream_fields.extend(upstream);
        response_fields.append(&mut decided.response_fields);
        asked.push((Some(decision), descriptor));
    }
    decided.response_fields = response_fields;
    if asked.iter().all(|(decision, _)| decision.is_none()) {
        return Err(on_policy_error(question.decider, DecisionError::Failed, handle, decided));
    }
    leave_out_replaced(&mut asked);
    let metadata = asked.iter().map(|(decision, _)| decision.as_ref()?.joining.metadata.clone());
    let metadata = metadata.collect();
    let joined = join(&asked, call.is_held).and_then(|joined| match call.is_quota {
        true => check_quota(&joined).map(|()| joined),
        false => Ok(joined),
    });
    let joined = joined.map_err(|wrong| {
        // Limits that a caller sends are not the policy's to answer for. Nor is what it asks of
        // limits that hold something, without holding it.
        let overrides = call.descriptors.iter().any(|descriptor| descriptor.limit.is_some());
        if call.is_about_facts() || call.gives_back() || call.is_quota || overrides {
            return Err(Refusal::malformed(wrong));
        }
        question.note_failure(&wrong, decided);
        Err(Refusal::PolicyFailed)
    })?;
    Ok((joined, upstream_fields, metadata))
}

/// Checks that units of limits can be handed out.
fn check_quota(joined: &Joined<'_>) -> Result<(), String> {
    let Answer::Check(plan) = &joined.decision.verdict else { return Ok(()) };
    let is_unfit =
        |limit: &&Limit| limit.is_enforced() && !limit.lease.is_some_and(|lease| lease.to_callers);
    match plan.limits().iter().find(is_unfit) {
        None => Ok(()),
        Some(limit) => Err(format!(
            "the limit {:?} can't be handed out: found no `lease` with `callers = true`",
            limit.name
        )),
    }
}
