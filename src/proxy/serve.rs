//! A request on its way through the phases, to the head of its reply: [`handle`], [`admit`] and
//! [`answer`].

use std::pin::pin;

use crate::clock;
use crate::listen::{Peer, Serves};
use crate::upstream::Sender;
use crate::wire::{self, Body, Request, Response};

use super::context::RequestContext;
use super::decide::Decided;
use super::decide::admit::Question;
use super::decide::content::ReadBody;
use super::decide::facts::{Facts, RequestView};
use super::decide::policy_fields::{self, PolicyFields};
use super::forward::Admitted;
use super::forward::exchange::{Dispatch, Exchange, UpstreamExchange};
use super::forward::sender;
use super::live::LocalSnapshot;
use super::receive::target::Target;
use super::receive::{self, NormalHead, Received, forward_auth, unrouted};
use super::refusal::Refusal;
use super::route::maintenance::Maintenance;
use super::snapshot::{Action, Route};
use super::{reply, route};

/// Answers one request. Whatever it began is finished at the reply's last byte, or when the client
/// goes away.
pub(super) async fn handle(local: &LocalSnapshot, mut request: Request, peer: &Peer) -> Response {
    let mut context = RequestContext::begin(local, &request, peer);
    // What is awaited here and below is pinned where it is made: to await it by value would move
    // its state, which is kilobytes, at each level once more.
    let admitted = pin!(admit(local, &mut request, peer, &mut context, |_| {})).await;
    let served = match admitted {
        Ok(mut admitted) => {
            context.note_offer(&request, admitted.snapshot.settings.buffered_bytes_max);
            pin!(answer(request, &mut admitted, peer, &mut context, &UpstreamExchange)).await
        }
        Err(refusal) => Err(refusal),
    };
    match served {
        Ok(reply) => context.stream(reply),
        Err(refusal) => context.refuse(&refusal),
    }
}

/// Takes a request to where it can be sent: receive, route, decide, and what is changed in its path
/// and its body. What the policy is shown goes to `watch`.
pub(super) async fn admit<'l>(
    local: &'l LocalSnapshot,
    request: &mut Request,
    peer: &Peer,
    context: &mut RequestContext,
    watch: impl FnOnce(&Facts<'_>),
) -> Result<Admitted<'l>, Refusal> {
    let snapshot = local.snapshot();
    let head = receive::normalize(request, &mut context.received, peer, local)?;
    let body = std::mem::take(&mut request.body);
    let target = Target::of(request, &head.authority, snapshot.settings.paths, peer);
    if let Some(unrouted) = &snapshot.settings.unrouted {
        Box::pin(unrouted::answer(unrouted, target, &context.received, peer)).await?;
    }

    let received = &context.received;
    let (route, found, routed) =
        route::find(local, target, request, received, |snapshot, found| {
            let view = bodiless_view(request, target, peer, received, ("", &found.parameters));
            snapshot.variant(found.route, view)
        })?;
    context.routed = routed;
    // Before any work is done for the request. Requests under way continue.
    if wire::buffered_bytes() > snapshot.settings.buffered_bytes_max {
        return Err(Refusal::TooMuchBuffered);
    }
    let body = route::body::limited(body, snapshot, route, &context.received)?;
    let sends = matches!(route.action, Action::Upstream(_));
    let rewritten = destination(route, target, &context.received, &found.parameters)?;

    // The policy (Wasm), then the limits that it named (Lua).
    let (body, read, fields) = match &route.decider {
        // Weir's own answers are no more work than a refusal.
        None if sends && context.routed.handle.turns_away(route.priority) => {
            return Err(Refusal::Overloaded);
        }
        None => (body, None, PolicyFields::new()),
        Some(decider) => {
            let bypasses = context.routed.bypasses(request, &body);
            // Before a body is read, and Wasm runs, where the policy leaves priorities to the
            // route.
            if !bypasses
                && !decider.policy.sets_priorities()
                && context.routed.handle.turns_away(route.priority)
            {
                return Err(Refusal::Overloaded);
            }
            let upgrade = upgrade(&head, route, request, &body);
            let (body, read) = match &decider.reader {
                None => (body, None),
                Some(reader) => {
                    let started = context.received.started;
                    let deadline = route.request_timeout.map(|timeout| started + timeout);
                    reader.read(body, &request.fields, deadline).await?
                }
            };
            let RequestContext { received, routed, decided, .. } = &mut *context;
            let (received, routed) = (&*received, &*routed);
            let decided = decided.insert(Decided::default());
            let question = |request| Question {
                decider,
                request,
                target,
                peer,
                parameters: &found.parameters,
                upgrade,
                body: read.as_ref(),
                descriptor: None,
                is_sent: sends,
                received,
                routed,
            };
            let admitted = match bypasses {
                true => question(request).bypass(decided, watch),
                false => pin!(question(request).decide(&snapshot.limiter, decided, watch)).await,
            };
            if routed.sampled || (admitted.is_err() && routed.handle.insight.remembers()) {
                question(request).keep_facts(decided);
            }
            (body, read, admitted?)
        }
    };
    let owner = route.host_query.as_ref().and_then(|query| {
        let of = (context.routed.handle.name.as_str(), &*found.parameters);
        query.of(bodiless_view(request, target, peer, &context.received, of))
    });
    drop(found);
    let (body, is_edited) = edited(body, read, context.decided.as_mut());
    let NormalHead { authority, upgrade } = head;
    Ok(Admitted { snapshot, route, authority, upgrade, body, is_edited, fields, owner, rewritten })
}

