//! The JSON that a request is written in: one operation, or a batch of them. It is read once, from
//! left to right. What the operations say is not looked at.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::value::RawValue;

use crate::members::{Key, Member, Named};
use crate::variables::{Given, Variables};

const NAMES: [(&str, Part); 4] = [
    ("query", Part::Query),
    ("operationName", Part::Name),
    ("variables", Part::Variables),
    ("extensions", Part::Extensions),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Query,
    Name,
    Variables,
    Extensions,
}

/// How a body is read: as all its operations, but at most so many, and how many there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Body<'p> {
    pub(crate) operations_max: usize,
    /// The names in input objects that may say a size. Sorted.
    pub(crate) members: &'p [String],
}

/// `persistedQuery.sha256Hash` of the extensions.
pub(crate) const EXTENSIONS: Member<Member<Text>> =
    Member { name: "persistedQuery", seed: Member { name: "sha256Hash", seed: Text } };

/// An operation as it is written in JSON. Its texts are not copied yet.
#[derive(Debug, Default)]
pub(crate) struct Written<'a> {
    pub(crate) query: Option<&'a RawValue>,
    pub(crate) name: Option<&'a RawValue>,
    pub(crate) variables: BTreeMap<String, Given>,
    /// The hash of a persisted query.
    pub(crate) hash: Option<&'a RawValue>,
}

impl<'de> DeserializeSeed<'de> for Body<'_> {
    type Value = (Vec<Written<'de>>, usize);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Body<'_> {
    type Value = (Vec<Written<'de>>, usize);

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an operation or a list of them")
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Self::Value, M::Error> {
        Ok((vec![Operation(self).visit_map(map)?], 1))
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut items: S) -> Result<Self::Value, S::Error> {
        let mut first = Vec::new();
        while first.len() < self.operations_max
            && let Some(item) = items.next_element_seed(Operation(self))?
        {
            first.push(item);
        }
        let mut found = first.len();
        while items.next_element::<IgnoredAny>()?.is_some() {
            found += 1;
        }
        Ok((first, found))
    }
}

struct Operation<'p>(Body<'p>);

impl<'de> DeserializeSeed<'de> for Operation<'_> {
    type Value = Written<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Operation<'_> {
    type Value = Written<'de>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an operation")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut written = Written::default();
        let mut seen = Vec::with_capacity(NAMES.len());
        while let Some(named) = map.next_key_seed(Key(&NAMES))? {
            let Named::As(part) = named else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            if seen.contains(&part) {
                return Err(M::Error::custom("a name is there twice"));
            }
            seen.push(part);
            match part {
                Part::Query => written.query = map.next_value_seed(Text)?,
                Part::Name => written.name = map.next_value_seed(Text)?,
                Part::Variables => {
                    let members = self.0.members;
                    written.variables = map.next_value_seed(Variables { members })?;
                }
                Part::Extensions => {
                    written.hash = map.next_value_seed(EXTENSIONS)?.flatten().flatten();
                }
            }
        }
        Ok(written)
    }
}

/// A text as it is written in JSON; `None` if it is null.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text;

impl<'de> DeserializeSeed<'de> for Text {
    type Value = Option<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        let json = <&RawValue>::deserialize(deserializer)?;
        match json.get() {
            "null" => Ok(None),
            text if text.starts_with('"') => Ok(Some(json)),
            _ => Err(D::Error::custom("expected a text")),
        }
    }
}
