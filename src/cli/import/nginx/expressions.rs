//! Regular expressions of locations, as conditions of Weir's routes. nginx looks for an expression
//! anywhere in a path. In Weir it has to match the whole path, from which the slash at the end was
//! taken off: so a second one matches what may precede such a slash, `^/a` for `^/a/`.

use std::iter::Peekable;
use std::str::Chars;

/// Maximum depth of groups.
const DEPTH_MAX: u32 = 50;
/// Maximum length of an expression in Weir, in bytes.
const BYTES_MAX: usize = 1 << 10;
const ENDLESS: &str = "found an end within an escape, a class or a group";

/// The values of a condition for the paths in which nginx finds an expression.
///
/// # Errors
/// Those for the paths that end with a slash can't be told. The value for the others, and why.
pub(super) fn conditions(
    expression: &str,
    ignores_case: bool,
) -> Result<Vec<String>, (String, String)> {
    let flags = if ignores_case { "(?si)" } else { "(?s)" };
    let found = format!("~{flags}.*(?:{expression}).*");
    let mut reader = Reader { letters: expression.chars().peekable(), depth: 0 };
    let before = reader.alternatives().and_then(|all| match reader.letters.next() {
        None => Ok(all.before_slash),
        Some(_) => Err("found `)` without a group".to_owned()),
    });
    match before.map(|before| before.map(|before| format!("~{flags}.*(?:{before})"))) {
        Ok(Some(before)) if before.len() > BYTES_MAX => {
            Err((found, format!("it would have more than {BYTES_MAX} bytes")))
        }
        Ok(before) => Ok(std::iter::once(found).chain(before).collect()),
        Err(why) => Err((found, why)),
    }
}

/// The value of a condition for a text, with everything behind it if it is only the `beginning`.
pub(super) fn of_text(text: &str, beginning: bool) -> String {
    format!("~(?s){}{}", escaped(text), if beginning { ".*" } else { "" })
}

/// An expression for a text.
pub(super) fn escaped(text: &str) -> String {
    let mut all = String::new();
    for letter in text.chars() {
        if letter.is_ascii_punctuation() && !"/-_".contains(letter) {
            all.push('\\');
        }
        all.push(letter);
    }
    all
}

/// A part of an expression.
struct Part {
    /// It, with groups that have no number or name.
    text: String,
    /// It matches the empty text.
    is_nullable: bool,
    /// What matches a text that it matches with a slash at the end, but for that slash.
    before_slash: Option<String>,
}

impl Part {
    /// Something that matches one letter.
    fn letter(text: &str, may_be_slash: bool) -> Self {
        let before_slash = may_be_slash.then(String::new);
        Self { text: text.to_owned(), is_nullable: false, before_slash }
    }

    /// Something that matches a place.
    fn place(text: String) -> Self {
        Self { text, is_nullable: true, before_slash: None }
    }

    fn sequence(parts: &[Self]) -> Self {
        let text = |parts: &[Self]| parts.iter().map(|part| part.text.as_str()).collect::<String>();
        let mut ends = Vec::new();
        for (index, part) in parts.iter().enumerate().rev() {
            if let Some(end) = &part.before_slash {
                ends.push(text(parts.get(..index).unwrap_or_default()) + end);
            }
            if !part.is_nullable {
                break;
            }
        }
        let is_nullable = parts.iter().all(|part| part.is_nullable);
        Self { text: text(parts), is_nullable, before_slash: one_of(&ends) }
    }

    fn repeated(self, least: u32, most: Option<u32>, written: &str) -> Self {
        let most_before = most.map(|most| most.saturating_sub(1));
        let before_slash = self.before_slash.filter(|_| most != Some(0)).map(|end| {
            let many = match (least.saturating_sub(1), most_before) {
                (_, Some(0)) => return end,
                (0, None) => "*".to_owned(),
                (least, None) => format!("{{{least},}}"),
                (least, Some(most)) => format!("{{{least},{most}}}"),
            };
            format!("{}{many}{end}", self.text)
        });
        let text = format!("{}{written}", self.text);
        Self { text, is_nullable: self.is_nullable || least == 0, before_slash }
    }
}

