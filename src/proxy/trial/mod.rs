//! Requests in virtual time: along the path of a real request, with a reply that is given instead
//! of an upstream's. Routes, facts, policy, limits, header fields and settling are those that
//! serve; only the connections are missing.
//!
//! A request is under way between [`Trial::begin`] and its end, so requests can overlap. The caller
//! moves the clock.

pub mod many;

use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use http::StatusCode;

use crate::clock;
use crate::limit::{Limiter, Take};
use crate::listen::{Peer, Serves, read_head};
use crate::plan::{Enforcement, Limit, LimitOutcome, Plan};
use crate::proxy::context::RequestContext;
use crate::proxy::decide::facts::Facts;
use crate::proxy::forward::Sent;
use crate::proxy::forward::exchange::{Dispatch, Exchange};
use crate::proxy::live::{LocalSnapshot, Observers};
use crate::proxy::record;
use crate::proxy::record::account::{Account, LimitAccount, Parts};
use crate::proxy::refusal::{Check, Refusal};
use crate::proxy::serve::{admit, answer};
use crate::proxy::snapshot::Snapshot;
use crate::telemetry::Label as _;
use crate::upstream::{Cause, Upstream, UpstreamError};
use crate::wire::{Body, BodyEnd, BodyError, Fields, Request, Response, Source};

/// Characters of a request's part that [`InvalidRequest`] shows, at most.
const FOUND_CHARS_MAX: usize = 60;
/// The host of requests that name none.
const HOST: &str = "localhost";
/// The port of all clients: none is ever connected to.
const PORT: u16 = 1;

/// Takes requests through a snapshot. Its limiter counts in memory, by a simulated clock.
pub struct Trial {
    local: Arc<LocalSnapshot>,
    limiter: Arc<Limiter>,
    /// Runs what a body's end may start. Nothing waits for its timers.
    runtime: tokio::runtime::Runtime,
}

/// A request as a client sends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrialRequest {
    /// `GET`.
    pub method: String,
    /// Path and query, or whatever else a client may send there.
    pub target: String,
    /// The client's address.
    pub from: IpAddr,
    /// The fields in order, repeated where they are. `Host` and `Content-Length` are added if
    /// missing.
    pub headers: Vec<(String, String)>,
    /// Empty for none.
    pub body: Vec<u8>,
    /// The name of the listener that it comes to; where none is named, the first one that neither
    /// redirects to https nor answers calls for decisions.
    pub listener: Option<String>,
}

/// What the upstream does with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrialReply {
    /// It answers.
    Answer {
        /// 200 to 599.
        status: u16,
        /// Its header fields.
        headers: Vec<(String, String)>,
        /// Its body.
        body: Vec<u8>,
        /// How the body ends.
        ended: BodyEnding,
    },
    /// It fails, before it answers: with the request, or before anything of it was sent.
    Lost {
        /// Whether it had got the request.
        sent: bool,
    },
    /// It has not answered when the client goes away.
    ClientGone,
}

/// How a reply's body ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyEnding {
    /// The body ends with its last byte.
    #[default]
    Whole,
    /// The upstream's connection is cut after it.
    Cut,
    /// The client goes away after it.
    ClientGone,
}

/// Why a request can't be sent at all: what was found, and what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("found {found}, expected {expected}")]
pub struct InvalidRequest {
    /// What was found.
    pub found: String,
    /// What was expected.
    pub expected: &'static str,
}

impl InvalidRequest {
    /// A part of the request, by its name, holds this.
    fn of(part: &str, found: &str, expected: &'static str) -> Self {
        let found: String = found.chars().take(FOUND_CHARS_MAX).collect();
        Self { found: format!("the {part} {found:?}"), expected }
    }

    /// The check that such a request fails in a proxy: see `Rejection::check`.
    #[must_use]
    pub fn check(&self) -> &'static str {
        Check::Head.label()
    }
}

/// The rest of a request's path; none if its client saw no reply.
type Run = Pin<Box<dyn Future<Output = Option<Response>>>>;

/// A request that was admitted, or answered already.
pub struct AdmittedRequest {
    run: Run,
    /// The reply's head, if it was answered without an upstream.
    answered: Option<Response>,
    watch: Rc<Watch>,
    account: Account,
}

/// What the trial sees of a request, and the reply on its way to it.
#[derive(Default)]
struct Watch {
    facts: RefCell<Vec<(String, String)>>,
    account: RefCell<Option<Account>>,
    to_https: RefCell<Option<String>>,
    reply: RefCell<Option<TrialReply>>,
    /// Virtual time that the request took, for `duration-ms`.
    took: RefCell<Duration>,
}

