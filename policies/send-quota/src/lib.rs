//! Quotas of what requests send: e-mails, messages, exports. What was not sent is given back.
//!
//! A request is charged for all that it sends before it is forwarded, so that requests at the same
//! time can't send more than is left. If the upstream fails, the proxy gives the units back; where
//! a status says that nothing was sent, `settle` does. Facts read: the one with the number of
//! units, or the lists of recipients in the body, `method`, `client-ip`, and those that key
//! templates and conditions name.
//!
//! `units` finds out what a request sends, `refund` says when it is given back.

mod refund;
mod units;

use serde::Deserialize;
use weir_policy::{
    Conditions, Decision, DeclaredLimit, Denial, Facts, Ipv6Prefix, LIMITS_MAX, Limit, Limits,
    Manifest, Methods, Missing, Mistakes, Policy, Refund, ResponseView, Settlement, Statuses,
    Taken, Template,
};

use refund::{Failed, Rule, Units};
use units::{Otherwise, Source, UNITS_MAX};

/// `[policies.NAME.config]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The number of units: one fact.
    cost: Option<Template>,
    /// Lists of recipients in a JSON body, which are counted together.
    count: Option<Vec<String>>,
    /// What a request without the number, or without a list, costs.
    #[serde(default = "one")]
    default_cost: Otherwise,
    /// What one request may cost; without it, what the limits can let through.
    max_cost: Option<u64>,
    /// The methods that send something. Other requests are not counted.
    #[serde(default)]
    methods: Methods,
    /// When units are given back.
    #[serde(default)]
    refund: Failed,
    /// Statuses of replies after which they are given back as well.
    #[serde(default)]
    refund_statuses: Statuses,
    /// The key of limits without one of their own; without it, the client's address.
    key: Option<Template>,
    /// How to treat requests without a key, for limits that don't say so themselves.
    missing: Option<Missing>,
    /// Bits of an IPv6 address that make one client.
    #[serde(default)]
    ipv6_prefix: Ipv6Prefix,
    /// Requests that are never counted.
    #[serde(default)]
    bypass: Conditions,
    /// Charged what is sent.
    limits: Units,
    /// Charged for each request.
    #[serde(default)]
    requests: Limits,
}

fn one() -> Otherwise {
    Otherwise::Cost(1)
}

/// The policy.
#[derive(Debug)]
pub struct SendQuota {
    source: Source,
    otherwise: Otherwise,
    cost_max: u64,
    methods: Methods,
    rule: Rule,
    ipv6_prefix: Ipv6Prefix,
    bypass: Conditions,
    limits: Limits,
    requests: Limits,
}

impl Config {
    fn source(&self, mistakes: &mut Mistakes) -> Source {
        match (&self.cost, &self.count) {
            (None, None) => {
                if self.default_cost == Otherwise::Deny {
                    let expected =
                        "units, or `cost` or `count`: where a request says what it sends";
                    mistakes.add("default_cost", "\"deny\"", expected);
                }
                Source::Nowhere
            }
            (Some(_), Some(_)) => {
                mistakes.add("count", "`count` beside `cost`", "only one of the two");
                Source::Nowhere
            }
            (Some(template), None) => Source::number(template).unwrap_or_else(|| {
                let expected = "one fact and nothing else, such as \"{header.x-recipients}\"";
                mistakes.add("cost", "a template of another shape", expected);
                Source::Nowhere
            }),
            (None, Some(pointers)) => {
                units::check_pointers(pointers, mistakes);
                Source::lists(pointers)
            }
        }
    }

    /// The most that a request may cost.
    fn cost_max(&self, mistakes: &mut Mistakes) -> u64 {
        // A limit with `quota = 0` is meant to refuse everything.
        let enforced = self.limits.0.each().filter(|limit| limit.may_refuse());
        let bounds = enforced.filter(|limit| limit.cost_max() > 0 && limit.cost > 0);
        let most = bounds.map(|limit| (limit.cost_max() / limit.cost, limit.name.as_str())).min();
        let (most, limit) = most.unwrap_or((UNITS_MAX, ""));
        let mut check = |setting: &str, units: u64| {
            if units == 0 || units > most {
                let expected = if limit.is_empty() {
                    format!("1 to {most}")
                } else {
                    format!("1 to {most}: limit {limit:?} could never let more through")
                };
                mistakes.add(setting, units, expected);
            }
        };
        if let Some(units) = self.max_cost {
            check("max_cost", units);
        }
        let most = self.max_cost.unwrap_or(most);
        if let Otherwise::Cost(units) = self.default_cost {
            check("default_cost", units);
            if units > most && self.max_cost.is_some() {
                let expected = format_args!("at most `max_cost`, {most}");
                mistakes.add("default_cost", units, expected);
            }
        }
        most
    }

