//! Counts by a claim of a JSON Web Token (RFC 7519), such as the user's name, once its signature is
//! verified.
//!
//! The guest reads the token and the set of keys, and the proxy checks the signature. Facts read:
//! the one with the token, `client-ip`, and those that limits and conditions name. A decision
//! depends on the time, so none is remembered. Instead, each instance remembers which tokens it has
//! verified.
//!
//! `token` takes a token apart, `keys` selects the keys that may have signed it, `claims` says
//! whether it is valid, `verified` remembers it, `allowance` has its limits.

mod algorithm;
mod allowance;
mod base64;
mod claims;
mod keys;
mod source;
mod token;
mod verified;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use serde::Deserialize;
use weir_policy::{
    Conditions, Decision, Denial, Facts, FieldName, Ipv6Prefix, Json, Limits, Manifest, Mistakes,
    Period, PlanPriorities, PlanTable, Policy, Warning, now_ms, verify,
};

use algorithm::Algorithms;
use allowance::Allowance;
use claims::{Claim, Names, Types, Validity};
use keys::Keys;
use source::{Found, Source};
use token::Token;
use verified::{Verified, VerifiedTokens};

/// Maximum number of fields with claims for the upstream.
const FORWARD_MAX: usize = 16;
/// Maximum length of a value that is told, in bytes: that of a policy's fields.
const FORWARD_BYTES_MAX: usize = 4_096;

/// More would keep expired tokens alive.
type Leeway = Period<0, 600_000>;

/// `[policies.NAME.config]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where the token is.
    #[serde(default)]
    token: Source,
    /// What is counted.
    #[serde(default)]
    claim: Claim,
    /// Whether signatures are verified.
    #[serde(default)]
    verify: Verify,
    /// The algorithms that are accepted.
    #[serde(default)]
    algorithms: Algorithms,
    /// The keys that sign tokens.
    keys: Option<Keys>,
    /// Who may have issued them.
    #[serde(default)]
    issuer: Names,
    /// Whom they must be for: one of these.
    #[serde(default)]
    audience: Names,
    /// Which kinds of tokens are accepted: one of these.
    #[serde(default)]
    typ: Types,
    /// How much the issuer's clock may differ from the proxy's.
    #[serde(default = "one_minute")]
    leeway: Leeway,
    /// Whether a token must expire.
    #[serde(default)]
    exp: Exp,
    /// How to treat requests without a token, or whose token lacks the claim.
    #[serde(default)]
    missing: Otherwise,
    /// How to treat requests with a token that is not accepted.
    #[serde(default)]
    invalid: Otherwise,
    /// Fields that tell the upstream a claim.
    #[serde(default)]
    forward: BTreeMap<String, Claim>,
    /// Bits of an IPv6 address that make one client.
    #[serde(default)]
    ipv6_prefix: Ipv6Prefix,
    /// Requests that are never counted.
    #[serde(default)]
    bypass: Conditions,
    /// The limits, without plans.
    limits: Option<Limits>,
    /// The limits of each plan.
    plans: Option<PlanTable>,
    /// The claim that names the plan.
    plan: Option<Claim>,
    /// The plan of tokens that name none, and of requests that are counted by address.
    default_plan: Option<String>,
    /// The header field that tells the upstream the plan.
    plan_header: Option<FieldName>,
    /// How much requests matter, by plan.
    priorities: Option<PlanPriorities>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Verify {
    #[default]
    Signature,
    /// Somebody else has verified it.
    None,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Exp {
    #[default]
    Required,
    Optional,
}

/// What becomes of requests without a claim that can be counted.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Otherwise {
    /// They are refused with 401.
    #[default]
    Deny,
    /// They are counted by the client's address.
    Address,
}

fn one_minute() -> Leeway {
    Leeway::from_ms(60_000)
}

impl Config {
    /// Tokens whose signatures are verified, but not whom they are for, or who issued them.
    fn warnings(&self) -> impl Iterator<Item = Warning> {
        let audience = "write what this API is called in the `aud` of its tokens, as in \
                        `audience = \"api\"`";
        let issuer = "write the `iss` of its tokens, as in `issuer = \"https://id.example.org/\"`";
        let settings = [
            (
                &self.audience,
                "no `audience`: a token that was issued for another service is accepted here, too",
                audience,
            ),
            (
                &self.issuer,
                "no `issuer`: a token of anyone whose key is in the set is accepted, whatever its \
                 `iss` says",
                issuer,
            ),
        ];
        let missing = settings.into_iter().filter(|(names, ..)| {
            // Without a check, a gateway in front of Weir decides which tokens there are.
            self.verify == Verify::Signature && names.count() == 0
        });
        missing.map(|(_, text, remedy)| Warning::new("unchecked-token", "", text).remedy(remedy))
    }
}

