//! Names that appear in metrics, logs and messages. They are checked when the configuration is
//! read, since a bad one would fail each request.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::mistakes::message;

const NAME_BYTES_MAX: usize = 64;
/// What messages say was expected if [`is_name`] returns false.
pub const NAME_EXPECTED: &str = "1 to 64 of a-z 0-9 . _ -";
const FIELD_BYTES_MAX: usize = 128;
/// Fields that the proxy lets no policy set, one name per line.
const RESERVED_FIELDS: &str = include_str!("../reserved-fields.txt");

/// Whether this may be the name of a limit, a label or a unit.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
    !text.is_empty() && text.len() <= NAME_BYTES_MAX && text.bytes().all(plain)
}

/// The name of a header field that a policy may set, in lower case: use it as the type of a
/// setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldName(String);

impl FieldName {
    /// Reads a name.
    ///
    /// # Errors
    /// The message of a mistake: what was found and what was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        let tchar = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        let name = text.to_ascii_lowercase();
        let wrong = |expected: &str| Err(message(&format_args!("{text:?}"), &expected));
        if name.is_empty() || name.len() > FIELD_BYTES_MAX || !name.bytes().all(tchar) {
            return wrong("the name of a header field");
        }
        if RESERVED_FIELDS.lines().any(|reserved| reserved == name) {
            return wrong("a field that does not frame the message or route it");
        }
        Ok(Self(name))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for FieldName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_a_policy_may_not_set_is_an_error() {
        assert_eq!(serde_json::from_str::<FieldName>("\"X-Plan\"").unwrap().as_str(), "x-plan");
        for wrong in [
            "",
            "x plan",
            "x-plan:",
            "Host",
            "content-length",
            "Expect",
            "proxy-authorization",
            "weir-degraded",
            "\u{e9}",
            &"x".repeat(129),
        ] {
            assert!(serde_json::from_str::<FieldName>(&format!("{wrong:?}")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_are_plain() {
        assert!(is_name("per-minute_1.b"));
        for wrong in ["", "A", "a b", "\u{e9}", &"x".repeat(65)] {
            assert!(!is_name(wrong), "{wrong}");
        }
    }
}
