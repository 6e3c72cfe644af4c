//! What is allowed in a configuration but probably not meant. `config` adds file and line.

use super::Mistake;

/// A setting that is probably not what its operator meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// The kind of doubt, a short name in a closed set: `unused`, `hidden-route`.
    pub name: &'static str,
    /// The setting's path, as in a [`Mistake`].
    pub setting: String,
    /// Whether the setting's key is marked rather than its value.
    pub in_key: bool,
    /// What about it is doubtful: one sentence without a full stop.
    pub text: String,
    /// Settings that are shown together with it, each with a label.
    pub beside: Vec<(String, String)>,
    /// What to do about it.
    pub remedy: Option<String>,
}

impl Doubt {
    /// A doubt about `setting`.
    #[must_use]
    pub fn new(name: &'static str, setting: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            name,
            setting: setting.into(),
            in_key: false,
            text: text.into(),
            beside: Vec::new(),
            remedy: None,
        }
    }

    /// The same doubt, about the setting's key.
    #[must_use]
    pub fn in_key(mut self) -> Self {
        self.in_key = true;
        self
    }

    /// The same doubt, shown together with another setting.
    #[must_use]
    pub fn beside(mut self, setting: impl Into<String>, label: impl Into<String>) -> Self {
        self.beside.push((setting.into(), label.into()));
        self
    }

    /// The same doubt, with what to do about it.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// The same doubt, with its settings below `section`, as [`Mistake::under`] has it.
    #[must_use]
    pub fn under(mut self, section: &str) -> Self {
        let below = |setting: &str| Mistake::new(setting, "", "").under(section).setting;
        self.setting = below(&self.setting);
        self.beside.iter_mut().for_each(|(setting, _)| *setting = below(setting));
        self
    }
}
