//! Counts failed sign-ins, by address and by account.
//!
//! An attempt is charged before its result is known, so that many at once can't pass when only a
//! few are left. At the end of the reply a failure stays charged, and anything else is given back.
//! A success also resets the counters of its own account, and no other: if it reset the address's,
//! an attacker with an account of his own could sign in to it before each guess at another one.
//!
//! `account` finds out which account an attempt is for, `counters` is the lists of limits, `status`
//! what the upstream's answer means. Facts read: `method`, `client-ip`, those that may hold the
//! account, and those that conditions name. No decision is remembered, as hardly any attempt is
//! made twice with the same facts.

mod account;
mod counters;
mod status;

use std::fmt::Write as _;

use serde::Deserialize;
use weir_policy::{
    Adjustment, Client, Conditions, Decision, DeclaredLimit, Denial, Facts, Ipv6Prefix, Limit,
    Manifest, Mistakes, Policy, Refund, ResponseView, Settlement, Template,
};

use account::{Account, Case, Places};
use counters::Counters;
use status::Statuses;

/// `[policies.NAME.config]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where the account is in an attempt.
    account: Places,
    /// What separates accounts of the same name, such as the host that the attempt is for.
    tenant: Option<Template>,
    /// Whether `Ann` and `ann` are one account.
    #[serde(default)]
    case: Case,
    /// Refuses accounts with other characters than ASCII's.
    #[serde(default)]
    ascii_only: bool,
    /// How to treat an attempt without an account.
    #[serde(default)]
    missing: Missing,
    /// The methods that are attempts. Other requests are not counted, and their replies change
    /// nothing.
    #[serde(default = "post")]
    methods: Vec<String>,
    /// Statuses with which the upstream answers a right password.
    success: Statuses,
    /// Statuses with which it answers a wrong one. By default all below 500 that are not a success.
    failure: Option<Statuses>,
    /// Failures of one address for one account. A success resets them.
    by_pair: Option<Counters>,
    /// Failures of one address for any account. A success gives back its own charge alone.
    by_address: Option<Counters>,
    /// Failures for one account from any address. A success resets them.
    by_account: Option<Counters>,
    /// Requests that are never counted.
    #[serde(default)]
    bypass: Conditions,
    /// Bits of an IPv6 address that make one client.
    #[serde(default)]
    ipv6_prefix: Ipv6Prefix,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Missing {
    /// It is refused.
    #[default]
    Deny,
    /// It is counted by address alone.
    Address,
}

fn post() -> Vec<String> {
    vec!["POST".to_owned()]
}

/// The policy.
#[derive(Debug)]
pub struct LoginGuard(Config);

/// What a reply says about an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    Succeeded,
    Failed,
    /// Nothing is known about the password: the upstream failed, for example.
    Unknown,
}

impl Attempt {
    /// The word in the access log.
    fn word(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }
}

/// What a success does with a limit, in a memo.
const GIVE_BACK: &str = "give-back";
const RESET: &str = "reset";

/// The unit of limits that are in no `RateLimit` field. What is left for an account would tell
/// anybody how often others have failed to sign in to it.
const UNREPORTED: &str = "";

impl Policy for LoginGuard {
    type Config = Config;

    const SETTLES: bool = true;

    fn new(mut config: Config) -> Result<Self, Mistakes> {
        let mut mistakes = Mistakes::new();
        if let Some(failure) = &config.failure
            && let Some(status) = failure.first_also_in(&config.success)
        {
            mistakes.add(
                "failure",
                format_args!("{status}, which is in `success` too"),
                "statuses that are no success",
            );
        }
        if config.methods.is_empty() {
            mistakes.add("methods", "no method", "the methods that are attempts");
        }
        let Config { by_pair, by_address, by_account, .. } = &mut config;
        if by_pair.is_none() && by_address.is_none() && by_account.is_none() {
            (*by_pair, *by_address) = counters::default();
        }
        let lists = [("by_pair", by_pair), ("by_address", by_address), ("by_account", by_account)];
        let lists = lists.iter().filter_map(|(name, list)| Some((*name, list.as_ref()?)));
        counters::check(lists, &mut mistakes);
        mistakes.or(Self(config))
    }

    fn manifest(&self) -> Manifest {
        let Config { account, tenant, bypass, .. } = &self.0;
        Manifest::reads(["method", "client-ip"])
            .and(account.facts())
            .and(account.body_type())
            .and(tenant.iter().flat_map(Template::facts))
            .and(bypass.facts())
            .and(self.lists().flat_map(|counters| counters.limits.facts()))
            .declare(self.declared())
    }

    fn decide(&self, facts: &Facts) -> Result<Decision, String> {
        let Config { methods, bypass, missing, ipv6_prefix, .. } = &self.0;
        let method = facts.get("method").ok_or("no method")?;
        if !methods.iter().any(|counted| counted == method) || bypass.hold(facts) {
            return Ok(Decision::bypass());
        }
        let account = match (self.account(facts), missing) {
            (Account::Of(account), _) => Some(account),
            (Account::Missing, Missing::Address) => None,
            (Account::Missing, Missing::Deny) => return Ok(refused("the account is missing")),
            (Account::Unclear(why), _) => return Ok(refused(why)),
        };
        match self.charge(&ipv6_prefix.client(facts)?, account.as_deref(), facts) {
            Ok(charged) if charged.is_empty() => Ok(Decision::bypass()),
            Ok(charged) => {
                let memo = memo(&charged);
                let limits = charged.into_iter().map(|(limit, _)| limit);
                Ok(Decision::check(limits).settle_with(memo))
            }
            Err(denial) => Ok(Decision::deny(denial)),
        }
    }

