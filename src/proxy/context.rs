//! What is known of one request, a part for each phase that it has gone through, and what must
//! happen when it ends, however it ends: it is settled, and its record published.
//!
//! It travels with the request, then as the end hook of the reply's body. If it is dropped before
//! that because the client went away, it does the same. Of the snapshot it keeps only the route's
//! [`RouteHandle`](super::handle::RouteHandle), so that a long stream does not keep an old
//! configuration alive.

use std::time::{Duration, Instant};

use http::{HeaderMap, StatusCode};

use crate::clock;
use crate::limit::Ending;
use crate::listen::Peer;
use crate::proxy::decide::Decided;
use crate::proxy::decide::keys::ComesBack;
use crate::proxy::decisions::held::{Expiry, HeldDecision};
use crate::proxy::forward::Sent;
use crate::proxy::forward::sent::{self, REQUEST_TIMEOUT};
use crate::proxy::forward::tunnel::{Transferred, TunnelEnd};
use crate::proxy::live::LocalSnapshot;
use crate::proxy::receive::call::api;
use crate::proxy::receive::{Received, forward_auth, hop};
use crate::proxy::record::{self, Record};
use crate::proxy::refusal::Refusal;
use crate::proxy::reply::compress::Offer;
use crate::proxy::reply::{self, Answer, CLIENT_GONE, ReplyTo, SHUTDOWN};
use crate::proxy::route::Routed;
use crate::proxy::settle::cut::Cut;
use crate::proxy::settle::{self, Ended, ReplyNotes, ReportedReply, SettlementReport, usage};
use crate::telemetry::Label as _;
use crate::upstream::Cause;
use crate::wire::{self, Body, BodyEnd, Known, OnEnd, Request, Response, TrailerFilter};

/// What is known of one request.
#[derive(Debug)]
pub(super) struct RequestContext {
    pub(super) received: Received,
    pub(super) routed: Routed,
    /// None before its policy is asked, and on a route without one.
    pub(super) decided: Option<Decided>,
    /// None before its upstream may have got it.
    pub(super) sent: Option<Sent>,
    pub(super) answer: Answer,
    pub(super) notes: ReplyNotes,
    /// What its reply may be compressed with.
    offer: Offer,
    /// The bytes of the answer to a call, if what it decided is held.
    held_bytes: u64,
    finished: bool,
}

/// How a request ended.
pub(super) struct End {
    pub(super) ending: Ending,
    /// The bytes of the reply's body.
    pub(super) bytes: u64,
    /// What passed through the tunnel, if it became one.
    pub(super) tunnelled: Option<Transferred>,
}

impl RequestContext {
    /// The context of a request that has arrived.
    #[inline]
    pub(super) fn begin(local: &LocalSnapshot, request: &Request, peer: &Peer) -> Box<Self> {
        Self::new(local, Received::new(local, request, peer))
    }

    /// The context of a request whose head can't be read. Only its peer is known.
    pub(super) fn unreadable(local: &LocalSnapshot, peer: &Peer) -> Box<Self> {
        Self::new(local, Received::unreadable(peer))
    }

    /// Boxed once, since it becomes the end hook of the reply's body.
    #[inline]
    fn new(local: &LocalSnapshot, received: Received) -> Box<Self> {
        Box::new(Self {
            received,
            routed: Routed::nowhere(local),
            decided: None,
            sent: None,
            answer: Answer::default(),
            notes: ReplyNotes::default(),
            offer: Offer::default(),
            held_bytes: 0,
            finished: false,
        })
    }

