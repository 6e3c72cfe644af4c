//! The state of one request, and what must happen when it ends, however it ends: settling, metrics,
//! the access log.
//!
//! It travels with the request, then as the end hook of the reply's body. If it is dropped before
//! that because the client went away, it does the same. Of the snapshot it keeps only the route's
//! [`RouteHandle`], so that a long stream does not keep an old configuration alive.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http::{HeaderMap, Method, StatusCode};
use smallvec::SmallVec;

use crate::clock;
use crate::limit::{Ending, Grant, KeyDigest, Limiter};
use crate::listen::Peer;
use crate::plan::{Limit, PlanOutcome};
use crate::policy::{self, Decision};
use crate::proxy::decide::content::ReadBody;
use crate::proxy::decide::facts::RequestView;
use crate::proxy::decide::settle;
use crate::proxy::decide::usage::{self, Usage};
use crate::proxy::forward::PolicyFields;
use crate::proxy::forward::tunnel::{self, UpgradeRequest};
use crate::proxy::live::LocalSnapshot;
use crate::proxy::receive::client::Client;
use crate::proxy::receive::hop;
use crate::proxy::receive::id::Id;
use crate::proxy::receive::target::Target;
use crate::proxy::record::kept::KeptHead;
use crate::proxy::record::remembered::{self, PackedFacts};
use crate::proxy::record::trace::{self, TraceState};
use crate::proxy::record::{access, measure};
use crate::proxy::reply;
use crate::proxy::reply::cors::{self, Cors};
use crate::proxy::reply::grpc;
use crate::proxy::reply::refusal::{CLIENT_GONE, Refusal, SHUTDOWN};
use crate::proxy::snapshot::{Route, RouteHandle, Snapshot};
use crate::proxy::verdict::{Cause, Rejection, Verdict};
use crate::telemetry::{Access, AccessField, Label as _};
use crate::upstream::UpstreamError;
use crate::wire::{self, Body, BodyEnd, Fields, Known, OnEnd, Request, Response, TrailerFilter};

/// The state of one request.
#[derive(Debug)]
pub(super) struct RequestContext {
    pub(super) started: Instant,
    pub(super) id: Id,
    pub(super) client: Client,
    pub(super) method: Method,
    /// The path for the access log, or for what is remembered: in its normal form, or as it came
    /// if it has none.
    pub(super) path: SmallVec<[u8; 64]>,
    pub(super) route: Arc<RouteHandle>,
    pub(super) verdict: Option<Verdict>,
    /// When the policy and the limits had decided, after the wait in a leaky bucket.
    pub(super) decided_at: Option<Instant>,
    /// The check that was skipped to let it through: `Weir-Degraded`.
    pub(super) degraded: Option<&'static str>,
    pub(super) decision: Option<Arc<Decision>>,
    pub(super) outcome: Option<PlanOutcome>,
    pub(super) grant: Option<Grant>,
    /// The fields that the policy sets on the reply.
    pub(super) response_fields: PolicyFields,
    /// How the request would end if it ended now.
    pub(super) ending: Ending,
    /// 0 until it is answered.
    pub(super) status: u16,
    /// It was refused, denied or failed here, or the client left before it was forwarded.
    pub(super) refused: bool,
    /// The client speaks gRPC.
    pub(super) grpc: bool,
    /// The `Origin` of the request, if the route has CORS rules.
    pub(super) origin: Option<Box<[u8]>>,
    /// The failure on the upstream's side, for the log.
    pub(super) failure: Option<&'static str>,
    /// Why a counter could not be reached, for the log.
    pub(super) store_failure: Option<&'static str>,
    /// The protocol that the client asks to switch to, until the upstream agrees.
    pub(super) upgrade: Option<Box<UpgradeRequest>>,
    /// Bytes from the client through the tunnel.
    pub(super) tunnelled_up: Option<u64>,
    /// Facts of the reply's head that the policy's `settle` reads.
    pub(super) reply_facts: Vec<(String, String)>,
    /// Whether the reply is an upstream's.
    pub(super) by_upstream: bool,
    /// What its policy said of it when it had ended, if anything.
    pub(super) settled: Option<Box<settle::SettlementReport>>,
    /// What it uses, if its policy wants to know.
    pub(super) usage: Option<Box<Usage>>,
    /// Bytes of the request's body once it has ended. Only counted if something reads it.
    pub(super) request_bytes: Option<Arc<AtomicU64>>,
    /// Set if the route limits the time for the whole request.
    pub(super) timeout: Option<Box<RequestTimeout>>,
    /// What the access line shows of its head and of its sending. The trace uses the latter.
    pub(super) kept: Option<Box<KeptHead>>,
    /// What its trace needs, if it is traced.
    pub(super) trace: Option<Box<TraceState>>,
    /// The digests of the keys of the limits that refused it, for the access log and the trace.
    pub(super) refused_keys: SmallVec<[KeyDigest; 1]>,
    /// Why it was refused, for what is remembered of it.
    pub(super) cause: Option<Cause>,
    /// What is wrong with the request itself, if it was rejected for that.
    pub(super) rejection: Option<Box<Rejection>>,
    /// It is remembered even if it is not refused.
    pub(super) sampled: bool,
    /// What the policy saw, if it is remembered.
    pub(super) facts: Option<PackedFacts>,
    finished: bool,
}

