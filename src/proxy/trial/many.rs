//! Many requests in virtual time, as in a log of millions: each is given in borrowed text, and
//! nothing is kept of it but what its caller counts. The path is the one of [`Trial::begin`].

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Duration;

use http::uri::PathAndQuery;
use http::{Method, StatusCode, Version};

use super::{
    HOST, InvalidRequest, Next, PORT, Run, Trial, WatchedExchange, drain, handle, parts, poll_once,
    read_whole,
};
use crate::limit::Scope;
use crate::listen::Peer;
use crate::plan::{Limit, LimitOutcome, PlanOutcome, Refund, is_token};
use crate::policy::{self, Decision, Policy};
use crate::proxy::context::RequestContext;
use crate::proxy::decide::Decided;
use crate::proxy::forward::Sent;
use crate::proxy::forward::exchange::{Dispatch, Exchange};
use crate::proxy::handle::RouteHandle;
use crate::proxy::verdict::{Cause, Rejection, Verdict};
use crate::upstream::{Upstream, UpstreamError};
use crate::wire::{Body, BodyEnd, BodyError, Fields, Known, Request, Response, Source};

/// A piece of what replies consist of, in bytes.
const BLANK_BYTES: usize = 1 << 24;
/// Bytes of a reply, at most: what is longer is taken as long as this.
const REPLY_BYTES_MAX: u64 = 1 << 42;
/// The same if it is metered, because meters read it all.
const METERED_BYTES_MAX: u64 = 1 << 26;

/// What replies consist of, as often as they are long.
static BLANK: LazyLock<Vec<u8>> = LazyLock::new(|| vec![b' '; BLANK_BYTES]);

/// A client whose requests are many.
#[derive(Clone, Debug)]
pub struct TrialClient {
    plain: Arc<Peer>,
    secure: Option<Arc<Peer>>,
}

impl TrialClient {
    fn peer(&mut self, https: bool) -> &Arc<Peer> {
        if !https {
            return &self.plain;
        }
        self.secure.get_or_insert_with(|| {
            let Peer { address, local, listener, ref ip, .. } = *self.plain;
            Arc::new(Peer { tls: true, listener, ip: ip.clone(), ..Peer::plain(address, local) })
        })
    }
}

/// One of many requests.
#[derive(Clone, Copy, Debug)]
pub struct ReplayRequest<'a, H> {
    /// `GET`.
    pub method: &'a str,
    /// Path and query.
    pub target: &'a str,
    /// The host that it asks for; empty if it is not known.
    pub host: &'a str,
    /// 10, 11 or 20, for HTTP/1.0, 1.1 and 2.
    pub version: u8,
    /// Whether it came over TLS.
    pub https: bool,
    /// Its other header fields.
    pub headers: H,
    /// The length of its body, which is not sent.
    pub body_bytes: Option<u64>,
}

/// How its upstream replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayReply {
    /// A reply with this status, and a body of so many bytes.
    Answer(u16, u64),
    /// The client has gone away before.
    ClientGone,
}

/// How one of many was decided.
#[derive(Debug)]
pub struct ReplayDecision {
    /// As in [`Account`](crate::proxy::account::Account).
    pub verdict: Option<Verdict>,
    /// How long it waited in a leaky bucket.
    pub delay: Duration,
    /// Why it was refused.
    pub cause: Option<Cause>,
    /// The policy's `settle` is called at its end.
    pub settles: bool,
    /// Its end changes what is counted.
    ends: bool,
    route: Arc<RouteHandle>,
    routed: bool,
    decision: Option<Arc<Decision>>,
    outcome: Option<PlanOutcome>,
    rejection: Option<Rejection>,
}

impl ReplayDecision {
    fn of(context: &RequestContext) -> Self {
        let parts = parts(context);
        let decided = context.decided.as_ref();
        let decision = decided.and_then(|decided| decided.decision.clone());
        let gives_back = |limit: &Limit| {
            let refunds = match limit.refund {
                Refund::Never => false,
                Refund::Unsent | Refund::UpstreamError | Refund::BySettle => true,
            };
            refunds || limit.algorithm.holds()
        };
        let (settles, ends) = match decision.as_deref() {
            Some(Decision { settle_with, verdict, .. }) => {
                let settles = settle_with.is_some();
                let limits = match verdict {
                    policy::Verdict::Check(plan) => plan.limits(),
                    _ => &[],
                };
                let ends = settles || limits.iter().any(gives_back);
                (settles, ends)
            }
            None => (false, false),
        };
        Self {
            settles,
            ends,
            verdict: parts.verdict(),
            delay: decided.map_or(Duration::ZERO, Decided::delayed),
            route: Arc::clone(&context.routed.handle),
            routed: parts.route.is_some(),
            decision,
            outcome: decided.and_then(|decided| decided.outcome.clone()),
            cause: parts.cause,
            rejection: parts.rejection.cloned(),
        }
    }

