//! Regular expressions of the configuration. Each takes time in proportion to what it is matched
//! with, and matches the whole of it. That is bytes: of a letter beyond ASCII, those of its UTF-8,
//! or the escapes of them in a path.

use std::borrow::Cow;
use std::fmt::Write as _;

use regex_automata::meta::Regex;
use regex_automata::util::captures::Captures;
use regex_automata::util::syntax;

use crate::proxy::receive::path;
use crate::proxy::route::written::{WRITTEN, error};
use crate::proxy::settings::{EncodedSlash, PathParameters, Paths};
use crate::telemetry::SettingError;

/// Maximum length of an expression, and size of what it is compiled to, in bytes.
const EXPRESSION_BYTES_MAX: usize = 1 << 10;
const COMPILED_BYTES_MAX: usize = 1 << 20;

/// Compiles an expression that is matched with bytes as they are meant, without escapes.
///
/// # Errors
/// What was expected.
pub(in crate::proxy) fn compile(written: &str, ignores_case: bool) -> Result<Regex, String> {
    compile_spelt(written, ignores_case, str::to_owned)
}

/// The same with letters beyond ASCII as `spell` has them.
fn compile_spelt(
    written: &str,
    ignores_case: bool,
    spell: fn(&str) -> String,
) -> Result<Regex, String> {
    if written.len() > EXPRESSION_BYTES_MAX {
        return Err(format!("an expression of at most {EXPRESSION_BYTES_MAX} bytes"));
    }
    let build = |expression: &str| {
        let built = Regex::builder()
            .configure(Regex::config().nfa_size_limit(Some(COMPILED_BYTES_MAX)))
            // Values are bytes, not letters of some alphabet.
            .syntax(syntax::Config::new().unicode(false).utf8(false).case_insensitive(ignores_case))
            .build(expression);
        built.map_err(|error| match error.syntax_error() {
            Some(why) => format!("a regular expression: {}", last_line(&why.to_string())),
            None => format!("a smaller regular expression: {error}"),
        })
    };
    let spelt = with_letters(written, ignores_case, spell)?;
    // By itself first: its parentheses must not close ours.
    build(&spelt)?;
    build(&format!("\\A(?:{spelt})\\z"))
}

/// An expression with its letters beyond ASCII as `spell` has them, in both cases if case
/// makes no difference: the engine only knows the cases of ASCII where it matches bytes.
fn with_letters(
    written: &str,
    ignores_case: bool,
    spell: fn(&str) -> String,
) -> Result<Cow<'_, str>, String> {
    if written.is_ascii() {
        return Ok(Cow::Borrowed(written));
    }
    let mut out = String::with_capacity(written.len() * 2);
    let mut classes = 0_usize;
    let mut rest = written.chars().peekable();
    while let Some(letter) = rest.next() {
        match letter {
            '\\' => out.extend([Some(letter), rest.next()].into_iter().flatten()),
            '(' if classes == 0 => {
                out.push(letter);
                // The name of a group is none of what is matched.
                let after: String = rest.clone().take(4).collect();
                let is_named = ["?<", "?P<"].iter().any(|start| {
                    after.strip_prefix(start).is_some_and(|name| !name.starts_with(['=', '!']))
                });
                while is_named && let Some(of_name) = rest.next_if(|letter| *letter != '>') {
                    out.push(of_name);
                }
            }
            '[' => {
                classes += 1;
                out.push(letter);
                // A bracket that comes first is one of the class.
                out.extend(rest.next_if_eq(&'^'));
                out.extend(rest.next_if_eq(&']'));
            }
            ']' => {
                classes = classes.saturating_sub(1);
                out.push(letter);
            }
            letter if letter.is_ascii() => out.push(letter),
            letter if classes > 0 => {
                return Err(format!(
                    "an expression without `{letter}` between brackets, which stand for one byte: \
                     `(?:é|è)` instead of `[éè]`"
                ));
            }
            letter => {
                let mut forms = vec![letter.to_string()];
                let cases = [letter.to_lowercase().collect(), letter.to_uppercase().collect()];
                for form in cases.into_iter().filter(|_| ignores_case) {
                    if !forms.contains(&form) {
                        forms.push(form);
                    }
                }
                let forms: Vec<String> = forms.iter().map(|form| spell(form)).collect();
                // Writing to a String can't fail.
                let _ = write!(out, "(?:{})", forms.join("|"));
            }
        }
    }
    Ok(Cow::Owned(out))
}

