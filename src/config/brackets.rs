//! Finds the bracket, brace or long string that a TOML text opens and never closes.
//!
//! The parser reports such a text where it notices it, and then again for each word that follows,
//! since it reads the rest of the file as part of the value. This scan knows only strings, comments
//! and brackets. It runs after the parser has found an error, never on a valid file.

use std::ops::Range;

/// A value that is opened and not closed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UnclosedBracket {
    /// The opening delimiter.
    pub(super) at: Range<usize>,
    /// What would close it.
    pub(super) closing: &'static str,
}

/// The first value of `text` that runs into a later setting, or to the end of the text.
pub(super) fn unclosed(text: &str) -> Option<UnclosedBracket> {
    let mut open: Vec<(usize, u8)> = Vec::new();
    let mut at = 0;
    let mut line_begins = true;
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        if line_begins && let Some((start, bracket)) = open.last() {
            if begins_setting(rest, *bracket) {
                return Some(bracket_at(*start, *bracket));
            }
        } else if line_begins && rest.trim_start_matches([' ', '\t']).starts_with('[') {
            // A table header. An unclosed one does not extend beyond its line.
            at += line_bytes(rest);
            continue;
        }
        line_begins = false;
        match rest.as_bytes().first() {
            Some(b'\n') => line_begins = true,
            Some(b'#') => {
                at += line_bytes(rest);
                line_begins = true;
                continue;
            }
            Some(b'"' | b'\'') => match string_bytes(rest) {
                Ok(bytes) => {
                    at += bytes;
                    continue;
                }
                Err(closing) => {
                    return Some(UnclosedBracket { at: at..at + closing.len(), closing });
                }
            },
            Some(bracket @ (b'[' | b'{')) => open.push((at, *bracket)),
            Some(b']') if open.last().is_some_and(|(_, bracket)| *bracket == b'[') => {
                open.pop();
            }
            Some(b'}') if open.last().is_some_and(|(_, bracket)| *bracket == b'{') => {
                open.pop();
            }
            _ => {}
        }
        at += rest.chars().next().map_or(1, char::len_utf8);
    }
    open.last().map(|(start, bracket)| bracket_at(*start, *bracket))
}

fn bracket_at(start: usize, bracket: u8) -> UnclosedBracket {
    UnclosedBracket { at: start..start + 1, closing: if bracket == b'[' { "]" } else { "}" } }
}

/// The length of the rest of the line, with its end.
fn line_bytes(rest: &str) -> usize {
    rest.find('\n').map_or(rest.len(), |end| end + 1)
}

/// The length of the string that `rest` begins with; an error with the missing delimiter where a
/// multi-line string is not closed. A single-line string ends with the line.
pub(super) fn string_bytes(rest: &str) -> Result<usize, &'static str> {
    for (delimiter, quote, escapes, lines) in [
        ("\"\"\"", "\"\"\"", true, true),
        ("'''", "'''", false, true),
        ("\"", "\"", true, false),
        ("'", "'", false, false),
    ] {
        let Some(inside) = rest.strip_prefix(delimiter) else { continue };
        let mut escaped = false;
        for (at, next) in inside.char_indices() {
            if !lines && next == '\n' {
                return Ok(delimiter.len() + at);
            }
            if escaped {
                escaped = false;
            } else if escapes && next == '\\' {
                escaped = true;
            } else if inside.get(at..).is_some_and(|inside| inside.starts_with(quote)) {
                return Ok(delimiter.len() + at + quote.len());
            }
        }
        return if lines { Err(quote) } else { Ok(rest.len()) };
    }
    Ok(0)
}

/// Whether a line inside an open `bracket` begins a setting of the level above: a header, or
/// `key =` where only values are allowed.
pub(super) fn begins_setting(rest: &str, bracket: u8) -> bool {
    let line = rest.split('\n').next().unwrap_or_default().trim();
    if let Some(header) = line.strip_prefix('[') {
        // `[1, 2]` and `["a"]` are arrays in an array. A header is made of bare keys.
        let header = header.strip_prefix('[').unwrap_or(header);
        let (name, after) =
            header.split_at(header.find(|c: char| !is_bare(c) && c != '.').unwrap_or(header.len()));
        let word = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && !["true", "false", "inf", "nan"].contains(&name);
        return word && (after.starts_with(']') || (after.starts_with('.') && after.contains(']')));
    }
    let after_key = line.trim_start_matches(|c: char| is_bare(c) || c == '.' || c == ' ');
    bracket == b'[' && after_key.len() < line.len() && after_key.starts_with('=')
}

fn is_bare(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_delimiter_that_is_not_closed_is_found() {
        for (text, at, closing) in [
            ("a = [\"x\"\n[log]\nlevel = \"info\"\n", 4, "]"),
            ("a = [\"x\",\n\nworkers = 2\n", 4, "]"),
            ("a = [1, 2", 4, "]"),
            ("a = [\n  [1, 2],\n  [3, 4\n]\nb = 1\n[t]\nc = [1]\n", 4, "]"),
            ("b = [ # ]\n']', \"]\", \"\\\"]\"\nc.d = 1\n", 4, "]"),
            ("limits = { a = 1\n[x]\ny = 1\n", 9, "}"),
            ("limits = { a = [1\n}\n[[x]]\n", 15, "]"),
            ("a = 1\nb = \"\"\"x\nc = 2\n", 10, "\"\"\""),
            ("a = '''x\nb = 2\n", 4, "'''"),
        ] {
            let found = unclosed(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!((found.at.start, found.closing), (at, closing), "{text}");
        }
    }

    #[test]
    fn closed_brackets_are_left_alone() {
        for text in [
            "",
            "[server\nworkers = 2\n",
            "a = [\n  [1, 2],\n  [\"x\"],\n  [true],\n  { b = 1 },\n]\n[t]\nb = 1\n",
            "a = { b = 1,\n  c = 2,\n}\n",
            "\"[\" = \"[\"\n'{' = '{' # [\na = \"\"\"[\n\"\"\"\n",
            "a = \"abc\nb = [1]\n",
            "a = = 2\n",
            "a = ]\n",
        ] {
            assert_eq!(unclosed(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_scanned_to_its_end(text in "[\\[\\]{}\"'=a#\\\\\n \u{e9}]{0,40}") {
            if let Some(found) = unclosed(&text) {
                prop_assert!(text.get(found.at).is_some());
            }
        }
    }
}
