//! Regular expressions of the configuration. Each takes time in proportion to what it is matched
//! with, and matches the whole of it.

use regex_automata::meta::Regex;
use regex_automata::util::captures::Captures;
use regex_automata::util::syntax;

use crate::proxy::receive::path;
use crate::proxy::route::written::error;
use crate::proxy::settings::Paths;
use crate::telemetry::SettingError;

/// Maximum length of an expression, and size of what it is compiled to, in bytes.
const EXPRESSION_BYTES_MAX: usize = 1 << 10;
const COMPILED_BYTES_MAX: usize = 1 << 20;

/// Compiles an expression.
///
/// # Errors
/// What was expected.
pub(in crate::proxy) fn compile(written: &str, ignores_case: bool) -> Result<Regex, String> {
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
    // By itself first: its parentheses must not close ours.
    build(written)?;
    build(&format!("\\A(?:{written})\\z"))
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
        let regex = compile(pattern, true)
            .map_err(|expected| error(&format!("{at}.match"), pattern, &expected))?;
        let parts =
            parts(to, &regex).map_err(|expected| error(&format!("{at}.to"), to, &expected))?;
        Ok(Self { pattern: pattern.to_owned(), regex, parts })
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
        let one = path::one_spelling(&shown, paths);
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
        let slashes = |path: &str| path.to_ascii_lowercase().matches("%2f").count();
        match path::normal(&made, paths) {
            Ok(normal) if normal == made && slashes(&made) <= slashes(path) => Ok(made),
            _ => {
                Err("a path of which the route's expression makes one with empty or dot segments, \
                      or with a part of an escape")
            }
        }
    }
}

/// Reads `/v2/{1}/{name}`.
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
        ] {
            assert_eq!(build(pattern, to).unwrap_err().setting, setting, "{pattern} {to}");
        }
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