    /// The request, for the reply to it.
    pub(super) fn reply_to(&self) -> ReplyTo<'_> {
        let Self { received, routed, decided, .. } = self;
        ReplyTo { received, routed, decided: decided.as_ref() }
    }

    /// Keeps what the compression of the reply depends on, before the head is sent on.
    #[inline]
    pub(super) fn note_offer(&mut self, request: &Request, buffered_bytes_max: usize) {
        if let Some(compress) = self.routed.handle.compress() {
            let memory_is_short = wire::buffered_bytes() > buffered_bytes_max / 2;
            self.offer = compress.offer(&request.fields, memory_is_short);
        }
    }

    /// Sends the reply, its body streaming. The request is finished at that body's end.
    pub(super) fn stream(mut self: Box<Self>, mut reply: Response) -> Response {
        hop::strip(&mut reply.fields);
        self.notes.note_head(&self.routed, self.decided.as_ref(), &reply.fields);
        if let Some(extras) = &self.routed.handle.extras {
            extras.apply(&mut reply.fields);
        }
        self.answer.answered(reply.status.as_u16(), &self.routed);
        // Weir's own fields come after the route's rules, which are about the upstream's.
        if let Some(cookie) = self.sent.as_mut().and_then(|sent| sent.host_cookie.take()) {
            reply.fields.append("set-cookie", &*cookie);
        }
        reply::add_fields(&mut reply.fields, self.reply_to());
        if reply.status == StatusCode::SWITCHING_PROTOCOLS {
            return self.switch(reply);
        }
        let (body, usage) = usage::metered(
            self.decided.as_ref(),
            &self.routed.handle,
            &mut reply.fields,
            reply.body,
        );
        self.notes.usage = usage;
        reply.body = body;
        // After the meters, which read the reply as the upstream sent it.
        let compression = self
            .routed
            .handle
            .compress()
            .and_then(|rules| rules.begin(self.received.is_head, self.offer, &mut reply));
        let body = reply
            .body
            .filter_trailers(TrailerFilter::With(hop::filter_trailers))
            .on_end_boxed(self);
        let body = match compression {
            Some(compression) => compression.of(body),
            None => body,
        };
        Response { body, ..reply }
    }

    /// The upstream agrees to another protocol. The request is finished when the tunnel ends.
    #[cold]
    fn switch(mut self: Box<Self>, mut reply: Response) -> Response {
        // A 101 has no content (RFC 9110, 8.6). Nothing must take the first bytes of the tunnel for
        // it.
        reply.fields.remove(Known::ContentLength);
        reply.body = Body::empty();
        let upgrade = self.sent.as_mut().and_then(|sent| sent.upgrade.take());
        if let (Some(upgrade), Some(wire::Upgrade::Stream(upstream))) =
            (upgrade, reply.upgrade.take())
        {
            upgrade.announce(&mut reply.fields);
            let metrics = self.routed.handle.tally.metrics().clone();
            let watch = settle::watch(&self.routed, self.decided.as_ref(), &upgrade);
            let on_end = move |end, transferred| self.tunnel_ended(end, transferred);
            reply.upgrade = Some(upgrade.join(upstream, watch, &metrics, Box::new(on_end)));
        }
        reply
    }

    fn tunnel_ended(mut self: Box<Self>, end: TunnelEnd, transferred: Transferred) {
        let (ending, failure) = match end {
            TunnelEnd::Closed => (Ending::Completed, None),
            TunnelEnd::Idle => (Ending::Completed, Some("tunnel-idle")),
            TunnelEnd::Limited => (Ending::Completed, Some("tunnel-limited")),
            TunnelEnd::Client => (Ending::ClientGone, Some(self.abort_reason())),
            TunnelEnd::Upstream => (Ending::UpstreamFailed, Some("reply-cut")),
        };
        self.answer.failure = failure;
        self.finish(End { ending, bytes: transferred.down, tunnelled: Some(transferred) });
    }

    /// Answers with a response of Weir's own. Everything is known, so the request is finished at
    /// once.
    pub(super) fn refuse(mut self: Box<Self>, refusal: &Refusal) -> Response {
        self.answer.refused(refusal, &self.routed, self.decided.as_ref());
        let serves = self.received.serves;
        let (status, mut reply) = refusal.response(self.reply_to());
        // gRPC's refusals are 200, and a client's.
        let status = forward_auth::denied(serves, &mut reply).unwrap_or(status);
        self.answer.answered(status.as_u16(), &self.routed);
        reply::add_fields(&mut reply.fields, self.reply_to());
        let bytes = reply.body.length().unwrap_or_default();
        let ending = self.ending();
        self.finish_own(End { ending, bytes, tunnelled: None });
        forward_auth::map_status(serves, &mut reply);
        reply
    }

    /// Answers a call for a decision, which ends with it. Without a refusal it is admitted.
    pub(super) fn answer_call(
        mut self: Box<Self>,
        refusal: Option<&Refusal>,
        reply: Response,
    ) -> Response {
        let status = match refusal {
            None => reply.status,
            Some(refusal) => {
                self.answer.refused(refusal, &self.routed, self.decided.as_ref());
                refusal.status(self.reply_to())
            }
        };
        self.answer.answered(status.as_u16(), &self.routed);
        let bytes = reply.body.length().unwrap_or_default();
        let ending = if refusal.is_none() { Ending::Completed } else { Ending::Unsent };
        self.finish_own(End { ending, bytes, tunnelled: None });
        reply
    }

    /// What it holds is about another request.
    pub(super) fn restart(&mut self, local: &LocalSnapshot, request: &Request, peer: &Peer) {
        let started = self.received.started;
        self.received = Received { started, ..Received::new(local, request, peer) };
    }

    /// Answers with a response that is there as a whole, which ends it.
    pub(super) fn answer_whole(mut self: Box<Self>, mut reply: Response) -> Response {
        self.notes.note_head(&self.routed, self.decided.as_ref(), &reply.fields);
        if let Some(extras) = &self.routed.handle.extras {
            extras.apply(&mut reply.fields);
        }
        self.answer.answered(reply.status.as_u16(), &self.routed);
        reply::add_fields(&mut reply.fields, self.reply_to());
        let bytes = reply.body.length().unwrap_or_default();
        self.finish_own(End { ending: Ending::Completed, bytes, tunnelled: None });
        reply
    }

    /// Notes that a call for a decision is answered. Its caller says later how what was let through
    /// has ended ([`HeldDecision`]).
    pub(super) fn answer_held(&mut self, reply: &Response) {
        self.held_bytes = reply.body.length().unwrap_or_default();
        self.answer.answered(StatusCode::OK.as_u16(), &self.routed);
    }

    /// Ends what was held, whose caller has answered so.
    fn end_as(
        mut self: Box<Self>,
        ending: Ending,
        reply: ReportedReply,
        facts: &[(String, String)],
    ) {
        let of = (&self.routed, self.decided.as_ref());
        self.notes.note_report(of, reply, facts);
        let bytes = self.held_bytes;
        self.finish(End { ending, bytes, tunnelled: None });
    }

    /// How the request would end if it ended now.
    fn ending(&self) -> Ending {
        self.sent.as_ref().map_or(Ending::Unsent, |sent| sent.ending)
    }

    /// Why it ended before its reply did: the client left, or the grace period of a shutdown is
    /// over.
    fn abort_reason(&self) -> &'static str {
        if self.routed.handle.is_cut() { "shutdown" } else { sent::CLIENT_GONE }
    }

    /// Ends the request, which is over when this is called.
    fn finish(&mut self, end: End) {
        self.finish_at(clock::monotonic(), end);
    }

    /// Ends a request that Weir has answered itself. Since the clock was last read, only the reply
    /// was built, which takes about a microsecond.
    fn finish_own(&mut self, end: End) {
        self.finish_at(clock::recent(), end);
    }

    fn finish_at(&mut self, now: Instant, end: End) {
        if std::mem::replace(&mut self.finished, true) {
            return;
        }
        let took = now.saturating_duration_since(self.received.started);
        let settled = self.settle(&end, took);
        record::publish(&self.record(&end, took, settled.as_ref()));
    }

    /// The request, once it has ended.
    pub(super) fn record<'a>(
        &'a self,
        end: &End,
        took: Duration,
        settled: Option<&'a SettlementReport>,
    ) -> Record<'a> {
        Record {
            received: &self.received,
            routed: &self.routed,
            decided: self.decided.as_ref(),
            sent: self.sent.as_ref(),
            answer: &self.answer,
            settled,
            bytes: end.bytes,
            tunnelled_up: end.tunnelled.map(|tunnelled| tunnelled.up),
            took,
        }
    }

    fn settle(&mut self, end: &End, took: Duration) -> Option<SettlementReport> {
        let Self { received, routed, decided, sent, answer, notes, .. } = self;
        let decided = decided.as_mut()?;
        let settlement = settle::ask(&Ended {
            received,
            routed,
            decided,
            sent: sent.as_ref(),
            answer,
            notes,
            ending: end.ending,
            bytes: end.bytes,
            messages: end.tunnelled.and_then(|tunnelled| tunnelled.messages),
            took,
        });
        settle::settle(
            &routed.handle,
            notes.usage.as_deref(),
            (decided.grant.take(), ComesBack::of(&routed.handle, decided)),
            (end.ending, received.started + took),
            settlement.adjustments,
        );
        SettlementReport::of(settlement.labels, settlement.amounts)
    }
}

