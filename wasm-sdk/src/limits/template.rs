//! Key templates: `{header.x-api-key}/{client_ip}`. Two different tuples of facts never give the same key.
//!
//! A value is written with `\` as `\\`; an absent fact is `\-`, and several values of one fact are joined by `\,`, so that no value can pass for
//! either. Where a template names more than one fact, each is preceded by its length and a colon, so that no value can reach into the next.

use std::fmt::Write as _;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::Facts;
use crate::mistakes::{message, nearest};

/// What may stand in braces, and the fact it names.
const FACTS: [(&str, &str); 9] = [
    ("client_ip", "client-ip"),
    ("method", "method"),
    ("scheme", "scheme"),
    ("authority", "authority"),
    ("path", "path"),
    ("query", "query"),
    ("route", "route"),
    ("request_length", "request.length"),
    ("http_version", "http.version"),
];
const FAMILIES: [&str; 4] = ["header.", "cookie.", "query.", "path."];
/// Bytes of a template, at most: its literal text is part of every key.
const TEMPLATE_BYTES_MAX: usize = 1024;

/// A template, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Template {
    parts: Vec<Part>,
    several: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Fact(String),
}

impl Template {
    pub(super) fn facts(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Fact(name) => Some(name.as_str()),
            Part::Text(_) => None,
        })
    }

    pub(super) fn render(&self, facts: &Facts) -> String {
        let mut key = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => key.push_str(text),
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

    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > TEMPLATE_BYTES_MAX {
            return Err(message(format_args!("{} bytes", text.len()), format_args!("a template of 1 to {TEMPLATE_BYTES_MAX} bytes")));
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
                        format_args!("a single brace in {text:?}"),
                        "pairs of braces, or `{{` and `}}` for braces themselves",
                    ));
                };
                if !literal.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut literal)));
                }
                parts.push(Part::Fact(fact(name)?));
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

/// The fact that a name in braces means.
fn fact(name: &str) -> Result<String, String> {
    if let Some((_, fact)) = FACTS.iter().find(|(known, _)| *known == name) {
        return Ok((*fact).to_owned());
    }
    let of_family = FAMILIES.iter().any(|family| name.strip_prefix(family).is_some_and(|own| !own.is_empty()));
    if of_family {
        return Ok(name.to_owned());
    }
    let known = FACTS.iter().map(|(known, _)| *known);
    // `{headers.x-api-key}` means the family `header.`.
    let hint = match name.split_once('.') {
        Some((family, own)) if !own.is_empty() => {
            let near = nearest(family, FAMILIES.iter().map(|family| family.trim_end_matches('.')));
            near.map(|family| format!("{family}.{own}"))
        }
        _ => nearest(name, known).map(str::to_owned),
    };
    let hint = hint.map(|near| format!("; `{{{near}}}` is near")).unwrap_or_default();
    let all = FACTS.iter().map(|(known, _)| format!("{{{known}}} ")).collect::<String>();
    Err(message(
        format_args!("`{{{name}}}`"),
        format_args!("one of {all}{{header.NAME}} {{cookie.NAME}} {{query.NAME}} {{path.NAME}}{hint}"),
    ))
}

fn push_value(key: &mut String, name: &str, facts: &Facts) {
    let mut values = facts.all(name);
    match values.next() {
        None => key.push_str("\\-"),
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
        let facts: Vec<_> = facts.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Template::parse(template).unwrap().render(&Facts::new(&facts))
    }

    #[test]
    fn one_fact_is_shown_as_it_is_and_several_with_their_lengths() {
        let facts = [("client-ip", "192.0.2.1"), ("header.x-api-key", "abc")];
        assert_eq!(render("{client_ip}", &facts), "192.0.2.1");
        assert_eq!(render("a{{b}}{client_ip}", &facts), "a{b}192.0.2.1");
        assert_eq!(render("{header.x-api-key}/{client_ip}", &facts), "3:abc/9:192.0.2.1");
        assert_eq!(render("everyone", &facts), "everyone");
    }

    #[test]
    fn no_two_tuples_of_facts_give_the_same_key() {
        // Every tuple of up to two values from a small hostile alphabet, absent facts and repeated ones: all keys differ.
        let words = ["", "a", "\\", "\\-", "\\,", "-", ",", "1:", "1:a", "a/1:a", ":", "/", "0:", "\\\\", "a\\,a"];
        let mut values: Vec<Vec<&str>> = vec![vec![]];
        values.extend(words.iter().map(|word| vec![*word]));
        values.extend(words.iter().flat_map(|one| words.iter().map(move |two| vec![*one, *two])));
        for template in ["{header.a}/{header.b}", "{header.a}{header.b}"] {
            let mut keys = std::collections::HashSet::new();
            for a in &values {
                for b in &values {
                    let facts: Vec<_> = a.iter().map(|a| ("header.a", *a)).chain(b.iter().map(|b| ("header.b", *b))).collect();
                    assert!(keys.insert(render(template, &facts)), "{a:?} {b:?}");
                }
            }
        }
        let one: std::collections::HashSet<_> =
            values.iter().map(|a| render("x{header.a}", &a.iter().map(|a| ("header.a", *a)).collect::<Vec<_>>())).collect();
        assert_eq!(one.len(), values.len());
    }

    #[test]
    fn facts_are_those_of_the_contract() {
        let template = Template::parse("{client_ip}{http_version}{path.id}{path}").unwrap();
        assert_eq!(template.facts().collect::<Vec<_>>(), ["client-ip", "http.version", "path.id", "path"]);
    }

    #[test]
    fn malformed_templates_are_mistakes_with_the_nearest_fact() {
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
