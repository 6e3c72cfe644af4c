//! The path of one request. Read [`handle`] and [`serve`] first.
//!
//! A folder for each phase, in the order in which a request meets them: `receive` (authority, path,
//! fields, client), `route`, `decide` (facts, policy, limits, and their settling), `forward`,
//! `reply` and `record`. Each folder's `mod.rs` says what the phase does, what is known after it
//! and what it does not know. `context` is the state that travels with the request. `snapshot`
//! holds what all of it is built from (`settings`), and `live` swaps it under load. `trial` takes
//! requests along the same path without a connection.

mod receive;

mod route;

mod decide;

mod forward;

mod reply;

mod record;

mod context;
mod live;
mod settings;
mod snapshot;
mod trial;
mod verdict;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode, Version};

use crate::listen::{Handler, Peer};
use crate::policy::KnownFacts;
use crate::upstream::Upstream;
use crate::wire::{self, Body, InterimFilter, Request, Response};

use context::RequestContext;
use decide::admit::Admission;
use decide::{content, facts, settle, usage};
use forward::exchange::{Exchange, UpstreamExchange};
use forward::{trailers, tunnel};
use live::LocalSnapshot;
use receive::{hop, target};
use reply::refusal::{Check, Refusal};
use route::trie::Match;
use snapshot::{Action, DirectResponse, Route};

pub use live::{Live, Observers, SnapshotSource};
pub use record::account::{Account, LimitAccount};
pub use record::remembered::{ExplainedRequest, Insight, RememberedRequest, ShownFact};
pub use route::trie::{UnreachedCause, UnreachedRoute};
pub use settings::{
    Cors, EncodedSlash, Extras, FieldStyle, HeaderRules, Inspect, Oversized, PathParameters, Paths,
    Preflight, RefusalPage, Respond, Rewrite, RouteAction, RoutePolicy, RouteSettings, SecretField,
    Settings, Upgrade,
};
pub use snapshot::Snapshot;
pub use trial::{
    AdmittedRequest, BodyEnding, DecidedReplay, InvalidRequest, PendingReplay, ReplayDecision,
    ReplayReply, ReplayRequest, Trial, TrialClient, TrialReply, TrialRequest,
};
pub use verdict::{Cause, Rejection, Verdict};

/// The facts that a policy may ask to see, of a request and of its response.
#[must_use]
pub fn fact_names() -> KnownFacts {
    KnownFacts { request: facts::names(), response: settle::names() }
}

/// What listeners call.
#[derive(Clone, Debug)]
pub struct Proxy(Arc<Live>);

impl Proxy {
    /// A handler for listeners.
    #[must_use]
    pub fn new(live: Arc<Live>) -> Self {
        Self(live)
    }
}

impl Handler for Proxy {
    async fn call(&self, request: Request, peer: &Arc<Peer>) -> Response {
        // One snapshot until the headers are sent.
        let local = self.0.load();
        handle(&local, request, peer).await
    }

    fn unreadable(&self, status: StatusCode, why: &'static str, peer: &Arc<Peer>) -> Response {
        RequestContext::unreadable(&self.0.load(), peer).refuse(&Refusal::Unreadable(status, why))
    }
}

/// Answers one request. Whatever it began is finished at the reply's last byte, or when the client
/// goes away.
async fn handle(local: &LocalSnapshot, request: Request, peer: &Peer) -> Response {
    let mut context = RequestContext::begin(local, &request, peer);
    match serve(local, request, peer, &mut context, &UpstreamExchange).await {
        Ok(reply) => context.stream(reply),
        Err(refusal) => context.refuse(&refusal),
    }
}

