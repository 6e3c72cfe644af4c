//! Whether a request is admitted: asks its policy (Wasm), then the limits that the policy named
//! (Lua). Knows neither engine.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use super::content::ReadBody;
use super::edits::Editor;
use super::facts::{Facts, RequestView};
use super::keys::{self, ComesBack};
use super::packed::PackedFacts;
use super::partial::{self, PARTIAL_TRIES_MAX};
use super::policy_fields::{self, PolicyFields};
use super::{Decided, Decider};
use crate::clock;
use crate::limit::{Ending, Identities, Identity, KeyDigest, Limiter, Scope, Take};
use crate::listen::Peer;
use crate::plan::{Plan, PlanOutcome};
use crate::policy::{self, Cause, Decision};
use crate::proxy::handle::RouteHandle;
use crate::proxy::receive::Received;
use crate::proxy::receive::call::{Call, DescriptorView};
use crate::proxy::receive::target::Target;
use crate::proxy::refusal::{Check, Refusal};
use crate::proxy::route::Routed;
use crate::proxy::verdict::Verdict;
use crate::telemetry::{Access, Counter};
use crate::wire::Request;

/// A request on its route, to be decided on.
#[derive(Clone, Copy)]
pub(in crate::proxy) struct Question<'a> {
    pub(in crate::proxy) decider: &'a Decider,
    pub(in crate::proxy) request: &'a Request,
    pub(in crate::proxy) target: Target<'a>,
    pub(in crate::proxy) peer: &'a Peer,
    /// The segments that the parameters of the route's path matched.
    pub(in crate::proxy) parameters: &'a [&'a str],
    /// The protocol that it asks to switch to, if it would be sent on with it.
    pub(in crate::proxy) upgrade: Option<&'a str>,
    /// If the policy asks for facts of it.
    pub(in crate::proxy) body: Option<&'a ReadBody>,
    /// If it is a call for a decision.
    pub(in crate::proxy) descriptor: Option<DescriptorView<'a>>,
    /// Whether it is sent to an upstream if it is admitted.
    pub(in crate::proxy) is_sent: bool,
    pub(in crate::proxy) received: &'a Received,
    pub(in crate::proxy) routed: &'a Routed,
}

impl<'a> Question<'a> {
    /// Asks the policy and the limits, and returns the fields that the policy sets on the request
    /// to the upstream. What becomes known on the way is in `decided`, also if nobody waits for the
    /// answer any more. What the policy is shown goes to `watch`.
    ///
    /// The policy is asked at once, and only the limits in the future: a reference to a request
    /// can't be sent across threads, since its body can't.
    ///
    /// # Errors
    /// The policy denied, a limit refused, or one of them failed and the configuration says deny.
    /// Or the body has no place for the values that the policy sets, and nothing was charged.
    pub(in crate::proxy) fn decide<W: FnOnce(&Facts<'_>)>(
        self,
        limiter: &'a Limiter,
        decided: &'a mut Decided,
        watch: W,
    ) -> impl Future<Output = Result<PolicyFields, Refusal>> + use<'a, W> {
        let asked = self.ask(decided, watch);
        let is_turned_away =
            asked.as_ref().is_ok_and(|(decision, _)| self.is_turned_away(decision));
        let (decider, received, routed) = (self.decider, self.received, self.routed);
        let editor = self.is_sent.then_some(Editor { read: self.body });
        async move {
            let admitted = match asked {
                Ok(_) if is_turned_away => Err(Refusal::Overloaded),
                Ok((decision, upstream_fields)) => {
                    pin!(charge(limiter, decision, editor, (received, routed), decided))
                        .await
                        .map(|()| upstream_fields)
                }
                Err(failed) => on_policy_error(decider, failed, &routed.handle, decided),
            };
            note_time((received, routed), decided);
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
        self,
        decided: &mut Decided,
        watch: impl FnOnce(&Facts<'_>),
    ) -> Result<PolicyFields, Refusal> {
        let asked = self.ask(decided, watch);
        decided.response_fields = PolicyFields::new();
        let (_, upstream_fields) = match asked {
            Ok(asked) => asked,
            Err(failed) => {
                let answer = on_policy_error(self.decider, failed, &self.routed.handle, decided);
                // A policy that fails may have taken long.
                note_time((self.received, self.routed), decided);
                return answer;
            }
        };
        decided.conclude(Verdict::Bypassed, &self.routed.handle);
        Ok(upstream_fields)
    }

    /// Whether this worker has too much to do for it. A policy's own refusal is less work than
    /// that.
    pub(super) fn is_turned_away(&self, decision: &Decision) -> bool {
        let handle = &self.routed.handle;
        self.decider.policy.sets_priorities()
            && !matches!(decision.verdict, policy::Verdict::Deny(_))
            && handle.turns_away(decision.priority.unwrap_or(handle.priority))
    }

    /// Whether it is a call whose caller says what it is about.
    fn is_about_facts(self) -> bool {
        self.descriptor.is_some_and(|view| view.descriptor.facts.is_some())
    }

    /// What the policy is shown.
    fn facts(self) -> Facts<'a> {
        let view = RequestView {
            request: self.request,
            target: self.target,
            peer: self.peer,
            client: &self.received.client,
            route: &self.routed.handle.name,
            parameters: self.parameters,
            upgrade: self.upgrade,
            body: self.body,
            descriptor: self.descriptor,
        };
        Facts::gather(&self.decider.queries, view)
    }

