//! A location as a route: its upstream or answer, and what is changed on the way there.

use std::collections::HashSet;
use std::fmt::Write as _;

use super::expressions::escaped;
use super::headers::{request_headers, upstream_host};
use super::limits::Limits;
use super::locations::{Answers, Location};
use super::servers::Server;
use super::upstreams::Upstreams;
use super::{Notes, settings};
use crate::cli::import::directives::Directive;
use crate::cli::written::{plain, string, unique};

const FORBIDDEN: u16 = 403;
const NOT_FOUND: u16 = 404;
/// What `return` with a URL alone answers.
const FOUND: &str = "302";

#[derive(Debug)]
pub(super) struct Route {
    pub(super) name: String,
    pub(super) listeners: Vec<String>,
    /// The names of its limits.
    pub(super) limits: Vec<String>,
    pub(super) policy: Option<String>,
    host: Option<String>,
    path: String,
    /// Conditions: what the path has to match besides, and the host.
    when: Vec<String>,
    when_host: Vec<String>,
    rewrite: Option<String>,
    request_headers: Option<String>,
    upstream_host: Option<String>,
    /// `upstream = ...`, `respond = ...` or `redirect = ...`.
    answers: String,
    /// Other settings, as lines.
    settings: String,
}

/// Where a `proxy_pass` sends requests.
struct Target<'a> {
    upstream: String,
    /// As the upstream is told it.
    host: &'a str,
    /// What replaces the text of the location.
    path: Option<&'a str>,
}

impl Location<'_> {
    /// The route for the requests to a host, or to all that no other route names.
    pub(super) fn route(
        &self,
        (server, http): (&Server<'_>, &[Directive]),
        host: Option<&str>,
        names: &mut HashSet<String>,
        (limits, upstreams): &mut (&mut Limits, &mut Upstreams),
        notes: &mut Notes,
    ) -> Route {
        let around: Vec<&[Directive]> =
            [self.chain.as_slice(), &[server.directive.block(), http]].concat();
        let mut rewrite = None;
        let mut proxy_host = None;
        let answers = match self.answers {
            Answers::Status(status) => respond(status),
            Answers::Https => https(server, host, notes),
            Answers::Returned(directive) => returned(directive, &server.name()).unwrap_or_else(|| {
                notes.add(
                    directive,
                    "expected a status, and a text or a URL without variables: its requests get 404",
                );
                respond(NOT_FOUND)
            }),
            Answers::Proxied(directive) => match target(directive, upstreams, notes) {
                Ok(target) => {
                    rewrite = target.path.and_then(|path| self.rewritten(directive, path, notes));
                    proxy_host = Some(target.host);
                    format!("upstream = {}", string(&target.upstream))
                }
                Err(what) => {
                    notes.add(directive, what);
                    respond(NOT_FOUND)
                }
            },
        };
        let folder = match self.path.trim_end_matches("/*").trim_matches('/') {
            "" => "all",
            path => path,
        };
        let is_proxied = proxy_host.is_some();
        let name = host.map_or_else(|| folder.to_owned(), |host| format!("{host}-{folder}"));
        Route {
            name: unique(&plain(&name, "route"), names),
            listeners: Vec::new(),
            // nginx answers a `return` before it counts.
            limits: if is_proxied { limits.of(&around, &server.name(), notes) } else { Vec::new() },
            policy: None,
            host: host.map(str::to_owned),
            path: self.path.clone(),
            when: self.when.clone(),
            when_host: Vec::new(),
            rewrite,
            request_headers: is_proxied.then(|| request_headers(&around, notes)).flatten(),
            upstream_host: proxy_host.and_then(|host| upstream_host(&around, host, notes)),
            answers,
            settings: settings::of_route(&around, http, is_proxied, notes),
        }
    }

    /// With a path, `proxy_pass` puts it in the place of the location's own text, whether that ends
    /// a segment or not.
    fn rewritten(&self, directive: &Directive, path: &str, notes: &mut Notes) -> Option<String> {
        let Some(text) = self.replaced else {
            return self.when.is_empty().then(|| string(path));
        };
        if text.ends_with('/') && !path.ends_with('/') {
            let (from, to) = (format!("{}(.*)", escaped(text)), format!("{path}{{1}}"));
            return Some(format!("{{ match = {}, to = {} }}", string(&from), string(&to)));
        }
        let (prefix, added) = (text.trim_end_matches('/'), path.trim_end_matches('/'));
        if !text.ends_with('/') && path.ends_with('/') {
            let what = format!(
                "nginx sends {path}/x for {text}/x, with an empty segment, and Weir {added}/x"
            );
            notes.add(directive, &what);
        }
        match (prefix, added) {
            (prefix, added) if prefix == added => None,
            ("", added) => Some(format!("{{ add_prefix = {} }}", string(added))),
            (prefix, "") => Some(format!("{{ strip_prefix = {} }}", string(prefix))),
            (prefix, added) => {
                let (prefix, added) = (string(prefix), string(added));
                Some(format!("{{ strip_prefix = {prefix}, add_prefix = {added} }}"))
            }
        }
    }
}

fn respond(status: u16) -> String {
    format!("respond = {{ status = {status} }}")
}

fn https(server: &Server<'_>, host: Option<&str>, notes: &mut Notes) -> String {
    match host {
        Some(host) if !host.starts_with('*') => {
            format!("redirect = {}", string(&format!("https://{host}")))
        }
        _ => {
            notes.add(
                server.directive,
                "Weir redirects whole listeners and single hosts to https: other requests get 403",
            );
            respond(FORBIDDEN)
        }
    }
}

