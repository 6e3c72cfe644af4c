//! `[policies.*]`: a module, its bounds, and its own configuration. That goes to the guest
//! unchanged, as JSON: from this file, and from files of data whose contents become members of it.

use std::sync::Arc;

use serde_json::{Map, Number, Value};
use toml::de::DeValue;

use super::data;
use super::reader::{Item, Notes, Table, integer};
use super::settings::policies as rows;
use super::{NAMED_MAX, check_name};
use crate::engine::ScriptFile;
use crate::plan::NAME_BYTES_MAX;
use crate::policy::{self, Caps, MeasuredNames, Module};

const NAME_EXPECTED: &str =
    "the name of a label or amount, such as \"plan\": 1 to 64 of a-z 0-9 . _ -";
/// Whole numbers that every guest reads exactly from JSON (policy.wit).
pub(super) const JSON_WHOLE_MAX: i128 = 1 << 53;
/// Levels of a policy's own configuration.
pub(super) const JSON_DEPTH_MAX: usize = 32;

pub(super) fn policies(
    notes: &Notes,
    root: &mut Table<'_>,
    scripts: &[ScriptFile],
) -> Vec<policy::Settings> {
    let scripts: Arc<[String]> = scripts.iter().map(|script| script.name.clone()).collect();
    let table = root.section("policies");
    let named = table.named();
    if named.len() > NAMED_MAX {
        table.found(format!("{} policies", named.len()), format!("at most {NAMED_MAX}"));
    }
    named
        .into_iter()
        .take(NAMED_MAX)
        .filter_map(|(name, item)| policy(notes, name, &item, &scripts))
        .collect()
}

fn policy(
    notes: &Notes,
    name: String,
    item: &Item<'_>,
    scripts: &Arc<[String]>,
) -> Option<policy::Settings> {
    check_name(&name, item);
    let mut table = item.table()?;
    let settings = settings(notes, name, &mut table, &item.path, scripts);
    table.finish();
    settings
}

/// The keys of a policy, in `table`. `path` is the section that they belong to.
pub(super) fn settings(
    notes: &Notes,
    name: String,
    table: &mut Table<'_>,
    path: &str,
    scripts: &Arc<[String]>,
) -> Option<policy::Settings> {
    // All settings are read before the first return: what is not read counts as unknown.
    let cpu_time = table.read(&rows::policy::CPU_TIME);
    let memory_bytes = table.read(&rows::policy::MEMORY);
    let isolated = table.read(&rows::policy::ISOLATION);
    let measured = measured(table);
    let caps = super::caps::caps(table);
    let module = module(notes, table, &caps);
    let config = match table.item(&rows::policy::CONFIG) {
        Some(item) => item.table().and_then(|_| json(&item, 0)),
        None => Some(Value::Object(Map::new())),
    };
    let files = data::files(notes, &name, &format!("{path}.config"), table, config.as_ref());
    // Without what could not be read, the policy would report errors that are not errors.
    let config_json = whole(config?, files?).to_string().into();
    Some(policy::Settings {
        name,
        module: module?,
        cpu_time,
        memory_bytes,
        isolated,
        config_json,
        scripts: Arc::clone(scripts),
        measured,
        caps,
    })
}

/// `metrics = { labels = ["plan"], amounts = ["input-tokens"] }`.
fn measured(table: &mut Table<'_>) -> MeasuredNames {
    let mut table = table.section("metrics");
    let mut names = |setting| {
        let items = table.items(setting);
        let read = items.iter().filter_map(|item| item.parsed(NAME_EXPECTED, name_of_label));
        read.collect()
    };
    let measured = MeasuredNames {
        labels: names(&rows::metrics::LABELS),
        amounts: names(&rows::metrics::AMOUNTS),
    };
    table.finish();
    measured
}

/// The name of a label or amount, if the contract allows it.
fn name_of_label(text: &str) -> Option<String> {
    let plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
    let fits = (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(plain);
    fits.then(|| text.to_owned())
}

fn whole(mut config: Value, files: Vec<(String, Value)>) -> Value {
    if let Some(members) = config.as_object_mut() {
        members.extend(files);
    }
    config
}

fn module(notes: &Notes, table: &mut Table<'_>, caps: &Caps) -> Option<Module> {
    match (table.item(&rows::policy::USE), table.item(&rows::policy::WASM)) {
        (Some(shipped), None) => {
            let words: Vec<(&str, String)> =
                policy::shipped().iter().map(|name| (*name, (*name).to_owned())).collect();
            shipped.choice(&words).map(Module::Shipped)
        }
        (None, Some(file)) => {
            // The message names the cap.
            let (what, bytes_max) = ("a .wasm file (`module_bytes`)", caps.module_bytes as u64);
            let (path, bytes) = notes.named_file(&file, what, bytes_max)?;
            Some(Module::File { path, bytes: Arc::from(bytes) })
        }
        (None, None) => {
            table.missing("use", "`use = \"client-ip\"` for a built-in policy, or `wasm = \"my_policy.wasm\"` for a file");
            None
        }
        (Some(_), Some(file)) => {
            file.found_key("both `use` and `wasm`", "one of the two", None);
            None
        }
    }
}

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
