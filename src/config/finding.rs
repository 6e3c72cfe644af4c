//! An error in a file, and where it is: at a setting, whose name is its path, such as
//! `server.limits.connections`. Knows neither how files are read nor how errors are shown.

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
}

impl Finding {
    pub(super) fn new(error: SettingError, mark: Mark, help: Option<String>) -> Self {
        Self { error, mark, help, general: false }
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

/// `path.key`, as every module writes a setting.
pub(super) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}
