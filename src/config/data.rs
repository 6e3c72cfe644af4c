//! Files of data: `config_files = { assign = "customers.toml" }` makes a file's content a member of
//! a policy's configuration, as if it were written there.
//!
//! They are TOML, or JSON where the name ends in `.json`. Some are fetched by URL. Errors in
//! them, including those that a guest reports, are shown with that file and its line.

use serde_json::Value;
use toml::de::{DeTable, DeValue};

use super::documents;
use super::finding::{Finding, Mark, join};
use super::policy_json::{JSON_DEPTH_MAX, JSON_WHOLE_MAX, json};
use super::reader::{Item, Notes, Table};
use super::settings::policies::policy as rows;
use super::source::Data;
use super::{drop_flat, syntax};
use crate::telemetry::SettingError;

/// Maximum size of one file, in bytes: some 180,000 customers.
const DATA_BYTES_MAX: u64 = 16 << 20;

/// The members that are in files of their own; `None` where one of them could not be read, which is
/// noted. They belong to `policy`. `config` is the setting that they are members of, `inline` its
/// value in the main file.
pub(super) fn files(
    notes: &Notes,
    policy: &str,
    config: &str,
    table: &mut Table<'_>,
    inline: Option<&Value>,
) -> Option<Vec<(String, Value)>> {
    let named = table.entries(&rows::CONFIG_FILES, "files");
    if table.below(rows::CONFIG_FILES.key).len() > named.len() {
        return None;
    }
    let read = |(member, item): (String, Item<'_>)| {
        if inline.is_some_and(|inline| inline.get(&member).is_some()) {
            item.found_key(
                format!("a file for `{member}`, which is in `config` too"),
                "one of the two",
                None,
            );
            return None;
        }
        let setting = join(config, &member);
        let file = match item.value {
            DeValue::Table(_) => {
                documents::document(notes, policy, &member, &item, DATA_BYTES_MAX)?
            }
            _ => item,
        };
        content(notes, setting, &file).map(|value| (member, value))
    };
    // Reads all of them, so that all errors are noted.
    let members: Vec<_> = named.into_iter().map(read).collect();
    members.into_iter().collect()
}

fn content(notes: &Notes, setting: String, item: &Item<'_>) -> Option<Value> {
    if documents::is_missing(notes, item) {
        return None;
    }
    let (path, bytes) =
        notes.named_file(item, "a file of data, in TOML or JSON,", DATA_BYTES_MAX)?;
    let Ok(text) = String::from_utf8(bytes) else {
        item.found(
            format!("{} (it is not UTF-8)", path.display()),
            "a file of data in UTF-8",
            None,
        );
        return None;
    };
    let is_json = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
    let value =
        if is_json { from_json(notes, &setting, &text) } else { from_toml(notes, &setting, &text) };
    notes.data.borrow_mut().push(Data::new(setting, &path, text, is_json));
    value
}

fn from_toml(notes: &Notes, setting: &str, text: &str) -> Option<Value> {
    let (root, errors) = DeTable::parse_recoverable(text);
    syntax::errors(setting, text, &errors).into_iter().for_each(|finding| notes.note(finding));
    let root = DeValue::Table(root.into_inner());
    let value = if errors.is_empty() {
        json(&Item { notes, path: setting.to_owned(), value: &root }, 1)
    } else {
        None
    };
    if let DeValue::Table(root) = root {
        drop_flat(root);
    }
    value
}

fn from_json(notes: &Notes, setting: &str, text: &str) -> Option<Value> {
    // As the reader of TOML does it.
    let whole = text;
    let text = whole.strip_prefix('\u{feff}').unwrap_or(whole);
    let mark_bytes = whole.len() - text.len();
    let value = serde_json::from_str(text)
        .map_err(|error| {
            let line_start: usize =
                text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
            let at = text.floor_char_boundary(line_start + error.column().saturating_sub(1));
            let at = mark_bytes + at;
            // Without the position at the end of the message, which is marked in the text.
            let text = error.to_string();
            let found = format!("JSON: {}", text.split(" at line ").next().unwrap_or(&text));
            notes.note(Finding::new(
                SettingError::new(setting, found, ""),
                Mark::At(at..at + 1),
                None,
            ));
        })
        .ok()?;
    match unfit(&value, setting.to_owned(), 1) {
        None => Some(value),
        Some(setting_error) => {
            notes.note(Finding::elsewhere(setting_error));
            None
        }
    }
}

/// The first value that guests need not be able to read. The bounds are the same as for TOML.
fn unfit(value: &Value, setting: String, depth: usize) -> Option<SettingError> {
    if depth > JSON_DEPTH_MAX {
        return Some(SettingError::new(
            setting,
            "a deeper level",
            format!("at most {JSON_DEPTH_MAX} levels in a policy's config"),
        ));
    }
    match value {
        Value::Number(number) if !number.is_f64() => {
            let exact = number
                .as_i128()
                .is_some_and(|number| (-JSON_WHOLE_MAX..=JSON_WHOLE_MAX).contains(&number));
            (!exact).then(|| {
                SettingError::new(setting, number.to_string(), "a whole number from -2^53 to 2^53")
            })
        }
        Value::Array(elements) => {
            let at = |(index, element)| unfit(element, format!("{setting}[{index}]"), depth + 1);
            elements.iter().enumerate().find_map(at)
        }
        Value::Object(members) => {
            members.iter().find_map(|(key, member)| unfit(member, join(&setting, key), depth + 1))
        }
        _ => None,
    }
}