/// The upstream of a `proxy_pass`, and the path that it has.
fn target<'a>(
    directive: &'a Directive,
    upstreams: &mut Upstreams,
    notes: &mut Notes,
) -> Result<Target<'a>, &'static str> {
    const EXPECTED: &str = "expected a URL without variables: its requests get 404";
    let url = directive.word(0);
    let (scheme, rest) = url.split_once("://").filter(|_| !url.contains('$')).ok_or(EXPECTED)?;
    if !["http", "https"].contains(&scheme.to_ascii_lowercase().as_str()) {
        return Err(EXPECTED);
    }
    if rest.contains(['?', '{', '}', '*']) {
        return Err(
            "expected a URL without a query, braces and stars, which Weir can't put before a path: its requests get 404",
        );
    }
    // `unix:/run/x.sock:/path`
    let at = match rest.strip_prefix("unix:") {
        Some(socket) => socket.find(':').map(|at| (at + "unix:".len(), 1)),
        None => rest.find('/').map(|at| (at, 0)),
    };
    let (host, path) = match at {
        Some((at, colon)) => (rest.get(..at).unwrap_or(rest), rest.get(at + colon..)),
        None => (rest, None),
    };
    let scheme = scheme.to_ascii_lowercase();
    let upstream = upstreams
        .name(&scheme, host)
        .ok_or("expected a server of its upstream that is not down: its requests get 404")?;
    if scheme == "https" {
        notes.line("proxy_pass https://: Weir verifies the upstream's certificate; nginx only with proxy_ssl_verify");
    }
    Ok(Target { upstream, host, path: path.filter(|path| !path.is_empty()) })
}

/// `return 204;`, `return 200 "text";`, `return 301 https://example.com/;`
fn returned(directive: &Directive, server: &str) -> Option<String> {
    let is_url = |text: &str| text.starts_with("http://") || text.starts_with("https://");
    let (code, text) = match directive.word(0) {
        url if is_url(url) => (FOUND, url),
        code => (code, directive.word(1)),
    };
    let status = code.parse::<u16>().ok().filter(|status| (200..600).contains(status))?;
    let is_redirect = (300..400).contains(&status);
    let mut text = text.to_owned();
    if !server.is_empty() && !server.contains(['*', '~', '$']) {
        text = text.replace("${server_name}", server);
        text = text.replace("$server_name$", &format!("{server}$"));
        text = text.replace("$server_name/", &format!("{server}/"));
    }
    // Another host, and the client's own path.
    let other = text.strip_suffix("$request_uri").filter(|to| is_redirect && is_url(to));
    if let Some(other) = other.filter(|to| !to.contains('$') && to.matches('/').count() == 2) {
        return Some(format!("redirect = {{ to = {}, status = {status} }}", string(other)));
    }
    if text.contains('$') {
        return None;
    }
    Some(match text.as_str() {
        "" => respond(status),
        url if is_redirect => {
            format!("respond = {{ status = {status}, headers = {{ Location = {} }} }}", string(url))
        }
        text => format!("respond = {{ status = {status}, body = {} }}", string(text)),
    })
}

impl Route {
    /// A route that refuses everything that no other one takes.
    pub(super) fn closed(names: &mut HashSet<String>, listeners: Vec<String>) -> Self {
        Self::refusal("/*", Vec::new(), names, listeners)
    }

    /// A route that refuses the requests for a path whose hosts match one of these.
    pub(super) fn refusal(
        path: &str,
        hosts: Vec<String>,
        names: &mut HashSet<String>,
        listeners: Vec<String>,
    ) -> Self {
        Self {
            name: unique("others", names),
            listeners,
            limits: Vec::new(),
            policy: None,
            host: None,
            path: path.to_owned(),
            when: Vec::new(),
            when_host: hosts,
            rewrite: None,
            request_headers: None,
            upstream_host: None,
            answers: respond(FORBIDDEN),
            settings: String::new(),
        }
    }

    /// Writes it. `listeners` is how many have routes: one that is on all of them names none.
    pub(super) fn write(&self, listeners: usize, out: &mut String) {
        let _ = write!(out, "\n[[routes]]\nname = {}\n", string(&self.name));
        let condition = |fact: &str, values: &[String]| {
            let values: Vec<String> = values.iter().map(|value| string(value)).collect();
            match values.as_slice() {
                [] => None,
                [value] => Some(format!("{{ {fact} = {value} }}")),
                several => Some(format!("{{ {fact} = [{}] }}", several.join(", "))),
            }
        };
        let when = condition("path", &self.when).or_else(|| condition("host", &self.when_host));
        let host = self.host.as_ref().map(|host| string(host));
        let path = Some(string(&self.path));
        let names: Vec<String> = self.listeners.iter().map(|name| string(name)).collect();
        let some = (names.len() < listeners).then(|| format!("[{}]", names.join(", ")));
        for (key, value) in [
            ("host", &host),
            ("path", &path),
            ("when", &when),
            ("listeners", &some),
            ("rewrite", &self.rewrite),
            ("request_headers", &self.request_headers),
            ("upstream_host", &self.upstream_host),
        ] {
            if let Some(value) = value {
                let _ = writeln!(out, "{key} = {value}");
            }
        }
        let _ = writeln!(out, "{}", self.answers);
        out.push_str(&self.settings);
        if let Some(policy) = &self.policy {
            let _ = writeln!(out, "policy = {}", string(policy));
        }
    }
}
