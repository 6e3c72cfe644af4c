//! Keys that clients can spell in many ways.

use serde_json::Value;

use crate::telemetry::{Doubt, DoubtKind};

/// Templates of whole fields whose values have many spellings, and what to write instead.
const SPELLED: [(&str, &str, &str); 2] = [
    ("{header.authorization}", "`bEaReR  abc` is the token `abc` to most upstreams", "`{bearer}`"),
    ("{header.cookie}", "its cookies may come in any order", "`{cookie.NAME}`"),
];

/// Doubts about the texts in `value`, the setting `at`.
pub(super) fn keys(at: &str, value: &Value, doubts: &mut Vec<Doubt>) {
    match value {
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                keys(&format!("{at}[{index}]"), item, doubts);
            }
        }
        Value::Object(table) => {
            table.iter().for_each(|(key, member)| keys(&format!("{at}.{key}"), member, doubts));
        }
        Value::String(text) if at.ends_with("key") => {
            let lower = text.to_ascii_lowercase();
            let found = SPELLED.iter().filter(|(template, ..)| lower.contains(template));
            doubts.extend(found.map(|(template, why, instead)| {
                let text = format!("{template} gives each spelling a key of its own: {why}");
                Doubt::new(DoubtKind::SpelledKey, at, text).remedy(format!("write {instead}"))
            }));
        }
        _ => {}
    }
}
