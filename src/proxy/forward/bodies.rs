//! What a decision changes in a request for the sake of bodies: values that are set in its own, and
//! a reply that can be read. Knows no reply.

use crate::inspect::{Edit, Pointer, Selection, Selector};
use crate::proxy::decide::Decided;
use crate::proxy::decide::content::{BodyType, ReadBody};
use crate::proxy::refusal::{Check, Refusal};
use crate::wire::{Body, Fields, Known};

/// Sets the decision's values in a request's body. Returns the body to send.
///
/// # Errors
/// A value can't be set.
pub(in crate::proxy) fn edited(
    decided: &Decided,
    fields: &mut Fields,
    read: Option<ReadBody>,
    body: Body,
) -> Result<Body, Refusal> {
    let Some(bodies) = decided.bodies() else { return Ok(body) };
    let told = bodies.partial.as_ref().zip(decided.taken);
    let told = match (told, &read) {
        (None, _) => Vec::new(),
        (Some((partial, taken)), Some(read)) if read.body_type == BodyType::Json => {
            lowered(&partial.tell, taken.saturating_sub(partial.base), &read.bytes)
        }
        (Some(_), _) => return Err(Refusal::BadRequest(Check::Body.wrong("the body is not JSON"))),
    };
    match read {
        Some(read) if !(bodies.edits.is_empty() && told.is_empty()) => {
            read.edited(bodies.edits.iter().chain(&told), fields, body)
        }
        _ => Ok(body),
    }
}

/// Asks for a reply that can be read, if the decision has meters.
pub(in crate::proxy) fn ask_plain(decided: &Decided, fields: &mut Fields) {
    if decided.bodies().is_some_and(|bodies| !bodies.meters.list().is_empty()) {
        fields.set(Known::AcceptEncoding, "identity");
    }
}

/// The edits that set the numbers at these pointers to `maximum`, where they are not lower already.
fn lowered(tell: &[Pointer], maximum: u64, document: &[u8]) -> Vec<Edit> {
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
