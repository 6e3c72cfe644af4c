//! Where in a policy's configuration a guest found a value that it names only by a table above it.
//!
//! serde reads a flattened struct, or an enum with a tag, into a buffer first, which knows no
//! paths. So the SDK reports what doesn't fit there at the table that was buffered. This is done
//! here, since in the SDK it would be a part of every guest.

use serde_json::Value;

/// Maximum number of characters of a text that the SDK's messages repeat.
const TEXT_CHARS_MAX: usize = 80;
/// How the SDK begins a message about a key and about a word that it does not know.
const UNKNOWN_KEY: &str = "the unknown key `";
const UNKNOWN_WORD: &str = "the unknown word `";
/// What a message expects that found a number of items and not a value.
const OF_COUNTS: [&str; 4] = ["fewer", "element", "item", "tuple"];

/// The path below the table at `path` of the only setting that an error can be about. `None` if
/// there is none or more than one, or if the error is about the table itself.
pub(super) fn below(config: &Value, path: &str, found: &str, expected: &str) -> Option<String> {
    let table = super::declared::find(config, path).filter(|value| value.is_object())?;
    let word = |start: &str| found.strip_prefix(start)?.strip_suffix('`');
    let meant = if let Some(key) = word(UNKNOWN_KEY) {
        Meant::Key(key)
    } else if let Some(word) = word(UNKNOWN_WORD) {
        Meant::Word(word)
    } else {
        Meant::Shown(found)
    };
    let is_own = match meant {
        Meant::Key(key) => path.rsplit('.').next() == Some(key),
        Meant::Word(_) => false,
        Meant::Shown(found) => {
            shown(table) == found || OF_COUNTS.iter().any(|count| expected.contains(count))
        }
    };
    let mut places = Vec::new();
    if !is_own {
        collect(table, path, meant, &mut places);
    }
    match places.as_slice() {
        [place] => Some(place.clone()),
        _ => None,
    }
}

/// What an error is about.
#[derive(Clone, Copy)]
enum Meant<'a> {
    Key(&'a str),
    Word(&'a str),
    /// A value that messages show so.
    Shown(&'a str),
}

impl Meant<'_> {
    fn is(self, name: &str, value: &Value) -> bool {
        match self {
            Self::Key(key) => name == key,
            Self::Word(word) => value.as_str() == Some(word),
            Self::Shown(found) => shown(value) == found,
        }
    }
}

/// Adds the settings that are meant, until there are two.
fn collect(value: &Value, path: &str, meant: Meant<'_>, places: &mut Vec<String>) {
    let members = value.as_object().into_iter().flatten();
    let members = members.map(|(name, member)| {
        let dot = if path.is_empty() { "" } else { "." };
        (name.as_str(), member, format!("{path}{dot}{name}"))
    });
    let items = value.as_array().into_iter().flatten().enumerate();
    let items = items.map(|(index, item)| ("", item, format!("{path}[{index}]")));
    for (name, inner, at) in members.chain(items) {
        if places.len() > 1 {
            return;
        }
        collect(inner, &at, meant, places);
        if meant.is(name, inner) {
            places.push(at);
        }
    }
}

/// A value as the SDK's messages show it.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Number(number) if number.is_f64() => "a number with a fraction".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => {
            let mut short: String = text.chars().take(TEXT_CHARS_MAX).collect();
            if short.len() < text.len() {
                short.push_str("...");
            }
            format!("{short:?}")
        }
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a table".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_setting_that_fits_is_found() {
        let config = serde_json::json!({
            "rules": [
                { "kind": "a", "size": "x", "inner": { "on": 3, "list": [1.5] }, "b.c": null },
                { "kind": "b", "size": "x", "text": "\u{e9}".repeat(90), "one": 7, "two": 7 },
            ],
            "size": true,
        });
        let long = format!("\"{}...\"", "\u{e9}".repeat(80));
        for (path, found, place) in [
            ("rules[0]", "\"x\"", Some("rules[0].size")),
            ("rules[0]", "3", Some("rules[0].inner.on")),
            ("rules[0]", "a number with a fraction", Some("rules[0].inner.list[0]")),
            ("rules[0]", "a list", Some("rules[0].inner.list")),
            ("rules[0]", "null", Some("rules[0].b.c")),
            ("rules[0]", "the unknown key `on`", Some("rules[0].inner.on")),
            ("rules[0]", "the unknown word `a`", Some("rules[0].kind")),
            ("rules[1]", long.as_str(), Some("rules[1].text")),
            ("", "true", Some("size")),
            // There are two, or none, or it is the table itself.
            ("", "\"x\"", None),
            ("", "the unknown key `size`", None),
            ("rules[1]", "7", None),
            ("rules[1]", "8", None),
            ("rules[0]", "no `needed`", None),
            ("rules[0]", "a table", None),
            ("rules[0].inner", "the unknown key `inner`", None),
            ("rules", "3", None),
            ("absent", "3", None),
        ] {
            let below = below(&config, path, found, "another");
            assert_eq!(below.as_deref(), place, "{path} {found}");
        }
        assert_eq!(below(&config, "rules[0]", "3", "fewer items"), None);
    }
}
