//! Calls of the HTTP API: one in a body, or several.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::StatusCode;

use super::answers::{Answer, Begun};
use super::decide::decide;
use super::state::CallState;
use crate::listen::Peer;
use crate::proxy::callers::Caller;
use crate::proxy::context::RequestContext;
use crate::proxy::decide::facts;
use crate::proxy::live::LocalSnapshot;
use crate::proxy::receive::call::api::{self, Calls, End, KEY_BYTES_MAX, Operation, Question};
use crate::proxy::refusal::{CallError, Refusal};
use crate::proxy::reply;
use crate::proxy::route::body;
use crate::proxy::settle;
use crate::wire::{Charge, Fields, Known, Request, Response};

/// How many calls of one body are decided at the same time. Other requests run after them.
const AT_ONCE: usize = 30;
/// The field that makes a call one that may be sent again.
const KEY: &str = "idempotency-key";
/// Says that a call was answered before.
const REPLAYED: &str = "idempotent-replayed";

/// What a body is answered with.
struct Job {
    local: Arc<LocalSnapshot>,
    state: CallState,
    operation: Operation,
    caller: Option<Arc<Caller>>,
    peer: Arc<Peer>,
    body: Vec<u8>,
    _charge: Charge,
}

/// Answers the calls of a body.
pub(super) async fn answer(
    local: &Arc<LocalSnapshot>,
    state: &CallState,
    operation: Operation,
    mut request: Request,
    peer: &Arc<Peer>,
    context: Box<RequestContext>,
) -> Response {
    let settings = &local.snapshot().settings;
    let admitted = settings.callers.admit(&request.fields, operation);
    let caller = match admitted {
        Ok(caller) => caller.map(Arc::clone),
        Err(refusal) => return context.refuse(&refusal),
    };
    let key: Option<Vec<u8>> = match key(&request.fields) {
        Ok(key) => key,
        Err(refusal) => return context.refuse(&refusal),
    };
    let body = body::call(std::mem::take(&mut request.body), local.snapshot());
    let (body, charge) = match api::read(body, settings.buffered_bytes_max).await {
        Ok(read) => read,
        Err(refusal) => return context.refuse(&refusal),
    };
    let (local, peer, state) = (Arc::clone(local), Arc::clone(peer), state.clone());
    let job = Job { local, state, operation, caller, peer, body, _charge: charge };
    match key {
        None => pin!(job.run(request, context)).await,
        Some(key) => pin!(job.run_once(&key, request, context)).await,
    }
}

/// The idempotency key of a call, if it has one.
fn key(fields: &Fields) -> Result<Option<Vec<u8>>, Refusal> {
    let mut values = fields.get_all(KEY);
    let (Some(key), second) = (values.next(), values.next()) else { return Ok(None) };
    let is_plain = key.iter().all(|byte| (b' '..=b'~').contains(byte));
    if second.is_some() || !is_plain || !(1..=KEY_BYTES_MAX).contains(&key.len()) {
        let expected = format!("one of 1 to {KEY_BYTES_MAX} printable ASCII characters");
        return Err(Refusal::malformed(format!("an `Idempotency-Key` that is not {expected}")));
    }
    Ok(Some(key.to_vec()))
}

impl Job {
    /// The name of the caller's token; empty for none.
    fn owner(&self) -> &str {
        self.caller.as_ref().map_or("", |caller| &caller.name)
    }

    /// Runs it unless it was run before, also if its client leaves: that is when it comes again.
    async fn run_once(
        self,
        key: &[u8],
        request: Request,
        context: Box<RequestContext>,
    ) -> Response {
        let open = loop {
            let whose = (self.owner(), self.operation.path());
            match self.state.answers.begin(whose, key, &self.body) {
                Begun::First(open) => break open,
                Begun::Differs => return context.refuse(&Refusal::Call(CallError::KeyReused)),
                Begun::Again(mut answer) => {
                    let known = answer.wait_for(Option::is_some).await;
                    let answer = known.ok().and_then(|answer| answer.clone());
                    // Without one the first has failed, and this is the first.
                    if let Some(Answer { status, content_type, body }) = answer {
                        let mut reply = Response { status, ..reply::api::response(body) };
                        reply.fields.set(Known::ContentType, content_type);
                        reply.fields.set(REPLAYED, "true");
                        return context.answer_call(None, reply);
                    }
                }
            }
        };
        let run = tokio::spawn(async move {
            let response = pin!(self.run(request, context)).await;
            // What failed here may be tried again.
            if !response.status.is_server_error() {
                let content_type = response.fields.get(Known::ContentType).unwrap_or_default();
                open.keep(Answer {
                    status: response.status,
                    content_type: Bytes::copy_from_slice(content_type),
                    body: Bytes::copy_from_slice(response.body.data()),
                });
            }
            response
        });
        // It only fails with the process.
        run.await.unwrap_or_else(|_| {
            let status = StatusCode::SERVICE_UNAVAILABLE;
            Response { status, ..reply::api::response(Bytes::new()) }
        })
    }

