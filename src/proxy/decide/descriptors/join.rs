//! Joins what the policy answered for each descriptor to one plan.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Asked, Joined, Share, Shares};
use crate::plan::{AMOUNT_MAX, Algorithm, Limit, MEMBERS_MAX, Plan, Refund, Role, Slot};
use crate::policy::{Decision, Joining, Verdict as Answer};
use crate::proxy::receive::call::Descriptor;

/// Joins what the policy answered for each descriptor.
///
/// # Errors
/// The limits can't be taken together: there are too many, or two of them are one counter with
/// different settings.
pub(super) fn join<'a>(
    asked: &[(Option<Arc<Decision>>, &'a Descriptor)],
    is_held: bool,
) -> Result<Joined<'a>, String> {
    if let [(Some(decision), Descriptor { hits: 1, gives_back: 0, .. })] = asked {
        return alone(decision, is_held);
    }
    let (mut limits, mut shares, mut returned) = (Vec::new(), Shares::new(), Vec::new());
    let (mut first, mut denied, mut labels) = (None, None, Vec::new());
    let in_quota_mode = asked.iter().filter(|(decision, _)| is_in_quota_mode(decision)).count();
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
                let own = plan.limits();
                if descriptor.gives_back > 0 {
                    check_returned(own)?;
                    add(&mut returned, own, descriptor.gives_back, ways)?;
                }
                let share = add(&mut limits, own, descriptor.hits, ways)?;
                // One alone is a limit like any other.
                let is_optional = in_quota_mode > 1 && decision.joining.quota_mode;
                Share { is_optional: is_optional && !own.is_empty(), ..share }
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
        return Ok(Joined { decision, shares, wanted, returned, in_quota_mode: None });
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
        joining: Joining::default(),
        slot: Slot::default(),
        ..Decision::clone(first)
    };
    // Nobody here goes on refusing because of what was there before.
    returned.iter_mut().for_each(|limit: &mut Limit| limit.refund = Refund::BySettle);
    let has_optional = shares.iter().any(|share| share.is_optional);
    let in_quota_mode = has_optional.then(|| asked.iter().cloned().collect());
    Ok(Joined { decision: Arc::new(decision), shares, wanted, returned, in_quota_mode })
}

/// Whether a descriptor is one of those of which one with room is enough.
fn is_in_quota_mode(decision: &Option<Arc<Decision>>) -> bool {
    decision.as_ref().is_some_and(|decision| {
        decision.joining.quota_mode && matches!(decision.verdict, Answer::Check(_))
    })
}

/// Takes out of each answer the limits that another one replaces, whatever becomes of that one:
/// also if it has no room, and is left out.
pub(super) fn leave_out_replaced(asked: &mut Asked<'_>) {
    let replaced: Vec<(usize, String)> = asked
        .iter()
        .enumerate()
        .filter_map(|(by, (decision, _))| Some((by, decision.as_ref()?)))
        .flat_map(|(by, decision)| {
            decision.joining.replaces.iter().map(move |name| (by, name.clone()))
        })
        .collect();
    if replaced.is_empty() {
        return;
    }
    for (index, (decision, _)) in asked.iter_mut().enumerate() {
        let Some(own) = decision else { continue };
        let Answer::Check(plan) = &own.verdict else { continue };
        let is_kept =
            |limit: &&Limit| replaced.iter().all(|(by, name)| *by == index || *name != limit.name);
        let kept: Vec<Limit> = plan.limits().iter().filter(is_kept).cloned().collect();
        if kept.len() == plan.limits().len() {
            continue;
        }
        // A part of a plan is one, but for nothing.
        let verdict = Plan::new(kept).map_or(Answer::Bypass, |plan| Answer::Check(Arc::new(plan)));
        let slot = Slot::default();
        *own = Arc::new(Decision { verdict, slot, ..Decision::clone(own) });
    }
}

/// What the policy answered for the only descriptor, with one hit, as in most calls: it is used as
/// it is, with all that was derived from it.
fn alone<'a>(decision: &Arc<Decision>, is_held: bool) -> Result<Joined<'a>, String> {
    // Nobody tells the caller what becomes of a body, or says how what is not held has ended.
    let settles = decision.settle_with.is_some() && !is_held;
    let decision = if decision.bodies.is_some() || settles {
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
            Share { limits: (0..plan.limits().len()).collect(), ..Share::default() }
        }
        Answer::Bypass => Share::default(),
        Answer::Deny(_) => Share { is_over: true, ..Share::default() },
    };
    Ok(Joined {
        decision: Arc::clone(decision),
        shares: std::iter::once(share).collect(),
        wanted: SmallVec::new(),
        returned: Vec::new(),
        in_quota_mode: None,
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

/// In which ways a descriptor is decided on.
#[derive(Clone, Copy)]
struct Ways {
    /// Its caller says when what is let through has ended.
    is_held: bool,
    /// There is no other in its call.
    is_alone: bool,
}

/// The most units that can be taken of a limit at once.
fn most_of(limit: &Limit) -> u64 {
    if limit.algorithm.keeps_members() { MEMBERS_MAX } else { AMOUNT_MAX }
}

/// What a descriptor by itself takes of a limit that others may have as well.
pub(super) fn own_cost(
    (decision, descriptor): &(Option<Arc<Decision>>, &Descriptor),
    limit: &Limit,
) -> u64 {
    let Some(Answer::Check(plan)) = decision.as_ref().map(|decision| &decision.verdict) else {
        return 0;
    };
    let own = plan.limits().iter().find(|own| own.name == limit.name && own.key == limit.key);
    own.map_or(0, |own| own.cost.saturating_mul(descriptor.hits).min(most_of(limit)))
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
        let most = most_of(limit);
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
    use crate::plan::{Alignment, Concurrency, Debt, FixedWindow, Rate};
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
