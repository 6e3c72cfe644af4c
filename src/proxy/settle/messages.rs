//! What is read of the messages of a request that becomes a WebSocket: what its policy asks for.

use std::sync::Arc;

use super::{CountedUnits, response_facts, settle_grant};
use crate::clock;
use crate::limit::{Ending, ExtraTakes};
use crate::plan::Plan;
use crate::policy::{MessageExcess, Verdict};
use crate::proxy::decide::Decided;
use crate::proxy::forward::tunnel::{MESSAGES, MessageLimits, UpgradeRequest, Watch};
use crate::proxy::route::Routed;

/// What to read of the tunnel that a request becomes.
pub(in crate::proxy) fn watch(
    routed: &Routed,
    decided: Option<&Decided>,
    upgrade: &UpgradeRequest,
) -> Watch {
    if !upgrade.has_messages() {
        return Watch::Nothing;
    }
    if let Some(limits) = decided.and_then(|decided| limits(routed, decided, upgrade)) {
        return Watch::Limits(Box::new(limits));
    }
    let facts = response_facts(routed, decided).unwrap_or_default();
    let are_counted = facts.iter().any(|fact| MESSAGES.contains(&fact.as_str()));
    if are_counted { Watch::Counts } else { Watch::Nothing }
}

/// The limits that messages are charged to, if there are any.
fn limits(routed: &Routed, decided: &Decided, upgrade: &UpgradeRequest) -> Option<MessageLimits> {
    let decision = decided.decision.as_ref()?;
    let Verdict::Check(plan) = &decision.verdict else { return None };
    let charged = plan.limits().iter().filter_map(|limit| {
        let (_, excess) = decision.messages.iter().find(|(name, _)| *name == limit.name)?;
        Some((limit.clone(), *excess))
    });
    let charged: Vec<_> = charged.collect();
    let plan = Plan::new(charged.iter().map(|(limit, _)| limit.clone()).collect()).ok()?;
    // Each try of a message that waits is refused but the last.
    let may_wait =
        charged.iter().any(|(limit, excess)| limit.is_enforced() && *excess == MessageExcess::Wait);
    let plan = if may_wait { plan.quiet() } else { plan };
    let takes = ExtraTakes::new(decided.grant.as_ref()?, plan);
    let handle = Arc::clone(&routed.handle);
    // What is taken for a message stays taken.
    let on_grant = Box::new(move |grant| {
        let end = (Ending::Completed, clock::monotonic());
        settle_grant(&handle, (grant, CountedUnits::Nothing), end, &[]);
    });
    Some(MessageLimits::new(charged, takes, upgrade.idle(), on_grant))
}
