//! Descriptors in quota mode, as envoyproxy/ratelimit has it: of those in a call, one with room is
//! enough. The others are answered as over their limit, and take nothing.
//!
//! All are taken together first. Where that is refused, those without room are left out, and the
//! rest is taken. So what is admitted is taken all or not at all, like any other call, and what is
//! left out is in no plan: no observer can take it for something that was charged.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::admit::{charge as charge_all, record};
use super::join::{join, own_cost};
use super::{Asked, Decided, Joined, Share, Shares, debts};
use crate::limit::{Limiter, Take};
use crate::plan::{Limit, LimitOutcome, Plan, PlanOutcome};
use crate::policy::{Decision, Verdict as Answer};
use crate::proxy::receive::Received;
use crate::proxy::refusal::Refusal;
use crate::proxy::route::Routed;
use crate::proxy::verdict::Verdict;

/// A descriptor that the call goes on without.
#[derive(Debug, Default)]
struct LeftOut {
    /// Its limits, and what they said. None if it has more hits than any limit has units.
    limits: Vec<(Limit, LimitOutcome)>,
}

/// What came of a call with descriptors in quota mode.
pub(super) struct Charged {
    pub(super) shares: Shares,
    pub(super) admitted: Result<(), Refusal>,
    /// Limits of descriptors that were left out, which their hits are owed to.
    pub(super) owing: Vec<Limit>,
}

