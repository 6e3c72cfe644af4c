//! Limits the descriptors of Envoy's rate limit service and the entries of calls of the HTTP API,
//! by rules for their entries, or by limits that callers send.
//!
//! Facts read: `rls.domain`, `rls.descriptor`, `rls.limit`, `rls.limits`, and those that limits
//! name. A rule is
//! for descriptors with exactly its entries, in their order, and counts each descriptor by itself.

mod rules;

use std::time::Duration;

use serde::Deserialize;
use weir_policy::{
    Algorithm, Alignment, Decision, DeclaredLimit, Denial, Facts, Json, Limit, Limits, Manifest,
    Mistakes, Policy, Refund, bounded_key,
};

use rules::{Rules, Written};

/// The facts of which the key of limits without one of their own is made.
const KEY: [&str; 2] = ["rls.domain", "rls.descriptor"];
/// The limit that a caller asks for.
const OVERRIDE: &str = "override";
/// What goes before the key of limits that a caller sends: their names may be those of rules.
const TAKEN: &str = "take:";
/// The status for limits that can't be read. The proxy tells the caller the reason.
const WRONG: u16 = 400;
const DAY_S: u64 = 86_400;
/// About how many bytes of limits the manifest declares. With more, it declares none, and the proxy
/// takes the limits from the configuration, as far as they are written there. So even 2,000 rules
/// fit into the default of `answer_bytes`, which is 256 KiB.
const DECLARED_BYTES_MAX: usize = 160 << 10;
/// About how many bytes the proxy counts for a limit that is declared, without its texts, and for
/// each of these.
const DECLARED_BYTES: usize = 320;
const TEXT_BYTES: usize = 24;

/// Maximum time for which a call waits in a limit of its caller's own, in milliseconds.
const DELAY_MS_MAX: u64 = 10_000;

/// `[policies.NAME.config]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The limits, by descriptor.
    #[serde(default)]
    rules: Vec<Written>,
    /// Whether a caller may name another limit for a descriptor, with or without a rule, or send
    /// limits of its own. Only if it says so may there be no rules.
    overrides: Option<bool>,
}

/// The policy.
#[derive(Debug)]
pub struct Rls {
    rules: Rules,
    overrides: bool,
}

impl Policy for Rls {
    type Config = Config;
    // The proxy does: it charges what was refused to limits with a debt.
    const SETTLES: bool = true;

    fn new(config: Config) -> Result<Self, Mistakes> {
        let mut mistakes = Mistakes::new();
        if config.rules.is_empty() && config.overrides != Some(true) {
            let expected = "at least one, or `overrides = true`, so that callers send limits";
            mistakes.add("rules", "no rules", expected);
        }
        let rules = Rules::new(config.rules, &mut mistakes);
        for rule in rules.iter() {
            for (limit, (place, name)) in rule.limits.each().zip(rule.limits.named()) {
                let at = format!("{}.limits{place}", rule.at);
                let unfit = match limit.algorithm {
                    Algorithm::Concurrency(_) => Some((
                        "\"concurrency\"",
                        "another algorithm: nobody says when what was let through ends",
                    )),
                    Algorithm::LeakyBucket(_) => {
                        Some(("\"leaky_bucket\"", "another algorithm: callers do not wait"))
                    }
                    _ => None,
                };
                if let Some((found, expected)) = unfit {
                    mistakes.add(format!("{at}.algorithm"), found, expected);
                }
                if limit.refund != Refund::Never {
                    let expected = "none: nobody says what became of what was let through";
                    mistakes.add(format!("{at}.refund"), "a refund", expected);
                }
                if name == OVERRIDE {
                    let expected = "another name: limits that callers ask for have it";
                    mistakes.add(format!("{at}.name"), format_args!("{name:?}"), expected);
                }
            }
        }
        mistakes.or(Self { rules, overrides: config.overrides.unwrap_or(true) })
    }

    fn manifest(&self) -> Manifest {
        let manifest = Manifest::reads(KEY)
            .and(["rls.limits"])
            .and(self.rules.iter().flat_map(|rule| rule.limits.facts()))
            .declare(self.declared())
            .pure();
        if self.overrides { manifest.and(["rls.limit"]) } else { manifest }
    }

