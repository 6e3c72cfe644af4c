//! An error in a file, and where it is: at a setting, whose name is its path, such as
//! `server.limits.connections`. Knows neither how files are read nor how errors are shown.

use std::borrow::Cow;
use std::ops::Range;

use crate::telemetry::SettingError;

/// An error, and how to show it.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    pub(super) error: SettingError,
    pub(super) mark: Mark,
    pub(super) help: Option<String>,
    /// The expected range is only that of all numbers in the file. The module that uses the setting
    /// knows a narrower one.
    pub(super) general: bool,
    /// A file or a variable that the setting names can't be read. Nothing else is wrong with it.
    pub(super) is_absent: bool,
}

impl Finding {
    pub(super) fn new(error: SettingError, mark: Mark, help: Option<String>) -> Self {
        Self { error, mark, help, general: false, is_absent: false }
    }

    /// One that another module, or a guest, has found.
    pub(super) fn elsewhere(error: SettingError) -> Self {
        let mark = if error.in_key { Mark::Key } else { Mark::Value };
        Self::new(error, mark, None)
    }
}

/// Which part of a setting is marked.
#[derive(Clone, Debug)]
pub(super) enum Mark {
    /// Its value, or the nearest setting above it where it is missing.
    Value,
    /// Its key.
    Key,
    /// These bytes of the file, for syntax errors.
    At(Range<usize>),
}

/// The position of a setting, in bytes of the file.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) key: Range<usize>,
    pub(super) value: Range<usize>,
}

/// `path.key`, as every module writes a setting. A key with a dot or another sign is in quotes, as
/// in TOML: `upstreams."a.b"` is no key `b` of `upstreams.a`.
pub(super) fn join(path: &str, key: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let key = if !key.is_empty() && key.chars().all(is_bare) {
        Cow::Borrowed(key)
    } else {
        Cow::Owned(format!("{key:?}"))
    };
    if path.is_empty() { key.into_owned() } else { format!("{path}.{key}") }
}

/// A setting's path without quotes, as a guest writes it.
pub(super) fn unquoted(path: &str) -> String {
    path.replace(['"', '\\'], "")
}
