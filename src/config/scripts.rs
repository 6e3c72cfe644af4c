//! `[store] scripts`: a folder of Lua files, each an algorithm of the operator's own. They are read
//! here, and tested when the configuration is built.

use std::fs;
use std::path::Path;

use super::reader::{Item, Notes, Table};
use super::settings::store::store as rows;
use super::{files, units};
use crate::engine::{SCRIPT_BYTES_MAX, SCRIPTS_MAX, ScriptFile, is_script_name};
use crate::limit;
use crate::reload::Watch;

/// Maximum number of names in the folder: more are an error, as where a whole disk is named.
const ENTRIES_MAX: usize = 10_000;

/// The folder's `.lua` files, in the order of their names. Hidden ones are skipped: editors make
/// them.
pub(super) fn scripts(notes: &Notes, store: &mut Table<'_>) -> Vec<ScriptFile> {
    let Some(item) = store.item(&rows::SCRIPTS) else { return Vec::new() };
    let Some(folder) = item.text(rows::SCRIPTS.expected()).map(|path| notes.folder.join(path))
    else {
        return Vec::new();
    };
    // Before the folder is read, so that a file added meanwhile is a change.
    notes.watched.borrow_mut().push(Watch::folder(&folder));
    let names = match names(&folder) {
        Ok(names) => names,
        Err(cause) => {
            item.found(format!("{} ({cause})", folder.display()), rows::SCRIPTS.expected(), None);
            return Vec::new();
        }
    };
    if names.len() > SCRIPTS_MAX {
        item.found(format!("{} scripts", names.len()), format!("at most {SCRIPTS_MAX}"), None);
        return Vec::new();
    }
    names.iter().filter_map(|name| script(notes, &item, &folder, name)).collect()
}

fn names(folder: &Path) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for (count, entry) in (1..).zip(fs::read_dir(folder).map_err(|error| files::cause(&error))?) {
        if count > ENTRIES_MAX {
            return Err(format!("it has more than {ENTRIES_MAX} files"));
        }
        let name =
            entry.map_err(|error| files::cause(&error))?.file_name().to_string_lossy().into_owned();
        if let Some(name) = name.strip_suffix(".lua").filter(|name| !name.starts_with('.')) {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

fn script(notes: &Notes, item: &Item<'_>, folder: &Path, name: &str) -> Option<ScriptFile> {
    let path = folder.join(format!("{name}.lua"));
    let wrong = |found: String, expected: String| {
        item.found(format!("{}: {found}", path.display()), expected, None)
    };
    if !is_script_name(name) {
        wrong(
            format!("the name {name:?}"),
            "1 to 64 of a-z 0-9 _ before `.lua`, a letter first".into(),
        );
        return None;
    }
    if limit::shipped_names().contains(&name) || name == "script" {
        wrong(format!("the name `{name}`"), "a name that no algorithm of Weir has".into());
        return None;
    }
    let read = if files::is_plain(&path) {
        files::read(&path, SCRIPT_BYTES_MAX)
    } else {
        Err("it is not a file".into())
    };
    let bytes = match read {
        Ok(bytes) => bytes,
        Err(cause) => {
            notes.watched.borrow_mut().push(Watch::now(&path));
            wrong(cause, format!("a Lua file of at most {}", units::show_size(SCRIPT_BYTES_MAX)));
            return None;
        }
    };
    notes.watched.borrow_mut().push(Watch::read(&path, &bytes));
    match String::from_utf8(bytes) {
        Ok(text) => Some(ScriptFile { name: name.to_owned(), path, text }),
        Err(_) => {
            wrong("it is not UTF-8".into(), "a Lua file in UTF-8".into());
            None
        }
    }
}
