//! The stream of gRPC's reflection: a client learns which services are here, and their messages.

use std::sync::Arc;
use std::time::Duration;

use http::Version;
use tokio::sync::Notify;
use tokio::sync::mpsc::Sender;

use super::pieces::{self, Piece};
use super::state::CallState;
use crate::proxy::context::RequestContext;
use crate::proxy::live::LocalSnapshot;
use crate::proxy::receive::call::api::Operation;
use crate::proxy::receive::call::reflection::Questions;
use crate::proxy::refusal::Refusal;
use crate::proxy::reply::grpc;
use crate::wire::{Request, Response};

/// How long a stream may be open without a question.
const IDLE_MAX: Duration = Duration::from_mins(1);
/// How long the end of a stream may wait to be sent.
const END_MAX: Duration = Duration::from_secs(1);

/// Begins a stream.
pub(super) fn answer(
    local: &LocalSnapshot,
    state: &CallState,
    mut request: Request,
    context: Box<RequestContext>,
) -> Response {
    let settings = &local.snapshot().settings;
    if let Err(refusal) = settings.callers.admit(&request.fields, Operation::Decide) {
        return context.refuse(&refusal);
    }
    if request.version != Version::HTTP_2 {
        return context.refuse(&Refusal::NotFound);
    }
    let questions = Questions::of(std::mem::take(&mut request.body), settings.buffered_bytes_max);
    let (pieces, reply) = pieces::reply();
    // It ends when the reply's body is dropped, as nobody receives its pieces then.
    drop(tokio::spawn(run(questions, pieces, state.streams.begin())));
    context.answer_call(None, reply)
}

async fn run(mut questions: Questions, pieces: Sender<Piece>, stopping: Arc<Notify>) {
    let (status, message) = loop {
        let next = tokio::select! {
            biased;
            () = stopping.notified() => break (grpc::UNAVAILABLE, "this proxy stops"),
            () = pieces.closed() => return,
            next = tokio::time::timeout(IDLE_MAX, questions.next()) => next,
        };
        match next {
            Ok(Ok(Some(answer))) => {
                let sent = tokio::select! {
                    biased;
                    () = stopping.notified() => break (grpc::UNAVAILABLE, "this proxy stops"),
                    sent = tokio::time::timeout(IDLE_MAX, pieces.send(Piece::Message(answer))) => sent,
                };
                if !matches!(sent, Ok(Ok(()))) {
                    return;
                }
            }
            Ok(Ok(None)) => break (grpc::OK, ""),
            Ok(Err(Refusal::BadRequest(_) | Refusal::BodyTooLarge { .. })) => {
                break (grpc::INVALID_ARGUMENT, "a message that can't be read");
            }
            Ok(Err(_)) => break (grpc::UNAVAILABLE, "the stream broke off"),
            Err(_) => break (grpc::UNAVAILABLE, "no question came for a minute"),
        }
    };
    // One that does not read is not waited for.
    let _ = tokio::time::timeout(END_MAX, pieces.send(Piece::end(status, message))).await;
}