/// The body with what the policy has set in it, and whether it has set anything.
#[inline]
fn edited(body: Body, read: Option<ReadBody>, decided: Option<&mut Decided>) -> (Body, bool) {
    match (decided.and_then(|decided| decided.edited.take()), read) {
        (Some(edited), Some(read)) => (read.replaced(edited), true),
        _ => (body, false),
    }
}

/// The protocol that a request asks to switch to, if it would be sent on with it: what is known
/// before its body is read, since with one nothing is upgraded.
fn upgrade<'r>(
    head: &NormalHead,
    route: &'r Route,
    request: &Request,
    body: &Body,
) -> Option<&'r str> {
    let protocol = head.upgrade.as_deref()?;
    let sends = matches!(route.action, Action::Upstream(_));
    route.upgrades.allowed(request, body, protocol).filter(|_| sends)
}

/// The upstream's path, if it is not the client's; or where a route redirects to.
///
/// # Errors
/// The route is being worked on, or the path would be too long.
fn destination(
    route: &Route,
    target: Target<'_>,
    received: &Received,
    parameters: &[&str],
) -> Result<Option<String>, Refusal> {
    if route.maintenance.as_ref().is_some_and(Maintenance::is_on) {
        return Err(Refusal::Maintenance);
    }
    match (&route.extras, &route.action) {
        (Some(extras), Action::Upstream(_)) => extras.path_and_query(target, parameters),
        (_, Action::Redirect(to)) => {
            to.location(target, received.client.https, parameters).map(Some)
        }
        _ => Ok(None),
    }
}

/// What facts that need no body are read from.
fn bodiless_view<'a>(
    request: &'a Request,
    target: Target<'a>,
    peer: &'a Peer,
    received: &'a Received,
    (route, parameters): (&'a str, &'a [&'a str]),
) -> RequestView<'a> {
    RequestView {
        request,
        target,
        client: &received.client,
        peer,
        route,
        parameters,
        upgrade: None,
        body: None,
        descriptor: None,
    }
}

/// Answers an auth request of another proxy.
#[cold]
fn answer_auth_request(admitted: &mut Admitted<'_>, context: &RequestContext) -> Response {
    let mut reply = own_answer(admitted, context);
    if reply.status.is_success() {
        policy_fields::set(&mut reply.fields, &admitted.fields, false);
    } else {
        forward_auth::map_status(context.received.serves, &mut reply);
    }
    reply
}

/// What becomes of a request that nobody sends on from here. The limits admit it; a route's own
/// response may still refuse it.
pub(super) fn own_answer(admitted: &mut Admitted<'_>, context: &RequestContext) -> Response {
    let to = context.reply_to();
    match &admitted.route.action {
        Action::Upstream(_) | Action::Decide => reply::admit(to),
        Action::Respond(own) => reply::respond(own, to),
        Action::Redirect(redirect) => {
            let location = admitted.rewritten.take().unwrap_or_default();
            reply::redirect(redirect.status, &location, to)
        }
    }
}

/// Sends an admitted request to its upstream, or answers it with the route's own reply. Returns the
/// reply's head.
pub(super) async fn answer<X: Exchange>(
    mut request: Request,
    admitted: &mut Admitted<'_>,
    peer: &Peer,
    context: &mut RequestContext,
    exchange: &X,
) -> Result<Response, Refusal> {
    let upstream = match &admitted.route.action {
        _ if context.received.serves != Serves::Requests => {
            return Ok(answer_auth_request(admitted, context));
        }
        Action::Upstream(upstream) => upstream,
        Action::Respond(own) => return Ok(reply::respond(own, context.reply_to())),
        // No request is for its route.
        Action::Decide => return Err(Refusal::NotFound),
        Action::Redirect(to) => {
            let location = admitted.rewritten.take().unwrap_or_default();
            return Ok(reply::redirect(to.status, &location, context.reply_to()));
        }
    };
    let RequestContext { received, routed, decided, sent, .. } = context;
    let decided = decided.as_ref();
    let sent = sent.insert(admitted.prepare(&mut request, peer, (received, routed, decided)));
    let client = received.client.network(admitted.snapshot.settings.ipv6_prefix);
    let route = admitted.route;
    // A proxy that has named nobody is not the client.
    let names = upstream.names_clients() && !peer.is_unnamed;
    let ends = names.then_some((peer.address, peer.local));
    let sender = Sender {
        affinity: admitted.owner,
        ends: ends.as_ref(),
        overrides: route.overrides.as_ref(),
        ..sender::of(upstream, client, decided, route.priority)
    };
    let sticky = upstream.sticky();
    if sticky.is_some() {
        sent.reached.get_or_insert_default();
    }
    // Little happens between the decision and this. Saves a look at the clock.
    let began = decided.and_then(|decided| decided.at).unwrap_or_else(clock::monotonic);
    let dispatch = Dispatch { sender, began, mirror: route.mirror.as_deref() };
    let reply = pin!(exchange.send(upstream, request, dispatch, sent)).await;
    let reply = sent.replied(upstream, reply)?;
    sent.host_cookie = sticky.and_then(|cookie| {
        let way = (admitted.owner, sent.reached.as_ref());
        sender::host_cookie(cookie, way, received.client.https)
    });
    Ok(reply)
}
