//! What one configuration changes in another: the settings that differ, and what that means for
//! counters. A reload logs it, and `weir check --against` shows it before a reload.
//!
//! An [`Outline`] is what a comparison needs of a configuration: `tree` has the file as written,
//! with digests in place of values, and `policies` compares the policies' own configurations. No
//! value is shown but those of limits, since any other may be a secret. Whether a limit keeps its
//! counters follows from the shapes that the limiter gives them, not from the names of settings.

mod policies;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde_json::{Value, json};
use toml::de::DeTable;

use super::{Config, setting};
use crate::plan::Algorithm;
use crate::policy::DeclaredLimit;
use crate::reload::Watch;
use crate::telemetry::{Label as _, labels};
use crate::{engine, limit};
use policies::PolicyOutline;
use tree::Tree;

/// Separates this use of the digests from any other.
const NUMBER_CONTEXT: &[u8] = b"weir 2026 number of a configuration, version 1";
/// Maximum number of changes that are shown; the rest is counted.
pub const CHANGES_SHOWN_MAX: usize = 32;
/// Maximum number of characters shown of a setting's path, and of a value.
const SETTING_CHARS_MAX: usize = 200;
const VALUE_CHARS_MAX: usize = 60;

/// What a configuration says, as far as it takes to compare it with another. Holds no secret.
#[derive(Clone)]
pub struct Outline {
    written: Tree,
    policies: BTreeMap<String, PolicyOutline>,
    counting: CounterIdentity,
}

/// What the names and the meaning of counters depend on, besides policies' own configurations.
#[derive(Clone)]
struct CounterIdentity {
    engine: engine::Settings,
    limiter: limit::Settings,
    /// The operator's algorithms, by name.
    scripts: BTreeMap<String, Arc<str>>,
    /// The scope that each route charges, by the route's name.
    scopes: BTreeMap<String, String>,
}

labels! {
    /// What a change means besides the setting itself, mostly for counters.
    pub enum Effect {
        /// Existing counters go on.
        Kept = "kept",
        /// Counts so far are forgotten here: counters start again.
        Fresh = "fresh",
        /// All counters of all limits start again.
        AllFresh = "all_fresh",
        /// No request is charged to these counters any more. They expire.
        Left = "left",
        /// A running process keeps the old value.
        Restart = "restart",
    }
}

impl Effect {
    /// The end of a message about it.
    fn text(self) -> &'static str {
        match self {
            Self::Kept => "existing counters go on",
            Self::Fresh => "starts with fresh counters",
            Self::AllFresh => "all counters start fresh",
            Self::Left => "its counters are left to expire",
            Self::Restart => "needs a restart",
        }
    }
}

/// One setting that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its path. Elements of lists are named where they have names: `routes[api].timeouts`.
    pub setting: String,
    /// How it differs, such as `100 -> 50`, `changed` or `added`.
    pub what: String,
    /// What that means for counters, where it means something.
    pub effect: Option<Effect>,
}

/// What one configuration changes in another. The lines with an effect on counters come first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    shown: Vec<Change>,
    left_off: usize,
}

impl Outline {
    /// The outline of a configuration. `root` is the file that `config` was read from, `files` are
    /// the settings that name files, with what was read there.
    pub(super) fn new(root: &DeTable<'_>, config: &Config, files: Vec<(String, Watch)>) -> Self {
        let routes = config.routes.iter();
        let counting = CounterIdentity {
            engine: config.engine.clone(),
            limiter: config.limiter.clone(),
            scripts: config
                .scripts
                .iter()
                .map(|script| (script.name.clone(), script.text.as_str().into()))
                .collect(),
            scopes: routes
                .clone()
                .filter_map(|route| Some((route.name.clone(), route.scope()?)))
                .collect(),
        };
        let names: Vec<&str> = routes.map(|route| route.name.as_str()).collect();
        Self {
            written: Tree::new(root, &names, files.into_iter().collect()),
            policies: policies::outlines(root, &config.policies),
            counting,
        }
    }
}

impl Outline {
    /// Adds what a policy says of its limits. Without it, only what has the form of the SDK's
    /// limits is known to be one.
    pub fn declare(&mut self, policy: &str, limits: &[DeclaredLimit]) {
        if let Some(outline) = self.policies.get_mut(policy) {
            outline.declared = limits.into();
        }
    }

