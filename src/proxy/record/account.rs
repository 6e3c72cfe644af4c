//! How a request was decided, for a person: by the running proxy (`remembered`) or in a trial
//! (`trial`).
//! Knows no connection.

use std::sync::Arc;
use std::time::Duration;

use crate::insight::LimitName;
use crate::limit::Scope;
use crate::plan::{Limit, LimitOutcome, Plan, PlanOutcome};
use crate::policy::{self, Decision};
use crate::proxy::receive::text::latin1;
use crate::proxy::verdict::{Cause, Rejection, Verdict};
use crate::wire::Response;

/// How a request was decided.
#[derive(Clone, Debug)]
pub struct Account {
    /// What was decided about it; admitted on a route without a policy. `None` if it was rejected
    /// before it could be decided on.
    pub verdict: Option<Verdict>,
    /// The status that the client sees. `None` while the request is under way, or if the client was
    /// gone.
    pub status: Option<u16>,
    /// Its route's name.
    pub route: Option<String>,
    /// The policy's name.
    pub policy: Option<String>,
    /// What the policy was shown.
    pub facts: Vec<(String, String)>,
    /// What the policy answered.
    pub decision: Option<Arc<Decision>>,
    /// The limits of that answer, in its order, if they were asked.
    pub limits: Vec<LimitAccount>,
    /// How long it waited in a leaky bucket.
    pub delay: Duration,
    /// How long to wait after a refusal. `None` where waiting does not help.
    pub retry_after: Option<Duration>,
    /// The header fields of the reply that the client sees.
    pub headers: Vec<(String, String)>,
    /// Why it was refused.
    pub cause: Option<Cause>,
    /// What is wrong with it, if it was rejected for that.
    pub rejection: Option<Rejection>,
    /// The URL that its listener redirects it to, over https.
    pub to_https: Option<String>,
    /// Why the policy gave no decision, if it failed. Not of requests that were remembered.
    pub policy_error: Option<String>,
    pub(in crate::proxy) scope: Option<Arc<Scope>>,
}

/// A limit's part in a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitAccount {
    /// The limit as the policy answered it.
    pub limit: Limit,
    /// The units that were taken of it. 0 if the request was refused.
    pub took: u64,
    /// What the limit answered.
    pub outcome: LimitOutcome,
}

/// Where a request was decided. One for all requests of a route and worker, so that what remembers
/// requests keeps neither a snapshot nor its policies.
#[derive(Debug)]
pub(in crate::proxy) struct Origin {
    /// The route's name; [`NO_ROUTE`](crate::proxy::tally::NO_ROUTE) for none.
    pub(in crate::proxy) route: String,
    /// None without a policy.
    pub(in crate::proxy) scope: Option<Arc<Scope>>,
}

impl Origin {
    /// A limit of its policy, with the route if the counters are the route's own.
    #[cold]
    pub(in crate::proxy) fn limit_name(&self, limit: &str) -> LimitName {
        let policy = self.scope.as_ref().map_or("", |scope| scope.policy.as_str());
        let is_shared = |scope: &Arc<Scope>| scope.name == Scope::name_of(policy, None);
        let route = (!self.scope.as_ref().is_none_or(is_shared)).then(|| self.route.clone());
        LimitName { policy: policy.to_owned(), route, limit: limit.to_owned() }
    }
}

/// What an [`Account`] is made of.
pub(in crate::proxy) struct Parts<'a> {
    /// None where no route was found.
    pub(in crate::proxy) route: Option<&'a str>,
    pub(in crate::proxy) scope: Option<&'a Arc<Scope>>,
    /// None if no policy was asked.
    pub(in crate::proxy) verdict: Option<Verdict>,
    pub(in crate::proxy) decision: Option<&'a Arc<Decision>>,
    pub(in crate::proxy) outcome: Option<&'a PlanOutcome>,
    /// Units that were taken of some limits instead of their cost.
    pub(in crate::proxy) less: Option<u64>,
    pub(in crate::proxy) cause: Option<Cause>,
    pub(in crate::proxy) rejection: Option<&'a Rejection>,
    pub(in crate::proxy) policy_error: Option<&'a str>,
}

