//! Limits calls of tools and other requests of the Model Context Protocol, and answers what a limit
//! refuses in JSON-RPC.
//!
//! Facts read: the method, the body as JSON, `client-ip`, and those that limits and conditions
//! name. What header fields say of a message (`Mcp-Method`, `Mcp-Name`) is not read: servers run
//! what is in the body.
//!
//! The path of a request: `message` reads its messages (with `scan`), `table` finds what their
//! tools and methods cost and which limits these have, and `refusal` writes what the client is
//! told.

mod config;
mod message;
mod refusal;
mod scan;
mod table;

use weir_policy::{
    Conditions, Decision, DeclaredLimit, Denial, Facts, Ipv6Prefix, LIMITS_MAX, Limit, Limits,
    Manifest, Mistakes, Policy,
};

use message::{Body, Kind, Message};
use refusal::{Invalid, Refusal};
use table::{Rule, Table};

pub use config::Config;

/// Facts that are read besides those of limits and conditions.
const FACTS: [&str; 5] = ["method", "upgrade", "body.type", "body.json:", "client-ip"];
/// The facts of which the key of limits without one of their own is made.
const KEY: [&str; 1] = ["client-ip"];
/// The priority of requests for which nothing is configured, next to others in a batch.
const PRIORITY_DEFAULT: u8 = 4;
/// Opens a stream like a GET, from revision 2026-07-28 on.
const LISTEN: &str = "subscriptions/listen";
/// What a limit's refusal has without a status of its own.
const TOO_MANY_REQUESTS: u64 = 429;

/// The policy.
#[derive(Debug)]
pub struct Mcp {
    limits: Limits,
    requests: Limits,
    streams: Limits,
    tools: Table,
    methods: Table,
    default_cost: u64,
    notification_cost: u64,
    batch_max: usize,
    /// `None`: 429.
    refusal_status: Option<u16>,
    ipv6_prefix: Ipv6Prefix,
    bypass: Conditions,
}

/// What the messages of a request are charged, and how much they matter.
struct Price<'p> {
    cost: u64,
    /// The entries with limits of their own, each with the number of its messages.
    counted: Vec<(&'p Rule, u64)>,
    /// How many streams they open.
    streams: u64,
    priority: Option<u8>,
}

impl Policy for Mcp {
    type Config = Config;

    fn new(mut config: Config) -> Result<Self, Mistakes> {
        let mut mistakes = Mistakes::new();
        let (tools, methods) = config.tables(&mut mistakes);
        config.check(&tools, &methods, &mut mistakes);
        let status = Some(config.refusal_status).filter(|status| *status != TOO_MANY_REQUESTS);
        let keyed = |limits: &Limits| config.keyed(limits.clone());
        mistakes.or(Self {
            limits: keyed(&config.limits),
            requests: keyed(&config.requests),
            streams: keyed(&config.streams),
            tools,
            methods,
            default_cost: config.default_cost,
            notification_cost: config.notification_cost,
            batch_max: usize::try_from(config.max_batch).unwrap_or(usize::MAX),
            refusal_status: status.and_then(|status| u16::try_from(status).ok()),
            ipv6_prefix: config.ipv6_prefix,
            bypass: config.bypass,
        })
    }

    fn manifest(&self) -> Manifest {
        let batch_max = u64::try_from(self.batch_max).unwrap_or(u64::MAX);
        let cost_max = self.dearest().saturating_mul(batch_max);
        let priced = self.limits.declared("limits", &KEY).map(|limit| limit.times(cost_max));
        let requests = self.requests.declared("requests", &KEY);
        let always: Vec<DeclaredLimit> = priced.chain(requests).collect();
        let of_rule = |rule: &Rule| -> Vec<DeclaredLimit> {
            let at = format!("{}.limits", rule.at);
            let limits = rule.limits.declared(&at, &KEY);
            limits.map(|limit| limit.times(batch_max)).collect()
        };
        let rules = || self.tools.rules().chain(self.methods.rules());
        let mut all = always.clone();
        all.extend(rules().flat_map(of_rule));
        let warning = config::invented_sessions(&always, &all);
        Manifest::reads(FACTS)
            .and(self.bypass.facts())
            .and(self.limits.facts())
            .and(self.requests.facts())
            .and(rules().flat_map(|rule| rule.limits.facts()))
            .and(self.streams.facts())
            .declare(all)
            .declare(self.streams.declared("streams", &KEY).map(|limit| limit.times(batch_max)))
            .warn(warning)
    }

    fn decide(&self, facts: &Facts) -> Result<Decision, String> {
        if self.bypass.hold(facts) {
            return Ok(Decision::bypass());
        }
        let key = self.ipv6_prefix.client(facts)?.key();
        let method = facts.get("method").ok_or("the proxy showed no method")?;
        // MCP has no such transport, and calls on it would not be counted.
        if facts.first("upgrade").is_some() {
            return Ok(Decision::deny(Denial::new(400, "a request for another protocol")));
        }
        if matches!(method, "GET" | "HEAD" | "DELETE" | "OPTIONS") {
            return Ok(self.without_messages(method, &key, facts));
        }
        let body = match message::read(facts, self.batch_max) {
            Ok(body) => body,
            Err(refusal) => return Ok(Decision::deny(refusal.denial())),
        };
        let price = self.price(&body);
        let decision = match self.charge(&price, &key, facts) {
            Ok(limits) if limits.is_empty() => Decision::bypass(),
            Ok(limits) => refusal::limited(Decision::check(limits), &body, self.refusal_status),
            Err(Charge::Refused(refusal)) => Decision::deny(refusal.denial()),
            Err(Charge::Denied(denial)) => Decision::deny(refusal::in_json_rpc(denial, &body)),
        };
        let decision = match price.priority {
            Some(priority) => decision.priority(priority),
            None => decision,
        };
        Ok(labelled(decision, &body, price.cost))
    }
}

