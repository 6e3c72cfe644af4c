//! The decisions of a pure policy, by the facts they were made from: a table of fixed size, in which a newcomer replaces whoever had its place.
//!
//! Facts come from clients. A table without chains can't be made slow by chosen collisions, and full comparison means that none is ever mistaken
//! for another.

use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::{Decision, Verdict};

/// Decisions that one thread remembers of one policy.
const ENTRIES: usize = 2_048;
/// Bytes of facts, and of a decision, that are worth remembering: with [`ENTRIES`] they bound the table.
const FACTS_BYTES_MAX: usize = 512;
const DECISION_BYTES_MAX: usize = 2_048;

#[derive(Default)]
pub(super) struct Remembered {
    entries: Vec<Option<Entry>>,
    hasher: RandomState,
}

struct Entry {
    hash: u64,
    facts: Box<[u8]>,
    decision: Arc<Decision>,
}

impl Remembered {
    pub(super) fn get(&self, facts: &[(&str, &str)]) -> Option<Arc<Decision>> {
        if self.entries.is_empty() {
            return None;
        }
        let hash = self.hash(facts);
        let entry = self.entries.get(place(hash))?.as_ref()?;
        (entry.hash == hash && same(facts, &entry.facts)).then(|| entry.decision.clone())
    }

    pub(super) fn put(&mut self, facts: &[(&str, &str)], decision: &Arc<Decision>) {
        let bytes: usize = facts.iter().map(|(name, value)| name.len() + value.len() + 8).sum();
        if bytes > FACTS_BYTES_MAX || weight(decision) > DECISION_BYTES_MAX {
            return;
        }
        if self.entries.is_empty() {
            self.entries.resize_with(ENTRIES, || None);
        }
        let hash = self.hash(facts);
        let mut packed = Vec::with_capacity(bytes);
        for text in facts.iter().flat_map(|(name, value)| [name, value]) {
            packed.extend_from_slice(&length(text));
            packed.extend_from_slice(text.as_bytes());
        }
        if let Some(entry) = self.entries.get_mut(place(hash)) {
            *entry = Some(Entry { hash, facts: packed.into(), decision: decision.clone() });
        }
    }

    fn hash(&self, facts: &[(&str, &str)]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        for text in facts.iter().flat_map(|(name, value)| [name, value]) {
            hasher.write_usize(text.len());
            hasher.write(text.as_bytes());
        }
        hasher.finish()
    }
}

fn place(hash: u64) -> usize {
    usize::try_from(hash % ENTRIES as u64).unwrap_or(0)
}

/// Lengths first, so that no two lists of facts have the same bytes. Only short facts are packed: the length fits.
fn length(text: &str) -> [u8; 4] {
    u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes()
}

fn same(facts: &[(&str, &str)], mut packed: &[u8]) -> bool {
    for text in facts.iter().flat_map(|(name, value)| [name, value]) {
        let rest = packed.strip_prefix(&length(text)).and_then(|rest| rest.strip_prefix(text.as_bytes()));
        match rest {
            Some(rest) => packed = rest,
            None => return false,
        }
    }
    packed.is_empty()
}

/// The bytes that a decision holds, about.
fn weight(decision: &Decision) -> usize {
    let pairs = |pairs: &[(String, String)]| pairs.iter().map(|(name, value)| name.len() + value.len() + 48).sum::<usize>();
    let verdict = match &decision.verdict {
        Verdict::Bypass => 0,
        Verdict::Check(plan) => {
            let limits = plan.limits().iter();
            limits.map(|limit| limit.name.len() + limit.key.len() + limit.tag.as_ref().map_or(0, String::len) + 192).sum()
        }
        Verdict::Deny(denial) => denial.reason.len() + pairs(&denial.headers),
    };
    let memo = decision.settle_with.as_ref().map_or(0, String::len);
    verdict + memo + pairs(&decision.upstream_headers) + pairs(&decision.response_headers) + pairs(&decision.labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(label: &str) -> Arc<Decision> {
        let labels = vec![("l".to_owned(), label.to_owned())];
        Arc::new(Decision { verdict: Verdict::Bypass, upstream_headers: vec![], response_headers: vec![], labels, settle_with: None })
    }

    #[test]
    fn the_same_facts_give_the_same_decision_and_no_others_do() {
        let mut remembered = Remembered::default();
        let facts = [("client-ip", "192.0.2.1"), ("path", "/")];
        assert!(remembered.get(&facts).is_none());
        remembered.put(&facts, &decision("a"));
        assert_eq!(remembered.get(&facts), Some(decision("a")));
        assert!(remembered.get(&[("client-ip", "192.0.2.1")]).is_none());
        assert!(same(&[("a", "bc")], &[1, 0, 0, 0, b'a', 2, 0, 0, 0, b'b', b'c']));
        assert!(!same(&[("ab", "c")], &[1, 0, 0, 0, b'a', 2, 0, 0, 0, b'b', b'c']));
        assert!(!same(&[("a", "b")], &[1, 0, 0, 0, b'a', 2, 0, 0, 0, b'b', b'c']));
    }

    #[test]
    fn it_stays_within_its_bounds() {
        let mut remembered = Remembered::default();
        for client in 0..3 * ENTRIES {
            remembered.put(&[("client-ip", &client.to_string())], &decision("a"));
        }
        assert_eq!(remembered.entries.len(), ENTRIES);
        let long = "x".repeat(FACTS_BYTES_MAX);
        remembered.put(&[("path", &long)], &decision("a"));
        assert!(remembered.get(&[("path", &long)]).is_none());
        remembered.put(&[("path", "/heavy")], &decision(&"x".repeat(DECISION_BYTES_MAX)));
        assert!(remembered.get(&[("path", "/heavy")]).is_none());
    }
}
