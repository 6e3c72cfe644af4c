//! Whether a request is admitted: asks its policy (Wasm), then the limits that the policy named
//! (Lua). Knows neither engine.

use std::sync::Arc;

use smallvec::SmallVec;

use super::content::ReadBody;
use super::facts::{Facts, RequestView};
use super::keys;
use super::usage::{self, PARTIAL_TRIES_MAX, Usage};
use crate::clock;
use crate::limit::{Identities, Identity, KeyDigest, Limiter, Scope, Take};
use crate::listen::Peer;
use crate::plan::{Limit, Plan, PlanOutcome};
use crate::policy::{self, Cause, Decision};
use crate::proxy::context::RequestContext;
use crate::proxy::forward::exchange::Exchange;
use crate::proxy::forward::{self, PolicyFields};
use crate::proxy::receive::target::Target;
use crate::proxy::reply::refusal::{Check, Refusal};
use crate::proxy::snapshot::{Decider, Route};
use crate::proxy::verdict::Verdict;
use crate::telemetry::{Access, Counter};
use crate::wire::Request;

/// A request to be admitted.
pub(in crate::proxy) struct Admission<'a> {
    pub(in crate::proxy) route: &'a Route,
    pub(in crate::proxy) request: &'a Request,
    pub(in crate::proxy) target: Target<'a>,
    pub(in crate::proxy) peer: &'a Peer,
    /// The segments that the parameters of the route's path matched.
    pub(in crate::proxy) parameters: &'a [&'a str],
    /// If the policy asks for facts of it.
    pub(in crate::proxy) body: Option<&'a ReadBody>,
    pub(in crate::proxy) context: &'a mut RequestContext,
}

impl<'a> Admission<'a> {
    /// Asks the policy and the limits, and returns the fields that the policy sets on the request
    /// to the upstream. On a route without a policy there are none.
    ///
    /// The policy is asked at once, and only the limits in the future: a reference to a request
    /// can't be sent across threads, since its body can't.
    ///
    /// # Errors
    /// The policy denied, a limit refused, or one of them failed and the configuration says deny.
    pub(in crate::proxy) fn admit<X: Exchange>(
        mut self,
        limiter: &'a Limiter,
        exchange: &X,
    ) -> impl Future<Output = Result<PolicyFields, Refusal>> + use<'a, X> {
        let asked =
            self.route.decider.as_ref().map(|decider| (decider, self.ask(decider, exchange)));
        let context = self.context;
        async move {
            let Some((decider, asked)) = asked else { return Ok(PolicyFields::new()) };
            let admitted = match asked {
                Ok((decision, upstream_fields)) => {
                    charge(limiter, decision, context).await.map(|()| upstream_fields)
                }
                Err(failed) => on_policy_error(decider, failed, context),
            };
            // The wait in a leaky bucket does not count. Routing does: it is short, and measuring
            // it apart would cost another look at the clock.
            let now = clock::monotonic();
            context.decided_at = Some(now);
            let decided =
                now.saturating_duration_since(context.started).saturating_sub(context.delayed());
            context.route.tally.decision_seconds().observe(decided);
            admitted
        }
    }

    /// Lets a browser's preflight through without checking the limits, and returns the fields that
    /// the policy sets on the request to the upstream. Nothing else of the decision applies. The
    /// fields do, so that a client's own can't pass for the policy's.
    ///
    /// # Errors
    /// The policy failed and the route says deny.
    pub(in crate::proxy) fn bypass(
        mut self,
        exchange: &impl Exchange,
    ) -> Result<PolicyFields, Refusal> {
        let Some(decider) = &self.route.decider else { return Ok(PolicyFields::new()) };
        let asked = self.ask(decider, exchange);
        self.context.response_fields = PolicyFields::new();
        let (_, upstream_fields) = match asked {
            Ok(asked) => asked,
            Err(failed) => return on_policy_error(decider, failed, self.context),
        };
        self.context.decided(Verdict::Bypassed);
        Ok(upstream_fields)
    }

    /// Asks the policy. A failure is logged here.
    fn ask(
        &mut self,
        decider: &Decider,
        exchange: &impl Exchange,
    ) -> Result<(Arc<Decision>, PolicyFields), DecisionError> {
        let context = &mut *self.context;
        let view = RequestView {
            request: self.request,
            target: self.target,
            peer: self.peer,
            client: &context.client,
            route: &context.route.name,
            parameters: self.parameters,
            body: self.body,
        };
        let facts = Facts::gather(&decider.queries, view);
        if facts.are_too_many() {
            return Err(DecisionError::TooManyValues);
        }
        exchange.note_facts(&facts);
        let failed = |error: &dyn std::fmt::Display| {
            if let Some(held_back) = context.route.tally.failure_due() {
                tracing::warn!(request_id = context.id.as_str(), route = context.route.name, %error, held_back, "policy failed");
            }
        };
        let has_body = self.body.is_some_and(|body| !body.bytes.is_empty());
        let decision = decider
            .policy
            .decide_for(Some(context.id.as_bytes()), &facts.pairs())
            .inspect_err(|error| failed(error))
            .map_err(|error| match error.cause {
                Cause::Overload => DecisionError::Overload,
                cause if cause.may_be_provoked() && has_body => DecisionError::OverBody,
                _ => DecisionError::Failed,
            })?;
        match fields(&decision) {
            Ok((upstream, response)) => {
                context.response_fields = response;
                Ok((decision, upstream))
            }
            Err(name) => {
                let policy = context.route.policy_name().unwrap_or_default();
                failed(&format_args!(
                    "policy {policy}: the field {:?} can't be set",
                    name.chars().take(64).collect::<String>()
                ));
                context.route.tally.policy_error(policy);
                Err(DecisionError::Failed)
            }
        }
    }
}

