//! Compares policies: their modules, and their own configurations with the limits in them.
//!
//! A guest reads its configuration as it likes. Only the settings of limits that it declares, and
//! what has the form of the SDK's limits, is understood here: their numbers are shown, and what
//! happens to their counters is known. Names of other members may be customers' keys, so below the
//! first level these are only counted.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde_json::{Map, Value};
use toml::de::DeTable;

use super::super::finding::join;
use super::super::setting;
use super::{
    ADDED, CHANGED, Change, CounterIdentity, Effect, Outline, REMOVED, VALUE_CHARS_MAX, add_text,
    both, shortened,
};
use crate::policy::{self, DeclaredLimit, ListedLimit, Module};

/// Hexadecimal digits of a module's digest that are shown.
const DIGEST_CHARS: usize = 12;

/// A policy, as far as it is compared here.
#[derive(Clone)]
pub(super) struct PolicyOutline {
    /// The key that names the module, and its value.
    module: (&'static str, String),
    digest: String,
    config_json: Arc<str>,
    /// The members of the configuration that are in files of their own.
    in_files: BTreeSet<String>,
    /// The limits, as far as the policy was asked.
    pub(super) declared: Arc<[DeclaredLimit]>,
}

impl PolicyOutline {
    /// Adds what the policy does. Where its module is does not matter.
    pub(super) fn add_to(&self, hasher: &mut blake3::Hasher) {
        let (key, name) = &self.module;
        // Proxies may be of two versions of Weir for a while.
        add_text(hasher, if *key == "use" { name } else { &self.digest });
        add_text(hasher, key);
        // Parsed, so that the order of members does not matter.
        let config: Option<Value> = serde_json::from_str(&self.config_json).ok();
        add_text(hasher, &config.map(|config| config.to_string()).unwrap_or_default());
    }
}

pub(super) fn outlines(
    root: &DeTable<'_>,
    policies: &[policy::Settings],
) -> BTreeMap<String, PolicyOutline> {
    let written = |name: &str, key: &str| {
        let policies = root.get(setting::POLICIES)?.get_ref().as_table()?;
        policies.get(name)?.get_ref().as_table()?.get(key)
    };
    let outline = |settings: &policy::Settings| {
        let key = match settings.module {
            Module::Shipped(_) => "use",
            Module::File { .. } => "wasm",
        };
        let text = |key| written(&settings.name, key).and_then(|value| value.get_ref().as_str());
        let files = written(&settings.name, "config_files")
            .and_then(|files| files.get_ref().as_table())
            .into_iter()
            .flatten();
        PolicyOutline {
            module: (key, text(key).unwrap_or_default().to_owned()),
            digest: settings.module.digest().unwrap_or_default(),
            config_json: Arc::clone(&settings.config_json),
            in_files: files.map(|(member, _)| member.get_ref().to_string()).collect(),
            declared: [].into(),
        }
    };
    policies.iter().map(|settings| (settings.name.clone(), outline(settings))).collect()
}

/// Policies that only one of the two has are found where all sections are compared.
pub(super) fn compare(before: &Outline, after: &Outline, found: &mut Vec<Change>) {
    for (name, old, new) in both(&before.policies, &after.policies) {
        let (Some(old), Some(new)) = (old, new) else { continue };
        let at = setting::policy(name);
        if old.digest != new.digest {
            let short = |digest: &str| digest.get(..DIGEST_CHARS).unwrap_or(digest).to_owned();
            let what =
                format!("new module (digest {} -> {})", short(&old.digest), short(&new.digest));
            found.push(Change::new(&join(&at, new.module.0), what, None));
        } else if old.module != new.module {
            found.push(Change::new(&join(&at, new.module.0), CHANGED, None));
        }
        let reshaped = after.counting.may_reshape(&before.counting);
        if old.config_json == new.config_json && !reshaped {
            continue;
        }
        let parse = |json: &str| serde_json::from_str(json).unwrap_or(Value::Null);
        let (old_value, new_value) = (parse(&old.config_json), parse(&new.config_json));
        if let (Value::Object(old_config), Value::Object(new_config)) = (&old_value, &new_value) {
            let in_files = old.in_files.union(&new.in_files).cloned().collect();
            let limits = Limits {
                before: &before.counting,
                after: &after.counting,
                known: [
                    KnownLimits::of(&old.declared, &old_value, &before.counting),
                    KnownLimits::of(&new.declared, &new_value, &after.counting),
                ],
            };
            limits.config(&join(&at, "config"), old_config, new_config, &in_files, found);
        }
    }
}

/// The limits of one configuration that the policy declares, by the places of their settings in
/// memory.
struct KnownLimits(HashMap<*const Value, ListedLimit>);

impl KnownLimits {
    fn of(declared: &[DeclaredLimit], config: &Value, counting: &CounterIdentity) -> Self {
        let limit = |limit: &DeclaredLimit| {
            let place: *const Value = limit.setting_in(config)?;
            let (name, algorithm) = (limit.name.clone(), Some(counting.algorithm_of(limit)));
            Some((place, ListedLimit { name, algorithm }))
        };
        Self(declared.iter().filter_map(limit).collect())
    }