/// A text with the escapes of a path for what is beyond ASCII.
fn escaped(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii() {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
        out
    })
}

/// What an error of several lines says after it has drawn the expression.
fn last_line(text: &str) -> &str {
    text.lines().last().unwrap_or(text).trim_start_matches("error: ")
}

/// A path that is made of the groups of an expression.
#[derive(Clone, Debug)]
pub(in crate::proxy) struct ExpressionRewrite {
    /// As it is written.
    pattern: String,
    regex: Regex,
    parts: Vec<Part>,
    /// How many escapes of its own have a meaning that a client must not choose.
    telling: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    /// What the group of this number has matched.
    Group(usize),
}

impl PartialEq for ExpressionRewrite {
    fn eq(&self, other: &Self) -> bool {
        (&self.pattern, &self.parts) == (&other.pattern, &other.parts)
    }
}

impl ExpressionRewrite {
    /// Checks what is written under the setting `at`.
    ///
    /// # Errors
    /// The first error.
    pub(in crate::proxy) fn build(pattern: &str, to: &str, at: &str) -> Result<Self, SettingError> {
        let regex = compile_spelt(pattern, true, escaped)
            .map_err(|expected| error(&format!("{at}.match"), pattern, &expected))?;
        let parts = parts(to, &regex)
            .and_then(normal)
            .map_err(|expected| error(&format!("{at}.to"), to, &expected))?;
        let of = |part: &Part| if let Part::Text(text) = part { telling_escapes(text) } else { 0 };
        let telling = parts.iter().map(of).sum();
        Ok(Self { pattern: pattern.to_owned(), regex, parts, telling })
    }

    /// Whether the expression matches a path.
    pub(in crate::proxy) fn matches(&self, path: &str) -> bool {
        self.regex.is_match(path)
    }

    /// The path that is made of a client's normal one. `None` if the expression does not match it.
    ///
    /// # Errors
    /// What is wrong with the path that was made. Or the expression only matches another spelling
    /// of the client's: upstreams that read it so would get past the rewrite.
    pub(in crate::proxy) fn apply(
        &self,
        asked: &str,
        paths: Paths,
    ) -> Option<Result<String, &'static str>> {
        let mut captures = self.regex.create_captures();
        self.regex.captures(asked, &mut captures);
        if captures.is_match() {
            return Some(self.join(asked, &captures, paths));
        }
        let shown = path::shown(asked, paths);
        let mut one = path::one_spelling(&shown, paths);
        if !one.is_ascii() {
            // What is beyond ASCII stands for a byte there.
            let spelt = one.chars().fold(String::new(), |mut out, byte| {
                match byte {
                    byte if byte.is_ascii() => out.push(byte),
                    // Writing to a String can't fail.
                    byte => drop(write!(out, "%{:02X}", u32::from(byte))),
                }
                out
            });
            one = Cow::Owned(spelt);
        }
        let is_meant = self.matches(&one) || self.matches(&format!("{one}/"));
        is_meant.then_some(Err("a path of which the route's expression matches another spelling"))
    }

    fn join(&self, path: &str, captures: &Captures, paths: Paths) -> Result<String, &'static str> {
        let mut made = String::with_capacity(path.len() + 32);
        for part in &self.parts {
            match part {
                Part::Text(text) => made.push_str(text),
                Part::Group(group) => {
                    let span = captures.get_group(*group);
                    made.push_str(span.and_then(|span| path.get(span.range())).unwrap_or_default());
                }
            }
        }
        // A group may be a part of a segment, so that a client could make `..` of two of them, or
        // cut an escape.
        let is_ours = telling_escapes(&made) <= telling_escapes(path) + self.telling;
        match path::normal(&made, may_be_made(paths)) {
            Ok(normal) if normal == made && is_ours => Ok(made),
            _ => {
                Err("a path of which the route's expression makes one with empty or dot segments, \
                      or with a part of an escape")
            }
        }
    }
}

