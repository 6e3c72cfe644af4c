//! The upstream's path, if it differs from the client's. Knows no upstream.
//!
//! Policies and logs see the path that the client asked for, which is the one that was matched.
//! Policies that ask for `upstream-path` see this one beside it.
//! Prefixes and templates join whole segments of a normal path, so the result is normal too, and
//! what an expression makes is checked: nothing that a client writes can escape from where the
//! route sends it.

use std::sync::Arc;

use crate::proxy::receive::path;
use crate::proxy::receive::target::PATH_AND_QUERY_BYTES_MAX;
use crate::proxy::refusal::{Check, Refusal};
use crate::proxy::route::expression::ExpressionRewrite;
use crate::proxy::route::routes;
use crate::proxy::route::trie::{Pattern, Segment};
use crate::proxy::route::written::{WRITTEN, error};
use crate::proxy::settings::{Paths, Rewrite};
use crate::telemetry::SettingError;

/// How a path is made.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::proxy) enum PathRewrite {
    /// The parts that it is joined from.
    Parts(Vec<Part>),
    /// Of the groups of an expression. Paths that it does not match stay as they are.
    Expression(Arc<ExpressionRewrite>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::proxy) enum Part {
    /// Fixed segments, each with its slash.
    Text(String),
    /// The segment matched by this parameter.
    Parameter(usize),
    /// Everything after this many segments.
    After(usize),
}

impl PathRewrite {
    /// Checks what is written under the setting `at` of a route with this path.
    ///
    /// # Errors
    /// The first error.
    pub(in crate::proxy) fn build(
        written: &Rewrite,
        route: &Pattern,
        at: &str,
    ) -> Result<Self, SettingError> {
        match written {
            Rewrite::Prefix { strip, add } => {
                let stripped = strip.as_deref().map_or(Ok(0), |strip| {
                    stripped(strip, route)
                        .map_err(|why| error(&format!("{at}.strip_prefix"), strip, why))
                })?;
                let added = add.as_deref().map_or(Ok(String::new()), |add| {
                    added(add).map_err(|why| error(&format!("{at}.add_prefix"), add, why))
                })?;
                Ok(Self::Parts(vec![Part::Text(added), Part::After(stripped)]))
            }
            Rewrite::Template(text) => {
                template(text, route).map(Self::Parts).map_err(|why| error(at, text, &why))
            }
            Rewrite::Expression { pattern, to } => {
                let built = ExpressionRewrite::build(pattern, to, at)?;
                Ok(Self::Expression(Arc::new(built)))
            }
        }
    }

    /// Whether it makes another path of this one: an expression may not match it.
    pub(in crate::proxy) fn matches(&self, path: &str) -> bool {
        match self {
            Self::Parts(_) => true,
            Self::Expression(expression) => expression.matches(path),
        }
    }

    /// The upstream's target for a client's normal path, with what counts as the same path, and
    /// query. `parameters` are the segments
    /// that the route's parameters matched.
    ///
    /// # Errors
    /// 414 if it would be too long, and 400 if an expression makes none of it that is normal.
    pub(in crate::proxy) fn apply(
        &self,
        (path, paths): (&str, Paths),
        query: Option<&str>,
        parameters: &[&str],
    ) -> Result<String, Refusal> {
        let mut text = String::with_capacity(path.len() + query.map_or(0, str::len) + 32);
        match self {
            Self::Parts(parts) => parts.iter().for_each(|part| match part {
                Part::Text(segments) => text.push_str(segments),
                Part::Parameter(index) => {
                    text.push('/');
                    text.push_str(parameters.get(*index).copied().unwrap_or_default());
                }
                Part::After(segments) => text.push_str(after(path, *segments)),
            }),
            Self::Expression(expression) => match expression.apply(path, paths) {
                None => text.push_str(path),
                Some(Ok(made)) => text.push_str(&made),
                Some(Err(found)) => return Err(Refusal::BadRequest(Check::Path.wrong(found))),
            },
        }
        if text.is_empty() {
            text.push('/');
        }
        if let Some(query) = query {
            text.push('?');
            text.push_str(query);
        }
        let limit_bytes = PATH_AND_QUERY_BYTES_MAX;
        if text.len() > limit_bytes { Err(Refusal::UriTooLong { limit_bytes }) } else { Ok(text) }
    }
}