impl Exchange for Rc<Watch> {
    async fn send(
        &self,
        _upstream: &Upstream,
        request: Request,
        _dispatch: Dispatch<'_>,
        _sent: &mut Sent,
    ) -> Result<Response, UpstreamError> {
        read_whole(request.body).await?;
        let reply = poll_fn(|_| match self.reply.borrow_mut().take() {
            Some(reply) => Poll::Ready(reply),
            None => Poll::Pending,
        });
        match reply.await {
            TrialReply::Answer { status, headers, body, ended } => {
                let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
                let mut fields = Fields::new();
                headers.iter().for_each(|(name, value)| fields.append(name.as_str(), value));
                let body = match ended {
                    BodyEnding::Whole => Body::full(Bytes::from(body)),
                    ended => Body::source(Box::new(BrokenBody {
                        rest: body.into(),
                        ended,
                        waited: false,
                    })),
                };
                Ok(Response { fields, ..Response::new(status, body) })
            }
            TrialReply::Lost { sent } => {
                let cause = if sent { Cause::Cut } else { Cause::Connect };
                Err(UpstreamError { cause, sent, body: None })
            }
            // `AdmittedRequest::end` drops the request instead.
            TrialReply::ClientGone => std::future::pending().await,
        }
    }
}

/// An upstream reads the request before it answers.
async fn read_whole(mut body: Body) -> Result<(), UpstreamError> {
    while let Some(read) = poll_fn(|cx| body.poll_fill(cx)).await {
        read.map_err(|error| UpstreamError { cause: Cause::Body, sent: true, body: Some(error) })?;
        let bytes = body.data().len();
        body.consume(bytes);
    }
    Ok(())
}

/// A body that its reader gets no end of.
struct BrokenBody {
    rest: Bytes,
    ended: BodyEnding,
    /// The client has waited for more. Who reads on without it finds the end.
    waited: bool,
}

impl Source for BrokenBody {
    fn poll_fill(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        match self.ended {
            _ if !self.rest.is_empty() => Poll::Ready(Ok(())),
            BodyEnding::ClientGone if !std::mem::replace(&mut self.waited, true) => Poll::Pending,
            BodyEnding::ClientGone => Poll::Ready(Ok(())),
            BodyEnding::Whole | BodyEnding::Cut => Poll::Ready(Err(BodyError::Reset)),
        }
    }

    fn data(&self) -> &[u8] {
        &self.rest
    }

    fn consume(&mut self, bytes: usize) {
        let bytes = bytes.min(self.rest.len());
        self.rest.advance(bytes);
    }

    fn remaining(&self) -> Option<u64> {
        None
    }

    fn is_end(&self) -> bool {
        self.waited && self.rest.is_empty()
    }

    fn finish(self: Box<Self>, _end: &BodyEnd) {}
}

impl WatchedExchange for Rc<Watch> {
    fn facts(&self, facts: &Facts<'_>) {
        let pairs = facts.pairs();
        let owned = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        *self.facts.borrow_mut() = owned.collect();
    }

    fn decided(&self, context: &RequestContext) -> Next {
        let facts = std::mem::take(&mut *self.facts.borrow_mut());
        *self.account.borrow_mut() = Some(Account::of(&parts(context), facts));
        Next::Send
    }

    fn redirected(&self, url: &str) {
        *self.to_https.borrow_mut() = Some(url.to_owned());
    }

    fn took(&self) -> Duration {
        *self.took.borrow()
    }
}

/// What an account of the request is made of.
fn parts(context: &RequestContext) -> Parts<'_> {
    record::parts(&context.routed, context.decided.as_ref(), &context.answer)
}

