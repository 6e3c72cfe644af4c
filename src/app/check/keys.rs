//! Keys that a client chooses itself: with a new value it gets a new allowance, and fills the store
//! with counters. Found by asking the policy, whatever it is written in: it decides about two
//! requests of one client that differ in nothing but values that a client chooses. If every limit
//! that could refuse them has another key, nothing bounds that client.
//!
//! A policy that refuses an unknown value, or counts it by address, passes: its decision says so.
//! What can't be seen: conditions that none of the requests here fulfils, values that are accepted
//! only in some form, and a gateway in front of Weir that checks or overwrites what clients send. A
//! path and a method name the resource rather than the client, and are left alone.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock;
use crate::config::Route;
use crate::plan::{Algorithm, Enforcement};
use crate::policy::{self, Decision, PlacedLimit, Policy, Verdict};
use crate::telemetry::{Lint, LintKind};

/// Time for one policy. A call may take as long as the policy's CPU time.
const TIME_MAX: Duration = Duration::from_secs(2);
/// Maximum number of routes, and paths from conditions, for which a policy is asked.
const ROUTES_MAX: usize = 16;
const PATHS_MAX: usize = 8;
/// The beginnings of facts that a client chooses freely, without and with a body.
const CHOSEN: [&str; 3] = ["header.", "cookie.", "query."];
const CHOSEN_IN_BODIES: [&str; 3] = ["form.", "body:", "body.json:"];
/// A client, of those reserved for documentation (RFC 5737).
const CLIENT: &str = "192.0.2.1";

/// A request to ask about: everything but the values that the client chooses.
struct SampleRequest<'a> {
    route: &'a Route,
    method: &'a str,
    path: String,
    /// The facts whose values differ.
    chosen: Vec<&'a str>,
}

/// Lints about the keys of a policy that decides for `routes`, below the policy's section.
pub(super) fn lints(
    settings: &policy::Settings,
    policy: &Policy,
    routes: &[(usize, &Route)],
) -> Vec<Lint> {
    let facts: Vec<&str> = policy.request_facts().iter().map(String::as_str).collect();
    let until = clock::monotonic() + TIME_MAX;
    let (mut told, mut lints) = (BTreeSet::new(), Vec::new());
    let placed = policy.placed_limits();
    for scene in scenes(&choices(&facts), &settings.config_json, routes) {
        if clock::monotonic() > until {
            break;
        }
        let Some((limits, by)) = unbounded(policy, &facts, &scene, until) else { continue };
        if told.insert((limits.clone(), by.clone())) {
            lints.push(lint(&limits, &by, &scene, &placed, settings));
        }
    }
    lints
}

fn lint(
    limits: &[String],
    by: &[&str],
    scene: &SampleRequest<'_>,
    placed: &[PlacedLimit],
    settings: &policy::Settings,
) -> Lint {
    let quoted = |names: &[&str]| {
        names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" and ")
    };
    let names: Vec<&str> = limits.iter().map(String::as_str).collect();
    let text = format!(
        "nothing bounds a client that changes {}: each value has its own allowance of {}, and no \
         limit counts the client itself ({} {})",
        quoted(by),
        quoted(&names),
        scene.method,
        scene.path
    );
    let first = placed.iter().find(|limit| limits.contains(&limit.name));
    let setting = match first {
        Some(limit) if limit.has_key() => format!("{}.key", limit.setting),
        // The limit's default, if there is one in the configuration.
        Some(_) if settings.config_json.contains("\"key\":") => "config.key".to_owned(),
        Some(limit) => limit.setting.clone(),
        None => "config".to_owned(),
    };
    Lint::new(LintKind::UnboundedKey, setting, text).remedy(
        "add a limit with `key = \"{client_ip}\"`, or have the value checked, as the policy plans does",
    )
}

/// Whether a policy charges two of its limits by the same requests, under the same key and as much,
/// and leaves it at that: what one refuses then never reaches the other.
pub(super) fn are_charged_alike(
    settings: &policy::Settings,
    policy: &Policy,
    routes: &[(usize, &Route)],
    names: [&str; 2],
) -> bool {
    let facts: Vec<&str> = policy.request_facts().iter().map(String::as_str).collect();
    let until = clock::monotonic() + TIME_MAX;
    let mut choices = choices(&facts);
    choices.insert(0, Vec::new());
    let scenes = scenes(&choices, &settings.config_json, routes);
    scenes.iter().take_while(|_| clock::monotonic() <= until).any(|scene| {
        let Some(decision) = decide(policy, &facts, scene, &[]) else { return false };
        let Verdict::Check(plan) = &decision.verdict else { return false };
        let limit = |name: &str| plan.limits().iter().find(|limit| limit.name == name);
        match names.map(limit) {
            [Some(one), Some(other)] => {
                (&one.key, one.cost, one.refund) == (&other.key, other.cost, other.refund)
                    && decision.settle_with.is_none()
            }
            _ => false,
        }
    })
}

