//! Where a route redirects to. Knows no upstream.

use http::{StatusCode, Uri};

use crate::proxy::receive::target::Target;
use crate::proxy::refusal::{Check, Refusal};
use crate::proxy::route::rewrite::PathRewrite;
use crate::proxy::route::trie::Pattern;
use crate::proxy::settings::{Redirect, Rewrite};
use crate::telemetry::SettingError;

/// A redirect, its setting checked.
#[derive(Debug)]
pub(in crate::proxy) struct Redirection {
    pub(in crate::proxy) status: StatusCode,
    /// `https://www.example.com`. None for the host that the client asked for, by the same scheme.
    origin: Option<String>,
    path: PathRewrite,
}

impl Redirection {
    /// Checks what is written under the setting `at` of a route with this path.
    ///
    /// # Errors
    /// The first error.
    pub(in crate::proxy) fn build(
        written: &Redirect,
        route: &Pattern,
        at: &str,
    ) -> Result<Self, SettingError> {
        let wrong =
            |at: &str, found: String, expected: &str| SettingError::new(at, found, expected);
        let (origin, path) = split(&written.to).ok_or_else(|| {
            let expected = "a path such as \"/new/*\", or a URL such as \
                            \"https://www.example.com/users/{id}\", without query and fragment";
            wrong(at, format!("{:?}", written.to), expected)
        })?;
        let path = match (path, &written.pattern) {
            (path, Some(pattern)) => {
                Rewrite::Expression { pattern: pattern.clone(), to: path.to_owned() }
            }
            ("", None) => Rewrite::Prefix { strip: None, add: None },
            (path, None) => Rewrite::Template(path.to_owned()),
        };
        let path = PathRewrite::build(&path, route, at)?;
        let status = StatusCode::from_u16(written.status)
            .map_err(|_| wrong(at, written.status.to_string(), "a status of a redirect"))?;
        Ok(Self { status, origin: origin.map(str::to_owned), path })
    }

    /// The URL for a request. It always has an origin: a path alone that begins with two slashes
    /// would be another host.
    ///
    /// # Errors
    /// It would be too long, or the client has named no host; or there is no route for the request,
    /// as the expression does not match its path.
    pub(in crate::proxy) fn location(
        &self,
        target: Target<'_>,
        https: bool,
        parameters: &[&str],
    ) -> Result<String, Refusal> {
        if !self.path.matches(target.path) {
            return Err(Refusal::NotFound);
        }
        let path = self.path.apply((target.path, target.paths), target.query, parameters)?;
        if let Some(origin) = &self.origin {
            return Ok([origin, path.as_str()].concat());
        }
        let authority = target.authority.as_str();
        if authority.is_empty() {
            return Err(Refusal::BadRequest(Check::Host.wrong("a request without a host")));
        }
        let scheme = if https { "https://" } else { "http://" };
        Ok([scheme, authority, &path].concat())
    }
}

/// Splits a URL into its origin, if it has one, and its path.
fn split(to: &str) -> Option<(Option<&str>, &str)> {
    if to.contains(['?', '#']) {
        return None;
    }
    if to.starts_with('/') {
        return (!to.starts_with("//")).then_some((None, to));
    }
    let after = to.strip_prefix("https://").or_else(|| to.strip_prefix("http://"))?;
    let slash = after.find('/').unwrap_or(after.len());
    let (origin, path) = to.split_at(to.len() - after.len() + slash);
    // No parameter of the path may choose the host.
    let uri: Uri = origin.parse().ok()?;
    let authority = uri.authority()?.as_str();
    (!authority.contains('@')).then_some((Some(origin), path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::route::routes;
    use crate::proxy::settings::Paths;

    fn build(route: &str, to: &str) -> Result<Redirection, SettingError> {
        let pattern = routes::pattern(route, Paths::default()).unwrap();
        Redirection::build(
            &Redirect { to: to.into(), pattern: None, status: 308 },
            &pattern,
            "redirect",
        )
    }

    #[test]
    fn what_is_no_target_is_an_error() {
        for to in [
            "",
            "new",
            "//evil.example/x",
            "https://",
            "https:///x",
            "ftp://a.example/",
            "https://a.example/?x",
            "https://a.example/#x",
            "https://me:you@a.example/",
            "https://{id}.example/",
            "/users/{name}",
            "/old/{id}/*",
        ] {
            assert!(build("/old/{id}", to).is_err(), "{to:?}");
        }
        for to in ["/new", "/new/{id}", "https://a.example", "http://a.example:8080/{id}/x"] {
            assert!(build("/old/{id}", to).is_ok(), "{to:?}");
        }
    }
}