/// The time limit on a whole request.
#[derive(Debug)]
pub(super) struct RequestTimeout {
    pub(super) deadline: Instant,
    /// The request's body has ended.
    sent: Arc<AtomicBool>,
}

impl RequestTimeout {
    /// Whether the client has not sent all of its request.
    pub(super) fn is_uploading(&self) -> bool {
        !self.sent.load(Ordering::Relaxed)
    }
}

/// The request's body has not ended yet.
pub(super) const BYTES_UNKNOWN: u64 = u64::MAX;

impl RequestContext {
    /// The context of a request that has arrived.
    pub(super) fn begin(local: &LocalSnapshot, request: &Request, peer: &Peer) -> Box<Self> {
        let client = Client::of(&request.fields, peer, &local.snapshot().settings.trusted_proxies);
        let id = Id::of(&request.fields, client.trusted);
        let mut context = Self::new(local, client, id, request.method.clone());
        context.grpc = grpc::is_request(request);
        // All routes have the same settings of the access log.
        if context.route.access != Access::Off {
            context.kept = KeptHead::of(local, request, peer);
        }
        if let Some(sampling) = local.sampling() {
            trace::begin(&mut context, sampling, request);
        }
        context
    }

    /// Keeps the header fields that the access log's line has.
    #[inline]
    pub(super) fn keep_headers(&mut self, fields: &Fields, limiter: &Limiter) {
        if let Some(kept) = &mut self.kept
            && self.route.access_fields.has_headers()
        {
            kept.keep_headers(&self.route.access_headers, fields, limiter);
        }
    }

    /// The context of a request whose head can't be read. Only its peer is known.
    pub(super) fn unreadable(local: &LocalSnapshot, peer: &Peer) -> Box<Self> {
        Self::new(
            local,
            Client::untrusted(peer),
            Id::fresh(),
            Method::from_bytes(b"-").unwrap_or_default(),
        )
    }

    /// Boxed once, since it becomes the end hook of the reply's body.
    fn new(local: &LocalSnapshot, client: Client, id: Id, method: Method) -> Box<Self> {
        Box::new(Self {
            started: clock::monotonic(),
            id,
            client,
            method,
            path: SmallVec::new(),
            route: Arc::clone(local.no_route()),
            verdict: None,
            decided_at: None,
            degraded: None,
            decision: None,
            outcome: None,
            grant: None,
            response_fields: PolicyFields::new(),
            ending: Ending::Unsent,
            status: 0,
            refused: false,
            grpc: false,
            origin: None,
            upgrade: None,
            tunnelled_up: None,
            failure: None,
            store_failure: None,
            reply_facts: Vec::new(),
            by_upstream: false,
            settled: None,
            usage: None,
            request_bytes: None,
            timeout: None,
            kept: None,
            trace: None,
            refused_keys: SmallVec::new(),
            cause: None,
            rejection: None,
            sampled: false,
            facts: None,
            finished: false,
        })
    }

