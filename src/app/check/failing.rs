//! Policies that fail whatever they are asked: a panic, an error of their own, more time or memory
//! than they may use. They can be built, so nothing else shows it before the first request does.

use std::time::Duration;

use super::samples;
use crate::clock;
use crate::config::Route;
use crate::policy::{self, Module, Policy};
use crate::telemetry::{Label as _, Lint, LintKind};

/// Time for one policy. A call may take as long as the policy's CPU time.
const TIME_MAX: Duration = Duration::from_secs(2);

/// A lint about a policy that gives no decision about any request on its `routes`, below the
/// policy's section. None if it gives one, or if nothing asks it.
pub(super) fn lint(
    settings: &policy::Settings,
    policy: &Policy,
    routes: &[(usize, &Route)],
) -> Option<Lint> {
    let facts: Vec<&str> = policy.request_facts().iter().map(String::as_str).collect();
    let until = clock::monotonic() + TIME_MAX;
    let mut first = None;
    let mut tried = 0;
    for request in samples::requests(&samples::with_none(&facts), &settings.config_json, routes) {
        // Whatever came of it, the others are no longer needed.
        if tried > 0 && clock::monotonic() > until {
            break;
        }
        let error = request.ask(policy, &facts, &[]).err()?;
        tried += 1;
        // Later ones may only say that it is stopped by now.
        first.get_or_insert((error, request));
    }
    let (error, request) = first?;
    let asked = format!("{} {}", request.method, request.path);
    let all = if tried == 1 {
        format!("the request that was tried, {asked}")
    } else {
        format!("all {tried} requests that were tried, such as {asked}")
    };
    let text = format!(
        "the policy {} fails ({}: {}) with {all}",
        error.policy,
        error.cause.label(),
        error.message
    );
    let setting = match settings.module {
        Module::File { .. } => "wasm",
        Module::Shipped(_) => "use",
    };
    let remedy = format!(
        "`weir policy inspect {} --config FILE '{asked}'` shows it again; until it is mended, its \
         requests are refused with 503, or pass uncounted where `on_policy_error` allows that",
        error.policy
    );
    Some(Lint::new(LintKind::FailingPolicy, setting, text).remedy(remedy))
}
