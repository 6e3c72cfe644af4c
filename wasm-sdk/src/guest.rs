//! The implementation of the exported functions: the one configured policy of an instance. Called
//! by [`export!`](crate::export), not by authors.

use std::cell::RefCell;

use crate::{
    Decision, Facts, Level, Manifest, Mistake, Policy, ResponseView, Settlement, config, host,
    named, repeated,
};

const NOT_CONFIGURED: &str = "the policy was asked before it was configured";

/// The policy of this instance, once it is configured.
#[derive(Debug)]
pub struct Slot<P>(RefCell<Option<P>>);

impl<P> Slot<P> {
    /// An instance without a policy yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(RefCell::new(None))
    }
}

impl<P> Default for Slot<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: Policy> Slot<P> {
    /// Reads the configuration, makes the policy, and returns what it reads.
    ///
    /// # Errors
    /// All mistakes found.
    pub fn configure(&self, config: &str) -> Result<Manifest, Vec<Mistake>> {
        // A panic ends the instance with nothing but a trap. This tells the operator where it
        // happened.
        std::panic::set_hook(Box::new(|panic| host::log(Level::Error, &panic.to_string())));
        let policy = make::<P>(config)?;
        let manifest = policy.manifest();
        named::set(Some(named::of(&manifest)));
        *self.0.borrow_mut() = Some(policy);
        Ok(manifest)
    }

    /// Calls the policy's `decide`.
    ///
    /// # Errors
    /// The policy's own.
    pub fn decide(&self, facts: &[(String, String)]) -> Result<Decision, String> {
        let policy = self.0.borrow();
        repeated::decide(policy.as_ref().ok_or(NOT_CONFIGURED)?, &Facts::new(facts))
    }

    /// Calls the policy's `settle`.
    ///
    /// # Errors
    /// The policy's own.
    pub fn settle(&self, memo: &str, response: &ResponseView) -> Result<Settlement, String> {
        self.0.borrow().as_ref().ok_or(NOT_CONFIGURED)?.settle(memo, response)
    }
}

/// Makes a policy from its configuration. Mistakes that its type finds and those that the policy
/// itself finds are returned in one list.
pub(crate) fn make<P: Policy>(config: &str) -> Result<P, Vec<Mistake>> {
    let unsettled = if P::SETTLES { Vec::new() } else { config::unsettled(config) };
    let (config, mut mistakes) = config::read::<P::Config>(config);
    mistakes.extend(unsettled);
    let Some(config) = config else { return Err(mistakes) };
    match P::new(config) {
        Ok(policy) if mistakes.is_empty() => Ok(policy),
        Ok(_) => Err(mistakes),
        Err(own) => {
            // If something was reported already, the policy saw a stand-in there. A complaint about
            // that would refer to nothing that is written.
            let news = own
                .into_vec()
                .into_iter()
                .filter(|own| !mistakes.iter().any(|known| is_within(&own.path, &known.path)));
            let news: Vec<Mistake> = news.collect();
            mistakes.extend(news);
            Err(mistakes)
        }
    }
}

/// Whether a path equals another one or leads to something inside it.
fn is_within(path: &str, outer: &str) -> bool {
    path.strip_prefix(outer)
        .is_some_and(|rest| outer.is_empty() || rest.is_empty() || rest.starts_with(['.', '[']))
}
