//! Names and strings of a configuration that a command writes.

use std::collections::HashSet;

use serde_json::Value;

/// Maximum length of a name that is made of something else.
const NAME_BYTES_MAX: usize = 56;

/// A basic string of TOML. Those of JSON are the same, but for one character.
pub(super) fn string(text: &str) -> String {
    let json = serde_json::to_string(text).unwrap_or_default();
    json.replace('\u{7f}', "\\u007f")
}

/// A value on one line.
pub(super) fn value(value: &Value) -> String {
    match value {
        Value::String(text) => string(text),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(self::value).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(members) if members.is_empty() => "{}".to_owned(),
        Value::Object(members) => {
            let written = |(name, member): (&String, _)| {
                let is_bare =
                    |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
                let is_plain = !name.is_empty() && name.chars().all(is_bare);
                let name = if is_plain { name.clone() } else { string(name) };
                format!("{name} = {}", self::value(member))
            };
            let members: Vec<String> = members.iter().map(written).collect();
            format!("{{ {} }}", members.join(", "))
        }
        // Numbers and truth values are JSON's; TOML has no null.
        other => other.to_string(),
    }
}

/// A name of the characters that limits, routes and policies may have; `or` where none is left.
pub(super) fn plain(text: &str, or: &str) -> String {
    let mut name = String::new();
    for letter in text.chars().map(|letter| letter.to_ascii_lowercase()) {
        let is_plain = letter.is_ascii_alphanumeric() || "._-".contains(letter);
        let letter = if is_plain { letter } else { '-' };
        if !(letter == '-' && name.ends_with('-')) && name.len() < NAME_BYTES_MAX {
            name.push(letter);
        }
    }
    let name = name.trim_matches(['-', '.']);
    if name.is_empty() { or.to_owned() } else { name.to_owned() }
}

/// The same as a part of a section's name, which a dot would divide.
pub(super) fn section(text: &str, or: &str) -> String {
    plain(&text.replace('.', "-"), or)
}

/// A text as a comment has it: on one line, without characters that TOML forbids there.
pub(super) fn comment(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// The name, or with the first number that nobody else has.
pub(super) fn unique(name: &str, taken: &mut HashSet<String>) -> String {
    let numbered = (2_u32..).map(|number| format!("{name}-{number}"));
    let mut all = std::iter::once(name.to_owned()).chain(numbered);
    let free = all.find(|name| !taken.contains(name)).unwrap_or_default();
    taken.insert(free.clone());
    free
}