/// Takes a request to its reply's head, or to the reason for a refusal.
async fn serve<X: Exchange>(
    local: &LocalSnapshot,
    mut request: Request,
    peer: &Peer,
    context: &mut RequestContext,
    exchange: &X,
) -> Result<Response, Refusal> {
    let snapshot = local.snapshot();

    // One authority and one path, in the normal form in which they are matched, shown to the policy
    // and forwarded.
    let authority = target::normalize(&mut request, context.client.https, peer, &snapshot.settings)
        .inspect_err(|_| context.note_path(target::split(request.target()).0))?;
    let ambiguous = snapshot.settings.underscores_in_headers;
    // Before the policy: it must see what the upstream will see.
    let upgrade = clean(&mut request, context, snapshot)?;
    let body = std::mem::take(&mut request.body);
    let target = target::Target::of(&request, &authority, snapshot.settings.paths, peer);
    context.note_path(target.path);

    let Match { route, parameters } = snapshot.find(target, &request)?;
    let route = context.enter_route(local, snapshot, route)?;
    context.note_origin(&request.fields);
    // Before any work is done for the request. Requests under way continue.
    if wire::buffered_bytes() > snapshot.settings.buffered_bytes_max {
        return Err(context.too_much_buffered());
    }

    let body = limited(body, snapshot, route, context);
    // Before anything is charged.
    if body.is_declared_too_large() {
        return Err(Refusal::BodyTooLarge { limit_bytes: route.body_bytes_max });
    }

    // The policy (Wasm), then the limits that it named (Lua).
    let bypasses = context.bypasses(&request, &body);
    let (body, read) = match content::reader(route) {
        None => (body, None),
        Some(reader) => reader.read(body, &request.fields, context.deadline(route)).await?,
    };
    let admission = Admission {
        route,
        request: &request,
        target,
        peer,
        parameters: &parameters,
        body: read.as_ref(),
        context: &mut *context,
    };
    let admitted = match bypasses {
        true => admission.bypass(exchange),
        false => admission.admit(&snapshot.limiter, exchange).await,
    };
    if context.is_remembered(&admitted) {
        let view = context.view(&request, target, peer, &parameters, read.as_ref());
        context.facts = route.decider.as_ref().map(|decider| decider.remembered(view));
    }
    let upstream_fields = admitted?;

    match &route.action {
        Action::Upstream(upstream) => {
            exchange.decided(context, route.extras.is_some()).await;
            let rewritten = route
                .extras
                .as_ref()
                .map_or(Ok(None), |extras| extras.path_and_query(target, &parameters))?;
            drop(parameters);
            forward::prepare(&mut request, &authority, peer, context);
            if let Some(extras) = &route.extras {
                extras.apply(&mut request, rewritten.as_deref(), ambiguous);
            }
            forward::set(&mut request.fields, &upstream_fields, ambiguous);
            let filter =
                trailers::filter(&mut request.fields, &route.touched, &upstream_fields, ambiguous);
            let body = usage::prepare(context, &mut request.fields, read, body)?;
            let body = body.filter_trailers(filter);
            if let Some(protocol) = upgrade {
                tunnel::request_upgrade(&route.upgrades, &mut request, &body, protocol, context);
            }
            let body = context.with_timeout(body, route.request_timeout);
            request.body = context.track_body(body);
            request.interim_filter =
                context.route.interim.clone().map(|it| it as Arc<dyn InterimFilter>);
            let client = context.client.network(snapshot.settings.ipv6_prefix);
            let sent = exchange.send(upstream, request, client, context).await;
            let reply = sent.map_err(|error| context.upstream_failed(&error))?;
            if !context.accepts_status(&reply) {
                return Err(context.upstream_failed(&upstream.protocol_error()));
            }
            context.by_upstream = true;
            Ok(reply)
        }
        Action::Respond(own) => Ok(respond(own, &request.method, context)),
    }
}

/// Takes out of the head what is for this connection alone. Returns the protocol that the client
/// asks to upgrade to.
fn clean(
    request: &mut Request,
    context: &mut RequestContext,
    snapshot: &Snapshot,
) -> Result<Option<hop::Text>, Refusal> {
    if hop::has_too_many_options(&request.fields) {
        return Err(Refusal::BadRequest(Check::Head.wrong(hop::TOO_MANY_OPTIONS)));
    }
    let ambiguous = snapshot.settings.underscores_in_headers;
    let upgrade = hop::strip_request(&mut request.fields, context.client.trusted, ambiguous)
        .filter(|_| request.version == Version::HTTP_11);
    context.keep_headers(&request.fields, &snapshot.limiter);
    if request.version == Version::HTTP_2 {
        hop::join_cookies(&mut request.fields);
    }
    Ok(upgrade)
}

/// The route's own reply.
fn respond(own: &DirectResponse, method: &Method, context: &RequestContext) -> Response {
    let mut fields = own.fields.clone();
    context.allow_origin(&mut fields);
    reply::complete(method, own.status, fields, own.body.clone())
}

/// Applies the route's limits to a request's body. A body that has arrived as a whole needs none.
fn limited(body: Body, snapshot: &Snapshot, route: &Route, context: &RequestContext) -> Body {
    if !body.is_streaming() {
        return body;
    }
    // A gRPC client may also send little for long: see `body_idle`.
    let rate = snapshot.settings.body_rate.filter(|_| streams_grpc(route, context).is_none());
    body.limit(route.body_bytes_max)
        .idle_timeout(body_idle(snapshot, route, context))
        .min_rate(rate)
}

/// A gRPC client may listen for long before it sends again, so the upstream's idle time applies.
fn body_idle(snapshot: &Snapshot, route: &Route, context: &RequestContext) -> Duration {
    streams_grpc(route, context).map_or(snapshot.settings.body_idle, |upstream| upstream.idle())
}

/// The upstream of a gRPC call. Without HTTP/2 it can't speak gRPC, whatever the client calls its
/// request: then a slow body is a slow body.
fn streams_grpc<'r>(route: &'r Route, context: &RequestContext) -> Option<&'r Arc<Upstream>> {
    match &route.action {
        Action::Upstream(upstream) if context.grpc && upstream.is_http2() => Some(upstream),
        _ => None,
    }
}
