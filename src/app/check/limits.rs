//! Limits that the rest of the configuration contradicts: a delay longer than the request may take,
//! more requests in flight than the proxy has room for.

use std::collections::BTreeSet;

use super::super::build::ConfigBuild;
use crate::config::{Route, RouteAction, setting};
use crate::engine;
use crate::plan::Algorithm;
use crate::policy::{PlacedLimit, Policy};
use crate::telemetry::{Lint, LintKind};

/// Lints about the limits of the policy in `section`, which decides for `routes`.
pub(super) fn lints(
    built: &ConfigBuild,
    policy: &Policy,
    section: &str,
    routes: &[(usize, &Route)],
) -> Vec<Lint> {
    let placed = policy.placed_limits();
    let each = placed.iter().flat_map(|limit| {
        let at = |key: &str| format!("{section}.{}", limit.part(key));
        match &limit.algorithm {
            Algorithm::LeakyBucket(bucket) if bucket.max_delay_ms > 0 => {
                delays(built, limit, &at("max_delay"), bucket.max_delay_ms, routes)
            }
            Algorithm::Concurrency(most) => {
                in_flight(built, limit, &at("quota"), most.amount, routes).into_iter().collect()
            }
            _ => Vec::new(),
        }
    });
    each.collect()
}

/// Lints about requests that may wait and don't, or are ended while they wait.
fn delays(
    built: &ConfigBuild,
    limit: &PlacedLimit,
    at: &str,
    max_delay_ms: u64,
    routes: &[(usize, &Route)],
) -> Vec<Lint> {
    let name = &limit.name;
    if built.limiter_settings.waiting_max == 0 {
        let text = format!("no request will ever wait in `{name}`: `waiting_per_worker` is 0");
        let lint = Lint::new(LintKind::NoDelay, at, text)
            .beside(setting::WAITING, "nothing may wait")
            .remedy("raise server.limits.waiting_per_worker, or choose gcra, which never delays");
        return vec![lint];
    }
    let ended = routes.iter().filter_map(|(index, route)| {
        let timeout_ms = route.request_timeout?.as_millis();
        (timeout_ms <= u128::from(max_delay_ms)).then_some((index, route, timeout_ms))
    });
    let lint = |(index, route, timeout_ms): (&usize, &&Route, u128)| {
        let text = format!(
            "a request may wait {max_delay_ms} ms in `{name}`, and the route `{}` gives it \
             {timeout_ms} ms in all: it is charged, waits, and gets 504",
            route.name
        );
        Lint::new(LintKind::LongDelay, at, text)
            .beside(setting::route_timeout(*index), "the whole request has this time")
            .remedy("shorten `max_delay`, or raise the route's timeout")
    };
    ended.map(lint).collect()
}

/// A lint about a limit that allows more in flight than the upstreams take from this process. With
/// a store that proxies share, nobody knows how many there are.
fn in_flight(
    built: &ConfigBuild,
    limit: &PlacedLimit,
    at: &str,
    amount: u64,
    routes: &[(usize, &Route)],
) -> Option<Lint> {
    if !matches!(built.engine_settings, engine::Settings::Embedded(_)) || routes.is_empty() {
        return None;
    }
    let upstreams = routes.iter().filter_map(|(_, route)| match &route.action {
        RouteAction::Upstream(name) => Some(name),
        RouteAction::Respond(_) | RouteAction::Redirect(_) | RouteAction::Decide(_) => None,
    });
    let upstreams: BTreeSet<&String> = upstreams.collect();
    let room = upstreams.iter().filter_map(|name| {
        let (settings, _) = built.upstreams.get(*name)?;
        Some(settings.requests_per_worker as u64 * built.workers as u64)
    });
    let room: u64 = room.fold(0, u64::saturating_add);
    let first = upstreams.first().filter(|_| room < amount)?;
    let text = format!(
        "`{}` can never refuse: it allows {amount} requests at a time, and from {} workers the \
         upstream takes {room}; further ones get 503",
        limit.name, built.workers
    );
    let lint = Lint::new(LintKind::UselessLimit, at, text)
        .beside(setting::requests_per_worker(first), "each worker sends at most this many")
        .remedy("lower the quota, or raise requests_per_worker");
    Some(lint)
}