    fn check_limits(&self, mistakes: &mut Mistakes) {
        let lists = [("limits", &self.limits.0), ("requests", &self.requests)];
        for (list, limits) in lists {
            for (index, limit) in limits.each().enumerate() {
                if limit.debt.is_some() {
                    let expected = "none: what is sent is charged before, so nothing is owed";
                    mistakes.add(format!("{list}[{index}].debt"), "a debt", expected);
                }
            }
        }
        for (index, limit) in self.requests.each().enumerate() {
            let at = |key: &str| format!("requests[{index}].{key}");
            if limit.refund == Refund::BySettle {
                let expected = "another refund: `refund_statuses` is about `limits`";
                mistakes.add(at("refund"), "\"by_settle\"", expected);
            }
            if self.limits.0.names().any(|name| name == limit.name) {
                let expected = "a name that no limit in `limits` has";
                mistakes.add(at("name"), format_args!("{:?}", limit.name), expected);
            }
        }
        let together = self.limits.0.each().count() + self.requests.each().count();
        if together > LIMITS_MAX {
            let found = format_args!("{together} limits, with those in `limits`");
            mistakes.add("requests", found, format_args!("{LIMITS_MAX} together"));
        }
    }
}

impl Policy for SendQuota {
    type Config = Config;

    const SETTLES: bool = true;

    fn new(config: Config) -> Result<Self, Mistakes> {
        let mut mistakes = Mistakes::new();
        let source = config.source(&mut mistakes);
        let cost_max = config.cost_max(&mut mistakes);
        config.check_limits(&mut mistakes);
        let rule = Rule { failed: config.refund, statuses: config.refund_statuses };
        rule.check(&mut mistakes);
        let (key, missing) = (config.key, config.missing);
        let keyed = |limits: Limits| {
            limits.by_default(key.as_ref(), missing).ipv6_prefix(config.ipv6_prefix)
        };
        mistakes.or(Self {
            source,
            otherwise: config.default_cost,
            cost_max,
            methods: config.methods,
            rule,
            ipv6_prefix: config.ipv6_prefix,
            bypass: config.bypass,
            limits: keyed(config.limits.0),
            requests: keyed(config.requests),
        })
    }

    fn manifest(&self) -> Manifest {
        let key = ["client-ip"];
        Manifest::reads(["method", "client-ip"])
            .and(self.source.facts())
            .and(self.bypass.facts())
            .and(self.limits.facts())
            .declare(self.declared(&key))
            .limits("requests", &self.requests, &key)
            .pure()
    }

    fn decide(&self, facts: &Facts) -> Result<Decision, String> {
        let method = facts.get("method").ok_or("the proxy showed no method")?;
        if self.bypass.hold(facts) || !self.methods.include(&method.to_ascii_uppercase()) {
            return Ok(Decision::bypass());
        }
        let key = self.ipv6_prefix.client(facts)?.key();
        Ok(match self.charge(&key, facts) {
            Ok((units, limits)) => {
                let taken = Taken::of(&limits);
                let decision = Decision::check(limits).label("units", units.to_string());
                if taken.is_empty() { decision } else { decision.settle_with(taken.memo()) }
            }
            Err(denial) => Decision::deny(denial),
        })
    }

    fn settle(&self, memo: &str, response: &ResponseView) -> Result<Settlement, String> {
        let taken = Taken::read(memo)?;
        Ok(if self.rule.gives_back(response) { taken.give_back() } else { Settlement::nothing() })
    }
}

impl SendQuota {
    /// The limits that are charged what is sent. Those with the policy's refund are compared with
    /// each other alone.
    fn declared(&self, key: &[&str]) -> Vec<DeclaredLimit> {
        let declared = self.limits.declared("limits", key).zip(self.limits.each());
        let each = declared.map(|(declared, limit)| {
            let by_rule = limit.refund == Refund::BySettle && !self.rule.settles();
            let together = if by_rule {
                Some("limits, by refund".to_owned())
            } else {
                declared.together.clone()
            };
            DeclaredLimit { together, ..declared.times(self.cost_max) }
        });
        each.collect()
    }

    /// What the request sends, and the limits to charge.
    fn charge(&self, key: &str, facts: &Facts) -> Result<(u64, Vec<Limit>), Denial> {
        let units = match (self.source.units(facts)?, self.otherwise) {
            // A request for nobody is an attempt all the same.
            (Some(units), _) => units.max(1),
            (None, Otherwise::Cost(units)) => units,
            (None, Otherwise::Deny) => {
                return Err(Denial::new(400, "the request does not say how much it sends"));
            }
        };
        if units > self.cost_max {
            let most = self.cost_max;
            let reason =
                format!("the request sends {units}, and at most {most} may be sent at once");
            return Err(Denial::new(400, reason));
        }
        let mut limits = self.limits.charge_cost(key, units, facts)?;
        limits.iter_mut().for_each(|limit| self.rule.apply(limit));
        limits.extend(self.requests.charge(key, facts)?);
        Ok((units, limits))
    }
}

weir_policy::export!(SendQuota);

#[cfg(test)]
mod tests;
