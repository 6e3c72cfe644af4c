//! SHA-256 of a fact's value, so that a key can be recognised without being written in a file.

mod sha256;

use std::fmt;

pub(crate) use sha256::sha256;

use crate::facts::is_text;

/// The start of a digest as it is written.
pub(crate) const DIGEST_START: &str = "sha256:";
/// What messages say was expected if [`Digest::parse`] finds none.
pub const DIGEST_EXPECTED: &str =
    "`sha256:` and 64 hexadecimal digits, such as `printf %s THE-KEY | sha256sum` prints";

/// A SHA-256 digest, written `sha256:` and 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of the value of a fact that shows bytes, as the client sent it: what `printf %s
    /// VALUE | sha256sum` prints. For any fact see [`Digest::of_value`].
    #[must_use]
    pub fn of_fact(value: &str) -> Self {
        // Such facts show bytes as Latin-1. A text with other characters was sent in UTF-8.
        let sent: Option<Vec<u8>> =
            value.chars().map(|next| u8::try_from(u32::from(next)).ok()).collect();
        match sent {
            Some(sent) if !value.is_ascii() => Self(sha256(&sent)),
            _ => Self(sha256(value.as_bytes())),
        }
    }

    /// The digest of the value of the fact with this name, as the client sent it. Facts of a JSON
    /// body and of a call for a decision are texts, and all others show bytes.
    #[must_use]
    pub fn of_value(fact: &str, value: &str) -> Self {
        if is_text(fact) { Self(sha256(value.as_bytes())) } else { Self::of_fact(value) }
    }

    /// The digest of any bytes: of several facts, or of a key that is too long.
    ///
    /// ```
    /// use weir_policy::Digest;
    ///
    /// let digest = Digest::of(b"abc");
    /// assert!(digest.to_string().starts_with("sha256:ba7816bf"));
    /// assert_eq!(digest, Digest::of_fact("abc"));
    /// ```
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(sha256(bytes))
    }

    /// Reads `sha256:HEX`. Returns `None` for anything but a complete digest.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(DIGEST_START)?.as_bytes();
        let mut digest = [0; 32];
        if digits.len() != 2 * digest.len() {
            return None;
        }
        for (byte, pair) in digest.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = pair.iter().try_fold(0, |byte, digit| Some(byte << 4 | value(*digit)?))?;
        }
        Some(Self(digest))
    }
}

fn value(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

/// The 64 digits alone, in lower case.
impl fmt::LowerHex for Digest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{DIGEST_START}{self:x}")
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NIST's example.
    const ABC: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn a_digest_is_that_of_the_bytes_that_were_sent() {
        assert_eq!(Digest::of_fact("abc").to_string(), ABC);
        // `printf é | sha256sum` in a UTF-8 terminal, which is what most clients send.
        let sent = "\u{c3}\u{a9}";
        let expected = "sha256:4a99557e4033c3539de2eb65472017cad5f9557f7a0625a09f1c3f6e2ba69c4c";
        assert_eq!(Digest::of_fact(sent).to_string(), expected);
    }

    #[test]
    fn only_a_whole_digest_is_one() {
        assert_eq!(Digest::parse(ABC), Some(Digest::of_fact("abc")));
        assert_eq!(
            Digest::parse(&ABC.to_uppercase().replace("SHA256", "sha256")),
            Some(Digest::of_fact("abc"))
        );
        for wrong in [
            "",
            "sha256:",
            "sha256:5f1c0a",
            "abc",
            &ABC[7..],
            &format!("{ABC}0"),
            &ABC.replace('b', "g"),
            &ABC.replace("ba", "+a"),
        ] {
            assert_eq!(Digest::parse(wrong), None, "{wrong}");
        }
    }
}