    /// Records the path for the access log, the trace, and what is remembered of the request.
    pub(super) fn note_path(&mut self, path: &str) {
        // All routes have the same settings for both.
        let shown = self.route.access != Access::Off || self.trace.is_some();
        if shown || self.route.insight.remembers() {
            self.path.clear();
            self.path.extend_from_slice(access::cut(path).as_bytes());
        }
    }

    /// Records the route, and returns it.
    pub(super) fn enter_route<'h>(
        &mut self,
        local: &LocalSnapshot,
        snapshot: &'h Snapshot,
        index: usize,
    ) -> Result<&'h Route, Refusal> {
        let (Some(route), Some(handle)) = (snapshot.route(index), local.handle(index)) else {
            return Err(Refusal::NotFound);
        };
        self.route = Arc::clone(handle);
        self.sampled = self.route.insight.is_sampled();
        if let Some(trace) = &mut self.trace {
            trace.deciding = Some(clock::monotonic());
        }
        Ok(route)
    }

    /// What facts are read from.
    pub(super) fn view<'a>(
        &'a self,
        request: &'a Request,
        target: Target<'a>,
        peer: &'a Peer,
        parameters: &'a [&'a str],
        body: Option<&'a ReadBody>,
    ) -> RequestView<'a> {
        let (client, route) = (&self.client, self.route.name.as_str());
        RequestView { request, target, client, peer, route, parameters, body }
    }

    /// Whether what the policy saw is remembered: of a refusal, and of the sample.
    pub(super) fn is_remembered<T>(&self, admitted: &Result<T, Refusal>) -> bool {
        self.sampled || (admitted.is_err() && self.route.insight.remembers())
    }

    /// The process already buffers as many bytes as it may.
    #[cold]
    pub(super) fn too_much_buffered(&mut self) -> Refusal {
        self.failure = Some("buffered-bytes");
        Refusal::TooMuchBuffered
    }

    /// Records the request's origin, if the route has CORS rules.
    pub(super) fn note_origin(&mut self, fields: &Fields) {
        if self.cors().is_some() {
            self.origin = fields.get(Known::Origin).map(Box::from);
        }
    }

    /// Whether it is a preflight that the route exempts from policy and limits: without a body, as
    /// browsers send it, and from one of the route's origins.
    pub(super) fn bypasses(&self, request: &Request, body: &Body) -> bool {
        let known = self
            .cors()
            .zip(self.origin.as_deref())
            .is_some_and(|(cors, origin)| cors.bypasses(origin));
        known && !body.is_streaming() && cors::preflight(&request.method, &request.fields).is_some()
    }

    /// Lets scripts of the origin read a response of Weir's own.
    pub(super) fn allow_origin(&self, fields: &mut Fields) {
        if let Some(cors) = self.cors() {
            cors.allow(fields, self.origin.as_deref());
        }
    }

    fn cors(&self) -> Option<&Cors> {
        self.route.extras.as_ref()?.cors.as_ref()
    }

    /// Records what the policy and its limits decided.
    pub(super) fn decided(&mut self, verdict: Verdict) {
        self.route.tally.decided(verdict);
        self.verdict = Some(verdict);
    }

    /// Called before the request is sent: from here on the upstream may have received it. The
    /// body's size is counted if the policy's `settle` reads it, or the access line shows it.
    pub(super) fn track_body(&mut self, body: Body) -> Body {
        self.ending = Ending::ClientGone;
        let route = &self.route;
        let shown = route.access != Access::Off && route.access_fields.has(AccessField::BytesIn);
        if !shown && !settle::wants(self, settle::REQUEST_BYTES) {
            return body;
        }
        // A hook would make an empty body one that can't be sent twice.
        let arrived = (!body.is_streaming()).then(|| body.length().unwrap_or_default());
        let bytes = Arc::new(AtomicU64::new(arrived.unwrap_or(BYTES_UNKNOWN)));
        self.request_bytes = Some(Arc::clone(&bytes));
        if arrived.is_some() {
            return body;
        }
        body.on_end(move |end: &BodyEnd| bytes.store(end.bytes, Ordering::Relaxed))
    }

    /// When the whole request must have ended, if the route limits its time.
    pub(super) fn deadline(&self, route: &Route) -> Option<Instant> {
        route.request_timeout.map(|timeout| self.started + timeout)
    }

    /// Limits the whole request to `timeout`, if there is one. The end of its body is then
    /// recorded.
    pub(super) fn with_timeout(&mut self, body: Body, timeout: Option<Duration>) -> Body {
        let Some(timeout) = timeout else { return body };
        let streams = body.is_streaming();
        let sent = Arc::new(AtomicBool::new(!streams));
        self.timeout = Some(Box::new(RequestTimeout {
            deadline: self.started + timeout,
            sent: Arc::clone(&sent),
        }));
        if streams {
            body.on_end(move |_: &BodyEnd| sent.store(true, Ordering::Relaxed))
        } else {
            body
        }
    }

    /// There is no reply. A request whose own body failed is the client's fault and refunds
    /// nothing.
    pub(super) fn upstream_failed(&mut self, error: &UpstreamError) -> Refusal {
        self.failure = Some(error.cause.label());
        if error.body.is_none() {
            let now = clock::monotonic();
            let overdue = self.timeout.as_ref().is_some_and(|timeout| now >= timeout.deadline);
            self.ending = match (error.sent, overdue) {
                (false, _) => Ending::Unsent,
                (true, false) => Ending::UpstreamFailed,
                // No refund, or a client could get one by uploading until its time is over.
                (true, true) => Ending::ClientGone,
            };
        }
        Refusal::from(error)
    }

    /// Whether a reply's status is valid here. 600 and above have no meaning (RFC 9110, 15), and a
    /// 101 must agree to the protocol that was asked for.
    pub(super) fn accepts_status(&self, reply: &Response) -> bool {
        match reply.status {
            StatusCode::SWITCHING_PROTOCOLS => {
                self.upgrade.as_ref().is_some_and(|upgrade| upgrade.is_met(reply))
            }
            status => status.as_u16() < 600,
        }
    }

    /// Sends the reply, its body streaming. The request is finished at that body's end.
    pub(super) fn stream(mut self: Box<Self>, mut reply: Response) -> Response {
        hop::strip(&mut reply.fields);
        settle::note_reply(&mut self, &reply.fields);
        if let Some(extras) = &self.route.extras {
            extras.apply(&mut reply.fields);
        }
        self.answered(reply.status);
        reply::add_fields(&mut reply.fields, &self);
        if reply.status == StatusCode::SWITCHING_PROTOCOLS {
            return self.switch(reply);
        }
        let body = usage::metered(&mut self, &mut reply.fields, reply.body);
        let body =
            body.filter_trailers(TrailerFilter::With(hop::filter_trailers)).on_end_boxed(self);
        Response { body, ..reply }
    }

    /// The upstream agrees to another protocol. The request is finished when the tunnel ends.
    #[cold]
    fn switch(mut self: Box<Self>, mut reply: Response) -> Response {
        // A 101 has no content (RFC 9110, 8.6). Nothing must take the first bytes of the tunnel for
        // it.
        reply.fields.remove(Known::ContentLength);
        reply.body = Body::empty();
        if let (Some(upgrade), Some(wire::Upgrade::Stream(upstream))) =
            (self.upgrade.take(), reply.upgrade.take())
        {
            upgrade.announce(&mut reply.fields);
            reply.upgrade = Some(upgrade.join(upstream, self));
        }
        reply
    }

    /// The tunnel has ended.
    pub(super) fn tunnel_ended(
        mut self: Box<Self>,
        end: tunnel::TunnelEnd,
        transferred: tunnel::TransferredBytes,
    ) {
        let (ending, failure) = match end {
            tunnel::TunnelEnd::Closed => (Ending::Completed, None),
            tunnel::TunnelEnd::Idle => (Ending::Completed, Some("tunnel-idle")),
            tunnel::TunnelEnd::Client => (Ending::ClientGone, Some(self.abort_reason())),
            tunnel::TunnelEnd::Upstream => (Ending::UpstreamFailed, Some("reply-cut")),
        };
        self.failure = failure;
        self.tunnelled_up = Some(transferred.up);
        self.finish(ending, transferred.down);
    }

    /// Answers with a response of Weir's own. Everything is known, so the request is finished at
    /// once.
    pub(super) fn refuse(mut self: Box<Self>, refusal: &Refusal) -> Response {
        self.refused = true;
        self.cause = refusal.cause();
        if let Some(cause) = self.cause {
            self.route.tally.refused(cause);
        }
        if self.route.insight.remembers() {
            self.note_rejection(refusal);
        }
        let (status, mut reply) = refusal.response(&self);
        self.answered(status);
        reply::add_fields(&mut reply.fields, &self);
        let bytes = reply.body.length().unwrap_or_default();
        self.finish(self.ending, bytes);
        reply
    }

    /// Records what is wrong with the request, if that is why it is refused.
    pub(super) fn note_rejection(&mut self, refusal: &Refusal) {
        self.rejection = refusal.rejection().map(Box::new);
    }

    /// The limits that were checked, and their outcome.
    pub(super) fn limits(&self) -> Option<(&[Limit], &PlanOutcome)> {
        match &self.decision.as_ref()?.verdict {
            policy::Verdict::Check(plan) => Some((plan.limits(), self.outcome.as_ref()?)),
            policy::Verdict::Bypass | policy::Verdict::Deny(_) => None,
        }
    }

    /// How long the request waited in a leaky bucket before it was sent.
    pub(super) fn delayed(&self) -> Duration {
        self.outcome
            .as_ref()
            .filter(|outcome| outcome.admitted)
            .map_or(Duration::ZERO, |outcome| Duration::from_micros(outcome.delay_us()))
    }

    /// Why it ended before its reply did: the client left, or the grace period of a shutdown is
    /// over.
    fn abort_reason(&self) -> &'static str {
        if self.route.is_cut() { "shutdown" } else { "client-gone" }
    }

    fn answered(&mut self, status: StatusCode) {
        self.status = status.as_u16();
        self.route.tally.answered(self.status);
    }

    fn finish(&mut self, ending: Ending, bytes: u64) {
        if std::mem::replace(&mut self.finished, true) {
            return;
        }
        let took = clock::monotonic().saturating_duration_since(self.started);
        settle::settle(self, ending, bytes, took);
        measure::count(self);
        // The hours of a tunnel say nothing about how long requests take.
        if self.tunnelled_up.is_none() {
            self.route.tally.request_seconds().observe(took);
        }
        access::log(self, bytes, took);
        trace::finish(self, took);
        remembered::remember(self, took);
    }
}