impl Trial {
    /// Through this snapshot.
    ///
    /// # Errors
    /// This machine can't run it.
    pub fn new(snapshot: Arc<Snapshot>) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let limiter = Arc::clone(&snapshot.limiter);
        let local = Arc::new(LocalSnapshot::new(0, snapshot, &Arc::default(), &Observers::none()));
        Ok(Self { local, limiter, runtime })
    }

    /// Takes a request to its decision.
    ///
    /// # Errors
    /// It is not a request that a client could send.
    pub fn begin(&self, request: &TrialRequest) -> Result<AdmittedRequest, InvalidRequest> {
        let _entered = self.runtime.enter();
        let from = SocketAddr::new(request.from, PORT);
        let body = Bytes::from(request.body.clone());
        let read = read_head(&request.head()?).map(|request| (request, body));
        let listener = self.listener(request.listener.as_deref())?;
        let peer = Peer {
            listener,
            ..Peer::plain(from, SocketAddr::new(Ipv4Addr::LOCALHOST.into(), PORT))
        };
        let (local, watch) = (Arc::clone(&self.local), Rc::<Watch>::default());
        let watched = Rc::clone(&watch);
        let mut run: Run = Box::pin(async move {
            match read {
                Ok((mut request, body)) => {
                    request.body = Body::full(body);
                    handle(&local, request, &peer, &watched).await
                }
                Err(why) => Some(unreadable(&local, why, &peer, &watched)),
            }
        });
        let answered = match poll_once(&mut run) {
            Poll::Ready(answered) => answered,
            Poll::Pending => None,
        };
        let account = watch.account.borrow_mut().take();
        let mut account = account.unwrap_or_else(Account::rejected);
        account.to_https = watch.to_https.borrow_mut().take();
        if account.to_https.is_some() {
            account.verdict = None;
        }
        account.answered(answered.as_ref());
        Ok(AdmittedRequest { run, answered, watch, account })
    }

    fn listener(&self, name: Option<&str>) -> Result<usize, InvalidRequest> {
        let snapshot = self.local.snapshot();
        let Some(name) = name else { return Ok(snapshot.trial_listener()) };
        let wrong = |expected| InvalidRequest::of("listener", name, expected);
        let mut all = snapshot.settings.listeners.iter();
        let listener = all.position(|known| known.as_deref() == Some(name));
        match listener.ok_or_else(|| wrong("the `name` of a listener"))? {
            index if snapshot.settings.serves(index) == Serves::Decisions => {
                Err(wrong("one that requests come to: this listener answers calls for decisions"))
            }
            index => Ok(index),
        }
    }

    /// What each limit of `account` would answer now, without taking anything of it. Empty if none
    /// was asked.
    #[must_use]
    pub fn look(&self, account: &Account) -> Vec<(String, LimitOutcome)> {
        let of = |limit: &LimitAccount| Limit {
            cost: 0,
            enforcement: Enforcement::Shadow,
            ..limit.limit.clone()
        };
        let limits: Vec<Limit> = account.limits.iter().map(of).collect();
        let names: Vec<String> = limits.iter().map(|limit| limit.name.clone()).collect();
        let (Some(scope), Ok(plan)) = (&account.scope, Plan::new(limits)) else {
            return Vec::new();
        };
        let plan = Arc::new(plan.quiet());
        let mut take = Box::pin(self.limiter.take(scope, &plan));
        match take.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Take::Granted(outcome, _) | Take::Refused(outcome)) => {
                names.into_iter().zip(outcome.limits).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Ends a request with its upstream's reply, `took` after it was sent, and returns its whole
    /// account. What it settles counts from now on.
    #[must_use]
    pub fn end(&self, under_way: AdmittedRequest, reply: TrialReply, took: Duration) -> Account {
        let AdmittedRequest { mut run, answered, watch, mut account } = under_way;
        let _entered = self.runtime.enter();
        if answered.is_some() {
            answered.into_iter().for_each(|answered| drain(answered.body));
            return account;
        }
        *watch.took.borrow_mut() = took;
        if reply == TrialReply::ClientGone {
            drop(run);
            return account;
        }
        let gone = matches!(&reply, TrialReply::Answer { ended: BodyEnding::ClientGone, .. });
        *watch.reply.borrow_mut() = Some(reply);
        if let Poll::Ready(Some(answered)) = poll_once(&mut run) {
            account.answered(Some(&answered));
            drain(answered.body);
        }
        drop(run);
        if gone {
            // Lets the task run that reads the reply on without its client.
            self.runtime.block_on(tokio::task::yield_now());
        }
        account
    }
}

/// Reads a reply as its client does, as far as it comes.
fn drain(mut body: Body) {
    let mut cx = Context::from_waker(Waker::noop());
    while let Poll::Ready(Some(Ok(()))) = body.poll_fill(&mut cx) {
        let bytes = body.data().len();
        body.consume(bytes);
        body.end_if_read();
    }
}

