//! A mistake in a setting, as the room that found it tells it; `config` adds the file and the line.

use std::fmt;

/// Something written in the configuration that can't stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The setting's path from the top of the file: `policies.public.config.limits[0].quota`.
    pub setting: String,
    /// What was found there.
    pub found: String,
    /// What may stand there.
    pub expected: String,
    /// Whether the setting's key is wrong rather than its value.
    pub in_key: bool,
    /// Another setting that this one contradicts, with a label for it.
    pub other: Option<Box<(String, String)>>,
}

impl Mistake {
    /// A mistake at `setting`.
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

    /// The same mistake, about the setting's key.
    #[must_use]
    pub fn in_key(mut self) -> Self {
        self.in_key = true;
        self
    }

    /// The same mistake, shown together with the setting that it contradicts.
    #[must_use]
    pub fn beside(mut self, setting: impl Into<String>, label: impl Into<String>) -> Self {
        self.other = Some(Box::new((setting.into(), label.into())));
        self
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: found {}, expected {}", self.setting, self.found, self.expected)
    }
}

impl std::error::Error for Mistake {}
