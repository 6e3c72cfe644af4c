//! What is inside a value: members, items, and the content of an enum's variant.

use std::borrow::Cow;

use serde::de::value::CowStrDeserializer;
use serde::de::{
    DeserializeSeed, EnumAccess, Error as _, IntoDeserializer, MapAccess, SeqAccess, Unexpected,
    VariantAccess, Visitor,
};
use serde::{Deserializer, forward_to_deserialize_any};

use super::super::{Kind, inside, kind, string, text};
use super::{Error, Reader, Track, wrong};
use crate::config::join;

/// The way from a configuration to a value in it.
pub(crate) type Path<'de> = Vec<Step<'de>>;

/// One step of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step<'de> {
    Index(usize),
    Key(Cow<'de, str>),
    /// Into the content of an enum's variant.
    Variant(Cow<'de, str>),
}

/// A path as messages show it: `limits[0].quota`.
pub(crate) fn shown(path: &[Step<'_>]) -> String {
    path.iter().fold(String::new(), |above, step| match step {
        Step::Index(index) => format!("{above}[{index}]"),
        Step::Key(key) | Step::Variant(key) => join(&above, key),
    })
}

pub(super) fn visit_text<'de, V: Visitor<'de>>(
    text: Cow<'de, str>,
    visitor: V,
) -> Result<V::Value, Error> {
    match text {
        Cow::Borrowed(text) => visitor.visit_borrowed_str(text),
        Cow::Owned(text) => visitor.visit_string(text),
    }
}

/// The items of a list.
pub(super) struct Items<'r, 'de> {
    rest: &'de str,
    index: usize,
    track: &'r mut Track<'de>,
    depth: usize,
}

impl<'r, 'de> Items<'r, 'de> {
    pub(super) fn of(json: &'de str, track: &'r mut Track<'de>) -> Option<Self> {
        let depth = track.path.len();
        let is_list = kind(json) == Kind::List;
        is_list.then(|| Self { rest: inside(json, Kind::List), index: 0, track, depth })
    }

    /// The next item, to whose path the track is set.
    fn next(&mut self) -> Option<&'de str> {
        let item = text::next(&mut self.rest)?;
        self.track.path.truncate(self.depth);
        self.track.path.push(Step::Index(self.index));
        self.index += 1;
        Some(item)
    }

    /// Fails if there are more items than the type has read.
    pub(super) fn end(&mut self) -> Result<(), Error> {
        let read = self.index;
        while self.next().is_some() {}
        self.track.path.truncate(self.depth);
        if self.index > read {
            return Err(Error::invalid_length(self.index, &"fewer items"));
        }
        Ok(())
    }
}

impl<'de> SeqAccess<'de> for &mut Items<'_, 'de> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        let Some(item) = self.next() else { return Ok(None) };
        let value = seed.deserialize(Reader::at(item, self.track))?;
        self.track.path.truncate(self.depth);
        Ok(Some(value))
    }
}

/// The members of a table.
pub(super) struct Members<'r, 'de> {
    rest: &'de str,
    track: &'r mut Track<'de>,
    depth: usize,
}

impl<'r, 'de> Members<'r, 'de> {
    pub(super) fn of(json: &'de str, track: &'r mut Track<'de>) -> Option<Self> {
        let depth = track.path.len();
        let is_table = kind(json) == Kind::Table;
        is_table.then(|| Self { rest: inside(json, Kind::Table), track, depth })
    }

    /// The name of the next member that was not removed, to whose path the track is set.
    fn next(&mut self) -> Option<Cow<'de, str>> {
        loop {
            let name = string(text::next(&mut self.rest)?)?;
            self.track.path.truncate(self.depth);
            self.track.path.push(Step::Key(name.clone()));
            if !self.track.removed.contains(&self.track.path) {
                return Some(name);
            }
            text::next(&mut self.rest);
        }
    }

    /// Fails if there are more members than the type has read.
    pub(super) fn end(&mut self) -> Result<(), Error> {
        let more = self.next().is_some();
        self.track.path.truncate(self.depth);
        if more {
            return Err(Error::custom("more keys than expected, expected fewer"));
        }
        Ok(())
    }
}