    /// A number of 48 bits, which a metric holds exactly, for what all proxies of a fleet should
    /// have in common: `[policies]`, `[[routes]]` and `[store]`, with the files that they name.
    /// Addresses and certificates may differ. It depends on `key_secret`, where there is one.
    #[must_use]
    pub fn number(&self) -> u64 {
        let secret = limit::secret_id(self.counting.limiter.key_secret.as_ref());
        let mut hasher = blake3::Hasher::new();
        hasher.update(NUMBER_CONTEXT).update(&secret);
        self.written.add_to(&mut hasher);
        for (name, policy) in &self.policies {
            add_text(&mut hasher, name);
            policy.add_to(&mut hasher);
        }
        for (name, text) in &self.counting.scripts {
            add_text(&mut hasher, name);
            add_text(&mut hasher, text);
        }
        let [_, _, low @ ..] =
            hasher.finalize().as_bytes().first_chunk().copied().unwrap_or([0; 8]);
        low.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
}

/// Adds a text with its length, so that different lists of texts differ.
fn add_text(hasher: &mut blake3::Hasher, text: &str) {
    hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
}

impl Default for Outline {
    /// The outline of an empty file.
    fn default() -> Self {
        let counting = CounterIdentity {
            engine: engine::Settings::Embedded(engine::EmbeddedSettings::new(0)),
            limiter: limit::Settings::default(),
            scripts: BTreeMap::new(),
            scopes: BTreeMap::new(),
        };
        Self { written: Tree::default(), policies: BTreeMap::new(), counting }
    }
}

impl fmt::Debug for Outline {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Outline({} policies)", self.policies.len())
    }
}

impl CounterIdentity {
    /// Whether no counter of `before` is found any more.
    fn all_fresh(&self, before: &Self) -> bool {
        !self.engine.finds_counters_of(&before.engine)
            || self.limiter.key_secret != before.limiter.key_secret
    }

    /// Whether the same settings may give a counter another shape than with `before`.
    fn may_reshape(&self, before: &Self) -> bool {
        self.limiter.lease != before.limiter.lease || self.scripts != before.scripts
    }

    /// What counts a limit.
    fn algorithm_of(&self, limit: &DeclaredLimit) -> Algorithm {
        limit.counting(matches!(self.engine, engine::Settings::Embedded(_)))
    }

    /// What becomes of the counters of a limit that counted with `old` and now counts with `new`.
    fn effect(&self, new: &Algorithm, before: &Self, old: &Algorithm) -> Effect {
        let shape = |counting: &Self, algorithm: &Algorithm| {
            let script = counting.scripts.get(algorithm.name()).map_or("", |text| text);
            limit::shape_under(&counting.limiter, &counting.engine, algorithm, script)
        };
        let kept = !self.all_fresh(before) && shape(self, new) == shape(before, old);
        if kept { Effect::Kept } else { Effect::Fresh }
    }

    /// Changes of the store, of scripts, and of what routes charge.
    fn compare(&self, before: &Self, found: &mut Vec<Change>) {
        if !self.engine.finds_counters_of(&before.engine) {
            found.push(Change::new(setting::STORE, "another store", Some(Effect::AllFresh)));
        } else if self.limiter.key_secret != before.limiter.key_secret {
            found.push(Change::new(setting::KEY_SECRET, "another secret", Some(Effect::AllFresh)));
        }
        for (name, old, new) in both(&before.scripts, &self.scripts) {
            let what = match (old, new) {
                (None, _) => "added",
                (_, None) => "removed",
                (Some(old), Some(new)) if old != new => "new content",
                _ => continue,
            };
            found.push(Change::new(&format!("{}.scripts[{name}]", setting::STORE), what, None));
        }
        let scopes = |counting: &Self| counting.scopes.values().cloned().collect::<BTreeSet<_>>();
        let (old_scopes, new_scopes) = (scopes(before), scopes(self));
        for (route, old, new) in both(&before.scopes, &self.scopes) {
            if let (Some(old), Some(new)) = (old, new)
                && old != new
            {
                let what = format!("charges the counters of `{new}` instead of `{old}`");
                let effect = (!old_scopes.contains(new)).then_some(Effect::Fresh);
                found.push(Change::new(&setting::route(route), what, effect));
            }
        }
        for gone in old_scopes.difference(&new_scopes) {
            let setting = format!("counters of `{gone}`");
            let what = "no route charges them any more: they are left as they are";
            found.push(Change { setting, what: what.into(), effect: Some(Effect::Left) });
        }
    }
}

