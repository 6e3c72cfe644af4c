//! Reads a policy's configuration into its type, with the path of every mistake. Whatever doesn't
//! fit is noted and taken out, and the rest is read again.

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::{Path, Segment};

use crate::Mistake;
use crate::mistakes::{MISTAKES_MAX, message, nearest};

/// Replaces a table that has reported its own mistakes, so that the rest can be read.
pub(crate) const REPORTED: &str = "\u{1f}reported";
/// Separates the mistakes that a table reports through serde's single message, and a path from its
/// message.
const RECORD: char = '\u{1e}';
const UNIT: char = '\u{1f}';

/// The configuration, as far as it could be read, and all mistakes found.
pub(crate) fn read<T: DeserializeOwned>(text: &str) -> (Option<T>, Vec<Mistake>) {
    // Usually there is no mistake. A large table then needs no second copy in memory.
    if let Ok(config) = serde_json::from_str(text) {
        return (Some(config), Vec::new());
    }
    match serde_json::from_str(text) {
        Ok(value) => read_value(value),
        Err(error) => {
            (None, vec![Mistake { path: String::new(), message: message(error, "JSON") }])
        }
    }
}

/// The same for a value that is already parsed.
pub(crate) fn read_value<T: DeserializeOwned>(mut value: Value) -> (Option<T>, Vec<Mistake>) {
    let mut mistakes = Vec::new();
    let mut removed: Vec<String> = Vec::new();
    while mistakes.len() < MISTAKES_MAX {
        let error = match serde_path_to_error::deserialize(&value) {
            Ok(config) => return (Some(config), mistakes),
            Err(error) => error,
        };
        let path = error.path().clone();
        let at = shown(&path);
        let text = error.into_inner().to_string();
        if let Some(inner) = text.strip_prefix(RECORD) {
            mistakes.extend(unpack(&at, inner));
            if !put(&mut value, &path, Value::String(REPORTED.to_owned())) {
                return (None, mistakes);
            }
            continue;
        }
        let missing = text.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`'));
        if let Some(field) = missing {
            if !removed.contains(&join(&at, field)) {
                mistakes.push(Mistake {
                    path: at,
                    message: message(
                        format_args!("no `{field}`"),
                        "this setting, as it has no default",
                    ),
                });
            }
            return (None, mistakes);
        }
        mistakes.push(Mistake { path: at.clone(), message: translate(&text) });
        if !take_out(&mut value, &path) {
            return (None, mistakes);
        }
        removed.push(at);
    }
    (None, mistakes)
}

/// Mistakes for the limits that wait for a policy to settle them, in policies that never do. A
/// limit is what [`Limits`](crate::Limits) reads: a table with an `algorithm`.
pub(crate) fn unsettled(text: &str) -> Vec<Mistake> {
    let mut mistakes = Vec::new();
    // Usually there is none. A large table is then not read twice.
    if (text.contains("by_settle") || text.contains("debt"))
        && let Ok(value) = serde_json::from_str(text)
    {
        find_unsettled("", &value, &mut mistakes);
    }
    mistakes
}

fn find_unsettled(at: &str, value: &Value, mistakes: &mut Vec<Mistake>) {
    match value {
        Value::Array(items) => items
            .iter()
            .enumerate()
            .for_each(|(index, item)| find_unsettled(&format!("{at}[{index}]"), item, mistakes)),
        Value::Object(table) => {
            let mut mistake = |key: &str, found: &Value, expected: &str| {
                if table.contains_key("algorithm") && mistakes.len() < MISTAKES_MAX {
                    mistakes
                        .push(Mistake { path: join(at, key), message: message(found, expected) });
                }
            };
            if let Some(refund) = table.get("refund").filter(|refund| *refund == "by_settle") {
                let expected =
                    "another refund: this policy never settles, so nothing would be given back";
                mistake("refund", refund, expected);
            }
            if let Some(debt) = table.get("debt") {
                mistake("debt", debt, "none: this policy never settles, so nothing would be owed");
            }
            table.iter().for_each(|(key, member)| find_unsettled(&join(at, key), member, mistakes));
        }
        _ => {}
    }
}

/// Several mistakes in one serde message, for [`read_value`] to unpack. Their paths are relative to
/// the table.
pub(crate) fn pack(mistakes: &[Mistake]) -> String {
    let clean = |text: &str| text.replace([RECORD, UNIT], "?");
    mistakes
        .iter()
        .map(|mistake| format!("{RECORD}{}{UNIT}{}", clean(&mistake.path), clean(&mistake.message)))
        .collect()
}

fn unpack(at: &str, packed: &str) -> Vec<Mistake> {
    let records = packed.split(RECORD).filter_map(|record| record.split_once(UNIT));
    records
        .map(|(path, message)| Mistake { path: join(at, path), message: message.to_owned() })
        .collect()
}

/// `limits` and `[0].quota`, or `limits[0]` and `quota`.
pub(crate) fn join(parent: &str, child: &str) -> String {
    let dot =
        if parent.is_empty() || child.is_empty() || child.starts_with('[') { "" } else { "." };
    format!("{parent}{dot}{child}")
}

/// The type of a value, for a message.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "a table",
    }
}

fn shown(path: &Path) -> String {
    if path.iter().len() == 0 { String::new() } else { path.to_string() }
}

/// The value at `segment` of `value`.
fn step<'a>(value: &'a mut Value, segment: &Segment) -> Option<&'a mut Value> {
    match segment {
        Segment::Seq { index } => value.get_mut(*index),
        Segment::Map { key } | Segment::Enum { variant: key } => value.get_mut(key),
        Segment::Unknown => None,
    }
}

fn put(value: &mut Value, path: &Path, stand_in: Value) -> bool {
    let place = path.iter().try_fold(value, step);
    place.map(|place| *place = stand_in).is_some()
}

/// Takes the setting at `path` out of its table. Items of a list are not removed: the others'
/// indices would no longer be those in the file.
fn take_out(value: &mut Value, path: &Path) -> bool {
    let segments: Vec<&Segment> = path.iter().collect();
    let Some((Segment::Map { key }, parents)) = segments.split_last() else { return false };
    let table = parents.iter().try_fold(value, |value, segment| step(value, segment));
    table.and_then(Value::as_object_mut).is_some_and(|table| table.remove(key).is_some())
}

/// Translates serde's message into ours: what was found, what was expected, and the nearest known
/// name.
fn translate(text: &str) -> String {
    if text.starts_with("found ") {
        return text.to_owned();
    }
    for (start, kind) in
        [("unknown field `", "the unknown key"), ("unknown variant `", "the unknown word")]
    {
        if let Some((word, expected)) =
            text.strip_prefix(start).and_then(|rest| rest.split_once("`, "))
        {
            let known = expected.split('`').skip(1).step_by(2);
            let expected = expected.strip_prefix("expected ").unwrap_or(expected);
            let hint =
                nearest(word, known).map(|near| format!("; `{near}` is near")).unwrap_or_default();
            return message(format_args!("{kind} `{word}`"), format_args!("{expected}{hint}"));
        }
    }
    let text = ["invalid type: ", "invalid value: ", "invalid length "]
        .iter()
        .find_map(|start| text.strip_prefix(start))
        .unwrap_or(text);
    match text.rsplit_once(", expected ") {
        Some((found, expected)) => message(found, plain_type(expected)),
        None => message(text, "a value that the policy accepts"),
    }
}