    fn settle(&self, memo: &str, response: &ResponseView) -> Result<Settlement, String> {
        let attempt = self.attempt(response);
        let adjustment = |line: &str| {
            let mut parts = line.split(' ');
            let (name, cost, then) = (parts.next()?, parts.next()?.parse().ok()?, parts.next()?);
            match attempt {
                Attempt::Failed => None,
                Attempt::Succeeded if then == RESET => Some(Adjustment::reset(name)),
                Attempt::Succeeded | Attempt::Unknown => Some(Adjustment::give_back(name, cost)),
            }
        };
        let settlement: Settlement = memo.lines().filter_map(adjustment).collect();
        Ok(settlement.label("sign-in", attempt.word()))
    }
}

impl LoginGuard {
    fn lists(&self) -> impl Iterator<Item = &Counters> {
        let Config { by_pair, by_address, by_account, .. } = &self.0;
        [by_pair, by_address, by_account].into_iter().flatten()
    }

    /// The limits that attempts are charged. All are settled.
    fn declared(&self) -> Vec<DeclaredLimit> {
        let Config { account, tenant, by_pair, by_address, by_account, .. } = &self.0;
        let address = ["client-ip"];
        let tenant = tenant.iter().flat_map(Template::named);
        let account: Vec<&str> = tenant.chain(account.facts()).collect();
        let pair = [&address[..], &account].concat();
        let lists = [
            ("by_pair", by_pair, &pair[..]),
            ("by_address", by_address, &address),
            ("by_account", by_account, &account),
        ];
        let each = lists.into_iter().filter_map(|(list, counters, key)| {
            let Counters { limits, is_default, .. } = counters.as_ref()?;
            Some(limits.declared(list, key).map(|limit| DeclaredLimit {
                at: if *is_default { String::new() } else { limit.at.clone() },
                ..limit.apart()
            }))
        });
        each.flatten().collect()
    }

    /// The account that an attempt is for, with its tenant.
    fn account(&self, facts: &Facts) -> Account {
        let Config { account, tenant, case, ascii_only, .. } = &self.0;
        let account = account.find(facts, *case, *ascii_only);
        match (account, tenant) {
            (Account::Of(account), Some(tenant)) => match tenant.key(facts) {
                Ok(tenant) => Account::Of(format!("{}:{tenant}/{account}", tenant.len())),
                Err(_) => Account::Unclear("the account's tenant must be given once"),
            },
            (account, _) => account,
        }
    }

    /// The limits to charge for an attempt, each with what a success does with it.
    fn charge(
        &self,
        client: &Client<'_>,
        account: Option<&str>,
        facts: &Facts,
    ) -> Result<Vec<(Limit, &'static str)>, Denial> {
        let Config { by_pair, by_address, by_account, .. } = &self.0;
        let pair = account.map(|account| format!("{} {account}", client.text));
        // With the address's tag, both are one call to the store.
        let lists = [
            (by_pair, pair.as_deref(), Some(&client.text), RESET, None),
            (by_address, Some(&*client.text), None, GIVE_BACK, None),
            (by_account, account, None, RESET, Some(UNREPORTED)),
        ];
        let mut all = Vec::new();
        for (counters, key, tag, on_success, unit) in lists {
            let (Some(counters), Some(key)) = (counters, key) else { continue };
            let limits = counters.limits.charge(key, facts)?;
            all.extend(limits.into_iter().map(|mut limit| {
                limit.tag = tag.map(ToString::to_string).or(limit.tag);
                limit.unit = unit.map(str::to_owned).or(limit.unit);
                (Limit { refund: Refund::BySettle, ..limit }, on_success)
            }));
        }
        Ok(all)
    }

    fn attempt(&self, response: &ResponseView) -> Attempt {
        let status = response.status;
        let Config { success, failure, .. } = &self.0;
        let is_failure = match failure {
            Some(failure) => failure.has(status),
            None => status < 500,
        };
        if success.has(status) {
            Attempt::Succeeded
        } else if is_failure || response.is_by_client() {
            // A client that leaves before the reply has made a guess all the same.
            Attempt::Failed
        } else {
            Attempt::Unknown
        }
    }
}

/// What `settle` needs to know about the limits that were charged. It may run in another instance.
fn memo(charged: &[(Limit, &str)]) -> String {
    let mut memo = String::new();
    for (limit, on_success) in charged {
        // Writing to a String can't fail.
        let _ = writeln!(memo, "{} {} {on_success}", limit.name, limit.cost);
    }
    memo
}

fn refused(why: &str) -> Decision {
    Decision::deny(Denial::new(400, why))
}

weir_policy::export!(LoginGuard);

#[cfg(test)]
mod tests;
