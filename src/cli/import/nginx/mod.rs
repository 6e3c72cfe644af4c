//! What nginx's directives mean, in Weir's words: limits, upstreams, servers and their locations.
//! Everything else is noted, so that nothing disappears silently, and what Weir can't answer as
//! nginx does is refused rather than let through.

mod expressions;
mod guards;
mod headers;
mod keys;
mod limits;
mod locations;
mod maps;
mod real_ip;
mod routes;
mod servers;
mod settings;
#[cfg(test)]
mod tests;
mod upstreams;

use std::collections::{BTreeSet, HashSet};
use std::fmt::Write as _;

use self::limits::Limits;
use self::routes::Route;
use self::servers::{Listener, Places};
use self::upstreams::Upstreams;
use super::Imported;
use crate::cli::import::directives::Directive;

/// What only nginx needs, or what Weir does without being told.
const NEEDLESS: &[&str] = &[
    "access_log",
    "daemon",
    "default_type",
    "error_log",
    "events",
    "gzip_buffers",
    "gzip_comp_level",
    "gzip_disable",
    "gzip_vary",
    "keepalive_requests",
    "keepalive_timeout",
    "limit_conn_log_level",
    "limit_req_log_level",
    "log_format",
    "log_not_found",
    "master_process",
    "pid",
    "proxy_buffering",
    "proxy_http_version",
    "reset_timedout_connection",
    "sendfile",
    "server_tokens",
    "tcp_nodelay",
    "tcp_nopush",
    "types",
    "types_hash_max_size",
    "user",
    "worker_connections",
    "worker_processes",
    "worker_rlimit_nofile",
];
/// What is read in another place.
const READ: &[&str] = &[
    "geo",
    "limit_conn",
    "limit_conn_dry_run",
    "limit_conn_status",
    "limit_conn_zone",
    "limit_req",
    "limit_req_dry_run",
    "limit_req_status",
    "limit_req_zone",
    "listen",
    "location",
    "map",
    "proxy_pass",
    "proxy_set_header",
    "real_ip_header",
    "real_ip_recursive",
    "return",
    "server",
    "set_real_ip_from",
    "server_name",
    "ssl_certificate",
    "ssl_certificate_key",
    "upstream",
];
/// Maximum number of routes.
const ROUTES_MAX: usize = 2_000;

/// Writes what `directives` say as a configuration of Weir.
///
/// # Errors
/// There is no server in them, or there are too many locations.
pub(super) fn import(directives: &[Directive]) -> Result<Imported, String> {
    let mut notes = Notes::default();
    let http = directives.iter().find(|directive| directive.name == "http");
    // A file of `conf.d` alone has no `http { }` around it.
    let inside = http.map_or(directives, Directive::block);
    if http.is_some() {
        directives.iter().filter(|one| one.name != "http").for_each(|one| notes.left_out(one));
    }
    inside.iter().for_each(|directive| notes.left_out(directive));
    let servers = servers::servers(inside, &mut notes);
    if servers.is_empty() {
        return Err("found no `server { }` that listens on an address and a port".to_owned());
    }
    let listeners = servers::listeners(&servers, &mut notes);
    let mut limits = Limits::read(inside);
    let mut upstreams = Upstreams::read(inside, &mut notes);
    let mut names = HashSet::new();
    let mut routes: Vec<Route> = Vec::new();
    for server in &servers {
        let Places { default, hosts, closes } = server.places(&servers, &listeners);
        let locations = locations::of(server, inside, &mut notes);
        let mut all: Vec<(Option<&str>, Vec<String>)> = Vec::new();
        if closes {
            routes.push(Route::closed(&mut names, default));
        } else if !default.is_empty() {
            let others = server.unwritable_hosts_of_others(&servers, &mut notes);
            let paths: BTreeSet<&str> =
                locations.iter().map(|location| location.path.as_str()).collect();
            let refused = paths.into_iter().filter(|_| !others.is_empty());
            routes.extend(
                refused
                    .map(|path| Route::refusal(path, others.clone(), &mut names, default.clone())),
            );
            all.push((None, default));
        }
        all.extend(hosts.into_iter().map(|(host, places)| (Some(host), places)));
        for (host, places) in all {
            for location in &locations {
                let mut route = location.route(
                    (server, inside),
                    host,
                    &mut names,
                    &mut (&mut limits, &mut upstreams),
                    &mut notes,
                );
                route.listeners.clone_from(&places);
                routes.push(route);
            }
            if routes.len() > ROUTES_MAX {
                return Err(format!("there are more than {ROUTES_MAX} locations of all hosts"));
            }
        }
    }
    if routes.is_empty() {
        // All servers only send clients to HTTPS, and a configuration needs a route.
        routes.push(Route::closed(&mut names, Vec::new()));
    }
    limits.note_unused(&mut notes);
    let proxies = real_ip::trusted(inside, &servers, &mut notes);
    let general = General {
        proxies,
        limits: settings::server_limits(inside, &mut notes),
        timeouts: settings::upstream_timeouts(inside, &mut notes),
    };
    Ok(written(&general, &listeners, &upstreams, &limits, routes, notes))
}

