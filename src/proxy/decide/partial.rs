//! Taking less of limits than their cost, where the policy allows that: what is left of them.

use crate::plan::{Limit, Plan, PlanOutcome};
use crate::policy::Partial;

/// How often less is taken of limits than their cost, at most, for one request. Each time others
/// may have taken what was left.
pub(in crate::proxy) const PARTIAL_TRIES_MAX: usize = 3;

/// What a request may take instead of its cost.
pub(in crate::proxy) struct Reduced {
    /// The units of each limit, or its cost if that is less.
    pub(in crate::proxy) units: u64,
    /// Whether as much was left: else it is the least.
    pub(in crate::proxy) is_there: bool,
    pub(in crate::proxy) plan: Plan,
}

/// The plan with less than the cost for the limits of `partial`: what `outcome` says is left of all
/// of them, or the least, so that a refusal says when there is as much. `None` if the cost is no
/// more than that, or if another limit refused.
pub(in crate::proxy) fn reduced(
    partial: &Partial,
    plan: &Plan,
    outcome: &PlanOutcome,
) -> Option<Reduced> {
    let is_partial = |limit: &Limit| partial.limits.contains(&limit.name);
    if outcome.violated(plan.limits()).any(|(limit, _)| !is_partial(limit)) {
        return None;
    }
    let of_partial =
        plan.limits().iter().zip(&outcome.limits).filter(|(limit, _)| is_partial(limit));
    let left = of_partial.map(|(limit, outcome)| outcome.remaining.min(limit.cost)).min()?;
    let (units, is_there) = (left.max(partial.least), left >= partial.least);
    if plan.limits().iter().filter(|limit| is_partial(limit)).all(|limit| limit.cost <= units) {
        return None;
    }
    let limits = plan.limits().iter().map(|limit| {
        let cost = if is_partial(limit) { units.min(limit.cost) } else { limit.cost };
        Limit { cost, ..limit.clone() }
    });
    Some(Reduced { units, is_there, plan: Plan::new(limits.collect()).ok()?.quiet() })
}
