//! One request's record: what is known of it so far, and what must happen when it is over, however
//! it ends: settling, metrics, the log line.
//!
//! It travels with the request, then as the end-hook of the reply's body; dropped before that,
//! because the client went away, it does the same. It keeps nothing of the house but the route's
//! [`Tail`], so that a long stream does not keep an old configuration.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http::{HeaderMap, Method, StatusCode};
use smallvec::SmallVec;

use super::client::Client;
use super::cors::{self, Cors};
use super::forward::PolicyFields;
use super::house::{House, Route, Tail};
use super::id::Id;
use super::live::Local;
use super::refusal::{CLIENT_GONE, Refusal, SHUTDOWN};
use super::tally::Decided;
use super::tunnel::{self, Asked};
use super::{access, grpc, hop, reply, settle};
use crate::clock;
use crate::limit::{Ending, Grant};
use crate::listen::Peer;
use crate::plan::{Limit, Outcome};
use crate::policy::{Decision, Verdict};
use crate::telemetry::Access;
use crate::upstream::UpstreamError;
use crate::wire::{self, Body, BodyEnd, Fields, Known, OnEnd, Request, Response};

/// One request's record.
#[derive(Debug)]
pub(super) struct Visit {
    pub(super) started: Instant,
    pub(super) id: Id,
    pub(super) client: Client,
    pub(super) method: Method,
    /// Its path for the access log, where there is one: in its normal form, or as it came where it
    /// has none.
    pub(super) path: SmallVec<[u8; 64]>,
    pub(super) tail: Arc<Tail>,
    pub(super) decided: Option<Decided>,
    /// What was set aside to let it through: `Weir-Degraded`.
    pub(super) degraded: Option<&'static str>,
    pub(super) decision: Option<Arc<Decision>>,
    pub(super) outcome: Option<Outcome>,
    pub(super) grant: Option<Grant>,
    /// What the policy wants set on the reply.
    pub(super) response_fields: PolicyFields,
    /// How it would end if it ended now.
    pub(super) ending: Ending,
    /// 0 until it is answered.
    pub(super) status: u16,
    /// It was refused, denied or failed here.
    pub(super) refused: bool,
    /// The client speaks gRPC.
    pub(super) grpc: bool,
    /// The script's origin that asks, where the route wants to know.
    pub(super) origin: Option<Box<[u8]>>,
    /// What went wrong behind us, for the log.
    pub(super) failure: Option<&'static str>,
    /// What the client's connection shall become, where the upstream agrees.
    pub(super) upgrade: Option<Box<Asked>>,
    /// Bytes that came from the client through what it became.
    pub(super) tunnelled_up: Option<u64>,
    /// Facts of the reply's head that the policy's `settle` reads.
    pub(super) reply_facts: Vec<(String, String)>,
    /// Bytes of the request's body, once it has ended; only counted where `settle` reads it.
    pub(super) request_bytes: Option<Arc<AtomicU64>>,
    /// Where the route bounds the whole request.
    pub(super) timeout: Option<Box<Timeout>>,
    over: bool,
}

/// The end of a request's time.
#[derive(Debug)]
pub(super) struct Timeout {
    pub(super) deadline: Instant,
    /// The request's body has come to its end.
    sent: Arc<AtomicBool>,
}

impl Timeout {
    /// Whether the client has not sent all of its request.
    pub(super) fn is_uploading(&self) -> bool {
        !self.sent.load(Ordering::Relaxed)
    }
}

/// The request's body has not ended yet.
pub(super) const BYTES_UNKNOWN: u64 = u64::MAX;

impl Visit {
    /// A request has arrived.
    pub(super) fn begin(local: &Local, request: &Request, peer: &Peer) -> Box<Self> {
        let client = Client::of(&request.fields, peer, &local.house().settings.trusted_proxies);
        let id = Id::of(&request.fields, client.trusted);
        let mut visit = Self::new(local, client, id, request.method.clone());
        visit.grpc = grpc::is_spoken(request);
        visit
    }

    /// Something has arrived whose head can't be read: nothing is known of it but where it came
    /// from.
    pub(super) fn unread(local: &Local, peer: &Peer) -> Box<Self> {
        Self::new(
            local,
            Client::untrusted(peer),
            Id::fresh(),
            Method::from_bytes(b"-").unwrap_or_default(),
        )
    }

    /// Boxed once, since it becomes the end-hook of the reply's body.
    fn new(local: &Local, client: Client, id: Id, method: Method) -> Box<Self> {
        Box::new(Self {
            started: clock::monotonic(),
            id,
            client,
            method,
            path: SmallVec::new(),
            tail: Arc::clone(local.nowhere()),
            decided: None,
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
            reply_facts: Vec::new(),
            request_bytes: None,
            timeout: None,
            over: false,
        })
    }