/// The fields that a decision sets on the request and on the reply. The error is the name of one
/// that can't be set.
type Fields = Result<(PolicyFields, PolicyFields), String>;

/// The fields of a decision. They are parsed once and kept with it.
fn fields(decision: &Decision) -> Fields {
    let Decision { verdict, upstream_headers, response_headers, .. } = decision;
    let denies = matches!(verdict, policy::Verdict::Deny(denial) if !denial.headers.is_empty());
    if !denies && upstream_headers.is_empty() && response_headers.is_empty() {
        return Ok((PolicyFields::new(), PolicyFields::new()));
    }
    DerivedValues::with(decision, |derived| derived.fields(decision))
}

/// Values derived from a decision when first needed, and kept with it.
#[derive(Default)]
pub(in crate::proxy) struct DerivedValues {
    fields: Option<Fields>,
    /// The inner `None`: the value depends on the limits' outcome.
    policy_value: Option<Option<Box<[u8]>>>,
    label_counters: Option<Box<[Counter]>>,
}

impl DerivedValues {
    /// Calls `work` with the values derived from `decision`.
    pub(in crate::proxy) fn with<T>(decision: &Decision, work: impl FnOnce(&mut Self) -> T) -> T {
        decision.slot.with(Self::default, work)
    }

    fn fields(&mut self, decision: &Decision) -> Fields {
        let denied: &[_] = if let policy::Verdict::Deny(denial) = &decision.verdict {
            &denial.headers
        } else {
            &[]
        };
        let parse = || -> Result<_, &str> {
            forward::policy_fields(denied)?;
            Ok((
                forward::policy_fields(&decision.upstream_headers)?,
                forward::policy_fields(&decision.response_headers)?,
            ))
        };
        self.fields.get_or_insert_with(|| parse().map_err(str::to_owned)).clone()
    }

    /// The counters of the decision's labels.
    pub(in crate::proxy) fn label_counters(
        &mut self,
        look_up: impl FnOnce() -> Vec<Counter>,
    ) -> &[Counter] {
        self.label_counters.get_or_insert_with(|| look_up().into())
    }

    /// The value of `RateLimit-Policy` for the decision's limits.
    pub(in crate::proxy) fn policy_value(&mut self, limits: &[Limit]) -> Option<&[u8]> {
        self.policy_value
            .get_or_insert_with(|| crate::proxy::reply::fields::policy_value(limits))
            .as_deref()
    }
}

/// Why a policy gave no decision.
#[derive(Clone, Copy, Debug)]
enum DecisionError {
    Failed,
    /// It was not asked, since the request has more values of a fact than it may have.
    TooManyValues,
    /// It failed while it had a body to look at. Whoever chooses the body could choose the failure,
    /// and so get past the limits: `on_policy_error` does not apply.
    OverBody,
    /// Not the policy's fault, so `on_policy_error` does not apply: a flood of requests must not
    /// get others past their limits.
    Overload,
}