    fn decide(&self, facts: &Facts) -> Result<Decision, String> {
        // Only calls for decisions have it.
        let text = facts.get("rls.descriptor").ok_or("this is no call for a decision")?;
        let descriptor = Json::parse(text).map_err(|at| format!("no JSON at byte {at}"))?;
        let entries: Vec<Json<'_>> = descriptor.items().map(Json::into_owned).collect();
        let text_of = |entry: &Json<'_>, place| {
            entry.items().nth(place).and_then(|item| item.as_str().map(|text| text.into_owned()))
        };
        let pairs = entries.iter().map(|entry| {
            (text_of(entry, 0).unwrap_or_default(), text_of(entry, 1).unwrap_or_default())
        });
        let rule = self.rules.find(pairs);
        let domain = facts.get("rls.domain").unwrap_or_default();
        // A JSON array as well: the domain, and the pairs after it.
        let key = bounded_key(format!("[{domain:?},{}", text.strip_prefix('[').unwrap_or(text)));
        if let Some(limit) = self.overrides.then(|| facts.get("rls.limit")).flatten() {
            let algorithm = algorithm_of(limit).ok_or_else(|| format!("the limit {limit:?}"))?;
            return Ok(Decision::check([Limit::new(OVERRIDE, key, algorithm)]));
        }
        if let Some(limits) = facts.get("rls.limits") {
            let charged = self.of_caller(limits).map_err(|wrong| Denial::new(WRONG, wrong));
            return Ok(match charged.and_then(|own| own.charge(&format!("{TAKEN}{key}"), facts)) {
                Ok(limits) => Decision::check(limits),
                Err(denial) => Decision::deny(denial),
            });
        }
        let Some(rule) = rule else { return Ok(Decision::bypass()) };
        let decision = match rule.limits.charge(&key, facts) {
            Ok(limits) if limits.is_empty() => Decision::bypass(),
            Ok(limits) => Decision::check(limits),
            Err(denial) => Decision::deny(denial),
        };
        let decision = if rule.quota_mode && !decision.limits().is_empty() {
            decision.option("quota-mode", "true")
        } else {
            decision
        };
        let decision = match &rule.replaces[..] {
            [] => decision,
            names => decision.option("replaces", names.join(",")),
        };
        let decision = match &rule.metadata {
            Some(metadata) => decision.option("metadata", metadata.as_str()),
            None => decision,
        };
        Ok(decision.label("rule", rule.name.as_str()))
    }
}

impl Rls {
    /// All limits, or none if they are too many for a manifest.
    fn declared(&self) -> Vec<DeclaredLimit> {
        let (mut all, mut bytes) = (Vec::new(), 0);
        for rule in self.rules.iter() {
            let at = format!("{}.limits", rule.at);
            for limit in rule.limits.declared(&at, &KEY) {
                bytes += bytes_of(&limit);
                if bytes > DECLARED_BYTES_MAX {
                    return Vec::new();
                }
                all.push(limit);
            }
        }
        all
    }

    /// The limits that a caller sends.
    fn of_caller(&self, written: &str) -> Result<Limits, String> {
        if !self.overrides {
            return Err("`limits`, but `overrides = false` of the policy".to_owned());
        }
        let written = Json::parse(written).map_err(|at| format!("no JSON at byte {at}"))?;
        let selects = ["key", "when", "unless"];
        if written.items().any(|item| selects.iter().any(|key| item.get(key).is_some())) {
            return Err(
                "`key`, `when` or `unless` in `limits`: they count by the entries".to_owned()
            );
        }
        let limits = Limits::read(&written).map_err(|mistakes| {
            let mistakes = mistakes.under("limits").into_vec().into_iter();
            let each = mistakes.map(|mistake| format!("{}: {}", mistake.path, mistake.message));
            each.collect::<Vec<_>>().join("; ")
        })?;
        for (limit, (place, _)) in limits.each().zip(limits.named()) {
            if let Algorithm::LeakyBucket(bucket) = limit.algorithm
                && bucket.max_delay_ms > DELAY_MS_MAX
            {
                return Err(format!(
                    "limits{place}.max_delay: found {} ms, expected at most {DELAY_MS_MAX}: the \
                     call waits for so long",
                    bucket.max_delay_ms
                ));
            }
        }
        Ok(limits)
    }
}

/// About how many bytes the proxy counts for a limit that is declared.
fn bytes_of(limit: &DeclaredLimit) -> usize {
    let facts = limit.key_facts.iter().map(|fact| TEXT_BYTES + fact.len());
    let options =
        limit.options.iter().map(|(name, value)| 2 * TEXT_BYTES + name.len() + value.len());
    let together = limit.together.as_ref().map_or(0, String::len);
    let texts = limit.name.len() + limit.at.len() + together + limit.key_prefix.len();
    DECLARED_BYTES + texts + facts.sum::<usize>() + options.sum::<usize>()
}

/// The algorithm of a limit such as `60/minute`.
fn algorithm_of(limit: &str) -> Option<Algorithm> {
    let (amount, unit) = limit.split_once('/')?;
    let seconds = match unit {
        "second" => 1,
        "minute" => 60,
        "hour" => 3_600,
        "day" => DAY_S,
        "week" => 7 * DAY_S,
        // As long as they are in envoyproxy/ratelimit.
        "month" => 30 * DAY_S,
        "year" => 365 * DAY_S,
        _ => return None,
    };
    let mut algorithm = Algorithm::fixed_window(amount.parse().ok()?, Duration::from_secs(seconds));
    if let Algorithm::FixedWindow(window) = &mut algorithm {
        window.alignment = Alignment::Clock;
    }
    Some(algorithm)
}

weir_policy::export!(Rls);

#[cfg(test)]
mod tests;
