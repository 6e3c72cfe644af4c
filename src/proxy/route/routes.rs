//! Chooses a request's route. The most specific wins, whatever the order in the file: by host
//! (exact, `*.host`, any), then by path segment (literal, `{name}`, trailing `*`), then by method.
//! Knows nothing of what a route does.
//!
//! A route matches only if host, path and method all do. If the most specific one lacks the method,
//! a less specific one that has it answers, as in Envoy, Caddy and Go. 405 means that only the
//! method kept every route from matching.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;

use http::Method;

use super::trie::{Match, Methods, Pattern, SEGMENTS_MAX, Segment, Trie, UnreachedRoute};
use crate::proxy::receive::path;
use crate::proxy::settings::{EncodedSlash, PathParameters, Paths};
use crate::spelling;
use crate::telemetry::SettingError;

/// Maximum bytes of a parameter's name.
const PARAMETER_BYTES_MAX: usize = 64;
/// Maximum bytes of a host name (RFC 1035).
const HOST_BYTES_MAX: usize = 253;

/// All routes.
#[derive(Debug)]
pub(in crate::proxy) struct Routes {
    paths: Paths,
    exact: BTreeMap<String, Trie>,
    /// The tries by what follows the `*`, including the dot.
    wildcard: BTreeMap<String, Trie>,
    any: Trie,
}

/// Which requests a route matches, as written.
#[derive(Clone, Copy, Debug)]
pub(in crate::proxy) struct Matcher<'w> {
    /// Exact or `*.host`. `None` matches any.
    pub(in crate::proxy) host: Option<&'w str>,
    /// `/v1/*`, `/users/{id}`.
    pub(in crate::proxy) path: &'w str,
    /// Empty matches any.
    pub(in crate::proxy) methods: &'w [String],
    /// The route redirects, perhaps from `/docs` to `/docs/`, which must not match it again.
    pub(in crate::proxy) redirects: bool,
}

/// Why no route matches a request.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::proxy) enum RoutingError {
    /// No route has the host and the path.
    NotFound,
    /// Routes exist only for these other methods, listed for `Allow`.
    MethodNotAllowed(String),
}

impl Routes {
    /// No routes.
    pub(in crate::proxy) fn new(paths: Paths) -> Self {
        Self { paths, exact: BTreeMap::new(), wildcard: BTreeMap::new(), any: Trie::new(paths) }
    }

    /// Adds the route at `index`, and returns its path.
    ///
    /// # Errors
    /// The first error in it.
    pub(in crate::proxy) fn add(
        &mut self,
        index: usize,
        matcher: Matcher<'_>,
    ) -> Result<Pattern, SettingError> {
        let Matcher { host, path, methods, redirects } = matcher;
        let at = |setting: &str, found: &str, expected: &str| {
            SettingError::new(format!("routes[{index}].{setting}"), quoted(found), expected)
        };
        let pattern =
            pattern(path, self.paths).and_then(|pattern| without_parameters(pattern, self.paths));
        let pattern = pattern.map_err(|expected| at("path", path, expected))?;
        let methods = self::methods(methods).map_err(|(position, expected)| {
            at(
                &format!("methods[{position}]"),
                methods.get(position).map_or("", String::as_str),
                expected,
            )
        })?;
        let trie = match host {
            None => &mut self.any,
            Some(host) => {
                let (tries, name, plain) = match host.strip_prefix('*') {
                    Some(suffix) => {
                        (&mut self.wildcard, suffix, suffix.strip_prefix('.').unwrap_or_default())
                    }
                    None => (&mut self.exact, host, host),
                };
                if !is_host(plain) {
                    return Err(at(
                        "host",
                        host,
                        "a host name in lower case without a port, or `*.` and one",
                    ));
                }
                tries.entry(name.to_owned()).or_insert_with(|| Trie::new(self.paths))
            }
        };
        trie.insert(&pattern, methods, index, redirects).map_err(|other| {
            let case = if self.paths.case_exact { "" } else { " (case makes no difference without server.paths.case = \"exact\")" };
            at("path", path, &format!("a host, path or methods that differ from those of routes[{other}]: neither is more specific{case}"))
                .beside(format!("routes[{other}].path"), format!("routes[{other}] is here"))
        })?;
        Ok(pattern)
    }

