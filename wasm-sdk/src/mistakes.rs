//! Mistakes in a configuration: where, what was found, what was expected.

use std::fmt::Display;

use crate::Mistake;
use crate::config::{REPORTED, join, pack};

/// Maximum number of mistakes of one configuration; further ones are not reported.
pub(crate) const MISTAKES_MAX: usize = 32;

/// Mistakes, collected so that an operator sees all of them at once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mistakes(Vec<Mistake>);

impl Mistakes {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one, at a setting's path inside the policy's configuration (`bypass[1]`).
    pub fn add(&mut self, path: impl Into<String>, found: impl Display, expected: impl Display) {
        self.add_shown(path.into(), &found, &expected);
    }

    /// The same for all types: a module has it once.
    fn add_shown(&mut self, path: String, found: &dyn Display, expected: &dyn Display) {
        self.push(Mistake { path, message: message(found, expected) });
    }

    /// Adds one with a message that is complete, as a type's own check returns it
    /// ([`Methods::new`](crate::Methods::new)).
    pub fn add_message(&mut self, path: impl Into<String>, message: String) {
        self.push(Mistake { path: path.into(), message });
    }

    /// Whether there is one at `path`.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.0.iter().any(|mistake| mistake.path == path)
    }

    pub(crate) fn push(&mut self, mistake: Mistake) {
        if self.0.len() < MISTAKES_MAX {
            self.0.push(mistake);
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them.
    #[must_use]
    pub fn into_vec(self) -> Vec<Mistake> {
        self.0
    }

    /// The same mistakes, with their paths below `setting`.
    #[must_use]
    pub fn under(mut self, setting: &str) -> Self {
        self.0.iter_mut().for_each(|mistake| mistake.path = join(setting, &mistake.path));
        self
    }

    /// Adds mistakes that were found elsewhere.
    pub fn append(&mut self, others: Self) {
        others.0.into_iter().for_each(|mistake| self.push(mistake));
    }

    /// All of them as one serde message, which [`config::read_value`](crate::config::read_value)
    /// unpacks.
    pub(crate) fn packed(&self) -> String {
        pack(&self.0)
    }

    /// Whether a text is the stand-in for a table whose mistakes are known. It is read as an empty
    /// table.
    pub(crate) fn stand_in(text: &str) -> bool {
        text == REPORTED
    }

    /// `value`, if there are no mistakes.
    ///
    /// # Errors
    /// The mistakes, if there are any.
    pub fn or<T>(self, value: T) -> Result<T, Self> {
        if self.is_empty() { Ok(value) } else { Err(self) }
    }
}

/// One mistake, in the value itself.
impl From<String> for Mistakes {
    fn from(message: String) -> Self {
        Self(vec![Mistake { path: String::new(), message }])
    }
}

/// The format of every message: the proxy parses it.
pub(crate) fn message(found: &dyn Display, expected: &dyn Display) -> String {
    format!("found {found}, expected {expected}")
}

/// The name in `known` nearest to `word`, if one is near enough to be meant.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let best = known.into_iter().map(|known| (distance(word, known), known)).min()?;
    let near = best.1.len().max(word.len()).div_ceil(3);
    (best.0 <= near).then_some(best.1)
}

/// The Levenshtein distance, over bytes: settings and facts are ASCII.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().take(64).enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (cell, y) in row.iter_mut().skip(1).zip(b.bytes()) {
            let above = *cell;
            left = (diagonal + usize::from(x != y)).min(above + 1).min(left + 1);
            diagonal = above;
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_levenshteins() {
        for (a, b, expected) in [
            ("", "", 0),
            ("a", "", 1),
            ("", "ab", 2),
            ("qouta", "quota", 2),
            ("kitten", "sitting", 3),
            ("x", "x", 0),
        ] {
            assert_eq!(distance(a, b), expected, "{a} {b}");
        }
    }

    #[test]
    fn only_what_is_near_is_named() {
        assert_eq!(nearest("qouta", ["name", "quota", "period"]), Some("quota"));
        assert_eq!(nearest("zebra", ["name", "quota", "period"]), None);
    }

    #[test]
    fn errors_are_bounded() {
        let mut mistakes = Mistakes::new();
        (0..MISTAKES_MAX + 5).for_each(|_| mistakes.add("a", 1, 2));
        assert_eq!(mistakes.or(()).unwrap_err().into_vec().len(), MISTAKES_MAX);
    }
}
