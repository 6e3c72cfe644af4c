//! Templates of paths, written as those of routes: `/reports/{id}`, `/v1/*`. A template is parsed
//! and matched here; `table` finds the most specific of several.

mod table;

use std::cmp::Ordering;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::mistakes::message;

pub use table::{Methods, PathTable, Tie};

/// Maximum number of segments of a template.
const SEGMENTS_MAX: usize = 64;
/// Maximum size of a template, in bytes.
const PATH_BYTES_MAX: usize = 1024;
/// Maximum size of a parameter's name, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// What messages say was expected.
const EXPECTED: &str = "a path such as \"/reports/{id}\" or \"/v1/*\"";

/// Which spellings of a path match a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spelling {
    /// The path as it is written. Use it for rules that loosen limits.
    Exact,
    /// Upper or lower case (of ASCII letters), and with or without a slash at its end, as many
    /// servers read it. Use it for rules that tighten limits.
    Any,
}

/// A template of paths. Use it as the type of a setting.
///
/// `{name}` matches any one segment, a trailing `/*` everything below, or nothing. Everything else
/// matches itself, and escapes are decoded first. A slash at the end is not part of a template.
///
/// ```
/// use weir_policy::{PathTemplate, Spelling};
///
/// let template: PathTemplate = serde_json::from_str("\"/reports/{id}\"").unwrap();
/// assert!(template.matches("/reports/7", Spelling::Exact));
/// assert!(!template.matches("/Reports/7/", Spelling::Exact));
/// assert!(template.matches("/Reports/7/", Spelling::Any));
/// assert!(!template.matches("/reports/7/pages", Spelling::Any));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathTemplate {
    text: String,
    segments: Vec<Segment>,
    /// It ends in `/*`.
    open: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    /// Decoded.
    Literal(Vec<u8>),
    Parameter,
}

impl PathTemplate {
    /// Reads a template.
    ///
    /// # Errors
    /// The message of a mistake: what was found and what was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = |expected: &str| Err(message(&format_args!("{text:?}"), &expected));
        if text.len() > PATH_BYTES_MAX {
            return Err(message(
                &format_args!("{} bytes", text.len()),
                &format_args!("a path of at most {PATH_BYTES_MAX} bytes"),
            ));
        }
        let Some(rest) = text.strip_prefix('/') else { return wrong(EXPECTED) };
        let (rest, open) = match rest.strip_suffix('*') {
            Some("") => ("", true),
            Some(before) => match before.strip_suffix('/') {
                Some("") => return wrong("a path without empty segments"),
                Some(before) => (before, true),
                None => return wrong("`*` only as a whole segment, the last one"),
            },
            None => (rest, false),
        };
        let mut segments = Vec::new();
        let mut names: Vec<&str> = Vec::new();
        let parts = if rest.is_empty() && (open || text == "/") { None } else { Some(rest) };
        for part in parts.into_iter().flat_map(|rest| rest.split('/')) {
            let inner = part.strip_prefix('{').and_then(|part| part.strip_suffix('}'));
            if let Some(name) = inner {
                let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
                if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(plain) {
                    return wrong("a name of 1 to 64 letters, digits, `_` and `-` between braces");
                }
                if names.contains(&name) {
                    return wrong("each name in braces once");
                }
                names.push(name);
                segments.push(Segment::Parameter);
                continue;
            }
            match part {
                "" => {
                    return wrong("a path without empty segments, and without a slash at its end");
                }
                "." | ".." => {
                    return wrong("a path without dot segments: a request's are resolved");
                }
                _ if part.contains(['{', '}', '*']) => {
                    return wrong("`{name}` as a whole segment, and `*` only as the last one");
                }
                _ if part.contains(['?', '#']) => {
                    return wrong("a path without query and fragment");
                }
                _ => {}
            }
            let Some(literal) = decoded(part) else {
                return wrong("`%` only before two hexadecimal digits");
            };
            segments.push(Segment::Literal(literal));
        }
        if segments.len() > SEGMENTS_MAX {
            return wrong("a path of at most 64 segments");
        }
        Ok(Self { text: text.to_owned(), segments, open })
    }

    /// The template as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether a request's path, as the fact `path` shows it, matches.
    #[must_use]
    pub fn matches(&self, path: &str, spelling: Spelling) -> bool {
        self.matches_segments(&segments(path, spelling), spelling)
    }

    fn matches_segments(&self, path: &Option<Vec<Vec<u8>>>, spelling: Spelling) -> bool {
        let Some(path) = path else { return false };
        let fits = |(segment, found): (&Segment, &Vec<u8>)| match segment {
            Segment::Parameter => !found.is_empty(),
            Segment::Literal(literal) => match spelling {
                Spelling::Exact => literal == found,
                Spelling::Any => literal.eq_ignore_ascii_case(found),
            },
        };
        let long_enough = if self.open {
            path.len() >= self.segments.len()
        } else {
            path.len() == self.segments.len()
        };
        long_enough && self.segments.iter().zip(path).all(fits)
    }

    /// Sorts the more specific of two templates first: at the first segment in which they differ in
    /// kind, a literal before a parameter before `*`. Templates that are equal here match the same
    /// paths.
    #[must_use]
    pub fn specificity(&self, other: &Self) -> Ordering {
        let key = |template: &Self| -> Vec<(u8, Vec<u8>)> {
            let kinds = template.segments.iter().map(|segment| match segment {
                Segment::Literal(literal) => (0, literal.to_ascii_lowercase()),
                Segment::Parameter => (1, Vec::new()),
            });
            let end = if template.open { 3 } else { 2 };
            kinds.chain([(end, Vec::new())]).collect()
        };
        key(self).cmp(&key(other))
    }
}

