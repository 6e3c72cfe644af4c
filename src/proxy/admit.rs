//! Whether a request may go on: its policy is asked (Wasm), then the limits that the policy named
//! (Lua). Knows neither engine.

use std::sync::Arc;

use super::facts::{Facts, Seen};
use super::forward::{self, PolicyFields};
use super::house::{Decider, Route};
use super::refusal::Refusal;
use super::tally::Decided;
use super::target::Target;
use super::visit::Visit;
use crate::clock;
use crate::limit::{Limiter, Take};
use crate::listen::Peer;
use crate::plan::Limit;
use crate::policy::{Decision, Verdict};
use crate::wire::Request;

/// What a decision wants set on the request to the upstream; nothing on a route without a policy.
/// The policy is asked at once, the limits in the future: a request can't be lent across threads,
/// since its body can't.
///
/// # Errors
/// The policy denied, a limit refused, or one of the two could not answer and the route says deny.
pub(super) fn admit(
    limiter: &Limiter,
    route: &Route,
    request: &Request,
    target: Target<'_>,
    peer: &Peer,
    parameters: &[&str],
    visit: &mut Visit,
) -> impl Future<Output = Result<PolicyFields, Refusal>> {
    let asked = route
        .decider
        .as_ref()
        .map(|decider| (decider, ask(decider, request, target, peer, parameters, visit)));
    async move {
        let Some((decider, asked)) = asked else { return Ok(PolicyFields::new()) };
        let admitted = match asked {
            Some((decision, upstream_fields)) => {
                charge(limiter, decision, visit).await.map(|()| upstream_fields)
            }
            None => unasked(decider, visit),
        };
        // A turn that was waited for is no time of deciding. Routing is counted too: it is short,
        // and a look at the clock is saved.
        let decided = clock::monotonic()
            .saturating_duration_since(visit.started)
            .saturating_sub(visit.delayed());
        visit.tail.tally.metrics().decision_seconds().observe(decided);
        admitted
    }
}

/// What a decision wants set on a request to the upstream that is let through uncounted, a
/// browser's preflight. Of the decision nothing else is done; but what a client writes where the
/// policy tells the upstream something must not pass for the policy's word.
///
/// # Errors
/// The policy could not answer and the route says deny.
pub(super) fn uncounted(
    route: &Route,
    request: &Request,
    target: Target<'_>,
    peer: &Peer,
    parameters: &[&str],
    visit: &mut Visit,
) -> Result<PolicyFields, Refusal> {
    let Some(decider) = &route.decider else { return Ok(PolicyFields::new()) };
    let asked = ask(decider, request, target, peer, parameters, visit);
    visit.response_fields = PolicyFields::new();
    let Some((_, upstream_fields)) = asked else { return unasked(decider, visit) };
    visit.decided(Decided::Bypassed);
    Ok(upstream_fields)
}

/// Asks the policy; `None` when it failed, which is logged here.
fn ask(
    decider: &Decider,
    request: &Request,
    target: Target<'_>,
    peer: &Peer,
    parameters: &[&str],
    visit: &mut Visit,
) -> Option<(Arc<Decision>, PolicyFields)> {
    let seen =
        Seen { request, target, peer, client: &visit.client, route: &visit.tail.route, parameters };
    let facts = Facts::gather(&decider.questions, seen);
    let failed = |error: &dyn std::fmt::Display| {
        if let Some(held_back) = visit.tail.tally.failure_is_said() {
            tracing::warn!(request_id = visit.id.as_str(), route = visit.tail.route, %error, held_back, "policy failed");
        }
    };
    let decision = decider
        .policy
        .decide_for(Some(visit.id.as_bytes()), &facts.pairs())
        .inspect_err(|error| failed(error))
        .ok()?;
    match fields(&decision) {
        Ok((upstream, response)) => {
            visit.response_fields = response;
            Some((decision, upstream))
        }
        Err(name) => {
            let policy = visit.tail.policy().unwrap_or_default();
            failed(&format_args!(
                "policy {policy}: the field {:?} can't be set",
                name.chars().take(64).collect::<String>()
            ));
            visit.tail.tally.policy_error(policy);
            None
        }
    }
}

