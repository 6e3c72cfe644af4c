//! The fourth phase: an admitted request as the upstream gets it.
//!
//! `head` writes what the upstream is told of the client, `bodies` what the decision changes in the
//! request's body, `extras` with `rules` makes the route's changes, `trailers` keeps them from
//! arriving by another way, `tunnel` asks for another protocol, and `exchange` sends.
//! After it, the head of the reply is known, or why there is none. Knows no limit.

pub(super) mod bodies;
pub(super) mod exchange;
pub(super) mod extras;
pub(super) mod head;
pub(super) mod rules;
pub(super) mod sent;
pub(super) mod trailers;
pub(super) mod tunnel;

use std::sync::Arc;

use self::exchange::Exchange;
use self::sent::REQUEST_BYTES;
use crate::clock;
use crate::listen::Peer;
use crate::proxy::decide::Decided;
use crate::proxy::decide::policy_fields::{self, PolicyFields};
use crate::proxy::receive::target::Authority;
use crate::proxy::receive::{Received, hop};
use crate::proxy::refusal::Refusal;
use crate::proxy::route::Routed;
use crate::proxy::snapshot::{Route, Snapshot};
use crate::telemetry::{Access, AccessField};
use crate::upstream::Upstream;
use crate::wire::{Body, InterimFilter, Request, Response};

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
    /// The fields that the policy sets on the request.
    pub(super) fields: PolicyFields,
    /// Path and query, if the route rewrites them.
    pub(super) rewritten: Option<String>,
}

/// Sends an admitted request to its upstream, and returns the reply's head. What becomes known on
/// the way is in `sent`.
///
/// # Errors
/// The upstream gave no reply.
pub(super) async fn forward<X: Exchange>(
    mut request: Request,
    upstream: &Upstream,
    admitted: Admitted<'_>,
    peer: &Peer,
    (received, routed, decided): (&Received, &Routed, &Decided),
    sent: &mut Option<Sent>,
    exchange: &X,
) -> Result<Response, Refusal> {
    let Admitted { snapshot, route, authority, upgrade, body, fields, rewritten } = admitted;
    let ambiguous = snapshot.settings.underscores_in_headers;
    head::prepare(&mut request, &authority, peer, received);
    if let Some(extras) = &route.extras {
        extras.apply(&mut request, rewritten.as_deref(), ambiguous);
    }
    policy_fields::set(&mut request.fields, &fields, ambiguous);
    let filter = trailers::filter(&mut request.fields, &route.touched, &fields, ambiguous);
    bodies::ask_plain(decided, &mut request.fields);
    let body = body.filter_trailers(filter);
    let upgrade = upgrade.and_then(|protocol| {
        tunnel::request_upgrade(&route.upgrades, &mut request, &body, protocol)
    });
    let sent = sent.insert(Sent::new(received, upgrade));
    let body = sent.with_timeout(body, received.started, route.request_timeout);
    let counts = (routed.handle.access != Access::Off
        && routed.handle.access_fields.has(AccessField::BytesIn))
        || settle_reads(routed, decided, REQUEST_BYTES);
    request.body = if counts { sent.count(body) } else { body };
    request.interim_filter = routed.handle.interim.clone().map(|it| it as Arc<dyn InterimFilter>);
    let client = received.client.network(snapshot.settings.ipv6_prefix);
    // Little happens between the decision and this. Saves a look at the clock.
    let began = decided.at.unwrap_or_else(clock::monotonic);
    match exchange.send(upstream, request, (client, began), sent).await {
        Ok(reply) if sent.accepts(&reply) => {
            sent.by_upstream = true;
            Ok(reply)
        }
        Ok(_) => Err(sent.failed(&upstream.protocol_error())),
        Err(error) => Err(sent.failed(&error)),
    }
}

/// Whether the policy's `settle` is to be called, and reads the response fact `name`.
fn settle_reads(routed: &Routed, decided: &Decided, name: &str) -> bool {
    let policy = routed.handle.policy.as_ref();
    decided.memo().is_some()
        && policy.is_some_and(|scope| scope.policy.response_facts().iter().any(|fact| fact == name))
}
