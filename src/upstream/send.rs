//! A request's way to an upstream: a place, a host, a connection, the reply; and whether it is
//! tried again. Knows nothing of how a connection works.

use std::future::poll_fn;
use std::sync::Arc;

use hyper::body::Incoming;
use smallvec::SmallVec;
use tokio::time::timeout;

use super::host::Host;
use super::hosts::Hosts;
use super::link::{Link, Sent};
use super::multi::{self, Held, Ticket};
use super::outgoing::{Outgoing, Watch};
use super::pool::{self, Admitted, Seat};
use super::{Cause, Inner, Protocol, Retry, UpstreamError};
use super::{head, streams};
use crate::clock;
use crate::http1::ReplyHead;
use crate::wire::{Body, Network, Request, Response};

/// Idle connections that are tried for one request before a new one is made: each may just have
/// been closed by the upstream.
const REUSE_TRIES_MAX: usize = 3;
/// Times that an HTTP/2 upstream may refuse one request without doing anything with it, which
/// connections at their end do to many at once.
const REFUSALS_MAX: usize = 8;
/// And what of them costs nothing of `retry_percent`.
const REFUSALS_FREE: usize = 3;
/// Hosts that are tried for one request, so that one that refuses costs no reply and many that hang
/// don't add up.
const HOST_TRIES_MAX: usize = 3;

/// What came of a request at one host.
#[allow(clippy::large_enum_variant, reason = "the large ones are those that come on every request")]
enum Tried {
    /// The reply's head, and the connection that its body comes on.
    Reply(Box<Link>, ReplyHead),
    /// The same over HTTP/2.
    Shared(Box<(Ticket, http::Response<Incoming>, Option<Arc<Watch>>)>),
    /// Nothing of it was sent: it is where it was.
    Unsent(Cause),
    /// The upstream says that it has done nothing with it.
    Refused(Cause),
    Failed(UpstreamError),
    /// The upstream closed a connection on which it had answered others before, and has said
    /// nothing to this one: it may have closed it before the request came.
    Lost(UpstreamError),
}

/// A request and its tries.
struct Exchange<'a> {
    upstream: &'a Arc<Inner>,
    request: Request,
    /// Until it is sent; an empty one can be sent again.
    body: Option<Body>,
    /// It had none from the start.
    bodiless: bool,
    /// Its body is lent by a connection that is driven together with the reply.
    lent: bool,
    /// A pooled connection was lost: no other is tried.
    fresh: bool,
}

pub(super) async fn send(
    upstream: &Arc<Inner>,
    mut request: Request,
    client: Option<Network>,
) -> Result<Response, UpstreamError> {
    let mut seat = admit(upstream, client).await?;
    // HTTP/2 has no way to become something else.
    let protocol = if request.upgrade { Protocol::H1 } else { upstream.protocol };
    let body = std::mem::take(&mut request.body);
    let (bodiless, lent) = (body.is_nothing(), body.is_source());
    let repeatable =
        bodiless && upstream.retry == Retry::Idempotent && request.method.is_idempotent();
    let mut exchange =
        Exchange { upstream, request, body: Some(body), bodiless, lent, fresh: false };
    let mut tried: SmallVec<[Arc<Host>; HOST_TRIES_MAX]> = SmallVec::new();
    let mut refusals = 0;
    let mut repeated = false;
    loop {
        let outcome = match protocol {
            Protocol::H1 => exchange.try_h1(&mut seat).await,
            // Boxed, as it is large and every request over HTTP/1.1 would carry its room.
            Protocol::H2 => Box::pin(exchange.try_h2(&mut seat)).await,
        };
        let error = match outcome {
            Tried::Reply(link, head) => {
                seat.succeeded(upstream);
                return Ok(link.reply(head, seat, exchange.lent));
            }
            Tried::Shared(shared) => {
                let (ticket, reply, watch) = *shared;
                seat.succeeded(upstream);
                return Ok(bring_back_shared(upstream, Held::new(ticket, seat, watch), reply));
            }
            Tried::Unsent(cause) => {
                seat.failed(upstream, cause);
                // Another host's connection would need a descriptor, too.
                let ours = cause == Cause::Descriptors;
                if ours
                    || upstream.retry == Retry::Off
                    || !elsewhere(upstream, &mut seat, &mut tried)
                {
                    return Err(UpstreamError::unsent(cause));
                }
                continue;
            }
            Tried::Refused(cause) => {
                refusals += 1;
                // The same host will do: another connection, or another moment. From the third time
                // on it looks like overload, which a share bounds.
                let again = upstream.retry != Retry::Off
                    && refusals < REFUSALS_MAX
                    && (refusals < REFUSALS_FREE || pool::spend_retry(upstream));
                if !again || !exchange.bodiless {
                    seat.failed(upstream, cause);
                    return Err(UpstreamError::unsent(cause));
                }
                elsewhere(upstream, &mut seat, &mut tried);
                continue;
            }
            Tried::Lost(error) if repeatable && !repeated && exchange.may_reconnect(protocol) => {
                repeated = true;
                tracing::debug!(upstream = upstream.name, %error, "a pooled connection was closed: its request is sent on a new one");
                continue;
            }
            // Not the host's failure: it may close a connection that waits whenever it likes.
            Tried::Lost(error) => return Err(error),
            Tried::Failed(error) => error,
        };
        seat.failed(upstream, error.cause);
        // It may have been done, and can be done again (RFC 9110, 9.2.2): the connection was lost
        // before it was answered.
        let again =
            repeatable && error.cause == Cause::Cut && !std::mem::replace(&mut repeated, true);
        if !again || !elsewhere(upstream, &mut seat, &mut tried) {
            return Err(error);
        }
        if !pool::spend_retry(upstream) {
            upstream.retries_held.inc();
            return Err(error);
        }
        upstream.retries.inc();
        tracing::debug!(upstream = upstream.name, %error, "a request that lost its connection is sent to another endpoint");
    }
}

