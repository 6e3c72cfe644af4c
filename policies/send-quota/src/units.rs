//! How many units a request sends: a number that it names, or the recipients in its body.

use serde::de::{Deserialize, Deserializer, Error as _};
use weir_policy::{Denial, Facts, Json, Template};

/// Maximum number of units of a request: what the proxy accepts.
pub(crate) const UNITS_MAX: u64 = 1 << 52;
/// Maximum number of lists of recipients.
const LISTS_MAX: usize = 16;
const JSON: &str = "body.json:";
const BODY: &str = "body:";
const FORM: &str = "form.";
/// The fact that says how a body was read.
const BODY_TYPE: &str = "body.type";

/// Where a request says what it sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Nowhere: all requests send the same.
    Nowhere,
    /// A number, in this fact.
    Number(String),
    /// Lists of recipients in a JSON body, as these facts.
    Lists(Vec<String>),
}

/// What a request without a number, or without a list, costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Otherwise {
    Cost(u64),
    Deny,
}

impl Source {
    /// The fact with the number, if the template is a single fact.
    pub(crate) fn number(template: &Template) -> Option<Self> {
        let fact = template.only_fact()?;
        // The value must be a number and not a list, whose fact would be its size.
        let json = fact.strip_prefix(BODY).map(|pointer| format!("{JSON}{pointer}"));
        Some(Self::Number(json.unwrap_or_else(|| fact.to_owned())))
    }

    pub(crate) fn lists(pointers: &[String]) -> Self {
        Self::Lists(pointers.iter().map(|pointer| format!("{JSON}{pointer}")).collect())
    }

    /// The facts that it reads, for the manifest.
    pub(crate) fn facts(&self) -> Vec<&str> {
        let mut facts: Vec<&str> = match self {
            Self::Nowhere => Vec::new(),
            Self::Number(fact) => vec![fact],
            Self::Lists(facts) => facts.iter().map(String::as_str).collect(),
        };
        if self.body_type().is_some() {
            facts.push(BODY_TYPE);
        }
        facts
    }

    /// The kind of body that it is in.
    fn body_type(&self) -> Option<&'static str> {
        match self {
            Self::Nowhere => None,
            Self::Number(fact) if fact.starts_with(JSON) => Some("json"),
            Self::Number(fact) if fact.starts_with(FORM) => Some("form"),
            Self::Number(_) => None,
            Self::Lists(_) => Some("json"),
        }
    }

    /// The units of a request. `None` if it does not mention them.
    ///
    /// What can't be read here might be read by the upstream, and nobody would have counted it: it
    /// is refused.
    pub(crate) fn units(&self, facts: &Facts) -> Result<Option<u64>, Denial> {
        if let Some(expected) = self.body_type() {
            match facts.get(BODY_TYPE) {
                Some("empty") => {}
                Some(found) if found == expected => {}
                Some("large") => {
                    return Err(Denial::new(413, "the body is too large to count what it sends"));
                }
                _ if expected == "form" => {
                    return Err(Denial::new(400, "the body must be an HTML form"));
                }
                _ => return Err(Denial::new(400, "the body must be JSON")),
            }
        }
        match self {
            Self::Nowhere => Ok(None),
            Self::Number(fact) => one(facts, fact)?.map(|value| number(fact, value)).transpose(),
            Self::Lists(lists) => {
                let mut units = None;
                for fact in lists {
                    if let Some(value) = one(facts, fact)? {
                        units = Some(units.unwrap_or(0) + recipients(fact, value)?);
                    }
                }
                Ok(units)
            }
        }
    }
}

/// The value of a fact. Only the upstream knows which of two values it believes.
fn one<'a>(facts: &Facts<'a>, fact: &str) -> Result<Option<&'a str>, Denial> {
    let mut values = facts.all(fact);
    match (values.next(), values.next()) {
        (_, Some(_)) => Err(refuse(fact, "must be there once")),
        (value, None) => Ok(value.filter(|value| !matches!(*value, "" | "null"))),
    }
}

fn number(fact: &str, value: &str) -> Result<u64, Denial> {
    let quoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
    let digits = quoted.filter(|_| fact.starts_with(JSON)).unwrap_or(value);
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    // A number that is too large to be read is larger than every maximum.
    plain
        .then(|| digits.parse().unwrap_or(u64::MAX))
        .ok_or_else(|| refuse(fact, "must be a whole number"))
}

fn recipients(fact: &str, json: &str) -> Result<u64, Denial> {
    let counted = Json::parse(json).ok().and_then(|value| count(&value));
    counted.ok_or_else(|| refuse(fact, "must be a list of recipients"))
}

fn refuse(fact: &str, what: &str) -> Denial {
    let shown = fact.replacen(JSON, "", 1).replacen('.', " ", 1);
    let reason: String = format!("{shown} {what}").chars().take(256).collect();
    Denial::new(400, reason)
}

/// The number of recipients in a JSON value. A text is one, or as many as its commas and semicolons
/// separate, as in a mail's `To`; an object is one. `None` if it is something else.
fn count(value: &Json<'_>) -> Option<u64> {
    if !value.is_list() {
        return count_one(value);
    }
    value.items().try_fold(0, |all, item| Some(all + count_one(&item)?))
}

fn count_one(value: &Json<'_>) -> Option<u64> {
    if let Some(text) = value.as_str() {
        return Some(text.split([',', ';']).filter(|part| !part.trim().is_empty()).count() as u64);
    }
    match value.as_text() {
        "null" => Some(0),
        _ => (value.is_table() || value.as_u64().is_some()).then_some(1),
    }
}

impl<'de> Deserialize<'de> for Otherwise {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Json::deserialize(deserializer)?;
        match (value.as_str().as_deref(), value.as_u64()) {
            (Some("deny"), _) => Ok(Self::Deny),
            (_, Some(units)) if (1..=UNITS_MAX).contains(&units) => Ok(Self::Cost(units)),
            _ => Err(D::Error::custom(format!(
                "found {value}, expected \"deny\", or units from 1 to {UNITS_MAX}"
            ))),
        }
    }
}

/// Adds the mistakes of `count`.
pub(crate) fn check_pointers(pointers: &[String], mistakes: &mut weir_policy::Mistakes) {
    if pointers.is_empty() || pointers.len() > LISTS_MAX {
        let found = format_args!("{} lists", pointers.len());
        mistakes.add("count", found, format_args!("1 to {LISTS_MAX}"));
    }
    for (index, pointer) in pointers.iter().enumerate() {
        if !pointer.starts_with('/') {
            let expected = "a JSON pointer, such as \"/recipients\"";
            mistakes.add(format!("count[{index}]"), format_args!("{pointer:?}"), expected);
        } else if pointers.iter().take(index).any(|before| before == pointer) {
            let found = format_args!("{pointer:?} a second time");
            mistakes.add(format!("count[{index}]"), found, "each list once");
        }
    }
}
