//! The path of a request to an upstream: a permit, a host, a connection, the reply, and whether to
//! try again. Knows nothing of how a connection works.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use smallvec::SmallVec;
use tokio::time::timeout;

use super::concurrency::Places;
use super::host::Host;
use super::hosts::Hosts;
use super::http1::{Http1Connection, Http1Outcome};
use super::http2::{self, ReplyGuard, StreamPermit};
use super::outgoing::{Outgoing, UploadProgress};
use super::phase::Phase;
use super::pool::{self, Admission};
use super::requests::RequestPermit;
use super::streams::StreamUse;
use super::{
    Affinity, Cause, Inner, Overrides, PlacePermit, Protocol, Retry, RetryResult, SendRecord,
    Sender, UpstreamError,
};
use super::{acquire, head, http2_tunnel, sender};
use crate::clock;
use crate::http1::ReplyHead;
use crate::wire::{Body, Request, Response};

/// Idle connections tried for one request before a new one is opened. The upstream may have just
/// closed each of them.
const REUSE_TRIES_MAX: usize = 3;
/// How often an HTTP/2 upstream may refuse one request unprocessed. A connection that closes
/// refuses many requests at once.
const REFUSALS_MAX: usize = 8;
/// The number of refusals that take nothing from `retry_percent`.
const REFUSALS_FREE: usize = 3;
/// Hosts tried for one request: enough that a host that refuses costs no reply, few enough that
/// timeouts don't add up.
const HOST_TRIES_MAX: usize = 3;

/// The result of trying one host.
#[allow(clippy::large_enum_variant, reason = "the large ones are those that come on every request")]
enum Attempt {
    /// The reply's head, and the connection that its body comes on.
    Reply(Box<Http1Connection>, ReplyHead),
    /// The reply's head and its stream, over HTTP/2.
    Shared(Box<SharedReply>),
    /// The reply's head, and the tunnel that its stream has become.
    Tunnel(Box<Tunnel>),
    /// The upstream has no tunnels over HTTP/2: nothing was sent.
    NoTunnel,
    /// Nothing was sent, and the body is still there.
    Unsent(Cause),
    /// The upstream says that it did nothing with the request.
    Refused(Cause),
    Failed(UpstreamError),
    /// The upstream closed a connection on which it had answered before, and sent nothing for this
    /// request. It may have closed it before the request arrived.
    Lost(UpstreamError),
}

/// A stream of an HTTP/2 connection, the head of the reply on it, and how far the request's body
/// is.
type SharedReply = (StreamPermit, http::Response<Incoming>, Option<Arc<UploadProgress>>);

/// A stream of an HTTP/2 connection that has become a tunnel, and the head of the reply on it.
type Tunnel = (StreamPermit, http::Response<Incoming>, Upgraded);

/// A request across its attempts.
struct Exchange<'a> {
    upstream: &'a Arc<Inner>,
    overrides: Option<&'a Arc<Overrides>>,
    ends: Option<&'a (SocketAddr, SocketAddr)>,
    request: Request,
    /// Present until it is sent. An empty one can be sent again.
    body: Option<Body>,
    /// It had no body from the start.
    bodiless: bool,
    /// Its body is lent by a connection that is driven together with the reply.
    lent: bool,
    /// A pooled connection was lost, so no other pooled one is tried.
    fresh: bool,
    /// When it was last begun over HTTP/2.
    began: Option<Instant>,
}

