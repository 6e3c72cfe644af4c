//! The route's limits on a request's body. Knows nothing of what is in it.

use std::sync::Arc;

use crate::proxy::receive::Received;
use crate::proxy::refusal::Refusal;
use crate::proxy::snapshot::{Action, Route, Snapshot};
use crate::upstream::Upstream;
use crate::wire::Body;

/// Applies the route's limits to a request's body. A body that has arrived as a whole needs none.
///
/// # Errors
/// It is declared to be longer than the route allows.
pub(in crate::proxy) fn limited(
    body: Body,
    snapshot: &Snapshot,
    route: &Route,
    received: &Received,
) -> Result<Body, Refusal> {
    if !body.is_streaming() {
        return whole(body, route);
    }
    // A gRPC client may listen for long before it sends again, so the upstream's idle time applies,
    // and no least rate.
    let grpc = streams_grpc(route, received);
    let idle = grpc.map_or(snapshot.settings.body_idle, |upstream| {
        route.overrides.as_ref().and_then(|it| it.idle).unwrap_or_else(|| upstream.idle())
    });
    let rate = snapshot.settings.body_rate.filter(|_| grpc.is_none());
    whole(body.limit(route.body_bytes_max).idle_timeout(idle).min_rate(rate), route)
}

/// The same for a call for a decision, which has no route yet. Its length is bounded where it is
/// read.
pub(in crate::proxy) fn call(body: Body, snapshot: &Snapshot) -> Body {
    if !body.is_streaming() {
        return body;
    }
    body.idle_timeout(snapshot.settings.body_idle).min_rate(snapshot.settings.body_rate)
}

fn whole(body: Body, route: &Route) -> Result<Body, Refusal> {
    if body.is_declared_too_large() {
        return Err(Refusal::BodyTooLarge { limit_bytes: route.body_bytes_max });
    }
    Ok(body)
}

/// The upstream of a gRPC call. Without HTTP/2 it can't speak gRPC, whatever the client calls its
/// request: then a slow body is a slow body.
fn streams_grpc<'r>(route: &'r Route, received: &Received) -> Option<&'r Arc<Upstream>> {
    match &route.action {
        Action::Upstream(upstream) if received.grpc && upstream.is_http2() => Some(upstream),
        _ => None,
    }
}
