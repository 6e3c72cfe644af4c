//! Counts for the operator how much each key uses, and how often it is refused (`insight`).
//!
//! Units are counted once it is known how many they are: with the decision, or at the end of a
//! request for limits that may give back what was taken. What is charged at the end is counted
//! then, too.

use std::time::Instant;

use super::Decided;
use crate::insight::KeyEvent;
use crate::limit::Identity;
use crate::plan::{Limit, Plan, PlanOutcome, Refund};
use crate::policy::Decision;
use crate::proxy::handle::RouteHandle;
use crate::proxy::receive::Received;

/// Whether what is taken for a request may come back, whatever its limits declare: all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) struct ComesBack(bool);

impl ComesBack {
    /// Of a request that may wait for its upstream in vain, or whose caller says how it ended.
    pub(in crate::proxy) fn of(handle: &RouteHandle, decided: &Decided) -> Self {
        Self(handle.may_withdraw || decided.is_held)
    }

    /// Whether what is taken of a limit may come back. A part of it, or all.
    pub(in crate::proxy) fn may(self, limit: &Limit) -> bool {
        (self.0 || limit.refund != Refund::Never) && limit.algorithm.settles()
    }
}

/// Counts what was refused, and what was taken for good. `identities` are those of the plan's
/// limits.
pub(in crate::proxy) fn count_decided(
    (decision, plan): (&Decision, &Plan),
    identities: &[Identity],
    (outcome, less): (&PlanOutcome, Option<u64>),
    comes_back: ComesBack,
    (received, handle): (&Received, &RouteHandle),
) {
    let partial = less.and_then(|less| Some((less, decision.bodies.as_ref()?.partial.as_ref()?)));
    let (limits, outcomes) = (plan.limits(), &outcome.limits);
    if outcome.admitted && limits.iter().all(|limit| comes_back.may(limit)) {
        return;
    }
    handle.insight.count(received.started, |top| {
        let counted = limits.iter().zip(outcomes).zip(identities);
        for ((limit, of), Identity { limit: digest, key }) in counted {
            let happened = match (outcome.admitted, of.fits) {
                // What was not measured was not taken, either.
                _ if of.unmeasured.is_some() => continue,
                (true, true) if comes_back.may(limit) => continue,
                (true, true) if limit.cost > 0 => {
                    let part = partial.filter(|(_, part)| part.limits.contains(&limit.name));
                    KeyEvent::Used(part.map_or(limit.cost, |(less, _)| less.min(limit.cost)))
                }
                (false, false) if limit.is_enforced() => KeyEvent::Refused,
                _ => continue,
            };
            let name = || handle.origin.limit_name(&limit.name);
            top.count(*digest, name, (key.parts(), limit.key.as_str()), happened);
        }
    });
}

/// Counts what a limit of the route came to, when it was settled at `now`.
pub(in crate::proxy) fn count_settled(
    handle: &RouteHandle,
    now: Instant,
    limit: &Limit,
    Identity { limit: digest, key }: Identity,
    units: u64,
) {
    if units > 0 {
        let name = || handle.origin.limit_name(&limit.name);
        handle.insight.count(now, |top| {
            top.count(digest, name, (key.parts(), limit.key.as_str()), KeyEvent::Used(units));
        });
    }
}