/// Why nothing is charged.
enum Charge {
    Refused(Refusal),
    /// A limit's key is missing.
    Denied(Denial),
}

impl From<Denial> for Charge {
    fn from(denial: Denial) -> Self {
        Self::Denied(denial)
    }
}

impl Mcp {
    /// A GET opens a stream, and a DELETE ends a session. Neither has a body.
    fn without_messages(&self, method: &str, key: &str, facts: &Facts) -> Decision {
        if facts.get("body.type").is_some_and(|body| body != "empty") {
            return Decision::deny(Denial::new(400, format!("a {method} request with a body")));
        }
        let streams = match method {
            "GET" | "HEAD" => self.streams.charge(key, facts),
            _ => Ok(Vec::new()),
        };
        let all = streams.and_then(|mut limits| {
            limits.extend(self.requests.charge(key, facts)?);
            Ok(limits)
        });
        match all {
            Ok(limits) if limits.is_empty() => Decision::bypass(),
            Ok(limits) => Decision::check(limits),
            Err(denial) => Decision::deny(denial),
        }
    }

    /// What a single message may cost, at most.
    fn dearest(&self) -> u64 {
        let rules = self.tools.rules().chain(self.methods.rules());
        let costs = rules.filter_map(|rule| rule.cost);
        costs.chain([self.default_cost, self.notification_cost]).max().unwrap_or(0)
    }

    /// The entries of a message: that of its tool, and that of its method.
    fn rules(&self, kind: &Kind) -> [Option<&Rule>; 2] {
        [
            kind.tool().and_then(|tool| self.tools.find(tool.trim())),
            kind.method().and_then(|method| self.methods.find(method.trim())),
        ]
    }

    fn price(&self, body: &Body) -> Price<'_> {
        let mut price = Price { cost: 0, counted: Vec::new(), streams: 0, priority: None };
        let mut lowest: Option<(u8, bool)> = None;
        for Message { kind, .. } in &body.messages {
            if *kind == Kind::Aside {
                price.cost = price.cost.saturating_add(self.notification_cost);
                continue;
            }
            let opens = |method: &str| method.trim().eq_ignore_ascii_case(LISTEN);
            price.streams += u64::from(kind.method().is_some_and(opens));
            let rules = self.rules(kind);
            let found = || rules.into_iter().flatten();
            let cost = found().find_map(|rule| rule.cost).unwrap_or(self.default_cost);
            price.cost = price.cost.saturating_add(cost);
            let own = found().find_map(|rule| rule.priority);
            let (known, all_own) = lowest.unwrap_or((u8::MAX, true));
            lowest = Some((known.min(own.unwrap_or(PRIORITY_DEFAULT)), all_own && own.is_some()));
            for rule in found().filter(|rule| rule.limits.count() > 0) {
                match price.counted.iter_mut().find(|(known, _)| std::ptr::eq(*known, rule)) {
                    Some((_, count)) => *count += 1,
                    None => price.counted.push((rule, 1)),
                }
            }
        }
        // Where nothing is configured, the route says so: for a batch, if that is so for a part of
        // it that might matter less.
        price.priority = lowest
            .filter(|(priority, all_own)| *all_own || *priority < PRIORITY_DEFAULT)
            .map(|(priority, _)| priority);
        price
    }

    /// All limits of a request with messages. `key` is that of limits without one of their own.
    fn charge(&self, price: &Price<'_>, key: &str, facts: &Facts) -> Result<Vec<Limit>, Charge> {
        let mut limits = Vec::new();
        let counted = price.counted.iter().map(|(rule, count)| (&rule.limits, *count));
        let own = [(&self.limits, price.cost), (&self.streams, price.streams)];
        for (table, units) in own.into_iter().chain(counted) {
            let charged = table.charge_cost(key, units, facts)?;
            // What never fits would be told to come back, again and again.
            let never = table.refusing().find_map(|written| {
                let limit = charged.iter().find(|limit| limit.name == written.name)?;
                let max = written.cost_max();
                (written.may_refuse() && max > 0 && limit.cost > max).then_some((limit, max))
            });
            if let Some((limit, max)) = never {
                let invalid = Invalid::Cost { limit: limit.name.clone(), max };
                return Err(Charge::Refused(Refusal::Invalid(invalid)));
            }
            limits.extend(charged);
        }
        limits.extend(self.requests.charge(key, facts)?);
        if limits.len() > LIMITS_MAX {
            let invalid = Invalid::Limits { found: limits.len(), max: LIMITS_MAX };
            return Err(Charge::Refused(Refusal::Invalid(invalid)));
        }
        Ok(limits)
    }
}

/// The decision with what it is about, for the access log.
fn labelled(decision: Decision, body: &Body, cost: u64) -> Decision {
    let kinds = || body.messages.iter().map(|message| &message.kind);
    let decision = decision.label("cost", cost.to_string());
    let decision = label(decision, "method", kinds().filter_map(Kind::method));
    label(decision, "tool", kinds().filter_map(Kind::tool))
}

/// The decision with names of its messages, each once.
fn label<'b>(decision: Decision, name: &str, values: impl Iterator<Item = &'b str>) -> Decision {
    let mut all: Vec<&str> = Vec::new();
    for value in values.filter(|value| !value.is_empty()) {
        if !all.contains(&value) {
            all.push(value);
        }
    }
    if all.is_empty() {
        return decision;
    }
    decision.label(name, refusal::shown(&all.join(",")))
}

weir_policy::export!(Mcp);

#[cfg(test)]
mod tests;
