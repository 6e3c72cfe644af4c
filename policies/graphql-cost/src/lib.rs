//! Charges a GraphQL request what it asks for, before it runs: a cost from its fields and the sizes
//! of its lists. Refuses what is too deep, too large or can be read in two ways.
//!
//! There is no schema: the configuration says what fields cost. Facts read: the method, the body as
//! JSON, the parameters of a GET, `client-ip`, and those that limits and conditions name.
//!
//! The path of a request: `request` finds its operations (in JSON with `body` and `members`),
//! `document` reads the text of each (with `lexer`), `cost` adds it up with the `weights` of fields
//! and the `variables`, and `price` puts these together. `refusal` has all reasons why that ends
//! early.

mod body;
mod config;
mod cost;
mod document;
mod lexer;
mod list;
mod members;
mod persisted;
mod price;
mod refusal;
mod request;
mod variables;
mod weights;

use weir_policy::{
    Algorithm, Conditions, Decision, Denial, Enforcement, Facts, Ipv6Prefix, Limit, Limits,
    Manifest, Mistakes, Policy, Warning,
};

use config::COST_MAX;
use price::{Price, Pricing};
use refusal::Refusal;

pub use config::Config;

/// Maximum number of units for an algorithm that stores each one.
const MEMBERS_MAX: u64 = 10_000;
/// Maximum length of the label `operation`, in characters.
const LABEL_CHARS_MAX: usize = 64;

/// The policy.
#[derive(Debug)]
pub struct GraphqlCost {
    pricing: Pricing,
    limits: Limits,
    requests: Limits,
    ipv6_prefix: Ipv6Prefix,
    bypass: Conditions,
    /// What `max_cost` is warned of.
    unreached_cost: Option<Warning>,
}

impl Policy for GraphqlCost {
    type Config = Config;

    fn new(mut config: Config) -> Result<Self, Mistakes> {
        let mut mistakes = Mistakes::new();
        config.check(&mut mistakes);
        let (defaults, bounds) = (config.defaults(), config.bounds());
        let unreached_cost = config.unreached_cost();
        let weights = config.weights(&mut mistakes);
        config.persisted.check(bounds, &mut mistakes);
        let pricing = Pricing {
            weights,
            defaults,
            bounds,
            depth_max: config.max_depth,
            cost_max: config.max_cost(),
            operations_max: usize::try_from(config.max_operations).unwrap_or(usize::MAX),
            introspection: config.introspection,
            persisted: config.persisted,
            unknown_persisted: config.unknown_persisted,
        };
        mistakes.or(Self {
            pricing,
            limits: config.limits.limits.ipv6_prefix(config.ipv6_prefix),
            requests: config.requests.limits.ipv6_prefix(config.ipv6_prefix),
            ipv6_prefix: config.ipv6_prefix,
            bypass: config.bypass,
            unreached_cost,
        })
    }

    fn manifest(&self) -> Manifest {
        let key = ["client-ip"];
        let cost_max = self.pricing.cost_max;
        Manifest::reads(request::FACTS)
            .and(key)
            .and(self.bypass.facts())
            .and(self.limits.facts())
            .declare(self.limits.declared("limits", &key).map(|limit| limit.times(cost_max)))
            .limits("requests", &self.requests, &key)
            .warn(self.unreached_cost.clone())
            .pure()
    }

    fn decide(&self, facts: &Facts) -> Result<Decision, String> {
        if self.bypass.hold(facts) {
            return Ok(Decision::bypass());
        }
        let price = match self.pricing.request(facts) {
            Ok(price) => price,
            Err(refusal) => return Ok(Decision::deny(refusal.denial())),
        };
        let key = self.ipv6_prefix.client(facts)?.key();
        let decision = match self.charge(&price, &key, facts) {
            Ok(limits) => Decision::check(limits),
            Err(denial) => Decision::deny(denial),
        };
        let decision = decision.label("cost", price.cost.to_string());
        if price.operation.is_empty() {
            return Ok(decision);
        }
        // Names and the commas between them are ASCII.
        let operation: String = price.operation.chars().take(LABEL_CHARS_MAX).collect();
        Ok(decision.label("operation", operation))
    }
}

impl GraphqlCost {
    /// The limits to charge. `key` is that of limits without one of their own.
    fn charge(&self, price: &Price, key: &str, facts: &Facts) -> Result<Vec<Limit>, Denial> {
        let (found, max) = (price.cost, self.pricing.cost_max);
        if found > max {
            return Err(Refusal::Cost { found, max }.denial());
        }
        let mut limits = self.limits.charge(key, facts)?;
        for limit in &mut limits {
            let max = match limit.algorithm {
                Algorithm::SlidingWindowLog(_) | Algorithm::Concurrency(_) => MEMBERS_MAX,
                _ => COST_MAX,
            };
            let cost = limit.cost.saturating_mul(found);
            if cost > max && limit.enforcement == Enforcement::Enforce {
                return Err(Refusal::Cost { found, max: max / limit.cost.max(1) }.denial());
            }
            limit.cost = cost.min(max);
        }
        limits.extend(self.requests.charge(key, facts)?);
        Ok(limits)
    }
}

weir_policy::export!(GraphqlCost);

#[cfg(test)]
mod tests;
