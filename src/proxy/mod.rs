//! The path of one request. Read [`handle`] and [`serve`] first; each name in them is a file of this room.
//!
//! In the order of a request: `target` and `path` (what is asked for), `client` (who asks), `hop` (what concerns only the connection), `routes`
//! and `trie` (who answers), `admit` with `facts` (whether it may go on), `forward` with `rewrite`, `rules` and `extras` (the request as the upstream gets it), `refusal` with `page`
//! and `grpc`, `reply`, `fields` and `cors` (what the client is told), `visit` with `settle`, `tally`, `access` and `tunnel` (what is left to do at the end). `house` is what all of it is built from,
//! `live` how it is swapped under load.

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

use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{StatusCode, Version};
use hyper::body::Incoming;

use crate::listen::{Handler, Peer};
use crate::wire::{Body, Request, Response};

use forward::PolicyFields;
use house::Answer;
use live::Local;
use refusal::Refusal;
use trie::Match;
use visit::Visit;

pub use house::House;
pub use live::Live;
pub use settings::{
    Cors, Extras, FieldStyle, HeaderRules, Preflight, RefusalPage, Respond, Rewrite, RoutePolicy, RouteSettings, Settings, Target, Upgrade,
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
    async fn call(&self, request: http::Request<Incoming>, peer: &Arc<Peer>) -> Response {
        // One snapshot until the headers are out.
        let local = self.0.load();
        let http2 = request.version() == Version::HTTP_2;
        handle(&local, request.map(|body| if http2 { Body::incoming(body).lingering() } else { Body::incoming(body) }), peer).await
    }

    fn unreadable(&self, status: StatusCode, peer: &Arc<Peer>) -> Response {
        Visit::unread(&self.0.load(), peer).refuse(&Refusal::Unreadable(status))
    }
}

/// Answers one request, and sees to it that whatever it began is ended: at the reply's last byte, or when the client goes away.
async fn handle(local: &Local, request: Request, peer: &Peer) -> Response {
    let (mut head, body) = request.into_parts();
    let mut visit = Visit::begin(local, &head, peer);
    match serve(local, &mut head, body, peer, &mut visit).await {
        Ok(reply) => visit.stream(reply),
        Err(refusal) => visit.refuse(&refusal),
    }
}

/// A request's way to its reply's head, or to why there is none.
async fn serve(local: &Local, head: &mut Parts, body: Body, peer: &Peer, visit: &mut Visit) -> Result<Response, Refusal> {
    let house = local.house();

    // One authority and one path, in the one form that is matched, shown to the policy and forwarded.
    let target = target::read(head, visit.client.https, peer, house.settings.uri_bytes_max)?;
    visit.asked = Some(target.path_and_query.clone());
    // Before the policy looks: it sees what the upstream will see.
    let upgrade = hop::strip_request(&mut head.headers, visit.client.trusted)?.filter(|_| head.version == Version::HTTP_11);
    if head.version == Version::HTTP_2 {
        hop::join_cookies(&mut head.headers);
    }

    let Match { route, parameters } = house.find(&target, head)?;
    let route = visit.enter(local, house, route)?;
    visit.note_origin(&head.headers);

    let body = body.limit(route.body_bytes_max).idle_timeout(body_idle(house, route, visit)).sift_trailers(hop::sift_trailers);
    // Before anything is charged for it.
    if body.is_declared_too_large() {
        return Err(Refusal::BodyTooLarge { limit_bytes: route.body_bytes_max });
    }

    // The policy (Wasm), then the limits that it named (Lua).
    let upstream_fields = match visit.bypasses(head, &body) {
        true => PolicyFields::new(),
        false => admit::admit(&house.limiter, route, head, &target, peer, &parameters, visit).await?,
    };

    match &route.answer {
        Answer::Upstream(upstream) => {
            let rewritten = route.extras.as_ref().map_or(Ok(None), |extras| extras.path_and_query(&target, &parameters))?;
            drop(parameters);
            forward::prepare(head, target, &visit.client, peer, &visit.id, upstream_fields.len());
            if let Some(extras) = &route.extras {
                extras.apply(head, rewritten);
            }
            forward::set(&mut head.headers, &upstream_fields);
            if let Some(protocol) = upgrade {
                tunnel::ask(&route.upgrades, head, &body, protocol, visit);
            }
            let head = std::mem::replace(head, Request::default().into_parts().0);
            let request = Request::from_parts(head, visit.sending(body));
            let reply = upstream.send(request).await.map_err(|error| visit.not_replied(&error))?;
            if visit.understands(&reply) { Ok(reply) } else { Err(visit.not_replied(&upstream.misunderstood())) }
        }
        Answer::Respond(own) => {
            let mut headers = own.headers.clone();
            visit.open(&mut headers);
            Ok(reply::whole(&head.method, own.status, headers, own.body.clone()))
        }
    }
}

/// A gRPC client may listen for long before it speaks again: its upstream's patience is its own.
fn body_idle(house: &House, route: &house::Route, visit: &Visit) -> Duration {
    match &route.answer {
        Answer::Upstream(upstream) if visit.grpc => upstream.idle(),
        _ => house.settings.body_idle,
    }
}
