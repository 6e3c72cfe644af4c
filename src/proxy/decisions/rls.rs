//! Calls of Envoy's rate limit service.

use std::pin::pin;
use std::sync::Arc;

use super::decide::decide;
use crate::listen::Peer;
use crate::proxy::callers::Caller;
use crate::proxy::context::RequestContext;
use crate::proxy::decide::descriptors::Shares;
use crate::proxy::live::LocalSnapshot;
use crate::proxy::receive::call::Call;
use crate::proxy::receive::call::api::Operation;
use crate::proxy::refusal::Refusal;
use crate::proxy::reply;
use crate::proxy::route::body;
use crate::wire::{Known, Request, Response};

/// Checks that a caller may say which limits are taken, and give units back, if it does.
fn overrides(call: &Call, caller: Option<&Caller>) -> Result<(), Refusal> {
    let Some(caller) = caller else { return Ok(()) };
    if call.descriptors.iter().any(|one| one.limit.is_some()) {
        caller.check_scope(Operation::Take)?;
    }
    if call.gives_back() { caller.check_scope(Operation::GiveBack) } else { Ok(()) }
}

/// How a call is written, and its answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Grpc,
    Json,
}

/// Answers a call.
pub(super) async fn answer(
    local: &LocalSnapshot,
    form: Form,
    mut request: Request,
    peer: &Arc<Peer>,
    mut context: Box<RequestContext>,
) -> Response {
    // Whatever content type it says.
    context.received.grpc &= form == Form::Grpc;
    let settings = &local.snapshot().settings;
    let caller = match settings.callers.admit(&request.fields, Operation::Decide) {
        Ok(caller) => caller.map(|caller| &**caller),
        Err(refusal) => return context.refuse(&refusal),
    };
    let body = std::mem::take(&mut request.body);
    let body = body::call(body, local.snapshot());
    let read = match form {
        Form::Grpc => Call::read(body, settings.buffered_bytes_max).await,
        Form::Json => pin!(Call::read_json(body, settings.buffered_bytes_max)).await,
    };
    let id = context.received.id.clone();
    let written = |answer| match form {
        Form::Grpc => reply::rls::grpc(answer),
        Form::Json => {
            let mut reply = reply::rls::json(answer);
            reply.fields.set(Known::RequestId, id.as_bytes());
            reply
        }
    };
    let (call, decided) = match read {
        Ok(call) => match overrides(&call, caller) {
            Ok(()) => {
                let by = (&**peer, caller);
                let decided = pin!(decide(local, &call, &mut request, by, &mut context)).await;
                (Some(call), decided)
            }
            Err(refusal) => (None, (Shares::new(), Err(refusal))),
        },
        Err(refusal) => (None, (Shares::new(), Err(refusal))),
    };
    let call = call.as_ref();
    match decided {
        (shares, Ok(fields)) => {
            let answer = reply::rls::answer(call, &shares, context.reply_to(), Ok(&fields));
            context.answer_call(None, written(answer))
        }
        (shares, Err(refusal)) if is_answer(&refusal, form) => {
            // Not an error of the call: its answer, with what an HTTP client is told.
            context.received.grpc = false;
            let answer = reply::rls::answer(call, &shares, context.reply_to(), Err(&refusal));
            context.answer_call(Some(&refusal), written(answer))
        }
        (_, Err(refusal)) if form == Form::Json => context.refuse(&refusal),
        (_, Err(refusal)) => super::refuse(context, &refusal),
    }
}

/// Whether a refusal is an answer, and not an error of the call. What a client of the caller can
/// make too large is one: Envoy lets a request pass whose call fails, unless it is told not to.
fn is_answer(refusal: &Refusal, form: Form) -> bool {
    match refusal {
        Refusal::TooMany | Refusal::Denied => true,
        Refusal::BodyTooLarge { .. } => form == Form::Grpc,
        _ => false,
    }
}
