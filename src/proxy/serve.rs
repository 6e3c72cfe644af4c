//! A request on its way through the phases: [`handle`], [`admit`] and [`answer`].

use crate::listen::Peer;
use crate::wire::{self, Request, Response};

use super::context::RequestContext;
use super::decide::Decided;
use super::decide::admit::Question;
use super::decide::facts::Facts;
use super::forward::exchange::{Exchange, UpstreamExchange};
use super::forward::{self, Admitted};
use super::live::LocalSnapshot;
use super::receive::target::Target;
use super::receive::{self, NormalHead};
use super::refusal::Refusal;
use super::snapshot::Action;
use super::{reply, route};

/// Answers one request. Whatever it began is finished at the reply's last byte, or when the client
/// goes away.
pub(super) async fn handle(local: &LocalSnapshot, request: Request, peer: &Peer) -> Response {
    let mut context = RequestContext::begin(local, &request, peer);
    match serve(local, request, peer, &mut context, &UpstreamExchange).await {
        Ok(reply) => context.stream(reply),
        Err(refusal) => context.refuse(&refusal),
    }
}

/// Takes a request to its reply's head, or to the reason for a refusal.
pub(super) async fn serve<X: Exchange>(
    local: &LocalSnapshot,
    mut request: Request,
    peer: &Peer,
    context: &mut RequestContext,
    exchange: &X,
) -> Result<Response, Refusal> {
    let admitted = admit(local, &mut request, peer, context, |_| {}).await?;
    answer(request, admitted, peer, context, exchange).await
}

/// Takes a request through the phases in which Weir may refuse it: receive, route and decide. What
/// the policy is shown goes to `watch`.
pub(super) async fn admit<'l>(
    local: &'l LocalSnapshot,
    request: &mut Request,
    peer: &Peer,
    context: &mut RequestContext,
    watch: impl FnOnce(&Facts<'_>),
) -> Result<Admitted<'l>, Refusal> {
    let snapshot = local.snapshot();
    let head = receive::normalize(request, &mut context.received, peer, local)?;
    let body = std::mem::take(&mut request.body);
    let target = Target::of(request, &head.authority, snapshot.settings.paths, peer);

    let (route, found, routed) = route::find(local, target, request, &context.received)?;
    context.routed = routed;
    // Before any work is done for the request. Requests under way continue.
    if wire::buffered_bytes() > snapshot.settings.buffered_bytes_max {
        return Err(Refusal::TooMuchBuffered);
    }
    // Before anything is charged.
    let body = route::body::limited(body, snapshot, route, &context.received)?;

    // The policy (Wasm), then the limits that it named (Lua).
    let bypasses = context.routed.bypasses(request, &body);
    let (body, read) = match route.decider.as_ref().and_then(|decider| decider.reader.as_ref()) {
        None => (body, None),
        Some(reader) => {
            let deadline = route.request_timeout.map(|timeout| context.received.started + timeout);
            reader.read(body, &request.fields, deadline).await?
        }
    };
    let RequestContext { received, routed, decided, .. } = context;
    let (received, routed) = (&*received, &*routed);
    let decided = decided.insert(Decided::default());
    let question = |request| Question {
        route,
        request,
        target,
        peer,
        parameters: &found.parameters,
        body: read.as_ref(),
        received,
        routed,
    };
    let admitted = match bypasses {
        true => question(request).bypass(decided, watch),
        false => question(request).decide(&snapshot.limiter, decided, watch).await,
    };
    if routed.sampled || (admitted.is_err() && routed.handle.insight.remembers()) {
        question(request).keep_facts(decided);
    }
    let fields = admitted?;

    let (mut rewritten, mut body) = (None, body);
    if let Action::Upstream(_) = route.action {
        if let Some(extras) = &route.extras {
            rewritten = extras.path_and_query(target, &found.parameters)?;
        }
        drop(found);
        body = forward::bodies::edited(decided, &mut request.fields, read, body)?;
    } else {
        drop(found);
    }
    let NormalHead { authority, upgrade } = head;
    Ok(Admitted { snapshot, route, authority, upgrade, body, fields, rewritten })
}

/// Sends an admitted request to its upstream, or answers it with the route's own reply.
pub(super) async fn answer<X: Exchange>(
    request: Request,
    admitted: Admitted<'_>,
    peer: &Peer,
    context: &mut RequestContext,
    exchange: &X,
) -> Result<Response, Refusal> {
    let upstream = match &admitted.route.action {
        Action::Upstream(upstream) => upstream,
        Action::Respond(own) => return Ok(reply::respond(own, context.reply_to())),
    };
    let RequestContext { received, routed, decided, sent, .. } = context;
    let decided = decided.get_or_insert_default();
    let known = (&*received, &*routed, &*decided);
    forward::forward(request, upstream, admitted, peer, known, sent, exchange).await
}
