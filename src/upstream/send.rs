//! A request's way to an upstream: a place, a host, a connection, the reply; and whether it is tried again. Knows nothing of how a connection works.

use std::sync::Arc;

use http::request::Parts;
use hyper::body::Incoming;
use smallvec::SmallVec;
use tokio::time::timeout;

use super::host::Host;
use super::hosts::Hosts;
use super::link::{Link, Sent, Upgraded};
use super::multi::{Held, Ticket};
use super::outgoing::{Load, Outgoing, Watch};
use super::pool::{self, Admitted, Seat};
use super::{Cause, Inner, Protocol, Retry, Upgrade, UpstreamError};
use super::{framing, head, streams};
use crate::clock;
use crate::wire::{Body, Request, Response};

/// Idle connections that are tried for one request before a new one is made: each may just have been closed by the upstream.
const REUSE_TRIES_MAX: usize = 3;
/// Times that an HTTP/2 upstream may refuse one request without doing anything with it, which connections at their end do to many at once.
const REFUSALS_MAX: usize = 8;
/// And what of them costs nothing of `retry_percent`.
const REFUSALS_FREE: usize = 3;
/// Hosts that are tried for one request, so that one that refuses costs no reply and many that hang don't add up.
const HOST_TRIES_MAX: usize = 3;

/// What came of a request at one host.
#[allow(clippy::large_enum_variant, reason = "the large ones are those that come on every request")]
enum Tried {
    /// The reply's head, and the connection that its body comes on.
    Reply(Box<Link>, http::Response<Incoming>),
    /// The same over HTTP/2.
    Shared(Ticket, http::Response<Incoming>),
    /// Nothing of it was sent: it is where it was.
    Unsent(Cause),
    /// It is gone, and the upstream says that it has done nothing with it.
    Refused(Cause),
    Failed(UpstreamError),
}

/// What does not change from try to try.
struct Errand<'a> {
    upstream: &'a Arc<Inner>,
    /// A 101 was asked for.
    upgrade: bool,
    watch: Option<Arc<Watch>>,
}

pub(super) async fn send(upstream: &Arc<Inner>, request: Request) -> Result<Response, UpstreamError> {
    let mut seat = admit(upstream).await?;
    let (mut parts, body) = request.into_parts();
    // HTTP/2 has no way to become something else.
    let upgrade = parts.extensions.get::<Upgrade>().is_some();
    let protocol = if upgrade { Protocol::H1 } else { upstream.protocol };
    match (protocol, upstream.endpoints.first()) {
        (Protocol::H2, Some(endpoint)) => head::to_h2(&mut parts, endpoint),
        _ => {
            framing::announce(&mut parts.headers, &body);
            // Whatever the client speaks, we speak 1.1: an old client does not cost us the connection.
            parts.version = http::Version::HTTP_11;
        }
    }
    let (body, watch) = Outgoing::new(body);
    let mut spare = spare(upstream, &seat, protocol, &parts, &body);
    let mut request: Load = Some(http::Request::from_parts(parts, body));
    let errand = Errand { upstream, upgrade, watch };
    let mut tried: SmallVec<[Arc<Host>; HOST_TRIES_MAX]> = SmallVec::new();
    let mut refusals = 0;
    loop {
        let outcome = match protocol {
            Protocol::H1 => errand.try_h1(&seat, &mut request).await,
            Protocol::H2 => errand.try_h2(&seat, &mut request).await,
        };
        let error = match outcome {
            Tried::Reply(link, reply) => return Ok(bring_back(upstream, link, seat, errand.watch.is_some(), reply)),
            Tried::Shared(ticket, reply) => {
                succeeded(upstream, &seat);
                return Ok(bring_back_shared(upstream, Held::new(ticket, seat, errand.watch), reply));
            }
            Tried::Unsent(cause) => {
                failed(upstream, &seat, cause);
                if upstream.retry == Retry::Off || !elsewhere(upstream, &mut seat, &mut tried) {
                    return Err(UpstreamError::unsent(cause));
                }
                continue;
            }
            Tried::Refused(cause) => {
                refusals += 1;
                // The same host will do: another connection, or another moment. From the third time on it looks like overload, which a share bounds.
                let again =
                    upstream.retry != Retry::Off && refusals < REFUSALS_MAX && (refusals < REFUSALS_FREE || pool::spend_retry(upstream));
                let Some(spare) = spare.clone().filter(|_| again) else {
                    failed(upstream, &seat, cause);
                    return Err(UpstreamError::unsent(cause));
                };
                elsewhere(upstream, &mut seat, &mut tried);
                request = Some(http::Request::from_parts(spare, Outgoing::new(Body::empty()).0));
                continue;
            }
            Tried::Failed(error) => error,
        };
        failed(upstream, &seat, error.cause);
        let Some(spare) = spare.take().filter(|spare| may_repeat(upstream, spare, &error)) else { return Err(error) };
        if !elsewhere(upstream, &mut seat, &mut tried) {
            return Err(error);
        }
        if !pool::spend_retry(upstream) {
            upstream.retries_held.inc();
            return Err(error);
        }
        upstream.retries.inc();
        tracing::debug!(upstream = upstream.name, %error, "a request that lost its connection is sent to another endpoint");
        request = Some(http::Request::from_parts(spare, Outgoing::new(Body::empty()).0));
    }
}

