//! Keys that clients can spell in many ways.

use serde_json::Value;

use crate::telemetry::{Lint, LintKind};

/// Templates of whole fields whose values have many spellings, and what to write instead.
const SPELLED: [(&str, &str, &str); 2] = [
    ("{header.authorization}", "`bEaReR  abc` is the token `abc` to most upstreams", "`{bearer}`"),
    ("{header.cookie}", "its cookies may come in any order", "`{cookie.NAME}`"),
];

/// Lints about the texts in `value`, the setting `at`.
pub(super) fn keys(at: &str, value: &Value, lints: &mut Vec<Lint>) {
    match value {
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                keys(&format!("{at}[{index}]"), item, lints);
            }
        }
        Value::Object(table) => {
            table.iter().for_each(|(key, member)| keys(&format!("{at}.{key}"), member, lints));
        }
        Value::String(text) if at.ends_with("key") => {
            let lower = text.to_ascii_lowercase();
            let found = SPELLED.iter().filter(|(template, ..)| lower.contains(template));
            lints.extend(found.map(|(template, why, instead)| {
                let text = format!("{template} gives each spelling a key of its own: {why}");
                Lint::new(LintKind::SpelledKey, at, text).remedy(format!("write {instead}"))
            }));
        }
        _ => {}
    }
}
