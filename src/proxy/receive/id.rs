//! Request ids: one on every forwarded request, every reply and every log line. Knows nothing else
//! of a request.

use std::fmt;

use smallvec::SmallVec;

use crate::wire::{Fields, Known};

/// Maximum bytes of an id that is accepted from a proxy.
const ID_BYTES_MAX: usize = 128;
/// Bytes of an id that is generated here.
const FRESH_BYTES: usize = 32;

/// A request's id: visible ASCII. A generated one is stored inline.
#[derive(Clone)]
pub(in crate::proxy) struct Id(SmallVec<[u8; FRESH_BYTES]>);

impl Id {
    /// The id that a trusted proxy sent, if it is visible ASCII and not too long. Otherwise a new
    /// one of 128 random bits. Ids distinguish requests and are no secret, so a fast generator is
    /// enough.
    pub(in crate::proxy) fn of(fields: &Fields, trusted: bool) -> Self {
        let given = if trusted { fields.get(Known::RequestId) } else { None };
        given.filter(|id| is_sane(id)).map_or_else(Self::fresh, |id| Self(SmallVec::from_slice(id)))
    }

    pub(in crate::proxy) fn fresh() -> Self {
        // Each byte of a random number gives two digits.
        const LOW: u64 = 0x0f0f_0f0f_0f0f_0f0f;
        let [first, second] = [fastrand::u64(..), fastrand::u64(..)];
        let mut text = [0; FRESH_BYTES];
        for (digits, nibbles) in text.chunks_exact_mut(8).zip([
            first & LOW,
            first >> 4 & LOW,
            second & LOW,
            second >> 4 & LOW,
        ]) {
            digits.copy_from_slice(&digits_of(nibbles));
        }
        Self(SmallVec::from_buf(text))
    }

    /// The text.
    pub(in crate::proxy) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// The text's bytes.
    pub(in crate::proxy) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(out)
    }
}

fn is_sane(id: &[u8]) -> bool {
    (1..=ID_BYTES_MAX).contains(&id.len()) && id.iter().all(u8::is_ascii_graphic)
}

/// The hexadecimal digits of eight numbers below 16, one in each byte, computed at once.
fn digits_of(nibbles: u64) -> [u8; 8] {
    const ONES: u64 = 0x0101_0101_0101_0101;
    // 1 in each byte that is 10 or more, where adding 6 carries into the upper half.
    let letters = (nibbles + 6 * ONES) >> 4 & ONES;
    (nibbles + u64::from(b'0') * ONES + u64::from(b'a' - b'0' - 10) * letters).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(id: &str, trusted: bool) -> Id {
        let mut fields = Fields::new();
        fields.append(Known::RequestId, id);
        Id::of(&fields, trusted)
    }

    #[test]
    fn a_trusted_sane_id_is_kept_and_any_other_is_made_new() {
        assert_eq!(given("abc-123", true).as_str(), "abc-123");
        let long = "x".repeat(128);
        assert_eq!(given(&long, true).as_str(), long);
        for (id, trusted) in [
            ("abc-123", false),
            ("a b", true),
            ("", true),
            ("\u{e9}", true),
            (&*"x".repeat(129), true),
        ] {
            let id = given(id, trusted);
            let id = id.as_str();
            assert!(
                id.len() == 32 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')),
                "{id:?}"
            );
        }
        assert_ne!(Id::fresh().as_str(), Id::fresh().as_str());
    }

    #[test]
    fn each_number_has_its_digit() {
        assert_eq!(digits_of(0x0706_0504_0302_0100), *b"01234567");
        assert_eq!(digits_of(0x0f0e_0d0c_0b0a_0908), *b"89abcdef");
    }
}
