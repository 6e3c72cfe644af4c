//! Values of a whole JSON document.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::pointer::{Pointer, Pointers};
use super::scan::{FoundValue, Kind, Scanner};

/// Maximum number of values found in one document: a client may write one name as often as it
/// likes.
const VALUES_MAX: usize = 64;

/// A value to select.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    /// Where the value is.
    pub pointer: Pointer,
    /// Whether it is shown as JSON. Otherwise a text is shown without quotes and escapes, and of an
    /// array or an object its size in bytes.
    pub as_json: bool,
}

/// What to select from documents, prepared once.
#[derive(Debug)]
pub struct Selection {
    wanted: Vec<Selector>,
    /// The indices of the wanted values below each value on the way to them.
    ways: Vec<Vec<usize>>,
    /// Pointers to the wanted values, and then to those on the way.
    pointers: Arc<Pointers>,
}

impl Selection {
    /// Prepares the selection of these values.
    #[must_use]
    pub fn new(wanted: Vec<Selector>) -> Self {
        let mut ways: Vec<(Pointer, Vec<usize>)> = Vec::new();
        for (index, Selector { pointer, .. }) in wanted.iter().enumerate() {
            // A `*` may stand for several elements, which are no repetition.
            let on_the_way = pointer.tokens().len().saturating_sub(1);
            let ancestors = pointer.ancestry().skip(1).take(on_the_way);
            for way in ancestors.filter(|_| pointer.is_single()) {
                match ways.iter_mut().find(|(known, _)| *known == way) {
                    Some((_, below)) => below.push(index),
                    None => ways.push((way, vec![index])),
                }
            }
        }
        let own = wanted.iter().map(|wanted| &wanted.pointer);
        let pointers = Pointers::case_insensitive(own.chain(ways.iter().map(|(way, _)| way)));
        let ways = ways.into_iter().map(|(_, below)| below).collect();
        Self { wanted, ways, pointers: Arc::new(pointers) }
    }

    /// Each value found, with the index of what was wanted, in the document's order. `None` if this
    /// is not a JSON document (RFC 8259, in UTF-8), if a selected text can't be written as UTF-8,
    /// or if there are too many values.
    ///
    /// What servers may read in several ways is found at least twice: a name that occurs twice in
    /// an object or in another case, and everything inside such a value.
    #[must_use]
    pub fn of(&self, document: &[u8]) -> Option<Vec<(usize, String)>> {
        let text = std::str::from_utf8(document).ok()?;
        let mut values = Some(Vec::new());
        let mut passed: SmallVec<[u32; 8]> = smallvec![0; self.ways.len()];
        let valid = scan(&self.pointers, document, &mut |found| {
            let Some(wanted) = self.wanted.get(found.pointer) else {
                let way = passed.get_mut(found.pointer - self.wanted.len());
                return way.into_iter().for_each(|times| *times = times.saturating_add(1));
            };
            if values.is_none() {
                return;
            }
            match (shown(text, &found, wanted.as_json), &mut values) {
                (Some(shown), Some(values)) if values.len() < VALUES_MAX => {
                    values.push((found.pointer, shown));
                }
                _ => values = None,
            }
        });
        let mut values = values.filter(|_| valid)?;
        let repeated = self.ways.iter().zip(&passed).filter(|(_, times)| **times > 1);
        repeated.for_each(|(below, _)| below.iter().for_each(|index| repeat(&mut values, *index)));
        Some(values)
    }
}

/// Lists a value a second time that was found once: it is inside one that is repeated.
fn repeat(values: &mut Vec<(usize, String)>, index: usize) {
    let mut own = values.iter().filter(|(of, _)| *of == index);
    if let (Some(only), None) = (own.next(), own.next()) {
        let again = only.clone();
        values.push(again);
    }
}

/// Reads a whole document. Returns whether it is one.
pub(super) fn scan(
    pointers: &Arc<Pointers>,
    document: &[u8],
    sink: &mut impl FnMut(FoundValue<'_>),
) -> bool {
    let mut scanner = Scanner::new(Arc::clone(pointers));
    scanner.feed(document, sink);
    scanner.finish(sink)
}

fn shown(text: &str, found: &FoundValue<'_>, as_json: bool) -> Option<String> {
    let (start, end) = (usize::try_from(found.start).ok()?, usize::try_from(found.end).ok()?);
    let json = text.get(start..end)?;
    match found.kind {
        _ if as_json => Some(json.to_owned()),
        Kind::Text => serde_json::from_str(json).ok(),
        Kind::Array | Kind::Object => Some((end - start).to_string()),
        Kind::Number | Kind::True | Kind::False | Kind::Null => Some(json.to_owned()),
    }
}
