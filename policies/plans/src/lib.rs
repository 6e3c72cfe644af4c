//! A client's key determines its plan, and the plan its limits. Requests without a known key are on
//! the default plan, and are counted by address.
//!
//! Keys are assigned by their SHA-256, so that no key is written in a file. Facts read: the one
//! that contains the key, `client-ip`, and those that limits and conditions name.

mod assign;

use serde::Deserialize;
use weir_policy::{
    Conditions, Decision, Denial, Digest, Facts, FieldName, Ipv6Prefix, Manifest, Mistakes,
    PlanPriorities, PlanTable, Policy, Template,
};

use assign::Assign;

/// `[policies.NAME.config]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where to find a request's key: one fact.
    key: Template,
    /// The limits of each plan.
    plans: PlanTable,
    /// The plan for requests without a known key.
    default_plan: Option<String>,
    /// How to treat requests without a known key.
    #[serde(default)]
    unknown: Unknown,
    /// The plan of each key.
    #[serde(default)]
    assign: Assign,
    /// How much requests matter, by plan.
    #[serde(default)]
    priorities: PlanPriorities,
    /// The header field that tells the upstream the plan.
    plan_header: Option<FieldName>,
    /// Bits of an IPv6 address that make one client.
    #[serde(default)]
    ipv6_prefix: Ipv6Prefix,
    /// Requests that are never counted.
    #[serde(default)]
    bypass: Conditions,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Unknown {
    /// They are on the default plan.
    #[default]
    Address,
    /// They are refused.
    Deny,
}

/// The policy.
#[derive(Debug)]
pub struct Plans {
    fact: String,
    plans: PlanTable,
    assign: Assign,
    /// `None` if requests without a known key are refused.
    default_plan: Option<usize>,
    plan_header: Option<FieldName>,
    ipv6_prefix: Ipv6Prefix,
    bypass: Conditions,
}

impl Policy for Plans {
    type Config = Config;

    fn new(config: Config) -> Result<Self, Mistakes> {
        let mut mistakes = Mistakes::new();
        if config.key.only_fact().is_none() {
            mistakes.add(
                "key",
                "a template of another shape",
                "one fact and nothing else, such as \"{header.x-api-key}\"",
            );
        }
        let plans = config.plans.check(config.ipv6_prefix, &mut mistakes);
        let plans = plans.with_priorities(&config.priorities, &mut mistakes);
        let default_plan = match (&config.default_plan, config.unknown) {
            (Some(name), Unknown::Address) => plans.expect("default_plan", name, &mut mistakes),
            (Some(name), Unknown::Deny) => {
                mistakes.add(
                    "default_plan",
                    format_args!("{name:?}"),
                    "nothing: with `unknown = \"deny\"` there is no default plan",
                );
                None
            }
            (None, Unknown::Address) => {
                mistakes.add(
                    "",
                    "no `default_plan`",
                    "the plan of those without a known key, or `unknown = \"deny\"`",
                );
                None
            }
            (None, Unknown::Deny) => None,
        };
        let mut assign = config.assign;
        assign.resolve(&plans, &mut mistakes);
        let fact = config.key.only_fact().unwrap_or_default().to_owned();
        let Config { plan_header, ipv6_prefix, bypass, .. } = config;
        mistakes.or(Self { fact, plans, assign, default_plan, plan_header, ipv6_prefix, bypass })
    }

    fn manifest(&self) -> Manifest {
        Manifest::reads([self.fact.as_str(), "client-ip"])
            .and(self.bypass.facts())
            .plans(&self.plans, &[&self.fact])
            .pure()
    }

    fn decide(&self, facts: &Facts) -> Result<Decision, String> {
        if self.bypass.hold(facts) {
            // A value that the client sent must not pass for a plan.
            return Ok(self.with_plan_header(Decision::bypass(), ""));
        }
        // A key that is sent twice counts as none: only the upstream knows which of the two it
        // believes.
        let digest = facts.only(&self.fact).map(|key| Digest::of_value(&self.fact, key));
        let assigned = digest.and_then(|digest| Some((self.assign.plan_of(digest)?, digest)));
        let (plan, key) = match (assigned, self.default_plan) {
            (Some((plan, digest)), _) => (plan, format!("{digest:x}")),
            (None, Some(plan)) => (plan, self.ipv6_prefix.client(facts)?.key()),
            // If the proxy lets the request through anyway, because it is a preflight, it has no
            // plan.
            (None, None) => {
                return Ok(self.with_plan_header(Decision::deny(self.unknown_key()), ""));
            }
        };
        let decision = self.plans.decide(plan, &key, facts)?;
        Ok(self.with_plan_header(decision, self.plans.name(plan)))
    }
}

impl Plans {
    fn with_plan_header(&self, decision: Decision, plan: &str) -> Decision {
        match &self.plan_header {
            Some(field) => decision.upstream_header(field.as_str(), plan),
            None => decision,
        }
    }

    /// The same denial for a key that is missing, unknown or sent twice, so that nobody can find
    /// out which keys exist.
    fn unknown_key(&self) -> Denial {
        let reason = format!("a known key is needed in {}", self.fact.replacen('.', " ", 1));
        Denial::new(401, reason).header("www-authenticate", "Key")
    }
}

weir_policy::export!(Plans);

#[cfg(test)]
mod tests;