    /// Why the request itself was rejected.
    #[must_use]
    pub fn rejection(&self) -> Option<&Rejection> {
        self.rejection.as_ref()
    }

    /// The route's name.
    #[must_use]
    pub fn route(&self) -> Option<&str> {
        self.routed.then_some(self.route.name.as_str())
    }

    /// The policy that decided.
    #[must_use]
    pub fn policy(&self) -> Option<&Policy> {
        self.route.policy.as_ref().map(|policy| &*policy.policy)
    }

    /// The policy's name.
    #[must_use]
    pub fn policy_name(&self) -> Option<&str> {
        self.route.policy_name()
    }

    /// The namespace of its limits.
    #[must_use]
    pub fn scope(&self) -> Option<&Arc<Scope>> {
        self.route.policy.as_ref().map(|policy| &policy.scope)
    }

    /// The limits that were asked, and what each answered.
    #[must_use]
    pub fn limits(&self) -> (&[Limit], &[LimitOutcome]) {
        match (self.decision.as_deref().map(|decision| &decision.verdict), &self.outcome) {
            (Some(policy::Verdict::Check(plan)), Some(outcome)) => (plan.limits(), &outcome.limits),
            _ => (&[], &[]),
        }
    }

    /// How long to wait after a refusal by limits. `None` where waiting does not help.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        let (limits, _) = self.limits();
        let us = self.outcome.as_ref().filter(|it| !it.admitted)?.retry_after_us(limits)?;
        Some(Duration::from_micros(us))
    }
}

/// One of many, decided. Waits for its upstream, unless it was answered.
pub struct DecidedReplay {
    /// How it was decided.
    pub decided: ReplayDecision,
    rest: Option<PendingReplay>,
}

/// The rest of a request whose end changes what is counted.
pub struct PendingReplay(Run, Rc<Watch>);

impl DecidedReplay {
    /// What is left of it until its upstream has replied. `None` if it was answered, or if its
    /// end changes nothing of what is counted.
    pub fn take_rest(&mut self) -> Option<PendingReplay> {
        self.rest.take()
    }
}

impl fmt::Debug for DecidedReplay {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("DecidedReplay").field("decided", &self.decided).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Watch {
    decided: RefCell<Option<ReplayDecision>>,
    /// The reply is metered.
    metered: Cell<bool>,
    reply: Cell<Option<(u16, u64)>>,
    took: Cell<Duration>,
}

impl WatchedExchange for Rc<Watch> {
    fn decided(&self, context: &RequestContext) -> Next {
        let bodies = context.decided.as_ref().and_then(Decided::bodies);
        self.metered.set(bodies.is_some_and(|bodies| !bodies.meters.list().is_empty()));
        let decided = ReplayDecision::of(context);
        let next = if decided.ends { Next::Send } else { Next::Stop };
        *self.decided.borrow_mut() = Some(decided);
        next
    }

    fn took(&self) -> Duration {
        self.took.get()
    }
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
        let (status, bytes) = poll_fn(|_| match self.reply.take() {
            Some(reply) => Poll::Ready(reply),
            None => Poll::Pending,
        })
        .await;
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
        let body = match bytes {
            0 => Body::empty(),
            bytes => {
                let metered = self.metered.get();
                let most = if metered { METERED_BYTES_MAX } else { REPLY_BYTES_MAX };
                Body::source(Box::new(BlankBody { left: bytes.min(most) }))
            }
        };
        Ok(Response::new(status, body))
    }
}

/// A body of which only the length is known.
struct BlankBody {
    left: u64,
}

impl Source for BlankBody {
    fn poll_fill(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        Poll::Ready(Ok(()))
    }

    fn data(&self) -> &[u8] {
        let bytes = usize::try_from(self.left).unwrap_or(usize::MAX).min(BLANK.len());
        BLANK.get(..bytes).unwrap_or_default()
    }