impl<'de> Deserialize<'de> for PathTemplate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(D::Error::custom)
    }
}

/// A request's path in segments. With [`Spelling::Exact`], a slash at its end is an empty segment,
/// which only `/*` matches. `None` for what is not a path: `*`.
fn segments(path: &str, spelling: Spelling) -> Option<Vec<Vec<u8>>> {
    let mut rest = path.strip_prefix('/')?;
    if spelling == Spelling::Any {
        rest = rest.strip_suffix('/').unwrap_or(rest);
    }
    if rest.is_empty() {
        return Some(Vec::new());
    }
    // The proxy lets no broken escape through.
    Some(rest.split('/').map(|part| decoded(part).unwrap_or_else(|| part.into())).collect())
}

/// Decodes the escapes of a segment, except those of slashes. `None` if one is broken.
fn decoded(segment: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(segment.len());
    let mut pieces = segment.split('%');
    out.extend_from_slice(pieces.next()?.as_bytes());
    for piece in pieces {
        let (digits, rest) = piece.split_at_checked(2)?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        match u8::from_str_radix(digits, 16).ok()? {
            b'/' | b'\\' => {
                out.extend_from_slice(format!("%{digits}").to_ascii_uppercase().as_bytes())
            }
            byte => out.push(byte),
        }
        out.extend_from_slice(rest.as_bytes());
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn is(template: &str, path: &str, exact: bool, any: bool) {
        let template = PathTemplate::parse(template).unwrap();
        assert_eq!(
            (template.matches(path, Spelling::Exact), template.matches(path, Spelling::Any)),
            (exact, any),
            "{template:?} {path}"
        );
    }

    #[test]
    fn templates_match_as_routes_do() {
        is("/", "/", true, true);
        is("/", "/a", false, false);
        is("/*", "/", true, true);
        is("/*", "/a/b", true, true);
        is("/v1/*", "/v1", true, true);
        is("/v1/*", "/v1/", true, true);
        is("/v1/*", "/v1/a/b", true, true);
        is("/v1/*", "/v12", false, false);
        is("/a/{x}/c", "/a/b/c", true, true);
        is("/a/{x}/c", "/a//c", false, false);
        is("/a/{x}", "/a", false, false);
        is("/a/{x}", "/a/", false, false);
        is("/a/{x}/*", "/a/b", true, true);
        is("/a", "*", false, false);
    }

    #[test]
    fn a_spelling_that_many_servers_ignore_matches_only_where_it_may() {
        is("/Reports", "/Reports", true, true);
        is("/Reports", "/reports", false, true);
        is("/reports", "/reports/", false, true);
        is("/@me", "/%40me", true, true);
        is("/%40me", "/@me", true, true);
        is("/a%2fb", "/a%2Fb", true, true);
        is("/a%2fb", "/a/b", false, false);
    }

    #[test]
    fn an_invalid_template_is_refused_with_the_expected_form() {
        for (text, expected) in [
            ("", EXPECTED),
            ("reports", EXPECTED),
            ("/a*", "`*` only as a whole segment, the last one"),
            ("/a/*/b", "`*` only as the last one"),
            ("/a//b", "without empty segments"),
            ("/a/", "without a slash at its end"),
            ("//*", "without empty segments"),
            ("/a/../b", "without dot segments"),
            ("/a{x}", "`{name}` as a whole segment"),
            ("/{}", "a name of 1 to 64"),
            ("/{x y}", "a name of 1 to 64"),
            ("/{x}/{x}", "each name in braces once"),
            ("/a?b", "without query"),
            ("/a%4", "two hexadecimal digits"),
            ("/a%+4", "two hexadecimal digits"),
            (&"/a".repeat(65), "at most 64 segments"),
            (&format!("/{}", "a".repeat(1024)), "at most 1024 bytes"),
        ] {
            let wrong = PathTemplate::parse(text).unwrap_err();
            assert!(wrong.starts_with("found ") && wrong.contains(expected), "{text}: {wrong}");
        }
    }

    #[test]
    fn a_literal_is_more_specific_than_a_parameter_and_that_than_the_rest() {
        let mut templates: Vec<PathTemplate> =
            ["/*", "/{a}", "/a/*", "/{a}/b", "/a", "/a/{b}", "/", "/a/b", "/a/{b}/c", "/{a}/*"]
                .map(|text| PathTemplate::parse(text).unwrap())
                .into();
        templates.sort_by(PathTemplate::specificity);
        let sorted: Vec<&str> = templates.iter().map(PathTemplate::as_str).collect();
        assert_eq!(
            sorted,
            ["/a/b", "/a/{b}/c", "/a/{b}", "/a", "/a/*", "/{a}/b", "/{a}", "/{a}/*", "/", "/*"]
        );
        let same = |one: &str, two: &str| {
            let [one, two] = [one, two].map(|text| PathTemplate::parse(text).unwrap());
            one.specificity(&two) == Ordering::Equal
        };
        assert!(same("/a/{b}", "/A/{c}") && same("/%61", "/a") && !same("/a", "/a/*"));
    }
}