    /// Keeps what the policy was shown of each of a call's descriptors.
    #[cold]
    pub(in crate::proxy) fn keep_facts_of(self, call: &'a Call, decided: &mut Decided) {
        let views = call.descriptors.iter().map(|descriptor| Self {
            descriptor: Some(DescriptorView { domain: &call.domain, descriptor }),
            ..self
        });
        let all: Vec<Facts<'_>> = views.map(Self::facts).collect();
        decided.facts = Some(PackedFacts::of_several(&all));
    }

    /// The policy's answers can't be carried out.
    #[cold]
    pub(super) fn note_failure(self, wrong: &str, decided: &mut Decided) {
        let handle = &self.routed.handle;
        let policy = handle.policy_name().unwrap_or_default();
        if let Some(held_back) = handle.tally.failure_due() {
            tracing::warn!(
                request_id = self.received.id.as_str(),
                route = handle.name,
                error = wrong,
                held_back,
                "policy failed"
            );
        }
        handle.tally.policy_error(policy);
        decided.policy_error = Some(wrong.into());
        decided.conclude(Verdict::Failed, handle);
    }

    /// Keeps what the policy was shown.
    #[cold]
    pub(in crate::proxy) fn keep_facts(self, decided: &mut Decided) {
        decided.facts = Some(PackedFacts::of(&self.facts()));
    }

