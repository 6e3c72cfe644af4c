//! Where a request has its token.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use weir_policy::Facts;

/// The field that has it unless the configuration says otherwise.
const AUTHORIZATION: &str = "header.authorization";
const SCHEME: &str = "bearer ";

/// The fact with the token: a field or a cookie. Use it as the type of a setting.
#[derive(Debug)]
pub(crate) struct Source(String);

/// What was found there.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found<'a> {
    One(&'a str),
    None,
    /// Only the upstream knows which it believes.
    Several,
}

impl Source {
    pub(crate) fn fact(&self) -> &str {
        &self.0
    }

    pub(crate) fn find<'a>(&self, facts: &Facts<'a>) -> Found<'a> {
        let mut values = facts.all(&self.0);
        let (Some(value), None) = (values.next(), values.next()) else {
            return if facts.first(&self.0).is_some() { Found::Several } else { Found::None };
        };
        let token = match self.0 == AUTHORIZATION {
            // Another scheme, such as Basic, is not a token.
            true => match value.split_at_checked(SCHEME.len()) {
                Some((scheme, token)) if scheme.eq_ignore_ascii_case(SCHEME) => token,
                _ => "",
            },
            false => value,
        };
        match token.trim_matches(' ') {
            "" => Found::None,
            token => Found::One(token),
        }
    }
}

impl Default for Source {
    fn default() -> Self {
        Self(AUTHORIZATION.to_owned())
    }
}

impl<'de> Deserialize<'de> for Source {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let own = text.strip_prefix("header.").or_else(|| text.strip_prefix("cookie."));
        let tchar = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if own.is_none_or(|own| own.is_empty() || !own.bytes().all(tchar)) {
            let expected = "`header.NAME` or `cookie.NAME`, such as \"cookie.session\"";
            return Err(D::Error::custom(format!("found {text:?}, expected {expected}")));
        }
        // The names of fields have no case.
        let is_field = text.starts_with("header.");
        Ok(Self(if is_field { text.to_ascii_lowercase() } else { text }))
    }
}