const HEAD: &str = "# Written by `weir import` from a configuration of nginx: see docs/nginx.md.\n";

/// What holds for all servers or upstreams.
struct General {
    proxies: Vec<String>,
    /// `[server.limits]`.
    limits: String,
    timeouts: Option<String>,
}

fn written(
    General { proxies, limits: server_limits, timeouts }: &General,
    listeners: &[Listener],
    upstreams: &Upstreams,
    limits: &Limits<'_>,
    mut routes: Vec<Route>,
    mut notes: Notes,
) -> Imported {
    let used: Vec<&[String]> = routes.iter().map(|route| route.limits.as_slice()).collect();
    let policies = limits.policies(&used, &mut notes);
    for route in &mut routes {
        let mine = |policy: &&limits::Policy| {
            route.limits.iter().any(|limit| policy.limits.iter().any(|(name, _)| name == limit))
        };
        route.policy = policies.iter().find(mine).map(|policy| policy.name.clone());
    }
    let mut text = HEAD.to_owned();
    for note in &notes.lines {
        let _ = writeln!(text, "# {note}");
    }
    if !proxies.is_empty() {
        let _ = write!(text, "\n[server]\ntrusted_proxies = [{}]\n", proxies.join(", "));
    }
    text.push_str(server_limits);
    listeners.iter().for_each(|listener| listener.write(&mut text));
    upstreams.write(timeouts.as_deref(), &mut text);
    for policy in &policies {
        let limited: Vec<(&str, &[String])> = routes
            .iter()
            .filter(|route| route.policy.as_ref() == Some(&policy.name))
            .map(|route| (route.name.as_str(), route.limits.as_slice()))
            .collect();
        policy.write(&limited, &mut text);
    }
    let serving = listeners.iter().filter(|listener| !listener.redirects).count();
    for route in &routes {
        route.write(serving, &mut text);
    }
    Imported { text, notes: notes.lines }
}

/// What means something else in Weir, or is not there.
#[derive(Debug, Default)]
struct Notes {
    lines: Vec<String>,
    known: HashSet<String>,
}

impl Notes {
    fn add(&mut self, directive: &Directive, what: &str) {
        self.line(&format!("{}: {}: {what}", directive.place, directive.text()));
    }

    /// A line once, however often it holds.
    fn line(&mut self, line: &str) {
        // A line end would end the comment that it is in.
        let mut clean = String::new();
        for letter in line.chars() {
            match letter {
                letter if letter.is_control() => clean.extend(letter.escape_default()),
                letter => clean.push(letter),
            }
        }
        if self.known.insert(clean.clone()) {
            self.lines.push(clean);
        }
    }

    /// A directive that has no counterpart, unless nobody misses it.
    fn left_out(&mut self, directive: &Directive) {
        let name = directive.name.as_str();
        if guards::is_guard(name) {
            self.add(directive, "LEFT OUT: Weir refuses the requests that it is for");
        } else if !is_silent(name) && !settings::READ.contains(&name) {
            self.add(directive, "left out");
        }
    }
}

/// Whether a directive is read in another place, or nobody misses it.
fn is_silent(name: &str) -> bool {
    NEEDLESS.contains(&name) || READ.contains(&name)
}
