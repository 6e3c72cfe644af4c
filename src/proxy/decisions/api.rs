//! Calls of the HTTP API: one in a body, or several.

use std::borrow::Cow;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::StatusCode;
use serde_json::Value;

use super::answers::{Answer, Begun};
use super::decide::decide;
use super::held::HeldDecision;
use super::state::CallState;
use crate::listen::Peer;
use crate::proxy::callers::Caller;
use crate::proxy::context::RequestContext;
use crate::proxy::decide::facts;
use crate::proxy::live::LocalSnapshot;
use crate::proxy::receive::call::api::{
    self, Calls, End, KEY_BYTES_MAX, Operation, Question, Renewal, Returned,
};
use crate::proxy::receive::trace::TraceContext;
use crate::proxy::receive::{client, path};
use crate::proxy::refusal::{CallError, Refusal};
use crate::proxy::reply;
use crate::proxy::route::body;
use crate::proxy::settings::Paths;
use crate::proxy::settle;
use crate::wire::{Charge, Fields, Known, Request, Response};

/// How many calls of one body are decided at the same time. Other requests run after them.
const AT_ONCE: usize = 30;
/// Maximum bytes of the answers to the calls of one body. Those after it are not made.
const ANSWERS_BYTES_MAX: usize = 8 << 20;
/// The field that makes a call one that may be sent again.
const KEY: &str = "idempotency-key";
/// The facts with the path of a request and with its client's address.
const PATH: &str = "path";
const CLIENT_IP: &str = "client-ip";
/// Says that a call was answered before.
const REPLAYED: &str = "idempotent-replayed";

/// What a body is answered with.
struct Job {
    local: Arc<LocalSnapshot>,
    state: CallState,
    operation: Operation,
    caller: Option<Arc<Caller>>,
    peer: Arc<Peer>,
    _charge: Charge,
}

/// What a body says.
enum Work {
    Ask(Calls<Question>),
    End(Calls<End>),
    GiveBack(Calls<Returned>),
    Renew(Calls<Renewal>),
}

/// Answers the calls of a body.
pub(super) async fn answer(
    local: &Arc<LocalSnapshot>,
    state: &CallState,
    operation: Operation,
    mut request: Request,
    peer: &Arc<Peer>,
    mut context: Box<RequestContext>,
) -> Response {
    // Whatever it calls itself: its answer is JSON.
    context.received.grpc = false;
    let settings = &local.snapshot().settings;
    let admitted = settings.callers.admit(&request.fields, operation);
    let caller = match admitted {
        Ok(caller) => caller.map(Arc::clone),
        Err(refusal) => return context.refuse(&refusal),
    };
    context.received.note_caller(caller.as_deref(), local);
    // To renew once more is no harm, and what was held then may be over.
    let is_named = operation != Operation::Renew;
    let key: Option<Vec<u8>> = match key(&request.fields).map(|key| key.filter(|_| is_named)) {
        Ok(key) => key,
        Err(refusal) => return context.refuse(&refusal),
    };
    let body = body::call(std::mem::take(&mut request.body), local.snapshot());
    let (body, mut charge) = match api::read(body, settings.buffered_bytes_max).await {
        Ok(read) => read,
        Err(refusal) => return context.refuse(&refusal),
    };
    let work = match Work::read(operation, &body) {
        Ok(work) => work,
        Err(refusal) => return context.refuse(&refusal),
    };
    let (local, peer, state) = (Arc::clone(local), Arc::clone(peer), state.clone());
    let job = Job { local, state, operation, caller, peer, _charge: Charge::of(work.bytes()) };
    // The answer may take a while: what it was read from is not kept for that.
    charge.set(body.len());
    match key {
        None => {
            drop((body, charge));
            pin!(job.run(work, request, context)).await.0
        }
        Some(key) => pin!(job.run_once((&key, &body), work, request, context)).await,
    }
}

impl Work {
    fn read(operation: Operation, body: &[u8]) -> Result<Self, Refusal> {
        Ok(match operation {
            Operation::Decide | Operation::Take | Operation::Look => {
                Self::Ask(api::questions(operation, body)?)
            }
            Operation::Settle => Self::End(api::ends(body)?),
            Operation::GiveBack => Self::GiveBack(api::returned(body)?),
            Operation::Renew => Self::Renew(api::renewals(body)?),
        })
    }

