//! JSON as it is written. A value is its text, which is checked once. Numbers stay digits, so that
//! nothing here reads or writes a fraction: that alone would be a tenth of a small policy's module.

mod capture;
mod reader;
mod text;

use std::borrow::Cow;
use std::fmt;

pub(crate) use reader::{Error, Problem, Reader, Step, Track, shown, unknown};

/// Maximum length of a text that a message repeats, in characters.
const FOUND_CHARS_MAX: usize = 80;

/// Any JSON value, for a setting that can be written in several ways: read it first, and then see
/// what it is.
#[derive(Clone, PartialEq, Eq)]
pub struct Json<'t>(Cow<'t, str>);

/// What a value is, by its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Null,
    Bool,
    Number,
    String,
    List,
    Table,
}

/// A whole number, if it fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whole {
    Unsigned(u64),
    Negative(i64),
}

impl<'t> Json<'t> {
    /// Reads a text that is one value.
    ///
    /// # Errors
    /// The byte at which the text is not JSON, or is nested too deeply.
    pub fn parse(text: &'t str) -> Result<Self, usize> {
        text::check(text).map(Self::of_valid)
    }

    /// A value whose text is known to be valid.
    fn of_valid(text: &'t str) -> Self {
        Self(Cow::Borrowed(text))
    }

    /// The same value.
    pub(crate) fn borrowed(&self) -> Json<'_> {
        Json::of_valid(&self.0)
    }

    /// Its text.
    #[must_use]
    pub fn as_text(&self) -> &str {
        &self.0
    }

    /// The same value, which needs nothing else to live.
    #[must_use]
    pub fn into_owned(self) -> Json<'static> {
        Json(Cow::Owned(self.0.into_owned()))
    }

    /// A list of these.
    #[must_use]
    pub fn list<'j>(items: impl IntoIterator<Item = Json<'j>>) -> Json<'static> {
        let items: Vec<String> = items.into_iter().map(|item| item.0.into_owned()).collect();
        Json(Cow::Owned(format!("[{}]", items.join(","))))
    }

    /// A table with the members of this one and these, each of which replaces one of the same name.
    #[must_use]
    pub fn with_members(&self, members: &[(&str, Json<'_>)]) -> Json<'static> {
        let own = self.members();
        let kept = own.filter(|(name, _)| !members.iter().any(|(ours, _)| ours == name));
        let kept = kept.map(|(name, value)| (name, value.into_owned()));
        let ours =
            members.iter().map(|(name, value)| (Cow::from(*name), value.clone().into_owned()));
        let written = |(name, value): (Cow<'_, str>, Json<'_>)| {
            format!("{}:{}", capture::quoted(&name), value.0)
        };
        let members: Vec<String> = kept.chain(ours).map(written).collect();
        Json(Cow::Owned(format!("{{{}}}", members.join(","))))
    }

    pub(crate) fn kind(&self) -> Kind {
        kind(&self.0)
    }

    /// What it is, for a message.
    #[must_use]
    pub fn kind_text(&self) -> &'static str {
        match self.kind() {
            Kind::Null => "nothing",
            Kind::Bool => "true or false",
            Kind::Number => "a number",
            Kind::String => "a string",
            Kind::List => "a list",
            Kind::Table => "a table",
        }
    }

    /// What was found instead of something else, for a message: the value, if it is short to say.
    pub(crate) fn found(&self) -> String {
        let json = self.as_text();
        match self.kind() {
            Kind::Null => "null".to_owned(),
            Kind::Bool | Kind::Number => json.to_owned(),
            Kind::String => found_text(&self.as_str().unwrap_or_default()),
            Kind::List | Kind::Table => self.kind_text().to_owned(),
        }
    }

    /// The text that it says, if it is a string.
    #[must_use]
    pub fn as_str(&self) -> Option<Cow<'_, str>> {
        string(&self.0)
    }

    /// The number, if it is written as a whole one (`5`, and neither `5.0` nor `5e0`), 0 or more,
    /// below 2^64.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        self.0.parse().ok()
    }

    /// Whether it is a whole number that 64 bits hold, with or without a sign.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        // JSON has a zero with a sign, which is a fraction's.
        whole(&self.0).is_some() && &*self.0 != "-0"
    }

    /// A thousand times the number, rounded down, if it is 0 or more: seconds as milliseconds.
    #[must_use]
    pub fn as_thousandths(&self) -> Option<u64> {
        text::scaled(Some(&*self.0).filter(|text| kind(text) == Kind::Number)?, 3)
    }

    /// The truth value, if it is one.
    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        self.0.parse().ok()
    }

    /// The items of a list; empty if it is not one.
    pub fn items(&self) -> impl Iterator<Item = Json<'_>> {
        items(&self.0).map(Json::of_valid)
    }

    /// The names and values of a table, in the order in which they are written; empty if it is not
    /// one.
    pub fn members(&self) -> impl Iterator<Item = (Cow<'_, str>, Json<'_>)> {
        members(&self.0).map(|(name, value)| (name, Json::of_valid(value)))
    }

    /// The value of this name in a table; the last one, if there are several.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Json<'_>> {
        member(&self.0, name).map(Json::of_valid)
    }

    /// The value at a JSON pointer (RFC 6901), such as `/realm/tenant`.
    #[must_use]
    pub fn pointer(&self, pointer: &str) -> Option<Json<'_>> {
        let mut names = pointer.split('/');
        names.next().filter(|start| start.is_empty())?;
        let found = names.try_fold(&*self.0, |value, name| match kind(value) {
            Kind::List => {
                // RFC 6901, section 4: no zero before a number.
                let plain = name == "0" || name.starts_with(|first| ('1'..='9').contains(&first));
                items(value).nth(name.parse().ok().filter(|_| plain)?)
            }
            _ => member(value, &name.replace("~1", "/").replace("~0", "~")),
        });
        found.map(Json::of_valid)
    }

    /// The items of a list, or the value itself if it is not one: for a setting that can be one
    /// value or several.
    #[must_use]
    pub fn one_or_several(&self) -> Vec<Json<'_>> {
        if self.is_list() { self.items().collect() } else { vec![self.borrowed()] }
    }

    /// Whether it is a number.
    #[must_use]
    pub fn is_number(&self) -> bool {
        self.kind() == Kind::Number
    }

    /// Whether it is a list.
    #[must_use]
    pub fn is_list(&self) -> bool {
        self.kind() == Kind::List
    }

    /// Whether it is a table.
    #[must_use]
    pub fn is_table(&self) -> bool {
        self.kind() == Kind::Table
    }
}