/// Sets of facts that a client chooses: those without a body, and with each fact of a body.
fn choices<'a>(facts: &[&'a str]) -> Vec<Vec<&'a str>> {
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

/// The requests to ask about: each route with some methods and paths, and each choice.
fn scenes<'a>(
    choices: &[Vec<&'a str>],
    config_json: &str,
    routes: &[(usize, &'a Route)],
) -> Vec<SampleRequest<'a>> {
    let conditions = paths_in(config_json);
    let mut scenes = Vec::new();
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
                scenes.push(SampleRequest { route, method, path, chosen });
            }
        }
    }
    scenes
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

/// The limits that would count a request of this scene, and the facts that choose their keys, if
/// no limit is the same for another request of the same client.
fn unbounded<'a>(
    policy: &Policy,
    facts: &[&str],
    scene: &SampleRequest<'a>,
    until: Instant,
) -> Option<(Vec<String>, Vec<&'a str>)> {
    let ask = |changed: &[&str]| keys(policy, facts, scene, changed);
    let (one, other) = (ask(&[])?, ask(&scene.chosen)?);
    if one.is_empty() || other.is_empty() || one.iter().any(|limit| other.contains(limit)) {
        return None;
    }
    let mut by = Vec::new();
    for fact in &scene.chosen {
        if clock::monotonic() > until {
            break;
        }
        // A fact of which a new value is refused chooses no key.
        if ask(&[fact]).is_some_and(|changed| changed != one) {
            by.push(*fact);
        }
    }
    let names = one.into_iter().map(|(name, _)| name).collect();
    (!by.is_empty()).then_some((names, by))
}

/// The names and keys of the limits that may refuse a request of this scene, in which these facts
/// have another value; `None` if the policy does not charge it.
fn keys(
    policy: &Policy,
    facts: &[&str],
    scene: &SampleRequest<'_>,
    changed: &[&str],
) -> Option<Vec<(String, String)>> {
    let decision = decide(policy, facts, scene, changed)?;
    let Verdict::Check(plan) = &decision.verdict else { return None };
    let refusing = plan.limits().iter().filter(|limit| {
        let counts_only = matches!(&limit.algorithm, Algorithm::Quota(quota) if !quota.conditional);
        limit.enforcement == Enforcement::Enforce && !counts_only
    });
    Some(refusing.map(|limit| (limit.name.clone(), limit.key.clone())).collect())
}

/// The decision about a request of this scene, in which these facts have another value.
fn decide(
    policy: &Policy,
    facts: &[&str],
    scene: &SampleRequest<'_>,
    changed: &[&str],
) -> Option<Arc<Decision>> {
    let shown: Vec<(&str, String)> = facts
        .iter()
        .filter_map(|fact| Some((*fact, value(fact, scene, changed.contains(fact))?)))
        .collect();
    let shown: Vec<(&str, &str)> =
        shown.iter().map(|(fact, value)| (*fact, value.as_str())).collect();
    policy.decide(&shown).ok()
}

/// The value of a fact in a request of this scene, if the request has it.
fn value(fact: &str, scene: &SampleRequest<'_>, is_changed: bool) -> Option<String> {
    if scene.chosen.contains(&fact) {
        let text = if is_changed { "weir-check-2" } else { "weir-check-1" };
        return Some(match fact {
            "query" => format!("q={text}"),
            _ if fact.starts_with("body.json:") => format!("{text:?}"),
            _ => text.to_owned(),
        });
    }
    let has_body = scene.chosen.iter().any(|fact| !is_outside(fact));
    let form = scene.chosen.iter().any(|fact| fact.starts_with("form."));
    let host = scene.route.host.as_deref().unwrap_or("example.com").replace('*', "weir-check");
    let text = match fact {
        "client-ip" => CLIENT,
        "method" => scene.method,
        "scheme" => "https",
        "authority" | "tls.sni" => host.as_str(),
        "path" => scene.path.as_str(),
        "route" => scene.route.name.as_str(),
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
        _ => return None,
    };
    Some(text.to_owned())
}

fn is_outside(fact: &str) -> bool {
    matches!(fact, "query" | "bearer") || CHOSEN.iter().any(|start| fact.starts_with(start))
}