impl Change {
    fn new(setting: &str, what: impl Into<String>, effect: Option<Effect>) -> Self {
        Self { setting: shortened(setting, SETTING_CHARS_MAX), what: what.into(), effect }
    }

    /// Whether a person should know about it even where only warnings are logged: counts are
    /// forgotten, or something is not applied.
    #[must_use]
    pub fn is_warning(&self) -> bool {
        self.effect.is_some_and(|effect| effect != Effect::Kept)
    }

    fn needs_restart(&self) -> bool {
        self.effect == Some(Effect::Restart)
    }

    /// The change as the admin pages show it.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "setting": self.setting,
            "change": self.what,
            "counters": self.effect.map(Effect::label),
        })
    }
}

impl fmt::Display for Change {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.setting, self.what)?;
        match self.effect {
            // Its sentence says so already.
            Some(Effect::Left) if self.what != REMOVED => Ok(()),
            Some(effect) => write!(out, " ({})", effect.text()),
            None => Ok(()),
        }
    }
}

fn found_between(before: &Outline, after: &Outline) -> Vec<Change> {
    let mut found = Vec::new();
    after.counting.compare(&before.counting, &mut found);
    policies::compare(before, after, &mut found);
    before.written.compare(&after.written, &mut found);
    found
}

impl Changes {
    /// What `after` changes in `before`.
    #[must_use]
    pub fn between(before: &Outline, after: &Outline) -> Self {
        Self::of(found_between(before, after))
    }

    /// What a reload changes that replaces `before` with `after` in a process that began with
    /// `started`. A setting that has its value of then again needs no restart.
    #[must_use]
    pub fn of_reload(started: &Outline, before: &Outline, after: &Outline) -> Self {
        let mut found = found_between(before, after);
        if found.iter().any(Change::needs_restart) {
            let since = found_between(started, after);
            let is_pending = |change: &Change| {
                since.iter().any(|own| own.needs_restart() && own.setting == change.setting)
            };
            for change in found.iter_mut().filter(|change| change.needs_restart()) {
                if !is_pending(change) {
                    change.effect = None;
                }
            }
        }
        Self::of(found)
    }

    fn of(mut found: Vec<Change>) -> Self {
        // The sort is stable: within each half the order is that of the sections above.
        found.sort_by_key(|change| (!change.is_warning(), change.effect.is_none()));
        let left_off = found.len().saturating_sub(CHANGES_SHOWN_MAX);
        found.truncate(CHANGES_SHOWN_MAX);
        Self { shown: found, left_off }
    }

    /// Whether both say the same. Comments and the order of settings make no difference.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shown.is_empty()
    }

    /// The changes that are shown, at most [`CHANGES_SHOWN_MAX`].
    pub fn shown(&self) -> impl Iterator<Item = &Change> {
        self.shown.iter()
    }

    /// How many more there are.
    #[must_use]
    pub fn left_off(&self) -> usize {
        self.left_off
    }

    /// The changes as the admin pages show them.
    #[must_use]
    pub fn json(&self) -> Value {
        self.shown.iter().map(Change::json).collect()
    }
}

impl fmt::Display for Changes {
    /// A line each, without a line end after the last one; nothing where there is none.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, change) in self.shown.iter().enumerate() {
            let end = if index > 0 { "\n" } else { "" };
            write!(out, "{end}{change}")?;
        }
        if self.left_off > 0 {
            write!(out, "\n... and {} more", self.left_off)?;
        }
        Ok(())
    }
}

/// What is said about a setting that only one of two configurations has, or that differs.
const ADDED: &str = "added";
const REMOVED: &str = "removed";
const CHANGED: &str = "changed";

/// All keys of two maps, each with its value in the one and in the other.
fn both<'a, V>(
    before: &'a BTreeMap<String, V>,
    after: &'a BTreeMap<String, V>,
) -> impl Iterator<Item = (&'a str, Option<&'a V>, Option<&'a V>)> {
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    names.into_iter().map(|name| (name.as_str(), before.get(name), after.get(name)))
}

/// One line of at most this many characters.
fn shortened(text: &str, chars_max: usize) -> String {
    let mut short: String =
        text.chars().take(chars_max).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(chars_max).is_some() {
        short.push_str("...");
    }
    short
}