    /// The limit that this value is, if it is one.
    fn read(&self, value: &Value) -> Option<ListedLimit> {
        let declared = self.0.get(&std::ptr::from_ref(value));
        declared.cloned().or_else(|| ListedLimit::read(value))
    }

    /// Whether there is one in this value.
    fn are_in(&self, value: &Value) -> bool {
        let is_limit = self.read(value).is_some();
        is_limit
            || match value {
                Value::Array(elements) => elements.iter().any(|element| self.are_in(element)),
                Value::Object(members) => members.values().any(|member| self.are_in(member)),
                _ => false,
            }
    }
}

/// Compares configurations of policies.
struct Limits<'a> {
    before: &'a CounterIdentity,
    after: &'a CounterIdentity,
    /// Those of the old configuration and of the new one.
    known: [KnownLimits; 2],
}

impl Limits<'_> {
    /// The whole configuration of a policy.
    fn config(
        &self,
        at: &str,
        old: &Map<String, Value>,
        new: &Map<String, Value>,
        in_files: &BTreeSet<String>,
        found: &mut Vec<Change>,
    ) {
        let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        for name in names {
            let path = join(at, name);
            match (old.get(name), new.get(name)) {
                (Some(old), Some(new)) if in_files.contains(name) => {
                    self.in_file(&path, old, new, found);
                }
                (Some(old), Some(new)) => self.value(&path, old, new, found),
                (Some(_), None) => found.push(Change::new(&path, REMOVED, None)),
                (None, _) => found.push(Change::new(&path, ADDED, None)),
            }
        }
    }

    /// A file of data may be long, and its names may be keys of customers: members are counted.
    fn in_file(&self, at: &str, old: &Value, new: &Value, found: &mut Vec<Change>) {
        let mut inside = Vec::new();
        let [known_old, known_new] = &self.known;
        if known_old.are_in(old) || known_new.are_in(new) {
            self.value(at, old, new, &mut inside);
        }
        let effect = if inside.iter().any(|change| change.effect == Some(Effect::Fresh)) {
            Some(Effect::Fresh)
        } else {
            inside.iter().find_map(|change| change.effect)
        };
        if old != new {
            found.push(Change::new(at, counted(old, new), effect));
        } else if effect == Some(Effect::Fresh) {
            found.push(Change::new(at, "limits of another shape", effect));
        }
    }

    fn value(&self, at: &str, old: &Value, new: &Value, found: &mut Vec<Change>) {
        let [known_old, known_new] = &self.known;
        if let (Some(before), Some(after)) = (known_old.read(old), known_new.read(new)) {
            self.limit(at, (old, &before), (new, &after), found);
        } else if let (Some(old), Some(new)) = (named(old), named(new)) {
            for (name, old, new) in both(&old, &new) {
                self.element(&format!("{at}[{name}]"), old.copied(), new.copied(), found);
            }
        } else if let (Value::Object(old), Value::Object(new)) = (old, new) {
            self.table(at, old, new, found);
        } else if old != new {
            found.push(Change::new(at, CHANGED, None));
        }
    }

    /// Members with limits one by one, and the others together: their names are not shown.
    fn table(
        &self,
        at: &str,
        old: &Map<String, Value>,
        new: &Map<String, Value>,
        found: &mut Vec<Change>,
    ) {
        let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        let (mut others_old, mut others_new) = (Map::new(), Map::new());
        let [known_old, known_new] = &self.known;
        for name in names {
            let (old, new) = (old.get(name), new.get(name));
            if old.is_some_and(|old| known_old.are_in(old))
                || new.is_some_and(|new| known_new.are_in(new))
            {
                self.element(&join(at, name), old, new, found);
            } else if old != new {
                others_old.extend(old.map(|old| (name.clone(), old.clone())));
                others_new.extend(new.map(|new| (name.clone(), new.clone())));
            }
        }
        if others_old != others_new {
            let what = counted(&Value::Object(others_old), &Value::Object(others_new));
            found.push(Change::new(at, what, None));
        }
    }

    fn element(&self, at: &str, old: Option<&Value>, new: Option<&Value>, found: &mut Vec<Change>) {
        match (old, new) {
            (Some(old), Some(new)) => self.value(at, old, new, found),
            (Some(old), None) => {
                let effect = self.known[0].are_in(old).then_some(Effect::Left);
                found.push(Change::new(at, REMOVED, effect));
            }
            (None, _) => found.push(Change::new(at, ADDED, None)),
        }
    }

    /// A limit that both configurations have, each as written and as understood.
    fn limit(
        &self,
        at: &str,
        (old, before): (&Value, &ListedLimit),
        (new, after): (&Value, &ListedLimit),
        found: &mut Vec<Change>,
    ) {
        let effect = match (&before.algorithm, &after.algorithm) {
            (Some(before), Some(after)) => Some(self.after.effect(after, self.before, before)),
            _ => None,
        };
        let mut is_told = false;
        let none = Map::new();
        let (old, new) = match (old, new) {
            (Value::Object(old), Value::Object(new)) => (old, new),
            _ => {
                // A limit that the policy makes of one value.
                if old != new {
                    let is_one = |value: &Value| !value.is_object() && !value.is_array();
                    let what = if is_one(old) && is_one(new) {
                        format!("{} -> {}", shown(old), shown(new))
                    } else {
                        CHANGED.to_owned()
                    };
                    found.push(Change::new(at, what, effect));
                    is_told = true;
                }
                (&none, &none)
            }
        };
        let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        for name in names {
            let (old, new) = (old.get(name), new.get(name));
            if old == new {
                continue;
            }
            let counts = ListedLimit::counts_by(name);
            let is_shown = |value: &&Value| counts || value.is_number() || value.is_boolean();
            let text = |value: Option<&Value>| match value {
                Some(value) => shown(value),
                None => "default".to_owned(),
            };
            let what = if old.iter().chain(&new).all(is_shown) {
                format!("{} -> {}", text(old), text(new))
            } else {
                CHANGED.to_owned()
            };
            let effect = effect.filter(|effect| counts || *effect == Effect::Fresh);
            is_told |= effect.is_some();
            found.push(Change::new(&join(at, name), what, effect));
        }
        // The limit is as it was, and what it depends on is not: the store's lease, or its script.
        if !is_told && effect == Some(Effect::Fresh) && !self.after.all_fresh(self.before) {
            found.push(Change::new(at, "counts differently", effect));
        }
    }
}

