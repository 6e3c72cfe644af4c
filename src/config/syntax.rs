//! What is wrong with a text that is not TOML, in the words of the other errors.

use std::ops::Range;

use super::brackets;
use super::finding::{Finding, Mark};
use crate::telemetry::SettingError;

/// The only TOML error after which the tree still holds everything else.
pub(super) const DUPLICATE: &str = "duplicate key";

/// A syntax error. `setting` is the setting whose value is the whole `text`.
fn finding(setting: &str, text: &str, error: &toml::de::Error) -> Finding {
    let (found, expected) =
        error.message().split_once(", expected ").unwrap_or((error.message(), ""));
    let mark = error.span().map_or(Mark::Value, Mark::At);
    let help = if found.contains("with a dotted key") {
        let help = "a dot in a key begins a table: write a name with a dot in quotes, as in `\"path.id\" = 5`";
        Some(help.to_owned())
    } else if found == DUPLICATE {
        let line = error.span().and_then(|span| first_line(text, span));
        line.map(|line| format!("it is set in line {line} already"))
    } else {
        None
    };
    Finding::new(SettingError::new(setting, format!("TOML: {found}"), expected), mark, help)
}

/// The syntax errors of `text`, without those that only follow from an unclosed value.
pub(super) fn errors(setting: &str, text: &str, found: &[toml::de::Error]) -> Vec<Finding> {
    let torn = found.iter().any(|error| error.message() != DUPLICATE);
    let unclosed = if torn { brackets::unclosed(text) } else { None };
    let before = |error: &&toml::de::Error| {
        let start = error.span().map(|span| span.start);
        unclosed
            .as_ref()
            .is_none_or(|unclosed| start.is_some_and(|start| start < unclosed.at.start))
    };
    let mut findings: Vec<Finding> =
        found.iter().filter(before).map(|error| finding(setting, text, error)).collect();
    findings.extend(unclosed.map(|brackets::UnclosedBracket { at, closing }| {
        let opening = text.get(at.clone()).unwrap_or_default();
        let setting_error = SettingError::new(
            setting,
            format!("TOML: `{opening}` is not closed"),
            format!("`{closing}` before the next setting"),
        );
        Finding::new(setting_error, Mark::At(at), None)
    }));
    findings
}

/// The line in which the key or section at `again` is written for the first time, if it has a line
/// of its own.
fn first_line(text: &str, again: Range<usize>) -> Option<usize> {
    let start = text.get(..again.start)?.rfind('\n')? + 1;
    let (before, here) = text.split_at_checked(start)?;
    let here = here.lines().next()?.trim();
    let mut earlier = (1..).zip(before.lines().map(str::trim));
    if here.starts_with('[') {
        return earlier.find(|(_, line)| *line == here).map(|(number, _)| number);
    }
    // With its dots, as it is written.
    let key = |line: &str| line.split_once('=').map(|(key, _)| key.trim().to_owned());
    let again = key(here)?;
    let mut first = None;
    for (number, line) in earlier {
        if line.starts_with('[') {
            first = None;
        } else if first.is_none() && key(line).as_ref() == Some(&again) {
            first = Some(number);
        }
    }
    first
}