pub(super) async fn send(
    upstream: &Arc<Inner>,
    request: Request,
    sender: &Sender<'_>,
    place: Option<PlacePermit>,
    mut reached: Option<&mut SendRecord>,
) -> Result<Response, UpstreamError> {
    let mut permit = match &upstream.places {
        None => match admitted(pool::admit(upstream, sender)) {
            Some(admitted) => admitted?,
            None => Box::pin(admit_resolved(upstream, sender)).await?,
        },
        Some(places) => Box::pin(admit_to_place(upstream, places, place, sender)).await?,
    };
    let mut protocol = protocol_for(upstream, &request);
    let mut exchange = Exchange::new(upstream, request, sender);
    let retry = sender::retry(&upstream.settings, exchange.overrides);
    let repeatable = exchange.is_repeatable(retry);
    let mut tried: SmallVec<[Arc<Host>; HOST_TRIES_MAX]> = SmallVec::new();
    let mut refusals = 0;
    let mut repeated = false;
    loop {
        if let Some(reached) = &mut reached {
            reached.address = pool::host_of(upstream, &permit).map(|host| host.address.clone());
        }
        let outcome = match protocol {
            Protocol::H1 => pin!(exchange.try_h1(&mut permit)).await,
            // Boxed: its state is large, and every HTTP/1.1 request would carry it.
            Protocol::H2 => Box::pin(exchange.try_h2(&mut permit)).await,
        };
        let error = match outcome {
            Attempt::Reply(connection, head) => {
                permit.succeeded(upstream, head.reply.status, || connection.awaited_since());
                return Ok(connection.reply(head, permit, exchange.lent));
            }
            Attempt::Shared(shared) => {
                return Ok(shared_reply(upstream, permit, *shared, &exchange));
            }
            Attempt::Tunnel(tunnel) => return Ok(exchange.tunnel_reply(permit, *tunnel)),
            Attempt::NoTunnel => {
                protocol = Protocol::H1;
                continue;
            }
            Attempt::Unsent(cause) => {
                permit.failed(upstream, cause);
                // Another host's connection would need a descriptor, too.
                let ours = cause == Cause::Descriptors;
                if ours
                    || retry == Retry::Off
                    || !move_to_another_host(upstream, &mut permit, &mut tried, sender.affinity)
                {
                    return Err(UpstreamError::unsent(cause));
                }
                continue;
            }
            Attempt::Refused(cause) => {
                refusals += 1;
                // The same host will do, on another connection or at another moment. From the third
                // time on it looks like overload, so retries are charged to the retry share.
                let again = retry != Retry::Off
                    && refusals < REFUSALS_MAX
                    && (refusals < REFUSALS_FREE || pool::spend_retry(upstream));
                if !again || !exchange.bodiless {
                    permit.failed(upstream, cause);
                    return Err(UpstreamError::unsent(cause));
                }
                move_to_another_host(upstream, &mut permit, &mut tried, sender.affinity);
                continue;
            }
            // Once only. If the new connection is lost too, the host is dying: then another one.
            Attempt::Lost(error) if repeatable && !repeated && exchange.may_reconnect(protocol) => {
                tracing::debug!(upstream = upstream.settings.name, %error, "a pooled connection was closed: its request is sent on a new one");
                continue;
            }
            // Not the host's failure: it may close an idle connection whenever it likes.
            Attempt::Lost(error) => return Err(error),
            Attempt::Failed(error) => error,
        };
        note_loss(upstream, &mut permit, error.cause, exchange.overrides);
        // The connection was lost before the reply. The request may have been carried out, but is
        // idempotent (RFC 9110, 9.2.2).
        let again =
            repeatable && error.cause == Cause::Cut && !std::mem::replace(&mut repeated, true);
        if !again || !move_to_another_host(upstream, &mut permit, &mut tried, sender.affinity) {
            return Err(error);
        }
        if !pool::spend_retry(upstream) {
            upstream.retries.inc(RetryResult::Held);
            return Err(error);
        }
        upstream.retries.inc(RetryResult::Sent);
        tracing::debug!(upstream = upstream.settings.name, %error, "a request that lost its connection is sent to another endpoint");
    }
}

/// Counts a failure against the host. That a route waits for less time than others says nothing of
/// it.
fn note_loss(
    upstream: &Inner,
    permit: &mut RequestPermit,
    cause: Cause,
    overrides: Option<&Arc<Overrides>>,
) {
    if cause != Cause::Timeout || !sender::is_hurried(&upstream.settings, overrides) {
        permit.lost(upstream, cause);
    }
}

/// Gets a permit for the request at an upstream with `concurrency`, perhaps after a wait.
async fn admit_to_place(
    upstream: &Arc<Inner>,
    places: &Arc<Places>,
    place: Option<PlacePermit>,
    sender: &Sender<'_>,
) -> Result<RequestPermit, UpstreamError> {
    let place = match place {
        Some(place) => place.into_place(),
        None => {
            let place = places.acquire(sender).await;
            Box::new(place.map_err(|_| UpstreamError::unsent(Cause::Shed))?)
        }
    };
    let mut permit = match admitted(pool::admit(upstream, sender)) {
        Some(admitted) => admitted?,
        None => admit_resolved(upstream, sender).await?,
    };
    permit.hold(place);
    Ok(permit)
}

/// Gets a permit for the request after resolving the upstream's names. If that takes too long, the
/// previous addresses are used, if there are any.
async fn admit_resolved(
    upstream: &Arc<Inner>,
    sender: &Sender<'_>,
) -> Result<RequestPermit, UpstreamError> {
    let asked = timeout(upstream.settings.connect, Hosts::resolve_now(upstream)).await;
    let unresolved = if asked.is_err() { Cause::Timeout } else { Cause::Connect };
    admitted(pool::admit(upstream, sender)).unwrap_or(Err(UpstreamError::unsent(unresolved)))
}