    /// Bytes that it takes until it is answered.
    fn bytes(&self) -> usize {
        match self {
            Self::Ask(questions) => questions.all().iter().map(Question::bytes).sum(),
            Self::End(ends) => ends.all().iter().map(End::bytes).sum(),
            Self::GiveBack(returned) => returned.all().iter().map(Returned::bytes).sum(),
            Self::Renew(renewals) => renewals.all().iter().map(Renewal::bytes).sum(),
        }
    }

    /// Whether something may be held because of it.
    fn holds(&self) -> bool {
        let Self::Ask(questions) = self else { return false };
        questions.all().iter().any(|question| question.hold_ms.is_some())
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

    /// How many owners share what there is for calls.
    fn owners(&self) -> usize {
        self.local.snapshot().settings.callers.count()
    }

    /// Whether the caller may ask about a domain.
    fn may_ask(&self, domain: &str) -> bool {
        self.caller.as_ref().is_none_or(|caller| caller.check_domain(domain).is_ok())
    }

    /// Runs it unless it was run before, also if its client leaves: that is when it comes again.
    async fn run_once(
        self,
        (key, body): (&[u8], &[u8]),
        work: Work,
        request: Request,
        context: Box<RequestContext>,
    ) -> Response {
        let body = self.compared(&work, body);
        let open = loop {
            let owner = (self.owner(), self.owners());
            match self.state.answers.begin(owner, self.operation.path(), key, &body) {
                Begun::First(open) => break open,
                Begun::Differs => return context.refuse(&Refusal::Call(CallError::KeyReused)),
                Begun::Again(mut answer) => {
                    // What a token was for when the call came first does not matter.
                    if let Err(refusal) = self.check_domain(&work) {
                        return context.refuse(&refusal);
                    }
                    let known = answer.wait_for(Option::is_some).await;
                    let answer = known.ok().and_then(|answer| answer.clone());
                    // Without one nobody makes the first any more, and this is the first.
                    if let Some(Answer { status, content_type, body }) = answer {
                        let body = match work.holds() {
                            true => match self.still_holding(&context, body) {
                                Ok(body) => body,
                                Err(refusal) => return context.refuse(&refusal),
                            },
                            false => body,
                        };
                        let mut reply = Response { status, ..reply::api::response(body) };
                        reply.fields.set(Known::ContentType, content_type);
                        reply.fields.set(REPLAYED, "true");
                        return context.answer_call(None, reply);
                    }
                }
            }
        };
        let run = tokio::spawn(async move {
            let (response, has_failed) = pin!(self.run(work, request, context)).await;
            let content_type = response.fields.get(Known::ContentType).unwrap_or_default();
            let answer = Answer {
                status: response.status,
                content_type: Bytes::copy_from_slice(content_type),
                body: Bytes::copy_from_slice(response.body.data()),
            };
            // What failed here may be tried again.
            open.end(answer, !has_failed);
            response
        });
        // It only fails with the process.
        run.await.unwrap_or_else(|_| {
            let status = StatusCode::SERVICE_UNAVAILABLE;
            Response { status, ..reply::api::response(Bytes::new()) }
        })
    }

    /// What is held still of a call's answer: its caller would go on with what may have been given
    /// to another. Of several decisions, those that are over are errors.
    fn still_holding(&self, context: &RequestContext, answer: Bytes) -> Result<Bytes, Refusal> {
        let over = Refusal::Call(CallError::HoldOver);
        let is_over = |decision: &Value| {
            let id = decision.get("id").and_then(Value::as_str);
            id.is_some_and(|id| !self.state.held.holds(id))
        };
        match serde_json::from_slice::<Value>(&answer) {
            Ok(Value::Array(decisions)) if decisions.iter().any(is_over) => {
                let each = decisions.iter().map(|decision| {
                    if !is_over(decision) {
                        return Bytes::from(decision.to_string());
                    }
                    let (status, response) = over.response(context.reply_to());
                    reply::api::error(status, response.body.data()).into()
                });
                let each: Vec<Bytes> = each.collect();
                Ok(reply::api::list(&each).into())
            }
            Ok(decision) if is_over(&decision) => Err(over),
            _ => Ok(answer),
        }
    }

    /// Checks that the caller of a single call may still ask about it.
    fn check_domain(&self, work: &Work) -> Result<(), Refusal> {
        match (work, &self.caller) {
            (Work::Ask(Calls::One(one)), Some(caller)) => caller.check_domain(&one.call.domain),
            _ => Ok(()),
        }
    }

    /// What has to be the same for a call to be the same: its body, and of a batch also which of
    /// its domains the token is for, as its answer says so of each.
    fn compared<'b>(&self, work: &Work, body: &'b [u8]) -> Cow<'b, [u8]> {
        let Work::Ask(Calls::Many(many)) = work else { return Cow::Borrowed(body) };
        let asked = many.iter().map(|one| u8::from(self.may_ask(&one.call.domain)));
        body.iter().copied().chain(asked).collect()
    }

    /// Runs it, and says whether all of it has failed, so that it may be tried again.
    async fn run(
        self,
        work: Work,
        mut request: Request,
        context: Box<RequestContext>,
    ) -> (Response, bool) {
        let response = match work {
            Work::Ask(Calls::One(one)) => pin!(self.decide(one, &mut request, context)).await,
            Work::Ask(Calls::Many(many)) => {
                let trace = context.received.trace.as_deref();
                let (answers, has_failed) = pin!(self.decide_all(many, request, trace)).await;
                return (context.answer_call(None, reply::api::response(answers)), has_failed);
            }
            Work::End(ends) => {
                self.end(ends, context, reply::api::SETTLED, |end| self.settle(end)).await
            }
            Work::GiveBack(ends) => {
                self.end(ends, context, reply::api::SETTLED, |end| self.give_back(&end.id)).await
            }
            Work::Renew(ends) => {
                self.end(ends, context, reply::api::RENEWED, |end| self.renew(end)).await
            }
        };
        let has_failed = response.status.is_server_error();
        (response, has_failed)
    }

    /// Decides one call.
    async fn decide(
        &self,
        question: Question,
        request: &mut Request,
        mut context: Box<RequestContext>,
    ) -> Response {
        let paths = self.local.snapshot().settings.paths;
        let question = match checked(question, paths) {
            Ok(question) => question,
            Err(refusal) => return context.refuse(&refusal),
        };
        let place = match question.hold_ms {
            None => None,
            Some(ms) => match self.state.held.reserve(self.owner(), self.owners()) {
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
                context.answer_held(&reply);
                place.fill(context, question.call.domain, hold);
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

    /// Decides several calls, each by itself. Returns the list of their answers, and whether all
    /// have failed.
    async fn decide_all(
        &self,
        questions: Vec<Question>,
        mut request: Request,
        trace: Option<&TraceContext>,
    ) -> (Vec<u8>, bool) {
        // Each has an id of its own.
        request.fields.remove(Known::RequestId);
        let mut answers = Vec::with_capacity(questions.len());
        let (mut questions, mut bytes, mut has_failed) = (questions.into_iter(), 0, true);
        while !questions.as_slice().is_empty() {
            if bytes > ANSWERS_BYTES_MAX {
                let found = format!("more than {ANSWERS_BYTES_MAX} bytes of answers before it");
                let (status, detail) = (StatusCode::PAYLOAD_TOO_LARGE, found.as_bytes());
                let unmade = Bytes::from(reply::api::error(status, detail));
                answers.extend(questions.by_ref().map(|_| unmade.clone()));
                break;
            }
            let some = questions.by_ref().take(AT_ONCE);
            let each = some.map(|question| self.decide_listed(question, request.head(), trace));
            let each: Vec<_> = each.collect();
            let made = join_all(each).await;
            bytes += made.iter().map(|(_, answer)| answer.len()).sum::<usize>();
            has_failed &= made.iter().all(|(status, _)| status.is_server_error());
            answers.extend(made.into_iter().map(|(_, answer)| answer));
            tokio::task::yield_now().await;
        }
        (reply::api::list(&answers), has_failed)
    }

    /// Decides one of several calls. Returns its status and its answer.
    async fn decide_listed(
        &self,
        question: Question,
        mut request: Request,
        trace: Option<&TraceContext>,
    ) -> (StatusCode, Bytes) {
        let mut context = RequestContext::begin(&self.local, &request, &self.peer);
        context.received.trace = trace.map(TraceContext::of_part);
        context.received.note_call(&request, &self.local);
        context.received.grpc = false;
        let response = pin!(self.decide(question, &mut request, context)).await;
        let (status, body) = (response.status, response.body.data());
        match status {
            StatusCode::OK => (status, Bytes::copy_from_slice(body)),
            _ => (status, reply::api::error(status, body).into()),
        }
    }

    /// Ends what was let through, or gives it more time, and answers so.
    async fn end<T>(
        &self,
        ends: Calls<T>,
        context: Box<RequestContext>,
        done: &'static [u8],
        end: impl Fn(&T) -> Result<(), Refusal>,
    ) -> Response {
        let many = match ends {
            Calls::Many(many) => many,
            Calls::One(one) => {
                return match end(&one) {
                    Ok(()) => context.answer_call(None, reply::api::response(done)),
                    Err(refusal) => context.refuse(&refusal),
                };
            }
        };
        let mut answers = Vec::with_capacity(many.len());
        for some in many.chunks(AT_ONCE) {
            answers.extend(some.iter().map(|one| match end(one) {
                Ok(()) => Bytes::from_static(done),
                Err(refusal) => {
                    let (status, response) = refusal.response(context.reply_to());
                    reply::api::error(status, response.body.data()).into()
                }
            }));
            // Each may run a policy.
            tokio::task::yield_now().await;
        }
        context.answer_call(None, reply::api::response(reply::api::list(&answers)))
    }

    fn settle(&self, end: &End) -> Result<(), Refusal> {
        for (name, _) in end.facts() {
            settle::check_reported(name).map_err(Refusal::malformed)?;
        }
        self.held(&end.id)?.end(end);
        Ok(())
    }

    fn give_back(&self, id: &str) -> Result<(), Refusal> {
        self.held(id)?.give_back();
        Ok(())
    }

    fn renew(&self, renewal: &Renewal) -> Result<(), Refusal> {
        let hold = Duration::from_millis(renewal.hold_ms);
        let may_ask = |domain: &str| self.may_ask(domain);
        match self.state.held.renew(&renewal.id, self.owner(), may_ask, hold) {
            true => Ok(()),
            false => Err(Refusal::Call(CallError::NotHeld)),
        }
    }

    /// Takes out what the caller holds under an id.
    fn held(&self, id: &str) -> Result<Box<dyn HeldDecision>, Refusal> {
        let held = self.state.held.take(id, self.owner(), |domain| self.may_ask(domain));
        held.ok_or(Refusal::Call(CallError::NotHeld))
    }
}

/// What a policy finds wrong with limits that a caller sends: it denies them with 400.
fn wrong_limits(question: &Question, context: &RequestContext) -> Option<String> {
    let denial = context.decided.as_ref()?.denial()?;
    let is_it = denial.status == StatusCode::BAD_REQUEST && question.call.has_limits();
    is_it.then(|| denial.reason.clone())
}

/// Checks that the facts that a caller gives are facts, and brings paths and addresses into the
/// form that those of requests have: else each spelling would be a key of its own.
fn checked(mut question: Question, paths: Paths) -> Result<Question, Refusal> {
    let descriptors = question.call.descriptors.iter_mut();
    for (name, value) in descriptors.flat_map(|one| one.facts.iter_mut().flatten()) {
        facts::check_given(name).map_err(Refusal::malformed)?;
        if name == CLIENT_IP {
            let address = client::entry_address(value.as_bytes());
            let wrong = || Refusal::malformed(format!("`client-ip`: {value:?} is no address"));
            *value = address.ok_or_else(wrong)?.to_string();
        } else if name == PATH {
            if value.contains(['?', '#']) {
                let found = "`path`: a query or a fragment, which a path does not have";
                return Err(Refusal::malformed(found.to_owned()));
            }
            let normal = path::normal(value, paths);
            let normal = normal.map_err(|wrong| Refusal::malformed(format!("`path`: {wrong}")))?;
            *value = path::shown(&normal, paths).into_owned();
        }
    }
    Ok(question)
}