impl HeldDecision for RequestContext {
    fn end(mut self: Box<Self>, end: &api::End) {
        let (ending, status, by_upstream) = match end.outcome {
            api::Outcome::Completed if end.status >= Some(500) => {
                (Ending::UpstreamFailed, StatusCode::BAD_GATEWAY, true)
            }
            api::Outcome::Completed => (Ending::Completed, StatusCode::OK, true),
            api::Outcome::UpstreamFailed => {
                (Ending::UpstreamFailed, StatusCode::BAD_GATEWAY, end.status.is_some())
            }
            api::Outcome::TimedOut => {
                self.answer.failure = Some(Cause::Timeout.label());
                (Ending::UpstreamFailed, StatusCode::GATEWAY_TIMEOUT, false)
            }
            api::Outcome::Unsent => (Ending::Unsent, StatusCode::SERVICE_UNAVAILABLE, false),
            api::Outcome::ClientGone => (Ending::ClientGone, reply::client_gone(), false),
        };
        let status = end.status.unwrap_or(status.as_u16());
        self.end_as(ending, ReportedReply { status, by_upstream }, end.facts());
    }

    fn give_back(self: Box<Self>) {
        let status = StatusCode::SERVICE_UNAVAILABLE.as_u16();
        self.end_as(Ending::Withdrawn, ReportedReply { status, by_upstream: false }, &[]);
    }

