//! What tools and methods cost, and which limits they have of their own: the settings `tools` and
//! `methods`.

use std::collections::BTreeMap;

use serde::Deserialize;
use weir_policy::{Limits, Mistakes};

/// Maximum number of entries in both tables: each is compared with each message's name.
const ENTRIES_MAX: usize = 500;
/// Maximum length of an entry's name, in characters.
const NAME_CHARS_MAX: usize = 256;
/// The most urgent priority.
const PRIORITY_MAX: u64 = 7;

/// An entry of `tools` or `methods`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Written {
    /// Units that each takes of the policy's `limits`.
    cost: Option<u64>,
    /// How much its requests matter where an upstream has as many as it may.
    priority: Option<u64>,
    /// Charged 1 for each.
    #[serde(default)]
    limits: Limits,
}

/// An entry.
#[derive(Debug)]
pub(crate) struct Rule {
    /// The setting: `tools.run_*`.
    pub(crate) at: String,
    /// The name, or what it begins with.
    name: String,
    is_prefix: bool,
    pub(crate) cost: Option<u64>,
    pub(crate) priority: Option<u8>,
    pub(crate) limits: Limits,
}

impl Rule {
    /// How well a name fits: `None` if it does not. Case is ignored, as some servers do.
    fn fit(&self, name: &str) -> Option<(bool, usize)> {
        let begins = |start: &[u8]| start.eq_ignore_ascii_case(self.name.as_bytes());
        let fits = if self.is_prefix {
            name.as_bytes().get(..self.name.len()).is_some_and(begins)
        } else {
            begins(name.as_bytes())
        };
        fits.then_some((!self.is_prefix, self.name.len()))
    }
}

/// One of the two tables.
#[derive(Debug, Default)]
pub(crate) struct Table(Vec<Rule>);

impl Table {
    /// Checks what is written under `setting`, and sets how its limits are keyed.
    pub(crate) fn new(
        setting: &str,
        written: BTreeMap<String, Written>,
        keyed: impl Fn(Limits) -> Limits,
        mistakes: &mut Mistakes,
    ) -> Self {
        if written.len() > ENTRIES_MAX {
            let found = format_args!("{} entries", written.len());
            mistakes.add(setting, found, format_args!("at most {ENTRIES_MAX}"));
        }
        let mut rules: Vec<Rule> = Vec::with_capacity(written.len());
        for (written_name, Written { cost, priority, limits }) in written {
            let at = format!("{setting}.{written_name}");
            let name = written_name.strip_suffix('*');
            let is_prefix = name.is_some();
            let name = name.unwrap_or(&written_name);
            let is_named = is_prefix || !name.is_empty();
            if name.contains('*') || !is_named || name.chars().count() > NAME_CHARS_MAX {
                let expected =
                    "a name, or the start of one and a `*` at its end, such as \"run_*\"";
                mistakes.add(&at, format_args!("{written_name:?}"), expected);
            }
            let is_same =
                |rule: &&Rule| rule.is_prefix == is_prefix && rule.name.eq_ignore_ascii_case(name);
            if let Some(rule) = rules.iter().find(is_same) {
                let expected =
                    format_args!("a name that differs from {} not only in case", rule.at);
                mistakes.add(&at, format_args!("{written_name:?}"), expected);
            }
            let checked = priority.and_then(|priority| u8::try_from(priority).ok());
            if let Some(priority) = priority.filter(|priority| *priority > PRIORITY_MAX) {
                let expected = format_args!("0 to {PRIORITY_MAX}");
                mistakes.add(format!("{at}.priority"), priority, expected);
            }
            let name = name.to_owned();
            let limits = keyed(limits);
            rules.push(Rule { at, name, is_prefix, cost, priority: checked, limits });
        }
        Self(rules)
    }

    /// The entry for a name: its own, or the one with the longest start of it.
    pub(crate) fn find(&self, name: &str) -> Option<&Rule> {
        let fitting = self.0.iter().filter_map(|rule| Some((rule.fit(name)?, rule)));
        fitting.max_by_key(|(fit, _)| *fit).map(|(_, rule)| rule)
    }

    pub(crate) fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(names: &[&str]) -> (Table, Vec<String>) {
        let written = names.iter().map(|name| ((*name).to_owned(), Written::default())).collect();
        let mut mistakes = Mistakes::new();
        let table = Table::new("tools", written, |limits| limits, &mut mistakes);
        let paths = mistakes.into_vec().into_iter().map(|mistake| mistake.path);
        (table, paths.collect())
    }

    #[test]
    fn a_name_of_its_own_is_found_before_the_longest_start_and_case_is_ignored() {
        let (table, mistakes) = table(&["run_*", "run_query", "run_q*", "*"]);
        assert_eq!(mistakes, [""; 0]);
        for (name, found) in [
            ("run_query", "tools.run_query"),
            ("RUN_Query", "tools.run_query"),
            ("run_queries", "tools.run_q*"),
            ("run_", "tools.run_*"),
            ("Run_report", "tools.run_*"),
            ("ru", "tools.*"),
            ("r\u{fc}n_query", "tools.*"),
        ] {
            assert_eq!(table.find(name).map(|rule| rule.at.as_str()), Some(found), "{name}");
        }
        assert!(self::table(&["a"]).0.find("b").is_none());
    }

    #[test]
    fn names_with_stars_elsewhere_and_names_that_differ_in_case_are_mistakes() {
        let (_, mistakes) = table(&["", "*a", "Search", "search"]);
        assert_eq!(mistakes, ["tools.", "tools.*a", "tools.search"]);
    }
}
