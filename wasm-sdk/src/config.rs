//! Reads a policy's configuration into its type, with the path of every mistake. Whatever doesn't
//! fit is noted and passed over, and the rest is read again.

use serde::de::DeserializeOwned;

use crate::Mistake;
use crate::json::{Error, Json, Problem, Reader, Step, Track, shown};
use crate::mistakes::{MISTAKES_MAX, message};

/// Replaces a table that has reported its own mistakes, so that the rest can be read.
pub(crate) const REPORTED: &str = "\u{1f}reported";
/// How a message shows it.
const REPORTED_SHOWN: &str = "\\u{1f}reported";
/// The same as JSON.
const REPORTED_JSON: &str = "\"\\u001freported\"";
/// Separates the mistakes that a table reports through serde's single message, and a path from its
/// message.
pub(crate) const RECORD: char = '\u{1e}';
const UNIT: char = '\u{1f}';

/// The configuration, as far as it could be read, and all mistakes found.
pub(crate) fn read<T: DeserializeOwned>(text: &str) -> (Option<T>, Vec<Mistake>) {
    match Json::parse(text) {
        Ok(value) => read_value(&value),
        Err(at) => {
            let message = message(&format_args!("a mistake at its byte {at}"), &"JSON");
            (None, vec![Mistake { path: String::new(), message }])
        }
    }
}

/// The same for a value that is already parsed.
pub(crate) fn read_value<T: DeserializeOwned>(value: &Json<'_>) -> (Option<T>, Vec<Mistake>) {
    let mut reading = Reading {
        track: Track { stand_in: REPORTED_JSON, ..Track::default() },
        mistakes: Vec::new(),
        lacks_list: false,
    };
    loop {
        match T::deserialize(Reader::new(value, &mut reading.track)) {
            Ok(config) => {
                return (Some(config).filter(|_| !reading.lacks_list), reading.mistakes);
            }
            Err(error) => {
                if !reading.goes_on(error) {
                    return (None, reading.mistakes);
                }
            }
        }
    }
}

struct Reading<'t> {
    track: Track<'t>,
    mistakes: Vec<Mistake>,
    /// A list was passed over. What the policy would say about the rest refers to no configuration
    /// that somebody has written: a list may be all that there is of something.
    lacks_list: bool,
}

impl Reading<'_> {
    /// Notes what didn't fit. Returns whether the rest can be read without it.
    fn goes_on(&mut self, error: Error) -> bool {
        let Track { path, removed, replaced, .. } = &mut self.track;
        let mut path = std::mem::take(path);
        let at = shown(&path);
        let text = match error.into_problem() {
            Problem::Text(text) => text,
            Problem::Missing(field) => {
                let known = join(&at, field);
                if !removed.iter().any(|removed| shown(removed) == known) {
                    let expected = "this setting, as it has no default";
                    let message = message(&format_args!("no `{field}`"), &expected);
                    self.mistakes.push(Mistake { path: at, message });
                }
                return false;
            }
        };
        // An enum or a flattened struct, which serde reads once more by itself, found the stand-in
        // of a table that has reported its own mistakes.
        if !self.mistakes.is_empty() && text.contains(REPORTED_SHOWN) {
            return false;
        }
        let places = match text.strip_prefix(RECORD) {
            Some(packed) => {
                self.mistakes.extend(unpack(&at, packed));
                replaced
            }
            None => {
                self.mistakes.push(Mistake { path: at, message: text });
                // An item of a list takes the whole list with it: the others' indices would no
                // longer be those in the file.
                while path.pop_if(|last| matches!(last, Step::Index(_))).is_some() {
                    self.lacks_list = true;
                }
                if !matches!(path.last(), Some(Step::Key(_))) {
                    return false;
                }
                removed
            }
        };
        let news = !places.contains(&path);
        places.push(path);
        news && self.mistakes.len() < MISTAKES_MAX
    }
}

/// Mistakes for the limits that wait for a policy to settle them, in policies that never do. A
/// limit is what [`Limits`](crate::Limits) reads: a table with an `algorithm`.
pub(crate) fn unsettled(text: &str) -> Vec<Mistake> {
    let mut mistakes = Vec::new();
    // Usually there is none. A large table is then not read twice.
    if (text.contains("by_settle") || text.contains("debt"))
        && let Ok(value) = Json::parse(text)
    {
        find_unsettled("", &value, &mut mistakes);
    }
    mistakes
}

