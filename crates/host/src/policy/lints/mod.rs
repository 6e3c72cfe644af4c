//! Lints about the limits of a policy's configuration, for `weir check`: limits that can never
//! refuse because another one refuses first, bursts that another limit never lets come, and
//! requests that a limit can never let pass. Also about tokens that are hardly checked, which a
//! start tells, too.
//!
//! Only limits that the SDK would read are compared, and only those of one list with the same key:
//! a policy charges the whole list. `bound` has the bounds; `shipped` knows settings of policies
//! that ship with Weir, and `spelled` keys that clients can spell in many ways.

mod bound;
mod shipped;
mod spelled;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

use super::{Settings, listed};
use crate::plan::Algorithm;
use crate::telemetry::{Lint, LintKind};
use bound::{UpperBound, never_refuses};

/// Lints about one policy, at most.
const LINTS_MAX: usize = 32;
/// Limits of one list that are compared with each other, at most: no plan has more.
const LIST_MAX: usize = crate::plan::LIMITS_MAX;

/// Limits of one policy that are placed, at most, give or take one list.
const PLACED_MAX: usize = 1_024;

/// A limit of a policy's configuration, and its setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedLimit {
    /// Below the policy's section: `config.limits[0]`.
    pub setting: String,
    /// Its name.
    pub name: String,
    /// Its algorithm.
    pub algorithm: Algorithm,
    /// Whether it has a key of its own.
    pub has_key: bool,
}

/// A limit as written in a list.
struct WrittenLimit<'a> {
    /// Its setting, below the policy's section.
    at: String,
    name: &'a str,
    table: &'a Map<String, Value>,
    algorithm: Algorithm,
}

/// Lints about the limits of `settings`, each at its setting below the policy's section.
pub(super) fn of_limits(settings: &Settings) -> Vec<Lint> {
    let mut lints = Vec::new();
    let Ok(config) = serde_json::from_str::<Value>(&settings.config_json) else { return lints };
    let is = |name: &str| matches!(&settings.module, super::Module::Shipped(own) if own == name);
    let settled: &[&str] = if is("llm-budget") { &shipped::LLM_SETTLED } else { &[] };
    walk("config", &config, &mut |at, list| {
        // What each limit of such a list is charged depends on its own quota.
        if lints.len() < LINTS_MAX
            && !settled.iter().any(|settled| at.strip_prefix("config.") == Some(settled))
        {
            compare(&read(at, list), &mut lints);
        }
    });
    if is("llm-budget") {
        shipped::llm_budget(&config, &mut lints);
        shipped::llm_prices(&config, &mut lints);
    }
    if is("graphql-cost") {
        shipped::graphql_cost(&config, &mut lints);
    }
    spelled::keys("config", &config, &mut lints);
    lints.truncate(LINTS_MAX);
    lints
}

/// Lints about which tokens `settings` accepts, each at its setting below the policy's section.
pub(super) fn of_tokens(settings: &Settings) -> Vec<Lint> {
    match &settings.module {
        super::Module::Shipped(name) if name == "jwt-claim" => {
            let config = serde_json::from_str(&settings.config_json);
            config.map(|config| shipped::jwt_claim(&config)).unwrap_or_default()
        }
        _ => Vec::new(),
    }
}

/// All limits of a configuration, with their settings.
pub(super) fn placed(settings: &Settings) -> Vec<PlacedLimit> {
    let mut placed = Vec::new();
    let Ok(config) = serde_json::from_str::<Value>(&settings.config_json) else { return placed };
    walk("config", &config, &mut |at, list| {
        if placed.len() < PLACED_MAX {
            placed.extend(read(at, list).into_iter().map(|limit| PlacedLimit {
                has_key: limit.table.contains_key("key"),
                name: limit.name.to_owned(),
                setting: limit.at,
                algorithm: limit.algorithm,
            }));
        }
    });
    placed
}

/// Calls `look` with each list of tables and its setting.
fn walk(at: &str, value: &Value, look: &mut dyn FnMut(&str, &[Value])) {
    match value {
        Value::Array(items) => {
            if items.first().is_some_and(Value::is_object) {
                look(at, items);
            }
            for (index, item) in items.iter().enumerate() {
                walk(&format!("{at}[{index}]"), item, look);
            }
        }
        Value::Object(table) => {
            table.iter().for_each(|(key, member)| walk(&format!("{at}.{key}"), member, look));
        }
        _ => {}
    }
}

/// The limits of a list, without those that are written wrongly.
fn read<'a>(at: &str, list: &'a [Value]) -> Vec<WrittenLimit<'a>> {
    let limit = |(index, item): (usize, &'a Value)| {
        let table = item.as_object()?;
        Some(WrittenLimit {
            at: format!("{at}[{index}]"),
            name: table.get("name")?.as_str()?,
            table,
            algorithm: listed::algorithm(table)?,
        })
    };
    list.iter().take(LIST_MAX).enumerate().filter_map(limit).collect()
}

