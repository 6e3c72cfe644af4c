//! What is allowed in a configuration but probably unintended. `config` adds file and line.

use std::borrow::Cow;

use super::{Label as _, SettingError, labels};

labels! {
    /// What is suspicious about a setting.
    pub enum LintKind {
        /// An upstream or a policy that no route names.
        Unused = "unused",
        /// Keys on a shared store that anybody could guess.
        NoKeySecret = "no-key-secret",
        /// A fact that no request on a route has.
        MissingFact = "missing-fact",
        /// A condition on a method in lower case, which is never sent.
        MethodCase = "method-case",
        /// A certificate that ends soon, or that clients may not accept.
        Certificate = "certificate",
        /// A route that no request reaches.
        HiddenRoute = "hidden-route",
        /// A route for one path, whose writer meant all below it.
        SinglePath = "single-path",
        /// A route that clients reach without the certificate that another listener requires.
        OpenListener = "open-listener",
        /// A route that only unusual methods reach.
        UnusualMethods = "unusual-methods",
        /// A policy that gives no decision about any request.
        FailingPolicy = "failing-policy",
        /// A limit that delays, where nothing may wait.
        NoDelay = "no-delay",
        /// A delay that is longer than the request may take.
        LongDelay = "long-delay",
        /// A limit that counts messages of WebSockets, where there are none.
        NoMessages = "no-messages",
        /// A limit that another one makes useless.
        UselessLimit = "useless-limit",
        /// A burst that another limit refuses first.
        UnreachedBurst = "unreached-burst",
        /// A budget that one request may use up.
        SmallBudget = "small-budget",
        /// A price of all other models that is lower than that of one.
        CheapOthers = "cheap-others",
        /// A cost that a limit refuses anyway.
        UnreachedCost = "unreached-cost",
        /// A key that clients choose themselves.
        UnboundedKey = "unbounded-key",
        /// A key that clients can spell in many ways.
        SpelledKey = "spelled-key",
        /// Tokens that are accepted whoever issued them, or whomever they are for.
        UncheckedToken = "unchecked-token",
    }
}

/// What the names of kinds begin with that only a policy knows.
pub const OF_POLICY: &str = "policy.";

/// A setting that is probably not what its operator meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lint {
    /// The name of its kind, as `weir check --allow` takes it.
    pub name: Cow<'static, str>,
    /// The setting's path, as in a [`SettingError`].
    pub setting: String,
    /// Whether the setting's key is marked rather than its value.
    pub in_key: bool,
    /// What about it is suspicious: one sentence without a full stop.
    pub text: String,
    /// Settings that are shown together with it, each with a label.
    pub beside: Vec<(String, String)>,
    /// What to do about it.
    pub remedy: Option<String>,
}

impl Lint {
    /// A lint about `setting`.
    #[must_use]
    pub fn new(kind: LintKind, setting: impl Into<String>, text: impl Into<String>) -> Self {
        Self::named(kind.label().into(), setting, text)
    }

    /// What a policy finds in its own configuration. A kind that is none of [`LintKind`] is the
    /// policy's, and its name begins with [`OF_POLICY`].
    #[must_use]
    pub fn of_policy(kind: &str, setting: impl Into<String>, text: impl Into<String>) -> Self {
        let known = LintKind::ALL.iter().map(|known| known.label()).find(|known| *known == kind);
        let name = known.map_or_else(|| format!("{OF_POLICY}{kind}").into(), Cow::from);
        Self::named(name, setting, text)
    }

    fn named(name: Cow<'static, str>, setting: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            name,
            setting: setting.into(),
            in_key: false,
            text: text.into(),
            beside: Vec::new(),
            remedy: None,
        }
    }

    /// A lint about the key of a setting, with what was found there and what was expected.
    #[must_use]
    pub fn of(kind: LintKind, found: &SettingError) -> Self {
        let text = format!("{}, expected {}", found.found, found.expected);
        Self::new(kind, found.setting.as_str(), text).in_key()
    }

    /// The same lint, about the setting's key.
    #[must_use]
    pub fn in_key(mut self) -> Self {
        self.in_key = true;
        self
    }

    /// The same lint, shown together with another setting.
    #[must_use]
    pub fn beside(mut self, setting: impl Into<String>, label: impl Into<String>) -> Self {
        self.beside.push((setting.into(), label.into()));
        self
    }

    /// The same lint, with what to do about it.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// The same lint, with its settings below `section`, as [`SettingError::under`] has it.
    #[must_use]
    pub fn under(mut self, section: &str) -> Self {
        let below = |setting: &str| SettingError::new(setting, "", "").under(section).setting;
        self.setting = below(&self.setting);
        self.beside.iter_mut().for_each(|(setting, _)| *setting = below(setting));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_that_only_a_policy_knows_is_named_as_the_policys() {
        let name = |kind: &str| Lint::of_policy(kind, "config", "").name;
        assert_eq!(name("small-budget"), LintKind::SmallBudget.label());
        assert_eq!(name("small"), "policy.small");
    }
}