    /// What it asks for, for the access log.
    pub(super) fn note_path(&mut self, path: &str) {
        // Each route's tail says the same of the access log.
        if self.tail.access != Access::Off {
            self.path.clear();
            self.path.extend_from_slice(access::cut(path).as_bytes());
        }
    }

    /// Its route is found.
    pub(super) fn enter<'h>(
        &mut self,
        local: &Local,
        house: &'h House,
        index: usize,
    ) -> Result<&'h Route, Refusal> {
        let (Some(route), Some(tail)) = (house.route(index), local.tail(index)) else {
            return Err(Refusal::NotFound);
        };
        self.tail = Arc::clone(tail);
        Ok(route)
    }

    /// The process holds as many bytes as it may.
    #[cold]
    pub(super) fn crowded_out(&mut self) -> Refusal {
        self.failure = Some("buffered-bytes");
        Refusal::TooMuchBuffered
    }

    /// Whose script asks.
    pub(super) fn note_origin(&mut self, fields: &Fields) {
        if self.cors().is_some() {
            self.origin = fields.get(Known::Origin).map(Box::from);
        }
    }

    /// Whether it is a preflight that its route lets through uncounted: one without a body, as
    /// browsers send it, from an origin of the route's.
    pub(super) fn bypasses(&self, request: &Request, body: &Body) -> bool {
        let known = self
            .cors()
            .zip(self.origin.as_deref())
            .is_some_and(|(cors, origin)| cors.bypasses(origin));
        known && !body.is_streaming() && cors::preflight(&request.method, &request.fields).is_some()
    }

    /// Lets the origin's script read an answer of Weir's own.
    pub(super) fn open(&self, fields: &mut Fields) {
        if let Some(cors) = self.cors() {
            cors.allow(fields, self.origin.as_deref());
        }
    }

    fn cors(&self) -> Option<&Cors> {
        self.tail.extras.as_ref()?.cors.as_ref()
    }

    /// Its policy, or its limits, have spoken.
    pub(super) fn decided(&mut self, decided: Decided) {
        self.tail.tally.decided(decided);
        self.decided = Some(decided);
    }

    /// It is about to be sent: from here on the upstream may have got it. The body's size is
    /// counted where the policy's `settle` reads it.
    pub(super) fn sending(&mut self, body: Body) -> Body {
        self.ending = Ending::ClientGone;
        if !settle::wants(self, "request.bytes") {
            return body;
        }
        let bytes = Arc::new(AtomicU64::new(BYTES_UNKNOWN));
        self.request_bytes = Some(Arc::clone(&bytes));
        body.on_end(move |end: &BodyEnd| bytes.store(end.bytes, Ordering::Relaxed))
    }

    /// The whole request has `timeout`, where it is bounded: then the end of its body is noted.
    pub(super) fn bound(&mut self, body: Body, timeout: Option<Duration>) -> Body {
        let Some(timeout) = timeout else { return body };
        let streams = body.is_streaming();
        let sent = Arc::new(AtomicBool::new(!streams));
        self.timeout =
            Some(Box::new(Timeout { deadline: self.started + timeout, sent: Arc::clone(&sent) }));
        if streams {
            body.on_end(move |_: &BodyEnd| sent.store(true, Ordering::Relaxed))
        } else {
            body
        }
    }

    /// There is no reply. A request whose own body failed is the client's doing, and refunds
    /// nothing.
    pub(super) fn not_replied(&mut self, error: &UpstreamError) -> Refusal {
        self.failure = Some(error.cause.label());
        if error.body.is_none() {
            self.ending = if error.sent { Ending::UpstreamFailed } else { Ending::Unsent };
        }
        Refusal::from(error)
    }

    /// Whether a reply's status means something here: nobody knows what 600 and above do (RFC 9110,
    /// 15), and a 101 agrees to what was asked for.
    pub(super) fn understands(&self, reply: &Response) -> bool {
        match reply.status {
            StatusCode::SWITCHING_PROTOCOLS => {
                self.upgrade.as_ref().is_some_and(|asked| asked.is_met(reply))
            }
            status => status.as_u16() < 600,
        }
    }

    /// The reply goes out, its body as it comes; what is left to do is done at that body's end.
    pub(super) fn stream(mut self: Box<Self>, mut reply: Response) -> Response {
        hop::strip(&mut reply.fields);
        settle::note_reply(&mut self, &reply.fields);
        if let Some(extras) = &self.tail.extras {
            extras.apply(&mut reply.fields);
        }
        self.answered(reply.status);
        reply::dress(&mut reply.fields, &self);
        if reply.status == StatusCode::SWITCHING_PROTOCOLS {
            return self.switch(reply);
        }
        let body = reply.body.filter_trailers(hop::sift_trailers).on_end_boxed(self);
        Response { body, ..reply }
    }

    /// The upstream agrees to another protocol: what is left to do is done at the end of that.
    #[cold]
    fn switch(mut self: Box<Self>, mut reply: Response) -> Response {
        // There is none (RFC 9110, 8.6), and nobody may take the first bytes of what follows for
        // one.
        reply.fields.remove(Known::ContentLength);
        reply.body = Body::empty();
        if let (Some(asked), Some(wire::Upgrade::Stream(upstream))) =
            (self.upgrade.take(), reply.upgrade.take())
        {
            asked.announce(&mut reply.fields);
            reply.upgrade = Some(asked.join(upstream, self));
        }
        reply
    }

    /// What the connection became has ended.
    pub(super) fn tunnel_ended(mut self: Box<Self>, end: tunnel::End, moved: tunnel::Moved) {
        let (ending, failure) = match end {
            tunnel::End::Closed => (Ending::Completed, None),
            tunnel::End::Idle => (Ending::Completed, Some("tunnel-idle")),
            tunnel::End::Client => (Ending::ClientGone, Some(self.gone())),
            tunnel::End::Upstream => (Ending::UpstreamFailed, Some("reply-cut")),
        };
        self.failure = failure;
        self.tunnelled_up = Some(moved.up);
        self.finish(ending, moved.down);
    }

    /// Weir answers instead: everything is known, so what is left to do is done at once.
    pub(super) fn refuse(mut self: Box<Self>, refusal: &Refusal) -> Response {
        self.refused = true;
        let (status, mut reply) = refusal.answer(&self);
        self.answered(status);
        reply::dress(&mut reply.fields, &self);
        let bytes = reply.body.length().unwrap_or_default();
        self.finish(self.ending, bytes);
        reply
    }

    /// The limits that were asked and what they said.
    pub(super) fn limits(&self) -> Option<(&[Limit], &Outcome)> {
        match &self.decision.as_ref()?.verdict {
            Verdict::Check(plan) => Some((plan.limits(), self.outcome.as_ref()?)),
            Verdict::Bypass | Verdict::Deny(_) => None,
        }
    }

    /// How long it waited for its turn in a leaky bucket, before anything was sent.
    pub(super) fn delayed(&self) -> Duration {
        self.outcome
            .as_ref()
            .filter(|outcome| outcome.admitted)
            .map_or(Duration::ZERO, |outcome| Duration::from_micros(outcome.delay_us()))
    }

    /// Why it ended before its reply did: its client left, or the grace of a shutdown is over.
    fn gone(&self) -> &'static str {
        if self.tail.is_cut() { "shutdown" } else { "client-gone" }
    }

    fn answered(&mut self, status: StatusCode) {
        self.status = status.as_u16();
        self.tail.tally.answered(self.status);
    }

    fn finish(&mut self, ending: Ending, bytes: u64) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        let took = clock::monotonic().saturating_duration_since(self.started);
        settle::settle(self, ending, bytes, took);
        // A tunnel's hours say nothing of how long requests take.
        if self.tunnelled_up.is_none() {
            self.tail.tally.metrics().request_seconds().observe(took);
        }
        access::log(self, bytes, took);
    }
}

