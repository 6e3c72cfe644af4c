//! `location { }`: each is a route, and an expression is one for each path that it may be below, as
//! nginx asks expressions before paths.

use std::collections::HashSet;
use std::fmt::Write as _;

use super::limits::Limits;
use super::servers::{Server, is_redirect_to_https};
use super::upstreams::Upstreams;
use super::{Notes, guard};
use crate::cli::import::directives::Directive;
use crate::cli::written::{plain, string, unique};

/// Fields that Weir sends to all upstreams, or that belong to a connection.
const SENT: &[&str] = &[
    "accept-encoding",
    "connection",
    "content-length",
    "host",
    "upgrade",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
];
const FORBIDDEN: u16 = 403;
const NOT_FOUND: u16 = 404;

#[derive(Debug)]
pub(super) struct Route {
    pub(super) name: String,
    pub(super) listeners: Vec<String>,
    /// The names of its limits.
    pub(super) limits: Vec<String>,
    pub(super) policy: Option<String>,
    host: Option<String>,
    path: String,
    when: Option<String>,
    rewrite: Option<String>,
    request_headers: Option<String>,
    upstream_host: Option<String>,
    /// `upstream = ...`, `respond = ...` or `redirect = ...`.
    answers: String,
}

/// Requests of a server, and who answers them.
#[derive(Clone, Debug)]
pub(super) struct Location<'a> {
    path: String,
    /// An expression for the path.
    when: Option<String>,
    /// The beginning that `proxy_pass` with a path replaces.
    prefix: Option<String>,
    /// Its own block, and those around it up to the server's.
    chain: Vec<&'a [Directive]>,
    answers: Answers<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Answers<'a> {
    Proxied(&'a Directive),
    Returned(&'a Directive),
    /// `return 301 https://$host$request_uri`, on a port that others share.
    Https,
    /// Nothing that Weir could send it to.
    Status(u16),
}

/// The locations of a server, by how they are written.
#[derive(Default)]
struct Written<'a> {
    exact: Vec<Location<'a>>,
    /// `true`: no expression is asked.
    prefixes: Vec<(Location<'a>, bool)>,
    /// `Some`: only for the requests of that prefix.
    expressions: Vec<(Location<'a>, Option<String>)>,
}

/// All locations of a server, in the order in which nginx asks them.
pub(super) fn of<'a>(
    server: &Server<'a>,
    http: &'a [Directive],
    notes: &mut Notes,
) -> Vec<Location<'a>> {
    let block = server.directive.block();
    let all = |answers| {
        let (path, when, prefix) = ("/*".to_owned(), None, None);
        Location { path, when, prefix, chain: Vec::new(), answers }
    };
    if server.redirects {
        return vec![all(Answers::Https)];
    }
    if let Some(closed) = guard(block).or_else(|| guard(http)) {
        notes.add(closed, "Weir refuses all requests of this server");
        return vec![all(Answers::Status(FORBIDDEN))];
    }
    if let Some(returned) = block.iter().find(|one| one.name == "return") {
        return vec![all(Answers::Returned(returned))];
    }
    let mut written = Written::default();
    collect(block, &[], None, &mut written, notes);
    if !written.prefixes.iter().any(|(one, _)| one.path == "/*") {
        // nginx looks for a file.
        written.prefixes.push((all(Answers::Status(NOT_FOUND)), false));
    }
    let mut locations = written.exact;
    for (prefix, asks_none) in written.prefixes {
        let below = written.expressions.iter().filter(|(_, under)| {
            under.as_ref().map_or(!asks_none, |under| Some(under) == prefix.prefix.as_ref())
        });
        let path = &prefix.path;
        locations.extend(below.map(|(one, _)| Location { path: path.clone(), ..one.clone() }));
        locations.push(prefix);
    }
    locations
}

