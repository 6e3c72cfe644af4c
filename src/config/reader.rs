//! Walks the TOML tree: takes known keys, turns values into types, and notes every error instead
//! of stopping at the first.
//!
//! Knows no section: those are in the files next to this one. Here a setting is its path, such as
//! `server.limits.connections`; its position in the file is known to [`super::source`].

use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::de::{DeTable, DeValue};

use super::finding::{Finding, Mark, join};
use super::settings::{Choice, Else, Is, Kind, List, Setting, Size, Time, Whole};
use super::source::Data;
use crate::reload::Watch;
use crate::telemetry::SettingError;

/// Maximum number of characters that a message repeats of a text that was found.
const FOUND_CHARS_MAX: usize = 60;
/// Maximum number of known keys or names that a message lists.
const LISTED_MAX: usize = 16;

/// What is gathered while reading.
#[derive(Debug)]
pub(super) struct Notes {
    findings: RefCell<Vec<Finding>>,
    pub(super) watched: RefCell<Vec<Watch>>,
    pub(super) data: RefCell<Vec<Data>>,
    /// The settings that name files, with what was read there.
    pub(super) contents: RefCell<Vec<(String, Watch)>>,
    /// The folder that paths in the file are relative to.
    pub(super) folder: PathBuf,
    /// A file that settings name, and the one that is read in its place.
    pub(super) instead: Option<[PathBuf; 2]>,
    /// Files that settings name, with the contents to use instead of what is there.
    pub(super) given: Vec<GivenFiles>,
    /// Documents that are fetched.
    pub(super) documents: RefCell<Vec<crate::fetch::Settings>>,
}

/// A file's path, and a content for it.
pub(super) type GivenFiles = (PathBuf, Vec<u8>);

/// A value and its path.
#[derive(Clone, Debug)]
pub(super) struct Item<'a> {
    pub(super) notes: &'a Notes,
    pub(super) path: String,
    pub(super) value: &'a DeValue<'a>,
}

/// A table whose keys are taken one after the other. Keys that are left at [`Table::finish`] are
/// unknown. A missing table has no keys.
#[derive(Debug)]
pub(super) struct Table<'a> {
    notes: &'a Notes,
    pub(super) path: String,
    table: Option<&'a DeTable<'a>>,
    taken: Vec<&'static str>,
}

impl Notes {
    pub(super) fn new(folder: &Path, watch: Option<Watch>) -> Self {
        let watched = RefCell::new(watch.into_iter().collect());
        Self {
            findings: RefCell::default(),
            watched,
            data: RefCell::default(),
            contents: RefCell::default(),
            folder: folder.to_path_buf(),
            instead: None,
            given: Vec::new(),
            documents: RefCell::default(),
        }
    }

    pub(super) fn add(&self, error: SettingError, mark: Mark, help: Option<String>) {
        self.note(Finding::new(error, mark, help));
    }

    pub(super) fn note(&self, finding: Finding) {
        self.findings.borrow_mut().push(finding);
    }

    pub(super) fn into_parts(self) -> (Vec<Finding>, Vec<Data>, Vec<Watch>) {
        (self.findings.into_inner(), self.data.into_inner(), self.watched.into_inner())
    }
}

impl<'a> Table<'a> {
    pub(super) fn new(
        notes: &'a Notes,
        path: impl Into<String>,
        table: Option<&'a DeTable<'a>>,
    ) -> Self {
        Self { notes, path: path.into(), table, taken: Vec::new() }
    }

    pub(super) fn is_present(&self) -> bool {
        self.table.is_some()
    }

    pub(super) fn take(&mut self, key: &'static str) -> Option<Item<'a>> {
        self.taken.push(key);
        let value = self.table?.get(key)?.get_ref();
        Some(Item { notes: self.notes, path: join(&self.path, key), value })
    }

    /// A setting as written, for those that the table of settings alone can't read.
    pub(super) fn item<K>(&mut self, setting: &Setting<K>) -> Option<Item<'a>> {
        self.take(setting.key)
    }

    /// A setting's value. Its default where it is missing or wrong, which is noted.
    pub(super) fn read<K: Kind>(&mut self, setting: &Setting<Is<K>>) -> K::Value {
        let Is { kind, default } = &setting.kind;
        self.item(setting).and_then(|item| kind.read(&item)).unwrap_or_else(|| default.clone())
    }