/// An expression for what one of several matches.
fn one_of(all: &[String]) -> Option<String> {
    match all {
        [] => None,
        [one] => Some(one.clone()),
        several => Some(format!("(?:{})", several.join("|"))),
    }
}

struct Reader<'a> {
    letters: Peekable<Chars<'a>>,
    depth: u32,
}

impl Reader<'_> {
    fn alternatives(&mut self) -> Result<Part, String> {
        let mut all = vec![self.sequence()?];
        while self.letters.next_if_eq(&'|').is_some() {
            all.push(self.sequence()?);
        }
        let texts: Vec<&str> = all.iter().map(|part| part.text.as_str()).collect();
        let ends: Vec<String> = all.iter().filter_map(|part| part.before_slash.clone()).collect();
        Ok(Part {
            text: texts.join("|"),
            is_nullable: all.iter().any(|part| part.is_nullable),
            before_slash: one_of(&ends),
        })
    }

    fn sequence(&mut self) -> Result<Part, String> {
        let mut parts = Vec::new();
        while let Some(letter) = self.letters.next_if(|next| !"|)".contains(*next)) {
            let part = match letter {
                '(' => self.group()?,
                '[' => self.class()?,
                '\\' => self.escape()?,
                '.' => Part::letter(".", true),
                '^' | '$' => Part::place(letter.to_string()),
                '*' | '+' | '?' => return Err(format!("found `{letter}` behind nothing")),
                letter => Part::letter(&letter.to_string(), letter == '/'),
            };
            parts.push(self.repetition(part)?);
        }
        Ok(Part::sequence(&parts))
    }

    fn repetition(&mut self, part: Part) -> Result<Part, String> {
        let (least, most, mut written) = match self.letters.peek() {
            Some('*') => (0, None, "*".to_owned()),
            Some('+') => (1, None, "+".to_owned()),
            Some('?') => (0, Some(1), "?".to_owned()),
            Some('{') => {
                let ahead: String = self.letters.clone().take_while(|next| *next != '}').collect();
                let numbers = ahead.trim_start_matches('{');
                let (least, most) = numbers.split_once(',').unwrap_or((numbers, numbers));
                let Ok(least) = least.parse() else { return Ok(part) };
                let most = if most.is_empty() { None } else { most.parse().ok() };
                (least, most, format!("{ahead}}}"))
            }
            _ => return Ok(part),
        };
        self.letters.by_ref().take(written.chars().count()).for_each(drop);
        if self.letters.next_if_eq(&'?').is_some() {
            written.push('?');
        } else if self.letters.peek() == Some(&'+') {
            return Err("found a repetition that gives nothing back".to_owned());
        }
        Ok(part.repeated(least, most, &written))
    }

    /// What is in parentheses, the first of which was read.
    fn group(&mut self) -> Result<Part, String> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(format!("found more than {DEPTH_MAX} groups in one another"));
        }
        let mut begin = "(?:".to_owned();
        if self.letters.next_if_eq(&'?').is_some() {
            let mut kind = String::new();
            for next in self.letters.by_ref() {
                kind.push(next);
                if ":)>'!=".contains(next) && kind != "'" {
                    break;
                }
            }
            let flags = kind.trim_end_matches([':', ')']);
            let is_named = kind.starts_with(['<', 'P', '\'']) && kind.ends_with(['>', '\'']);
            let are_flags = flags.chars().all(|flag| "imsUx-".contains(flag));
            match kind.chars().last() {
                Some(':') if are_flags => begin = format!("(?{kind}"),
                Some(')') if are_flags => {
                    self.depth -= 1;
                    return Ok(Part::place(format!("(?{kind}")));
                }
                Some('>' | '\'') if is_named => {}
                _ => return Err(format!("found a group of the kind `(?{kind}`")),
            }
        }
        let inner = self.alternatives()?;
        self.letters.next().ok_or(ENDLESS)?;
        self.depth -= 1;
        let whole = |text: String| format!("{begin}{text})");
        Ok(Part {
            text: whole(inner.text),
            is_nullable: inner.is_nullable,
            before_slash: inner.before_slash.map(whole),
        })
    }

    /// What follows a backslash.
    fn escape(&mut self) -> Result<Part, String> {
        let letter = self.letters.next().ok_or(ENDLESS)?;
        let text = format!("\\{letter}");
        match letter {
            'b' | 'B' | 'A' | 'z' | 'Z' => Ok(Part::place(text)),
            'd' | 's' | 'w' | 'n' | 't' | 'r' | 'f' => Ok(Part::letter(&text, false)),
            'D' | 'S' | 'W' => Ok(Part::letter(&text, true)),
            letter if letter.is_ascii_alphanumeric() => Err(format!("found `{text}`")),
            letter => Ok(Part::letter(&text, letter == '/')),
        }
    }

    /// What is in brackets, the first of which was read.
    fn class(&mut self) -> Result<Part, String> {
        let mut text = "[".to_owned();
        let is_negated = self.letters.next_if_eq(&'^').is_some();
        if is_negated {
            text.push('^');
        }
        let (mut has_slash, mut is_first, mut is_plain) = (false, true, true);
        let mut before: Option<char> = None;
        loop {
            let letter = self.letters.next().ok_or(ENDLESS)?;
            text.push(letter);
            match letter {
                ']' if !is_first => break,
                '\\' => {
                    let escaped = self.letters.next().ok_or(ENDLESS)?;
                    text.push(escaped);
                    has_slash |= "/DSW".contains(escaped);
                    is_plain &= !escaped.is_ascii_alphanumeric() || "dswntrf".contains(escaped);
                    before = None;
                }
                // `[:alpha:]`
                '[' if self.letters.peek() == Some(&':') => {
                    is_plain = false;
                    text.extend(self.letters.by_ref().take_while(|next| *next != ']'));
                    text.push(']');
                }
                '-' if before.is_some() => {
                    let last = self.letters.peek().copied().ok_or(ENDLESS)?;
                    has_slash |=
                        last != ']' && before.is_some_and(|first| first <= '/' && '/' <= last);
                    before = None;
                }
                letter => {
                    has_slash |= letter == '/';
                    before = Some(letter);
                }
            }
            is_first = false;
        }
        // In doubt, a slash may be meant.
        Ok(Part::letter(&text, !is_plain || has_slash != is_negated))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_precedes_a_slash_at_the_end_is_matched_too() {
        for (expression, before) in [
            ("^/admin/", Some("^/admin")),
            ("^/admin/$", Some("^/admin")),
            ("/$", Some("")),
            ("^/admin/(.*)$", Some("(?:^/admin/(?:.*)|^/admin)")),
            ("^/(?<a>x|y)/?$", Some("^/(?:x|y)")),
            ("^/(a/|b/)", Some("^/(?:(?:a|b))")),
            ("^/a/|\\.git/", Some("(?:^/a|\\.git)")),
            ("(?i)^/a{2,3}/{1,2}", Some("(?i)^/a{2,3}/{0,1}")),
            ("^/a/+$", Some("^/a/*")),
            ("^/[^.]+$", Some("^/[^.]*")),
            ("^/[+-9]$", Some("^/")),
            ("^/[[:alpha:]]$", Some("^/")),
            ("^/x\\W$", Some("^/x")),
            ("\\.php$", None),
            ("^/[a-z0-9_-]+$", None),
            ("^/[^/]+$", None),
            ("\\.(bak|sql)$", None),
        ] {
            let before = before.map(|before| format!("~(?s).*(?:{before})"));
            let found = format!("~(?s).*(?:{expression}).*");
            let expected = std::iter::once(found).chain(before).collect();
            assert_eq!(conditions(expression, false), Ok(expected), "{expression}");
        }
        for expression in ["^/(?!public)", "^/a++", "(a", "a)", "[a", "\\", "(\\1)", "*"] {
            assert!(conditions(expression, true).is_err(), "{expression}");
        }
        let long = conditions(&format!("^/{}/", "a".repeat(1020)), false);
        assert!(long.is_err_and(|(_, why)| why.contains("1024")));
    }

    #[test]
    fn a_text_is_an_expression_for_itself() {
        assert_eq!(of_text("/a{b}*.x-1/", true), "~(?s)/a\\{b\\}\\*\\.x-1/.*");
        assert_eq!(of_text("/a+", false), "~(?s)/a\\+");
    }
}