fn find_unsettled(at: &str, value: &Json<'_>, mistakes: &mut Vec<Mistake>) {
    for (index, item) in value.items().enumerate() {
        find_unsettled(&format!("{at}[{index}]"), &item, mistakes);
    }
    let mut mistake = |key: &str, found: Json<'_>, expected: &str| {
        if value.get("algorithm").is_some() && mistakes.len() < MISTAKES_MAX {
            let message = message(&found, &expected);
            mistakes.push(Mistake { path: join(at, key), message });
        }
    };
    if let Some(refund) = value.get("refund").filter(|refund| refund.as_text() == "\"by_settle\"") {
        let expected = "another refund: this policy never settles, so nothing would be given back";
        mistake("refund", refund, expected);
    }
    if let Some(debt) = value.get("debt") {
        mistake("debt", debt, "none: this policy never settles, so nothing would be owed");
    }
    for (key, member) in value.members() {
        find_unsettled(&join(at, &key), &member, mistakes);
    }
}

/// Several mistakes in one serde message, for [`read_value`] to unpack. Their paths are relative to
/// the table.
pub(crate) fn pack(mistakes: &[Mistake]) -> String {
    let clean = |text: &str| text.replace([RECORD, UNIT], "?");
    mistakes
        .iter()
        .map(|mistake| format!("{RECORD}{}{UNIT}{}", clean(&mistake.path), clean(&mistake.message)))
        .collect()
}

fn unpack(at: &str, packed: &str) -> Vec<Mistake> {
    let records = packed.split(RECORD).filter_map(|record| record.split_once(UNIT));
    records
        .map(|(path, message)| Mistake { path: join(at, path), message: message.to_owned() })
        .collect()
}

/// `limits` and `[0].quota`, or `limits[0]` and `quota`.
pub(crate) fn join(parent: &str, child: &str) -> String {
    let dot =
        if parent.is_empty() || child.is_empty() || child.starts_with('[') { "" } else { "." };
    format!("{parent}{dot}{child}")
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Config {
        #[serde(default)]
        prefix: u8,
        #[serde(default)]
        words: Vec<String>,
        #[serde(default)]
        inner: Inner,
        #[allow(dead_code, reason = "only its absence matters")]
        needed: bool,
    }

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(rename_all = "snake_case", deny_unknown_fields)]
    struct Inner {
        #[serde(default)]
        kind: Kind,
    }

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(rename_all = "snake_case")]
    enum Kind {
        #[default]
        First,
        Second,
    }

    fn mistakes(text: &str) -> Vec<(String, String)> {
        let (_, mistakes) = read::<Config>(text);
        mistakes.into_iter().map(|mistake| (mistake.path, mistake.message)).collect()
    }

    fn pair(path: &str, message: &str) -> (String, String) {
        (path.to_owned(), message.to_owned())
    }

    #[test]
    fn a_configuration_without_errors_is_read() {
        let (config, mistakes) = read::<Config>(
            r#"{"prefix": 64, "words": ["a"], "inner": {"kind": "second"}, "needed": true}"#,
        );
        let config = config.unwrap();
        assert_eq!(
            (config.prefix, config.words.as_slice(), config.inner.kind),
            (64, &["a".to_owned()][..], Kind::Second)
        );
        assert!(mistakes.is_empty());
    }

    #[test]
    fn all_errors_come_at_once_each_with_its_path() {
        let found =
            mistakes(r#"{"prefix": "x", "wrods": [], "inner": {"kind": "secnd"}, "needed": true}"#);
        let expected = [
            pair(
                "inner.kind",
                "found the unknown word `secnd`, expected `first` or `second`; `second` is near",
            ),
            pair("prefix", "found \"x\", expected a whole number, 0 or more"),
            pair(
                "wrods",
                "found the unknown key `wrods`, expected one of `prefix`, `words`, `inner`, `needed`; `words` is near",
            ),
        ];
        let mut found = found;
        found.sort();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_missing_setting_is_named_where_it_is_missing() {
        assert_eq!(
            mistakes("{}"),
            [pair("", "found no `needed`, expected this setting, as it has no default")]
        );
        assert_eq!(
            mistakes(r#"{"needed": 3}"#),
            [pair("needed", "found 3, expected true or false")]
        );
    }

    #[test]
    fn elements_of_a_list_are_named_with_their_position() {
        assert_eq!(
            mistakes(r#"{"needed": true, "words": ["a", 7]}"#),
            [pair("words[1]", "found 7, expected a string")]
        );
        let mut found = mistakes(r#"{"needed": 1, "words": ["a", 7], "inner": {"kind": "x"}}"#);
        found.sort();
        let at: Vec<&str> = found.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(at, ["inner.kind", "needed", "words[1]"], "it hides no other mistake");
    }

    #[test]
    fn text_that_is_no_json_is_said_so() {
        assert_eq!(mistakes("{").len(), 1);
    }
}