    /// The value of a setting without a default.
    pub(super) fn read_if_any<K: Kind>(&mut self, setting: &Setting<Else<K>>) -> Option<K::Value> {
        self.item(setting).and_then(|item| setting.kind.kind.read(&item))
    }

    /// A setting that must be there.
    pub(super) fn required<K: Kind>(&mut self, setting: &Setting<Else<K>>) -> Option<Item<'a>> {
        self.need(setting.key, &setting.kind.kind.expected())
    }

    /// The elements of an array; none where it is missing.
    pub(super) fn items(&mut self, setting: &Setting<List>) -> Vec<Item<'a>> {
        self.list(setting.key, setting.kind.max)
    }

    /// An array that must be there.
    pub(super) fn required_list(&mut self, setting: &Setting<List>) -> Option<Item<'a>> {
        self.need(setting.key, &setting.kind.expected())
    }

    /// The entries of a table whose keys the operator chooses. `what` they are called together.
    pub(super) fn entries(
        &mut self,
        setting: &Setting<List>,
        what: &str,
    ) -> Vec<(String, Item<'a>)> {
        let table = self.section(setting.key);
        let (mut entries, max) = (table.named(), setting.kind.max);
        if entries.len() > max {
            table.found(format!("{} {what}", entries.len()), format!("at most {max}"));
            entries.truncate(max);
        }
        entries
    }

    /// Whether the key is present, valid or not.
    pub(super) fn has(&self, key: &str) -> bool {
        self.table.is_some_and(|table| table.get(key).is_some())
    }

    /// A key that must be there.
    pub(super) fn need(&mut self, key: &'static str, expected: &str) -> Option<Item<'a>> {
        let item = self.take(key);
        if item.is_none() {
            self.missing(key, expected);
        }
        item
    }

    pub(super) fn missing(&self, key: &str, expected: &str) {
        self.notes.add(
            SettingError::new(join(&self.path, key), "nothing", expected),
            Mark::Value,
            None,
        );
    }

    /// An error in the table as a whole.
    pub(super) fn found(&self, found: impl Into<String>, expected: impl Into<String>) {
        self.notes.add(SettingError::new(self.path.clone(), found, expected), Mark::Value, None);
    }

    /// A key that was taken and has no effect here.
    pub(super) fn useless(&self, key: &str, expected: &str) {
        if self.has(key) {
            self.notes.add(
                SettingError::new(
                    join(&self.path, key),
                    format!("the key `{key}`, which does nothing here"),
                    expected,
                ),
                Mark::Key,
                None,
            );
        }
    }

    /// A table below this one; an empty one where it is missing or not a table.
    pub(super) fn section(&mut self, key: &'static str) -> Self {
        let path = join(&self.path, key);
        let found = self.take(key).and_then(|item| item.table());
        found.unwrap_or_else(|| Table::new(self.notes, path, None))
    }

    /// The elements of an array; none where it is missing.
    pub(super) fn list(&mut self, key: &'static str, count_max: usize) -> Vec<Item<'a>> {
        self.take(key).map(|item| item.list(count_max)).unwrap_or_default()
    }

    /// All entries of this table as (name, item), for tables whose keys are names that the operator
    /// chooses.
    pub(super) fn named(&self) -> Vec<(String, Item<'a>)> {
        let entries = self.table.into_iter().flatten();
        let item =
            |key: &str, value| Item { notes: self.notes, path: join(&self.path, key), value };
        entries
            .map(|(key, value)| (key.get_ref().to_string(), item(key.get_ref(), value.get_ref())))
            .collect()
    }

    /// The entries of a table that was taken before.
    pub(super) fn below(&self, key: &str) -> Vec<(String, Item<'a>)> {
        let table = self
            .table
            .and_then(|table| table.get(key))
            .and_then(|value| value.get_ref().as_table());
        Table::new(self.notes, join(&self.path, key), table).named()
    }

    /// Keys that were not taken are unknown, and errors: a misspelt limit would be no limit.
    pub(super) fn finish(self) {
        let unknown = self
            .table
            .into_iter()
            .flatten()
            .map(|(key, _)| key.get_ref())
            .filter(|key| !self.taken.contains(&key.as_ref()));
        for key in unknown {
            let place = if self.path.is_empty() {
                "a section or key of the file".to_owned()
            } else {
                format!("a key of `{}`", self.path)
            };
            let error = SettingError::new(
                join(&self.path, key),
                format!("the unknown key {}", quoted(key)),
                place,
            );
            let help = self
                .dotted_name(key)
                .or_else(|| self.setting_of_policy(key))
                .unwrap_or_else(|| hint(key, &self.taken, "key"));
            self.notes.add(error, Mark::Key, Some(help));
        }
    }
}

impl Table<'_> {
    /// A hint for `policies.p.limits`, where a key of the policy's own configuration was meant.
    fn setting_of_policy(&self, key: &str) -> Option<String> {
        let (section, name) = self.path.split_once('.')?;
        let is_near = nearest(key, &self.taken).is_some();
        (section == "policies" && !name.contains('.') && !is_near)
            .then(|| format!("a policy's own settings are keys of `config`: `config.{key} = ...`"))
    }

    /// A hint for `upstreams.api.v1`, where an upstream was to be called `api.v1`: the unknown key
    /// `v1` is a table with keys that belong to this one.
    fn dotted_name(&self, key: &str) -> Option<String> {
        let (section, name) = self.path.split_once('.')?;
        let is_named = ["upstreams", "policies"].contains(&section) && !name.contains('.');
        let inner = self.table?.get(key)?.get_ref().as_table()?;
        let is_meant = self.taken.iter().any(|known| inner.get(*known).is_some());
        (is_named && is_meant)
            .then(|| format!("write a name with a dot in quotes: `{section}.\"{name}.{key}\"`"))
    }
}

