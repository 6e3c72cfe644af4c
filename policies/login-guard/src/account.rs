//! Which account an attempt is for.
//!
//! The upstream may look for it elsewhere than this policy, and compare it in another way. Each
//! difference would be a way to guess at one account and be counted for another. So all places
//! where the account may be are read, and they must agree.

use std::borrow::Cow;
use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use weir_policy::{Facts, Json, Template};

/// Maximum size of an account's name, in bytes. An upstream may cut longer ones off.
const ACCOUNT_BYTES_MAX: usize = 512;
const TOO_LONG: &str = "the account is too long";
/// Maximum number of places that may name an account.
const PLACES_MAX: usize = 8;
/// Maximum size of an account's name as JSON, in bytes: each of its bytes may be written as an
/// escape. Longer ones are not read, which would take long.
const JSON_BYTES_MAX: usize = 6 * ACCOUNT_BYTES_MAX + 2;
/// How a fact of a JSON body's member begins, and of a form's field.
const MEMBER: &str = "body.json:";
const FIELD: &str = "form.";
/// The fact that says how a body was read.
const BODY_TYPE: &str = "body.type";
const EXPECTED: &str =
    "a template with one fact, such as \"{form.username}\" or \"{body:/email}\", or a list of them";

/// Whether upper and lower case differ.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Case {
    #[default]
    Ignore,
    Keep,
}

/// The account that an attempt is for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Account {
    Of(String),
    Missing,
    /// It can't be determined, for this reason.
    Unclear(&'static str),
}

/// The places where the account may be. Use it as the type of a setting.
pub(crate) struct Places {
    /// The facts with the account.
    facts: Vec<String>,
}

impl fmt::Debug for Places {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_list().entries(self.facts()).finish()
    }
}

impl Places {
    /// The facts to ask for.
    pub(crate) fn facts(&self) -> impl Iterator<Item = &str> {
        self.facts.iter().map(String::as_str)
    }

    /// The fact that says how the body was read, if one of the places is in it.
    pub(crate) fn body_type(&self) -> Option<&'static str> {
        self.kinds().next().map(|_| BODY_TYPE)
    }

    /// The kinds of bodies that the places are in.
    fn kinds(&self) -> impl Iterator<Item = &'static str> {
        self.facts().filter_map(|fact| match fact {
            fact if fact.starts_with(MEMBER) => Some("json"),
            fact if fact.starts_with(FIELD) => Some("form"),
            _ => None,
        })
    }

    /// The account, if all places that have one agree. A fact that occurs several times is what
    /// servers may read in several ways.
    pub(crate) fn find(&self, facts: &Facts, case: Case, ascii_only: bool) -> Account {
        // The upstream may find an account in a body that can't be read here, whatever else names
        // one. Who asks about a request itself says nothing of a body.
        let is_read = |kind: &str| kind == "empty" || self.kinds().any(|read| read == kind);
        if self.body_type().is_some() && facts.get(BODY_TYPE).is_some_and(|kind| !is_read(kind)) {
            return Account::Missing;
        }
        let mut found: Option<String> = None;
        for fact in self.facts() {
            let mut values = facts.all(fact);
            let Some(value) = values.next() else { continue };
            if values.next().is_some() {
                return Account::Unclear("the account must be given once");
            }
            let text = if fact.starts_with(MEMBER) { text_of_json(value) } else { Ok(sent(value)) };
            let name = match text {
                Ok(text) => normal(&text, case),
                Err(why) => return Account::Unclear(why),
            };
            match &found {
                Some(other) if *other != name => {
                    return Account::Unclear("the account must be given once");
                }
                _ => found = Some(name),
            }
        }
        match found {
            Some(name) if name.is_empty() => Account::Missing,
            Some(name) if name.len() > ACCOUNT_BYTES_MAX => Account::Unclear(TOO_LONG),
            // Databases compare names without them.
            Some(name) if name.contains(|next: char| next.is_ascii_control()) => {
                Account::Unclear("the account must have no control characters")
            }
            Some(name) if ascii_only && !name.is_ascii() => {
                Account::Unclear("the account must be ASCII text")
            }
            Some(name) => Account::Of(name),
            None => Account::Missing,
        }
    }

    fn add(&mut self, text: &str) -> Option<()> {
        // The SDK knows how a template is written.
        let template = Template::parse(text).ok()?;
        let fact = template.only_fact()?;
        if let Some(pointer) = fact.strip_prefix("body:") {
            let name = pointer.strip_prefix('/').filter(|name| !name.contains('/'));
            if let Some(name) = name {
                let name = name.replace("~1", "/").replace("~0", "~");
                self.add_fact(format!("query.{name}"));
            }
            self.add_fact(format!("{MEMBER}{pointer}"));
        } else {
            if let Some(name) = fact.strip_prefix(FIELD) {
                self.add_fact(format!("query.{name}"));
            }
            self.add_fact(fact.to_owned());
        }
        Some(())
    }

    /// Many frameworks put the fields of a form, or the members of a document, and the parameters
    /// of the query into one table, so the query is read as well.
    fn add_fact(&mut self, fact: String) {
        if !self.facts.contains(&fact) {
            self.facts.push(fact);
        }
    }
}

impl<'de> Deserialize<'de> for Places {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Json::deserialize(deserializer)?;
        let wrong =
            |found: &Json<'_>| D::Error::custom(format_args!("found {found}, expected {EXPECTED}"));
        let items = value.one_or_several();
        if items.is_empty() || items.len() > PLACES_MAX {
            return Err(wrong(&value));
        }
        let mut places = Self { facts: Vec::new() };
        for item in &items {
            item.as_str().and_then(|text| places.add(&text)).ok_or_else(|| wrong(item))?;
        }
        Ok(places)
    }
}

/// The text that a client sent: facts of anything but JSON show its bytes as Latin-1.
fn sent(shown: &str) -> String {
    let bytes: Option<Vec<u8>> =
        shown.chars().map(|next| u8::try_from(u32::from(next)).ok()).collect();
    bytes.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_else(|| shown.to_owned())
}

/// A name as it is counted. White space, control characters and what has no width are left out
/// around it, as most servers ignore them.
fn normal(text: &str, case: Case) -> String {
    let text = text.trim_matches(|next: char| {
        let has_no_width =
            matches!(next, '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2060}' | '\u{feff}');
        next.is_whitespace() || next.is_control() || has_no_width
    });
    match case {
        Case::Ignore => text.to_lowercase(),
        Case::Keep => text.to_owned(),
    }
}

/// A text, or a whole number as it would be written in one. Nothing else is a name: an upstream
/// might read an array or an object in its own way.
fn text_of_json(json: &str) -> Result<String, &'static str> {
    if json.len() > JSON_BYTES_MAX {
        return Err(TOO_LONG);
    }
    let value = Json::parse(json).ok();
    let text = value.as_ref().and_then(Json::as_str).map(Cow::into_owned);
    let number = || value.as_ref()?.as_u64().map(|number| number.to_string());
    text.or_else(number).ok_or("the account must be a text, and be given once")
}
