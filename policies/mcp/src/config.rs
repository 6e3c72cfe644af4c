//! `[policies.NAME.config]` as it is written, and what is checked beyond its types.

use std::collections::BTreeMap;

use serde::Deserialize;
use weir_policy::{
    Conditions, DeclaredLimit, Ipv6Prefix, LIMITS_MAX, Limits, Missing, Mistakes, Template, Warning,
};

use crate::table::{Table, Written};

/// Maximum size of a batch. With so many, the errors of a refusal have room in the proxy's bound.
const BATCHES: std::ops::RangeInclusive<u64> = 1..=32;
/// What a request may cost, at most.
const COST_MAX: u64 = 1 << 40;
/// The fact that names the session.
const SESSION: &str = "header.mcp-session-id";

/// `[policies.NAME.config]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Charged what the messages of a request cost.
    pub(crate) limits: Limits,
    /// Charged 1 for each request of HTTP, whatever it has.
    pub(crate) requests: Limits,
    /// Charged 1 for each stream that stays open: a GET, or a request for one.
    pub(crate) streams: Limits,
    /// Tools by name, or by what their names begin with.
    tools: BTreeMap<String, Written>,
    /// Methods of the protocol in the same way.
    methods: BTreeMap<String, Written>,
    /// What requests cost whose tool and method say nothing.
    pub(crate) default_cost: u64,
    /// What a notification costs, and a response to the server.
    pub(crate) notification_cost: u64,
    /// Maximum number of messages in a batch.
    pub(crate) max_batch: u64,
    /// The status of a reply to what a limit refuses.
    pub(crate) refusal_status: u64,
    /// The key of limits without one of their own; without it, the client's address.
    pub(crate) key: Option<Template>,
    /// How to treat requests without a key, for limits that don't say so themselves.
    pub(crate) missing: Option<Missing>,
    /// Bits of an IPv6 address that make one client.
    pub(crate) ipv6_prefix: Ipv6Prefix,
    /// Requests that are never read or counted.
    pub(crate) bypass: Conditions,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            requests: Limits::default(),
            streams: Limits::default(),
            tools: BTreeMap::new(),
            methods: BTreeMap::new(),
            default_cost: 1,
            notification_cost: 0,
            max_batch: 16,
            refusal_status: 429,
            key: None,
            missing: None,
            ipv6_prefix: Ipv6Prefix::default(),
            bypass: Conditions::default(),
        }
    }
}

impl Config {
    /// A table with the key and the address of this policy.
    pub(crate) fn keyed(&self, limits: Limits) -> Limits {
        limits.by_default(self.key.as_ref(), self.missing).ipv6_prefix(self.ipv6_prefix)
    }

    /// What is known of tools, and of methods.
    pub(crate) fn tables(&mut self, mistakes: &mut Mistakes) -> (Table, Table) {
        let (tools, methods) = (std::mem::take(&mut self.tools), std::mem::take(&mut self.methods));
        let keyed = |limits| self.keyed(limits);
        (
            Table::new("tools", tools, keyed, mistakes),
            Table::new("methods", methods, keyed, mistakes),
        )
    }

    /// Adds the mistakes of numbers and limits.
    pub(crate) fn check(&self, tools: &Table, methods: &Table, mistakes: &mut Mistakes) {
        if !BATCHES.contains(&self.max_batch) {
            let expected = format_args!("{} to {}", BATCHES.start(), BATCHES.end());
            mistakes.add("max_batch", self.max_batch, expected);
        }
        if self.refusal_status != 200 && !(400..=599).contains(&self.refusal_status) {
            mistakes.add("refusal_status", self.refusal_status, "200, or 400 to 599");
        }
        let rules = || tools.rules().chain(methods.rules());
        let costs = rules().filter_map(|rule| Some((format!("{}.cost", rule.at), rule.cost?)));
        let own = [
            ("default_cost".to_owned(), self.default_cost),
            ("notification_cost".to_owned(), self.notification_cost),
        ];
        costs.chain(own).for_each(|(path, cost)| self.check_cost(path, cost, mistakes));
        let counts = |table: &Table| table.rules().map(|rule| rule.limits.count()).max();
        // A call is no stream.
        let most = self.limits.count()
            + self.requests.count()
            + counts(tools).unwrap_or(0).max(self.streams.count())
            + counts(methods).unwrap_or(0);
        if most > LIMITS_MAX {
            let found =
                format_args!("{most} limits for one request, with those of its tool and method");
            mistakes.add("", found, format_args!("at most {LIMITS_MAX}"));
        }
        if most == 0 {
            mistakes.add("", "no limits", "`limits`, or a tool or a method with limits");
        }
        self.check_names(tools, methods, mistakes);
    }

    /// Adds a cost that no limit ever lets through.
    fn check_cost(&self, path: String, cost: u64, mistakes: &mut Mistakes) {
        // A limit with `quota = 0` is meant to refuse everything.
        let mut limits = self.limits.refusing().filter(|limit| limit.cost_max() > 0);
        let never = limits.find(|limit| cost.saturating_mul(limit.cost) > limit.cost_max());
        if let Some(limit) = never {
            let most = limit.cost_max() / limit.cost.max(1);
            let expected = format_args!(
                "at most {most}: limit {:?} could never let such a request through",
                limit.name
            );
            mistakes.add(path, cost, expected);
        } else if cost > COST_MAX {
            mistakes.add(path, cost, format_args!("at most {COST_MAX}"));
        }
    }

    /// Adds names that two limits have.
    fn check_names(&self, tools: &Table, methods: &Table, mistakes: &mut Mistakes) {
        let mut names: Vec<(String, &str)> = Vec::new();
        let own =
            [("limits", &self.limits), ("requests", &self.requests), ("streams", &self.streams)];
        let own = own.map(|(at, limits)| (at.to_owned(), limits)).into_iter();
        let rules = tools.rules().chain(methods.rules());
        let rules = rules.map(|rule| (format!("{}.limits", rule.at), &rule.limits));
        for (at, limits) in own.chain(rules) {
            let before = names.len();
            for (place, name) in limits.named() {
                // Names that are there twice in one table were found when it was read.
                let others = names.get(..before).unwrap_or_default();
                if let Some((other, _)) = others.iter().find(|(_, known)| *known == name) {
                    let expected = format_args!("a name that {other} does not have");
                    mistakes.add(format!("{at}{place}.name"), format_args!("{name:?}"), expected);
                }
                names.push((format!("{at}{place}"), name));
            }
        }
    }
}

/// A limit by session where no other one counts the client. `always` are the limits of each
/// request, `all` these and those of tools and methods.
pub(crate) fn invented_sessions(
    always: &[DeclaredLimit],
    all: &[DeclaredLimit],
) -> Option<Warning> {
    let by_session = |limit: &&DeclaredLimit| limit.key_facts.iter().any(|fact| fact == SESSION);
    let first = all.iter().find(by_session)?;
    if always.iter().any(|limit| !by_session(&limit)) {
        return None;
    }
    let text = format!(
        "a client that changes `Mcp-Session-Id` gets a new allowance of `{}` each time, and no other \
         limit counts the client",
        first.name
    );
    let remedy = "add a limit of the client to `limits`, such as one with `key = \"{bearer}\"`";
    Some(Warning::new("unbounded-key", format!("{}.key", first.at), text).remedy(remedy))
}