/// The fields that a decision wants set, on the request and on the reply. An error names the one
/// that can't be.
type Fields = Result<(PolicyFields, PolicyFields), String>;

/// The fields of a decision, which are parsed once and kept with it.
fn fields(decision: &Decision) -> Fields {
    let Decision { verdict, upstream_headers, response_headers, .. } = decision;
    let denies = matches!(verdict, Verdict::Deny(denial) if !denial.headers.is_empty());
    if !denies && upstream_headers.is_empty() && response_headers.is_empty() {
        return Ok((PolicyFields::new(), PolicyFields::new()));
    }
    Derived::with(decision, |derived| derived.fields(decision))
}

/// What is worked out of a decision once, when it is first needed, and kept with it.
#[derive(Default)]
pub(super) struct Derived {
    fields: Option<Fields>,
    /// The inner `None`: it depends on what the limits answer.
    shown: Option<Option<Box<[u8]>>>,
}

impl Derived {
    /// Calls `work` with what is derived of `decision`.
    pub(super) fn with<T>(decision: &Decision, work: impl FnOnce(&mut Self) -> T) -> T {
        decision.slot.with(Self::default, work)
    }

    fn fields(&mut self, decision: &Decision) -> Fields {
        let denied: &[_] =
            if let Verdict::Deny(denial) = &decision.verdict { &denial.headers } else { &[] };
        let parse = || -> Result<_, &str> {
            forward::policy_fields(denied)?;
            Ok((
                forward::policy_fields(&decision.upstream_headers)?,
                forward::policy_fields(&decision.response_headers)?,
            ))
        };
        self.fields.get_or_insert_with(|| parse().map_err(str::to_owned)).clone()
    }

    /// The decision's limits as `RateLimit-Policy` shows them.
    pub(super) fn shown(&mut self, limits: &[Limit]) -> Option<&[u8]> {
        self.shown.get_or_insert_with(|| super::fields::shown(limits)).as_deref()
    }
}

/// `on_policy_error`.
fn unasked(decider: &Decider, visit: &mut Visit) -> Result<PolicyFields, Refusal> {
    visit.decided(Decided::Failed);
    if !decider.allow_on_error {
        return Err(Refusal::PolicyFailed);
    }
    visit.degraded = Some("policy");
    Ok(PolicyFields::new())
}

/// Does as the verdict says.
pub(super) async fn charge(
    limiter: &Limiter,
    decision: Arc<Decision>,
    visit: &mut Visit,
) -> Result<(), Refusal> {
    // The record needs the decision whatever comes of it; the take needs it alive.
    visit.decision = Some(Arc::clone(&decision));
    let plan = match &decision.verdict {
        Verdict::Check(plan) => plan,
        Verdict::Bypass => {
            visit.decided(Decided::Bypassed);
            return Ok(());
        }
        Verdict::Deny(_) => {
            visit.decided(Decided::Denied);
            return Err(Refusal::Denied);
        }
    };
    let Some(scope) = visit.tail.charge.as_ref().map(|charge| &charge.scope) else { return Ok(()) };
    match limiter.take(scope, plan).await {
        Take::Granted(outcome, grant) => {
            let degraded = outcome.is_uncounted(plan.limits());
            visit.degraded = degraded.then_some("store");
            visit.outcome = Some(outcome);
            visit.grant = Some(grant);
            visit.decided(if degraded { Decided::Degraded } else { Decided::Admitted });
            Ok(())
        }
        Take::Refused(outcome) => {
            visit.outcome = Some(outcome);
            visit.decided(Decided::Refused);
            Err(Refusal::TooMany)
        }
        Take::Unavailable => {
            visit.decided(Decided::Unavailable);
            Err(Refusal::StoreUnavailable)
        }
    }
}