/// Takes the limits of all descriptors, without those in quota mode that have no room. `first` is
/// what all of them are joined to.
pub(super) async fn charge(
    limiter: &Limiter,
    (asked, first): (&Asked<'_>, Arc<Decision>),
    shares: &Shares,
    of: (&Received, &Routed),
    decided: &mut Decided,
) -> Charged {
    // It is kept in any case.
    decided.decision = Some(Arc::clone(&first));
    let labels = &first.labels;
    let optional: Vec<bool> = shares.iter().map(|share| share.is_optional).collect();
    let too_many = |share: &Share| (share.is_optional && share.is_over).then(LeftOut::default);
    let mut left_out: Vec<Option<LeftOut>> = shares.iter().map(too_many).collect();
    // Each round but the last leaves out one descriptor or more.
    while is_one_kept(&optional, &left_out) {
        let (members, part) = joined_part(asked, &left_out, labels);
        let Some((decision, plan)) = part.as_ref().and_then(plan_of) else { break };
        let Ok(quiet) = Plan::joined(plan.limits().to_vec()) else { break };
        let Some(scope) = of.1.handle.policy.as_ref().map(|policy| &policy.scope) else { break };
        let taken = limiter.take(scope, &Arc::new(quiet.quiet())).await;
        let Take::Refused(outcome) = taken else {
            decided.decision = Some(Arc::clone(&decision));
            let counts_keys = of.1.handle.insight.counts_keys();
            let identities = counts_keys.then(|| limiter.identities(scope, &plan));
            let of = (of.0, &*of.1.handle);
            let admitted = record(limiter, (&decision, &plan), (taken, identities), of, decided);
            return charged(left_out, &optional, (members, part), admitted);
        };
        let shares = part.as_ref().map_or(&[][..], |part| &part.shares);
        let is_optional = |at: usize| members.get(at).is_some_and(|at| is_at(&optional, *at));
        let (without_room, is_final) = without_room((plan.limits(), &outcome), shares, is_optional);
        for at in &without_room {
            let (Some(share), Some(member)) = (shares.get(*at), members.get(*at)) else { continue };
            if let (Some(one), Some(out)) = (asked.get(*member), left_out.get_mut(*member)) {
                let mut limits = said(share, plan.limits(), &outcome);
                // Of a limit that others have as well, the plan has the sum.
                limits.iter_mut().for_each(|(limit, _)| limit.cost = own_cost(one, limit));
                *out = Some(LeftOut { limits });
            }
        }
        if is_final || without_room.is_empty() {
            break;
        }
    }
    // Refused: by a limit of another descriptor, or because none has room. Of these, the one that
    // has some first is what the caller waits for. It is asked again, so that this is counted.
    if !is_one_kept(&optional, &left_out) {
        let waits = left_out.iter().enumerate().filter_map(|(at, out)| Some((wait_us(out)?, at)));
        match waits.min() {
            Some((_, awaited)) => left_out.get_mut(awaited).into_iter().for_each(|out| *out = None),
            None => {
                decided.conclude(Verdict::Refused, &of.1.handle);
                let nobody = (Vec::new(), None);
                return charged(left_out, &optional, nobody, Err(Refusal::TooMany));
            }
        }
    }
    let (members, part) = joined_part(asked, &left_out, labels);
    let admitted = match &part {
        Some(part) => charge_all(limiter, Arc::clone(&part.decision), None, of, decided).await,
        None => Err(Refusal::PolicyFailed),
    };
    charged(left_out, &optional, (members, part), admitted)
}

fn is_at(optional: &[bool], at: usize) -> bool {
    optional.get(at).copied().unwrap_or(false)
}

/// Whether a descriptor in quota mode is not left out.
fn is_one_kept(optional: &[bool], left_out: &[Option<LeftOut>]) -> bool {
    optional.iter().zip(left_out).any(|(is_optional, out)| *is_optional && out.is_none())
}

/// The descriptors that are not left out, by index, and what they are joined to. The labels are
/// those of all.
fn joined_part<'a>(
    asked: &Asked<'a>,
    left_out: &[Option<LeftOut>],
    labels: &[(String, String)],
) -> (Vec<usize>, Option<Joined<'a>>) {
    let kept = asked.iter().zip(left_out).enumerate().filter(|(_, (_, out))| out.is_none());
    let (members, part): (Vec<usize>, Asked<'a>) =
        kept.map(|(at, (one, _))| (at, one.clone())).unzip();
    // What all of them could be joined to, a part of them can.
    let joined = join(&part, false).ok().map(|mut joined| {
        if joined.decision.labels != labels {
            let labels = labels.to_vec();
            joined.decision = Arc::new(Decision { labels, ..Decision::clone(&joined.decision) });
        }
        joined
    });
    (members, joined)
}

fn plan_of(part: &Joined<'_>) -> Option<(Arc<Decision>, Arc<Plan>)> {
    match &part.decision.verdict {
        Answer::Check(plan) => Some((Arc::clone(&part.decision), Arc::clone(plan))),
        Answer::Bypass | Answer::Deny(_) => None,
    }
}

/// The shares to leave out, by index, and whether another limit refuses whatever is left out. Of
/// several that have a limit together, the last one is left out: the others may have room then.
fn without_room(
    (limits, outcome): (&[Limit], &PlanOutcome),
    shares: &[Share],
    is_optional: impl Fn(usize) -> bool,
) -> (BTreeSet<usize>, bool) {
    let (mut last, mut is_final) = (BTreeSet::new(), false);
    let violated = limits.iter().zip(&outcome.limits).enumerate();
    let violated = violated.filter(|(_, (limit, of))| PlanOutcome::is_violated(limit, of));
    for (index, _) in violated {
        let owns = |share: &Share| share.limits.contains(&index);
        let owners =
            || shares.iter().enumerate().filter(|(_, share)| owns(share)).map(|(at, _)| at);
        if owners().all(&is_optional) {
            last.extend(owners().next_back());
        } else {
            is_final = true;
        }
    }
    (last, is_final)
}

/// A share's limits, with what they said.
fn said(share: &Share, limits: &[Limit], outcome: &PlanOutcome) -> Vec<(Limit, LimitOutcome)> {
    let each = share.limits.iter().map(|at| (limits.get(*at), outcome.limits.get(*at)));
    each.filter_map(|(limit, of)| Some((limit?.clone(), *of?))).collect()
}

/// In how many microseconds a descriptor that was left out has room, as far as its limits know.
/// None if it never has, or is not left out.
fn wait_us(out: &Option<LeftOut>) -> Option<u64> {
    let limits = &out.as_ref()?.limits;
    let refusing = limits.iter().filter(|(limit, of)| PlanOutcome::is_violated(limit, of));
    refusing.map(|(_, of)| of.retry_after_us.unwrap_or(u64::MAX)).max()
}

/// The shares of all descriptors, from those of the ones that were not left out.
fn charged(
    left_out: Vec<Option<LeftOut>>,
    optional: &[bool],
    (members, part): (Vec<usize>, Option<Joined<'_>>),
    admitted: Result<(), Refusal>,
) -> Charged {
    let owing = left_out.iter().flatten().flat_map(|out| &out.limits);
    let owing = debts(owing.map(|(limit, _)| limit)).cloned().collect();
    let out = |(out, is_optional): (Option<LeftOut>, &bool)| Share {
        is_over: out.is_some(),
        is_optional: *is_optional,
        left_out: out.map(|out| out.limits).unwrap_or_default(),
        ..Share::default()
    };
    let mut shares: Shares = left_out.into_iter().zip(optional).map(out).collect();
    for (at, share) in members.into_iter().zip(part.into_iter().flat_map(|part| part.shares)) {
        let is_optional = is_at(optional, at);
        if let Some(own) = shares.get_mut(at) {
            *own = Share { is_optional, ..share };
        }
    }
    Charged { shares, admitted, owing }
}
