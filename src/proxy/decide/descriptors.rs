//! Several questions at once: the descriptors of a call of Envoy's rate limit service. The policy
//! is asked about each, and the limits of all are taken together or not at all. Knows nothing of
//! how that is answered.

use std::pin::pin;
use std::sync::Arc;

use smallvec::SmallVec;

use super::Decided;
use super::admit::{Question, charge, note_time, on_policy_error};
use super::policy_fields::PolicyFields;
use crate::limit::Limiter;
use crate::plan::{AMOUNT_MAX, Limit, MEMBERS_MAX, Plan, Role, Slot};
use crate::policy::{Decision, Verdict as Answer};
use crate::proxy::receive::rls::{Call, Descriptor, DescriptorView};
use crate::proxy::refusal::Refusal;
use crate::proxy::verdict::Verdict;

/// What of the decision a descriptor has part in.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Share {
    /// The limits of the plan that its hits are charged to, by their indices.
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
        let (Joined { decision, shares }, upstream_fields) = match asked {
            Ok(asked) => asked,
            Err(ended) => return (Shares::new(), ended),
        };
        let is_denied = matches!(decision.verdict, Answer::Deny(_));
        let admitted = if !is_denied && shares.iter().any(|share| share.is_over) {
            // The limits are not asked: they could never have room.
            decided.decision = Some(decision);
            decided.conclude(Verdict::Refused, &routed.handle);
            Err(Refusal::TooMany)
        } else {
            pin!(charge(limiter, decision, None, (received, routed), decided)).await
        };
        note_time((received, routed), decided);
        (shares, admitted.map(|()| upstream_fields))
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
    let mut asked: SmallVec<[(Arc<Decision>, &Descriptor); 2]> = SmallVec::new();
    let (mut upstream_fields, mut response_fields) = (PolicyFields::new(), PolicyFields::new());
    for descriptor in &call.descriptors {
        let view = DescriptorView { domain: &call.domain, descriptor };
        let question = Question { descriptor: Some(view), ..question };
        let (decision, upstream) = question
            .ask(decided, |_| {})
            .map_err(|failed| on_policy_error(question.decider, failed, handle, decided))?;
        if question.is_turned_away(&decision) {
            return Err(Err(Refusal::Overloaded));
        }
        upstream_fields.extend(upstream);
        response_fields.append(&mut decided.response_fields);
        asked.push((decision, descriptor));
    }
    decided.response_fields = response_fields;
    let joined = join(&asked).map_err(|wrong| {
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
fn join(asked: &[(Arc<Decision>, &Descriptor)]) -> Result<Joined, String> {
    // Most calls: what the policy has answered before is used as it is, with all that was derived
    // from it.
    if let [(decision, Descriptor { hits: 1, .. })] = asked {
        let share = match &decision.verdict {
            Answer::Check(plan) => {
                Share { limits: (0..plan.limits().len()).collect(), is_over: false }
            }
            Answer::Bypass => Share::default(),
            Answer::Deny(_) => Share { is_over: true, ..Share::default() },
        };
        return Ok(Joined {
            decision: Arc::clone(decision),
            shares: std::iter::once(share).collect(),
        });
    }
    let (mut limits, mut shares) = (Vec::new(), Shares::new());
    let mut denied = None;
    for (decision, descriptor) in asked {
        shares.push(match &decision.verdict {
            Answer::Check(plan) => add(&mut limits, plan.limits(), descriptor.hits)?,
            Answer::Bypass => Share::default(),
            Answer::Deny(_) => {
                denied = denied.or(Some(decision));
                Share { is_over: true, ..Share::default() }
            }
        });
    }
    if let Some(decision) = denied {
        return Ok(Joined { decision: Arc::clone(decision), shares });
    }
    let Some((first, _)) = asked.first() else { return Err("no descriptor".to_owned()) };
    let verdict = if limits.is_empty() {
        Answer::Bypass
    } else {
        let plan = Plan::joined(limits).map_err(|wrong| {
            format!("the limits of the descriptors can't be taken together: {wrong}")
        })?;
        Answer::Check(Arc::new(plan))
    };
    let labels = asked.iter().flat_map(|(decision, _)| &decision.labels);
    let decision = Decision {
        verdict,
        labels: labels.cloned().collect(),
        // What it may have taken back later is known for one descriptor only.
        settle_with: None,
        settle_on_refusal: false,
        bodies: None,
        messages: Vec::new(),
        slot: Slot::default(),
        ..Decision::clone(first)
    };
    Ok(Joined { decision: Arc::new(decision), shares })
}

/// Adds a descriptor's limits to those of others.
fn add(all: &mut Vec<Limit>, limits: &[Limit], hits: u64) -> Result<Share, String> {
    let offset = all.len();
    let mut share = Share::default();
    for limit in limits {
        let cost = limit.cost.saturating_mul(hits);
        let most = if limit.algorithm.keeps_members() { MEMBERS_MAX } else { AMOUNT_MAX };
        share.is_over |= cost > most && limit.is_enforced();
        let cost = cost.min(most);
        let same = all.iter().position(|other| other.name == limit.name && other.key == limit.key);
        if let Some(at) = same
            && let Some(other) = all.get_mut(at)
        {
            let is_alike = Limit { cost: other.cost, ..limit.clone() } == *other;
            if !is_alike || limit.role != Role::Alone {
                return Err(format!(
                    "two descriptors have the limit {:?} with one key and different settings",
                    limit.name
                ));
            }
            other.cost = other.cost.saturating_add(cost).min(most);
            share.limits.push(at);
            continue;
        }
        let role = match limit.role {
            Role::Child { assured, parent } => {
                let moved = |index: u8| {
                    u8::try_from(offset + usize::from(index)).map_err(|_| "too many limits")
                };
                Role::Child { assured: moved(assured)?, parent: moved(parent)? }
            }
            role => role,
        };
        share.limits.push(all.len());
        all.push(Limit { cost, role, ..limit.clone() });
    }
    Ok(share)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Algorithm, Alignment, Debt, FixedWindow, Rate};
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
        Descriptor { entries: Vec::new(), text: String::new(), limit: None, hits }
    }

    /// The limits with their costs, and those of each descriptor by index.
    type Costs = (Vec<(String, u64)>, Vec<Vec<usize>>);

    fn joined(asked: &[(Arc<Decision>, u64)]) -> Result<Costs, String> {
        let descriptors: Vec<Descriptor> =
            asked.iter().map(|(_, hits)| descriptor(*hits)).collect();
        let asked: Vec<_> =
            asked.iter().zip(&descriptors).map(|((one, _), of)| (Arc::clone(one), of)).collect();
        let Joined { decision, shares } = join(&asked)?;
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
            let asked = [(check(vec![limit("a", "x", 5)]), &descriptor)];
            assert_eq!(join(&asked).unwrap().shares[0].is_over, is_over, "{hits}");
        }
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
        let asked =
            [(check(vec![limit("a", "x", 5)]), &one), (decision(Answer::Deny(denial)), &other)];
        let Joined { decision, shares } = join(&asked).unwrap();
        assert!(matches!(decision.verdict, Answer::Deny(_)));
        assert_eq!(shares.iter().map(|share| share.is_over).collect::<Vec<_>>(), [false, true]);
    }
}