/// Adds the locations of a block, and those inside them.
fn collect<'a>(
    block: &'a [Directive],
    around: &[&'a [Directive]],
    under: Option<&str>,
    written: &mut Written<'a>,
    notes: &mut Notes,
) {
    for directive in block.iter().filter(|one| one.name == "location") {
        let inner = directive.block();
        inner.iter().for_each(|one| notes.left_out(one));
        let (kind, text) = match (directive.word(0), directive.word(1)) {
            (text, "") => ("", text),
            (kind, text) => (kind, text),
        };
        if text.starts_with('@') {
            notes.add(directive, "left out: Weir sends no request on to another location");
            continue;
        }
        let chain: Vec<&[Directive]> = [&[inner], around].concat();
        let answers = answers(directive, notes);
        let mut location =
            Location { path: text.to_owned(), when: None, prefix: None, chain, answers };
        if !kind.starts_with('~') && text.contains(['{', '}', '*']) {
            notes.add(directive, "LEFT OUT: a path has no braces and stars in Weir");
            continue;
        }
        match kind {
            "=" => written.exact.push(location),
            "" | "^~" => {
                let folder = text.trim_end_matches('/').to_owned();
                if folder.len() == text.len() {
                    let what = format!(
                        "nginx also takes {folder}x for it, and Weir only {folder} and what is below"
                    );
                    notes.add(directive, &what);
                }
                location.path = format!("{folder}/*");
                location.prefix = Some(folder.clone());
                let around = location.chain.clone();
                written.prefixes.push((location, kind == "^~"));
                collect(inner, &around, Some(&folder), written, notes);
            }
            "~" | "~*" => {
                let flags = if kind == "~*" { "(?si)" } else { "(?s)" };
                // Weir's expressions have to match the whole path.
                location.when = Some(format!("~{flags}.*(?:{text}).*"));
                written.expressions.push((location, under.map(str::to_owned)));
            }
            _ => notes.add(directive, "LEFT OUT: found an unknown kind of location"),
        }
    }
}

