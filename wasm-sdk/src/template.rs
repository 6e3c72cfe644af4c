//! Key templates: `{header.x-api-key}/{client_ip}`. Two different tuples of facts never give the
//! same key.
//!
//! In literal text and in facts, `\` becomes `\\`. An absent fact is `\-`, and several values of
//! one fact are joined by `\,`, so that no value can pass for either. If a template names more than
//! one fact, each is preceded by its length and a colon, so that no value can extend into the next.
//! No rendered key starts with `\` followed by anything else: such keys are reserved for other
//! uses.

use std::fmt::Write as _;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::Facts;
use crate::facts::fact_of;
use crate::mistakes::message;

/// Maximum size of a template, in bytes: its literal text is part of every key.
const TEMPLATE_BYTES_MAX: usize = 1024;

/// What stands for an absent fact. No value is written so.
pub(crate) const ABSENT: &str = "\\-";

/// A key as an operator writes it, with facts in braces. Use it as the type of a setting.
///
/// `{client_ip}` `{method}` `{scheme}` `{authority}` `{host}` `{path}` `{query}` `{route}`
/// `{request_length}` `{http_version}` `{upgrade}` `{tls.sni}` `{tls.client.subject}`
/// `{header.NAME}` `{bearer}` `{cookie.NAME}` `{query.NAME}` `{path.NAME}` `{form.NAME}`
/// `{body:/POINTER}` `{body.type}` `{body.bytes}`; `{{` and `}}` are literal braces. Two requests
/// have the same key only if all named facts are the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
    several: bool,
}

/// Why a request has no key of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoKey {
    /// A fact is absent, or empty, and none is repeated.
    Missing,
    /// A fact has several values. Only the upstream knows which of them it believes, so a client
    /// with one valid value could add any number of others, each of which would give another key.
    Repeated,
    /// A fact of the body is not there, and the body is one that can't be read here
    /// (`body.type` is `other` or `large`): the upstream may find it all the same.
    Unreadable,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Fact(String),
}

/// How a body was read.
const BODY_TYPE: &str = "body.type";

/// Whether a fact is a value in a body.
fn is_of_body(name: &str) -> bool {
    ["body:", "body.json:", "form."].iter().any(|family| name.starts_with(family))
}

impl Template {
    /// The facts that it reads, for the manifest: those that it names, and `body.type` if one of
    /// them is in the body.
    pub fn facts(&self) -> impl Iterator<Item = &str> {
        let of_body = self.named().any(is_of_body).then_some(BODY_TYPE);
        self.named().chain(of_body)
    }

    /// The facts that it names: those that keys are made of, for a limit's declaration.
    pub fn named(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Fact(name) => Some(name.as_str()),
            Part::Text(_) => None,
        })
    }

    /// The fact that it names, if it names one and has no other text.
    #[must_use]
    pub fn only_fact(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [Part::Fact(name)] => Some(name),
            _ => None,
        }
    }

    /// The key, if every fact has exactly one value that is not empty.
    ///
    /// # Errors
    /// See [`NoKey`].
    pub fn key(&self, facts: &Facts) -> Result<String, NoKey> {
        let (mut missing, mut unreadable) = (false, false);
        for name in self.named() {
            let mut values = facts.all(name);
            match (values.next(), values.next()) {
                (_, Some(_)) => return Err(NoKey::Repeated),
                (None | Some(""), None) => {
                    missing = true;
                    unreadable |= is_of_body(name);
                }
                (Some(_), None) => {}
            }
        }
        let is_unread = |kind| matches!(kind, "other" | "large");
        match (missing, unreadable && facts.first(BODY_TYPE).is_some_and(is_unread)) {
            (false, _) => Ok(self.render(facts)),
            (true, false) => Err(NoKey::Missing),
            (true, true) => Err(NoKey::Unreadable),
        }
    }

    /// The key of any request: an absent fact, or one with several values, is a value of its own.
    #[must_use]
    pub fn render(&self, facts: &Facts) -> String {
        let mut key = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => push_escaped(&mut key, text),
                Part::Fact(name) if self.several => {
                    let mut value = String::new();
                    push_value(&mut value, name, facts);
                    // Writing to a String can't fail.
                    let _ = write!(key, "{}:{value}", value.len());
                }
                Part::Fact(name) => push_value(&mut key, name, facts),
            }
        }
        key
    }

    /// Reads a template.
    ///
    /// # Errors
    /// The message of a mistake: what was found and what was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > TEMPLATE_BYTES_MAX {
            return Err(message(
                &format_args!("{} bytes", text.len()),
                &format_args!("a template of 1 to {TEMPLATE_BYTES_MAX} bytes"),
            ));
        }
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            let (before, from) = rest.split_at(at);
            literal.push_str(before);
            if let Some(after) = from.strip_prefix("{{") {
                literal.push('{');
                rest = after;
            } else if let Some(after) = from.strip_prefix("}}") {
                literal.push('}');
                rest = after;
            } else {
                let inner = from.strip_prefix('{').and_then(|inner| inner.split_once('}'));
                let Some((name, after)) = inner.filter(|(name, _)| !name.contains('{')) else {
                    return Err(message(
                        &format_args!("a single brace in {text:?}"),
                        &"pairs of braces, or `{{` and `}}` for braces themselves",
                    ));
                };
                if !literal.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut literal)));
                }
                parts.push(Part::Fact(
                    fact_of(name)
                        .map_err(|expected| message(&format_args!("`{{{name}}}`"), &expected))?,
                ));
                rest = after;
            }
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            parts.push(Part::Text(literal));
        }
        let several = parts.iter().filter(|part| matches!(part, Part::Fact(_))).count() > 1;
        Ok(Self { parts, several })
    }
}

