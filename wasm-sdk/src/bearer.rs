//! The token in a request's `Authorization` field.

use crate::Facts;

/// The fact that [`bearer`] reads, for the manifest.
pub const AUTHORIZATION: &str = "header.authorization";
const SCHEME: &str = "bearer";

/// The request's bearer token (RFC 6750): what follows `Bearer` in its `Authorization` field.
///
/// `None` if there is no such field, if it has another scheme, or if it could be read in two ways:
/// two such fields, or a token of characters that none may have.
///
/// ```
/// use weir_policy::{AUTHORIZATION, Facts, bearer};
///
/// let shown = [(AUTHORIZATION.to_owned(), "Bearer abc.def".to_owned())];
/// assert_eq!(bearer(&Facts::new(&shown)), Some("abc.def"));
/// ```
#[must_use]
pub fn bearer<'a>(facts: &Facts<'a>) -> Option<&'a str> {
    let (scheme, token) = facts.only(AUTHORIZATION)?.split_once(' ')?;
    let token = token.trim_matches(' ');
    (scheme.eq_ignore_ascii_case(SCHEME) && is_token68(token)).then_some(token)
}

/// RFC 9110, section 11.2.
fn is_token68(token: &str) -> bool {
    let characters = token.trim_end_matches('=');
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/".contains(&byte);
    !characters.is_empty() && characters.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(fields: &[&str]) -> Option<String> {
        let shown: Vec<_> =
            fields.iter().map(|field| (AUTHORIZATION.to_owned(), (*field).to_owned())).collect();
        bearer(&Facts::new(&shown)).map(str::to_owned)
    }

    #[test]
    fn a_token_is_found_whatever_the_case_of_its_scheme() {
        for field in ["Bearer a-._~+/9==", "bearer a-._~+/9==", "BEARER  a-._~+/9== "] {
            assert_eq!(of(&[field]).as_deref(), Some("a-._~+/9=="), "{field}");
        }
    }

    #[test]
    fn an_ambiguous_field_holds_no_token() {
        for fields in [
            &[][..],
            &[""],
            &["Bearer"],
            &["Bearer "],
            &["Bearer =="],
            &["Basic abc"],
            &["Bearer a b"],
            &["Bearer a,b"],
            &["Bearer a=b"],
            &["Bearer \"a\""],
            &["Bearer\ta"],
            &["Bearer a", "Bearer a"],
        ] {
            assert_eq!(of(fields), None, "{fields:?}");
        }
    }
}