impl WrittenLimit<'_> {
    /// Whether the values of these settings are the same in both, written or not.
    fn shares(&self, other: &Self, keys: &[&str]) -> bool {
        keys.iter().all(|key| self.table.get(*key) == other.table.get(*key))
    }

    fn is(&self, key: &str) -> bool {
        self.table.get(key).and_then(Value::as_bool) == Some(true)
    }

    /// The setting that says how much passes: its burst, where one is written, or its quota.
    fn amount_setting(&self) -> String {
        let key = if self.table.contains_key("burst") { "burst" } else { "quota" };
        format!("{}.{key}", self.at)
    }

    /// The amount, as in `20 in 1m`.
    fn amount_text(&self) -> String {
        let text = |key: &str| match self.table.get(key) {
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
            None => String::new(),
        };
        let quota = text("quota");
        match (self.table.get("burst"), self.table.get("period"), self.table.get("calendar")) {
            (Some(_), ..) => format!("{} at once and {quota} in {}", text("burst"), text("period")),
            (None, Some(_), _) => format!("{quota} in {}", text("period")),
            (None, None, Some(_)) if text("calendar") == "forever" => format!("{quota} for ever"),
            (None, None, Some(_)) => format!("{quota} in each {}", text("calendar")),
            (None, None, None) => format!("{quota} at a time"),
        }
    }

    /// Whether every request that `other` counts is charged here, too, and just as much, so that
    /// what this one refuses never reaches the other.
    fn precedes(&self, other: &Self) -> bool {
        let counts = match &self.algorithm {
            Algorithm::Quota(quota) => quota.conditional,
            Algorithm::Script(_) => false,
            _ => true,
        };
        // What a policy charges or gives back at the end, it does for each limit by itself.
        let is_settled =
            |limit: &Self| limit.refund() == Some("by_settle") || limit.table.contains_key("debt");
        counts
            && !self.is("shadow")
            && !self.algorithm.refuses_all()
            && !is_settled(self)
            && !is_settled(other)
            && self.shares(other, &["key", "missing", "cost"])
            && (!self.table.contains_key("when") || self.shares(other, &["when"]))
            && (self.refund().is_none() || self.refund() == other.refund())
    }

    /// When units are given back, if they are.
    fn refund(&self) -> Option<&str> {
        self.table.get("refund").and_then(Value::as_str).filter(|refund| *refund != "never")
    }
}

/// Compares each limit of a list with each other.
fn compare(limits: &[WrittenLimit<'_>], lints: &mut Vec<Lint>) {
    for (index, loose) in limits.iter().enumerate() {
        let counts_only = matches!(&loose.algorithm, Algorithm::Quota(quota) if !quota.conditional);
        if counts_only || loose.algorithm.refuses_all() {
            continue;
        }
        let stricter = limits.iter().enumerate().find(|(other, strict)| {
            *other != index
                && strict.precedes(loose)
                && beats(strict, loose)
                // Of two that are the same, the first is left alone.
                && (*other < index || !(loose.precedes(strict) && beats(loose, strict)))
        });
        if let Some((_, strict)) = stricter {
            lints.push(useless(loose, strict));
        } else if let Some(window) = limits.iter().find(|window| contradicts(window, loose)) {
            lints.push(unreached_burst(loose, window));
        }
    }
}

/// Whether `loose` never refuses what `strict` lets through.
fn beats(strict: &WrittenLimit<'_>, loose: &WrittenLimit<'_>) -> bool {
    let together = strict.shares(loose, &["when"]) && strict.refund() == loose.refund();
    never_refuses(&loose.algorithm, &strict.algorithm, together)
}

fn useless(loose: &WrittenLimit<'_>, strict: &WrittenLimit<'_>) -> Lint {
    let (own, other) = (loose.amount_text(), strict.amount_text());
    let text = format!(
        "`{}` ({own}) can never refuse: `{}` ({other}) has the same key and refuses first",
        loose.name, strict.name
    );
    Lint::new(LintKind::UselessLimit, loose.amount_setting(), text)
        .beside(strict.amount_setting(), "this limit is stricter")
        .remedy("lower this one, raise the other, give it another key, or leave one of them out")
}

/// Whether `window` never lets as much through at once as the written burst of `bucket`, nor more
/// in the long run than it refills.
fn contradicts(window: &WrittenLimit<'_>, bucket: &WrittenLimit<'_>) -> bool {
    let (Some(rate), Some(burst)) = (bucket.algorithm.rate(), bucket.algorithm.capacity()) else {
        return false;
    };
    let is_bucket = matches!(bucket.algorithm, Algorithm::Gcra(_) | Algorithm::TokenBucket(_));
    is_bucket
        && bucket.table.contains_key("burst")
        && window.at != bucket.at
        && window.precedes(bucket)
        && !matches!(window.algorithm, Algorithm::Concurrency(_))
        && window.algorithm.cost_max().is_some_and(|most| most < burst)
        && UpperBound::of(&window.algorithm).is_some_and(|most| most.is_within(rate))
}

fn unreached_burst(bucket: &WrittenLimit<'_>, window: &WrittenLimit<'_>) -> Lint {
    let burst = bucket.algorithm.capacity().unwrap_or(0);
    let text = format!(
        "a burst of {burst} can never come at once: `{}` has the same key and lets {} through",
        window.name,
        window.amount_text()
    );
    let most = window.algorithm.cost_max().unwrap_or(0);
    Lint::new(LintKind::UnreachedBurst, format!("{}.burst", bucket.at), text)
        .beside(window.amount_setting(), "this limit refuses first")
        .remedy(format!("write a burst of at most {most}, or raise the other limit"))
}
