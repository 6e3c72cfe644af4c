//! The values that a decision sets in a request's JSON body. They are set before anything is
//! charged, so that a request whose body has no place for them costs nothing. Knows no limit.

use bytes::Bytes;

use super::content::{BodyType, ReadBody};
use crate::inspect::{Edit, Pointer, Selection, Selector};
use crate::policy::{Bodies, Partial};
use crate::proxy::refusal::{Check, Refusal};

/// The message to a client whose body has no place for a value, or too many.
const UNCHANGEABLE: &str = "the body is not a JSON object, or has a name twice or in another case";
/// The message to a client whose body can't say how much is left.
const NO_JSON: &str = "the body is not JSON";

/// Edits the body of a request that is to be sent to an upstream.
#[derive(Clone, Copy, Debug)]
pub(in crate::proxy) struct Editor<'a> {
    /// None if the policy reads no bodies.
    pub(in crate::proxy) read: Option<&'a ReadBody>,
}

impl<'a> Editor<'a> {
    /// The body with the decision's values. `None` if it stays as it came: there are no values, or
    /// it is not JSON.
    ///
    /// # Errors
    /// A value can't be set. The request must not be forwarded: it would use what it may not.
    pub(in crate::proxy) fn edited(self, bodies: &Bodies) -> Result<Option<Bytes>, Refusal> {
        match self.json() {
            Some(document) if !bodies.edits.is_empty() => {
                applied(document.clone(), &bodies.edits).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// The body, `edited` or as it came, that also tells the upstream to use no more than `left`
    /// units. `None` if it says so already.
    ///
    /// # Errors
    /// It can't be told.
    pub(in crate::proxy) fn lowered(
        self,
        partial: &Partial,
        left: u64,
        edited: Option<&Bytes>,
    ) -> Result<Option<Bytes>, Refusal> {
        let Some(document) = edited.or(self.json()) else {
            return Err(Refusal::BadRequest(Check::Body.wrong(NO_JSON)));
        };
        let edits = lowering(&partial.tell, left.saturating_sub(partial.base), document);
        if edits.is_empty() {
            return Ok(None);
        }
        applied(document.clone(), &edits).map(Some)
    }

    fn json(self) -> Option<&'a Bytes> {
        let read = self.read.filter(|read| read.body_type == BodyType::Json);
        read.map(|read| &read.bytes)
    }
}

/// The document with these values, one after the other.
fn applied(mut document: Bytes, edits: &[Edit]) -> Result<Bytes, Refusal> {
    for edit in edits {
        let edited = edit.apply(&document);
        document = edited.ok_or(Refusal::BadRequest(Check::Body.wrong(UNCHANGEABLE)))?.into();
    }
    Ok(document)
}

/// The edits that set the numbers at these pointers to `maximum`, where they are not lower already.
fn lowering(tell: &[Pointer], maximum: u64, document: &[u8]) -> Vec<Edit> {
    let wanted = tell.iter().map(|pointer| Selector { pointer: pointer.clone(), as_json: true });
    let found = Selection::new(wanted.collect()).of(document).unwrap_or_default();
    let is_lower = |index: usize| {
        let mut values = found.iter().filter(|(of, _)| *of == index).peekable();
        // Some upstreams take 0 for no maximum at all.
        let lower =
            |json: &str| json.parse::<u64>().is_ok_and(|number| (1..=maximum).contains(&number));
        values.peek().is_some() && values.all(|(_, json)| lower(json))
    };
    let tell = tell.iter().enumerate().filter(|(index, _)| !is_lower(*index));
    tell.map(|(_, pointer)| Edit { pointer: pointer.clone(), json: maximum.to_string().into() })
        .collect()
}