impl<'de> MapAccess<'de> for &mut Members<'_, 'de> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        match self.next() {
            Some(name) => seed.deserialize(Name(name)).map(Some),
            None => {
                self.track.path.truncate(self.depth);
                Ok(None)
            }
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let json = text::next(&mut self.rest).unwrap_or("null");
        let value = seed.deserialize(Reader::at(json, self.track))?;
        self.track.path.truncate(self.depth);
        Ok(value)
    }
}

/// The name of a member. In JSON it is a text, even if the type wants a number.
struct Name<'de>(Cow<'de, str>);

macro_rules! numbers {
    ($($name:ident $visit:ident)+) => {$(
        fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            match self.0.parse() {
                Ok(number) => visitor.$visit(number),
                Err(_) => Err(Error::invalid_type(Unexpected::Str(&self.0), &visitor)),
            }
        }
    )+};
}

impl<'de> Deserializer<'de> for Name<'de> {
    type Error = Error;

    numbers! {
        deserialize_bool visit_bool
        deserialize_u8 visit_u8 deserialize_u16 visit_u16 deserialize_u32 visit_u32
        deserialize_u64 visit_u64 deserialize_i8 visit_i8 deserialize_i16 visit_i16
        deserialize_i32 visit_i32 deserialize_i64 visit_i64
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visit_text(self.0, visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let name_of: CowStrDeserializer<'_, Error> = self.0.into_deserializer();
        name_of.deserialize_enum(name, variants, visitor)
    }

    forward_to_deserialize_any! {
        f32 f64 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct
        identifier ignored_any
    }
}

/// A variant: `"name"`, or `{ "name": content }`.
pub(super) struct Variant<'r, 'de> {
    name: Cow<'de, str>,
    content: Option<&'de str>,
    track: &'r mut Track<'de>,
}

impl<'r, 'de> Variant<'r, 'de> {
    pub(super) fn of(json: &'de str, track: &'r mut Track<'de>) -> Option<Self> {
        if let Some(name) = string(json) {
            return Some(Self { name, content: None, track });
        }
        let mut rest = inside(json, Kind::Table);
        let name = string(text::next(&mut rest)?)?;
        let content = text::next(&mut rest);
        let only = text::next(&mut rest).is_none();
        only.then_some(Self { name, content, track })
    }
}

impl<'r, 'de> EnumAccess<'de> for Variant<'r, 'de> {
    type Error = Error;
    type Variant = Content<'r, 'de>;

    fn variant_seed<V: DeserializeSeed<'de>>(
        self,
        seed: V,
    ) -> Result<(V::Value, Self::Variant), Error> {
        let variant = seed.deserialize(Name(self.name.clone()))?;
        if self.content.is_some() {
            self.track.path.push(Step::Variant(self.name));
        }
        Ok((variant, Content { json: self.content, track: self.track }))
    }
}

/// The content of a variant.
pub(super) struct Content<'r, 'de> {
    json: Option<&'de str>,
    track: &'r mut Track<'de>,
}

impl<'r, 'de> Content<'r, 'de> {
    fn reader(self, expected: &'static str) -> Result<Reader<'r, 'de>, Error> {
        match self.json {
            Some(json) => Ok(Reader::at(json, self.track)),
            None => Err(Error::invalid_type(Unexpected::UnitVariant, &expected)),
        }
    }
}

impl<'de> VariantAccess<'de> for Content<'_, 'de> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        match self.json {
            Some(json) if kind(json) != Kind::Null => Err(wrong(json, &"unit variant")),
            _ => Ok(()),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(self.reader("newtype variant")?)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        self.reader("tuple variant")?.deserialize_seq(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.reader("struct variant")?.deserialize_map(visitor)
    }
}
