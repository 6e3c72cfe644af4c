//! The token in an `Authorization` field (RFC 6750, 2.1).
//!
//! Frameworks compare the scheme without case, and cut blanks off the token: FastAPI reads 64
//! spellings of `Bearer`, each with any number of blanks, as one.

const SCHEME: &[u8] = b"bearer";

/// What a field's value says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bearer<'a> {
    /// No token, or another scheme.
    None,
    /// This token.
    One(&'a [u8]),
    /// It depends on the upstream: the whole rest, or what comes before a blank in it.
    Either(&'a [u8], &'a [u8]),
}

/// The token in the value of an `Authorization` field.
#[must_use]
pub fn bearer(value: &[u8]) -> Bearer<'_> {
    let value = value.trim_ascii();
    let Some((scheme, rest)) = value.split_at_checked(SCHEME.len()) else { return Bearer::None };
    let separated = rest.first().is_some_and(|byte| !byte.is_ascii_graphic());
    if !scheme.eq_ignore_ascii_case(SCHEME) || !separated {
        return Bearer::None;
    }
    // What some languages take for a blank is not graphic either.
    let start = rest.iter().position(u8::is_ascii_graphic).unwrap_or(rest.len());
    let (blanks, token) = rest.split_at_checked(start).unwrap_or((rest, &[]));
    let end = token.iter().position(|byte| !byte.is_ascii_graphic());
    let first = end.and_then(|end| token.get(..end)).unwrap_or(token);
    match () {
        () if token.is_empty() => Bearer::None,
        () if end.is_some() || blanks.iter().any(|byte| *byte != b' ') => {
            Bearer::Either(rest, first)
        }
        () => Bearer::One(token),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_one_whatever_the_case_of_its_scheme_and_the_blanks_before_it() {
        for value in ["Bearer abc", "bEaReR abc", "BEARER    abc", "bearer abc  "] {
            assert_eq!(bearer(value.as_bytes()), Bearer::One(b"abc"), "{value}");
        }
        assert_eq!(bearer(b"Bearer a:b,c=="), Bearer::One(b"a:b,c=="));
    }

    #[test]
    fn another_scheme_is_no_bearer() {
        for value in ["", "Bearer", "Bearer ", "Basic abc", "Bearerabc", "Bearer-abc d", "abc"] {
            assert_eq!(bearer(value.as_bytes()), Bearer::None, "{value}");
        }
    }

    #[test]
    fn values_that_upstreams_split_differently_have_two_readings() {
        for value in
            [&b"Bearer abc def"[..], b"Bearer\tabc", b"Bearer abc\xA0", b"Bearer abc, Bearer def"]
        {
            assert!(matches!(bearer(value), Bearer::Either(..)), "{value:?}");
        }
    }
}
