//! Requests to ask policies about, made up from routes and from the paths in a policy's
//! configuration. A policy is asked alone: no limit is checked, and nothing is charged.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::config::{Route, RouteAction};
use crate::policy::{Decision, Policy, PolicyError};

/// Maximum number of routes, and paths from conditions, for which a policy is asked.
const ROUTES_MAX: usize = 16;
const PATHS_MAX: usize = 8;
/// The beginnings of facts that a client chooses freely, without and with a body.
const CHOSEN: [&str; 3] = ["header.", "cookie.", "query."];
const CHOSEN_IN_BODIES: [&str; 3] = ["form.", "body:", "body.json:"];
/// A client, of those reserved for documentation (RFC 5737).
const CLIENT: &str = "192.0.2.1";

/// A request to ask about: everything but the values that the client chooses.
pub(super) struct SampleRequest<'a> {
    route: &'a Route,
    pub(super) method: &'a str,
    pub(super) path: String,
    /// The facts whose values differ.
    pub(super) chosen: Vec<&'a str>,
}

impl SampleRequest<'_> {
    /// Asks a policy that reads `facts`. Those of `changed` have another value.
    ///
    /// # Errors
    /// The policy failed.
    pub(super) fn ask(
        &self,
        policy: &Policy,
        facts: &[&str],
        changed: &[&str],
    ) -> Result<Arc<Decision>, PolicyError> {
        let shown: Vec<(&str, String)> = facts
            .iter()
            .filter_map(|fact| Some((*fact, value(fact, self, changed.contains(fact))?)))
            .collect();
        let shown: Vec<(&str, &str)> =
            shown.iter().map(|(fact, value)| (*fact, value.as_str())).collect();
        policy.decide(&shown)
    }
}

/// Sets of facts that a client chooses: those without a body, and with each fact of a body.
pub(super) fn choices<'a>(facts: &[&'a str]) -> Vec<Vec<&'a str>> {
    let is = |all: &[&str], fact: &str| all.iter().any(|start| fact.starts_with(start));
    let outside: Vec<&str> = facts.iter().copied().filter(|fact| is_outside(fact)).collect();
    let inside: Vec<&str> =
        facts.iter().copied().filter(|fact| is(&CHOSEN_IN_BODIES, fact)).collect();
    let mut choices = vec![outside.clone()];
    choices.extend(inside.iter().map(|one| with(&outside, &[one])));
    if inside.len() > 1 {
        choices.push(with(&outside, &inside));
    }
    choices.retain(|chosen| !chosen.is_empty());
    choices
}

/// The same, and first of all no facts.
pub(super) fn with_none<'a>(facts: &[&'a str]) -> Vec<Vec<&'a str>> {
    let mut choices = choices(facts);
    choices.insert(0, Vec::new());
    choices
}

/// The requests to ask about: each route with some methods and paths, and each choice.
pub(super) fn requests<'a>(
    choices: &[Vec<&'a str>],
    config_json: &str,
    routes: &[(usize, &'a Route)],
) -> Vec<SampleRequest<'a>> {
    let conditions = paths_in(config_json);
    let mut requests = Vec::new();
    for (_, route) in routes.iter().take(ROUTES_MAX) {
        let usual = ["GET", "POST"];
        let own: Vec<&str> = route.methods.iter().map(String::as_str).collect();
        let methods = if own.is_empty() { &usual[..] } else { &own[..] };
        let paths = [sample(&route.path)].into_iter().chain(conditions.iter().cloned());
        for (path, chosen) in
            paths.flat_map(|path| choices.iter().map(move |chosen| (path.clone(), chosen)))
        {
            for method in methods {
                let (path, chosen) = (path.clone(), chosen.clone());
                requests.push(SampleRequest { route, method, path, chosen });
            }
        }
    }
    requests
}

fn with<'a>(some: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    some.iter().chain(more).copied().collect()
}

/// A path that a route's pattern matches.
fn sample(pattern: &str) -> String {
    let parts = pattern
        .split('/')
        .map(|part| if part == "*" || part.starts_with('{') { "weir-check" } else { part });
    parts.collect::<Vec<_>>().join("/")
}

/// Paths that conditions of the configuration name.
fn paths_in(config_json: &str) -> Vec<String> {
    fn walk(value: &serde_json::Value, of_path: bool, paths: &mut BTreeSet<String>) {
        match value {
            serde_json::Value::String(text)
                if of_path && text.starts_with('/') && paths.len() < PATHS_MAX =>
            {
                paths.insert(sample(text));
            }
            serde_json::Value::Array(items) => {
                items.iter().for_each(|item| walk(item, of_path, paths));
            }
            serde_json::Value::Object(table) => {
                table.iter().for_each(|(key, member)| walk(member, key == "path", paths));
            }
            _ => {}
        }
    }
    let mut paths = BTreeSet::new();
    if config_json.contains("\"path\"")
        && let Ok(config) = serde_json::from_str(config_json)
    {
        walk(&config, false, &mut paths);
    }
    paths.into_iter().collect()
}

/// The value of a fact in a request like this, if the request has it.
fn value(fact: &str, request: &SampleRequest<'_>, is_changed: bool) -> Option<String> {
    if request.chosen.contains(&fact) {
        let text = if is_changed { "weir-check-2" } else { "weir-check-1" };
        return Some(match fact {
            // A client can write any port.
            "authority" => format!("example.com:{}", if is_changed { 2 } else { 1 }),
            "query" => format!("q={text}"),
            _ if fact.starts_with("body.json:") => format!("{text:?}"),
            _ => text.to_owned(),
        });
    }
    let has_body = request.chosen.iter().any(|fact| !is_outside(fact));
    let form = request.chosen.iter().any(|fact| fact.starts_with("form."));
    let host = request.route.host.as_deref().unwrap_or("example.com").replace('*', "weir-check");
    let domain = match &request.route.action {
        RouteAction::Decide(domain) => Some(domain.as_str()),
        _ => None,
    };
    let text = match fact {
        "client-ip" => CLIENT,
        "method" => request.method,
        "scheme" => "https",
        "authority" | "host" | "tls.sni" => host.as_str(),
        "path" => request.path.as_str(),
        "route" => request.route.name.as_str(),
        "http.version" => "1.1",
        "tls.client.subject" => "CN=weir-check",
        "body.type" if has_body => {
            if form {
                "form"
            } else {
                "json"
            }
        }
        "body.type" => "empty",
        "body.bytes" | "request.length" => {
            if has_body {
                "100"
            } else {
                "0"
            }
        }
        _ if fact.starts_with("path.") => "weir-check",
        "rls.domain" => domain?,
        "rls.descriptor" => domain.map(|_| r#"[["weir-check","1"]]"#)?,
        _ if fact.starts_with("rls.entry.") => domain.map(|_| "weir-check")?,
        _ => return None,
    };
    Some(text.to_owned())
}

fn is_outside(fact: &str) -> bool {
    matches!(fact, "query" | "bearer" | "authority")
        || CHOSEN.iter().any(|start| fact.starts_with(start))
}