    fn expire(mut self: Box<Self>, why: Expiry) {
        let status = match why {
            Expiry::HoldOver => CLIENT_GONE,
            Expiry::Shutdown => SHUTDOWN,
        };
        self.answer.failure = Some(why.label());
        self.end_as(Ending::ClientGone, ReportedReply { status, by_upstream: false }, &[]);
    }
}

impl OnEnd for RequestContext {
    fn on_trailers(&mut self, trailers: &HeaderMap) {
        self.notes.note_trailers(&self.routed, self.decided.as_ref(), trailers);
    }

    fn on_end(mut self: Box<Self>, end: &BodyEnd) {
        let (ending, failure) = match end.outcome {
            // A reply of the route's own is what it was meant to be, whatever its status.
            wire::BodyOutcome::Complete if self.answer.status < 500 || self.sent.is_none() => {
                let cut = self.notes.usage.as_ref().and_then(|usage| usage.cut());
                if let (Some(Cut::Store(cause)), Some(decided)) = (cut, &mut self.decided) {
                    decided.store_failure = Some(cause);
                }
                (Ending::Completed, cut.map(Cut::label))
            }
            wire::BodyOutcome::Complete => (Ending::UpstreamFailed, None),
            // No refund, or a client could get one by making its request last.
            wire::BodyOutcome::Failed(wire::BodyFailure::Overdue) => {
                (Ending::ClientGone, Some(REQUEST_TIMEOUT))
            }
            wire::BodyOutcome::Failed(_) => (Ending::UpstreamFailed, Some("reply-cut")),
            wire::BodyOutcome::Dropped => {
                if let Some(usage) = &mut self.notes.usage {
                    usage.rest_read = end.rest_read;
                }
                (Ending::ClientGone, Some(self.abort_reason()))
            }
        };
        self.answer.failure = failure;
        self.finish(End { ending, bytes: end.bytes, tunnelled: None });
    }
}

impl Drop for RequestContext {
    /// Only a request whose handler was dropped is not finished yet: `listen` drops it when the
    /// client goes away before the reply.
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        self.answer.refused = true;
        self.answer.failure = Some(self.abort_reason());
        if self.answer.status == 0 {
            let status = if self.routed.handle.is_cut() { SHUTDOWN } else { CLIENT_GONE };
            self.answer.answered(status, &self.routed);
        }
        let ending = self.ending();
        self.finish(End { ending, bytes: 0, tunnelled: None });
    }
}