    /// The routes that no request reaches, or none that clients usually send. There are always
    /// hosts that no other route names, so routes hide only others of the same host.
    pub(in crate::proxy) fn unreached(&self, uri_bytes_max: usize) -> Vec<UnreachedRoute> {
        let mut all = Vec::new();
        let tries = self.exact.values().chain(self.wildcard.values()).chain([&self.any]);
        tries.for_each(|trie| trie.unreached(uri_bytes_max, &mut all));
        all.sort_unstable_by_key(|one| one.route);
        all
    }

    /// Whether any route names a host.
    pub(in crate::proxy) fn know_hosts(&self) -> bool {
        !self.exact.is_empty() || !self.wildcard.is_empty()
    }

    /// The most specific route. `host` is in lower case, without port and final dot. It is empty if
    /// the request named none, or no route names one.
    pub(in crate::proxy) fn find<'p>(
        &self,
        host: &str,
        path: &'p str,
        method: &Method,
    ) -> Result<Match<'p>, RoutingError> {
        let found = match self.know_hosts() {
            false => self.any.find(path, method),
            true => self.tries(host).find_map(|trie| trie.find(path, method)),
        };
        found.ok_or_else(|| self.unrouted(host, path))
    }

    /// The tries whose host matches, the most specific first.
    fn tries<'a>(&'a self, host: &'a str) -> impl Iterator<Item = &'a Trie> {
        let exact = if self.exact.is_empty() { None } else { self.exact.get(host) };
        // HOST_BYTES_MAX bounds the number of labels: `target` refuses longer hosts.
        let dots = if self.wildcard.is_empty() { "" } else { host };
        let wildcard = dots
            .match_indices('.')
            .filter(|(dot, _)| *dot > 0)
            .filter_map(|(dot, _)| self.wildcard.get(host.get(dot..)?));
        exact.into_iter().chain(wildcard).chain([&self.any])
    }

    #[cold]
    fn unrouted(&self, host: &str, path: &str) -> RoutingError {
        let mut methods = Vec::new();
        self.tries(host).for_each(|trie| trie.methods(path, &mut methods));
        if methods.is_empty() {
            return RoutingError::NotFound;
        }
        if methods.contains(&Method::GET) {
            methods.push(Method::HEAD);
        }
        let names: BTreeSet<&str> = methods.iter().map(Method::as_str).collect();
        RoutingError::MethodNotAllowed(names.into_iter().collect::<Vec<_>>().join(", "))
    }
}

/// Reads a route's path. The error says what is expected.
pub(in crate::proxy) fn pattern(text: &str, paths: Paths) -> Result<Pattern, &'static str> {
    let Some(mut rest) = text.strip_prefix('/') else {
        return Err("a path that begins with a slash: `/v1/*`, `/users/{id}`");
    };
    let open = rest == "*" || rest.ends_with("/*");
    if open {
        rest = rest.strip_suffix('*').unwrap_or(rest);
    }
    let mut segments = Vec::new();
    if !(open && rest.is_empty()) {
        // Removes the slash before the `*`.
        let mut parts =
            if open { rest.strip_suffix('/').unwrap_or(rest) } else { rest }.split('/').peekable();
        while let Some(part) = parts.next() {
            if part.is_empty() && (open || parts.peek().is_some()) {
                return Err("a path without doubled slashes, since a request's are merged");
            }
            let segment = segment(part, paths)?;
            if let Segment::Parameter(name) = &segment
                && segments
                    .iter()
                    .any(|other| matches!(other, Segment::Parameter(same) if same == name))
            {
                return Err("a path that names each parameter once");
            }
            segments.push(segment);
        }
    }
    if segments.len() > SEGMENTS_MAX {
        return Err("a path of at most 64 segments");
    }
    Ok(Pattern { segments, open })
}

