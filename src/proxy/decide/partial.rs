//! Taking less of limits than their cost, where the policy allows that: what is left of them.

use crate::plan::{Limit, Plan, PlanOutcome};
use crate::policy::Partial;

/// How often less is taken of limits than their cost, at most, for one request. Each time others
/// may have taken what was left.
pub(in crate::proxy) const PARTIAL_TRIES_MAX: usize = 3;

/// The plan with less than the cost for the limits of `partial`: what `outcome` says is left of all
/// of them, or the least, so that a refusal says when there is as much. `None` if the cost is no
/// more than that, or if another limit refused.
pub(in crate::proxy) fn reduced(
    partial: &Partial,
    plan: &Plan,
    outcome: &PlanOutcome,
) -> Option<(u64, Plan)> {
    let is_partial = |limit: &Limit| partial.limits.contains(&limit.name);
    if outcome.violated(plan.limits()).any(|(limit, _)| !is_partial(limit)) {
        return None;
    }
    let of_partial =
        plan.limits().iter().zip(&outcome.limits).filter(|(limit, _)| is_partial(limit));
    let left = of_partial.map(|(limit, outcome)| outcome.remaining.min(limit.cost)).min()?;
    let left = left.max(partial.least);
    if plan.limits().iter().filter(|limit| is_partial(limit)).all(|limit| limit.cost <= left) {
        return None;
    }
    let limits = plan.limits().iter().map(|limit| {
        let cost = if is_partial(limit) { left.min(limit.cost) } else { limit.cost };
        Limit { cost, ..limit.clone() }
    });
    Some((left, Plan::new(limits.collect()).ok()?.quiet()))
}
