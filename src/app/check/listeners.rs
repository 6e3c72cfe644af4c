//! Listeners that ask for no certificate, and serve what another one serves only to clients that
//! have one, as lints.

use super::names;
use crate::config::{Route, RouteAction, setting};
use crate::listen::{Serves, Settings};
use crate::telemetry::{Lint, LintKind};

/// One lint for each listener that doesn't require certificates, if another one does and routes
/// are on both. Routes that answer by themselves, such as those that redirect to `https`, don't
/// matter.
pub(super) fn lints(listeners: &[Settings], routes: &[Route]) -> Vec<Lint> {
    let requires = |one: &Settings| one.clients.as_ref().is_some_and(|clients| clients.required);
    let is_on = |route: &Route, one: &Settings| {
        route.listeners.is_empty()
            || one.name.as_ref().is_some_and(|name| route.listeners.contains(name))
    };
    let closed: Vec<_> = listeners.iter().enumerate().filter(|(_, one)| requires(one)).collect();
    let open = listeners.iter().enumerate();
    let open = open.filter(|(_, one)| !requires(one) && one.serves != Serves::Decisions);
    open.filter_map(|(index, open)| {
        let mut beside = None;
        let mut on_both = Vec::new();
        for route in routes.iter().filter(|route| is_on(route, open)) {
            let closed = closed.iter().find(|(_, closed)| is_on(route, closed));
            if let (RouteAction::Upstream(_), Some((closed, _))) = (&route.action, closed) {
                beside = beside.or(Some(*closed));
                on_both.push(route.name.as_str());
            }
        }
        let text = format!(
            "clients need no certificate here, and reach {}, for which another listener requires one",
            names(&on_both)
        );
        let lint = Lint::new(LintKind::OpenListener, setting::listener(index), text);
        let lint = lint.beside(setting::listener(beside?), "this listener requires one");
        Some(lint.remedy("give listeners a `name`, and say with `listeners` which of them a route is on"))
    })
    .collect()
}