    /// Asks the policy. A failure is logged here, and noted.
    pub(super) fn ask(
        self,
        decided: &mut Decided,
        watch: impl FnOnce(&Facts<'_>),
    ) -> Result<(Arc<Decision>, PolicyFields), DecisionError> {
        let (id, handle) = (&self.received.id, &self.routed.handle);
        let facts = self.facts();
        if facts.are_too_many() {
            return Err(DecisionError::TooManyValues);
        }
        watch(&facts);
        let failed = |error: &dyn std::fmt::Display, decided: &mut Decided| {
            decided.policy_error = Some(error.to_string().into());
            if let Some(held_back) = handle.tally.failure_due() {
                tracing::warn!(request_id = id.as_str(), route = handle.name, %error, held_back, "policy failed");
            }
        };
        // What a caller says of its clients is theirs to choose, as a body is.
        let has_body =
            self.descriptor.is_some() || self.body.is_some_and(|body| !body.bytes.is_empty());
        let decision = self
            .decider
            .policy
            .decide_for(Some(id.as_bytes()), &facts.pairs())
            .inspect_err(|error| failed(error, decided))
            .map_err(|error| match error.cause {
                Cause::Overload => DecisionError::Overload,
                // It says what it lacks, to whoever has left it out.
                Cause::Guest if self.is_about_facts() => DecisionError::Unclear(error.to_string()),
                cause if cause.may_be_provoked() && has_body => DecisionError::OverBody,
                _ => DecisionError::Failed,
            })?;
        match fields(&decision) {
            Ok((upstream, response)) => {
                decided.response_fields = response;
                Ok((decision, upstream))
            }
            Err(name) => {
                let policy = handle.policy_name().unwrap_or_default();
                let name = name.chars().take(64).collect::<String>();
                failed(&format_args!("policy {policy}: the field {name:?} can't be set"), decided);
                handle.tally.policy_error(policy);
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
    policy_value: Option<Box<[u8]>>,
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
            policy_fields::parse(denied)?;
            Ok((
                policy_fields::parse(&decision.upstream_headers)?,
                policy_fields::parse(&decision.response_headers)?,
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

    /// The value of `RateLimit-Policy` for the decision's limits, which `write` finds.
    pub(in crate::proxy) fn policy_value(&mut self, write: impl FnOnce() -> Box<[u8]>) -> &[u8] {
        self.policy_value.get_or_insert_with(write)
    }
}

/// Why a policy gave no decision.
#[derive(Debug)]
pub(super) enum DecisionError {
    /// It can't decide about the facts that a caller gives, for this reason.
    Unclear(String),
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
pub(super) fn on_policy_error(
    decider: &Decider,
    undecided: DecisionError,
    handle: &RouteHandle,
    decided: &mut Decided,
) -> Result<PolicyFields, Refusal> {
    let lets_through = matches!(undecided, DecisionError::Failed) && decider.allow_on_error;
    match &undecided {
        DecisionError::TooManyValues => {}
        _ if lets_through => decided.conclude(Verdict::Uncounted, handle),
        _ => decided.conclude(Verdict::Failed, handle),
    }
    match undecided {
        DecisionError::TooManyValues => {
            Err(Refusal::BadRequest(Check::Facts.wrong("one of them comes more often")))
        }
        DecisionError::Unclear(found) => Err(Refusal::malformed(found)),
        DecisionError::Overload => Err(Refusal::PolicyOverloaded),
        DecisionError::Failed if lets_through => {
            decided.degraded = Some("policy");
            Ok(PolicyFields::new())
        }
        DecisionError::Failed | DecisionError::OverBody => Err(Refusal::PolicyFailed),
    }
}

/// Notes when the decision was made and how long it took. The wait in a leaky bucket does not
/// count. Routing does: it is short, and measuring it apart would cost another look at the clock.
pub(super) fn note_time((received, routed): (&Received, &Routed), decided: &mut Decided) {
    let now = clock::monotonic();
    decided.at = Some(now);
    let took = now.saturating_duration_since(received.started).saturating_sub(decided.delayed());
    routed.handle.tally.decision_seconds().observe(took);
}

/// Carries out the verdict. `editor` is for a request that is sent if it is admitted.
pub(in crate::proxy) async fn charge(
    limiter: &Limiter,
    decision: Arc<Decision>,
    editor: Option<Editor<'_>>,
    (received, routed): (&Received, &Routed),
    decided: &mut Decided,
) -> Result<(), Refusal> {
    let handle = &*routed.handle;
    // It is kept in any case. The take needs it alive.
    decided.decision = Some(Arc::clone(&decision));
    let plan = match &decision.verdict {
        policy::Verdict::Check(plan) => plan,
        policy::Verdict::Bypass => {
            decided.edited = edited(&decision, editor)?;
            decided.conclude(Verdict::Bypassed, handle);
            return Ok(());
        }
        policy::Verdict::Deny(_) => {
            decided.conclude(Verdict::Denied, handle);
            return Err(Refusal::Denied);
        }
    };
    let Some(scope) = handle.policy.as_ref().map(|policy| &policy.scope) else {
        return Ok(());
    };
    let unseen;
    let plan = if decided.is_look {
        unseen = Arc::new(Plan::clone(plan).quiet());
        &unseen
    } else {
        plan
    };
    // Before anything is charged.
    let body = EditedBody { editor, edited: edited(&decision, editor)? };
    let mut identities = handle.insight.counts_keys().then(Identities::new);
    let asked = (&*decision, plan);
    let (taken, less, body) = pin!(take(limiter, scope, asked, body, identities.as_mut())).await?;
    decided.taken = less;
    decided.edited = body;
    record(limiter, asked, (taken, identities), (received, handle), decided)
}

/// Records what the limits of a decision said. Inlined into each decision's path, since a take is
/// large and would be copied.
#[inline(always)]
pub(super) fn record(
    limiter: &Limiter,
    (decision, plan): (&Decision, &Arc<Plan>),
    (taken, identities): (Take, Option<Identities>),
    (received, handle): (&Received, &RouteHandle),
    decided: &mut Decided,
) -> Result<(), Refusal> {
    let scope = handle.policy.as_ref().map(|policy| &policy.scope);
    let Some(scope) = scope else { return Ok(()) };
    if let Take::Granted(outcome, _) | Take::Refused(outcome) = &taken
        && let Some(identities) = identities.as_ref().filter(|_| !decided.is_look)
    {
        let comes_back = ComesBack::of(handle, decided);
        let of = (outcome, decided.taken);
        keys::count_decided((decision, plan), identities, of, comes_back, (received, handle));
    }
    match taken {
        Take::Granted(outcome, grant) => {
            let verdict = if outcome.is_uncounted(plan.limits()) {
                decided.degraded = Some("store");
                Verdict::Degraded
            } else if outcome.is_local(plan.limits()) {
                decided.degraded = Some("local");
                Verdict::Local
            } else {
                Verdict::Admitted
            };
            decided.store_failure = outcome.store_failure;
            decided.outcome = Some(outcome);
            decided.grant = Some(grant);
            decided.conclude(verdict, handle);
            Ok(())
        }
        Take::Refused(outcome) => {
            if outcome.is_local(plan.limits()) {
                decided.degraded = Some("local");
            }
            if decision.settle_on_refusal && decision.settle_with.is_some() {
                decided.grant = Some(limiter.empty_grant(scope, plan));
            }
            if handle.access != Access::Off || received.trace.is_some() {
                let identities = identities.unwrap_or_else(|| limiter.identities(scope, plan));
                decided.refused_keys = refused_keys(plan, &identities, &outcome);
            }
            decided.store_failure = outcome.store_failure;
            decided.outcome = Some(outcome);
            decided.conclude(Verdict::Refused, handle);
            Err(Refusal::TooMany)
        }
        Take::Unavailable(cause) => {
            decided.store_failure = Some(cause);
            decided.conclude(Verdict::Unavailable, handle);
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

/// A request's body, and who edits it. Without an editor it is not sent.
struct EditedBody<'a> {
    editor: Option<Editor<'a>>,
    edited: Option<Bytes>,
}

/// The body with the decision's values, if it is sent and is not as it came.
fn edited(decision: &Decision, editor: Option<Editor<'_>>) -> Result<Option<Bytes>, Refusal> {
    match (editor, &decision.bodies) {
        (Some(editor), Some(bodies)) => editor.edited(bodies),
        _ => Ok(None),
    }
}

/// Takes the plan's limits; what is left of them, if the decision allows that. Then how many units
/// that were comes with it, and the body tells the upstream. `identities` gets what they count
/// under.
///
/// # Errors
/// Less is left, and the body can't tell the upstream. Nothing was taken.
async fn take(
    limiter: &Limiter,
    scope: &Arc<Scope>,
    (decision, plan): (&Decision, &Arc<Plan>),
    EditedBody { editor, edited }: EditedBody<'_>,
    identities: Option<&mut Identities>,
) -> Result<(Take, Option<u64>, Option<Bytes>), Refusal> {
    let mut taken = pin!(limiter.take_identified(scope, plan, identities)).await;
    let Some(partial) = decision.bodies.as_ref().and_then(|bodies| bodies.partial.as_ref()) else {
        return Ok((taken, None, edited));
    };
    for _ in 0..PARTIAL_TRIES_MAX {
        let Take::Refused(outcome) = &taken else { break };
        let Some(reduced) = partial::reduced(partial, plan, outcome) else { break };
        let lower = |left| match editor {
            Some(editor) => editor.lowered(partial, left, edited.as_ref()),
            None => Ok(None),
        };
        let part = Arc::new(reduced.plan);
        if !reduced.is_there {
            // Refused, most likely: when there is as much is what this tells.
            match Box::pin(limiter.take(scope, &part)).await {
                Take::Refused(outcome) => taken = Take::Refused(outcome),
                Take::Granted(outcome, grant) if outcome.is_uncounted(part.limits()) => {
                    grant.settle(Ending::Withdrawn, &[]);
                }
                Take::Granted(outcome, grant) => match lower(reduced.units) {
                    Ok(lowered) => {
                        let granted = Take::Granted(outcome, grant);
                        return Ok((granted, Some(reduced.units), lowered.or(edited)));
                    }
                    Err(_) => grant.settle(Ending::Withdrawn, &[]),
                },
                Take::Unavailable(_) => {}
            }
            break;
        }
        let lowered = lower(reduced.units)?;
        taken = Box::pin(limiter.take(scope, &part)).await;
        if matches!(taken, Take::Granted(..)) {
            return Ok((taken, Some(reduced.units), lowered.or(edited)));
        }
    }
    Ok((taken, None, edited))
}