impl Account {
    pub(in crate::proxy) fn rejected() -> Self {
        Self {
            verdict: None,
            status: None,
            route: None,
            policy: None,
            facts: Vec::new(),
            decision: None,
            limits: Vec::new(),
            delay: Duration::ZERO,
            retry_after: None,
            headers: Vec::new(),
            cause: None,
            rejection: None,
            to_https: None,
            policy_error: None,
            scope: None,
        }
    }

    pub(in crate::proxy) fn of(parts: &Parts<'_>, facts: Vec<(String, String)>) -> Self {
        let admitted = parts.outcome.filter(|outcome| outcome.admitted);
        Self {
            verdict: parts.verdict(),
            route: parts.route.map(str::to_owned),
            policy: parts.scope.map(|scope| scope.policy.clone()),
            facts,
            decision: parts.decision.cloned(),
            limits: parts.limits(),
            delay: Duration::from_micros(admitted.map_or(0, PlanOutcome::delay_us)),
            retry_after: parts.retry_after(),
            cause: parts.cause,
            rejection: parts.rejection.cloned(),
            policy_error: parts.policy_error.map(str::to_owned),
            scope: parts.scope.cloned(),
            ..Self::rejected()
        }
    }

    pub(in crate::proxy) fn answered(&mut self, answered: Option<&Response>) {
        let Some(answered) = answered else { return };
        self.status = Some(answered.status.as_u16());
        let text = |bytes: &[u8]| latin1(bytes).into_owned();
        self.headers =
            answered.fields.iter().map(|(name, value)| (text(name), text(value))).collect();
    }

    /// The enforced limits that refused.
    pub fn refusing(&self) -> impl Iterator<Item = &LimitAccount> {
        let refused = self.verdict == Some(Verdict::Refused);
        self.limits
            .iter()
            .filter(move |limit| refused && limit.limit.is_enforced() && !limit.outcome.fits)
    }
}

impl LimitAccount {
    /// The units that were left before.
    #[must_use]
    pub fn had(&self) -> u64 {
        self.outcome.remaining.saturating_add(self.took)
    }
}

impl<'a> Parts<'a> {
    pub(in crate::proxy) fn verdict(&self) -> Option<Verdict> {
        // No policy was to be asked: of a route without one, or for `OPTIONS *`.
        let admits = self.cause.is_none() && self.scope.is_none();
        self.verdict.or(admits.then_some(Verdict::Admitted))
    }

    fn plan(&self) -> Option<&'a Plan> {
        match &self.decision?.verdict {
            policy::Verdict::Check(plan) => Some(plan),
            policy::Verdict::Bypass | policy::Verdict::Deny(_) => None,
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match (self.outcome, &self.decision?.verdict) {
            (Some(outcome), policy::Verdict::Check(plan)) => {
                outcome.retry_after_us(plan.limits()).map(Duration::from_micros)
            }
            (None, policy::Verdict::Deny(denial)) => {
                denial.retry_after_ms.map(Duration::from_millis)
            }
            _ => None,
        }
    }

    fn limits(&self) -> Vec<LimitAccount> {
        let (Some(plan), Some(outcome)) = (self.plan(), self.outcome) else { return Vec::new() };
        let bodies = self.decision.and_then(|decision| decision.bodies.as_deref());
        let partial = bodies.and_then(|bodies| bodies.partial.as_ref());
        let each = plan.limits().iter().zip(&outcome.limits).map(|(limit, of)| {
            let is_partial = partial.is_some_and(|partial| partial.limits.contains(&limit.name));
            let cost = self.less.filter(|_| is_partial).unwrap_or(limit.cost);
            let took = if outcome.admitted && of.fits { cost } else { 0 };
            LimitAccount { limit: limit.clone(), took, outcome: *of }
        });
        each.collect()
    }
}
