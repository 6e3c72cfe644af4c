//! A policy's own configuration: TOML as the JSON that its guest gets, and what every guest can
//! read.

use serde_json::{Map, Number, Value};
use toml::de::DeValue;

use super::reader::{Item, integer};

/// Whole numbers that every guest reads exactly from JSON (policy.wit).
pub(super) const JSON_WHOLE_MAX: i128 = 1 << 53;
/// Levels of a policy's own configuration.
pub(super) const JSON_DEPTH_MAX: usize = 32;

/// The value as JSON. What JSON can't hold exactly is an error; all such errors are noted.
pub(super) fn json(item: &Item<'_>, depth: usize) -> Option<Value> {
    if depth > JSON_DEPTH_MAX {
        item.found(
            "a deeper level",
            format!("at most {JSON_DEPTH_MAX} levels in a policy's config"),
            None,
        );
        return None;
    }
    match item.value {
        DeValue::String(text) => Some(Value::String(text.to_string())),
        DeValue::Boolean(boolean) => Some(Value::Bool(*boolean)),
        DeValue::Datetime(datetime) => Some(Value::String(datetime.to_string())),
        DeValue::Integer(_) => {
            // The policy gets the nearest number that JSON can hold. It knows the setting's own
            // range and reports that, which is more helpful.
            let number = integer(item.value);
            let nearest = number.map(|number| number.clamp(-JSON_WHOLE_MAX, JSON_WHOLE_MAX));
            if number.is_none() || number != nearest {
                item.wrong_in_general("a whole number from -2^53 to 2^53");
            }
            nearest.and_then(Number::from_i128).map(Value::Number)
        }
        DeValue::Float(float) => {
            let number = float.as_str().parse().ok().and_then(Number::from_f64);
            if number.is_none() {
                item.wrong("a finite number");
            }
            number.map(Value::Number)
        }
        DeValue::Array(array) => {
            let read: Vec<Option<Value>> =
                item.list(array.len()).iter().map(|element| json(element, depth + 1)).collect();
            read.into_iter().collect::<Option<Vec<_>>>().map(Value::Array)
        }
        DeValue::Table(_) => {
            let entries = item.table()?.named();
            let read: Vec<_> = entries
                .into_iter()
                .map(|(key, element)| json(&element, depth + 1).map(|value| (key, value)))
                .collect();
            read.into_iter().collect::<Option<Map<_, _>>>().map(Value::Object)
        }
    }
}
