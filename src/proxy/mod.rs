//! The path of one request. Read [`handle`] and [`serve`] first; each name in them is a file of
//! this room.
//!
//! In the order of a request: `target` and `path` (what is asked for), `client` (who asks), `hop`
//! (what concerns only the connection), `routes` and `trie` (who answers), `admit` with `facts`
//! (whether it may go on), `forward` with `rewrite`, `rules` and `extras` (the request as the
//! upstream gets it), `refusal` with `page` and `grpc`, `reply`, `fields` and `cors` (what the
//! client is told), `visit` with `settle`, `tally`, `access` and `tunnel` (what is left to do at
//! the end). `house` is what all of it is built from, `live` how it is swapped under load.

mod settings;

mod house;
mod live;

mod client;
mod hop;
mod path;
mod target;

mod routes;
mod trie;

mod admit;
mod facts;

mod extras;
mod forward;
mod rewrite;
mod rules;

mod cors;
mod fields;
mod grpc;
mod page;
mod refusal;
mod reply;

mod access;
mod id;
mod settle;
mod tally;
mod tunnel;
mod visit;

mod json;
mod text;

#[cfg(test)]
mod tests;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{StatusCode, Version};

use crate::listen::{Handler, Peer};
use crate::upstream::{Upstream, UpstreamError};
use crate::wire::{self, Body, Network, Request, Response};

use house::{Answer, Route};
use live::Local;
use refusal::Refusal;
use trie::Match;
use visit::{Timeout, Visit};

pub use house::House;
pub use live::Live;
pub use settings::{
    Cors, EncodedSlash, Extras, FieldStyle, HeaderRules, PathParameters, Paths, Preflight,
    RefusalPage, Respond, Rewrite, RoutePolicy, RouteSettings, SecretField, Settings, Target,
    Upgrade,
};

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
        // One snapshot until the headers are out.
        let local = self.0.load();
        handle(&local, request, peer).await
    }

    fn unreadable(&self, status: StatusCode, peer: &Arc<Peer>) -> Response {
        Visit::unread(&self.0.load(), peer).refuse(&Refusal::Unreadable(status))
    }
}

/// Answers one request, and sees to it that whatever it began is ended: at the reply's last byte,
/// or when the client goes away.
async fn handle(local: &Local, request: Request, peer: &Peer) -> Response {
    let mut visit = Visit::begin(local, &request, peer);
    match serve(local, request, peer, &mut visit).await {
        Ok(reply) => visit.stream(reply),
        Err(refusal) => visit.refuse(&refusal),
    }
}

/// A request's way to its reply's head, or to why there is none.
async fn serve(
    local: &Local,
    mut request: Request,
    peer: &Peer,
    visit: &mut Visit,
) -> Result<Response, Refusal> {
    let house = local.house();

    // One authority and one path, in the one form that is matched, shown to the policy and
    // forwarded.
    let authority = target::normalize(&mut request, visit.client.https, peer, &house.settings)
        .inspect_err(|_| visit.note_path(target::split(request.target()).0))?;
    // Before the policy looks: it sees what the upstream will see.
    let upgrade = hop::strip_request(
        &mut request.fields,
        visit.client.trusted,
        house.settings.underscores_in_headers,
    )
    .filter(|_| request.version == Version::HTTP_11);
    if request.version == Version::HTTP_2 {
        hop::join_cookies(&mut request.fields);
    }
    let body = std::mem::take(&mut request.body);
    let target = target::Target::of(&request, &authority, house.settings.paths);
    visit.note_path(target.path);

    let Match { route, parameters } = house.find(target, &request)?;
    let route = visit.enter(local, house, route)?;
    visit.note_origin(&request.fields);
    // Before anything is done for it. What is under way goes on.
    if wire::buffered_bytes() > house.settings.buffered_bytes_max {
        return Err(visit.crowded_out());
    }

    let body = bounded(body, house, route, visit);
    // Before anything is charged for it.
    if body.is_declared_too_large() {
        return Err(Refusal::BodyTooLarge { limit_bytes: route.body_bytes_max });
    }

    // The policy (Wasm), then the limits that it named (Lua).
    let upstream_fields = match visit.bypasses(&request, &body) {
        true => admit::uncounted(route, &request, target, peer, &parameters, visit)?,
        false => {
            admit::admit(&house.limiter, route, &request, target, peer, &parameters, visit).await?
        }
    };

    match &route.answer {
        Answer::Upstream(upstream) => {
            let rewritten = route
                .extras
                .as_ref()
                .map_or(Ok(None), |extras| extras.path_and_query(target, &parameters))?;
            drop(parameters);
            forward::prepare(&mut request, &authority, &visit.client, peer, &visit.id);
            if let Some(extras) = &route.extras {
                extras.apply(&mut request, rewritten.as_deref());
            }
            forward::set(&mut request.fields, &upstream_fields);
            if let Some(protocol) = upgrade {
                tunnel::ask(&route.upgrades, &mut request, &body, protocol, visit);
            }
            let body = visit.bound(body, route.request_timeout);
            request.body = visit.sending(body);
            let client = visit.client.network(house.settings.ipv6_prefix);
            let sent = match &visit.timeout {
                None => upstream.send_for(request, client).await,
                // Boxed: few routes have one, and every connection would carry its room.
                Some(timeout) => Box::pin(send_within(timeout, upstream, request, client)).await,
            };
            let reply = sent.map_err(|error| visit.not_replied(&error))?;
            if visit.understands(&reply) {
                Ok(reply)
            } else {
                Err(visit.not_replied(&upstream.misunderstood()))
            }
        }
        Answer::Respond(own) => {
            let mut fields = own.fields.clone();
            visit.open(&mut fields);
            Ok(reply::whole(&request.method, own.status, fields, own.body.clone()))
        }
    }
}

/// Has the upstream answer, within the time for the whole request.
async fn send_within(
    timeout: &Timeout,
    upstream: &Upstream,
    request: Request,
    client: Option<Network>,
) -> Result<Response, UpstreamError> {
    // Alive until its body was asked how far it has come.
    let sending = pin!(upstream.send_for(request, client));
    match tokio::time::timeout_at(timeout.deadline.into(), sending).await {
        Ok(Ok(reply)) => Ok(Response { body: reply.body.with_deadline(timeout.deadline), ..reply }),
        Ok(failed) => failed,
        Err(_) => Err(upstream.overdue(timeout.is_uploading())),
    }
}

/// A request's body within the route's bounds. One that has come whole needs none.
fn bounded(body: Body, house: &House, route: &Route, visit: &Visit) -> Body {
    if !body.is_streaming() {
        return body;
    }
    // A gRPC client may also send little for long: see `body_idle`.
    let rate = house.settings.body_rate.filter(|_| !visit.grpc);
    let sift = if house.settings.underscores_in_headers {
        hop::sift_trailers
    } else {
        hop::sift_trailers_without_underscores
    };
    body.limit(route.body_bytes_max)
        .idle_timeout(body_idle(house, route, visit))
        .min_rate(rate)
        .filter_trailers(sift)
}

/// A gRPC client may listen for long before it speaks again: its upstream's patience is its own.
fn body_idle(house: &House, route: &Route, visit: &Visit) -> Duration {
    match &route.answer {
        Answer::Upstream(upstream) if visit.grpc => upstream.idle(),
        _ => house.settings.body_idle,
    }
}