    async fn run(self, mut request: Request, context: Box<RequestContext>) -> Response {
        match self.operation {
            Operation::Decide | Operation::Take | Operation::Look => {
                match api::questions(self.operation, &self.body) {
                    Ok(Calls::One(one)) => pin!(self.decide(one, &mut request, context)).await,
                    Ok(Calls::Many(many)) => {
                        let answers = pin!(self.decide_all(many, request)).await;
                        context.answer_call(None, reply::api::response(answers))
                    }
                    Err(refusal) => context.refuse(&refusal),
                }
            }
            Operation::Settle => self.end(api::ends(&self.body), context, |end| self.settle(end)),
            Operation::GiveBack => {
                self.end(api::returned(&self.body), context, |end| self.give_back(&end.id))
            }
        }
    }

    /// Decides one call.
    async fn decide(
        &self,
        question: Question,
        request: &mut Request,
        mut context: Box<RequestContext>,
    ) -> Response {
        if let Err(refusal) = checked(&question) {
            return context.refuse(&refusal);
        }
        let place = match question.hold_ms {
            None => None,
            Some(ms) => match self.state.held.reserve() {
                Some(place) => Some((place, Duration::from_millis(ms))),
                None => return context.refuse(&Refusal::Call(CallError::TooManyHeld)),
            },
        };
        let by = (&*self.peer, self.caller.as_deref());
        let decided = decide(&self.local, &question.call, request, by, &mut context);
        let (_, decided) = pin!(decided).await;
        match decided {
            Ok(fields) => {
                let id = place.as_ref().map(|(place, _)| place.id());
                let decision = reply::api::decision(context.reply_to(), Ok(&fields), id);
                let reply = reply::api::response(decision);
                let Some((place, hold)) = place else { return context.answer_call(None, reply) };
                context.answer_held();
                place.fill(context, self.owner(), hold);
                reply
            }
            Err(Refusal::Denied) if let Some(found) = wrong_limits(&question, &context) => {
                context.refuse(&Refusal::malformed(found))
            }
            Err(refusal @ (Refusal::TooMany | Refusal::Denied)) => {
                let decision = reply::api::decision(context.reply_to(), Err(&refusal), None);
                context.answer_call(Some(&refusal), reply::api::response(decision))
            }
            Err(refusal) => context.refuse(&refusal),
        }
    }

    /// Decides several calls, each by itself. Returns the list of their answers.
    async fn decide_all(&self, questions: Vec<Question>, mut request: Request) -> Vec<u8> {
        // Each has an id of its own.
        request.fields.remove(Known::RequestId);
        let mut answers = Vec::with_capacity(questions.len());
        let mut questions = questions.into_iter();
        while !questions.as_slice().is_empty() {
            let some = questions.by_ref().take(AT_ONCE);
            let each = some.map(|question| self.decide_listed(question, request.head()));
            let each: Vec<_> = each.collect();
            answers.extend(join_all(each).await);
            tokio::task::yield_now().await;
        }
        reply::api::list(&answers)
    }

    /// Decides one of several calls.
    async fn decide_listed(&self, question: Question, mut request: Request) -> Bytes {
        let mut context = RequestContext::begin(&self.local, &request, &self.peer);
        context.received.note_call(&request, &self.local);
        let response = pin!(self.decide(question, &mut request, context)).await;
        let body = response.body.data();
        if response.status == StatusCode::OK {
            return Bytes::copy_from_slice(body);
        }
        reply::api::error(response.status, body).into()
    }

    /// Ends what was let through.
    fn end<T>(
        &self,
        ends: Result<Calls<T>, Refusal>,
        context: Box<RequestContext>,
        end: impl Fn(&T) -> Result<(), Refusal>,
    ) -> Response {
        match ends {
            Ok(Calls::One(one)) => match end(&one) {
                Ok(()) => context.answer_call(None, reply::api::response(reply::api::SETTLED)),
                Err(refusal) => context.refuse(&refusal),
            },
            Ok(Calls::Many(many)) => {
                let each = many.iter().map(|one| match end(one) {
                    Ok(()) => Bytes::from_static(reply::api::SETTLED),
                    Err(refusal) => {
                        let (status, response) = refusal.response(context.reply_to());
                        reply::api::error(status, response.body.data()).into()
                    }
                });
                let answers: Vec<Bytes> = each.collect();
                let list = reply::api::list(&answers);
                context.answer_call(None, reply::api::response(list))
            }
            Err(refusal) => context.refuse(&refusal),
        }
    }

    fn settle(&self, end: &End) -> Result<(), Refusal> {
        for (name, _) in end.facts() {
            settle::check_reported(name).map_err(Refusal::malformed)?;
        }
        let held =
            self.state.held.take(&end.id, self.owner()).ok_or(Refusal::Call(CallError::NotHeld))?;
        held.end(end);
        Ok(())
    }

    fn give_back(&self, id: &str) -> Result<(), Refusal> {
        let held =
            self.state.held.take(id, self.owner()).ok_or(Refusal::Call(CallError::NotHeld))?;
        held.give_back();
        Ok(())
    }
}

/// What a policy finds wrong with limits that a caller sends: it denies them with 400.
fn wrong_limits(question: &Question, context: &RequestContext) -> Option<String> {
    let denial = context.decided.as_ref()?.denial()?;
    let is_it = denial.status == StatusCode::BAD_REQUEST && question.call.has_limits();
    is_it.then(|| denial.reason.clone())
}

/// Checks that the facts that a caller gives are facts.
fn checked(question: &Question) -> Result<(), Refusal> {
    let given = question.call.descriptors.iter().flat_map(|one| one.facts.iter().flatten());
    for (name, _) in given {
        facts::check_given(name).map_err(Refusal::malformed)?;
    }
    Ok(())
}
