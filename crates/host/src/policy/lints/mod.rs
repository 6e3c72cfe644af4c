//! Lints about the limits of a policy's configuration, for `weir check`: limits that can never
//! refuse because another one refuses first, and bursts that another limit never lets come. What
//! only the policy knows, it warns of itself.
//!
//! Only limits of which the policy says that the same requests are charged to them are compared,
//! and only those with the same key. `bound` has the bounds, and `spelled` keys that clients can
//! spell in many ways.

mod bound;
mod spelled;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::DeclaredLimit;
use crate::plan::Algorithm;
use crate::telemetry::{Lint, LintKind};
use bound::{UpperBound, never_refuses};

/// Maximum number of lints about one policy.
const LINTS_MAX: usize = 32;
/// Limits of one group that are compared with each other, at most: no plan has more.
const GROUP_MAX: usize = crate::plan::LIMITS_MAX;

/// A limit that has a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedLimit {
    /// Its setting, below the policy's section: `config.limits[0]`.
    pub setting: String,
    /// Its name.
    pub name: String,
    /// Its algorithm.
    pub algorithm: Algorithm,
    /// The keys that are written in it, if it is a table.
    keys: Vec<String>,
}

impl PlacedLimit {
    /// Whether it has a key of its own.
    #[must_use]
    pub fn has_key(&self) -> bool {
        self.keys.iter().any(|own| own == "key")
    }

    /// The setting `key` of this limit; its own, if that is not written.
    #[must_use]
    pub fn part(&self, key: &str) -> String {
        match self.keys.iter().any(|own| own == key) {
            true => format!("{}.{key}", self.setting),
            false => self.setting.clone(),
        }
    }
}

/// A limit as written in the configuration.
struct WrittenLimit<'a> {
    /// Its setting, below the policy's section.
    at: String,
    name: &'a str,
    table: &'a Map<String, Value>,
    algorithm: Algorithm,
}

/// Lints about the `limits` of a policy, and the keys in its configuration, each at its setting
/// below the policy's section.
pub(super) fn of_limits(limits: &[DeclaredLimit], config_json: &str) -> Vec<Lint> {
    let mut lints = Vec::new();
    let Ok(config) = serde_json::from_str::<Value>(config_json) else { return lints };
    for group in together(limits) {
        if lints.len() < LINTS_MAX {
            compare(&written(&group, &config), &mut lints);
        }
    }
    spelled::keys("config", &config, &mut lints);
    lints.truncate(LINTS_MAX);
    lints
}

/// The limits that have a setting, with the keys that are written there.
pub(super) fn placed(limits: &[DeclaredLimit], config_json: &str) -> Vec<PlacedLimit> {
    let Ok(config) = serde_json::from_str::<Value>(config_json) else { return Vec::new() };
    let placed = limits.iter().filter_map(|limit| {
        let table = limit.setting_in(&config)?.as_object();
        Some(PlacedLimit {
            setting: format!("config.{}", limit.at),
            name: limit.name.clone(),
            algorithm: limit.algorithm.clone(),
            keys: table.map(|table| table.keys().cloned().collect()).unwrap_or_default(),
        })
    });
    placed.collect()
}

/// The groups of limits that are charged by the same requests, each as its setting says.
fn together(limits: &[DeclaredLimit]) -> Vec<Vec<&DeclaredLimit>> {
    let mut groups: BTreeMap<&str, Vec<&DeclaredLimit>> = BTreeMap::new();
    for limit in limits {
        if let Some(text) = &limit.together {
            groups.entry(text).or_default().push(limit);
        }
    }
    groups.into_values().collect()
}

/// Those of a group that are tables in the configuration.
fn written<'a>(group: &[&'a DeclaredLimit], config: &'a Value) -> Vec<WrittenLimit<'a>> {
    let limit = |limit: &&'a DeclaredLimit| {
        Some(WrittenLimit {
            at: format!("config.{}", limit.at),
            name: &limit.name,
            table: limit.setting_in(config)?.as_object()?,
            algorithm: limit.algorithm.clone(),
        })
    };
    group.iter().take(GROUP_MAX).filter_map(limit).collect()
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
            && ["when", "unless"]
                .iter()
                .all(|key| !self.table.contains_key(*key) || self.shares(other, &[*key]))
            // Messages of WebSockets are charged to limits that say so alone.
            && (!other.table.contains_key("messages") || self.table.contains_key("messages"))
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
    let together = strict.shares(loose, &["when", "unless"]) && strict.refund() == loose.refund();
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
        "a burst of {burst} can never pass at once: `{}` has the same key and lets {} through",
        window.name,
        window.amount_text()
    );
    let most = window.algorithm.cost_max().unwrap_or(0);
    Lint::new(LintKind::UnreachedBurst, format!("{}.burst", bucket.at), text)
        .beside(window.amount_setting(), "this limit refuses first")
        .remedy(format!("write a burst of at most {most}, or raise the other limit"))
}