fn poll_once<T>(run: &mut Pin<Box<dyn Future<Output = T>>>) -> Poll<T> {
    run.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// An exchange that sees how a request is decided.
trait WatchedExchange: Exchange {
    /// Notes what the policy is shown.
    fn facts(&self, _facts: &Facts<'_>) {}

    /// Notes the decision, and says whether the request is sent if it is admitted.
    fn decided(&self, context: &RequestContext) -> Next;

    /// Notes that the request is redirected to https, before a route is looked for.
    fn redirected(&self, _url: &str) {}

    /// Virtual time that the request took.
    fn took(&self) -> Duration;
}

/// What is done with an admitted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Send,
    /// Nobody wants to know more than the decision.
    Stop,
}

/// Does the same as `handle` of the proxy, watched. `None` if it stops after the decision.
async fn handle(
    local: &LocalSnapshot,
    mut request: Request,
    peer: &Peer,
    watch: &impl WatchedExchange,
) -> Option<Response> {
    let mut context = RequestContext::begin(local, &request, peer);
    let facts = |facts: &Facts<'_>| watch.facts(facts);
    let served = match admit(local, &mut request, peer, &mut context, facts).await {
        Ok(mut admitted) => {
            if watch.decided(&context) == Next::Stop {
                return None;
            }
            answer(request, &mut admitted, peer, &mut context, watch).await
        }
        Err(refusal) => {
            note_refusal(&mut context, &refusal, watch);
            Err(refusal)
        }
    };
    let took = watch.took();
    let started = &mut context.received.started;
    *started = clock::monotonic().checked_sub(took).unwrap_or(*started);
    Some(match served {
        Ok(reply) => context.stream(reply),
        Err(refusal) => context.refuse(&refusal),
    })
}

/// Does the same as `unreadable` of the proxy, watched.
fn unreadable(
    local: &LocalSnapshot,
    (status, why): (StatusCode, &'static str),
    peer: &Peer,
    watch: &impl WatchedExchange,
) -> Response {
    let refusal = Refusal::Unreadable(status, why);
    let mut context = RequestContext::unreadable(local, peer);
    note_refusal(&mut context, &refusal, watch);
    context.refuse(&refusal)
}

/// Notes why a request is refused. A snapshot that remembers no requests does not note what is
/// wrong with it.
fn note_refusal(context: &mut RequestContext, refusal: &Refusal, watch: &impl WatchedExchange) {
    context.answer.cause = refusal.cause();
    context.answer.rejection = refusal.rejection().map(Box::new);
    if let Refusal::ToHttps(url) = refusal {
        watch.redirected(url);
    }
    watch.decided(context);
}

impl TrialReply {
    /// A whole reply without a body.
    #[must_use]
    pub fn answer(status: u16) -> Self {
        Self::Answer { status, headers: Vec::new(), body: Vec::new(), ended: BodyEnding::Whole }
    }
}

impl TrialRequest {
    /// The head that a client would send over HTTP/1.1.
    fn head(&self) -> Result<Vec<u8>, InvalidRequest> {
        let is_word = |text: &str| {
            !text.is_empty() && !text.bytes().any(|byte| byte == b' ' || byte.is_ascii_control())
        };
        let Self { method, target, headers, body, .. } = self;
        if !is_word(method) {
            return Err(InvalidRequest::of("method", method, "a method such as GET"));
        }
        if !is_word(target) {
            return Err(InvalidRequest::of("target", target, "a path such as `/`, without blanks"));
        }
        let mut head = format!("{method} {target} HTTP/1.1\r\n").into_bytes();
        let mut add = |name: &str, value: &str| {
            let parts = [name.as_bytes(), b": ", value.as_bytes(), b"\r\n"];
            parts.into_iter().for_each(|part| head.extend_from_slice(part));
        };
        for (name, value) in headers {
            if !is_word(name) || name.contains(':') {
                return Err(InvalidRequest::of("header name", name, "a token such as x-api-key"));
            }
            if value.bytes().any(|byte| byte != b'\t' && byte.is_ascii_control()) {
                return Err(InvalidRequest::of("header value", value, "no control characters"));
            }
            add(name, value);
        }
        let has = |known: &str| headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(known));
        if !has("host") {
            add("host", HOST);
        }
        if !body.is_empty() && !has("content-length") && !has("transfer-encoding") {
            add("content-length", &body.len().to_string());
        }
        head.extend_from_slice(b"\r\n");
        Ok(head)
    }
}

impl AdmittedRequest {
    /// What is known of it so far.
    #[must_use]
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Whether it waits for its upstream.
    #[must_use]
    pub fn is_sent(&self) -> bool {
        self.answered.is_none()
    }
}

impl fmt::Debug for Trial {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Trial").finish_non_exhaustive()
    }
}

impl fmt::Debug for AdmittedRequest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("AdmittedRequest").field("account", &self.account).finish_non_exhaustive()
    }
}
