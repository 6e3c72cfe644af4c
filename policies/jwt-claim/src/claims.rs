//! What a token claims: whether it is valid now and meant for this API, and the claim that is
//! counted. Knows no signature.

use std::borrow::Cow;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use weir_policy::Json;

/// One name, or several.
#[derive(Debug, Default)]
pub(crate) struct Names(Vec<String>);

impl Names {
    /// Whether `name` is one of them. Without any names all are.
    fn allow<'a>(&self, mut names: impl Iterator<Item = Cow<'a, str>>) -> bool {
        self.0.is_empty() || names.any(|name| self.0.iter().any(|known| *known == name))
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }
}

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Json::deserialize(deserializer)?;
        let items = value.one_or_several();
        let names = items.iter().map(|item| Some(item.as_str()?.into_owned()));
        names.collect::<Option<Vec<_>>>().filter(|names| !names.is_empty()).map(Self).ok_or_else(
            || D::Error::custom(format!("found {value}, expected a text, or a list of texts")),
        )
    }
}

/// Kinds of tokens, as their headers name them in `typ`. Any kind without names.
#[derive(Debug, Default, Deserialize)]
#[serde(transparent)]
pub(crate) struct Types(Names);

impl Types {
    /// Whether a token of this kind is one of them.
    pub(crate) fn allow(&self, typ: Option<&str>) -> bool {
        let Names(known) = &self.0;
        let is = |typ: &str| known.iter().any(|known| media_type(known) == media_type(typ));
        known.is_empty() || typ.is_some_and(is)
    }
}

/// A media type in one spelling: its case does not matter, and `application/` may be left out where
/// no other `/` follows (RFC 7515, section 4.1.9).
fn media_type(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    match lower.strip_prefix("application/") {
        Some(rest) if !rest.contains('/') => rest.to_owned(),
        _ => lower,
    }
}

/// Where a claim is: its name, or a JSON pointer to it. Use it as the type of a setting.
#[derive(Clone, Debug)]
pub(crate) struct Claim(String);

impl Claim {
    pub(crate) fn named(name: &str) -> Self {
        Self(name.to_owned())
    }

    /// The claim's text, or its whole number; `None` if it is neither, empty or absent.
    pub(crate) fn of(&self, claims: &Json<'_>) -> Option<String> {
        let found = match self.0.starts_with('/') {
            true => claims.pointer(&self.0),
            false => claims.get(&self.0),
        };
        let found = found?;
        match found.as_str() {
            Some(text) => Some(text.into_owned()).filter(|text| !text.is_empty()),
            None => found.is_whole().then(|| found.as_text().to_owned()),
        }
    }
}

impl Default for Claim {
    fn default() -> Self {
        Self::named("sub")
    }
}

impl<'de> Deserialize<'de> for Claim {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let escapes = text.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
        if text.is_empty() || text == "/" || (text.starts_with('/') && !escapes) {
            return Err(D::Error::custom(format!(
                "found {text:?}, expected a claim's name, or a JSON pointer such as \"/realm/tenant\""
            )));
        }
        Ok(Self(text))
    }
}

/// When a token is valid, in milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    from_ms: u64,
    until_ms: u64,
}

impl Validity {
    /// Reads `nbf` and `exp`.
    pub(crate) fn of(claims: &Json<'_>, needs_end: bool) -> Result<Self, &'static str> {
        let instant = |name: &str| match claims.get(name) {
            None => Ok(None),
            // Seconds, perhaps with a fraction.
            Some(value) => {
                value.as_thousandths().map(Some).ok_or("the token's times are malformed")
            }
        };
        let until_ms = instant("exp")?;
        if needs_end && until_ms.is_none() {
            return Err("the token never expires");
        }
        Ok(Self { from_ms: instant("nbf")?.unwrap_or(0), until_ms: until_ms.unwrap_or(u64::MAX) })
    }

    pub(crate) fn check(self, now_ms: u64, leeway_ms: u64) -> Result<(), &'static str> {
        if now_ms >= self.until_ms.saturating_add(leeway_ms) {
            return Err("the token has expired");
        }
        if now_ms.saturating_add(leeway_ms) < self.from_ms {
            return Err("the token is not valid yet");
        }
        Ok(())
    }
}

/// Checks `iss` and `aud`.
pub(crate) fn meant_for(
    claims: &Json<'_>,
    issuers: &Names,
    audiences: &Names,
) -> Result<(), &'static str> {
    let issuer = claims.get("iss");
    if !issuers.allow(issuer.iter().filter_map(Json::as_str)) {
        return Err("the token is from another issuer");
    }
    // One text, or a list of them.
    let audience = claims.get("aud");
    let all = audience.as_ref().map(Json::one_or_several).unwrap_or_default();
    if !audiences.allow(all.iter().filter_map(Json::as_str)) {
        return Err("the token is for another audience");
    }
    Ok(())
}
