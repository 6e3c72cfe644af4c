//! `[policies.NAME.config]` as it is written, and what is checked beyond its types.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use weir_policy::{Algorithm, Conditions, Ipv6Prefix, Json, LIMITS_MAX, Mistakes, Warning};

use crate::cost::Defaults;
use crate::document::Bounds;
use crate::list::List;
use crate::persisted::Persisted;
use crate::weights::{Weights, Written};

/// What a limit may be charged at once, and a request may cost.
pub(crate) const COST_MAX: u64 = 1 << 52;
/// `max_cost`, if it is not written.
const MAX_COST_DEFAULT: u64 = 10_000;
/// Each is a call on the guest's stack, and so are fragments.
const DEPTHS: RangeInclusive<u64> = 1..=100;
const ALIASES: RangeInclusive<u64> = 0..=100_000;
const DIRECTIVES: RangeInclusive<u64> = 0..=50_000;
/// The largest document of this many takes about 3 ms, of the 10 ms that a call has.
const TOKENS: RangeInclusive<u64> = 1..=50_000;
const OPERATIONS: RangeInclusive<u64> = 1..=1_000;

/// `[policies.NAME.config]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Charged what a request costs.
    pub(crate) limits: List,
    /// Charged 1 for each request.
    pub(crate) requests: List,
    /// What a field with selections costs, for each of its items.
    default_field: u64,
    /// What a field without selections costs, for each of its items.
    default_scalar: u64,
    /// Items of a list whose arguments don't say it.
    default_list: u64,
    /// Maximum nesting depth of fields.
    pub(crate) max_depth: u64,
    /// What a request may cost, at most.
    max_cost: Option<u64>,
    /// Aliases in one document, at most.
    max_aliases: u64,
    /// Maximum number of directives in one document. The server may have to look at each of them,
    /// and none adds to the cost.
    max_directives: u64,
    /// Maximum number of tokens of all documents of a request.
    max_tokens: u64,
    /// Maximum number of operations in a batch.
    pub(crate) max_operations: u64,
    /// Whether requests may ask for the schema.
    pub(crate) introspection: bool,
    /// What a mutation costs in addition.
    mutation: u64,
    /// What a subscription costs in addition.
    subscription: u64,
    /// The arguments that say how many items a field returns.
    size_arguments: Vec<String>,
    /// What is known about single fields.
    fields: BTreeMap<String, Written>,
    /// What is known about persisted queries.
    pub(crate) persisted: Persisted,
    /// How to treat the digest of a query that is not listed.
    pub(crate) unknown_persisted: Unknown,
    /// Bits of an IPv6 address that make one client.
    pub(crate) ipv6_prefix: Ipv6Prefix,
    /// Requests that are never counted.
    pub(crate) bypass: Conditions,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limits: List::default(),
            requests: List::default(),
            default_field: 1,
            default_scalar: 1,
            default_list: 10,
            max_depth: 15,
            max_cost: None,
            max_aliases: 30,
            max_directives: 30,
            max_tokens: 15_000,
            max_operations: 10,
            introspection: true,
            mutation: 10,
            subscription: 0,
            size_arguments: ["first", "last", "limit", "pageSize"].map(str::to_owned).into(),
            fields: BTreeMap::new(),
            persisted: Persisted::default(),
            unknown_persisted: Unknown::Deny,
            ipv6_prefix: Ipv6Prefix::default(),
            bypass: Conditions::default(),
        }
    }
}

/// A persisted query that is not listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    Deny,
    Cost(u64),
}

impl<'de> Deserialize<'de> for Unknown {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Json::deserialize(deserializer)?;
        match (value.as_str().as_deref(), value.as_u64()) {
            (Some("deny"), _) => Ok(Self::Deny),
            (_, Some(cost)) => Ok(Self::Cost(cost)),
            _ => Err(D::Error::custom(format!(
                "found {value}, expected \"deny\", or what such a query costs"
            ))),
        }
    }
}

