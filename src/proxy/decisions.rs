//! What comes to a listener that serves decisions: calls of Envoy's rate limit service, and
//! questions about Weir's health. A call is decided by the policy of its domain's route, along the
//! same phases as a request, and nothing is forwarded.

use std::pin::pin;

use http::{Method, StatusCode};

use crate::listen::{Peer, Serves};
use crate::wire::{Fields, Request, Response};

use super::context::RequestContext;
use super::decide::Decided;
use super::decide::admit::Question;
use super::decide::descriptors::{self, Decisions, Shares};
use super::live::LocalSnapshot;
use super::receive::rls::{Call, SHOULD_RATE_LIMIT};
use super::receive::target::{self, Authority, Target};
use super::refusal::Refusal;
use super::reply;
use super::route::{Routed, body};

/// The path of gRPC's own health service.
const GRPC_HEALTH: &str = "/grpc.health.v1.Health/Check";
/// The same over HTTP, as envoyproxy/ratelimit has it.
const HEALTH: &str = "/healthcheck";
/// The statuses of gRPC for what its mapping from HTTP has no word for: what was sent is wrong, and
/// nothing of that name is here.
const INVALID_ARGUMENT: &str = "3";
const NOT_FOUND: &str = "5";

/// Answers a call.
pub(super) async fn handle(local: &LocalSnapshot, mut request: Request, peer: &Peer) -> Response {
    let mut context = RequestContext::begin(local, &request, peer);
    context.received.note_call(&request, local);
    let (path, _) = target::split(request.target());
    match (&request.method, path) {
        (&Method::POST, SHOULD_RATE_LIMIT) if context.received.grpc => {}
        (&Method::POST, GRPC_HEALTH) if context.received.grpc => {
            return context.answer_call(None, reply::rls::healthy());
        }
        (&Method::GET | &Method::HEAD, HEALTH) => {
            let is_head = context.received.is_head;
            let ok = reply::complete(is_head, StatusCode::OK, Fields::new(), &b"OK\n"[..]);
            return context.answer_call(None, ok);
        }
        _ => return context.refuse(&Refusal::NotFound),
    }
    let buffered_max = local.snapshot().settings.buffered_bytes_max;
    let body = std::mem::take(&mut request.body);
    let read = Call::read(body::call(body, local.snapshot()), buffered_max).await;
    let decided = match read {
        Ok(call) => pin!(decide(local, &call, &mut request, peer, &mut context)).await,
        Err(refusal) => (Shares::new(), Err(refusal)),
    };
    match decided {
        (shares, Ok(fields)) => {
            let reply = reply::rls::answer(&shares, context.reply_to(), Ok(&fields));
            context.answer_call(None, reply)
        }
        (shares, Err(refusal @ (Refusal::TooMany | Refusal::Denied))) => {
            // Not an error of the call: its answer, with what an HTTP client is told.
            context.received.grpc = false;
            let reply = reply::rls::answer(&shares, context.reply_to(), Err(&refusal));
            context.answer_call(Some(&refusal), reply)
        }
        (_, Err(refusal)) => {
            let status = match refusal {
                Refusal::BadRequest(_) | Refusal::BodyTooLarge { .. } => Some(INVALID_ARGUMENT),
                Refusal::NotFound => Some(NOT_FOUND),
                _ => None,
            };
            let mut reply = context.refuse(&refusal);
            if let Some(status) = status {
                reply.fields.set("grpc-status", status);
            }
            reply
        }
    }
}

/// Decides a call by the policy of its domain's route. The shares are those of its descriptors in
/// what was decided.
async fn decide(
    local: &LocalSnapshot,
    call: &Call,
    request: &mut Request,
    peer: &Peer,
    context: &mut RequestContext,
) -> Decisions {
    let snapshot = local.snapshot();
    let index = snapshot.domain(&call.domain);
    let found = index.and_then(|index| Some((snapshot.route(index)?, local.handle(index)?)));
    let Some((route, handle)) = found else { return (Shares::new(), Err(Refusal::NotFound)) };
    context.routed = Routed::on(handle, &context.received, &request.fields);
    if route.maintenance {
        return (Shares::new(), Err(Refusal::Maintenance));
    }
    // Each route with a domain has a policy.
    let Some(decider) = &route.decider else { return (Shares::new(), Err(Refusal::NotFound)) };
    if !decider.policy.sets_priorities() && context.routed.handle.turns_away(route.priority) {
        return (Shares::new(), Err(Refusal::Overloaded));
    }
    let authority = Authority::default();
    let RequestContext { received, routed, decided, .. } = &mut *context;
    let decided = decided.insert(Decided::default());
    let question = |request| Question {
        decider,
        request,
        target: Target::of(request, &authority, snapshot.settings.paths, peer),
        peer,
        parameters: &[],
        body: None,
        descriptor: None,
        is_sent: false,
        received,
        routed,
    };
    let limiter = &snapshot.limiter;
    let answered = pin!(descriptors::decide(question(request), call, limiter, decided)).await;
    if routed.sampled || (answered.1.is_err() && routed.handle.insight.remembers()) {
        question(request).keep_facts_of(call, decided);
    }
    answered
}

/// Whether a listener serves decisions.
pub(super) fn are_served(local: &LocalSnapshot, listener: usize) -> bool {
    let serves = local.snapshot().settings.serves.as_ref();
    serves.is_some_and(|all| all.get(listener) == Some(&Serves::Decisions))
}
