//! Decides a call by the policy of its domain's route.

use std::pin::pin;

use crate::listen::Peer;
use crate::proxy::callers::Caller;
use crate::proxy::context::RequestContext;
use crate::proxy::decide::admit::Question;
use crate::proxy::decide::descriptors::{self, Decisions, Shares};
use crate::proxy::decide::{Decided, Decider};
use crate::proxy::live::LocalSnapshot;
use crate::proxy::receive::call::Call;
use crate::proxy::receive::target::{Authority, Target};
use crate::proxy::refusal::{CallError, Refusal};
use crate::proxy::route::Routed;
use crate::proxy::route::maintenance::Maintenance;
use crate::wire::Request;

/// Facts that every request has, apart from the client's address, which policies may do without.
const IN_EVERY_REQUEST: [&str; 3] = ["method", "scheme", "path"];
/// The fact that has the limits that a caller sends.
const LIMITS: &str = "rls.limits";
/// Decides a call by the policy of its domain's route. The shares are those of its descriptors in
/// what was decided.
pub(super) async fn decide(
    local: &LocalSnapshot,
    call: &Call,
    request: &mut Request,
    (peer, caller): (&Peer, Option<&Caller>),
    context: &mut RequestContext,
) -> Decisions {
    context.received.note_caller(caller, local);
    context.received.note_asked(call, local);
    if let Some(Err(refusal)) = caller.map(|caller| caller.check_domain(&call.domain)) {
        return (Shares::new(), Err(refusal));
    }
    let snapshot = local.snapshot();
    let index = snapshot.domain(&call.domain);
    let found = index.and_then(|index| Some((snapshot.route(index)?, local.handle(index)?)));
    let Some((route, handle)) = found else {
        return (Shares::new(), Err(Refusal::Call(CallError::NoDomain)));
    };
    context.routed = Routed::on(handle, &context.received, &request.fields);
    if route.maintenance.as_ref().is_some_and(Maintenance::is_on) {
        return (Shares::new(), Err(Refusal::Maintenance));
    }
    // Each route with a domain has a policy.
    let Some(decider) = &route.decider else { return (Shares::new(), Err(Refusal::NotFound)) };
    if call.has_limits() && !decider.policy.request_facts().iter().any(|fact| fact == LIMITS) {
        let found = "`limits`, which the policy of this domain does not take (`rls` does)";
        return (Shares::new(), Err(Refusal::malformed(found.to_owned())));
    }
    if let Some(missing) = unsaid(call, decider) {
        let found = format!("no fact \"{missing}\", which the policy of this domain reads");
        return (Shares::new(), Err(Refusal::malformed(found)));
    }
    if !decider.policy.sets_priorities() && context.routed.handle.turns_away(route.priority) {
        return (Shares::new(), Err(Refusal::Overloaded));
    }
    let authority = Authority::default();
    let RequestContext { received, routed, decided, .. } = &mut *context;
    let decided = decided.insert(Decided::default());
    let question = |request| Question {
        decider,
        request,
        target: Target::of(request, &authority, snapshot.settings.paths, peer),
        peer,
        parameters: &[],
        upgrade: None,
        body: None,
        descriptor: None,
        is_sent: false,
        received,
        routed,
    };
    let limiter = &snapshot.limiter;
    let answered = pin!(descriptors::decide(question(request), call, limiter, decided)).await;
    if routed.sampled || (answered.1.is_err() && routed.handle.insight.remembers()) {
        question(request).keep_facts_of(call, decided);
    }
    answered
}

/// A fact that every request has, that the policy reads, and that a caller does not give.
/// Conditions on it would be false, and limits with them would not apply.
fn unsaid(call: &Call, decider: &Decider) -> Option<&'static str> {
    let given = call.descriptors.iter().filter_map(|descriptor| descriptor.facts.as_ref());
    let lacks = |name: &str| given.clone().any(|facts| facts.iter().all(|(own, _)| own != name));
    let reads = |name: &str| decider.policy.request_facts().iter().any(|fact| fact == name);
    IN_EVERY_REQUEST.into_iter().find(|name| lacks(name) && reads(name))
}
