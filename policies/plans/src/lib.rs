//! A client's key decides its plan, and the plan its limits. Whoever has no known key is on the
//! default plan, and is counted by address.
//!
//! Keys are assigned by their SHA-256, so that none stands in a file. Facts read: the one that
//! holds the key, `client-ip`, and what limits and conditions name.

mod assign;

use std::collections::BTreeMap;

use serde::Deserialize;
use weir_policy::{
    Conditions, Decision, Denial, Digest, Facts, FieldName, Ipv6Prefix, Limits, Manifest, Mistakes,
    NAME_EXPECTED, Policy, Template, is_name,
};

use assign::Assign;

/// Plans, at most.
const PLANS_MAX: usize = 1_000;

/// `[policies.NAME.config]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where a request's key is: one fact.
    key: Template,
    /// The limits of each plan.
    plans: BTreeMap<String, Limits>,
    /// The plan of those without a known key.
    default_plan: Option<String>,
    /// What becomes of those without a known key.
    #[serde(default)]
    unknown: Unknown,
    /// The plan of each key.
    #[serde(default)]
    assign: Assign,
    /// Tells the upstream the plan.
    plan_header: Option<FieldName>,
    /// Bits of an IPv6 address that make one client.
    #[serde(default)]
    ipv6_prefix: Ipv6Prefix,
    /// Who is never counted.
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
    /// In the order of their names.
    plans: Vec<(String, Limits)>,
    assign: Assign,
    /// None where whoever has no known key is refused.
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
        if config.plans.is_empty() || config.plans.len() > PLANS_MAX {
            mistakes.add(
                "plans",
                format_args!("{} plans", config.plans.len()),
                format_args!("1 to {PLANS_MAX}"),
            );
        }
        for name in config.plans.keys().filter(|name| !is_name(name)) {
            mistakes.add(format!("plans.{name}"), format_args!("the name {name:?}"), NAME_EXPECTED);
        }
        let names: Vec<&str> = config.plans.keys().map(String::as_str).collect();
        let known = || {
            if names.len() <= 16 {
                format!("one of the plans `{}`", names.join("`, `"))
            } else {
                "the name of a plan".to_owned()
            }
        };
        let place = |name: &str| names.binary_search(&name).ok();
        let default_plan = match (&config.default_plan, config.unknown) {
            (Some(name), Unknown::Address) => {
                let found = place(name);
                if found.is_none() {
                    mistakes.add("default_plan", format_args!("{name:?}"), known());
                }
                found
            }
            (Some(name), Unknown::Deny) => {
                mistakes.add(
                    "default_plan",
                    format_args!("{name:?}"),
                    "nothing: with `unknown = \"deny\"` nobody is on it",
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
        assign.resolve(place, known, &mut mistakes);
        let fact = config.key.only_fact().unwrap_or_default().to_owned();
        let limits =
            |name: &str, limits: Limits| limits.in_space(name).ipv6_prefix(config.ipv6_prefix);
        let plans = config
            .plans
            .into_iter()
            .map(|(name, plan)| (limits(&name, plan), name))
            .map(|(plan, name)| (name, plan))
            .collect();
        let Config { plan_header, ipv6_prefix, bypass, .. } =
            Config { plans: BTreeMap::new(), assign: Assign::default(), ..config };
        mistakes.or(Self { fact, plans, assign, default_plan, plan_header, ipv6_prefix, bypass })
    }

    fn manifest(&self) -> Manifest {
        let limits = self.plans.iter().flat_map(|(_, limits)| limits.facts());
        Manifest::reads([self.fact.as_str(), "client-ip"])
            .and(self.bypass.facts())
            .and(limits)
            .pure()
    }

    fn decide(&self, facts: &Facts) -> Result<Decision, String> {
        if self.bypass.hold(facts) {
            // What a client wrote there itself must not pass for a plan.
            return Ok(self.tell(Decision::bypass(), ""));
        }
        // A key that is sent twice is none: nobody but the upstream knows which of the two it
        // believes.
        let digest = facts.only(&self.fact).map(Digest::of_fact);
        let assigned = digest.and_then(|digest| Some((self.assign.plan_of(digest)?, digest)));
        let (plan, key) = match (assigned, self.default_plan) {
            (Some((plan, digest)), _) => (plan, format!("{digest:x}")),
            (None, Some(plan)) => (plan, self.ipv6_prefix.client(facts)?.key()),
            // Where the proxy lets it through all the same, a preflight, it has no plan.
            (None, None) => return Ok(self.tell(Decision::deny(self.stranger()), "")),
        };
        let (name, limits) = self.plans.get(plan).ok_or("a plan that is none")?;
        Ok(self.tell(limits.check(&key, facts).label("plan", name), name))
    }
}

impl Plans {
    fn tell(&self, decision: Decision, plan: &str) -> Decision {
        match &self.plan_header {
            Some(field) => decision.upstream_header(field.as_str(), plan),
            None => decision,
        }
    }

    /// The same for a key that is missing, unknown or sent twice: nobody learns which keys are
    /// known.
    fn stranger(&self) -> Denial {
        let reason = format!("a known key is needed in {}", self.fact.replacen('.', " ", 1));
        Denial::new(401, reason).header("www-authenticate", "Key")
    }
}

weir_policy::export!(Plans);

#[cfg(test)]
mod tests;
