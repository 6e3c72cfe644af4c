//! Members of JSON objects, by names that must be there in only one way.
//!
//! Of two members with the same name, some servers take the first and some the last. Some ignore
//! the case of ASCII letters, and that of others which look like them.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};

/// The name of a member.
pub(crate) enum Named<T> {
    /// One of the known names.
    As(T),
    Otherwise,
}

/// Reads the name of a member. One like a known name, but not the same, is an error.
pub(crate) struct Key<'n, T>(pub(crate) &'n [(&'static str, T)]);

impl<'de, T: Copy> DeserializeSeed<'de> for Key<'_, T> {
    type Value = Named<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Named<T>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<T: Copy> Visitor<'_> for Key<'_, T> {
    type Value = Named<T>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a name")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Named<T>, E> {
        if let Some((_, found)) = self.0.iter().find(|(name, _)| *name == key) {
            return Ok(Named::As(*found));
        }
        if !key.is_ascii() || self.0.iter().any(|(name, _)| name.eq_ignore_ascii_case(key)) {
            return Err(E::custom("a name that some servers would take for another one"));
        }
        Ok(Named::Otherwise)
    }
}

/// Reads one member of an object. `None` if the object is null or has no such member.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member<S> {
    pub(crate) name: &'static str,
    pub(crate) seed: S,
}

impl<'de, S: DeserializeSeed<'de> + Copy> DeserializeSeed<'de> for Member<S> {
    type Value = Option<S::Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, S: DeserializeSeed<'de> + Copy> Visitor<'de> for Member<S> {
    type Value = Option<S::Value>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut value = None;
        while let Some(named) = map.next_key_seed(Key(&[(self.name, ())]))? {
            match named {
                Named::Otherwise => {
                    map.next_value::<IgnoredAny>()?;
                }
                Named::As(()) if value.is_some() => {
                    return Err(M::Error::custom("a name is there twice"));
                }
                Named::As(()) => value = Some(map.next_value_seed(self.seed)?),
            }
        }
        Ok(value)
    }
}