impl<'a> Item<'a> {
    pub(super) fn wrong(&self, expected: impl Into<String>) {
        self.wrong_with(expected, None);
    }

    pub(super) fn wrong_with(&self, expected: impl Into<String>, help: Option<String>) {
        self.found(describe(self.value), expected, help);
    }

    /// A value that no setting can have. The module that uses this one may know a narrower range.
    pub(super) fn wrong_in_general(&self, expected: impl Into<String>) {
        let error = SettingError::new(self.path.clone(), describe(self.value), expected);
        self.notes.note(Finding { general: true, ..Finding::new(error, Mark::Value, None) });
    }

    /// What the setting names can't be read.
    pub(super) fn absent(&self, found: impl Into<String>, expected: impl Into<String>) {
        let error = SettingError::new(self.path.clone(), found, expected);
        self.notes.note(Finding { is_absent: true, ..Finding::new(error, Mark::Value, None) });
    }

    /// An error with a text of its own for what was found.
    pub(super) fn found(
        &self,
        found: impl Into<String>,
        expected: impl Into<String>,
        help: Option<String>,
    ) {
        self.notes.add(SettingError::new(self.path.clone(), found, expected), Mark::Value, help);
    }

    /// An error in the key rather than in its value.
    pub(super) fn wrong_key(&self, found: &str, expected: impl Into<String>) {
        self.found_key(quoted(found), expected, None);
    }

    /// A key that is not allowed here, whatever its value.
    pub(super) fn found_key(
        &self,
        found: impl Into<String>,
        expected: impl Into<String>,
        help: Option<String>,
    ) {
        self.notes.add(SettingError::new(self.path.clone(), found, expected), Mark::Key, help);
    }

