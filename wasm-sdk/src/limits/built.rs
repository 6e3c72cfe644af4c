//! What the contract has and the proxy does not run yet: a limits table that asks for it is a mistake, not a limit that fails each request.
//!
//! Only the table is held to this. A policy of one's own may answer whatever the contract has, and learns from the proxy what it does not run.

use serde::de::{Deserialize, Deserializer, Error as _, IntoDeserializer as _};
use serde_json::Value;

use crate::config::join;
use crate::limits::written::{Algorithm, Fallback};
use crate::mistakes::{Mistakes, message};

/// The algorithms that may be written.
pub(super) const ALGORITHMS: &str = "one of `fixed_window`, `token_bucket`, `gcra`";

/// The others, with the keys that belong to each alone.
const ALGORITHMS_TO_COME: [(&str, &[&str]); 6] = [
    ("sliding_window_counter", &[]),
    ("sliding_window_log", &[]),
    ("sliding_window_buckets", &["buckets"]),
    ("leaky_bucket", &["max_delay"]),
    ("concurrency", &[]),
    ("quota", &["calendar", "time_zone", "anchor_day", "conditional"]),
];

pub(super) fn algorithm<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Algorithm>, D::Error> {
    word(deserializer, is_to_come, ALGORITHMS)
}

pub(super) fn on_store_error<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Fallback>, D::Error> {
    word(deserializer, |text| text == "local", "`allow` or `deny`")
}

/// Takes the keys out of `limit` that belong to algorithms to come: what is left is read as usual.
pub(super) fn take_keys_to_come(at: &str, limit: &mut Value, mistakes: &mut Mistakes) {
    let Some(table) = limit.as_object_mut() else { return };
    // Then the algorithm itself is the mistake, and its keys say nothing new.
    let told = table.get("algorithm").and_then(Value::as_str).is_some_and(is_to_come);
    for (algorithm, keys) in ALGORITHMS_TO_COME {
        for key in keys {
            if let Some(value) = table.remove(*key).filter(|_| !told) {
                mistakes.add(join(at, key), value, format_args!("nothing: `{key}` belongs to {algorithm}, which is not built yet"));
            }
        }
    }
}

fn is_to_come(algorithm: &str) -> bool {
    ALGORITHMS_TO_COME.iter().any(|(name, _)| *name == algorithm)
}

/// A word of `T`'s, or of those that are known and not built.
fn word<'de, D, T>(deserializer: D, not_built: impl Fn(&str) -> bool, expected: &str) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let text = String::deserialize(deserializer)?;
    if not_built(&text) {
        return Err(D::Error::custom(message(format_args!("`{text}`, which is not built yet"), expected)));
    }
    T::deserialize(text.into_deserializer()).map(Some)
}
