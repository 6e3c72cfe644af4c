//! Budgets for language models, in tokens or money, exact under concurrency.
//!
//! A request is charged when it comes for the most that it may use: its input, estimated from its
//! size, and the maximum of output that it names. At its end the charge is settled to what the
//! reply says was used. So requests that run at the same time can't spend a budget twice.
//!
//! One request, in reading order: `asked` reads the facts of its body, `reserve` makes the
//! decision, `memo` carries what was reserved to the reply's end, and `settle` corrects it. `api`
//! knows where each API writes its numbers, `references` what a body only refers to, `models` and
//! `prices` the prices, `lists` the limits, `warnings` what is probably not meant. Facts read:
//! `method`, `path`, `upstream-path`, `client-ip`, the body and some of its values, and those that
//! limits and conditions name.

mod api;
mod asked;
mod config;
mod lists;
mod memo;
mod models;
mod prices;
mod references;
mod reserve;
mod settle;
mod warnings;

use weir_policy::{
    Conditions, Decision, DeclaredLimit, Denial, Facts, Ipv6Prefix, Limit, Limits, Manifest,
    Mistakes, Policy, ResponseView, Settlement, Warning,
};

use api::Api;
pub use config::Config;
use config::{REQUESTS, Settings};
use lists::Counted;
use models::Models;

/// Maximum number of units of a limit, tokens of a request and micro-dollars: what the proxy
/// accepts.
const AMOUNT_MAX: u64 = 1 << 52;

/// The policy.
#[derive(Debug)]
pub struct LlmBudget {
    api: Api,
    /// The lists that are settled, in the order of [`Counted::ALL`].
    budgets: Vec<(Counted, Limits)>,
    /// Limits on requests themselves.
    requests: Option<Limits>,
    models: Models,
    settings: Settings,
    ipv6_prefix: Ipv6Prefix,
    bypass: Conditions,
    warnings: Vec<Warning>,
}

/// Why there is no decision about limits.
#[derive(Debug)]
enum Stop {
    /// The request is refused.
    Denied(Denial),
    /// The policy can't decide. The route's `on_policy_error` applies.
    Failed(String),
}

impl From<Denial> for Stop {
    fn from(denial: Denial) -> Self {
        Self::Denied(denial)
    }
}

impl From<String> for Stop {
    fn from(failure: String) -> Self {
        Self::Failed(failure)
    }
}

impl Policy for LlmBudget {
    type Config = Config;

    const SETTLES: bool = true;

    fn new(config: Config) -> Result<Self, Mistakes> {
        config.check()
    }

    fn manifest(&self) -> Manifest {
        let limits = self.budgets.iter().map(|(_, limits)| limits).chain(&self.requests);
        // A body is read, and held for it, only if something in it is counted.
        let body = match self.budgets.is_empty() {
            true => Vec::new(),
            false => asked::facts(&self.api, &self.settings),
        };
        Manifest::reads(["method", "client-ip", "upgrade"])
            .and(asked::PATHS)
            .and(body)
            .and(self.bypass.facts())
            .and(limits.flat_map(Limits::facts))
            .declare(self.declared())
            .warn(self.warnings.iter().cloned())
            .pure()
    }

    fn decide(&self, facts: &Facts) -> Result<Decision, String> {
        if self.bypass.hold(facts) {
            return Ok(Decision::bypass());
        }
        // Some servers take a method in any case.
        let posts = facts.get("method").is_some_and(|method| method.eq_ignore_ascii_case("POST"));
        let path = asked::path(facts);
        let counts_use = !self.budgets.is_empty();
        let unpriced = || facts.first("upgrade").is_some() || self.api.is_unpriced(path, posts);
        if counts_use && !self.settings.unpriced && unpriced() {
            let reason = "nothing would report what this call uses, so no budget can count it";
            return Ok(Decision::deny(Denial::new(403, reason)));
        }
        let decision = if posts && counts_use {
            self.reserve(facts)
        } else {
            self.count(facts).map(reserve::check)
        };
        match decision {
            Ok(decision) => Ok(decision),
            Err(Stop::Denied(denial)) => Ok(Decision::deny(denial)),
            Err(Stop::Failed(failure)) => Err(failure),
        }
    }

    fn settle(&self, memo: &str, response: &ResponseView) -> Result<Settlement, String> {
        let memo = memo::Memo::read(memo).ok_or("a memo that this policy has not written")?;
        let reply = self.api.read(response, self.settings.bytes_per_token);
        Ok(settle::settlement(&memo, &reply, response, self.settings.estimates))
    }
}

impl LlmBudget {
    /// The limits that requests are charged.
    fn declared(&self) -> Vec<DeclaredLimit> {
        let key = ["client-ip"];
        let settled = |(counted, limits): &(Counted, Limits)| -> Vec<DeclaredLimit> {
            let most = limits.each().map(lists::cost_max).map(Some);
            let declared = limits.declared(counted.setting(), &key).zip(most);
            declared.map(|(limit, cost_max)| DeclaredLimit { cost_max, ..limit }).collect()
        };
        let mut all: Vec<DeclaredLimit> = self.budgets.iter().flat_map(settled).collect();
        let may_refuse = self.budgets.iter().any(|(_, list)| list.each().any(Limit::may_refuse));
        if may_refuse && self.settings.in_flight > 0 {
            // Its key is that of one of the budgets.
            let keys = all.iter().flat_map(|limit| &limit.key_facts).map(String::as_str);
            let keys: Vec<&str> = keys.collect();
            let at = if self.settings.in_flight_is_written { "in_flight" } else { "" };
            let limit = reserve::in_flight(String::new(), self.settings.in_flight);
            all.push(DeclaredLimit::of(&limit, at, &keys));
        }
        all.extend(self.requests.iter().flat_map(|list| list.declared(REQUESTS, &key)));
        all
    }
}

weir_policy::export!(LlmBudget);

#[cfg(test)]
mod tests;
