//! The lists of limits, and checks of them beyond those of the SDK.

use serde::{Deserialize, Deserializer};
use weir_policy::{Json, Limits, Mistakes};

/// Algorithms of which nothing can be given back.
const UNSETTLED: [&str; 3] = ["leaky_bucket", "concurrency", "script"];

/// What is counted if the configuration has no list: few failures for one account, and more for all
/// accounts together, from each address.
const DEFAULT_BY_PAIR: &str =
    r#"[{"name": "pair", "algorithm": "fixed_window", "quota": 5, "period": "15m"}]"#;
const DEFAULT_BY_ADDRESS: &str =
    r#"[{"name": "address", "algorithm": "fixed_window", "quota": 50, "period": "15m"}]"#;

/// A list of limits that count failures.
#[derive(Debug)]
pub(crate) struct Counters {
    pub(crate) limits: Limits,
    /// Whether the configuration has no list at all.
    pub(crate) is_default: bool,
    /// Settings that are mistakes here and none in other policies' limits.
    misplaced: Vec<Misplaced>,
}

#[derive(Debug)]
struct Misplaced {
    index: usize,
    key: &'static str,
    found: Json<'static>,
    expected: &'static str,
}

/// The settings that this policy sets itself, and why.
const OWN: [(&str, &str); 3] = [
    ("key", "nothing: the name of the list says what is counted"),
    ("refund", "nothing: an attempt that did not fail is given back"),
    ("debt", "nothing: an attempt is charged before its result is known"),
];

/// `by_pair` and `by_address` of a configuration without any list.
pub(crate) fn default() -> (Option<Counters>, Option<Counters>) {
    let read = |text| {
        let value = Json::parse(text).ok()?;
        Some(Counters { is_default: true, ..Counters::of(&value, Limits::read(&value).ok()?) })
    };
    (read(DEFAULT_BY_PAIR), read(DEFAULT_BY_ADDRESS))
}

/// Adds the lists' mistakes, and those between them.
pub(crate) fn check<'a>(
    lists: impl Iterator<Item = (&'static str, &'a Counters)>,
    mistakes: &mut Mistakes,
) {
    let mut names: Vec<String> = Vec::new();
    for (list, counters) in lists {
        for Misplaced { index, key, found, expected } in &counters.misplaced {
            mistakes.add(format!("{list}[{index}].{key}"), found, expected);
        }
        for (index, name) in counters.limits.names().enumerate() {
            if names.iter().any(|known| known == name) {
                mistakes.add(
                    format!("{list}[{index}].name"),
                    format_args!("{name:?} a second time"),
                    "a name that no other limit of this policy has",
                );
            }
        }
        names.extend(counters.limits.names().map(str::to_owned));
    }
    if names.len() > weir_policy::LIMITS_MAX {
        let expected = format_args!("at most {}", weir_policy::LIMITS_MAX);
        mistakes.add("", format_args!("{} limits", names.len()), expected);
    }
}

impl Counters {
    /// `limits`, which were read from `value`.
    fn of(value: &Json<'_>, limits: Limits) -> Self {
        let mut misplaced = Vec::new();
        for (index, item) in value.items().enumerate() {
            let algorithm = item.get("algorithm").filter(|algorithm| {
                algorithm.as_str().is_some_and(|name| UNSETTLED.contains(&&*name))
            });
            let expected = "an algorithm whose units can be given back";
            let algorithm = algorithm.map(|found| ("algorithm", found, expected));
            let own = OWN.iter().filter_map(|(key, why)| Some((*key, item.get(key)?, *why)));
            for (key, found, expected) in algorithm.into_iter().chain(own) {
                misplaced.push(Misplaced { index, key, found: found.into_owned(), expected });
            }
        }
        Self { limits, is_default: false, misplaced }
    }
}

impl<'de> Deserialize<'de> for Counters {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Json::deserialize(deserializer)?;
        Ok(Self::of(&value, Limits::from_json(&value)?))
    }
}