/// A place for the request, once it is known where the upstream is.
async fn admit(upstream: &Arc<Inner>) -> Result<Seat, UpstreamError> {
    match pool::admit(upstream) {
        Admitted::Here(seat) => return Ok(seat),
        Admitted::Full => return Err(UpstreamError::unsent(Cause::Overload)),
        Admitted::Unresolved => {}
    }
    // Who is too late finds the addresses of before, if there were any.
    let asked = timeout(upstream.connect, Hosts::ask_now(upstream)).await;
    match pool::admit(upstream) {
        Admitted::Here(seat) => Ok(seat),
        Admitted::Full => Err(UpstreamError::unsent(Cause::Overload)),
        Admitted::Unresolved if asked.is_err() => Err(UpstreamError::unsent(Cause::Timeout)),
        Admitted::Unresolved => Err(UpstreamError::unsent(Cause::Connect)),
    }
}

/// A copy of the head, where the request may have to be sent a second time although the first one is gone: to another host, or over HTTP/2, where
/// the upstream may refuse a stream. Only of a request without a body, since a body can't be read twice.
fn spare(upstream: &Inner, seat: &Seat, protocol: Protocol, parts: &Parts, body: &Outgoing) -> Option<Parts> {
    let repeatable = upstream.retry == Retry::Idempotent && seat.host().is_some() && parts.method.is_idempotent();
    let refusable = upstream.retry != Retry::Off && protocol == Protocol::H2;
    ((repeatable || refusable) && http_body::Body::is_end_stream(body)).then(|| parts.clone())
}

/// Whether a request that may have been done can be done again (RFC 9110, 9.2.2): the connection was lost before it was answered.
fn may_repeat(upstream: &Inner, spare: &Parts, error: &UpstreamError) -> bool {
    upstream.retry == Retry::Idempotent && error.cause == Cause::Cut && spare.method.is_idempotent()
}

/// Moves the request to a host that it was not sent to yet; says whether there is one.
fn elsewhere(upstream: &Arc<Inner>, seat: &mut Seat, tried: &mut SmallVec<[Arc<Host>; HOST_TRIES_MAX]>) -> bool {
    tried.extend(seat.host().cloned());
    (1..HOST_TRIES_MAX).contains(&tried.len()) && pool::another(upstream, seat, tried)
}

fn succeeded(upstream: &Inner, seat: &Seat) {
    if let Some(host) = seat.host() {
        host.succeeded(upstream);
    }
}

