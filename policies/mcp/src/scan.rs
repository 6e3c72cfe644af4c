//! Steps through a JSON text once, from left to right. A body may be a mebibyte, of which only a
//! few names matter: to check and to take apart all of it would take longer than a call has.
//!
//! The proxy has checked that the text is JSON. What is not is an error here, too, as far as it is
//! looked at.

use std::ops::ControlFlow;

use crate::refusal::Refusal;

/// Maximum nesting depth of values.
const DEPTH_MAX: usize = 128;

/// A place in a text.
#[derive(Debug)]
pub(crate) struct Scanner<'t> {
    text: &'t str,
    at: usize,
}

fn broken() -> Refusal {
    Refusal::Unreadable("the body is not JSON, or nested too deeply")
}

impl<'t> Scanner<'t> {
    pub(crate) fn new(text: &'t str) -> Self {
        Self { text, at: 0 }
    }

    /// The first byte of what comes next.
    pub(crate) fn peek(&mut self) -> Option<u8> {
        let rest = self.text.as_bytes().get(self.at..)?;
        let is_space = |byte: &u8| matches!(byte, b' ' | b'\n' | b'\r' | b'\t');
        self.at += rest.iter().take_while(|byte| is_space(byte)).count();
        self.text.as_bytes().get(self.at).copied()
    }

    /// Checks that nothing follows.
    pub(crate) fn end(&mut self) -> Result<(), Refusal> {
        if self.peek().is_none() { Ok(()) } else { Err(broken()) }
    }

    /// Reads a list. `item` reads one of its items.
    pub(crate) fn items(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        self.expect(b'[')?;
        if self.eat(b']') {
            return Ok(());
        }
        loop {
            item(self)?;
            if self.eat(b']') {
                return Ok(());
            }
            self.expect(b',')?;
        }
    }

    /// Reads an object. `member` is called with each name as it is written, and reads its value.
    /// After a break, the other members are stepped over, which takes less time for each of them.
    pub(crate) fn members(
        &mut self,
        mut member: impl FnMut(&mut Self, &'t str) -> Result<ControlFlow<()>, Refusal>,
    ) -> Result<(), Refusal> {
        self.expect(b'{')?;
        if self.eat(b'}') {
            return Ok(());
        }
        loop {
            let name = match self.peek() {
                Some(b'"') => self.value()?,
                _ => return Err(broken()),
            };
            self.expect(b':')?;
            if member(self, name)?.is_break() {
                return self.nested(1);
            }
            if self.eat(b'}') {
                return Ok(());
            }
            self.expect(b',')?;
        }
    }

    /// Reads a value, and returns it as it is written.
    pub(crate) fn value(&mut self) -> Result<&'t str, Refusal> {
        let first = self.peek();
        let start = self.at;
        match first {
            Some(b'"') => self.string()?,
            Some(b'{' | b'[') => self.nested(0)?,
            _ => {
                let rest = self.text.as_bytes().get(start..).unwrap_or_default();
                let ends = |byte: &u8| matches!(byte, b',' | b']' | b'}' | b':' | b'"' | 0..=b' ');
                self.at += rest.iter().take_while(|byte| !ends(byte)).count();
            }
        }
        self.text.get(start..self.at).filter(|value| !value.is_empty()).ok_or_else(broken)
    }

    fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, byte: u8) -> Result<(), Refusal> {
        if self.eat(byte) { Ok(()) } else { Err(broken()) }
    }

    /// Steps over a text, at its first quote.
    fn string(&mut self) -> Result<(), Refusal> {
        let mut rest = self.text.as_bytes().get(self.at + 1..).unwrap_or_default();
        while let Some(found) = rest.iter().position(|byte| matches!(byte, b'"' | b'\\')) {
            // A quote ends it. After a backslash another byte is part of the escape.
            let is_end = rest.get(found) == Some(&b'"');
            rest = rest.get(found + if is_end { 1 } else { 2 }..).unwrap_or_default();
            if is_end {
                self.at = self.text.len() - rest.len();
                return Ok(());
            }
        }
        Err(broken())
    }

    /// Steps over a list or an object, to the end of which there are so many brackets already.
    fn nested(&mut self, mut depth: usize) -> Result<(), Refusal> {
        while let Some(byte) = self.text.as_bytes().get(self.at) {
            match byte {
                b'"' => {
                    self.string()?;
                    continue;
                }
                b'{' | b'[' if depth == DEPTH_MAX => return Err(broken()),
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth -= 1,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return Ok(());
            }
        }
        Err(broken())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    /// The text's items or members, each as it is written.
    fn parts(text: &str) -> Result<Vec<(&str, &str)>, Refusal> {
        let mut scanner = Scanner::new(text);
        let mut found = Vec::new();
        match scanner.peek() {
            Some(b'[') => scanner.items(|scanner| {
                found.push(("", scanner.value()?));
                Ok(())
            })?,
            Some(b'{') => scanner.members(|scanner, name| {
                found.push((name, scanner.value()?));
                Ok(ControlFlow::Continue(()))
            })?,
            _ => found.push(("", scanner.value()?)),
        }
        scanner.end()?;
        Ok(found)
    }

    #[test]
    fn after_a_break_the_rest_of_an_object_is_stepped_over() {
        let mut scanner = Scanner::new(r#"[{"a":1,"b":{"}":[]},"c":"}"},2]"#);
        let mut found = Vec::new();
        let items = scanner.items(|scanner| {
            if scanner.peek() == Some(b'{') {
                return scanner.members(|scanner, name| {
                    scanner.value()?;
                    found.push(name);
                    Ok(ControlFlow::Break(()))
                });
            }
            found.push(scanner.value()?);
            Ok(())
        });
        assert_eq!((items, scanner.end(), found), (Ok(()), Ok(()), vec!["\"a\"", "2"]));
    }

    #[test]
    fn what_is_not_json_is_an_error() {
        for text in [
            "",
            " ",
            "{",
            "[",
            "[1",
            "[1,",
            "[1,]",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{a:1}",
            "[1 2]",
            "[1]]",
            "1 1",
            "\"",
            "\"\\\"",
            "[[]",
            ",",
            "[,1]",
            "{\"a\":1 \"b\":2}",
        ] {
            assert!(parts(text).is_err(), "{text}");
        }
        let deep = |depth| format!("[{}{}]", "[".repeat(depth), "]".repeat(depth));
        assert!(parts(&deep(128)).is_ok());
        assert!(parts(&deep(129)).is_err());
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "[\"\\\\{}\\[\\],: a\u{e9}\n]{0,9}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 60, 6, |inner| {
            let names = "[\"\\\\{}a-c\n]{0,4}";
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::btree_map(names, inner, 0..6)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_parts_are_those_that_a_parser_finds(value in values(), is_pretty in any::<bool>()) {
            let text = if is_pretty { format!("{value:#}") } else { value.to_string() };
            let found = parts(&text).unwrap();
            let parsed = |json: &str| serde_json::from_str::<Value>(json).unwrap();
            let found: Vec<(String, Value)> = found
                .iter()
                .map(|(name, part)| {
                    (parsed(if name.is_empty() { "\"\"" } else { name }).as_str().unwrap().to_owned(), parsed(part))
                })
                .collect();
            let wanted: Vec<(String, Value)> = match parsed(&text) {
                Value::Array(items) => items.into_iter().map(|item| (String::new(), item)).collect(),
                Value::Object(members) => members.into_iter().collect(),
                other => vec![(String::new(), other)],
            };
            prop_assert_eq!(found, wanted);
        }

        #[test]
        fn no_text_makes_it_fail(text in "[\\[\\]{}\",:\\\\ a1\u{e9}]{0,40}") {
            let _ = parts(&text);
        }
    }
}