/// What a path that is made may have: what is refused in a client's, and decoded in it, the
/// operator may write. Only empty and dot segments are never meant.
fn may_be_made(paths: Paths) -> Paths {
    let parameters = match paths.parameters {
        PathParameters::Keep => PathParameters::Keep,
        _ => PathParameters::Ignore,
    };
    Paths { encoded_slash: EncodedSlash::Keep, control_characters: true, parameters, ..paths }
}

/// The number of escaped slashes, backslashes and control characters in a normal path.
fn telling_escapes(path: &str) -> usize {
    let escapes = path.match_indices('%').filter_map(|(at, _)| path.get(at + 1..at + 3));
    let bytes = escapes.filter_map(|digits| u8::from_str_radix(digits, 16).ok());
    bytes.filter(|byte| matches!(byte, b'/' | b'\\') || byte.is_ascii_control()).count()
}

/// Brings the texts between the groups into the normal form of a path.
fn normal(parts: Vec<Part>) -> Result<Vec<Part>, String> {
    const EXPECTED: &str =
        "a path that may be normal: without empty and dot segments, and without broken escapes";
    let texts = parts.iter().filter_map(|part| match part {
        Part::Text(text) => Some(path::decoded(text)),
        Part::Group(_) => None,
    });
    // What stands for a group is in no text: more dashes than any of them has in a row, whatever
    // their spelling, and an end.
    let dashes =
        texts.flat_map(|text| text.split(|letter| letter != '-').map(str::len).collect::<Vec<_>>());
    let group = "-".repeat(dashes.max().unwrap_or_default() + 1) + "_";
    let written: String = parts
        .iter()
        .map(|part| if let Part::Text(text) = part { text.as_str() } else { group.as_str() })
        .collect();
    let paths = Paths { parameters: PathParameters::Ignore, ..WRITTEN };
    let normal = path::normal(&written, paths).map_err(|_| EXPECTED)?;
    let is_whole = normal.matches('/').count() == written.matches('/').count()
        && normal.ends_with('/') == written.ends_with('/');
    if !is_whole {
        return Err(EXPECTED.into());
    }
    let mut texts = normal.split(group.as_str());
    let spelt = |part| match part {
        Part::Text(_) => Part::Text(texts.next().unwrap_or_default().to_owned()),
        group => group,
    };
    Ok(parts.into_iter().map(spelt).collect())
}

