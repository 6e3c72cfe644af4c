//! Names and values of header fields.
//!
//! CGI makes `HTTP_X_API_KEY` of a field's name, with `_` for every character that is not a letter
//! or digit (RFC 3875, 4.1.18, speaks of hyphens; lighttpd does it with all). So `X-Api-Key`,
//! `X_Api_Key` and `X.Api.Key` may be one field upstream.

/// Whether an upstream may read the name as another one: it has a character that is no letter,
/// digit or hyphen.
#[must_use]
pub fn is_ambiguous(name: &[u8]) -> bool {
    !name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
}

/// Whether an upstream may read the two names as one.
#[must_use]
pub fn is_same(one: &[u8], other: &[u8]) -> bool {
    let separator = |byte: u8| !byte.is_ascii_alphanumeric();
    one.len() == other.len()
        && one
            .iter()
            .zip(other)
            .all(|(a, b)| a.eq_ignore_ascii_case(b) || (separator(*a) && separator(*b)))
}

/// A field's value without what only some upstreams cut off its ends: NBSP and NEL, which Python's
/// `str.strip` takes for blanks in a value that was decoded as Latin-1. They are cut off values
/// that are not UTF-8, in which such bytes may be a part of a character. (Blanks and tabs are
/// refused or cut off where a head is read.)
#[must_use]
pub fn trimmed(value: &[u8]) -> &[u8] {
    let blank = |byte: &u8| matches!(*byte, 0x85 | 0xA0);
    if !(value.first().is_some_and(blank) || value.last().is_some_and(blank))
        || std::str::from_utf8(value).is_ok()
    {
        return value;
    }
    let any = |byte: &u8| blank(byte) || matches!(*byte, b' ' | b'\t');
    let start = value.iter().position(|byte| !any(byte)).unwrap_or(value.len());
    let end = value.iter().rposition(|byte| !any(byte)).map_or(start, |last| last + 1);
    value.get(start..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_its_own_if_it_has_letters_digits_and_hyphens_only() {
        for (name, expected) in [
            ("x-api-key", false),
            ("X-2", false),
            ("x_api_key", true),
            ("x.api.key", true),
            ("x-api~key", true),
            ("x!", true),
        ] {
            assert_eq!(is_ambiguous(name.as_bytes()), expected, "{name}");
        }
    }

    #[test]
    fn names_are_the_same_if_only_case_and_separators_differ() {
        for other in ["X-API-KEY", "x_api_key", "x.api~key", "x-api_key"] {
            assert!(is_same(b"x-api-key", other.as_bytes()), "{other}");
        }
        for other in ["x-api-ke", "x-api-keys", "xaapi-key", "x-api-kex"] {
            assert!(!is_same(b"x-api-key", other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn a_latin_1_value_has_no_blanks_around_it() {
        for (value, expected) in [
            (&b"abc"[..], &b"abc"[..]),
            (b"abc\xA0", b"abc"),
            (b"\x85 abc\xA0\x85", b"abc"),
            (b"\xA0", b""),
            (b"a\xA0b", b"a\xA0b"),
            ("Voil\u{e0}".as_bytes(), "Voil\u{e0}".as_bytes()),
        ] {
            assert_eq!(trimmed(value), expected);
        }
    }
}