/// What follows the first `segments` of a path, with its slash. Empty if it has no more.
fn after(path: &str, segments: usize) -> &str {
    let slash = path
        .bytes()
        .enumerate()
        .filter(|(_, byte)| *byte == b'/')
        .nth(segments)
        .map(|(index, _)| index);
    slash.and_then(|slash| path.get(slash..)).unwrap_or_default()
}

/// The number of segments of a prefix. They are counted and not compared: `/%40me` matches a route
/// for `/@me`, and is stripped like it.
fn stripped(prefix: &str, route: &Pattern) -> Result<usize, &'static str> {
    const EXPECTED: &str =
        "segments with which the route's own path begins, such as \"/api\" of \"/api/*\"";
    let pattern = plain(prefix).ok_or(EXPECTED)?;
    if route.segments.starts_with(&pattern.segments) {
        Ok(pattern.segments.len())
    } else {
        Err(EXPECTED)
    }
}

fn added(prefix: &str) -> Result<String, &'static str> {
    const EXPECTED: &str =
        "a path such as \"/v1\", without parameters and without a slash at its end";
    plain(prefix).ok_or(EXPECTED)?;
    path::normal(prefix, WRITTEN).map(std::borrow::Cow::into_owned).map_err(|_| EXPECTED)
}

/// A path of literal segments that does not end in a slash.
fn plain(prefix: &str) -> Option<Pattern> {
    let pattern = routes::pattern(prefix, WRITTEN).ok()?;
    let literal = pattern
        .segments
        .iter()
        .all(|segment| matches!(segment, Segment::Literal(bytes) if !bytes.is_empty()));
    (literal && !pattern.open && !pattern.segments.is_empty()).then_some(pattern)
}