/// A text in quotes, for a message: its beginning, if it is long.
pub(crate) fn found_text(text: &str) -> String {
    let mut short: String = text.chars().take(FOUND_CHARS_MAX).collect();
    if short.len() < text.len() {
        short.push_str("...");
    }
    format!("{short:?}")
}

fn kind(text: &str) -> Kind {
    match text.as_bytes().first() {
        Some(b'"') => Kind::String,
        Some(b'{') => Kind::Table,
        Some(b'[') => Kind::List,
        Some(b't' | b'f') => Kind::Bool,
        Some(b'-' | b'0'..=b'9') => Kind::Number,
        _ => Kind::Null,
    }
}

fn string(text: &str) -> Option<Cow<'_, str>> {
    Some(text::unescaped(text.strip_prefix('"')?.strip_suffix('"')?))
}

fn whole(text: &str) -> Option<Whole> {
    let negative = || text.parse().ok().map(Whole::Negative);
    text.parse().ok().map(Whole::Unsigned).or_else(negative)
}

fn items(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = inside(text, Kind::List);
    std::iter::from_fn(move || text::next(&mut rest))
}

fn members(text: &str) -> impl Iterator<Item = (Cow<'_, str>, &str)> {
    let mut rest = inside(text, Kind::Table);
    std::iter::from_fn(move || Some((string(text::next(&mut rest)?)?, text::next(&mut rest)?)))
}

fn member<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    members(text).filter(|(known, _)| known == name).last().map(|(_, value)| value)
}

/// What follows the opening bracket, if it is of this kind.
fn inside(text: &str, expected: Kind) -> &str {
    let inside = text.get(1..).filter(|_| kind(text) == expected);
    inside.unwrap_or_default()
}

impl From<u64> for Json<'static> {
    fn from(number: u64) -> Self {
        Self(Cow::Owned(number.to_string()))
    }
}

impl From<&str> for Json<'static> {
    fn from(text: &str) -> Self {
        Self(Cow::Owned(capture::quoted(text)))
    }
}

/// The text without the spaces that mean nothing.
impl fmt::Display for Json<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut quoted, mut escaped) = (false, false);
        for next in self.0.chars() {
            if next == '"' && !escaped {
                quoted = !quoted;
            }
            escaped = next == '\\' && !escaped;
            if quoted || !matches!(next, ' ' | '\n' | '\r' | '\t') {
                fmt::Write::write_char(out, next)?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Json<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

#[cfg(test)]
mod tests;
