//! Reads valid JSON into a type, through serde, and knows the path of what doesn't fit. It is the
//! only reader of a policy's configuration, so that each type is compiled for it once.

mod error;
mod parts;

use serde::Deserializer;
use serde::de::{Expected, Visitor};
use serde::forward_to_deserialize_any;

use super::capture::TEXT;
use super::{Json, Kind, Whole, kind, string, whole};
use parts::{Items, Members, Variant};

pub(crate) use error::{Error, Problem, unknown};
use parts::Path;
pub(crate) use parts::{Step, shown};

/// Where the reader is, and what it passes over.
#[derive(Debug, Default)]
pub(crate) struct Track<'de> {
    /// The way to the value that is being read; after an error, to the one that didn't fit.
    pub(crate) path: Path<'de>,
    /// Members that are not read.
    pub(crate) removed: Vec<Path<'de>>,
    /// Values instead of which the stand-in is read.
    pub(crate) replaced: Vec<Path<'de>>,
    /// The stand-in, as JSON.
    pub(crate) stand_in: &'de str,
}

/// One value.
pub(crate) struct Reader<'r, 'de> {
    json: &'de str,
    track: &'r mut Track<'de>,
}

impl<'r, 'de> Reader<'r, 'de> {
    /// A reader of a whole value.
    pub(crate) fn new(json: &'de Json<'_>, track: &'r mut Track<'de>) -> Self {
        track.path.clear();
        Self::at(&json.0, track)
    }

    /// A reader of the value at the path of `track`.
    fn at(json: &'de str, track: &'r mut Track<'de>) -> Self {
        let json = if track.replaced.contains(&track.path) { track.stand_in } else { json };
        Self { json, track }
    }

    #[cold]
    fn wrong(&self, expected: &dyn Expected) -> Error {
        wrong(self.json, expected)
    }

    fn whole<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match whole(self.json) {
            Some(Whole::Unsigned(number)) => visitor.visit_u64(number),
            Some(Whole::Negative(number)) => visitor.visit_i64(number),
            None => Err(self.wrong(&visitor)),
        }
    }
}

/// The error about another value than expected.
fn wrong(json: &str, expected: &dyn Expected) -> Error {
    let found = Json::of_valid(json).found();
    Error::unfit(&found, &expected.to_string())
}

macro_rules! whole_numbers {
    ($($name:ident)+) => {$(
        fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            self.whole(visitor)
        }
    )+};
}

macro_rules! as_another {
    ($($name:ident($($given:ident: $type:ty),*) => $other:ident;)+) => {$(
        fn $name<V: Visitor<'de>>(self, $($given: $type,)* visitor: V) -> Result<V::Value, Error> {
            $(let _ = $given;)*
            self.$other(visitor)
        }
    )+};
}

impl<'de> Deserializer<'de> for Reader<'_, 'de> {
    type Error = Error;

    whole_numbers! {
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
    }

    as_another! {
        deserialize_f32() => deserialize_f64;
        deserialize_char() => deserialize_str;
        deserialize_string() => deserialize_str;
        deserialize_identifier() => deserialize_str;
        deserialize_unit_struct(_name: &'static str) => deserialize_unit;
        deserialize_tuple(_length: usize) => deserialize_seq;
        deserialize_tuple_struct(_name: &'static str, _length: usize) => deserialize_seq;
        deserialize_struct(_name: &'static str, _fields: &'static [&'static str]) => deserialize_map;
    }

    forward_to_deserialize_any! { bytes byte_buf }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match kind(self.json) {
            Kind::Null => visitor.visit_unit(),
            Kind::Bool => self.deserialize_bool(visitor),
            Kind::Number => self.deserialize_f64(visitor),
            Kind::String => self.deserialize_str(visitor),
            Kind::List => self.deserialize_seq(visitor),
            Kind::Table => self.deserialize_map(visitor),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.json {
            "true" => visitor.visit_bool(true),
            "false" => visitor.visit_bool(false),
            _ => Err(self.wrong(&visitor)),
        }
    }

    /// A whole number is shown as one.
    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if kind(self.json) != Kind::Number || whole(self.json).is_some() {
            return self.whole(visitor);
        }
        match self.json.parse() {
            Ok(number) if f64::is_finite(number) => visitor.visit_f64(number),
            _ => Err(self.wrong(&visitor)),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match string(self.json) {
            Some(text) => parts::visit_text(text, visitor),
            None => Err(self.wrong(&visitor)),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match kind(self.json) {
            Kind::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match kind(self.json) {
            Kind::Null => visitor.visit_unit(),
            _ => Err(self.wrong(&visitor)),
        }
    }

    // Inlined, so that only one of the two is compiled for each type.
    #[inline(always)]
    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        if name == TEXT {
            visitor.visit_borrowed_bytes(self.json.as_bytes())
        } else {
            visitor.visit_newtype_struct(self)
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let Some(mut items) = Items::of(self.json, self.track) else {
            return Err(wrong(self.json, &visitor));
        };
        let value = visitor.visit_seq(&mut items)?;
        items.end()?;
        Ok(value)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let Some(mut members) = Members::of(self.json, self.track) else {
            return Err(wrong(self.json, &visitor));
        };
        let value = visitor.visit_map(&mut members)?;
        members.end()?;
        Ok(value)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match Variant::of(self.json, self.track) {
            Some(variant) => visitor.visit_enum(variant),
            None => Err(wrong(self.json, &"string or map")),
        }
    }

    /// It is not looked at.
    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }
}
