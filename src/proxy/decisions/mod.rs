//! What comes to a listener that serves decisions: calls of Envoy's rate limit service (`rls`) and
//! of the HTTP API (`api`), streams of Envoy's quota service (`quota`), and questions about Weir's
//! health.
//!
//! A call is decided by the policy of its domain's route, along the same phases as a request, and
//! nothing is forwarded (`decide`). `held` has the decisions whose end is reported later, `answers`
//! the answers to calls that may be sent again, and `streams` those that are open; together they
//! are the `state`.

mod answers;
mod api;
mod decide;
pub(super) mod held;
mod quota;
mod rls;
pub(super) mod state;
pub(super) mod streams;

use std::pin::pin;
use std::sync::Arc;

use http::{Method, StatusCode};

use crate::listen::{Peer, Serves};
use crate::wire::{Fields, Known, Request, Response};

use super::context::RequestContext;
use super::live::{Live, LocalSnapshot};
use super::receive::call::api::Operation;
use super::receive::call::json::JSON_CALL;
use super::receive::call::quota::STREAM_QUOTAS;
use super::receive::call::rls::SHOULD_RATE_LIMIT;
use super::receive::target;
use super::refusal::Refusal;
use super::reply;
use rls::Form;

/// The path of gRPC's own health service.
const GRPC_HEALTH: &str = "/grpc.health.v1.Health/Check";
/// The same over HTTP, as envoyproxy/ratelimit has it.
const HEALTH: &str = "/healthcheck";
/// The description of the HTTP API.
const OPENAPI: &str = "/v1/openapi.json";
const OPENAPI_DOCUMENT: &str = include_str!("../../../docs/openapi.json");

/// Answers a call.
pub(super) async fn handle(
    local: &Arc<LocalSnapshot>,
    live: &Arc<Live>,
    request: Request,
    peer: &Arc<Peer>,
) -> Response {
    let state = live.calls();
    let mut context = RequestContext::begin(local, &request, peer);
    context.received.note_call(&request, local);
    let (path, _) = target::split(request.target());
    let operation = Operation::at(path);
    let is_head = context.received.is_head;
    match (&request.method, path, operation) {
        (&Method::POST, SHOULD_RATE_LIMIT, _) if context.received.grpc => {
            pin!(rls::answer(local, Form::Grpc, request, peer, context)).await
        }
        (&Method::POST, JSON_CALL, _) => {
            pin!(rls::answer(local, Form::Json, request, peer, context)).await
        }
        (_, JSON_CALL, _) => context.refuse(&Refusal::MethodNotAllowed("POST".to_owned())),
        (&Method::POST, STREAM_QUOTAS, _) if context.received.grpc => {
            quota::answer(live, state, request, peer, context)
        }
        (&Method::POST, GRPC_HEALTH, _) if context.received.grpc => {
            context.answer_call(None, reply::rls::healthy())
        }
        (&Method::POST, _, Some(operation)) => {
            pin!(api::answer(local, state, operation, request, peer, context)).await
        }
        (_, _, Some(_)) => context.refuse(&Refusal::MethodNotAllowed("POST".to_owned())),
        (&Method::GET | &Method::HEAD, HEALTH, _) => {
            let ok = reply::complete(is_head, StatusCode::OK, Fields::new(), &b"OK\n"[..]);
            context.answer_call(None, ok)
        }
        (&Method::GET | &Method::HEAD, OPENAPI, _) => {
            let mut fields = Fields::new();
            fields.set(Known::ContentType, reply::api::JSON);
            let document = OPENAPI_DOCUMENT.as_bytes();
            let reply = reply::complete(is_head, StatusCode::OK, fields, document);
            context.answer_call(None, reply)
        }
        _ => context.refuse(&Refusal::NotFound),
    }
}

/// Whether a listener serves decisions.
pub(super) fn are_served(local: &LocalSnapshot, listener: usize) -> bool {
    local.snapshot().settings.serves(listener) == Serves::Decisions
}