fn answers<'a>(location: &'a Directive, notes: &mut Notes) -> Answers<'a> {
    let block = location.block();
    let named = |name: &str| block.iter().find(|one| one.name == name);
    if let Some(closed) = guard(block) {
        let is_internal = closed.name == "internal";
        return Answers::Status(if is_internal { NOT_FOUND } else { FORBIDDEN });
    }
    if let Some(returned) = named("return") {
        let is_https = is_redirect_to_https(returned);
        return if is_https { Answers::Https } else { Answers::Returned(returned) };
    }
    if let Some(proxied) = named("proxy_pass") {
        return Answers::Proxied(proxied);
    }
    notes.add(location, "Weir serves no files and speaks HTTP alone: its requests get 404");
    Answers::Status(NOT_FOUND)
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
            Answers::Https => match host {
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
            },
            Answers::Returned(directive) => returned(directive).unwrap_or_else(|| {
                notes.add(
                    directive,
                    "expected a status, and a text or a URL without variables: its requests get 404",
                );
                respond(NOT_FOUND)
            }),
            Answers::Proxied(directive) => match proxied(directive, upstreams, notes) {
                Some((upstream, host, path)) => {
                    rewrite = self.rewritten(path);
                    proxy_host = Some(host);
                    format!("upstream = {}", string(&upstream))
                }
                None => {
                    notes.add(
                        directive,
                        "expected a URL without variables: its requests get 404",
                    );
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
            limits: if is_proxied { limits.of(&around, server.name(), notes) } else { Vec::new() },
            policy: None,
            host: host.map(str::to_owned),
            path: self.path.clone(),
            when: self.when.clone(),
            rewrite,
            request_headers: is_proxied.then(|| request_headers(&around, notes)).flatten(),
            upstream_host: proxy_host.and_then(|host| upstream_host(&around, host, notes)),
            answers,
        }
    }

    /// With a path, `proxy_pass` puts it in the place of the location's own.
    fn rewritten(&self, path: Option<&str>) -> Option<String> {
        let path = path?;
        let Some(prefix) = &self.prefix else {
            return self.when.is_none().then(|| string(path));
        };
        let added = path.trim_end_matches('/');
        match (prefix.as_str(), added) {
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

/// The upstream of a `proxy_pass`, and the path that it has.
fn proxied<'a>(
    directive: &'a Directive,
    upstreams: &mut Upstreams,
    notes: &mut Notes,
) -> Option<(String, &'a str, Option<&'a str>)> {
    let url = directive.word(0);
    let (scheme, rest) = url.split_once("://").filter(|_| !url.contains('$'))?;
    if !["http", "https"].contains(&scheme) {
        return None;
    }
    if scheme == "https" {
        notes.line("proxy_pass https://: Weir verifies the upstream's certificate; nginx only with proxy_ssl_verify");
    }
    let at = if rest.starts_with("unix:") { None } else { rest.find('/') };
    let (host, path) = match at {
        Some(at) => (rest.get(..at)?, rest.get(at..)),
        None => (rest, None),
    };
    Some((upstreams.name(scheme, host), host, path))
}

/// The host that the upstream is told: nginx tells it its own name, unless it is told otherwise.
fn upstream_host(around: &[&[Directive]], host: &str, notes: &mut Notes) -> Option<String> {
    let is_one = |one: &&Directive| one.name == "proxy_set_header";
    let block = around.iter().find(|block| block.iter().any(|one| is_one(&one)));
    let fields = block.into_iter().flat_map(|block| block.iter().filter(is_one));
    let mut fields = fields.filter(|one| one.word(0).eq_ignore_ascii_case("host"));
    let Some(directive) = fields.next() else {
        return (!host.starts_with("unix:")).then(|| string(host));
    };
    match directive.word(1) {
        "$host" | "$http_host" => None,
        "$proxy_host" => Some(string(host)),
        value if value.contains('$') || value.is_empty() => {
            notes.add(directive, "LEFT OUT: the upstream gets the client's Host");
            None
        }
        value => Some(string(value)),
    }
}

/// `return 204;`, `return 200 "text";`, `return 301 https://example.com/;`
fn returned(directive: &Directive) -> Option<String> {
    let (code, text) = (directive.word(0), directive.word(1));
    let status = code.parse::<u16>().ok().filter(|status| (200..600).contains(status))?;
    // Another host, and the client's own path.
    let other = text.strip_suffix("$request_uri").filter(|to| !to.contains('$'));
    if let Some(other) = other.filter(|to| to.matches('/').count() == 2) {
        return Some(format!("redirect = {{ to = {}, status = {status} }}", string(other)));
    }
    if text.contains('$') {
        return None;
    }
    Some(match text {
        "" => respond(status),
        url if (300..400).contains(&status) => {
            format!("respond = {{ status = {status}, headers = {{ Location = {} }} }}", string(url))
        }
        text => format!("respond = {{ status = {status}, body = {} }}", string(text)),
    })
}

/// The fields of `proxy_set_header`: those of the innermost block that has any, as nginx inherits
/// them.
fn request_headers(around: &[&[Directive]], notes: &mut Notes) -> Option<String> {
    let is_one = |one: &&Directive| one.name == "proxy_set_header";
    let block = around.iter().find(|block| block.iter().any(|one| is_one(&one)))?;
    let (mut set, mut removed) = (Vec::new(), Vec::new());
    for directive in block.iter().filter(is_one) {
        let (name, value) = (directive.word(0), directive.word(1));
        if SENT.contains(&name.to_ascii_lowercase().as_str()) {
            continue;
        }
        if value.is_empty() {
            removed.push(string(name));
        } else if value.contains('$') {
            notes.add(directive, "LEFT OUT: a value has no variables in Weir");
        } else {
            set.push(format!("{} = {}", string(name), string(value)));
        }
    }
    let mut parts = Vec::new();
    if !set.is_empty() {
        parts.push(format!("set = {{ {} }}", set.join(", ")));
    }
    if !removed.is_empty() {
        parts.push(format!("remove = [{}]", removed.join(", ")));
    }
    (!parts.is_empty()).then(|| format!("{{ {} }}", parts.join(", ")))
}

impl Route {
    /// A route that refuses everything that no other one takes.
    pub(super) fn closed(names: &mut HashSet<String>, listeners: Vec<String>) -> Self {
        Self {
            name: unique("others", names),
            listeners,
            limits: Vec::new(),
            policy: None,
            host: None,
            path: "/*".to_owned(),
            when: None,
            rewrite: None,
            request_headers: None,
            upstream_host: None,
            answers: respond(FORBIDDEN),
        }
    }

    /// Writes it. `listeners` is how many have routes: one that is on all of them names none.
    pub(super) fn write(&self, listeners: usize, out: &mut String) {
        let _ = write!(out, "\n[[routes]]\nname = {}\n", string(&self.name));
        let when = self.when.as_ref().map(|path| format!("{{ path = {} }}", string(path)));
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
        if let Some(policy) = &self.policy {
            let _ = writeln!(out, "policy = {}", string(policy));
        }
    }
}