/// Applies `on_policy_error`.
fn on_policy_error(
    decider: &Decider,
    undecided: DecisionError,
    context: &mut RequestContext,
) -> Result<PolicyFields, Refusal> {
    let lets_through = matches!(undecided, DecisionError::Failed) && decider.allow_on_error;
    match undecided {
        DecisionError::TooManyValues => {}
        _ if lets_through => context.decided(Verdict::Uncounted),
        _ => context.decided(Verdict::Failed),
    }
    match undecided {
        DecisionError::TooManyValues => {
            Err(Refusal::BadRequest(Check::Facts.wrong("one of them comes more often")))
        }
        DecisionError::Overload => Err(Refusal::PolicyOverloaded),
        DecisionError::Failed if lets_through => {
            context.degraded = Some("policy");
            Ok(PolicyFields::new())
        }
        DecisionError::Failed | DecisionError::OverBody => Err(Refusal::PolicyFailed),
    }
}

/// Carries out the verdict.
pub(in crate::proxy) async fn charge(
    limiter: &Limiter,
    decision: Arc<Decision>,
    context: &mut RequestContext,
) -> Result<(), Refusal> {
    // The context keeps the decision in any case. The take needs it alive.
    context.decision = Some(Arc::clone(&decision));
    let plan = match &decision.verdict {
        policy::Verdict::Check(plan) => plan,
        policy::Verdict::Bypass => {
            context.decided(Verdict::Bypassed);
            return Ok(());
        }
        policy::Verdict::Deny(_) => {
            context.decided(Verdict::Denied);
            return Err(Refusal::Denied);
        }
    };
    let Some(scope) = context.route.policy.as_ref().map(|policy| &policy.scope) else {
        return Ok(());
    };
    let mut identities = context.route.insight.counts_keys().then(Identities::new);
    let usage = &mut context.usage;
    let taken = take(limiter, scope, (&decision, plan), usage, identities.as_mut()).await;
    if let Take::Granted(outcome, _) | Take::Refused(outcome) = &taken
        && let Some(identities) = &identities
    {
        keys::count_decided(plan, identities, outcome, context);
    }
    match taken {
        Take::Granted(outcome, grant) => {
            let verdict = if outcome.is_uncounted(plan.limits()) {
                context.degraded = Some("store");
                Verdict::Degraded
            } else if outcome.is_local(plan.limits()) {
                context.degraded = Some("local");
                Verdict::Local
            } else {
                Verdict::Admitted
            };
            context.store_failure = outcome.store_failure;
            context.outcome = Some(outcome);
            context.grant = Some(grant);
            context.decided(verdict);
            Ok(())
        }
        Take::Refused(outcome) => {
            if outcome.is_local(plan.limits()) {
                context.degraded = Some("local");
            }
            if decision.settle_on_refusal && decision.settle_with.is_some() {
                context.grant = Some(limiter.empty_grant(scope, plan));
            }
            if context.route.access != Access::Off || context.trace.is_some() {
                let identities = identities.unwrap_or_else(|| limiter.identities(scope, plan));
                context.refused_keys = refused_keys(plan, &identities, &outcome);
            }
            context.store_failure = outcome.store_failure;
            context.outcome = Some(outcome);
            context.decided(Verdict::Refused);
            Err(Refusal::TooMany)
        }
        Take::Unavailable(cause) => {
            context.store_failure = Some(cause);
            context.decided(Verdict::Unavailable);
            Err(Refusal::StoreUnavailable)
        }
    }
}

/// The digests of the keys that were refused, in the order of [`PlanOutcome::violated`].
fn refused_keys(
    plan: &Plan,
    identities: &[Identity],
    outcome: &PlanOutcome,
) -> SmallVec<[KeyDigest; 1]> {
    let asked = plan.limits().iter().zip(&outcome.limits).zip(identities);
    let violated = asked.filter(|((limit, of), _)| PlanOutcome::is_violated(limit, of));
    violated.map(|(_, identity)| identity.key).collect()
}

/// Takes the plan's limits; what is left of them, if the decision allows that. `identities` gets
/// what they count under.
async fn take(
    limiter: &Limiter,
    scope: &Arc<Scope>,
    (decision, plan): (&Decision, &Arc<Plan>),
    usage: &mut Option<Box<Usage>>,
    identities: Option<&mut Identities>,
) -> Take {
    let mut taken = match identities {
        Some(identities) => limiter.take_identified(scope, plan, identities).await,
        None => limiter.take(scope, plan).await,
    };
    let Some(partial) = decision.bodies.as_ref().and_then(|bodies| bodies.partial.as_ref()) else {
        return taken;
    };
    for _ in 0..PARTIAL_TRIES_MAX {
        let Take::Refused(outcome) = &taken else { break };
        let Some((left, plan)) = usage::reduced(partial, plan, outcome) else { break };
        taken = Box::pin(limiter.take(scope, &Arc::new(plan))).await;
        if matches!(taken, Take::Granted(..)) {
            usage.get_or_insert_default().taken = Some(left);
        }
    }
    taken
}
