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
use std::time::{Duration, Instant};

use super::samples::{self, SampleRequest};
use crate::clock;
use crate::config::Route;
use crate::plan::{Algorithm, Role};
use crate::policy::{self, PlacedLimit, Policy, Verdict};
use crate::telemetry::{Lint, LintKind};

/// Time for one policy. A call may take as long as the policy's CPU time.
const TIME_MAX: Duration = Duration::from_secs(2);

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
    for scene in samples::requests(&samples::choices(&facts), &settings.config_json, routes) {
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
    let scenes = samples::requests(&samples::with_none(&facts), &settings.config_json, routes);
    scenes.iter().take_while(|_| clock::monotonic() <= until).any(|scene| {
        let Ok(decision) = scene.ask(policy, &facts, &[]) else { return false };
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
    let decision = scene.ask(policy, facts, changed).ok()?;
    let Verdict::Check(plan) = &decision.verdict else { return None };
    // A parent does not refuse what its children are assured.
    let refusing = plan.limits().iter().filter(|limit| {
        let counts_only = matches!(&limit.algorithm, Algorithm::Quota(quota) if !quota.conditional);
        limit.is_enforced() && limit.role != Role::Parent && !counts_only
    });
    Some(refusing.map(|limit| (limit.name.clone(), limit.key.clone())).collect())
}