/// `None` if names must be resolved first.
fn admitted(admitted: Admission) -> Option<Result<RequestPermit, UpstreamError>> {
    match admitted {
        Admission::Granted(permit) => Some(Ok(permit)),
        Admission::Full => Some(Err(UpstreamError::unsent(Cause::Overload))),
        Admission::Share => Some(Err(UpstreamError::unsent(Cause::Share))),
        Admission::Unresolved => None,
    }
}

/// Moves the request to a host that it was not sent to yet. Returns false if there is none.
fn move_to_another_host(
    upstream: &Arc<Inner>,
    permit: &mut RequestPermit,
    tried: &mut SmallVec<[Arc<Host>; HOST_TRIES_MAX]>,
    affinity: Option<Affinity>,
) -> bool {
    tried.extend(permit.host().cloned());
    (1..HOST_TRIES_MAX).contains(&tried.len())
        && pool::move_to_another_host(upstream, permit, tried, affinity)
}

/// The protocol for a request.
fn protocol_for(upstream: &Inner, request: &Request) -> Protocol {
    // HTTP/2 connections can't be upgraded.
    let upgrades = request.upgrade && !http2_tunnel::has_tunnel(request);
    if upgrades { Protocol::H1 } else { upstream.settings.protocol }
}

impl<'a> Exchange<'a> {
    #[inline]
    fn new(upstream: &'a Arc<Inner>, mut request: Request, sender: &Sender<'a>) -> Self {
        let body = std::mem::take(&mut request.body);
        let (bodiless, lent) = (body.is_nothing(), body.is_lent());
        let (overrides, ends) = (sender.overrides, sender.ends);
        let (body, fresh, began) = (Some(body), false, None);
        Self { upstream, overrides, ends, request, body, bodiless, lent, fresh, began }
    }

    /// Whether it may be sent again although the upstream may have carried it out.
    fn is_repeatable(&self, retry: Retry) -> bool {
        self.bodiless && retry == Retry::Idempotent && self.request.method.is_idempotent()
    }

    /// The reply of a request that has become a tunnel.
    fn tunnel_reply(&self, mut permit: RequestPermit, tunnel: Tunnel) -> Response {
        let (stream, head, upgraded) = tunnel;
        permit.succeeded(self.upstream, head.status(), || self.began);
        http2_tunnel::reply(&self.request, &head, upgraded, (stream, permit))
    }

    /// Whether a request whose pooled connection was lost is sent on a new one. This happens once
    /// per request. Over HTTP/1.1 each lost connection has answered a request before, which bounds
    /// the retries. Over HTTP/2 many requests can lose one connection at a time, so the retry share
    /// bounds them.
    fn may_reconnect(&mut self, protocol: Protocol) -> bool {
        if std::mem::replace(&mut self.fresh, true) {
            return false;
        }
        let may = protocol == Protocol::H1 || pool::spend_retry(self.upstream);
        self.upstream.retries.inc(if may { RetryResult::Reconnected } else { RetryResult::Held });
        may
    }

    async fn try_h1(&mut self, permit: &mut RequestPermit) -> Attempt {
        let mut now = clock::recent();
        permit.begin(now);
        for attempt in 0..=REUSE_TRIES_MAX {
            let reuse = attempt < REUSE_TRIES_MAX && !self.fresh;
            let (mut connection, reused) = match if reuse {
                pool::take(self.upstream, permit, now)
            } else {
                Err(pool::host_of(self.upstream, permit))
            } {
                Ok(mut connection) => {
                    if !connection.accepts(self.bodiless) || !connection.is_still_open(now).await {
                        continue;
                    }
                    (connection, true)
                }
                Err(host) => {
                    let Some(host) = host else { return Attempt::Unsent(Cause::Connect) };
                    let (upstream, make_room) = (self.upstream, pool::release_idle);
                    let connecting =
                        Http1Connection::connect(upstream, &host, self.ends, make_room);
                    match Box::pin(connecting).await {
                        Ok(connection) => {
                            now = clock::monotonic();
                            (connection, false)
                        }
                        Err(cause) => return Attempt::Unsent(cause),
                    }
                }
            };
            let body = self.body.take().unwrap_or_default();
            connection.begin(&mut self.request, body, self.overrides, now);
            let request = &mut self.request;
            let answer = poll_fn(|cx| {
                let answer = connection.poll_exchange(request, cx);
                if answer.is_pending() {
                    permit.note(connection.phase(), cx);
                }
                answer
            });
            return match answer.await {
                Http1Outcome::Reply(reply) => Attempt::Reply(connection, reply),
                Http1Outcome::Failed(error)
                    if reused && error.cause == Cause::Cut && connection.is_unanswered() =>
                {
                    Attempt::Lost(error)
                }
                Http1Outcome::Failed(error) => Attempt::Failed(error),
            };
        }
        Attempt::Unsent(Cause::Connect)
    }

