//! An error in a setting, as the module that found it describes it. `config` adds file and line.

use std::fmt;

/// A setting that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingError {
    /// The setting's path. A module names it relative to its own section
    /// (`config.limits[0].quota`); [`SettingError::under`] makes it absolute
    /// (`policies.public.config.limits[0].quota`).
    pub setting: String,
    /// What was found there.
    pub found: String,
    /// What is allowed there.
    pub expected: String,
    /// Whether the setting's key is wrong rather than its value.
    pub in_key: bool,
    /// Another setting that this one contradicts, with a label for it.
    pub other: Option<Box<(String, String)>>,
}

impl SettingError {
    /// An error at `setting`.
    #[must_use]
    pub fn new(
        setting: impl Into<String>,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> Self {
        Self {
            setting: setting.into(),
            found: found.into(),
            expected: expected.into(),
            in_key: false,
            other: None,
        }
    }

    /// The same error, with its settings below `section`: `nodes[0]` under `store.redis` is
    /// `store.redis.nodes[0]`.
    #[must_use]
    pub fn under(mut self, section: &str) -> Self {
        let below = |setting: &str| {
            let dot = if setting.is_empty() || setting.starts_with('[') { "" } else { "." };
            format!("{section}{dot}{setting}")
        };
        self.setting = below(&self.setting);
        if let Some(other) = &mut self.other {
            other.0 = below(&other.0);
        }
        self
    }

    /// The same error, about the setting's key.
    #[must_use]
    pub fn in_key(mut self) -> Self {
        self.in_key = true;
        self
    }

    /// The same error, shown together with the setting that it contradicts.
    #[must_use]
    pub fn beside(mut self, setting: impl Into<String>, label: impl Into<String>) -> Self {
        self.other = Some(Box::new((setting.into(), label.into())));
        self
    }
}

/// A part of an error as one bounded line without control characters. Of a long one the middle is
/// left out: what was probably meant is at its end.
#[must_use]
pub fn error_line(text: &str, chars_max: usize) -> String {
    const GAP: &str = " ... ";
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let Some(over) = text.chars().count().checked_sub(chars_max).filter(|over| *over > 0) else {
        return text.chars().map(plain).collect();
    };
    let begin = chars_max * 2 / 3;
    let before = text.chars().take(begin);
    let after = text.chars().skip(begin + over + GAP.len());
    before.chain(GAP.chars()).chain(after).map(plain).collect()
}

impl fmt::Display for SettingError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: found {}, expected {}", self.setting, self.found, self.expected)
    }
}

impl std::error::Error for SettingError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_long_text_is_kept() {
        let long = format!("one of {}; `quota` is near", "`\u{e4}`, ".repeat(200));
        let line = error_line(&long, 90);
        assert_eq!(line.chars().count(), 90);
        assert!(line.starts_with("one of `\u{e4}`, ") && line.contains(" ... "), "{line}");
        assert!(line.ends_with("; `quota` is near"), "{line}");
    }

    #[test]
    fn a_short_text_is_kept_but_for_control_characters() {
        assert_eq!(error_line("a\nb", 3), "a b");
        assert_eq!(error_line("", 3), "");
    }
}