fn segment(part: &str, paths: Paths) -> Result<Segment, &'static str> {
    if let Some(name) = part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
        let plain =
            name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
        if name.is_empty() || name.len() > PARAMETER_BYTES_MAX || !plain {
            return Err(
                "a parameter's name of 1 to 64 letters, digits, `_` and `-` between the braces",
            );
        }
        return Ok(Segment::Parameter(name.to_owned()));
    }
    if part.contains(['{', '}', '*']) {
        return Err("`{name}` as a whole segment, and `*` only as the last one");
    }
    if part.contains(['?', '#']) {
        return Err("a path without query and fragment");
    }
    let slashed = format!("/{part}");
    // With both readings, no request could match it under both.
    let encoded_slash = match paths.encoded_slash {
        EncodedSlash::Compare => EncodedSlash::Reject,
        chosen => chosen,
    };
    let normal = path::normal(&slashed, Paths { encoded_slash, ..paths })
        .map_err(|_| "a path that is a request's normal form, without dot segments, broken escapes and what `server.paths` refuses")?;
    if normal.len() == 1 && !part.is_empty() {
        return Err("a path without dot segments, since a request's are resolved");
    }
    if normal.bytes().filter(|byte| *byte == b'/').count() > 1 {
        return Err("a path with plain slashes, since a request's escaped ones are decoded");
    }
    Ok(Segment::Literal(spelling::decode(normal.trim_start_matches('/').as_bytes()).to_vec()))
}

/// A literal with parameters would match no request if parameters are ignored or stripped.
fn without_parameters(pattern: Pattern, paths: Paths) -> Result<Pattern, &'static str> {
    let parameters =
        |segment: &Segment| matches!(segment, Segment::Literal(bytes) if bytes.contains(&b';'));
    match paths.parameters {
        PathParameters::Keep => Ok(pattern),
        _ if !pattern.segments.iter().any(parameters) => Ok(pattern),
        _ => Err(
            "a path without `;`: what follows it is matched only with `server.paths.parameters = \"keep\"`",
        ),
    }
}

/// The error is the index of the method, and what is expected.
fn methods(names: &[String]) -> Result<Methods, (usize, &'static str)> {
    if names.is_empty() {
        return Ok(Methods::Any);
    }
    let mut methods = Vec::with_capacity(names.len());
    for (index, name) in names.iter().enumerate() {
        let method =
            Method::from_bytes(name.as_bytes()).map_err(|_| (index, "a method: GET, POST ..."))?;
        if name.bytes().any(|byte| byte.is_ascii_lowercase()) {
            return Err((index, "a method in upper case: methods are case-sensitive"));
        }
        if crate::proxy::receive::target::unsupported(&method) {
            return Err((index, "a method that is forwarded; CONNECT and TRACE are not"));
        }
        if methods.contains(&method) {
            return Err((index, "each method once"));
        }
        methods.push(method);
    }
    Ok(Methods::Only(methods))
}

fn is_host(name: &str) -> bool {
    if let Some(address) = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        return address.parse::<Ipv6Addr>().is_ok_and(|parsed| parsed.to_string() == address);
    }
    let plain = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_')
    };
    name.len() <= HOST_BYTES_MAX
        && name.split('.').all(|label| !label.is_empty() && label.bytes().all(plain))
}

