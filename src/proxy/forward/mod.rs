//! The fourth phase: an admitted request as the upstream gets it.
//!
//! `head` writes what the upstream is told of the client, `bodies` what the decision changes for
//! the sake of bodies, `extras` with `rules` makes the route's changes, `trailers` keeps them from
//! arriving by another way, `tunnel` asks for another protocol, `sender` says whose request it is
//! and which host it belongs to, `mirror` copies it, and `exchange` sends.
//! After it, the head of the reply is known, or why there is none. Knows no limit.

pub(super) mod bodies;
pub(super) mod exchange;
pub(super) mod extras;
pub(super) mod head;
pub(super) mod mirror;
pub(super) mod rules;
pub(super) mod sender;
pub(super) mod sent;
pub(super) mod trailers;
pub(super) mod tunnel;

use std::sync::Arc;

use self::sent::REQUEST_BYTES;
use crate::listen::Peer;
use crate::proxy::decide::Decided;
use crate::proxy::decide::policy_fields::{self, PolicyFields};
use crate::proxy::receive::target::Authority;
use crate::proxy::receive::{Received, hop};
use crate::proxy::route::Routed;
use crate::proxy::snapshot::{Route, Snapshot};
use crate::telemetry::{Access, AccessField};
use crate::upstream::Affinity;
use crate::wire::{Body, InterimFilter, Request};

pub(super) use sent::Sent;

/// A request that may be forwarded, and what is needed for that beside its head.
#[derive(Debug)]
pub(super) struct Admitted<'l> {
    pub(super) snapshot: &'l Snapshot,
    pub(super) route: &'l Route,
    pub(super) authority: Authority,
    /// The protocol that the client asks to upgrade to.
    pub(super) upgrade: Option<hop::Text>,
    pub(super) body: Body,
    /// Whether the body is another one than the client's.
    pub(super) is_edited: bool,
    /// The fields that the policy sets on the request.
    pub(super) fields: PolicyFields,
    /// The host of its upstream that it belongs to, if it does.
    pub(super) owner: Option<Affinity>,
    /// Path and query, if the route rewrites them.
    pub(super) rewritten: Option<String>,
}

impl Admitted<'_> {
    /// Turns the client's request into the upstream's. From here on, the upstream may have got it.
    pub(super) fn prepare(
        &mut self,
        request: &mut Request,
        peer: &Peer,
        (received, routed, decided): (&Received, &Routed, Option<&Decided>),
    ) -> Sent {
        let route = self.route;
        let ambiguous = self.snapshot.settings.underscores_in_headers;
        head::prepare(request, &self.authority, peer, received);
        if let Some(extras) = &route.extras {
            extras.apply(request, self.rewritten.as_deref(), ambiguous);
        }
        policy_fields::set(&mut request.fields, &self.fields, ambiguous);
        if self.is_edited {
            // After the route and the policy, which may set what is removed here.
            bodies::describe_edited(&mut request.fields, &self.body, ambiguous);
        }
        let kept = trailers::Kept { ambiguous, digests: !self.is_edited };
        let filter = trailers::filter(&mut request.fields, &route.touched, &self.fields, kept);
        if let Some(decided) = decided {
            bodies::ask_plain(decided, &mut request.fields);
        }
        let body = std::mem::take(&mut self.body).filter_trailers(filter);
        let upgrade = self.upgrade.take().and_then(|protocol| {
            let reads = reads_messages(routed, decided);
            tunnel::request_upgrade(&route.upgrades, request, &body, (protocol, reads))
        });
        let mut sent = Sent::new(received, upgrade);
        let body = sent.with_timeout(body, received.started, route.request_timeout);
        let counts = (routed.handle.access != Access::Off
            && routed.handle.access_fields.has(AccessField::BytesIn))
            || settle_reads(routed, decided, REQUEST_BYTES);
        request.body = if counts { sent.count(body) } else { body };
        request.interim_filter =
            routed.handle.interim.clone().map(|it| it as Arc<dyn InterimFilter>);
        sent
    }
}

/// Whether the messages are read of the WebSocket that a request may become.
#[cold]
fn reads_messages(routed: &Routed, decided: Option<&Decided>) -> bool {
    let decision = decided.and_then(|decided| decided.decision.as_ref());
    decision.is_some_and(|decision| !decision.messages.is_empty())
        || tunnel::MESSAGES.iter().any(|name| settle_reads(routed, decided, name))
}

/// Whether the policy's `settle` is to be called, and reads the response fact `name`.
fn settle_reads(routed: &Routed, decided: Option<&Decided>, name: &str) -> bool {
    let policy = routed.handle.policy.as_ref();
    decided.is_some_and(|decided| decided.memo().is_some())
        && policy.is_some_and(|scope| scope.policy.response_facts().iter().any(|fact| fact == name))
}