/// Operators don't know Rust's types.
fn plain_type(expected: &str) -> &str {
    match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, 0 or more",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "a table",
        other if other.starts_with("struct ") => "a table",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Config {
        #[serde(default)]
        prefix: u8,
        #[serde(default)]
        words: Vec<String>,
        #[serde(default)]
        inner: Inner,
        #[allow(dead_code, reason = "only its absence matters")]
        needed: bool,
    }

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(rename_all = "snake_case", deny_unknown_fields)]
    struct Inner {
        #[serde(default)]
        kind: Kind,
    }

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(rename_all = "snake_case")]
    enum Kind {
        #[default]
        First,
        Second,
    }

    fn mistakes(text: &str) -> Vec<(String, String)> {
        let (_, mistakes) = read::<Config>(text);
        mistakes.into_iter().map(|mistake| (mistake.path, mistake.message)).collect()
    }

    fn pair(path: &str, message: &str) -> (String, String) {
        (path.to_owned(), message.to_owned())
    }

    #[test]
    fn a_configuration_without_mistakes_is_read() {
        let (config, mistakes) = read::<Config>(
            r#"{"prefix": 64, "words": ["a"], "inner": {"kind": "second"}, "needed": true}"#,
        );
        let config = config.unwrap();
        assert_eq!(
            (config.prefix, config.words.as_slice(), config.inner.kind),
            (64, &["a".to_owned()][..], Kind::Second)
        );
        assert!(mistakes.is_empty());
    }

    #[test]
    fn all_mistakes_come_at_once_each_with_its_path() {
        let found =
            mistakes(r#"{"prefix": "x", "wrods": [], "inner": {"kind": "secnd"}, "needed": true}"#);
        let expected = [
            pair(
                "inner.kind",
                "found the unknown word `secnd`, expected `first` or `second`; `second` is near",
            ),
            pair("prefix", "found string \"x\", expected a whole number, 0 or more"),
            pair(
                "wrods",
                "found the unknown key `wrods`, expected one of `prefix`, `words`, `inner`, `needed`; `words` is near",
            ),
        ];
        let mut found = found;
        found.sort();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_missing_setting_is_named_where_it_is_missing() {
        assert_eq!(
            mistakes("{}"),
            [pair("", "found no `needed`, expected this setting, as it has no default")]
        );
        assert_eq!(
            mistakes(r#"{"needed": 3}"#),
            [pair("needed", "found integer `3`, expected true or false")]
        );
    }

    #[test]
    fn what_stands_in_a_list_is_named_with_its_position() {
        assert_eq!(
            mistakes(r#"{"needed": true, "words": ["a", 7]}"#),
            [pair("words[1]", "found integer `7`, expected a string")]
        );
    }

    #[test]
    fn text_that_is_no_json_is_said_so() {
        assert_eq!(mistakes("{").len(), 1);
    }
}
