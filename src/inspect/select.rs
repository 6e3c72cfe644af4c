//! Values of a whole JSON document.

use std::sync::Arc;

use super::pointer::{Pointer, Pointers};
use super::scan::{Found, Kind, Scanner};

/// Values found in one document, at most: a client may write one name as often as it likes.
const VALUES_MAX: usize = 64;

/// A value to select.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Where it stands.
    pub pointer: Pointer,
    /// As JSON. Otherwise a text is shown without quotes and escapes, and of an array or an object
    /// its size in bytes.
    pub as_json: bool,
}

/// What to select from documents, prepared once.
#[derive(Debug)]
pub struct Selection {
    wanted: Vec<Wanted>,
    pointers: Arc<Pointers>,
}

impl Selection {
    /// Of these values.
    #[must_use]
    pub fn new(wanted: Vec<Wanted>) -> Self {
        let pointers = Arc::new(Pointers::new(wanted.iter().map(|wanted| &wanted.pointer)));
        Self { wanted, pointers }
    }

    /// Each value found, with the index of what was wanted, in the document's order. A name that
    /// occurs twice in an object is found twice. `None` if this is not a JSON document (RFC 8259,
    /// in UTF-8), if a selected text can't be written as UTF-8, or if there are too many values.
    #[must_use]
    pub fn of(&self, document: &[u8]) -> Option<Vec<(usize, String)>> {
        let text = std::str::from_utf8(document).ok()?;
        let mut values = Some(Vec::new());
        let valid = scan(&self.pointers, document, &mut |found| {
            if values.is_none() {
                return;
            }
            let shown = self
                .wanted
                .get(found.pointer)
                .and_then(|wanted| shown(text, &found, wanted.as_json));
            match (shown, &mut values) {
                (Some(shown), Some(values)) if values.len() < VALUES_MAX => {
                    values.push((found.pointer, shown));
                }
                _ => values = None,
            }
        });
        values.filter(|_| valid)
    }
}

/// Reads a whole document. Returns whether it is one.
pub(super) fn scan(
    pointers: &Arc<Pointers>,
    document: &[u8],
    sink: &mut impl FnMut(Found<'_>),
) -> bool {
    let mut scanner = Scanner::new(Arc::clone(pointers));
    scanner.feed(document, sink);
    scanner.finish(sink)
}

fn shown(text: &str, found: &Found<'_>, as_json: bool) -> Option<String> {
    let (start, end) = (usize::try_from(found.start).ok()?, usize::try_from(found.end).ok()?);
    let json = text.get(start..end)?;
    match found.kind {
        _ if as_json => Some(json.to_owned()),
        Kind::Text => serde_json::from_str(json).ok(),
        Kind::Array | Kind::Object => Some((end - start).to_string()),
        Kind::Number | Kind::True | Kind::False | Kind::Null => Some(json.to_owned()),
    }
}
