//! Sets values in a JSON document, and leaves all other bytes as they are.

use std::sync::Arc;

use super::pointer::{Pointer, Pointers};
use super::scan::{FoundValue, Kind};
use super::select::scan;

/// Maximum number of places of one document that an edit changes: more are written to make it grow.
const PATCHES_MAX: usize = 64;

/// A value to set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// Where the value is: a single place.
    pub pointer: Pointer,
    /// The new value, as JSON.
    pub json: Box<str>,
}

/// What to put in the place of some bytes.
struct Patch {
    start: usize,
    end: usize,
    text: String,
}

impl Edit {
    /// The document with the value set. What is missing on the way is added as objects. Where
    /// something else is in the way, it is replaced. Where a name occurs twice in an object, both
    /// are set. `None` if this is not a JSON document, if the way leads through a document that is
    /// not an object, if a name on the way occurs very often, or in another case: some servers
    /// would read that one.
    #[must_use]
    pub fn apply(&self, document: &[u8]) -> Option<Vec<u8>> {
        let tokens = self.pointer.tokens();
        let ancestry: Vec<Pointer> = self.pointer.ancestry().collect();
        let pointers = Arc::new(Pointers::case_insensitive(&ancestry));
        let mut patches = Vec::new();
        // Where the last value at each level began. A value comes after all that it contains.
        let mut last: Vec<Option<u64>> = vec![None; tokens.len() + 2];
        let mut possible = true;
        let valid = scan(&pointers, document, &mut |found: FoundValue<'_>| {
            let level = found.pointer;
            let contains = last.get(level + 1).copied().flatten();
            // The same value once more: its name, or one on the way, is in another case.
            possible &= last.get(level).copied().flatten() != Some(found.start);
            if contains.is_none_or(|begun| begun < found.start) {
                let patch = self.patch(document, &found, tokens.get(level..).unwrap_or_default());
                possible &= patch.is_some() && patches.len() < PATCHES_MAX;
                if !possible {
                    return;
                }
                patches.extend(patch);
            }
            if let Some(last) = last.get_mut(level) {
                *last = Some(found.start);
            }
        });
        (valid && possible).then(|| patched(document, &patches))
    }

    /// Sets the value that the tokens in `missing` lead to from a value that was found.
    fn patch(&self, document: &[u8], found: &FoundValue<'_>, missing: &[String]) -> Option<Patch> {
        let (start, end) = (usize::try_from(found.start).ok()?, usize::try_from(found.end).ok()?);
        let nested = |names: &[String]| {
            let mut text = self.json.to_string();
            for name in names.iter().rev() {
                text = format!("{{{}:{text}}}", serde_json::Value::from(name.as_str()));
            }
            text
        };
        match (missing.split_first(), found.kind) {
            (Some((name, rest)), Kind::Object) => {
                let after = document.get(start + 1..end)?;
                let first = after.iter().find(|byte| !byte.is_ascii_whitespace());
                let comma = if first == Some(&b'}') { "" } else { "," };
                let name = serde_json::Value::from(name.as_str());
                let text = format!("{name}:{}{comma}", nested(rest));
                Some(Patch { start: start + 1, end: start + 1, text })
            }
            (Some(_), _) if found.pointer == 0 => None,
            _ => Some(Patch { start, end, text: nested(missing) }),
        }
    }
}

/// The document with patches that do not overlap, in its order.
fn patched(document: &[u8], patches: &[Patch]) -> Vec<u8> {
    let added: usize = patches.iter().map(|patch| patch.text.len()).sum();
    let mut out = Vec::with_capacity(document.len() + added);
    let mut at = 0;
    for patch in patches {
        out.extend_from_slice(document.get(at..patch.start).unwrap_or_default());
        out.extend_from_slice(patch.text.as_bytes());
        at = patch.end;
    }
    out.extend_from_slice(document.get(at..).unwrap_or_default());
    out
}