fn failed(upstream: &Inner, seat: &Seat, cause: Cause) {
    if let Some(host) = seat.host() {
        host.failed(upstream, cause);
    }
}

impl Errand<'_> {
    async fn try_h1(&self, seat: &Seat, request: &mut Load) -> Tried {
        let mut now = clock::monotonic();
        for attempt in 0..=REUSE_TRIES_MAX {
            let reused =
                if attempt < REUSE_TRIES_MAX { pool::take(self.upstream, seat, now) } else { Err(pool::host_of(self.upstream, seat)) };
            let fresh = reused.is_err();
            let mut link = match reused {
                Ok(mut link) => {
                    if !link.is_still_open(now).await {
                        continue;
                    }
                    link
                }
                Err(host) => {
                    let Some(host) = host else { return Tried::Unsent(Cause::Connect) };
                    match Link::connect(self.upstream, &host).await {
                        Ok(link) => {
                            now = clock::monotonic();
                            link
                        }
                        Err(cause) => return Tried::Unsent(cause),
                    }
                }
            };
            match link.exchange(request, self.watch.as_deref(), now, self.upgrade).await {
                Sent::Reply(reply) => return Tried::Reply(link, reply),
                Sent::Failed(error) => return Tried::Failed(error),
                Sent::Refused(cause) => return Tried::Refused(cause),
                Sent::Unsent(cause) if fresh => return Tried::Unsent(cause),
                Sent::Unsent(_) => {}
            }
        }
        Tried::Unsent(Cause::Connect)
    }

    async fn try_h2(&self, seat: &Seat, request: &mut Load) -> Tried {
        let Some(host) = pool::host_of(self.upstream, seat) else { return Tried::Unsent(Cause::Connect) };
        let mut cause = Cause::Connect;
        for _ in 0..REFUSALS_MAX {
            let ticket = match streams::acquire(self.upstream, &host, clock::monotonic()).await {
                Ok(ticket) => ticket,
                Err(cause) => return Tried::Unsent(cause),
            };
            match ticket.exchange(request, self.watch.as_deref(), clock::monotonic()).await {
                Sent::Reply(reply) => return Tried::Shared(ticket, reply),
                Sent::Failed(error) => return Tried::Failed(error),
                Sent::Refused(cause) => return Tried::Refused(cause),
                Sent::Unsent(why) => cause = why,
            }
        }
        Tried::Unsent(cause)
    }
}

/// The reply as the proxy gets it. The connection goes back to the pool at once where all of the reply has come already, as small ones have; else
/// with the body's end. `uploads`: the request has a body that streams.
fn bring_back(upstream: &Inner, mut link: Box<Link>, seat: Seat, uploads: bool, reply: http::Response<Incoming>) -> Response {
    succeeded(upstream, &seat);
    let (mut parts, incoming) = reply.into_parts();
    parts.version = http::Version::HTTP_11;
    let body = Body::incoming(incoming);
    if parts.status == http::StatusCode::SWITCHING_PROTOCOLS {
        link.drive.hand_over();
        link.seat = Some(seat);
        return http::Response::from_parts(parts, body.on_end(Upgraded(link)));
    }
    if link.is_ready() {
        drop(seat);
        pool::put(link);
        return http::Response::from_parts(parts, body);
    }
    if uploads {
        // It goes on also while the client takes nothing of the reply.
        link.drive.hand_over();
    }
    link.seat = Some(seat);
    http::Response::from_parts(parts, body.idle_timeout(upstream.idle).on_end_boxed(link))
}

/// The same for a reply that shares its connection, which is in use until the body's end.
fn bring_back_shared(upstream: &Inner, held: Box<Held>, reply: http::Response<Incoming>) -> Response {
    let (mut parts, incoming) = reply.into_parts();
    parts.version = http::Version::HTTP_11;
    let body = Body::incoming(incoming);
    let body = if body.is_streaming() { body.idle_timeout(upstream.idle).on_end_boxed(held) } else { body };
    http::Response::from_parts(parts, body)
}
