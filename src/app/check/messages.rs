//! Limits that count the messages of WebSockets, where no request becomes one.

use super::samples;
use crate::config::{Route, RouteAction};
use crate::policy::{self, Policy};
use crate::telemetry::{Lint, LintKind};

const WEBSOCKET: &str = "websocket";
/// What a WebSocket is asked for with (RFC 6455, section 4.1).
const METHOD: &str = "GET";
/// The limits' key, in the configuration and in what is reported.
const KEY: &str = "messages";

/// A lint about a limit with `messages` of a policy none of whose `routes` takes WebSockets, below
/// the policy's section. None if nothing asks the policy.
pub(super) fn lint(
    settings: &policy::Settings,
    policy: &Policy,
    routes: &[(usize, &Route)],
) -> Option<Lint> {
    if routes.iter().any(|(_, route)| takes_websockets(route)) {
        return None;
    }
    let facts: Vec<&str> = policy.request_facts().iter().map(String::as_str).collect();
    let asked = samples::requests(&samples::with_none(&facts), &settings.config_json, routes);
    let decisions = asked.iter().filter_map(|request| request.ask(policy, &facts, &[]).ok());
    let name = decisions.filter_map(|it| Some(it.messages.first()?.0.clone())).next()?;
    let placed = policy.placed_limits().into_iter().find(|limit| limit.name == name);
    let setting = placed.map_or_else(|| "config".to_owned(), |limit| limit.part(KEY));
    let text = format!(
        "`{name}` counts messages of WebSockets, and no route of the policy takes a WebSocket: it \
         counts requests alone"
    );
    let remedy = "leave `messages` out, or let a route with an `upstream` have GET and \
                  upgrade.protocols = [\"websocket\"]";
    Some(Lint::new(LintKind::NoMessages, setting, text).remedy(remedy))
}

fn takes_websockets(route: &Route) -> bool {
    let protocols = &route.extras.upgrade.protocols;
    matches!(route.action, RouteAction::Upstream(_))
        && (route.methods.is_empty() || route.methods.iter().any(|method| method == METHOD))
        && protocols.iter().any(|protocol| protocol.eq_ignore_ascii_case(WEBSOCKET))
}