/// Reads `/v2/{1}/{name}`: a text before and after each group.
fn parts(to: &str, regex: &Regex) -> Result<Vec<Part>, String> {
    const EXPECTED: &str =
        "a path without query, such as \"/v2/{1}\", with groups by number or name in braces";
    if !to.starts_with('/') || to.contains(['?', '#']) {
        return Err(EXPECTED.into());
    }
    let names: Vec<Option<&str>> =
        regex.group_info().pattern_names(regex_automata::PatternID::ZERO).collect();
    let mut parts = Vec::new();
    let mut rest = to;
    while let Some((text, after)) = rest.split_once('{') {
        let (group, after) = after.split_once('}').ok_or(EXPECTED)?;
        if text.contains('}') {
            return Err(EXPECTED.into());
        }
        let number = match group.parse::<usize>() {
            Ok(number) => (number < names.len()).then_some(number),
            Err(_) => names.iter().position(|name| *name == Some(group)),
        };
        let Some(number) = number else {
            return Err(format!(
                "a group of the expression, which has {}, not `{{{group}}}`",
                names.len().saturating_sub(1)
            ));
        };
        parts.extend([Part::Text(text.to_owned()), Part::Group(number)]);
        rest = after;
    }
    if rest.contains('}') {
        return Err(EXPECTED.into());
    }
    parts.push(Part::Text(rest.to_owned()));
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::proxy::route::written::WRITTEN;

    fn build(pattern: &str, to: &str) -> Result<ExpressionRewrite, SettingError> {
        ExpressionRewrite::build(pattern, to, "rewrite")
    }

    #[test]
    fn groups_of_the_path_are_put_where_the_template_has_them() {
        for (pattern, to, path, made) in [
            ("/v([0-9]+)/(.*)", "/api/{2}/of/{1}", "/v2/users/7", Some("/api/users/7/of/2")),
            ("/(?<user>[^/]+)/(?<rest>.*)", "/u/{user}/x/{rest}", "/me/a/b", Some("/u/me/x/a/b")),
            ("/old-(.*)", "/new-{1}", "/OLD-page", Some("/new-page")),
            ("/old-(.*)", "/new-{1}", "/other", None),
            ("/old", "/new", "/older", None),
            ("/(a)?(.*)", "/x{1}y/{2}", "/b", Some("/xy/b")),
            ("(.*)", "{0}", "/b", None),
        ] {
            if let Ok(rewrite) = build(pattern, to) {
                let got = rewrite.apply(path, WRITTEN).map(Result::unwrap);
                assert_eq!(got.as_deref(), made, "{pattern} {to} {path}");
            } else {
                assert!(!to.starts_with('/'), "{pattern} {to}");
            }
        }
    }

    #[test]
    fn what_fits_no_request_is_an_error() {
        for (pattern, to, setting) in [
            ("/(", "/x", "rewrite.match"),
            ("/(.*)", "/{2}", "rewrite.to"),
            ("/(.*)", "/{name}", "rewrite.to"),
            ("/(.*)", "/{1", "rewrite.to"),
            ("/(.*)", "/1}", "rewrite.to"),
            ("/(.*)", "x/{1}", "rewrite.to"),
            ("/(.*)", "/{1}?x", "rewrite.to"),
            ("/(.*)", "/a}b/{1}", "rewrite.to"),
            // No path that is made of these would be normal.
            ("/(.*)", "//{1}", "rewrite.to"),
            ("/(.*)", "/a//{1}", "rewrite.to"),
            ("/(.*)", "/a/../{1}", "rewrite.to"),
            ("/(.*)", "/a/%2e%2E", "rewrite.to"),
            ("/(.*)", "/{1}/.", "rewrite.to"),
            ("/(.*)", "/;x/{1}", "rewrite.to"),
            ("/(.*)", "/..%2f/{1}", "rewrite.to"),
            ("/(.*)", "/a%2/{1}", "rewrite.to"),
            ("/(.*)", "/a\\{1}", "rewrite.to"),
            // Brackets are for one byte.
            ("/[éè](.*)", "/{1}", "rewrite.match"),
            ("/(?u)[^]é](.*)", "/{1}", "rewrite.match"),
        ] {
            assert_eq!(build(pattern, to).unwrap_err().setting, setting, "{pattern} {to}");
        }
    }

    #[test]
    fn what_an_operator_writes_is_brought_into_normal_form() {
        let all = [
            Paths::default(),
            WRITTEN,
            Paths { encoded_slash: EncodedSlash::Reject, ..Paths::default() },
            Paths { encoded_slash: EncodedSlash::Decode, ..Paths::default() },
            Paths { parameters: PathParameters::Reject, ..Paths::default() },
            Paths { parameters: PathParameters::Strip, ..Paths::default() },
        ];
        for (to, made) in [
            ("/a b/{1}", "/a%20b/x/y"),
            ("/é/{1}", "/%C3%A9/x/y"),
            ("/%7euser/{1}", "/~user/x/y"),
            ("/a%2fb/{1}", "/a%2Fb/x/y"),
            ("/a%0a%5c;v=1/{1}", "/a%0A%5C;v=1/x/y"),
            ("/--_-%2d-/{1}--_{1}", "/--_---/x/y--_x/y"),
            ("/.{1}", "/.x/y"),
        ] {
            let rewrite = build("/t/(.*)", to).unwrap();
            for paths in all {
                let got = rewrite.apply("/t/x/y", paths).unwrap();
                assert_eq!(got.as_deref(), Ok(made), "{to} {paths:?}");
            }
        }
        // A client's own slash is one that was decided on, and others it can't make.
        let rewrite = build("/t/(.)(.)(.*)", "/a%2fb/{1}{3}").unwrap();
        assert!(matches!(rewrite.apply("/t/xy%2Fz", WRITTEN), Some(Ok(_))));
        assert!(matches!(rewrite.apply("/t/%A2F", WRITTEN), Some(Err(_))));
        assert!(matches!(rewrite.apply("/t/%A0A", WRITTEN), Some(Err(_))));
    }

    #[test]
    fn letters_beyond_ascii_are_those_of_a_path_in_either_case() {
        let rewrite = build("/rw/café(.*)", "/new{1}").unwrap();
        for path in ["/rw/caf%C3%A9/x", "/RW/CAF%C3%89/x"] {
            let got = rewrite.apply(path, Paths::default());
            assert_eq!(got.unwrap().as_deref(), Ok("/new/x"), "{path}");
        }
        assert!(rewrite.apply("/rw/cafe/x", Paths::default()).is_none());
        assert!(rewrite.apply("/rw/caf%E9/x", Paths::default()).is_none());
        // Other spellings of it do not get past the rewrite.
        assert!(matches!(rewrite.apply("/r%77;a/caf%C3%A9/x", Paths::default()), Some(Err(_))));
        let rewrite = build("/x(é+)y", "/{1}").unwrap();
        let got = rewrite.apply("/x%C3%A9%C3%A9y", Paths::default());
        assert_eq!(got.unwrap().as_deref(), Ok("/%C3%A9%C3%A9"));
    }

    #[test]
    fn another_spelling_does_not_get_past_a_rewrite_and_groups_make_no_new_ones() {
        let paths = Paths::default();
        let rewrite = build("/t/(.*)", "/tenants/acme/{1}").unwrap();
        assert!(matches!(rewrite.apply("/t;x/admin", paths), Some(Err(_))));
        let own = build("/@me/(.*)", "/me/{1}").unwrap();
        assert!(matches!(own.apply("/%40me/x", paths), Some(Err(_))));
        assert!(rewrite.apply("/other/admin", paths).is_none());
        let rewrite = build("/old", "/new").unwrap();
        assert!(matches!(rewrite.apply("/old/", paths), Some(Err(_))));
        let rewrite = build("/(.)(.)(.*)", "/{1}{3}").unwrap();
        assert!(matches!(rewrite.apply("/%A2F", paths), Some(Err(_))));
        let rewrite = build("/([^/]*)/([^/]*)", "/in/{1}/{2}").unwrap();
        assert!(matches!(rewrite.apply("/;/x", paths), Some(Err(_))));
    }

    #[test]
    fn an_expression_stays_within_its_anchors() {
        assert!(build("/a)|(/b", "/x").is_err());
        assert!(build("/a|/b", "/x").unwrap().apply("/abc", WRITTEN).is_none());
    }

    proptest! {
        /// Whatever the groups are, the upstream gets a path in its normal form, or none.
        #[test]
        fn a_path_that_is_made_is_normal(path in "(/([a-c.;~]|%2[fF]|%5C|%40){0,5}){2,6}") {
            let Ok(normal) = path::normal(&path, WRITTEN) else { return Ok(()) };
            for (pattern, to) in [
                ("/(.)?(.*)", "/in/{1}{1}/{2}"),
                ("/(.*?)/?(.?.?)", "/in/{1}/{2}"),
                ("/(.*)%(.*)", "/in/{1}{2}"),
                ("/(.*)", "/in{1}"),
            ] {
                if let Some(Ok(made)) = build(pattern, to).unwrap().apply(&normal, WRITTEN) {
                    prop_assert!(made.starts_with("/in"), "{}", made);
                    prop_assert_eq!(path::normal(&made, WRITTEN).unwrap(), made.as_str());
                }
            }
        }
    }
}
