//! What comes to a listener that serves checks of Envoy's external authorization over gRPC. A check
//! has the request in it, which is decided like one of Weir's own, and nothing is forwarded.

use std::pin::pin;

use http::Method;

use crate::listen::{Peer, Serves};
use crate::wire::{Request, Response};

use super::context::RequestContext;
use super::live::LocalSnapshot;
use super::receive::call::check::{CHECK, read};
use super::receive::target;
use super::refusal::Refusal;
use super::reply;
use super::route::body;
use super::serve;

/// Answers a check.
pub(super) async fn handle(local: &LocalSnapshot, mut request: Request, peer: &Peer) -> Response {
    let mut context = RequestContext::begin(local, &request, peer);
    context.received.note_call(&request, local);
    let (path, _) = target::split(request.target());
    if request.method != Method::POST || path != CHECK || !context.received.grpc {
        return context.refuse(&Refusal::NotFound);
    }
    let buffered_max = local.snapshot().settings.buffered_bytes_max;
    let content = body::call(std::mem::take(&mut request.body), local.snapshot());
    let mut asked = match read(content, buffered_max).await {
        Ok(asked) => asked,
        // An answer: Envoy may be told to let a request pass whose check fails.
        Err(refusal @ (Refusal::BadRequest(_) | Refusal::BodyTooLarge { .. })) => {
            context.received.grpc = false;
            return reply::check::denied(&context.refuse(&refusal));
        }
        Err(refusal) => {
            let mut reply = context.refuse(&refusal);
            reply.fields.set("grpc-status", reply::grpc::INVALID_ARGUMENT);
            return reply;
        }
    };
    // From here on it is the request that the check is about.
    context.restart(local, &asked, peer);
    let admitted = pin!(serve::admit(local, &mut asked, peer, &mut context, |_| {})).await;
    match admitted {
        Ok(mut admitted) => {
            let reply = serve::own_answer(&mut admitted, &context);
            let reply = context.answer_whole(reply);
            if reply.status.is_success() {
                reply::check::passes(&admitted.fields, &reply)
            } else {
                reply::check::denied(&reply)
            }
        }
        Err(refusal) => reply::check::denied(&context.refuse(&refusal)),
    }
}

/// Whether a listener serves checks.
pub(super) fn are_served(local: &LocalSnapshot, listener: usize) -> bool {
    local.snapshot().settings.serves(listener) == Serves::ExtAuthzGrpc
}
