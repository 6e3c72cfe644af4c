//! Which account an attempt is for.
//!
//! The upstream may look for it elsewhere than this policy, and compare it in another way. Each
//! difference would be a way to guess at one account and be counted for another. So all places
//! where the account may stand are read, and they must agree.

use std::borrow::Cow;
use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use weir_policy::{Facts, Json, Template};

/// Bytes of an account's name, at most. An upstream may cut longer ones off.
const ACCOUNT_BYTES_MAX: usize = 512;
/// Places, at most.
const PLACES_MAX: usize = 8;
/// Of the whole body, as JSON.
const DOCUMENT: &str = "body.json:";
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
    /// It can't be told, for this reason.
    Unclear(&'static str),
}

/// The places where the account may stand. Use it as the type of a setting.
pub(crate) struct Places {
    /// Facts with a text each.
    texts: Vec<String>,
    members: Vec<Member>,
}

/// A member of a JSON body.
struct Member {
    fact: String,
    /// The facts of the objects on the way to it, but for the whole document.
    ancestors: Vec<String>,
    /// Their names and its own.
    names: Vec<String>,
}

impl fmt::Debug for Places {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_list().entries(self.facts()).finish()
    }
}

impl Places {
    /// The facts to ask for.
    pub(crate) fn facts(&self) -> impl Iterator<Item = String> {
        let members = self
            .members
            .iter()
            .flat_map(|member| member.ancestors.iter().chain(std::iter::once(&member.fact)));
        let document = (!self.members.is_empty()).then(|| DOCUMENT.to_owned());
        self.texts.iter().chain(members).cloned().chain(document)
    }

    /// The account, if all places that have one agree.
    pub(crate) fn find(&self, facts: &Facts, case: Case, ascii_only: bool) -> Account {
        let mut found: Option<String> = None;
        let texts = self.texts.iter().flat_map(|fact| facts.all(fact)).map(sent);
        let members = self.members.iter().flat_map(|member| member.find(facts));
        for text in texts.map(Some).chain(members) {
            let Some(text) = text else {
                return Account::Unclear("the account must be a text, and be given once");
            };
            let name = normal(&text, case);
            match &found {
                Some(other) if *other != name => {
                    return Account::Unclear("the account must be given once");
                }
                _ => found = Some(name),
            }
        }
        match found {
            Some(name) if name.is_empty() => Account::Missing,
            Some(name) if name.len() > ACCOUNT_BYTES_MAX => {
                Account::Unclear("the account is too long")
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
            let member = Member::at(pointer);
            if let [name] = member.names.as_slice() {
                self.add_text(format!("query.{name}"));
            }
            self.members.push(member);
        } else {
            if let Some(name) = fact.strip_prefix("form.") {
                self.add_text(format!("query.{name}"));
            }
            self.add_text(fact.to_owned());
        }
        Some(())
    }

    /// Many frameworks put the fields of a form, or the members of a document, and the parameters
    /// of the query into one table, so the query is read as well.
    fn add_text(&mut self, fact: String) {
        if !self.texts.contains(&fact) {
            self.texts.push(fact);
        }
    }
}

impl Member {
    fn at(pointer: &str) -> Self {
        let fact = |pointer: &str| format!("{DOCUMENT}{pointer}");
        let unescaped = |name: &str| name.replace("~1", "/").replace("~0", "~");
        let ends = pointer.match_indices('/').map(|(end, _)| end).skip(1);
        Self {
            fact: fact(pointer),
            ancestors: ends.filter_map(|end| pointer.get(..end)).map(fact).collect(),
            names: pointer.split('/').skip(1).map(unescaped).collect(),
        }
    }

    /// Its values in a body, as texts. `None` for each that is no text, and where it can't be told
    /// which one the upstream reads.
    fn find(&self, facts: &Facts) -> impl Iterator<Item = Option<String>> {
        let repeated = self.ancestors.iter().any(|fact| facts.all(fact).count() > 1);
        let unclear = repeated || misspelt(facts, &self.names);
        let texts: Vec<Option<String>> = facts.all(&self.fact).map(text_of_json).collect();
        texts.into_iter().chain(unclear.then_some(None))
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
        let mut places = Self { texts: Vec::new(), members: Vec::new() };
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

/// A name as it is counted. White space and control characters around it are left out, as most
/// servers ignore them.
fn normal(text: &str, case: Case) -> String {
    let text = text.trim_matches(|next: char| next.is_whitespace() || next.is_control());
    match case {
        Case::Ignore => text.to_lowercase(),
        Case::Keep => text.to_owned(),
    }
}

/// A text, or a whole number as it would be written in one. Nothing else is a name: an upstream
/// might read an array or an object in its own way.
fn text_of_json(json: &str) -> Option<String> {
    let value = Json::parse(json).ok()?;
    let text = value.as_str().map(Cow::into_owned);
    text.or_else(|| value.as_u64().map(|number| number.to_string()))
}

/// Whether the body has a member on the way to the account, or the account itself, in another
/// spelling: Go's `encoding/json` and .NET ignore the case of names.
fn misspelt(facts: &Facts, names: &[String]) -> bool {
    let Some(document) = facts.get(DOCUMENT) else { return false };
    let Ok(mut value) = Json::parse(document).map(Json::into_owned) else { return true };
    for name in names {
        let folded = folded(name);
        let alike = |other: &str| other != name && self::folded(other) == folded;
        if value.members().any(|(other, _)| alike(&other)) {
            return true;
        }
        let Some(next) = value.get(name).map(Json::into_owned) else { return false };
        value = next;
    }
    false
}

/// Go also takes these two for ASCII letters.
fn folded(name: &str) -> String {
    name.replace('\u{17f}', "s").replace('\u{212a}', "k").to_ascii_lowercase()
}
