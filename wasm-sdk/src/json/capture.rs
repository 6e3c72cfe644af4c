//! Reads [`Json`] through serde: from our own reader the text itself, from any other what it shows.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::{Json, text};

/// The name by which our own reader is asked for a text.
pub(super) const TEXT: &str = "weir-policy::Json";

struct Capture;

impl<'de> Deserialize<'de> for Json<'de> {
    #[inline(always)]
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_newtype_struct(TEXT, Capture)
    }
}

fn written<E>(value: impl fmt::Display) -> Result<Json<'static>, E> {
    Ok(Json(Cow::Owned(value.to_string())))
}

pub(super) fn quoted(text: &str) -> String {
    let mut json = String::from("\"");
    for next in text.chars() {
        // Writing to a String can't fail.
        let _ = match next {
            '"' | '\\' => write!(json, "\\{next}"),
            '\0'..='\u{1f}' => write!(json, "\\u{:04x}", u32::from(next)),
            _ => write!(json, "{next}"),
        };
    }
    json.push('"');
    json
}

impl<'de> Visitor<'de> for Capture {
    type Value = Json<'de>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("any value")
    }

    /// Our own reader. Nothing else is asked for a newtype and shows bytes; if it did, they are
    /// checked.
    fn visit_borrowed_bytes<E: Error>(self, bytes: &'de [u8]) -> Result<Self::Value, E> {
        let text = str::from_utf8(bytes).map_err(|_| E::custom("bytes that are no text"))?;
        let value = text::check(text).map_err(|_| E::custom("bytes that are no JSON"))?;
        Ok(Json::of_valid(value))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
        written(value)
    }

    fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
        written(value)
    }

    fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
        written(value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
        if value.is_finite() {
            written(format_args!("{value:?}"))
        } else {
            Err(E::custom("a number that JSON has no text for"))
        }
    }

    fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
        written(quoted(value))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        written("null")
    }

    fn visit_none<E>(self) -> Result<Self::Value, E> {
        written("null")
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_newtype_struct(TEXT, self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut json = String::from("[");
        while let Some(item) = items.next_element::<Json<'de>>()? {
            let comma = if json.len() > 1 { "," } else { "" };
            let _ = write!(json, "{comma}{}", item.0);
        }
        json.push(']');
        written(json)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut json = String::from("{");
        while let Some((name, value)) = members.next_entry::<String, Json<'de>>()? {
            let comma = if json.len() > 1 { "," } else { "" };
            let _ = write!(json, "{comma}{}:{}", quoted(&name), value.0);
        }
        json.push('}');
        written(json)
    }
}
