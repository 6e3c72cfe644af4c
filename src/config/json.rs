//! Finds the position of each setting in a JSON text, for errors: serde_json reports positions
//! only of what it can't parse.
//!
//! Checks nothing. Where the text is not JSON, what comes after that has no position.

use std::collections::HashMap;
use std::ops::Range;

use super::finding::{Span, join};

/// Maximum nesting depth: that of serde_json.
const DEPTH_MAX: usize = 128;

/// The positions of all settings below `above`, which is the whole text.
pub(super) fn spans(text: &str, above: &str) -> HashMap<String, Span> {
    let mut walk = Walk { text, at: 0, spans: HashMap::new() };
    if let Some(value) = walk.value(above, 0) {
        walk.spans.insert(above.to_owned(), Span { key: value.start..value.start, value });
    }
    walk.spans
}

struct Walk<'t> {
    text: &'t str,
    at: usize,
    spans: HashMap<String, Span>,
}

impl Walk<'_> {
    /// Reads a value. `None` where there is none.
    fn value(&mut self, path: &str, depth: usize) -> Option<Range<usize>> {
        let first = self.next()?;
        let start = self.at;
        match first {
            b'{' | b'[' if depth >= DEPTH_MAX => return None,
            b'{' => self.members(path, depth)?,
            b'[' => self.elements(path, depth)?,
            b'"' => self.string()?,
            _ => self.word()?,
        }
        Some(start..self.at)
    }

    fn members(&mut self, path: &str, depth: usize) -> Option<()> {
        self.at += 1;
        loop {
            match self.next()? {
                b'}' => break,
                b',' => self.at += 1,
                b'"' => {
                    let start = self.at;
                    self.string()?;
                    let key = start..self.at;
                    let name: String = serde_json::from_str(self.text.get(key.clone())?).ok()?;
                    self.next().filter(|byte| *byte == b':')?;
                    self.at += 1;
                    let path = join(path, &name);
                    let value = self.value(&path, depth + 1)?;
                    self.spans.insert(path, Span { key, value });
                }
                _ => return None,
            }
        }
        self.at += 1;
        Some(())
    }

    fn elements(&mut self, path: &str, depth: usize) -> Option<()> {
        self.at += 1;
        let mut index = 0_usize;
        loop {
            match self.next()? {
                b']' => break,
                b',' => self.at += 1,
                _ => {
                    let path = format!("{path}[{index}]");
                    let value = self.value(&path, depth + 1)?;
                    self.spans.insert(path, Span { key: value.clone(), value });
                    index += 1;
                }
            }
        }
        self.at += 1;
        Some(())
    }

    fn string(&mut self) -> Option<()> {
        self.at += 1;
        loop {
            match self.byte()? {
                b'"' => break,
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
        self.at += 1;
        Some(())
    }

    /// A number, `true`, `false` or `null`.
    fn word(&mut self) -> Option<()> {
        let start = self.at;
        while self.byte().is_some_and(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
        {
            self.at += 1;
        }
        (self.at > start).then_some(())
    }

    /// The next byte that is not a space.
    fn next(&mut self) -> Option<u8> {
        while self.byte()?.is_ascii_whitespace() {
            self.at += 1;
        }
        self.byte()
    }

    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_has_its_place() {
        let text =
            "{ \"a\": {\"b.c\": [1, {\"\\u0064\\\"\": -2.5e3}]},\n\"e\": \"}\\\"\", \"f\": [] }\n";
        let spans = spans(text, "s");
        let mut found: Vec<(&str, &str, &str)> = spans
            .iter()
            .map(|(path, span)| (path.as_str(), &text[span.key.clone()], &text[span.value.clone()]))
            .collect();
        found.sort_unstable();
        assert_eq!(
            found,
            [
                ("s", "", text.trim_end()),
                ("s.a", "\"a\"", "{\"b.c\": [1, {\"\\u0064\\\"\": -2.5e3}]}"),
                ("s.a.\"b.c\"", "\"b.c\"", "[1, {\"\\u0064\\\"\": -2.5e3}]"),
                ("s.a.\"b.c\"[0]", "1", "1"),
                ("s.a.\"b.c\"[1]", "{\"\\u0064\\\"\": -2.5e3}", "{\"\\u0064\\\"\": -2.5e3}"),
                ("s.a.\"b.c\"[1].\"d\\\"\"", "\"\\u0064\\\"\"", "-2.5e3"),
                ("s.e", "\"e\"", "\"}\\\"\""),
                ("s.f", "\"f\"", "[]"),
            ]
        );
    }

    #[test]
    fn invalid_json_ends_the_walk() {
        let deep = "[".repeat(100_000);
        for text in
            ["", "{", "[1, ?]", "{\"a\" 1}", "\"\\", "{\"a\": 1, b}", "[\"\u{e9}\\\u{e9}", &deep]
        {
            let _ = spans(text, "s");
        }
        assert!(spans("{\"a\": 1, b}", "s").contains_key("s.a"));
    }
}
