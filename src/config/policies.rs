//! `[policies.*]`: a module, its bounds, and its own configuration. That goes to the guest
//! unchanged, as JSON: from this file, and from files of data whose contents become members of it.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::policy_json::json;
use super::reader::{Item, Notes, Table, quoted};
use super::settings::policies as rows;
use super::{NAMED_MAX, check_name, data, files};
use crate::engine::ScriptFile;
use crate::plan::NAME_BYTES_MAX;
use crate::policy::{self, Caps, MeasuredNames, Module};

const NAME_EXPECTED: &str =
    "the name of a label or amount, such as \"plan\": 1 to 64 of a-z 0-9 . _ -";

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
        (Some(named), None) => built_in(notes, &named),
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

/// The built-in policy that `use` names.
fn built_in(notes: &Notes, named: &Item<'_>) -> Option<Module> {
    let known = policy::shipped();
    let text = named.value.as_str().unwrap_or_default();
    if !known.contains(&text) && is_path(text) {
        // A file was meant, which is another setting.
        let path = notes.folder.join(text);
        let missing = if files::is_plain(&path) { "" } else { ", where no file is" };
        let help = format!(
            "a module in a file is named by `wasm`: `wasm = {}` is {}{missing}",
            quoted(text),
            path.display()
        );
        let expected = format!("the name of a built-in policy: one of {}", known.join(", "));
        named.wrong_with(expected, Some(help));
        return None;
    }
    let words: Vec<(&str, String)> = known.iter().map(|name| (*name, (*name).to_owned())).collect();
    named.choice(&words).map(Module::Shipped)
}

fn is_path(text: &str) -> bool {
    text.contains('/') || Path::new(text).extension().is_some_and(|ending| ending == "wasm")
}