fn quoted(text: &str) -> String {
    format!("{:?}", text.chars().take(80).collect::<String>())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Host, path, methods.
    type Written = (Option<&'static str>, &'static str, &'static [&'static str]);

    fn built_with(paths: Paths, written: &[Written]) -> Result<Routes, SettingError> {
        let mut routes = Routes::new(paths);
        for (index, (host, path, methods)) in written.iter().enumerate() {
            let methods: Vec<String> = methods.iter().map(|method| (*method).to_owned()).collect();
            routes
                .add(index, Matcher { host: *host, path, methods: &methods, redirects: false })?;
        }
        Ok(routes)
    }

    fn built(written: &[Written]) -> Result<Routes, SettingError> {
        built_with(Paths::default(), written)
    }

    #[track_caller]
    fn routes(written: &[Written]) -> Routes {
        built(written).unwrap()
    }

    fn found<'p>(
        routes: &Routes,
        host: &str,
        path: &'p str,
        method: &Method,
    ) -> Option<(usize, Vec<&'p str>)> {
        routes.find(host, path, method).ok().map(|found| (found.route, found.parameters.to_vec()))
    }

    #[test]
    fn the_most_specific_path_wins_whatever_the_order() {
        let routes = routes(&[
            (None, "/*", &[]),
            (None, "/api/*", &[]),
            (None, "/api/{tenant}/items", &[]),
            (None, "/api/{tenant}", &[]),
            (None, "/api/public", &[]),
            (None, "/api/public/{id}/x", &[]),
            (None, "/", &[]),
        ]);
        let get = |path| found(&routes, "", path, &Method::GET).unwrap();
        assert_eq!(get("/"), (6, vec![]));
        assert_eq!(get("/other"), (0, vec![]));
        assert_eq!(get("/api"), (1, vec![]));
        assert_eq!(get("/api/"), (1, vec![]));
        assert_eq!(get("/api/acme"), (3, vec!["acme"]));
        assert_eq!(get("/api/acme/items"), (2, vec!["acme"]));
        assert_eq!(get("/api/acme/other"), (1, vec![]));
        assert_eq!(get("/api/public"), (4, vec![]));
        assert_eq!(get("/api/public/items"), (2, vec!["public"]), "back from the literal's branch");
        assert_eq!(get("/api/public/7/x"), (5, vec!["7"]));
        assert_eq!(get("/api/public/7/y"), (1, vec![]), "nothing is left of the parameters tried");
    }

    #[test]
    fn an_exact_host_is_before_a_wildcard_and_that_before_any() {
        let routes = routes(&[
            (None, "/x", &[]),
            (Some("*.example.com"), "/*", &[]),
            (Some("*.eu.example.com"), "/*", &[]),
            (Some("api.example.com"), "/{a}", &[]),
        ]);
        let get = |host, path| found(&routes, host, path, &Method::GET).map(|(route, _)| route);
        assert_eq!(get("api.example.com", "/x"), Some(3));
        assert_eq!(
            get("api.example.com", "/x/y"),
            Some(1),
            "the host's own routes have none for it"
        );
        assert_eq!(get("a.b.example.com", "/x"), Some(1));
        assert_eq!(get("a.eu.example.com", "/x"), Some(2));
        assert_eq!(get("example.com", "/x"), Some(0));
        assert_eq!(get("", "/y"), None);
    }

    #[test]
    fn the_method_decides_last_and_a_wrong_one_is_not_an_unknown_route() {
        let routes = routes(&[
            (None, "/a", &["GET"]),
            (None, "/a", &["POST", "PUT"]),
            (None, "/b", &["GET"]),
            (None, "/b", &[]),
        ]);
        let find = |path, method| routes.find("", path, &method).map(|found| found.route);
        assert_eq!(find("/a", Method::HEAD), Ok(0));
        assert_eq!(find("/a", Method::PUT), Ok(1));
        assert_eq!(
            find("/a", Method::DELETE),
            Err(RoutingError::MethodNotAllowed("GET, HEAD, POST, PUT".into()))
        );
        assert_eq!(find("/c", Method::GET), Err(RoutingError::NotFound));
        assert_eq!(find("/b", Method::GET), Ok(2));
        assert_eq!(find("/b", Method::HEAD), Ok(2));
        assert_eq!(find("/b", Method::DELETE), Ok(3));
    }

    #[test]
    fn an_escape_is_no_way_round_a_literal() {
        let paths = Paths { encoded_slash: EncodedSlash::Keep, ..Paths::default() };
        let routes =
            built_with(paths, &[(None, "/@me", &[]), (None, "/a%2fb", &[]), (None, "/*", &[])])
                .unwrap();
        let get = |path| found(&routes, "", path, &Method::GET).unwrap().0;
        assert_eq!((get("/@me"), get("/%40me")), (0, 0));
        assert_eq!((get("/a%2Fb"), get("/a/b")), (1, 2));
    }

    #[test]
    fn another_spelling_is_no_way_round_a_route() {
        let written: &[Written] = &[
            (None, "/*", &[]),
            (None, "/api/Login", &[]),
            (None, "/api/login/{id}", &[]),
            (None, "/API/x/*", &[]),
            (None, "/docs", &[]),
            (None, "/docs/", &[]),
            (None, "/end/", &[]),
            (None, "/%C3%89t%C3%A9", &[]),
            (None, "/one", &["POST"]),
        ];
        let routes = built(written).unwrap();
        let get = |path| found(&routes, "", path, &Method::GET).unwrap();
        for path in [
            "/api/login",
            "/API/LOGIN",
            "/api/login/",
            "/api/login;x",
            "/api;y/login%3Bx/",
            "/api/%6Cogin",
            "/api/login/;x",
        ] {
            assert_eq!(get(path).0, 1, "{path}");
        }
        assert_eq!(get("/api/LOGIN/a;B"), (2, vec!["a;B"]));
        assert_eq!((get("/api/x").0, get("/api/X/y").0, get("/aPi;/x/").0), (3, 3, 3));
        assert_eq!(
            (get("/docs").0, get("/docs/").0, get("/Docs/;x").0),
            (4, 5, 5),
            "each takes its own"
        );
        assert_eq!((get("/end").0, get("/end/").0, get("/end/x").0), (6, 6, 0));
        assert_eq!((get("/%C3%A9T%C3%89").0, get("/%C3%A9t%C3%A8").0), (7, 0));
        let one = routes.find("", "/ONE/", &Method::POST).unwrap().route;
        assert_eq!((one, get("/ONE/").0), (8, 0));

        let exact = Paths {
            case_exact: true,
            trailing_slash_exact: true,
            parameters: PathParameters::Keep,
            ..Paths::default()
        };
        let routes = built_with(exact, written).unwrap();
        let get = |path| found(&routes, "", path, &Method::GET).unwrap().0;
        assert_eq!(
            (get("/api/Login"), get("/api/Login/"), get("/api/login"), get("/api/Login;x")),
            (1, 0, 0, 0)
        );
        assert_eq!((get("/end"), get("/end/"), get("/API/x/"), get("/api/x")), (0, 6, 3, 0));
    }

    #[test]
    fn a_redirect_takes_its_own_final_slash_only() {
        let mut routes = Routes::new(Paths::default());
        for (index, (path, redirects)) in
            [("/*", false), ("/docs", true), ("/to/", true), ("/other", false)]
                .into_iter()
                .enumerate()
        {
            routes.add(index, Matcher { host: None, path, methods: &[], redirects }).unwrap();
        }
        let get = |path| found(&routes, "", path, &Method::GET).unwrap().0;
        assert_eq!(
            (get("/docs"), get("/Docs"), get("/docs/"), get("/to"), get("/to/"), get("/other/")),
            (1, 1, 0, 0, 2, 3)
        );
    }

    #[test]
    fn a_pattern_that_matches_nothing_is_an_error() {
        let setting = |paths, path| {
            built_with(paths, &[(None, path, &[])]).map(|_| ()).map_err(|error| error.setting)
        };
        let default = Paths::default();
        for path in ["/a;b", "/a%3Bb", "/a%2Fb", "/a%5Cb", "/%0A"] {
            assert_eq!(setting(default, path), Err("routes[0].path".into()), "{path}");
        }
        assert_eq!(
            setting(Paths { encoded_slash: EncodedSlash::Decode, ..default }, "/a%2Fb"),
            Err("routes[0].path".into())
        );
        for path in ["/a;b", "/a%3Bb", "/;a"] {
            assert_eq!(
                setting(Paths { parameters: PathParameters::Keep, ..default }, path),
                Ok(()),
                "{path}"
            );
        }
        let error = built(&[(None, "/a/B", &[]), (None, "/A/b", &[])]).unwrap_err();
        assert!(error.expected.contains("server.paths.case"), "{error}");
        let exact = Paths { case_exact: true, ..default };
        assert!(built_with(exact, &[(None, "/a/B", &[]), (None, "/A/b", &[])]).is_ok());
    }

    #[test]
    fn a_tie_names_both_routes() {
        let tie = |written: &[Written]| built(written).unwrap_err();
        let error = tie(&[(None, "/{a}/x", &[]), (None, "/{b}/x", &[])]);
        assert_eq!(error.setting, "routes[1].path");
        assert!(error.expected.contains("routes[0]"), "{error}");
        tie(&[(None, "/%61", &["GET", "PUT"]), (None, "/a", &["PUT"])]);
        tie(&[(Some("a.b"), "/*", &[]), (Some("a.b"), "/*", &[])]);
        routes(&[
            (Some("a.b"), "/*", &[]),
            (Some("*.b"), "/*", &[]),
            (None, "/*", &[]),
            (None, "/", &[]),
        ]);
    }

    #[test]
    fn an_invalid_value_in_a_route_is_an_error_at_its_setting() {
        for path in [
            "", "v1", "/v1*", "/*/a", "/a//b", "//*", "/{}", "/{a}b", "/{a b}", "/{a}/{a}",
            "/a/../b", "/.", "/a?b", "/%", "/a\\",
        ] {
            assert_eq!(
                built(&[(None, path, &[])]).unwrap_err().setting,
                "routes[0].path",
                "{path}"
            );
        }
        for host in
            ["", "*", "*a", "*.", "A.com", "a:80", "a..b", ".a", "a/b", "*.*.a", "[::0]", "[x]"]
        {
            assert_eq!(
                built(&[(Some(host), "/", &[])]).unwrap_err().setting,
                "routes[0].host",
                "{host}"
            );
        }
        for method in ["", "get", "A B", "CONNECT", "TRACE"] {
            let matcher = Matcher {
                host: None,
                path: "/",
                methods: &["PUT".to_owned(), method.to_owned()],
                redirects: false,
            };
            let written = Routes::new(Paths::default()).add(0, matcher);
            assert_eq!(written.unwrap_err().setting, "routes[0].methods[1]", "{method}");
        }
        routes(&[(Some("[::1]"), "/", &[]), (Some("*.a_b.c-d"), "/{id}/", &["PURGE"])]);
    }

    /// The documented rules without a trie: compares everything.
    fn naive(written: &[(Vec<&str>, bool)], path: &[&str]) -> Option<usize> {
        let path: Vec<String> = path
            .iter()
            .map(|segment| segment.to_lowercase().split(';').next().unwrap_or_default().to_owned())
            .collect();
        let rank = |(pattern, open): &(Vec<&str>, bool)| {
            // No pattern here ends in a slash. So a path that does matches one without, in
            // preference to an open one.
            let slashed =
                path.last().is_some_and(String::is_empty) && path.len() == pattern.len() + 1;
            if path.len() < pattern.len() || (path.len() > pattern.len() && !open && !slashed) {
                return None;
            }
            let mut ranks = Vec::new();
            for (part, segment) in pattern.iter().zip(&path) {
                ranks.push(match *part {
                    "{}" if !segment.is_empty() => 2,
                    literal if literal == *segment => 3,
                    _ => return None,
                });
            }
            ranks.push(if *open { 1 } else { 4 });
            Some(ranks)
        };
        let ranked =
            written.iter().enumerate().filter_map(|(index, route)| Some((rank(route)?, index)));
        ranked.max().map(|(_, index)| index)
    }

    proptest! {
        #[test]
        fn the_trie_finds_what_comparing_everything_finds(
            written in prop::collection::btree_set((prop::collection::vec(prop::sample::select(vec!["a", "b", "{}"]), 0..4), any::<bool>()), 1..12),
            path in prop::collection::vec(prop::sample::select(vec!["a", "A", "b", "b;a", "c", ""]), 1..5),
        ) {
            let written: Vec<(Vec<&str>, bool)> = written.into_iter().filter(|(pattern, open)| *open || !pattern.is_empty()).collect();
            let mut routes = Routes::new(Paths::default());
            for (index, (pattern, open)) in written.iter().enumerate() {
                let mut text = String::new();
                for (index, part) in pattern.iter().enumerate() {
                    text.push('/');
                    text.push_str(if *part == "{}" { ["{x}", "{y}", "{z}"][index] } else { part });
                }
                if *open {
                    text.push_str("/*");
                }
                let matcher = Matcher { host: None, path: &text, methods: &[], redirects: false };
                prop_assert!(routes.add(index, matcher).is_ok(), "{}", text);
            }
            let text = format!("/{}", path.join("/"));
            prop_assert_eq!(routes.find("", &text, &Method::GET).ok().map(|found| found.route), naive(&written, &path), "{}", text);
        }
    }
}
