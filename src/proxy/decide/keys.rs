//! Counts for the operator how much each key uses, and how often it is refused (`insight`).
//!
//! Units are counted once it is known how many they are: with the decision, or at the end of a
//! request for limits that may give back what was taken. What is charged at the end is counted
//! then, too.

use std::time::Instant;

use crate::insight::KeyEvent;
use crate::limit::{Ending, Grant, Identity};
use crate::plan::{Adjustment, Enforcement, Limit, Plan, PlanOutcome, Refund};
use crate::proxy::context::RequestContext;
use crate::proxy::snapshot::RouteHandle;

/// Which units of a grant are counted already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) enum CountedUnits {
    /// Those of [`count_decided`].
    Decided,
    /// None.
    Nothing,
}

/// Whether what is taken of it may come back. A part of it, or all.
fn may_come_back(limit: &Limit) -> bool {
    limit.refund != Refund::Never && limit.algorithm.settles()
}

/// Counts what was refused, and what was taken for good. `identities` are those of the plan's
/// limits.
pub(in crate::proxy) fn count_decided(
    plan: &Plan,
    identities: &[Identity],
    outcome: &PlanOutcome,
    context: &RequestContext,
) {
    let less = context.usage.as_ref().and_then(|usage| usage.taken);
    let partial = less.and_then(|less| {
        let decision = context.decision.as_ref()?;
        Some((less, decision.bodies.as_ref()?.partial.as_ref()?))
    });
    let (limits, outcomes) = (plan.limits(), &outcome.limits);
    if outcome.admitted && limits.iter().all(may_come_back) {
        return;
    }
    context.route.insight.count(context.started, |top| {
        let counted = limits.iter().zip(outcomes).zip(identities);
        for ((limit, of), Identity { limit: digest, key }) in counted {
            let happened = match (outcome.admitted, of.fits) {
                // What was not measured was not taken, either.
                _ if of.unmeasured.is_some() => continue,
                (true, true) if may_come_back(limit) => continue,
                (true, true) if limit.cost > 0 => {
                    let part = partial.filter(|(_, part)| part.limits.contains(&limit.name));
                    KeyEvent::Used(part.map_or(limit.cost, |(less, _)| less))
                }
                (false, false) if limit.enforcement == Enforcement::Enforce => KeyEvent::Refused,
                _ => continue,
            };
            let name = || context.route.origin.limit_name(&limit.name);
            top.count(*digest, name, (key.parts(), limit.key.as_str()), happened);
        }
    });
}

/// Settles a grant of the route at `now`, and counts what it came to.
pub(in crate::proxy) fn settle(
    route: &RouteHandle,
    now: Instant,
    (grant, counted): (Grant, CountedUnits),
    ending: Ending,
    adjustments: &[Adjustment],
) {
    let is_known = counted == CountedUnits::Decided
        && adjustments.is_empty()
        && !grant.limits().iter().any(may_come_back);
    if is_known || !route.insight.counts_keys() {
        grant.settle(ending, adjustments);
        return;
    }
    grant.settle_with_report(
        ending,
        adjustments,
        |limit, Identity { limit: digest, key }, settled| {
            let is_counted = counted == CountedUnits::Decided && !may_come_back(limit);
            let taken =
                if is_counted { 0 } else { settled.taken.saturating_sub(settled.given_back) };
            let units = taken.saturating_add(settled.charged);
            if units > 0 {
                let name = || route.origin.limit_name(&limit.name);
                route.insight.count(now, |top| {
                    top.count(
                        digest,
                        name,
                        (key.parts(), limit.key.as_str()),
                        KeyEvent::Used(units),
                    );
                });
            }
        },
    );
}