    async fn try_h2(&mut self, permit: &mut RequestPermit) -> Attempt {
        let now = clock::monotonic();
        self.began = Some(now);
        permit.begin(now);
        let Some(host) = pool::host_of(self.upstream, permit) else {
            return Attempt::Unsent(Cause::Connect);
        };
        let Some(endpoint) = self.upstream.endpoints.first() else {
            return Attempt::Unsent(Cause::Connect);
        };
        let upgrades = self.request.upgrade;
        // Only while there is a connection that says so: the next one may say another thing.
        let connected = || {
            [StreamUse::Requests, StreamUse::Tunnels].into_iter().any(|stream_use| {
                pool::with_streams(self.upstream, &host, stream_use, |all| !all.is_empty())
                    == Some(true)
            })
        };
        if upgrades && host.lacks_tunnels.load(Ordering::Relaxed) && connected() {
            return Attempt::NoTunnel;
        }
        let (body, progress) = Outgoing::new(self.body.take().unwrap_or_default());
        let mut request = Some(head::to_h2(&self.request, body, endpoint));
        if let Some(request) = request.as_mut().filter(|_| upgrades) {
            http2_tunnel::ask(request);
        }
        let stream_use = if upgrades { StreamUse::Tunnels } else { StreamUse::Requests };
        let mut cause = Cause::Connect;
        for _ in 0..REFUSALS_MAX {
            let now = clock::monotonic();
            let stream = match acquire::stream(self.upstream, &host, stream_use, now).await {
                Ok(stream) => stream,
                Err(_) if upgrades && host.lacks_tunnels.load(Ordering::Relaxed) => {
                    self.body = Some(Body::empty());
                    return Attempt::NoTunnel;
                }
                Err(why) => {
                    cause = why;
                    break;
                }
            };
            if upgrades && !stream.has_tunnels() {
                // Only a request without a body is upgraded.
                self.body = Some(Body::empty());
                return Attempt::NoTunnel;
            }
            let (limits, now) = ((progress.as_deref(), self.overrides), clock::monotonic());
            let answer = stream.exchange(&mut request, limits, now);
            match noting(permit, (limits.0, now), answer).await {
                http2::Http2Outcome::Reply(mut reply)
                    if upgrades && reply.status().is_success() =>
                {
                    return match hyper::upgrade::on(&mut reply).await {
                        Ok(upgraded) => Attempt::Tunnel(Box::new((stream, reply, upgraded))),
                        Err(_) => Attempt::Failed(UpstreamError::sent(Cause::Protocol)),
                    };
                }
                http2::Http2Outcome::Reply(reply) => {
                    return Attempt::Shared(Box::new((stream, reply, progress)));
                }
                http2::Http2Outcome::Failed(error) => return Attempt::Failed(error),
                http2::Http2Outcome::Lost(error) => return Attempt::Lost(error),
                http2::Http2Outcome::Refused(cause) => return Attempt::Refused(cause),
                http2::Http2Outcome::Unsent(why) => cause = why,
            }
        }
        self.body = request.map(|request| request.into_body().into_body());
        Attempt::Unsent(cause)
    }
}

/// Waits for the reply to a request that is sent over HTTP/2, and keeps its permit informed. It was
/// complete when it began, at this time, unless its body has a progress.
async fn noting<T>(
    permit: &mut RequestPermit,
    (progress, began): (Option<&UploadProgress>, Instant),
    answer: impl Future<Output = T>,
) -> T {
    let mut answer = pin!(answer);
    poll_fn(|cx| {
        let answer = answer.as_mut().poll(cx);
        if answer.is_pending() {
            let phase = progress.map_or(Phase::AwaitingReply(began), UploadProgress::phase);
            permit.note(phase, cx);
        }
        answer
    })
    .await
}

/// The reply of a shared connection. Its stream is in use until the body's end.
fn shared_reply(
    upstream: &Inner,
    mut permit: RequestPermit,
    (stream, reply, progress): SharedReply,
    exchange: &Exchange<'_>,
) -> Response {
    permit.succeeded(upstream, reply.status(), || match &progress {
        Some(progress) => progress.phase().awaited_since(),
        None => exchange.began,
    });
    let held = ReplyGuard::new(stream, permit, progress);
    let reply = Response::from(
        reply.map(|body| Body::incoming(body).window(http2::STREAM_WINDOW_BYTES as usize)),
    );
    if !reply.body.is_streaming() {
        return reply;
    }
    let idle = sender::idle(&upstream.settings, exchange.overrides);
    Response { body: reply.body.idle_timeout(idle).on_end_boxed(held), ..reply }
}