fn push_value(key: &mut String, name: &str, facts: &Facts) {
    let mut values = facts.all(name);
    match values.next() {
        None => key.push_str(ABSENT),
        Some(first) => push_escaped(key, first),
    }
    for value in values {
        key.push_str("\\,");
        push_escaped(key, value);
    }
}

fn push_escaped(key: &mut String, value: &str) {
    for (index, piece) in value.split('\\').enumerate() {
        if index > 0 {
            key.push_str("\\\\");
        }
        key.push_str(piece);
    }
}

impl<'de> Deserialize<'de> for Template {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(template: &str, facts: &[(&str, &str)]) -> String {
        let facts: Vec<_> =
            facts.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Template::parse(template).unwrap().render(&Facts::new(&facts))
    }

    #[test]
    fn one_fact_is_shown_as_it_is_and_several_with_their_lengths() {
        let facts = [("client-ip", "192.0.2.1"), ("header.x-api-key", "abc")];
        assert_eq!(render("{client_ip}", &facts), "192.0.2.1");
        assert_eq!(render("a{{b}}{client_ip}", &facts), "a{b}192.0.2.1");
        assert_eq!(render("{header.x-api-key}/{client_ip}", &facts), "3:abc/9:192.0.2.1");
        assert_eq!(render("everyone", &facts), "everyone");
        assert_eq!(
            render("\\@{client_ip}", &facts),
            "\\\\@192.0.2.1",
            "what is written can't look like what is not rendered here"
        );
    }

    #[test]
    fn a_key_needs_one_value_of_each_fact() {
        let template = Template::parse("{header.a}/{header.b}").unwrap();
        let key = |facts: &[(&str, &str)]| {
            let facts: Vec<_> = facts
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect();
            template.key(&Facts::new(&facts))
        };
        assert_eq!(key(&[("header.a", "x"), ("header.b", "y")]), Ok("1:x/1:y".to_owned()));
        assert_eq!(key(&[("header.a", "x")]), Err(NoKey::Missing));
        assert_eq!(key(&[("header.a", "x"), ("header.b", "")]), Err(NoKey::Missing));
        assert_eq!(
            key(&[("header.a", "x"), ("header.a", "x"), ("header.b", "y")]),
            Err(NoKey::Repeated)
        );
        assert_eq!(key(&[("header.b", "y"), ("header.b", "z")]), Err(NoKey::Repeated));
    }

    #[test]
    fn a_body_that_cannot_be_read_is_not_one_without_a_key() {
        for text in ["{body:/user}", "{form.user}"] {
            let template = Template::parse(text).unwrap();
            let name = text.trim_matches(['{', '}']);
            assert_eq!(template.facts().collect::<Vec<_>>(), [name, "body.type"]);
            let key = |facts: &[(&str, &str)]| {
                let facts: Vec<_> = facts
                    .iter()
                    .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                    .collect();
                template.key(&Facts::new(&facts))
            };
            for (kind, why) in [
                ("other", NoKey::Unreadable),
                ("large", NoKey::Unreadable),
                ("json", NoKey::Missing),
                ("form", NoKey::Missing),
                ("empty", NoKey::Missing),
            ] {
                assert_eq!(key(&[("body.type", kind)]), Err(why), "{kind}");
            }
            assert_eq!(key(&[(name, "a"), ("body.type", "json")]), Ok("a".to_owned()));
        }
    }

    #[test]
    fn no_two_tuples_of_facts_give_the_same_key() {
        // All keys differ, for every tuple of up to two values from a small hostile alphabet,
        // absent facts and repeated ones.
        let words = [
            "", "a", "\\", "\\-", "\\,", "-", ",", "1:", "1:a", "a/1:a", ":", "/", "0:", "\\\\",
            "a\\,a",
        ];
        let mut values: Vec<Vec<&str>> = vec![vec![]];
        values.extend(words.iter().map(|word| vec![*word]));
        values.extend(words.iter().flat_map(|one| words.iter().map(move |two| vec![*one, *two])));
        for template in ["{header.a}/{header.b}", "{header.a}{header.b}"] {
            let mut keys = std::collections::HashSet::new();
            for a in &values {
                for b in &values {
                    let facts: Vec<_> = a
                        .iter()
                        .map(|a| ("header.a", *a))
                        .chain(b.iter().map(|b| ("header.b", *b)))
                        .collect();
                    assert!(keys.insert(render(template, &facts)), "{a:?} {b:?}");
                }
            }
        }
        let one: std::collections::HashSet<_> = values
            .iter()
            .map(|a| render("x{header.a}", &a.iter().map(|a| ("header.a", *a)).collect::<Vec<_>>()))
            .collect();
        assert_eq!(one.len(), values.len());
    }

    #[test]
    fn facts_are_those_of_the_contract() {
        let template = Template::parse("{client_ip}{http_version}{path.id}{path}").unwrap();
        assert_eq!(
            template.facts().collect::<Vec<_>>(),
            ["client-ip", "http.version", "path.id", "path"]
        );
    }

    #[test]
    fn malformed_templates_are_errors_with_the_nearest_fact() {
        for (template, part) in [
            ("{clientip}", "`{client_ip}` is near"),
            ("{headers.x-api-key}", "`{header.x-api-key}` is near"),
            ("{header.}", "expected one of"),
            ("{client_ip", "a single brace"),
            ("client_ip}", "a single brace"),
            ("{a{b}", "a single brace"),
            ("", "0 bytes"),
        ] {
            let message = Template::parse(template).unwrap_err();
            assert!(message.contains(part), "{template}: {message}");
        }
    }
}