impl Config {
    /// What fields and operations without a weight cost.
    pub(crate) fn defaults(&self) -> Defaults {
        Defaults {
            field: self.default_field,
            scalar: self.default_scalar,
            list: self.default_list,
            mutation: self.mutation,
            subscription: self.subscription,
        }
    }

    /// What a request may cost, at most.
    pub(crate) fn max_cost(&self) -> u64 {
        self.max_cost.unwrap_or(MAX_COST_DEFAULT)
    }

    /// A `max_cost` of requests that no limit ever lets pass.
    pub(crate) fn unreached_cost(&self) -> Option<Warning> {
        let max_cost = self.max_cost?;
        let limits = self.limits.limits.each().enumerate().filter(|(_, limit)| {
            limit.may_refuse()
                && limit.cost_max() > 0
                && !matches!(limit.algorithm, Algorithm::Script(_))
        });
        let each =
            limits.map(|(index, limit)| (limit.cost_max() / limit.cost.max(1), index, limit));
        let (most, index, limit) = each.min_by_key(|(most, ..)| *most)?;
        let text = format!(
            "requests that cost more than {most} never pass `{}`, and `max_cost` is {max_cost}: \
             they are asked to come back, and are refused again",
            limit.name
        );
        let at = format!("limits[{index}].{}", limit.amount_setting());
        let warning = Warning::new("unreached-cost", "max_cost", text)
            .beside(at, "this limit refuses them")
            .remedy(format!("write `max_cost = {most}`, or raise the limit"));
        (most < max_cost).then_some(warning)
    }

    /// What documents may have.
    pub(crate) fn bounds(&self) -> Bounds {
        Bounds {
            tokens: self.max_tokens,
            aliases: self.max_aliases,
            directives: self.max_directives,
        }
    }

    /// Adds the mistakes of numbers and limits.
    pub(crate) fn check(&self, mistakes: &mut Mistakes) {
        let ranges = [
            ("default_field", self.default_field, 0..=COST_MAX),
            ("default_scalar", self.default_scalar, 0..=COST_MAX),
            ("default_list", self.default_list, 1..=COST_MAX),
            ("max_depth", self.max_depth, DEPTHS),
            ("max_cost", self.max_cost(), 1..=COST_MAX),
            ("max_aliases", self.max_aliases, ALIASES),
            ("max_directives", self.max_directives, DIRECTIVES),
            ("max_tokens", self.max_tokens, TOKENS),
            ("max_operations", self.max_operations, OPERATIONS),
            ("mutation", self.mutation, 0..=COST_MAX),
            ("subscription", self.subscription, 0..=COST_MAX),
        ];
        for (path, found, range) in ranges {
            if !range.contains(&found) {
                let expected = format_args!("{} to {}", range.start(), range.end());
                mistakes.add(path, found, expected);
            }
        }
        self.limits.check("limits", mistakes);
        self.requests.check("requests", mistakes);
        if self.limits.is_missing() {
            let expected = "at least one, which is charged what a request costs";
            mistakes.add("limits", "no limits", expected);
        }
        for (index, name) in self.requests.named() {
            if self.limits.named().any(|(_, priced)| priced == name) {
                let expected = "a name that no limit in `limits` has";
                mistakes.add(format!("requests[{index}].name"), format_args!("{name:?}"), expected);
            }
        }
        let together = self.limits.len() + self.requests.len();
        if together > LIMITS_MAX {
            let found = format_args!("{together} limits, with those in `limits`");
            mistakes.add("requests", found, format_args!("{LIMITS_MAX} together"));
        }
    }

    /// What single fields cost.
    pub(crate) fn weights(&mut self, mistakes: &mut Mistakes) -> Weights {
        let fields = std::mem::take(&mut self.fields);
        Weights::new(fields, &self.size_arguments, self.default_list, mistakes)
    }
}