fn template(text: &str, route: &Pattern) -> Result<Vec<Part>, String> {
    let pattern = routes::pattern(text, WRITTEN)?;
    if pattern.open && !route.open {
        return Err("a path without `/*`, since the route's own has none".into());
    }
    let known: Vec<&String> = route.parameters().collect();
    let mut parts = Vec::with_capacity(pattern.segments.len() + 1);
    for (segment, written) in pattern.segments.iter().zip(text.split('/').skip(1)) {
        parts.push(match segment {
            Segment::Parameter(name) => match known.iter().position(|known| *known == name) {
                Some(index) => Part::Parameter(index),
                None if known.is_empty() => {
                    return Err(format!(
                        "no `{{{name}}}`, since the route's path has no parameters"
                    ));
                }
                None => {
                    let known: Vec<String> =
                        known.iter().map(|known| format!("`{{{known}}}`")).collect();
                    return Err(format!(
                        "a parameter of the route's path ({}), not `{{{name}}}`",
                        known.join(", ")
                    ));
                }
            },
            Segment::Literal(bytes) if bytes.is_empty() => Part::Text("/".into()),
            Segment::Literal(_) => {
                Part::Text(path::normal(&format!("/{written}"), WRITTEN)?.into_owned())
            }
        });
    }
    if pattern.open {
        parts.push(Part::After(route.segments.len()));
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::proxy::receive::target::split;

    fn prefix(strip: &str, add: &str) -> Rewrite {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Rewrite::Prefix { strip: some(strip), add: some(add) }
    }

    fn build(route: &str, written: &Rewrite) -> Result<PathRewrite, SettingError> {
        PathRewrite::build(written, &routes::pattern(route, WRITTEN).unwrap(), "rewrite")
    }

    #[track_caller]
    fn is(route: &str, written: &Rewrite, asked: &str, parameters: &[&str], expected: &str) {
        let rewriting = build(route, written).unwrap();
        let (path, query) = split(asked);
        assert_eq!(
            rewriting.apply((path, WRITTEN), query, parameters).unwrap(),
            expected,
            "{route} {asked}"
        );
    }

    #[test]
    fn a_prefix_is_taken_off_and_another_put_before() {
        let api = prefix("/api", "");
        for (asked, expected) in [
            ("/api/a/b?c=/d", "/a/b?c=/d"),
            ("/api", "/"),
            ("/api?x", "/?x"),
            ("/api/", "/"),
            ("/api/a/", "/a/"),
        ] {
            is("/api/*", &api, asked, &[], expected);
        }
        is("/api/v2/*", &prefix("/api/v2", "/v1"), "/api/v2/x", &[], "/v1/x");
        is("/api/v2/*", &prefix("/api", "/v1"), "/api/v2", &[], "/v1/v2");
        is("/api/*", &prefix("/api", "/v1"), "/api", &[], "/v1");
        is("/*", &prefix("", "/v1"), "/", &[], "/v1/");
        is("/*", &prefix("", "/a b/%7e"), "/x", &[], "/a%20b/~/x");
        is("/@me/*", &prefix("/@me", ""), "/%40me/x", &[], "/x");
        is("/api", &prefix("/api", ""), "/api?q", &[], "/?q");
    }

    #[test]
    fn a_template_holds_the_routes_parameters_and_its_rest() {
        let template = |text: &str| Rewrite::Template(text.into());
        is(
            "/users/{id}",
            &template("/v2/users/{id}/profile"),
            "/users/a%2Fb?x",
            &["a%2Fb"],
            "/v2/users/a%2Fb/profile?x",
        );
        is(
            "/{tenant}/{id}/*",
            &template("/{id}/of/{tenant}/*"),
            "/t/7/x/y/",
            &["t", "7"],
            "/7/of/t/x/y/",
        );
        is("/{tenant}/{id}/*", &template("/{id}/*"), "/t/7", &["t", "7"], "/7");
        is("/api/*", &template("/*"), "/api", &[], "/");
        is("/api/*", &template("/"), "/api/x?y", &[], "/?y");
        is("/api/*", &template("/fixed/"), "/api/x", &[], "/fixed/");
    }

    #[test]
    fn a_rewrite_that_fits_no_request_of_the_route_is_an_error() {
        for (route, strip) in [
            ("/*", "/api"),
            ("/api/*", "/ap"),
            ("/api/{id}", "/api/{id}"),
            ("/api/*", "/api/"),
            ("/api/*", "api"),
            ("/api/*", "/"),
        ] {
            assert_eq!(
                build(route, &prefix(strip, "")).unwrap_err().setting,
                "rewrite.strip_prefix",
                "{strip} of {route}"
            );
        }
        for add in ["v1", "/v1/", "/", "/{id}", "/v1/*", "/a/../b", "/a?b"] {
            assert_eq!(
                build("/{id}", &prefix("", add)).unwrap_err().setting,
                "rewrite.add_prefix",
                "{add}"
            );
        }
        for (text, expected) in [
            ("/{name}", "(`{id}`), not `{name}`"),
            ("/x/*", "without `/*`"),
            ("x", "begins with a slash"),
            ("/a?id", "without query"),
            ("/../x", "dot segments"),
        ] {
            let error = build("/users/{id}", &Rewrite::Template(text.into())).unwrap_err();
            assert!(error.setting == "rewrite" && error.expected.contains(expected), "{error}");
        }
        assert!(
            build("/x", &Rewrite::Template("/{id}".into()))
                .unwrap_err()
                .expected
                .contains("no parameters")
        );
    }

    proptest! {
        #[test]
        fn a_rewritten_path_is_normal_and_below_the_routes_prefix(path in "/api(/([a-c.;~]|%2[fF]|%5C|%40){0,5}){2,6}") {
            let Ok(normal) = path::normal(&path, WRITTEN) else { return Ok(()) };
            let segments: Vec<&str> = normal.split('/').skip(1).collect();
            // What the trie would match.
            prop_assume!(segments.len() > 2 && segments[0] == "api" && !segments[1].is_empty());
            let route = "/api/{id}/*";
            for (written, base) in [
                (Rewrite::Template("/in/{id}/*".into()), "/in/"),
                (Rewrite::Template("/in/x/{id}".into()), "/in/x/"),
                (prefix("/api", "/in"), "/in/"),
                (prefix("/api", ""), "/"),
            ] {
                let out = build(route, &written).unwrap().apply((&normal, WRITTEN), None, &[segments[1]]).unwrap();
                prop_assert!(out.starts_with(base), "{} -> {}", normal, out);
                prop_assert_eq!(path::normal(&out, WRITTEN).unwrap(), out.as_str());
            }
        }
    }

    #[test]
    fn a_rewritten_target_that_is_too_long_is_refused() {
        let rewriting = build("/{a}", &Rewrite::Template("/{a}".into())).unwrap();
        let long = "a".repeat(usize::from(u16::MAX));
        assert!(matches!(
            rewriting.apply(("/x", WRITTEN), None, &[&long]),
            Err(Refusal::UriTooLong { .. })
        ));
    }
}