    fn consume(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes as u64);
    }

    fn remaining(&self) -> Option<u64> {
        Some(self.left)
    }

    fn is_end(&self) -> bool {
        self.left == 0
    }

    fn finish(self: Box<Self>, _end: &BodyEnd) {}
}

impl Trial {
    /// The client with this address.
    #[must_use]
    pub fn client(&self, from: IpAddr) -> TrialClient {
        let local = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), PORT);
        let listener = self.local.snapshot().trial_listener();
        let plain = Peer { listener, ..Peer::plain(SocketAddr::new(from, PORT), local) };
        TrialClient { plain: Arc::new(plain), secure: None }
    }

    /// Takes one of many requests to its decision: `None` if there is none, which would be an
    /// error in Weir.
    ///
    /// # Errors
    /// It is not a request that a client could send.
    pub fn pass<'h, H>(
        &self,
        request: ReplayRequest<'_, H>,
        client: &mut TrialClient,
    ) -> Result<Option<DecidedReplay>, InvalidRequest>
    where
        H: Iterator<Item = (&'h str, &'h str)>,
    {
        let _entered = self.runtime.enter();
        let peer = Arc::clone(client.peer(request.https));
        let request = request.built()?;
        let (local, watch) = (Arc::clone(&self.local), Rc::<Watch>::default());
        let watched = Rc::clone(&watch);
        let mut run: Run = Box::pin(async move { handle(&local, request, &peer, &watched).await });
        let answered = poll_once(&mut run);
        let decided = watch.decided.borrow_mut().take();
        let Some(decided) = decided else { return Ok(None) };
        let rest = match answered {
            Poll::Ready(answered) => {
                answered.into_iter().for_each(|answered| drain(answered.body));
                None
            }
            Poll::Pending => decided.ends.then_some(PendingReplay(run, watch)),
        };
        Ok(Some(DecidedReplay { decided, rest }))
    }

    /// Ends one of many with its upstream's reply, `took` after it was sent. What it settles counts
    /// from now on.
    pub fn pass_on(&self, rest: PendingReplay, reply: ReplayReply, took: Duration) {
        let PendingReplay(mut run, watch) = rest;
        let _entered = self.runtime.enter();
        watch.took.set(took);
        match reply {
            ReplayReply::ClientGone => {}
            ReplayReply::Answer(status, bytes) => {
                watch.reply.set(Some((status, bytes)));
                if let Poll::Ready(Some(answered)) = poll_once(&mut run) {
                    drain(answered.body);
                }
            }
        }
    }

    /// Drops counters that have expired, a part of them with each call.
    pub fn sweep(&self) {
        self.limiter.sweep();
    }
}

impl<'h, H: Iterator<Item = (&'h str, &'h str)>> ReplayRequest<'_, H> {
    fn built(self) -> Result<Request, InvalidRequest> {
        let method = Method::from_bytes(self.method.as_bytes())
            .map_err(|_| InvalidRequest::of("method", self.method, "a method such as GET"))?;
        // Without a fragment, and as strict as the reader of requests.
        let target = PathAndQuery::try_from(self.target).ok();
        let is_path = self.target.starts_with('/') || self.target == "*";
        let target = target.filter(|_| is_path).ok_or_else(|| {
            InvalidRequest::of("target", self.target, "a path and perhaps a query")
        })?;
        let mut fields = Fields::new();
        fields.append(Known::Host, if self.host.is_empty() { HOST } else { self.host });
        for (name, value) in self.headers {
            let sent = !value.is_empty() && !name.eq_ignore_ascii_case("host");
            let plain = is_token(name) && !value.bytes().any(|byte| byte < b' ');
            if sent && plain && !is_framing(name) {
                fields.append(name, value);
            }
        }
        if let Some(bytes) = self.body_bytes.filter(|bytes| *bytes > 0) {
            fields.append(Known::ContentLength, itoa::Buffer::new().format(bytes));
        }
        let version = match self.version {
            10 => Version::HTTP_10,
            20 | 30 => Version::HTTP_2,
            _ => Version::HTTP_11,
        };
        Ok(Request::for_target(method, version, fields, target.as_str()))
    }
}

/// Fields that say how a body or a connection is to be read. There is neither here.
fn is_framing(name: &str) -> bool {
    const FRAMING: [&str; 5] =
        ["content-length", "transfer-encoding", "connection", "upgrade", "expect"];
    FRAMING.iter().any(|known| known.eq_ignore_ascii_case(name))
}