impl OnEnd for RequestContext {
    fn on_trailers(&mut self, trailers: &HeaderMap) {
        settle::note_trailers(self, trailers);
    }

    fn on_end(mut self: Box<Self>, end: &BodyEnd) {
        let ending = match end.outcome {
            wire::BodyOutcome::Complete if self.status < 500 => {
                if self.usage.as_ref().is_some_and(|usage| usage.is_cut()) {
                    self.failure = Some("hard-cut");
                }
                Ending::Completed
            }
            wire::BodyOutcome::Complete => Ending::UpstreamFailed,
            wire::BodyOutcome::Failed(wire::BodyFailure::Overdue) => {
                self.failure = Some(settle::REQUEST_TIMEOUT);
                // No refund, or a client could get one by making its request last.
                Ending::ClientGone
            }
            wire::BodyOutcome::Failed(_) => {
                self.failure = Some("reply-cut");
                Ending::UpstreamFailed
            }
            wire::BodyOutcome::Dropped => {
                if let Some(usage) = &mut self.usage {
                    usage.rest_read = end.rest_read;
                }
                self.failure = Some(self.abort_reason());
                Ending::ClientGone
            }
        };
        self.finish(ending, end.bytes);
    }
}

impl Drop for RequestContext {
    /// Only a request whose handler was dropped is not finished yet. `listen` drops it when the
    /// client goes away before the reply.
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        self.refused = true;
        self.failure = Some(self.abort_reason());
        if self.status == 0 {
            self.status = if self.route.is_cut() { SHUTDOWN } else { CLIENT_GONE };
            self.route.tally.answered(self.status);
        }
        self.finish(self.ending, 0);
    }
}
