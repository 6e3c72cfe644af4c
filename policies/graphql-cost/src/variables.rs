//! The variables of a request, as far as they say how long lists are. Knows no documents.
//!
//! What is inside lists is only counted, and of the members of objects only those are kept that may
//! be a size: a client can send a megabyte of others.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor,
};
use serde_json::value::RawValue;

use crate::document::{rounded, whole};

/// Maximum number of variables of one operation.
const VARIABLES_MAX: usize = 1_000;
/// Maximum number of members of all objects among them. What is deeper inside does not count.
const MEMBERS_MAX: usize = 2_000;

/// A variable's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    /// A number of 0 or more, even if it is written as a text.
    Number(u64),
    /// The length of a list, 1 at least.
    List(u64),
    /// The members of an object that may be a size.
    Object(BTreeMap<String, Self>),
    Other,
}

/// Reads all variables: a JSON object, or null.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variables<'p> {
    /// The names in objects that may say a size. Sorted.
    pub(crate) members: &'p [String],
}

impl<'de> DeserializeSeed<'de> for Variables<'_> {
    type Value = BTreeMap<String, Given>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Variables<'_> {
    type Value = BTreeMap<String, Given>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(BTreeMap::new())
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut found = BTreeMap::new();
        let seen = Cell::new(0);
        while let Some(name) = map.next_key()? {
            let object = Object { members: self.members, seen: &seen };
            insert(&mut found, name, map.next_value_seed(Value { object: Some(object) })?)?;
            if found.len() > VARIABLES_MAX {
                let reason = format_args!("more than {VARIABLES_MAX} variables");
                return Err(M::Error::custom(reason));
            }
        }
        Ok(found)
    }
}

/// Servers differ in which of two values with the same name they take.
fn insert<E: Error>(
    values: &mut BTreeMap<String, Given>,
    name: String,
    value: Given,
) -> Result<(), E> {
    match values.insert(name, value) {
        Some(_) => Err(E::custom("a name is there twice")),
        None => Ok(()),
    }
}

/// One value.
struct Value<'p> {
    /// How an object is read; `None` if it is not looked into.
    object: Option<Object<'p>>,
}

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = Given;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Given, D::Error> {
        let json = <&RawValue>::deserialize(deserializer)?.get();
        let number = match (json.as_bytes().first(), self.object) {
            (Some(b'['), _) => return Ok(Given::List(length(json))),
            (Some(b'{'), Some(object)) => {
                let mut reader = serde_json::Deserializer::from_str(json);
                let found = reader.deserialize_map(object);
                return found.map(Given::Object).map_err(D::Error::custom);
            }
            (Some(b'"'), _) => whole(json.trim_matches('"')),
            _ => whole(json).or_else(|| rounded(json.parse().ok()?)),
        };
        Ok(number.map_or(Given::Other, Given::Number))
    }
}

/// The items of a list, 1 at least.
fn length(json: &str) -> u64 {
    let (mut length, mut depth) = (1, 0_u32);
    let mut bytes = json.bytes();
    while let Some(next) = bytes.next() {
        match next {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' if depth == 1 => length += 1,
            b'"' => {
                while let Some(inside) = bytes.next().filter(|inside| *inside != b'"') {
                    if inside == b'\\' {
                        bytes.next();
                    }
                }
            }
            _ => {}
        }
    }
    length
}

/// The members of an object that may be a size.
#[derive(Clone, Copy)]
struct Object<'p> {
    /// Their names. Sorted.
    members: &'p [String],
    /// How many members there were so far.
    seen: &'p Cell<usize>,
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = BTreeMap<String, Given>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut found = BTreeMap::new();
        while let Some(name) = map.next_key_seed(OneOf(self.members))? {
            self.seen.set(self.seen.get() + 1);
            if self.seen.get() > MEMBERS_MAX {
                let reason = format_args!("more than {MEMBERS_MAX} members of variables");
                return Err(M::Error::custom(reason));
            }
            match name {
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
                Some(name) => {
                    let value = map.next_value_seed(Value { object: None })?;
                    insert(&mut found, name.to_owned(), value)?;
                }
            }
        }
        Ok(found)
    }
}

/// A name, if it is one of these. Others are not copied.
struct OneOf<'p>(&'p [String]);

impl<'de, 'p> DeserializeSeed<'de> for OneOf<'p> {
    type Value = Option<&'p str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'p> Visitor<'_> for OneOf<'p> {
    type Value = Option<&'p str>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        let at = self.0.binary_search_by(|known| known.as_str().cmp(name)).ok();
        Ok(at.and_then(|index| self.0.get(index)).map(String::as_str))
    }
}