/// A place for the request, once it is known where the upstream is.
async fn admit(upstream: &Arc<Inner>, client: Option<Network>) -> Result<Seat, UpstreamError> {
    if let Some(admitted) = admitted(pool::admit(upstream, client)) {
        return admitted;
    }
    // Who is too late finds the addresses of before, if there were any.
    let asked = Box::pin(timeout(upstream.connect, Hosts::ask_now(upstream))).await;
    let unresolved = if asked.is_err() { Cause::Timeout } else { Cause::Connect };
    admitted(pool::admit(upstream, client)).unwrap_or(Err(UpstreamError::unsent(unresolved)))
}

/// None where names are to be asked first.
fn admitted(admitted: Admitted) -> Option<Result<Seat, UpstreamError>> {
    match admitted {
        Admitted::Here(seat) => Some(Ok(seat)),
        Admitted::Full => Some(Err(UpstreamError::unsent(Cause::Overload))),
        Admitted::Share => Some(Err(UpstreamError::unsent(Cause::Share))),
        Admitted::Unresolved => None,
    }
}

/// Moves the request to a host that it was not sent to yet; says whether there is one.
fn elsewhere(
    upstream: &Arc<Inner>,
    seat: &mut Seat,
    tried: &mut SmallVec<[Arc<Host>; HOST_TRIES_MAX]>,
) -> bool {
    tried.extend(seat.host().cloned());
    (1..HOST_TRIES_MAX).contains(&tried.len()) && pool::another(upstream, seat, tried)
}

impl Exchange<'_> {
    /// Whether the request, whose pooled connection was lost, is sent on a new one: once. Over
    /// HTTP/1.1 each connection that is lost has answered a request before, which bounds them; over
    /// HTTP/2 many requests lose one at a time, and a share of all bounds them.
    fn may_reconnect(&mut self, protocol: Protocol) -> bool {
        if std::mem::replace(&mut self.fresh, true) {
            return false;
        }
        let may = protocol == Protocol::H1 || pool::spend_retry(self.upstream);
        (if may { &self.upstream.reconnected } else { &self.upstream.retries_held }).inc();
        may
    }

    async fn try_h1(&mut self, seat: &mut Seat) -> Tried {
        let mut now = clock::monotonic();
        seat.begin(now);
        for attempt in 0..=REUSE_TRIES_MAX {
            let reuse = attempt < REUSE_TRIES_MAX && !self.fresh;
            let (mut link, reused) = match if reuse {
                pool::take(self.upstream, seat, now)
            } else {
                Err(pool::host_of(self.upstream, seat))
            } {
                Ok(mut link) => {
                    if !link.takes(self.bodiless) || !link.is_still_open(now).await {
                        continue;
                    }
                    (link, true)
                }
                Err(host) => {
                    let Some(host) = host else { return Tried::Unsent(Cause::Connect) };
                    match Box::pin(Link::connect(self.upstream, &host)).await {
                        Ok(link) => {
                            now = clock::monotonic();
                            (link, false)
                        }
                        Err(cause) => return Tried::Unsent(cause),
                    }
                }
            };
            link.begin(&mut self.request, self.body.take().unwrap_or_default(), now);
            let request = &mut self.request;
            return match poll_fn(|cx| link.poll_exchange(request, cx)).await {
                Sent::Reply(reply) => Tried::Reply(link, reply),
                Sent::Failed(error)
                    if reused && error.cause == Cause::Cut && link.is_unanswered() =>
                {
                    Tried::Lost(error)
                }
                Sent::Failed(error) => Tried::Failed(error),
            };
        }
        Tried::Unsent(Cause::Connect)
    }

    async fn try_h2(&mut self, seat: &mut Seat) -> Tried {
        seat.begin(clock::monotonic());
        let Some(host) = pool::host_of(self.upstream, seat) else {
            return Tried::Unsent(Cause::Connect);
        };
        let Some(endpoint) = self.upstream.endpoints.first() else {
            return Tried::Unsent(Cause::Connect);
        };
        let (body, watch) = Outgoing::new(self.body.take().unwrap_or_default());
        let mut load = Some(head::to_h2(&self.request, body, endpoint));
        let mut cause = Cause::Connect;
        for _ in 0..REFUSALS_MAX {
            let ticket = match streams::acquire(self.upstream, &host, clock::monotonic()).await {
                Ok(ticket) => ticket,
                Err(why) => {
                    cause = why;
                    break;
                }
            };
            match ticket.exchange(&mut load, watch.as_deref(), clock::monotonic()).await {
                multi::Sent::Reply(reply) => {
                    return Tried::Shared(Box::new((ticket, reply, watch)));
                }
                multi::Sent::Failed(error) => return Tried::Failed(error),
                multi::Sent::Lost(error) => return Tried::Lost(error),
                multi::Sent::Refused(cause) => return Tried::Refused(cause),
                multi::Sent::Unsent(why) => cause = why,
            }
        }
        self.body = load.map(|request| request.into_body().into_body());
        Tried::Unsent(cause)
    }
}

/// The same for a reply that shares its connection, which is in use until the body's end.
fn bring_back_shared(
    upstream: &Inner,
    held: Box<Held>,
    reply: http::Response<Incoming>,
) -> Response {
    let reply = Response::from(
        reply.map(|body| Body::incoming(body).window(multi::STREAM_WINDOW_BYTES as usize)),
    );
    if !reply.body.is_streaming() {
        return reply;
    }
    Response { body: reply.body.idle_timeout(upstream.idle).on_end_boxed(held), ..reply }
}