    pub(super) fn table(&self) -> Option<Table<'a>> {
        let DeValue::Table(table) = self.value else {
            self.wrong("a table");
            return None;
        };
        Some(Table::new(self.notes, self.path.clone(), Some(table)))
    }

    pub(super) fn list(&self, count_max: usize) -> Vec<Item<'a>> {
        let DeValue::Array(array) = self.value else {
            let is_section = self.value.is_table() && !self.path.contains('.');
            let help = is_section.then(|| {
                format!("write `[[{}]]`, with two brackets: there can be several", self.path)
            });
            self.wrong_with("an array", help);
            return Vec::new();
        };
        if array.len() > count_max {
            self.found(format!("{} elements", array.len()), format!("at most {count_max}"), None);
        }
        let element = |(index, value): (usize, &'a toml::Spanned<DeValue<'a>>)| Item {
            notes: self.notes,
            path: format!("{}[{index}]", self.path),
            value: value.get_ref(),
        };
        array.iter().take(count_max).enumerate().map(element).collect()
    }

    pub(super) fn text(&self, expected: &str) -> Option<&'a str> {
        let text = self.value.as_str();
        if text.is_none() {
            self.wrong(expected);
        }
        text
    }

    /// A text that `read` understands.
    pub(super) fn parsed<T>(
        &self,
        expected: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let parsed = read(self.text(expected)?);
        if parsed.is_none() {
            self.wrong(expected);
        }
        parsed
    }

    pub(super) fn whole(&self, range: RangeInclusive<u64>) -> Option<u64> {
        Whole(range).read(self)
    }

    pub(super) fn duration(&self, range: RangeInclusive<Duration>) -> Option<Duration> {
        Time(range).read(self)
    }

    pub(super) fn size(&self, range: RangeInclusive<u64>) -> Option<u64> {
        Size(range).read(self)
    }

    /// One of a closed set of words.
    pub(super) fn choice<T: Clone + PartialEq + Sync>(&self, words: &[(&str, T)]) -> Option<T> {
        Choice(words).read(self)
    }

    /// Like [`choice`](Self::choice), of more words than a message can list. `what` says what they
    /// name.
    pub(super) fn one_of<T: Copy>(&self, words: &[(&str, T)], what: &str) -> Option<T> {
        let text = self.text(what)?;
        let chosen = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
        if chosen.is_none() {
            let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            self.wrong_with(what, Some(hint(text, &known, "name")));
        }
        chosen
    }

    /// The name of something that the file defines elsewhere.
    pub(super) fn reference(&self, known: &[String], what: &str) -> Option<String> {
        let name = self.text(&format!("the name of {what}"))?;
        if known.iter().any(|known| known == name) {
            return Some(name.to_owned());
        }
        self.wrong_with(
            format!("the name of {what} that the file defines"),
            Some(hint(name, known, "name")),
        );
        None
    }
}

pub(super) fn integer(value: &DeValue<'_>) -> Option<i128> {
    value.as_integer().and_then(|number| i128::from_str_radix(number.as_str(), number.radix()).ok())
}

/// The value, short enough for a message.
pub(super) fn describe(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => quoted(text),
        DeValue::Integer(number) => shortened(&number.to_string()),
        DeValue::Float(number) => shortened(&number.to_string()),
        DeValue::Boolean(boolean) => boolean.to_string(),
        DeValue::Datetime(datetime) => datetime.to_string(),
        DeValue::Array(_) => "an array".into(),
        DeValue::Table(_) => "a table".into(),
    }
}

pub(super) fn quoted(text: &str) -> String {
    format!("{:?}", shortened(&super::secrets::without_user_infos(text)))
}

fn shortened(text: &str) -> String {
    let mut short: String = text.chars().take(FOUND_CHARS_MAX).collect();
    if short.len() < text.len() {
        short.push_str("...");
    }
    short
}

/// The known word that was probably meant: one whose edit distance is at most a third of its
/// length, so that no far-fetched one is suggested.
pub(super) fn nearest<'a, S: AsRef<str>>(word: &str, known: &'a [S]) -> Option<&'a str> {
    let word = shortened(word);
    let distance = |known: &str| strsim::damerau_levenshtein(&word, known);
    let best = known.iter().map(AsRef::as_ref).min_by_key(|known| distance(known))?;
    (distance(best) <= (best.chars().count() / 3).max(1)).then_some(best)
}

fn hint<S: AsRef<str>>(word: &str, known: &[S], what: &str) -> String {
    if let Some(nearest) = nearest(word, known) {
        return format!("the nearest known {what} is `{nearest}`");
    }
    let mut listed: Vec<&str> = known.iter().map(AsRef::as_ref).take(LISTED_MAX).collect();
    if known.len() > LISTED_MAX {
        listed.push("...");
    }
    if listed.is_empty() {
        format!("there is no known {what} here")
    } else {
        format!("known here: {}", listed.join(", "))
    }
}
