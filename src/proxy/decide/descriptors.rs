//! Several questions at once: the descriptors of a call of Envoy's rate limit service. The policy
//! is asked about each, and the limits of all are taken together or not at all. Knows nothing of
//! how that is answered.

use std::pin::pin;
use std::sync::Arc;

use smallvec::SmallVec;

use super::Decided;
use super::admit::{DecisionError, Question, charge, note_time, on_policy_error};
use super::policy_fields::PolicyFields;
use crate::limit::{Ending, Limiter};
use crate::plan::{
    AMOUNT_MAX, Adjustment, Algorithm, Change, Debt, Limit, MEMBERS_MAX, Plan, Refund, Role, Slot,
};
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
    /// than any limit has units.
    pub(in crate::proxy) is_over: bool,
}

/// One for each descriptor, in their order.
pub(in crate::proxy) type Shares = SmallVec<[Share; 2]>;

/// The descriptors' decisions as one.
#[derive(Debug)]
struct Joined {
    decision: Arc<Decision>,
    shares: Shares,
    /// What one hit would take of each limit, of a look that is to say whether it would fit.
    wanted: SmallVec<[u64; 2]>,
    /// The limits that get units back before, with how many.
    returned: Vec<Limit>,
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
    let asked = ask(question, call, decided);
    let (received, routed) = (question.received, question.routed);
    async move {
        let (Joined { decision, shares, wanted, returned }, upstream_fields) = match asked {
            Ok(asked) => asked,
            Err(ended) => return (Shares::new(), ended),
        };
        let is_denied = matches!(decision.verdict, Answer::Deny(_));
        if !returned.is_empty() && !is_denied {
            let given_back = pin!(give_back(limiter, returned, routed)).await;
            if let Err(refusal) = given_back {
                decided.decision = Some(decision);
                decided.conclude(Verdict::Unavailable, &routed.handle);
                return (shares, Err(refusal));
            }
        }
        let admitted = if !is_denied && shares.iter().any(|share| share.is_over) {
            // The limits are not asked: they could never have room.
            decided.decision = Some(decision);
            decided.conclude(Verdict::Refused, &routed.handle);
            Err(Refusal::TooMany)
        } else {
            pin!(charge(limiter, decision, None, (received, routed), decided)).await
        };
        let admitted = match admitted {
            Ok(()) if lacks(&wanted, decided) => Err(Refusal::TooMany),
            admitted => admitted,
        };
        note_time((received, routed), decided);
        if matches!(admitted, Err(Refusal::TooMany)) && call.is_spent {
            owe(limiter, routed, decided);
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
    let plan = Plan::new(returned).map_err(|wrong| Refusal::malformed(wrong.to_string()))?;
    let given_back = limiter.give_back(&policy.scope, &plan).await;
    given_back.map_err(|_| Refusal::StoreUnavailable)
}

/// Charges what was refused to those limits that may be in debt. A caller that reports what was
/// used already can't be told that it was not.
fn owe(limiter: &Limiter, routed: &Routed, decided: &Decided) {
    let verdict = decided.decision.as_ref().map(|decision| &decision.verdict);
    let (Some(Answer::Check(plan)), Some(policy)) = (verdict, &routed.handle.policy) else {
        return;
    };
    let owing = plan.limits().iter().filter(|limit| {
        limit.cost > 0 && limit.is_enforced() && limit.algorithm.debt() != Debt::None
    });
    for limit in owing {
        // By itself, as another of its name may be in the plan.
        let Ok(plan) = Plan::new(vec![limit.clone()]) else { continue };
        let change = Adjustment { limit: limit.name.clone(), change: Change::Debt(limit.cost) };
        let grant = limiter.empty_grant(&policy.scope, &Arc::new(plan));
        grant.settle(Ending::Completed, &[change]);
    }
}

/// What the policy says of all descriptors, and the fields that it sets on the request.
///
/// # Errors
/// How the call ends without the limits being asked.
fn ask(
    question: Question<'_>,
    call: &Call,
    decided: &mut Decided,
) -> Result<(Joined, PolicyFields), Result<PolicyFields, Refusal>> {
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
    let joined = join(&asked, call.is_held).and_then(|joined| match call.is_quota {
        true => check_quota(&joined).map(|()| joined),
        false => Ok(joined),
    });
    let joined = joined.map_err(|wrong| {
        // Limits that a caller sends are not the policy's to answer for. Nor is what it asks of
        // limits that hold something, without holding it.
        if call.is_about_facts() || call.gives_back() || call.is_quota {
            return Err(Refusal::malformed(wrong));
        }
        question.note_failure(&wrong, decided);
        Err(Refusal::PolicyFailed)
    })?;
    Ok((joined, upstream_fields))
}

/// Joins what the policy answered for each descriptor.
///
/// # Errors
/// The limits can't be taken together: there are too many, or two of them are one counter with
/// different settings.
fn join(asked: &[(Option<Arc<Decision>>, &Descriptor)], is_held: bool) -> Result<Joined, String> {
    if let [(Some(decision), one @ Descriptor { hits: 1, gives_back: 0, .. })] = asked {
        return alone(decision, one, is_held);
    }
    let (mut limits, mut shares, mut returned) = (Vec::new(), Shares::new(), Vec::new());
    let (mut first, mut denied, mut labels) = (None, None, Vec::new());
    for (decision, descriptor) in asked {
        let Some(decision) = decision else {
            shares.push(Share::default());
            continue;
        };
        first = first.or(Some(decision));
        add_labels(&mut labels, &decision.labels);
        shares.push(match &decision.verdict {
            Answer::Check(plan) => {
                let ways = Ways { is_held, is_alone: asked.len() == 1 };
                if descriptor.gives_back > 0 {
                    check_returned(plan.limits())?;
                    add(&mut returned, plan.limits(), descriptor.gives_back, ways)?;
                }
                add(&mut limits, plan.limits(), descriptor.hits, ways)?
            }
            Answer::Bypass => Share::default(),
            Answer::Deny(_) => {
                denied = denied.or(Some(decision));
                Share { is_over: true, ..Share::default() }
            }
        });
    }
    if let Some(decision) = denied {
        let (decision, wanted) = (Arc::clone(decision), SmallVec::new());
        return Ok(Joined { decision, shares, wanted, returned });
    }
    let Some(first) = first else { return Err("no descriptor".to_owned()) };
    let wanted = match (asked, &first.verdict) {
        ([(_, Descriptor { hits: 0, facts: Some(_), .. })], Answer::Check(plan)) => {
            plan.limits().iter().map(|limit| limit.cost).collect()
        }
        _ => SmallVec::new(),
    };
    let verdict = if limits.is_empty() {
        Answer::Bypass
    } else {
        let plan = Plan::joined(limits).map_err(|wrong| {
            format!("the limits of the descriptors can't be taken together: {wrong}")
        })?;
        Answer::Check(Arc::new(plan))
    };
    let decision = Decision {
        verdict,
        labels,
        // What it may have taken back later is known for one descriptor only.
        settle_with: None,
        settle_on_refusal: false,
        bodies: None,
        messages: Vec::new(),
        slot: Slot::default(),
        ..Decision::clone(first)
    };
    // Nobody here goes on refusing because of what was there before.
    returned.iter_mut().for_each(|limit: &mut Limit| limit.refund = Refund::BySettle);
    Ok(Joined { decision: Arc::new(decision), shares, wanted, returned })
}

/// What the policy answered for the only descriptor, with one hit, as in most calls: it is used as
/// it is, with all that was derived from it.
fn alone(
    decision: &Arc<Decision>,
    descriptor: &Descriptor,
    is_held: bool,
) -> Result<Joined, String> {
    // Nobody tells the caller what becomes of a body, or says how what is not held has ended.
    let settles = decision.settle_with.is_some() && !is_held;
    let decision = if descriptor.facts.is_some() && (decision.bodies.is_some() || settles) {
        let mut own = Decision::clone(decision);
        (own.bodies, own.slot) = (None, Slot::default());
        if settles {
            (own.settle_with, own.settle_on_refusal) = (None, false);
        }
        &Arc::new(own)
    } else {
        decision
    };
    let share = match &decision.verdict {
        Answer::Check(plan) => {
            check(plan.limits(), is_held)?;
            Share { limits: (0..plan.limits().len()).collect(), is_over: false }
        }
        Answer::Bypass => Share::default(),
        Answer::Deny(_) => Share { is_over: true, ..Share::default() },
    };
    Ok(Joined {
        decision: Arc::clone(decision),
        shares: std::iter::once(share).collect(),
        wanted: SmallVec::new(),
        returned: Vec::new(),
    })
}

/// Adds a decision's labels to those of others: each name once, with all of its values.
fn add_labels(all: &mut Vec<(String, String)>, labels: &[(String, String)]) {
    for (name, value) in labels {
        match all.iter_mut().find(|(known, _)| known == name) {
            None => all.push((name.clone(), value.clone())),
            Some((_, values)) if values.split(';').any(|known| known == value) => {}
            Some((_, values)) => {
                values.push(';');
                values.push_str(value);
            }
        }
    }
}

/// Checks that limits mean something in a call. Unless it is held, it ends with its answer.
fn check(limits: &[Limit], is_held: bool) -> Result<(), String> {
    let holding = limits.iter().find(|limit| matches!(limit.algorithm, Algorithm::Concurrency(_)));
    match holding {
        Some(limit) if !is_held => Err(format!(
            "the limit {:?} is of what is in flight: hold it (`hold_ms`), and say when it ends",
            limit.name
        )),
        _ => Ok(()),
    }
}

/// Checks that units of limits can be given back by those who have not taken them.
fn check_returned(limits: &[Limit]) -> Result<(), String> {
    let fits = |limit: &&Limit| {
        limit.algorithm.settles()
            && !limit.algorithm.keeps_members()
            && limit.role == Role::Alone
            && !matches!(limit.algorithm, Algorithm::Script(_))
    };
    match limits.iter().find(|limit| !fits(limit)) {
        None => Ok(()),
        Some(limit) => Err(format!(
            "negative hits, which can't be used with the limit {:?}: {} gives units back by name only",
            limit.name,
            limit.algorithm.name()
        )),
    }
}

/// Checks that units of limits can be handed out.
fn check_quota(joined: &Joined) -> Result<(), String> {
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

/// In which ways a descriptor is decided on.
#[derive(Clone, Copy)]
struct Ways {
    /// Its caller says when what is let through has ended.
    is_held: bool,
    /// There is no other in its call.
    is_alone: bool,
}

/// Adds a descriptor's limits to those of others.
fn add(
    all: &mut Vec<Limit>,
    limits: &[Limit],
    hits: u64,
    Ways { is_held, is_alone }: Ways,
) -> Result<Share, String> {
    // A look holds nothing.
    check(limits, is_held || hits == 0)?;
    let mut share = Share::default();
    for limit in limits {
        if limit.role != Role::Alone && !is_alone {
            return Err(format!("the limit {:?} has children, of one descriptor only", limit.name));
        }
        let cost = limit.cost.saturating_mul(hits);
        let most = if limit.algorithm.keeps_members() { MEMBERS_MAX } else { AMOUNT_MAX };
        share.is_over |= cost > most && limit.is_enforced();
        let cost = cost.min(most);
        let same = all.iter().position(|other| other.name == limit.name && other.key == limit.key);
        if let Some(at) = same
            && let Some(other) = all.get_mut(at)
        {
            if (Limit { cost: other.cost, ..limit.clone() }) != *other {
                return Err(format!(
                    "two descriptors have the limit {:?} with one key and different settings",
                    limit.name
                ));
            }
            let sum = other.cost.saturating_add(cost);
            share.is_over |= sum > most && limit.is_enforced();
            other.cost = sum.min(most);
            share.limits.push(at);
            continue;
        }
        share.limits.push(all.len());
        all.push(Limit { cost, ..limit.clone() });
    }
    Ok(share)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Alignment, Concurrency, FixedWindow, Rate};
    use crate::policy::Denial;

    fn limit(name: &str, key: &str, amount: u64) -> Limit {
        let rate = Rate { amount, per_ms: 60_000 };
        let (alignment, debt) = (Alignment::Clock, Debt::None);
        Limit::new(name, key, Algorithm::FixedWindow(FixedWindow { rate, alignment, debt }))
    }

    fn decision(verdict: Answer) -> Arc<Decision> {
        Arc::new(crate::proxy::tests::decision(verdict))
    }

    fn check(limits: Vec<Limit>) -> Arc<Decision> {
        decision(Answer::Check(Arc::new(Plan::new(limits).unwrap())))
    }

    fn descriptor(hits: u64) -> Descriptor {
        let text = String::new();
        let (entries, gives_back) = (Vec::new(), 0);
        Descriptor { entries, text, limit: None, limits: None, hits, gives_back, facts: None }
    }

    /// The limits with their costs, and those of each descriptor by index.
    type Costs = (Vec<(String, u64)>, Vec<Vec<usize>>);

    fn joined(asked: &[(Arc<Decision>, u64)]) -> Result<Costs, String> {
        let descriptors: Vec<Descriptor> =
            asked.iter().map(|(_, hits)| descriptor(*hits)).collect();
        let asked: Vec<_> = asked
            .iter()
            .zip(&descriptors)
            .map(|((one, _), of)| (Some(Arc::clone(one)), of))
            .collect();
        let Joined { decision, shares, .. } = join(&asked, false)?;
        let limits = match &decision.verdict {
            Answer::Check(plan) => plan.limits().to_vec(),
            Answer::Bypass | Answer::Deny(_) => Vec::new(),
        };
        let costs =
            limits.iter().map(|limit| (format!("{}:{}", limit.name, limit.key), limit.cost));
        Ok((costs.collect(), shares.iter().map(|share| share.limits.to_vec()).collect()))
    }

    #[test]
    fn limits_of_all_descriptors_are_one_plan() {
        let asked = [
            (check(vec![limit("a", "x", 5), limit("b", "x", 5)]), 1),
            (decision(Answer::Bypass), 1),
            (check(vec![limit("a", "y", 5)]), 0),
            (check(vec![limit("a", "x", 5)]), 3),
        ];
        let (costs, shares) = joined(&asked).unwrap();
        let expected = [("a:x", 4), ("b:x", 1), ("a:y", 0)];
        assert_eq!(costs, expected.map(|(name, cost)| (name.to_owned(), cost)));
        assert_eq!(shares, [vec![0, 1], vec![], vec![2], vec![0]]);
    }

    #[test]
    fn a_counter_has_one_quota() {
        let asked = [(check(vec![limit("a", "x", 5)]), 1), (check(vec![limit("a", "x", 6)]), 1)];
        assert!(joined(&asked).unwrap_err().contains("different settings"));
        let many: Vec<_> =
            (0..17).map(|key| (check(vec![limit("a", &key.to_string(), 5)]), 1)).collect();
        assert!(joined(&many).unwrap_err().contains("17 limits"));
    }

    #[test]
    fn more_hits_than_any_limit_has_are_over_it() {
        for (hits, is_over) in [(AMOUNT_MAX, false), (AMOUNT_MAX + 1, true), (1 << 63, true)] {
            let descriptor = descriptor(hits);
            let asked = [(Some(check(vec![limit("a", "x", 5)])), &descriptor)];
            assert_eq!(join(&asked, false).unwrap().shares[0].is_over, is_over, "{hits}");
        }
        // Of two descriptors with one counter, it is the sum.
        let (half, more) = (descriptor(AMOUNT_MAX / 2), descriptor(AMOUNT_MAX / 2 + 2));
        let one = || Some(check(vec![limit("a", "x", 5)]));
        assert!(!join(&[(one(), &half), (one(), &half)], false).unwrap().shares[1].is_over);
        assert!(join(&[(one(), &half), (one(), &more)], false).unwrap().shares[1].is_over);
    }

    #[test]
    fn labels_of_one_name_are_one() {
        let labelled = |value: &str| {
            let labels = vec![("rule".to_owned(), value.to_owned())];
            Some(Arc::new(Decision { labels, ..crate::proxy::tests::decision(Answer::Bypass) }))
        };
        let descriptor = descriptor(1);
        let asked = ["a", "b", "a"].map(|value| (labelled(value), &descriptor));
        let labels = join(&asked, false).unwrap().decision.labels.clone();
        assert_eq!(labels, [("rule".to_owned(), "a;b".to_owned())]);
    }

    #[test]
    fn limits_that_mean_nothing_in_a_call_are_refused() {
        let holding = Limit::new("a", "k", Algorithm::Concurrency(Concurrency { amount: 5 }));
        let descriptor = descriptor(1);
        let holding = (Some(check(vec![holding])), &descriptor);
        assert!(join(std::slice::from_ref(&holding), true).is_ok(), "its end is reported");
        assert!(join(std::slice::from_ref(&holding), false).unwrap_err().contains("in flight"));
        assert!(join(&[holding.clone(), holding], false).unwrap_err().contains("in flight"));
    }

    #[test]
    fn what_the_policy_refuses_is_refused_whatever_the_others_are() {
        let denial = Denial {
            status: 403,
            reason: "no".to_owned(),
            retry_after_ms: None,
            headers: Vec::new(),
            body: None,
        };
        let (one, other) = (descriptor(1), descriptor(1));
        let asked = [
            (Some(check(vec![limit("a", "x", 5)])), &one),
            (Some(decision(Answer::Deny(denial))), &other),
        ];
        let Joined { decision, shares, .. } = join(&asked, false).unwrap();
        assert!(matches!(decision.verdict, Answer::Deny(_)));
        assert_eq!(shares.iter().map(|share| share.is_over).collect::<Vec<_>>(), [false, true]);
    }
}
