//! `weir check`: builds everything that a configuration names, and looks for what is allowed but
//! probably unintended. Serves nothing and charges nothing.
//!
//! `routes` looks for routes that no request reaches, or fewer than was meant, `listeners` for
//! routes that are reached without the certificate that was asked for, `limits` for limits that
//! can't be kept, `messages` for those that count messages where there are none, `keys` for keys
//! that clients choose themselves, `failing` for policies that give no decision. The last three ask
//! policies about made-up requests (`samples`). None of it is done at start or at a reload: it may
//! take a while, and does not change what is served.

mod failing;
mod keys;
mod limits;
mod listeners;
mod messages;
mod routes;
mod samples;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use super::build::{Builder, ConfigBuild};
use super::reach::{self, ReachResult};
use crate::clock::Clock;
use crate::config::{Config, ConfigErrors, Outline, Route, Warning};
use crate::policy::{self, Policy};
use crate::proxy::Snapshot;
use crate::telemetry::{Lint, Metrics};

/// What was found in a configuration without errors.
#[derive(Debug)]
pub struct Checked {
    /// What is allowed but probably not meant.
    pub warnings: Vec<Warning>,
    /// What it says, for a comparison.
    pub outline: Outline,
    /// What was asked, if anything.
    pub reached: Vec<ReachResult>,
}

/// Builds everything that `config` names, guests included, and drops it again.
///
/// # Errors
/// All errors of all modules.
pub fn check(config: Config) -> Result<Checked, ConfigErrors> {
    let (built, warnings) = build(config)?;
    Ok(Checked { warnings, outline: built.outline, reached: Vec::new() })
}

/// What a configuration says, with what its policies say of their limits: those that can be built.
#[must_use]
pub fn outline(config: Config) -> Outline {
    let mut outline = config.outline;
    let builder = Builder::new(Metrics::new(1), Clock::system(), &config.policy_runtime);
    if let Ok(builder) = builder {
        for settings in &config.policies {
            if let Ok(policy) = builder.policy(settings) {
                outline.declare(&settings.name, policy.limits());
            }
        }
    }
    outline
}

/// Like [`check`], and then asks the store and the upstreams whether they can be reached.
///
/// # Errors
/// All errors of all modules; nothing is asked then.
pub fn check_and_reach(config: Config) -> Result<Checked, ConfigErrors> {
    let (built, warnings) = build(config)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let reached = match runtime {
        Ok(runtime) => runtime.block_on(reach::all(&built)),
        Err(error) => {
            vec![ReachResult::new("this machine".into(), Some(error.to_string()))]
        }
    };
    Ok(Checked { warnings, outline: built.outline, reached })
}

fn build(config: Config) -> Result<(ConfigBuild, Vec<Warning>), ConfigErrors> {
    let builder = Builder::new(Metrics::new(1), Clock::system(), &config.policy_runtime)
        .map_err(|error| config.source.locate(&[error]))?;
    let source = Arc::clone(&config.source);
    let (built, snapshot) = builder.build(config, None)?;
    let mut warnings = built.warnings.clone();
    warnings.extend(lints(&built, &snapshot).iter().map(|lint| source.warn(lint)));
    Ok((built, warnings))
}

fn lints(built: &ConfigBuild, snapshot: &Snapshot) -> Vec<Lint> {
    let mut lints = routes::lints(built, snapshot);
    lints.extend(listeners::lints(&built.listeners, &built.routes));
    let mut policies: Vec<_> = built.policies.iter().collect();
    policies.sort_unstable_by_key(|(name, _)| *name);
    for (name, (settings, policy)) in policies {
        let section = crate::config::setting::policy(name);
        let routes = routes_of(built, name);
        let under = |lint: Lint| lint.under(&section);
        // What asks for its decisions would find nothing.
        if let Some(failing) = failing::lint(settings, policy, &routes) {
            lints.push(under(failing));
            continue;
        }
        let of_limits = policy.limit_lints().into_iter();
        let of_limits = of_limits.filter(|lint| is_confirmed(lint, settings, policy, &routes));
        lints.extend(of_limits.map(under));
        lints.extend(limits::lints(built, policy, &section, &routes));
        lints.extend(messages::lint(settings, policy, &routes).map(under));
        lints.extend(keys::lints(settings, policy, &routes).into_iter().map(under));
    }
    lints
}

/// Maximum number of routes that a lint names or shows.
const SHOWN_MAX: usize = 4;

/// Some of these names, in a sentence.
fn names(all: &[&str]) -> String {
    let names: Vec<String> = all.iter().take(SHOWN_MAX).map(|name| format!("`{name}`")).collect();
    let more = all.len().saturating_sub(SHOWN_MAX);
    match names.split_last() {
        Some((last, [])) if more == 0 => last.clone(),
        Some((last, before)) if more == 0 => format!("{} and {last}", before.join(", ")),
        _ => format!("{} and {more} more", names.join(", ")),
    }
}

/// Whether a lint is about limits that the policy declares. Those of a policy that declares none
/// are guessed from its configuration: then one decision must be seen to charge both alike.
fn is_confirmed(
    lint: &Lint,
    settings: &policy::Settings,
    policy: &Policy,
    routes: &[(usize, &Route)],
) -> bool {
    if policy.declares_limits() {
        return true;
    }
    let placed = policy.placed_limits();
    let name_at = |setting: &str| {
        let (limit, _) = setting.rsplit_once('.')?;
        placed.iter().find(|placed| placed.setting == limit).map(|placed| placed.name.as_str())
    };
    let other = lint.beside.first().and_then(|(setting, _)| name_at(setting));
    let names = name_at(&lint.setting).zip(other);
    names
        .is_some_and(|(one, other)| keys::are_charged_alike(settings, policy, routes, [one, other]))
}

/// The routes that a policy decides for, with their indices.
fn routes_of<'b>(built: &'b ConfigBuild, policy: &str) -> Vec<(usize, &'b Route)> {
    let all = built.routes.iter().enumerate();
    all.filter(|(_, route)| route.policy.as_deref() == Some(policy)).collect()
}
