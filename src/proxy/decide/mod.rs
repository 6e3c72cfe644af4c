//! The third phase: whether a request may pass.
//!
//! `content` reads a body that the policy looks into, `facts` gathers what the policy reads, and
//! `admit` asks it (Wasm), sets the values that it wants in the body (`edits`), and then asks the
//! limits that it named (Lua), or less of them (`partial`). `keys` counts for the operator what
//! keys use, `variants` are routes that facts choose, and `descriptors` are several questions at
//! once. After it, the decision, its outcome and the grant are known. Knows nothing of how a
//! refusal reads to a client.

pub(super) mod admit;
pub(super) mod content;
pub(super) mod descriptors;
pub(super) mod edits;
pub(super) mod facts;
pub(super) mod keys;
pub(super) mod packed;
pub(super) mod partial;
pub(super) mod policy_fields;
pub(super) mod variants;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use smallvec::SmallVec;

use self::content::BodyReader;
use self::facts::{FactQuery, RouteTraits};
use self::packed::PackedFacts;
use self::policy_fields::PolicyFields;
use crate::limit::{Grant, KeyDigest};
use crate::plan::{Limit, PlanOutcome};
use crate::policy::{self, Bodies, Decision, Denial, Policy, RefusalReply};
use crate::proxy::handle::RouteHandle;
use crate::proxy::settings::{Inspect, RoutePolicy, Settings};
use crate::proxy::verdict::Verdict;

/// What is known of a request once its policy is asked.
#[derive(Debug, Default)]
pub(super) struct Decided {
    /// What was decided. None while its limits are asked.
    pub(super) verdict: Option<Verdict>,
    /// When the policy and the limits had decided, after the wait in a leaky bucket.
    pub(super) at: Option<Instant>,
    /// The policy's answer. None if it failed, and after a preflight that bypasses the limits.
    pub(super) decision: Option<Arc<Decision>>,
    /// The answer of the limits that were asked.
    pub(super) outcome: Option<PlanOutcome>,
    /// What was taken of them, until it is settled.
    pub(super) grant: Option<Grant>,
    /// Units that were taken of the limits of a [`Partial`](policy::Partial) instead of their cost.
    pub(super) taken: Option<u64>,
    /// The request's body with the decision's values, until it is forwarded.
    pub(super) edited: Option<Bytes>,
    /// The fields that the policy sets on the reply.
    pub(super) response_fields: PolicyFields,
    /// The check that was skipped to let it through: `Weir-Degraded`.
    pub(super) degraded: Option<&'static str>,
    /// Why the policy gave no decision that can be carried out.
    pub(super) policy_error: Option<Box<str>>,
    /// Why a counter could not be reached, for the log.
    pub(super) store_failure: Option<&'static str>,
    /// The digests of the keys of the limits that refused it, for the access log and the trace.
    pub(super) refused_keys: SmallVec<[KeyDigest; 1]>,
    /// The names of limits without which a call in quota mode was decided.
    pub(super) left_out: Vec<String>,
    /// It takes nothing and refuses nobody: what is decided is said, and not counted.
    pub(super) is_look: bool,
    /// What is taken may come back, all of it: its caller says so.
    pub(super) is_held: bool,
    /// What the policy saw, if it is remembered.
    pub(super) facts: Option<PackedFacts>,
}

impl Decided {
    /// Records what the policy and its limits decided, and counts it.
    fn conclude(&mut self, verdict: Verdict, handle: &RouteHandle) {
        if !self.is_look {
            handle.tally.decided(verdict);
        }
        self.verdict = Some(verdict);
    }

    /// The limits that were checked, and their outcome.
    pub(super) fn limits(&self) -> Option<(&[Limit], &PlanOutcome)> {
        match &self.decision.as_ref()?.verdict {
            policy::Verdict::Check(plan) => Some((plan.limits(), self.outcome.as_ref()?)),
            policy::Verdict::Bypass | policy::Verdict::Deny(_) => None,
        }
    }

    /// The policy's own refusal.
    pub(super) fn denial(&self) -> Option<&Denial> {
        match &self.decision.as_ref()?.verdict {
            policy::Verdict::Deny(denial) => Some(denial),
            policy::Verdict::Bypass | policy::Verdict::Check(_) => None,
        }
    }

    /// How the policy wants a refusal by its limits to be answered.
    pub(super) fn refusal_reply(&self) -> Option<&RefusalReply> {
        self.decision.as_ref()?.refusal.as_deref()
    }

    /// What the policy wants done with bodies.
    pub(super) fn bodies(&self) -> Option<&Bodies> {
        self.decision.as_ref()?.bodies.as_deref()
    }

    /// What the policy wants to be given back when its `settle` is called. None if it is not to be
    /// called: it did not ask for that, or nothing was let through.
    pub(super) fn memo(&self) -> Option<&str> {
        if self.grant.is_none() && self.verdict != Some(Verdict::Bypassed) {
            return None;
        }
        self.decision.as_ref()?.settle_with.as_deref()
    }

    /// How long the request waited in a leaky bucket before it was sent.
    pub(super) fn delayed(&self) -> Duration {
        self.outcome
            .as_ref()
            .filter(|outcome| outcome.admitted)
            .map_or(Duration::ZERO, |outcome| Duration::from_micros(outcome.delay_us()))
    }
}

/// A route's policy and its inputs.
#[derive(Debug)]
pub(super) struct Decider {
    pub(super) policy: Arc<Policy>,
    pub(super) allow_on_error: bool,
    /// The facts that the policy reads.
    pub(super) queries: Vec<FactQuery>,
    /// How the facts of bodies among them are found, if there are any.
    pub(super) reader: Option<BodyReader>,
    /// Facts that the policy reads and this route never has: path parameters that are not in its
    /// path, and header fields that are dropped for their names.
    pub(super) missing_facts: Vec<String>,
}

impl Decider {
    /// The decider of a route with these traits.
    pub(super) fn new(
        policy: RoutePolicy,
        route: RouteTraits<'_>,
        settings: &Settings,
        inspect: Inspect,
    ) -> Self {
        let (mut queries, mut missing_facts) = (Vec::new(), Vec::new());
        for fact in policy.policy.request_facts() {
            match FactQuery::new(fact, route) {
                Some(query) => queries.push(query),
                None => missing_facts.push(fact.clone()),
            }
        }
        let buffered_max = settings.buffered_bytes_max;
        let reader = facts::wanted_of_bodies(&mut queries)
            .map(|wanted| BodyReader::new(wanted, inspect, buffered_max));
        Self {
            policy: policy.policy,
            allow_on_error: policy.allow_on_error,
            queries,
            reader,
            missing_facts,
        }
    }
}
