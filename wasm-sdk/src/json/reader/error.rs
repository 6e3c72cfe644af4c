//! What doesn't fit, in the words of our messages. Operators don't know Rust's types.

use std::fmt::{self, Display};

use serde::de::{self, Expected, Unexpected};

use crate::mistakes::{message, nearest};

/// Small, since each step of reading returns one or a value.
#[derive(Debug)]
pub(crate) struct Error(Box<Problem>);

#[derive(Debug)]
pub(crate) enum Problem {
    /// A setting without a default.
    Missing(&'static str),
    /// The whole message, or what [`pack`](crate::config::pack) has packed.
    Text(String),
}

impl Error {
    pub(crate) fn into_problem(self) -> Problem {
        *self.0
    }

    fn text(text: String) -> Self {
        Self(Box::new(Problem::Text(text)))
    }

    /// A value of another type or range.
    pub(super) fn unfit(found: &str, expected: &str) -> Self {
        Self::text(message(&found, &plain_type(expected)))
    }
}

/// The message about a word that is not known. `none` is expected if no word is.
pub(crate) fn unknown(kind: &str, word: &str, known: &[&str], none: &str) -> String {
    let quoted: Vec<String> = known.iter().map(|known| format!("`{known}`")).collect();
    let mut expected = match quoted.as_slice() {
        [] => none.to_owned(),
        [one] => one.clone(),
        [one, two] => format!("{one} or {two}"),
        all => format!("one of {}", all.join(", ")),
    };
    if let Some(near) = nearest(word, known.iter().copied()) {
        expected.push_str(&format!("; `{near}` is near"));
    }
    message(&format_args!("the unknown {kind} `{word}`"), &expected)
}

impl std::error::Error for Error {}

impl Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Problem::Missing(field) => write!(out, "missing field `{field}`"),
            Problem::Text(text) => out.write_str(text),
        }
    }
}

impl de::Error for Error {
    fn custom<T: Display>(text: T) -> Self {
        Self::text(translate(text.to_string()))
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::unfit(&described(found), &expected.to_string())
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::unfit(&described(found), &expected.to_string())
    }

    fn invalid_length(length: usize, expected: &dyn Expected) -> Self {
        Self::unfit(&length.to_string(), &expected.to_string())
    }

    fn unknown_variant(word: &str, known: &'static [&'static str]) -> Self {
        Self::text(unknown("word", word, known, "there are no variants"))
    }

    fn unknown_field(word: &str, known: &'static [&'static str]) -> Self {
        Self::text(unknown("key", word, known, "there are no fields"))
    }

    fn missing_field(field: &'static str) -> Self {
        Self(Box::new(Problem::Missing(field)))
    }

    fn duplicate_field(_: &'static str) -> Self {
        Self::unfit("this key a second time", "each key once")
    }
}

/// The description of serde, but without the digits of a fraction.
fn described(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Bool(value) => format!("boolean `{value}`"),
        Unexpected::Unsigned(value) => format!("integer `{value}`"),
        Unexpected::Signed(value) => format!("integer `{value}`"),
        Unexpected::Float(_) => "a number with a fraction".to_owned(),
        Unexpected::Char(value) => format!("character `{value}`"),
        Unexpected::Str(value) => format!("string {value:?}"),
        Unexpected::Other(other) => other.to_owned(),
        other => match other {
            Unexpected::Bytes(_) => "byte array",
            Unexpected::Unit => "null",
            Unexpected::Option => "Option value",
            Unexpected::NewtypeStruct => "newtype struct",
            Unexpected::Seq => "sequence",
            Unexpected::Map => "map",
            Unexpected::Enum => "enum",
            Unexpected::UnitVariant => "unit variant",
            Unexpected::NewtypeVariant => "newtype variant",
            Unexpected::TupleVariant => "tuple variant",
            _ => "struct variant",
        }
        .to_owned(),
    }
}

/// What a type itself said. A message of serde, from a reader within, is put into our words.
fn translate(text: String) -> String {
    // The second is that of several mistakes.
    if text.starts_with("found ") || text.starts_with(crate::config::RECORD) {
        return text;
    }
    let starts = ["invalid type: ", "invalid value: ", "invalid length "];
    let bare = starts.iter().find_map(|start| text.strip_prefix(start)).unwrap_or(&text);
    match bare.rsplit_once(", expected ") {
        Some((found, expected)) => message(&found, &plain_type(expected)),
        None => message(&bare, &"a value that the policy accepts"),
    }
}

fn plain_type(expected: &str) -> &str {
    match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, 0 or more",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "a table",
        other if other.starts_with("struct ") => "a table",
        other => other,
    }
}
