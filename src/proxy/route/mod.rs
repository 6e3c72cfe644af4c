//! The second phase: which route a request takes.
//!
//! After it, the route and the path's parameters are known, and the body has the route's limits
//! (`body`). `tables` has the routes of each listener, `routes` those of each host, and `trie`
//! finds the most specific of them. `rewrite` makes the upstream's path, `redirect` the URL of a
//! redirect. `cors` knows preflights, and which origins may read what Weir answers itself. Knows
//! hosts, paths and methods, and nothing of limits.

pub(super) mod body;
pub(super) mod cors;
pub(super) mod expression;
pub(in crate::proxy) mod maintenance;
pub(super) mod redirect;
pub(super) mod rewrite;
pub(super) mod routes;
pub(super) mod tables;
pub(super) mod trie;
mod written;

use std::sync::Arc;
use std::time::Instant;

use self::cors::Cors;
use self::routes::RoutingError;
use self::trie::Match;
use crate::clock;
use crate::proxy::handle::RouteHandle;
use crate::proxy::live::LocalSnapshot;
use crate::proxy::receive::Received;
use crate::proxy::receive::target::Target;
use crate::proxy::refusal::Refusal;
use crate::proxy::snapshot::{Route, Snapshot};
use crate::wire::{Body, Fields, Known, Request};

/// What is known of a request once its route is.
#[derive(Debug)]
pub(super) struct Routed {
    /// The route. Before it is found, and if there is none, what all routes have in common.
    pub(super) handle: Arc<RouteHandle>,
    /// The request's `Origin`, if the route has CORS rules.
    origin: Option<Box<[u8]>>,
    /// It is remembered even if it is not refused.
    pub(super) sampled: bool,
    /// When its route was found, if it is traced.
    pub(super) at: Option<Instant>,
}

/// The route for a request, and the segments that the parameters of the route's path matched. If
/// other routes take some of its requests, `variant` says which one of them takes this.
///
/// # Errors
/// There is none, or the path has an escaped slash and would be decided on differently if that were
/// a slash.
#[inline]
pub(super) fn find<'l, 'r>(
    local: &'l LocalSnapshot,
    target: Target<'r>,
    request: &Request,
    received: &Received,
    variant: impl Fn(&Snapshot, &Match<'r>) -> usize,
) -> Result<(&'l Route, Match<'r>, Routed), Refusal> {
    let snapshot = local.snapshot();
    let mut found = snapshot.find(target, request)?;
    if snapshot.route(found.route).is_some_and(|route| !route.variants.is_empty()) {
        let taken = variant(snapshot, &found);
        match snapshot.limited_instead(target, request, (found.route, taken))? {
            Some(limited) => {
                found = limited;
                found.route = variant(snapshot, &found);
            }
            None => found.route = taken,
        }
    }
    let (Some(route), Some(handle)) = (snapshot.route(found.route), local.handle(found.route))
    else {
        return Err(Refusal::NotFound);
    };
    Ok((route, found, Routed::on(handle, received, &request.fields)))
}

impl Routed {
    /// A request that has no route yet.
    pub(super) fn nowhere(local: &LocalSnapshot) -> Self {
        Self { handle: Arc::clone(local.no_route()), origin: None, sampled: false, at: None }
    }

    /// A request whose route was found.
    #[inline]
    pub(super) fn on(handle: &Arc<RouteHandle>, received: &Received, fields: &Fields) -> Self {
        let mut routed = Self {
            handle: Arc::clone(handle),
            origin: None,
            sampled: handle.insight.is_sampled(),
            at: received.trace.is_some().then(clock::monotonic),
        };
        if routed.cors().is_some() {
            routed.origin = fields.get(Known::Origin).map(Box::from);
        }
        routed
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
        self.handle.extras.as_ref()?.cors.as_ref()
    }
}

impl From<RoutingError> for Refusal {
    fn from(unrouted: RoutingError) -> Self {
        match unrouted {
            RoutingError::NotFound => Self::NotFound,
            RoutingError::MethodNotAllowed(methods) => Self::MethodNotAllowed(methods),
        }
    }
}
