//! Denies for a while who was refused too often.
//!
//! Each decision has the ordinary limits and two more, of cost 0: such a limit is only looked at.
//! `strikes` counts refusals, and `ban` is charged when they are used up. It has a quota of 1, so
//! it refuses from then on until its window ends. `settle` charges both.
//!
//! `strikes` refuses, too, once it is used up. Refusals at the same time are settled without
//! knowing of each other, so that all may see strikes left where they use up the last ones
//! together. Then the next request is refused by `strikes`, and is what starts the ban. When a ban
//! starts, its strikes are reset: otherwise it would start again when it ends.
//!
//! Facts read: `client-ip`, and those that keys and conditions name.

mod ordinary;
mod own;

use serde::Deserialize;
use weir_policy::{
    Adjustment, Conditions, Decision, DeclaredLimit, Facts, Ipv6Prefix, LIMITS_MAX, LimitResult,
    Limits, Manifest, Missing, Mistakes, Outcome, Policy, ResponseView, Settlement, Template,
};

use ordinary::Ordinary;
use own::{BAN, Period, STRIKES, Strikes};

/// `[policies.NAME.config]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The limits whose refusals are strikes.
    limits: Option<Ordinary>,
    /// Statuses of the upstream that are strikes, too.
    #[serde(default)]
    statuses: Vec<u16>,
    /// How many strikes in which time are too many.
    strikes: Strikes,
    /// How long a ban lasts.
    ban: Period,
    /// Whether a request during a ban starts it again.
    #[serde(default)]
    extend: bool,
    /// Reports who would be banned, and bans nobody.
    #[serde(default)]
    shadow: bool,
    /// Who is banned. By default the client's address.
    key: Option<Template>,
    /// How to treat requests without such a key.
    missing: Option<Missing>,
    /// Bits of an IPv6 address that make one client.
    #[serde(default)]
    ipv6_prefix: Ipv6Prefix,
    /// Requests that are never counted nor banned.
    #[serde(default)]
    bypass: Conditions,
}

/// The policy.
#[derive(Debug)]
pub struct Ban {
    limits: Limits,
    /// `strikes` and `ban`.
    own: Limits,
    statuses: Vec<u16>,
    extend: bool,
    ipv6_prefix: Ipv6Prefix,
    bypass: Conditions,
}

impl Policy for Ban {
    type Config = Config;

    const SETTLES: bool = true;

    fn new(config: Config) -> Result<Self, Mistakes> {
        let mut mistakes = Mistakes::new();
        let Config { statuses, strikes, ban, extend, shadow, ipv6_prefix, bypass, .. } = config;
        if config.limits.is_none() && statuses.is_empty() {
            let expected = "limits whose refusals are strikes, or `statuses`";
            mistakes.add("", "no `limits`", expected);
        }
        let ordinary = config.limits.unwrap_or_default();
        ordinary.check(&[BAN, STRIKES], LIMITS_MAX - 2, &mut mistakes);
        for (index, status) in statuses.iter().enumerate() {
            if !(200..=599).contains(status) {
                mistakes.add(format!("statuses[{index}]"), status, "a status from 200 to 599");
            }
        }
        strikes.check(&mut mistakes);
        let own = own::limits(strikes, ban, extend, shadow).unwrap_or_else(|unfit| {
            if mistakes.is_empty() {
                mistakes.append(unfit.under("ban"));
            }
            Limits::default()
        });
        let keyed = |limits: Limits| {
            limits.by_default(config.key.as_ref(), config.missing).ipv6_prefix(ipv6_prefix)
        };
        let (limits, own) = (keyed(ordinary.limits), keyed(own));
        mistakes.or(Self { limits, own, statuses, extend, ipv6_prefix, bypass })
    }

    fn manifest(&self) -> Manifest {
        let key = ["client-ip"];
        // A request is charged one of each at most, at its end.
        let own = self.own.declared("", &key).map(|limit| DeclaredLimit {
            at: limit.name.clone(),
            cost_max: Some(1),
            ..limit.apart()
        });
        Manifest::reads(key)
            .and(self.bypass.facts())
            .limits("limits", &self.limits, &key)
            .and(self.own.facts())
            .declare(own)
            .pure()
    }

    fn decide(&self, facts: &Facts) -> Result<Decision, String> {
        let client = self.ipv6_prefix.client(facts)?;
        if self.bypass.hold(facts) {
            return Ok(Decision::bypass());
        }
        let charged = |limits: &Limits| limits.charge(&client.text, facts);
        match (charged(&self.limits), charged(&self.own)) {
            (Ok(limits), Ok(own)) => {
                let all = limits.into_iter().chain(own);
                Ok(Decision::check(all).settle_with("").settle_refusals())
            }
            (Err(denial), _) | (_, Err(denial)) => Ok(Decision::deny(denial)),
        }
    }

    fn settle(&self, _memo: &str, response: &ResponseView) -> Result<Settlement, String> {
        let limit = |name: &str| response.limits.iter().find(|limit| limit.name == name);
        // Not there for a request without a key that `missing = "skip"` lets through.
        let (Some(ban), Some(strikes)) = (limit(BAN), limit(STRIKES)) else {
            return Ok(Settlement::nothing());
        };
        if !ban.fits {
            // Units of it leave one ban's length after they were charged, so it lasts until the
            // last one has.
            return Ok(match self.extend {
                true => Adjustment::debt(BAN, 1).into(),
                false => Settlement::nothing(),
            });
        }
        let strike = match response.outcome {
            Outcome::Refused => true,
            _ => self.statuses.contains(&response.status),
        };
        Ok(after(strikes, strike))
    }
}

/// What is charged for a request with these strikes, of somebody who is not banned.
fn after(strikes: &LimitResult, strike: bool) -> Settlement {
    let used_up = !strikes.fits || strikes.remaining <= u64::from(strike);
    match (used_up, strike) {
        (true, _) => Settlement::nothing()
            .adjust(Adjustment::charge(BAN, 1))
            .adjust(Adjustment::reset(STRIKES))
            .label(BAN, "begins"),
        (false, true) => Adjustment::charge(STRIKES, 1).into(),
        (false, false) => Settlement::nothing(),
    }
}

weir_policy::export!(Ban);

#[cfg(test)]
mod tests;
