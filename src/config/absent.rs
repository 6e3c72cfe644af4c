//! Files and secrets that a command does not use: it need not fail where they are not there, as
//! another user can't read them. Does not know which command uses what.

use super::{Config, ConfigErrors};

impl ConfigErrors {
    /// The configuration, for a command that uses only the settings that `needed` names, if all
    /// that is wrong elsewhere is that a file or a variable can't be read. Of a configuration with
    /// any other error, the errors.
    ///
    /// # Errors
    /// All errors, as they are.
    pub fn or_needed(self, needed: &dyn Fn(&Config) -> Vec<String>) -> Result<Config, Self> {
        let is_enough = self.rest.as_ref().is_some_and(|rest| {
            let needed = needed(&rest.config);
            let is_needed = |setting: &str| {
                needed.iter().any(|section| {
                    let below = setting.strip_prefix(section.as_str());
                    below.is_some_and(|below| below.is_empty() || below.starts_with(['.', '[']))
                })
            };
            let mut findings = rest.findings.iter();
            findings.all(|finding| finding.is_absent && !is_needed(&finding.error.setting))
        });
        match self.rest {
            Some(rest) if is_enough => Ok(rest.config),
            rest => Err(Self { rest, ..self }),
        }
    }
}
