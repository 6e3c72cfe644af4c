//! What doesn't fit, in the words of our messages. Operators don't know Rust's types.

use std::fmt::{self, Display};

use serde::de::{self, Expected, Unexpected};

use crate::json::found_text;
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

/// What was found, as it is written.
fn described(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Bool(value) => value.to_string(),
        Unexpected::Unsigned(value) => value.to_string(),
        Unexpected::Signed(value) => value.to_string(),
        Unexpected::Float(_) => "a number with a fraction".to_owned(),
        Unexpected::Char(value) => found_text(value.encode_utf8(&mut [0; 4])),
        Unexpected::Str(value) => found_text(value),
        Unexpected::Other(other) => other.to_owned(),
        Unexpected::Unit => "null".to_owned(),
        Unexpected::Bytes(_) | Unexpected::Seq => "a list".to_owned(),
        Unexpected::UnitVariant => "a word alone".to_owned(),
        Unexpected::Option | Unexpected::NewtypeStruct => "a value".to_owned(),
        // Variants with content are tables, too.
        _ => "a table".to_owned(),
    }
}

/// What a type itself said. A message of serde, from a reader within, is put into our words.
fn translate(text: String) -> String {
    // The second is that of several mistakes.
    if text.starts_with("found ") || text.starts_with(crate::config::RECORD) {
        return text;
    }
    if text.starts_with("data did not match any variant of untagged enum ") {
        return message(&"a value of another form", &"one of the forms that the policy reads");
    }
    let starts = ["invalid type: ", "invalid value: ", "invalid length "];
    let bare = starts.iter().find_map(|start| text.strip_prefix(start)).unwrap_or(&text);
    match bare.rsplit_once(", expected ") {
        Some((found, expected)) => message(&plain_found(found), &plain_type(expected)),
        None => message(&bare, &"a value that the policy accepts"),
    }
}

/// What serde says that it found, without the names of its types.
fn plain_found(found: &str) -> &str {
    let typed = ["integer `", "floating point `", "boolean `", "character `"];
    let value = typed.iter().find_map(|start| found.strip_prefix(start)?.strip_suffix('`'));
    match found {
        "sequence" | "byte array" => "a list",
        "map" => "a table",
        "unit value" => "null",
        _ => value.or_else(|| found.strip_prefix("string ")).unwrap_or(found),
    }
}

fn plain_type(expected: &str) -> &str {
    match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, 0 or more",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" | "struct variant" | "newtype variant" => "a table",
        "unit variant" => "a word alone",
        "tuple variant" => "a list",
        other if other.starts_with("struct ") => "a table",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde::de::Error as _;

    use super::*;

    #[test]
    fn messages_of_other_readers_are_put_into_our_words() {
        let told = |text: &str| Error::custom(text).to_string();
        for (theirs, ours) in [
            (
                "invalid type: string \"x\", expected u64",
                "found \"x\", expected a whole number, 0 or more",
            ),
            ("invalid type: integer `7`, expected a boolean", "found 7, expected true or false"),
            (
                "invalid value: floating point `1.5`, expected i8",
                "found 1.5, expected a whole number",
            ),
            ("invalid type: map, expected a sequence", "found a table, expected a list"),
            ("invalid type: sequence, expected struct Mine", "found a list, expected a table"),
            (
                "data did not match any variant of untagged enum Mine",
                "found a value of another form, expected one of the forms that the policy reads",
            ),
            ("too dear", "found too dear, expected a value that the policy accepts"),
            ("found 1, expected 2", "found 1, expected 2"),
        ] {
            assert_eq!(told(theirs), ours);
        }
    }
}