/// A value of a limit.
fn shown(value: &Value) -> String {
    shortened(&value.to_string(), VALUE_CHARS_MAX)
}

/// The elements of a list by their names, where all have names and these are distinct.
fn named(value: &Value) -> Option<BTreeMap<String, &Value>> {
    let elements = value.as_array()?;
    let named = elements.iter().map(|element| Some((element.get("name")?.as_str()?, element)));
    let named: BTreeMap<String, &Value> = named
        .map(|entry| entry.map(|(name, value)| (name.to_owned(), value)))
        .collect::<Option<_>>()?;
    (named.len() == elements.len()).then_some(named)
}

/// How many members or elements differ.
fn counted(old: &Value, new: &Value) -> String {
    let (Value::Object(old), Value::Object(new)) = (old, new) else { return CHANGED.to_owned() };
    let removed = old.keys().filter(|key| !new.contains_key(*key)).count();
    let added = new.keys().filter(|key| !old.contains_key(*key)).count();
    let differs = |(key, value): &(&String, &Value)| old.get(*key).is_some_and(|old| old != *value);
    let changed = new.iter().filter(differs).count();
    let counts = [(added, ADDED), (removed, REMOVED), (changed, CHANGED)];
    let counts: Vec<String> = counts
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    counts.join(", ")
}