/// The policy.
#[derive(Debug)]
pub struct JwtClaim {
    config: Config,
    keys: Keys,
    forward: Vec<(FieldName, Claim)>,
    allowance: Allowance,
    verified: RefCell<VerifiedTokens>,
}

impl Policy for JwtClaim {
    type Config = Config;

    fn new(mut config: Config) -> Result<Self, Mistakes> {
        let mut mistakes = Mistakes::new();
        let keys = keys(&mut config, &mut mistakes);
        let forward = forward(&config.forward, &mut mistakes);
        let allowance = allowance(&mut config, &mut mistakes);
        mistakes.or(Self { config, keys, forward, allowance, verified: RefCell::default() })
    }

    fn manifest(&self) -> Manifest {
        let token = self.config.token.fact();
        let read = Manifest::reads([token, "client-ip"]).and(self.config.bypass.facts());
        self.allowance.declare(read, &[token]).warn(self.config.warnings())
    }

    fn decide(&self, facts: &Facts) -> Result<Decision, String> {
        let Config { token, missing, invalid, bypass, .. } = &self.config;
        if bypass.hold(facts) {
            return Ok(self.tell(Decision::bypass(), None, None));
        }
        let (otherwise, why, label) = match token.find(facts) {
            Found::None => (missing, "a token is needed", "missing"),
            Found::Several => (invalid, "there is more than one token", "invalid"),
            Found::One(token) => match self.verified(token) {
                Ok(verified) => match &verified.key {
                    Some(key) => return self.charge(&verified, key, facts),
                    None => (missing, "the token lacks the claim that is counted", "no-claim"),
                },
                Err(why) => (invalid, why, "invalid"),
            },
        };
        let client = match otherwise {
            Otherwise::Deny => None,
            Otherwise::Address => Some(self.config.ipv6_prefix.client(facts)?.key()),
        };
        let plan = self.allowance.default_plan().filter(|_| client.is_some());
        let counted = client.map(|key| self.allowance.check(plan, &key, facts)).transpose()?;
        let decision = counted.flatten().unwrap_or_else(|| Decision::deny(refused(why, label)));
        Ok(self.tell(decision.label("token", label), None, plan))
    }
}

impl JwtClaim {
    /// The decision about a request with a valid token.
    fn charge(&self, verified: &Verified, key: &str, facts: &Facts) -> Result<Decision, String> {
        let decision = match self.allowance.check(verified.plan, key, facts)? {
            Some(decision) => decision.label("token", "valid"),
            None => {
                return Ok(self.tell(
                    Decision::deny(no_plan()).label("token", "no-plan"),
                    None,
                    None,
                ));
            }
        };
        Ok(self.tell(decision, Some(verified), verified.plan))
    }

    /// What is known about a token that is valid now.
    fn verified(&self, text: &str) -> Result<Rc<Verified>, &'static str> {
        let (now_ms, leeway_ms) = (now_ms(), self.config.leeway.ms());
        let known = self.verified.borrow().get(text);
        if let Some(known) = known {
            known.validity.check(now_ms, leeway_ms)?;
            return Ok(known);
        }
        let token = Token::read(text)?;
        // What costs little comes first: a check of a signature takes longer than all of it.
        let validity = Validity::of(&token.claims, self.config.exp == Exp::Required)?;
        validity.check(now_ms, leeway_ms)?;
        if !self.config.typ.allow(token.typ.as_deref()) {
            return Err("the token is of another type");
        }
        claims::meant_for(&token.claims, &self.config.issuer, &self.config.audience)?;
        if self.config.verify == Verify::Signature {
            self.check_signature(&token)?;
        }
        let verified = Rc::new(Verified {
            validity,
            key: self.key(&token.claims),
            plan: self.allowance.plan_of(&token.claims),
            told: self.forward.iter().map(|(_, claim)| shown(claim, &token.claims)).collect(),
        });
        self.verified.borrow_mut().insert(text, &verified);
        Ok(verified)
    }

    fn check_signature(&self, token: &Token<'_>) -> Result<(), &'static str> {
        let algorithm = self.config.algorithms.named(&token.alg);
        let algorithm = algorithm.ok_or("the token's algorithm is not accepted")?;
        let message = token.message.as_bytes();
        let mut keys = self.keys.fitting(algorithm, token.kid.as_deref()).peekable();
        if keys.peek().is_none() {
            return Err("no key of the set fits the token's algorithm and key id");
        }
        match keys.any(|key| verify(&key, message, &token.signature)) {
            true => Ok(()),
            false => Err("the token's signature is wrong"),
        }
    }

    /// The key that a token is counted under. No other key begins like an address's.
    fn key(&self, claims: &Json<'_>) -> Option<String> {
        let claim = self.config.claim.of(claims)?.replace('\\', "\\\\");
        // A claim is unique for its issuer alone.
        match claims.get("iss").as_ref().and_then(Json::as_str) {
            Some(issuer) if self.config.issuer.count() > 1 => {
                Some(format!("{}:{issuer}/{claim}", issuer.len()))
            }
            _ => Some(claim),
        }
    }

    /// Sets the fields for the upstream. They are empty where there is no valid token, so that a
    /// client's own can't pass for a claim.
    fn tell(
        &self,
        mut decision: Decision,
        verified: Option<&Verified>,
        plan: Option<usize>,
    ) -> Decision {
        for (index, (field, _)) in self.forward.iter().enumerate() {
            let value = verified.and_then(|verified| verified.told.get(index));
            let value = value.map_or("", String::as_str);
            decision = decision.upstream_header(field.as_str(), value);
        }
        self.allowance.tell(decision, plan)
    }
}

