//! Percent-encoding (RFC 3986, 2.1).

use std::borrow::Cow;

use smallvec::SmallVec;

/// The decoded bytes of an escaped text. A broken escape is kept as it is.
#[must_use]
pub fn decode(text: &[u8]) -> SmallVec<[u8; 64]> {
    decode_counting(text).0
}

/// [`decode`], borrowed if nothing is escaped.
pub(super) fn decoded(text: &[u8]) -> Cow<'_, [u8]> {
    if text.contains(&b'%') { Cow::Owned(decode(text).into_vec()) } else { Cow::Borrowed(text) }
}

/// [`decode`], and whether an escape was broken.
pub(super) fn decode_counting(text: &[u8]) -> (SmallVec<[u8; 64]>, bool) {
    let mut out = SmallVec::with_capacity(text.len());
    let mut broken = false;
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            out.push(byte);
        } else if let [high, low, after @ ..] = rest
            && let (Some(high), Some(low)) = (hex(*high), hex(*low))
        {
            out.push(high << 4 | low);
            rest = after;
        } else {
            broken = true;
            out.push(byte);
        }
    }
    (out, broken)
}

/// The value of a hexadecimal digit.
fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}
