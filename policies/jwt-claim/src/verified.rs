//! The tokens that this instance has verified, so that each costs one check of a signature and not
//! one for each request. Bounded: by tokens and by bytes.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::claims::Validity;

/// Maximum number of tokens that are remembered.
const TOKENS_MAX: usize = 1024;
/// Maximum size of all remembered tokens, in bytes.
const BYTES_MAX: usize = 2 << 20;

/// What is known about a token.
#[derive(Debug)]
pub(crate) struct Verified {
    pub(crate) validity: Validity,
    /// What it is counted under. `None` if it lacks the claim.
    pub(crate) key: Option<String>,
    /// Its place in the table of plans. `None` if it is on no plan.
    pub(crate) plan: Option<usize>,
    /// The values of the fields for the upstream.
    pub(crate) told: Vec<String>,
}

/// Verified tokens by their whole text: another signature is another token. A tree: its lookups
/// compare a few texts, where a table would read all of one to hash it.
#[derive(Debug, Default)]
pub(crate) struct VerifiedTokens {
    young: BTreeMap<Box<str>, Rc<Verified>>,
    /// Those that were remembered before. They are forgotten when `young` is full.
    old: BTreeMap<Box<str>, Rc<Verified>>,
    /// The bytes of the young ones.
    bytes: usize,
}

impl VerifiedTokens {
    pub(crate) fn get(&self, token: &str) -> Option<Rc<Verified>> {
        self.young.get(token).or_else(|| self.old.get(token)).cloned()
    }

    pub(crate) fn insert(&mut self, token: &str, verified: &Rc<Verified>) {
        let told: usize = verified.told.iter().map(String::len).sum();
        let bytes = token.len() + told + verified.key.as_deref().map_or(0, str::len);
        // Half of each bound: the other half is the old ones'.
        if self.young.len() >= TOKENS_MAX / 2 || self.bytes + bytes > BYTES_MAX / 2 {
            self.old = std::mem::take(&mut self.young);
            self.bytes = 0;
        }
        self.bytes += bytes;
        self.young.insert(token.into(), Rc::clone(verified));
    }
}

#[cfg(test)]
mod tests {
    use weir_policy::Json;

    use super::*;

    #[test]
    fn no_more_than_the_bounds_are_remembered_and_the_last_ones_are_among_them() {
        let validity = Validity::of(&Json::parse(r#"{"exp": 1}"#).unwrap(), true).unwrap();
        let verified = Rc::new(Verified { validity, key: None, plan: None, told: Vec::new() });
        for length in [20, 8 << 10] {
            let token = |number: usize| format!("{number:0length$}");
            let mut tokens = VerifiedTokens::default();
            (0..3 * TOKENS_MAX).for_each(|number| tokens.insert(&token(number), &verified));
            let kept = tokens.young.len() + tokens.old.len();
            assert!(kept <= TOKENS_MAX && kept * length <= BYTES_MAX, "{kept} of {length}");
            assert!(tokens.get(&token(3 * TOKENS_MAX - 1)).is_some());
            assert!(tokens.get(&token(0)).is_none());
        }
    }
}