/// The set of keys. Adds what is missing or of no use.
fn keys(config: &mut Config, mistakes: &mut Mistakes) -> Keys {
    let Config { verify, algorithms, keys, .. } = config;
    let given = keys.take();
    if *verify == Verify::None {
        if given.is_some() {
            mistakes.add("keys", "a set of keys", "none with `verify = \"none\"`");
        }
        if !algorithms.is_empty() {
            mistakes.add("algorithms", "algorithms", "none with `verify = \"none\"`");
        }
        return Keys::default();
    }
    if algorithms.is_empty() {
        let expected = "the algorithms that are accepted, such as `algorithms = [\"RS256\"]`";
        mistakes.add("", "no `algorithms`", expected);
    }
    let Some(mut keys) = given else {
        let expected =
            "a set of keys: `config_files = { keys = \"jwks.json\" }`, or `verify = \"none\"`";
        mistakes.add("", "no `keys`", expected);
        return Keys::default();
    };
    // Without the algorithms it is unknown which keys are of use.
    if !algorithms.check(mistakes) {
        keys.check(algorithms.iter(), mistakes);
    }
    keys
}

fn allowance(config: &mut Config, mistakes: &mut Mistakes) -> Allowance {
    let written = allowance::Written {
        limits: config.limits.take(),
        plans: config.plans.take(),
        plan: config.plan.take(),
        default_plan: config.default_plan.take(),
        plan_header: config.plan_header.take(),
        priorities: config.priorities.take(),
        ipv6_prefix: config.ipv6_prefix,
    };
    let by_address: Vec<&str> = [("missing", config.missing), ("invalid", config.invalid)]
        .into_iter()
        .filter(|(_, otherwise)| *otherwise == Otherwise::Address)
        .map(|(setting, _)| setting)
        .collect();
    Allowance::new(written, &by_address, mistakes)
}

fn forward(written: &BTreeMap<String, Claim>, mistakes: &mut Mistakes) -> Vec<(FieldName, Claim)> {
    if written.len() > FORWARD_MAX {
        let expected = format_args!("at most {FORWARD_MAX}");
        mistakes.add("forward", format_args!("{} fields", written.len()), expected);
    }
    let mut forward: Vec<(FieldName, Claim)> = Vec::with_capacity(written.len());
    for (name, claim) in written {
        let path = || format!("forward.{name}");
        match FieldName::parse(name) {
            Ok(field) if forward.iter().any(|(other, _)| *other == field) => {
                mistakes.add(path(), "the field a second time", "each field once");
            }
            Ok(field) => forward.push((field, claim.clone())),
            Err(text) => {
                let (found, expected) = text.split_once(", expected ").unwrap_or((&text, ""));
                mistakes.add(path(), found.strip_prefix("found ").unwrap_or(found), expected);
            }
        }
    }
    forward
}

/// A claim as the value of a field; empty if a field can't have it: blanks at its ends would be
/// lost on the way, and the proxy takes no longer one.
fn shown(claim: &Claim, claims: &Json<'_>) -> String {
    let plain = |text: &String| {
        text.bytes().all(|byte| (0x20..0x7F).contains(&byte))
            && !text.starts_with(' ')
            && !text.ends_with(' ')
            && text.len() <= FORWARD_BYTES_MAX
    };
    claim.of(claims).filter(plain).unwrap_or_default()
}

/// The refusal that RFC 6750 describes, section 3.
fn refused(why: &str, label: &str) -> Denial {
    let challenge = match label {
        "missing" => "Bearer".to_owned(),
        _ => format!("Bearer error=\"invalid_token\", error_description=\"{why}\""),
    };
    Denial::new(401, why).header("www-authenticate", challenge)
}

/// RFC 6750 calls a valid token that does not allow a request one of insufficient scope.
fn no_plan() -> Denial {
    let why = "the token names no known plan";
    let challenge = format!("Bearer error=\"insufficient_scope\", error_description=\"{why}\"");
    Denial::new(403, why).header("www-authenticate", challenge)
}

weir_policy::export!(JwtClaim);

#[cfg(test)]
mod tests;
