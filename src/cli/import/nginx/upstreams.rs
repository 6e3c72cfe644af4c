//! `upstream { }` and the servers that `proxy_pass` names by themselves.

use std::collections::HashSet;
use std::fmt::Write as _;

use super::Notes;
use super::keys::fact;
use crate::cli::import::directives::Directive;
use crate::cli::written::{plain, string, unique};

/// What nginx balances by, and Weir does without being told or in another place.
const NEEDLESS: [&str; 6] =
    ["keepalive", "keepalive_timeout", "keepalive_requests", "least_conn", "zone", "random"];

#[derive(Debug)]
pub(super) struct Upstreams {
    groups: Vec<Group>,
    used: Vec<Used>,
    names: HashSet<String>,
}

/// An `upstream { }`.
#[derive(Debug)]
struct Group {
    name: String,
    /// Each with the settings beside its URL.
    servers: Vec<(String, String)>,
    hash: Option<String>,
}

/// An upstream that a route names, with the scheme that it is spoken to by.
#[derive(Debug)]
struct Used {
    name: String,
    scheme: String,
    host: String,
}

impl Upstreams {
    pub(super) fn read(http: &[Directive], notes: &mut Notes) -> Self {
        let blocks = http.iter().filter(|one| one.name == "upstream");
        let groups = blocks.map(|block| Group::read(block, notes)).collect();
        Self { groups, used: Vec::new(), names: HashSet::new() }
    }

    /// The name of the upstream at `SCHEME://HOST`. None if all its servers are down.
    pub(super) fn name(&mut self, scheme: &str, host: &str) -> Option<String> {
        if self.group(host).is_some_and(|group| group.servers.is_empty()) {
            return None;
        }
        if let Some(used) = self.used.iter().find(|one| one.scheme == scheme && one.host == host) {
            return Some(used.name.clone());
        }
        let name = unique(&plain(host, "upstream"), &mut self.names);
        let (scheme, host) = (scheme.to_owned(), host.to_owned());
        self.used.push(Used { name: name.clone(), scheme, host });
        Some(name)
    }

    /// The group of this name, in any case as in nginx.
    fn group(&self, name: &str) -> Option<&Group> {
        self.groups.iter().find(|group| group.name.eq_ignore_ascii_case(name))
    }

    /// Writes all that are used, with these `timeouts`.
    pub(super) fn write(&self, timeouts: Option<&str>, out: &mut String) {
        for Used { name, scheme, host } in &self.used {
            let group = self.group(host);
            let url = |address: &str| match address.strip_prefix("unix:") {
                Some(path) => string(&format!("unix:{}", path.trim_end_matches(':'))),
                None => string(&format!("{scheme}://{address}")),
            };
            let endpoints: Vec<String> = match group {
                None => vec![url(host)],
                Some(group) => {
                    let each = group.servers.iter().map(|(address, more)| match more.as_str() {
                        "" => url(address),
                        more => format!("{{ url = {}{more} }}", url(address)),
                    });
                    each.collect()
                }
            };
            let _ = write!(
                out,
                "\n[upstreams.{}]\nendpoints = [{}]\n",
                string(name),
                endpoints.join(", ")
            );
            if let Some(timeouts) = timeouts {
                let _ = writeln!(out, "timeouts = {timeouts}");
            }
            if let Some(hash) = group.and_then(|group| group.hash.as_ref()) {
                let _ = writeln!(out, "hash = {}", string(hash));
            }
        }
    }
}

impl Group {
    fn read(block: &Directive, notes: &mut Notes) -> Self {
        let mut group = Self { name: block.word(0).to_owned(), servers: Vec::new(), hash: None };
        for directive in block.block() {
            match directive.name.as_str() {
                "server" if directive.has("down") => {}
                "server" => {
                    let mut more = String::new();
                    match directive.value("weight").map(str::parse::<u16>) {
                        Some(Ok(weight)) => more = format!(", weight = {weight}"),
                        Some(Err(_)) => notes.add(directive, "its weight is left out"),
                        None => {}
                    }
                    if directive.has("backup") {
                        more.push_str(", backup = true");
                    }
                    if directive.value("max_conns").is_some() {
                        notes.add(
                            directive,
                            "max_conns is left out: `concurrency` of an upstream is for all its endpoints",
                        );
                    }
                    group.servers.push((directive.word(0).to_owned(), more));
                }
                "ip_hash" => group.hash = Some("client-ip".to_owned()),
                "hash" => {
                    let variable = directive.word(0).strip_prefix('$').and_then(fact);
                    match variable
                        .map(|fact| fact.trim_matches(['{', '}']).replace("client_ip", "client-ip"))
                    {
                        Some(fact) => group.hash = Some(fact),
                        None => notes.add(directive, "left out: expected one variable with a fact"),
                    }
                }
                name if NEEDLESS.contains(&name) => {}
                _ => notes.left_out(directive),
            }
        }
        group
    }
}
