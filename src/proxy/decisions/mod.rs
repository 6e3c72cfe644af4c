//! What comes to a listener that serves decisions: calls of Envoy's rate limit service (`rls`) and
//! of the HTTP API (`api`), streams of Envoy's quota service (`quota`), and questions about Weir's
//! health.
//!
//! A call is decided by the policy of its domain's route, along the same phases as a request, and
//! nothing is forwarded (`decide`). `held` has the decisions whose end is reported later, `answers`
//! the answers to calls that may be sent again, and `streams` those that are open; together they
//! are the `state`. `pieces` is the reply to a stream.

mod answers;
mod api;
mod decide;
pub(super) mod held;
mod pieces;
mod quota;
mod reflection;
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
use super::receive::call::health::{HEALTH_CHECK, is_about_us};
use super::receive::call::json::JSON_CALL;
use super::receive::call::quota::STREAM_QUOTAS;
use super::receive::call::reflection::{REFLECT, REFLECT_ALPHA};
use super::receive::call::rls::SHOULD_RATE_LIMIT;
use super::receive::target;
use super::refusal::{CallError, Refusal};
use super::reply;
use super::reply::grpc::{INVALID_ARGUMENT, NOT_FOUND};
use super::route::body;
use rls::Form;
use state::CallState;

/// The page of Weir's health, as envoyproxy/ratelimit has it.
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
        (&Method::POST, REFLECT | REFLECT_ALPHA, _) if context.received.grpc => {
            reflection::answer(local, state, request, context)
        }
        (&Method::POST, HEALTH_CHECK, _) if context.received.grpc => {
            pin!(health(local, state, request, context)).await
        }
        (&Method::POST, _, Some(operation)) => {
            pin!(api::answer(local, state, operation, request, peer, context)).await
        }
        (_, _, Some(_)) => context.refuse(&Refusal::MethodNotAllowed("POST".to_owned())),
        (&Method::GET | &Method::HEAD, HEALTH, _) => {
            let (status, text) = match state.is_leaving() {
                true => (StatusCode::SERVICE_UNAVAILABLE, &b"shutting down\n"[..]),
                false => (StatusCode::OK, &b"OK\n"[..]),
            };
            context.answer_call(None, reply::complete(is_head, status, Fields::new(), text))
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

/// Answers a call of gRPC's health service.
async fn health(
    local: &LocalSnapshot,
    state: &CallState,
    mut request: Request,
    context: Box<RequestContext>,
) -> Response {
    let body = body::call(std::mem::take(&mut request.body), local.snapshot());
    let buffered_bytes_max = local.snapshot().settings.buffered_bytes_max;
    match is_about_us(body, buffered_bytes_max).await {
        Ok(true) => context.answer_call(None, reply::rls::health(!state.is_leaving())),
        Ok(false) => {
            let mut reply = context.refuse(&Refusal::NotFound);
            reply.fields.set("grpc-status", NOT_FOUND);
            reply
        }
        Err(refusal) => refuse(context, &refusal),
    }
}

/// Refuses a call of gRPC.
fn refuse(context: Box<RequestContext>, refusal: &Refusal) -> Response {
    let status = match refusal {
        Refusal::BadRequest(_)
        | Refusal::BodyTooLarge { .. }
        | Refusal::Call(CallError::Malformed(_)) => Some(INVALID_ARGUMENT),
        Refusal::Call(CallError::NoDomain) => Some(NOT_FOUND),
        _ => None,
    };
    let mut reply = context.refuse(refusal);
    if let Some(status) = status {
        reply.fields.set("grpc-status", status);
    }
    reply
}

/// Whether a listener serves decisions.
pub(super) fn are_served(local: &LocalSnapshot, listener: usize) -> bool {
    local.snapshot().settings.serves(listener) == Serves::Decisions
}