impl OnEnd for Visit {
    fn on_trailers(&mut self, trailers: &HeaderMap) {
        settle::note_trailers(self, trailers);
    }

    fn on_end(mut self: Box<Self>, end: &BodyEnd) {
        let ending = match end.outcome {
            wire::BodyOutcome::Complete if self.status < 500 => Ending::Completed,
            wire::BodyOutcome::Complete => Ending::UpstreamFailed,
            wire::BodyOutcome::Failed(wire::BodyFailure::Overdue) => {
                self.failure = Some("request-timeout");
                // Refunds nothing: a client could make its request last.
                Ending::ClientGone
            }
            wire::BodyOutcome::Failed(_) => {
                self.failure = Some("reply-cut");
                Ending::UpstreamFailed
            }
            wire::BodyOutcome::Dropped => {
                self.failure = Some(self.gone());
                Ending::ClientGone
            }
        };
        self.finish(ending, end.bytes);
    }
}

impl Drop for Visit {
    /// Only a request whose handler was dropped is not over yet: `listen` does so when the client
    /// goes away before the reply.
    fn drop(&mut self) {
        if self.over {
            return;
        }
        self.refused = true;
        self.failure = Some(self.gone());
        if self.status == 0 {
            self.status = if self.tail.is_cut() { SHUTDOWN } else { CLIENT_GONE };
            self.tail.tally.answered(self.status);
        }
        self.finish(self.ending, 0);
    }
}
