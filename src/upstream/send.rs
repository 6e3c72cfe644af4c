//! A request's way to an upstream: a place, an endpoint, a connection, the reply. Knows nothing of how a connection works.

use std::sync::Arc;

use hyper::body::Incoming;

use super::link::{Link, Sent, Upgraded};
use super::multi::Held;
use super::outgoing::{Outgoing, Watch};
use super::pool::{self, Seat};
use super::{Cause, Inner, Protocol, UpstreamError};
use super::{framing, head, streams};
use crate::clock;
use crate::wire::{Body, Request, Response};

/// Idle connections that are tried for one request before a new one is made: each may just have been closed by the upstream.
const REUSE_TRIES_MAX: usize = 3;
/// Endpoints that are tried for one request, so that one that refuses costs no reply and many that hang don't add up.
const ENDPOINT_TRIES_MAX: usize = 3;

pub(super) async fn send(upstream: &Arc<Inner>, request: Request) -> Result<Response, UpstreamError> {
    let Some((seat, first)) = pool::admit(upstream) else { return Err(UpstreamError::unsent(Cause::Overload)) };
    match upstream.protocol {
        Protocol::H1 => send_h1(upstream, seat, first, request).await,
        Protocol::H2 => send_h2(upstream, seat, first, request).await,
    }
}

async fn send_h1(upstream: &Arc<Inner>, seat: Seat, first: usize, request: Request) -> Result<Response, UpstreamError> {
    let (mut parts, body) = request.into_parts();
    framing::announce(&mut parts.headers, &body);
    let (body, watch) = Outgoing::new(body);
    let mut request = http::Request::from_parts(parts, body);
    // Whatever the client speaks, we speak 1.1: an old client does not cost us the connection.
    *request.version_mut() = http::Version::HTTP_11;
    let count = upstream.endpoints.len();
    let mut refused = Cause::Connect;
    for step in 0..count.min(ENDPOINT_TRIES_MAX) {
        let (link, sent) = match send_to(upstream, (first + step) % count, request, watch.as_deref()).await {
            Ok(sent) => sent,
            Err((unsent, cause)) => {
                (request, refused) = (unsent, cause);
                continue;
            }
        };
        return match sent {
            Ok(reply) => Ok(bring_back(upstream, link, seat, reply)),
            Err(error) => Err(error),
        };
    }
    Err(UpstreamError::unsent(refused))
}

type Done = (Box<Link>, Result<http::Response<Incoming>, UpstreamError>);

/// Sends to one endpoint, or gives the request back because nothing of it could be sent there.
async fn send_to(
    upstream: &Arc<Inner>,
    endpoint: usize,
    mut request: http::Request<Outgoing>,
    watch: Option<&Watch>,
) -> Result<Done, (http::Request<Outgoing>, Cause)> {
    let mut now = clock::monotonic();
    for attempt in 0..=REUSE_TRIES_MAX {
        let reused = if attempt < REUSE_TRIES_MAX { pool::take(upstream, endpoint, now) } else { None };
        let fresh = reused.is_none();
        let mut link = match reused {
            Some(link) if link.is_still_open(now).await => link,
            Some(_) => continue,
            None => match Link::connect(upstream, endpoint).await {
                Ok(link) => {
                    now = clock::monotonic();
                    link
                }
                Err(cause) => return Err((request, cause)),
            },
        };
        match link.exchange(request, watch, now).await {
            Sent::Reply(reply) => return Ok((link, Ok(reply))),
            Sent::Failed(error) => return Ok((link, Err(error))),
            Sent::Refused(cause) => return Ok((link, Err(UpstreamError::unsent(cause)))),
            Sent::Unsent(unsent, cause) if fresh => return Err((unsent, cause)),
            Sent::Unsent(unsent, _) => request = unsent,
        }
    }
    Err((request, Cause::Connect))
}

/// The reply as the proxy gets it. The connection goes back to the pool at once where all of the reply has come already, as small ones have; else
/// with the body's end.
fn bring_back(upstream: &Inner, mut link: Box<Link>, seat: Seat, reply: http::Response<Incoming>) -> Response {
    let (mut parts, incoming) = reply.into_parts();
    parts.version = http::Version::HTTP_11;
    let body = Body::incoming(incoming);
    if parts.status == http::StatusCode::SWITCHING_PROTOCOLS {
        link.seat = Some(seat);
        return http::Response::from_parts(parts, body.on_end(Upgraded(link)));
    }
    if link.is_ready() {
        drop(seat);
        pool::put(link);
        return http::Response::from_parts(parts, body);
    }
    link.seat = Some(seat);
    http::Response::from_parts(parts, body.idle_timeout(upstream.idle).on_end_boxed(link))
}

async fn send_h2(upstream: &Arc<Inner>, seat: Seat, first: usize, request: Request) -> Result<Response, UpstreamError> {
    let (mut parts, body) = request.into_parts();
    let count = upstream.endpoints.len();
    if let Some(endpoint) = upstream.endpoints.get(first) {
        head::to_h2(&mut parts, endpoint);
    }
    let (body, watch) = Outgoing::new(body);
    // A request that the upstream refuses is gone with its stream: one without a body can be sent again.
    let spare = http_body::Body::is_end_stream(&body).then(|| parts.clone());
    let mut request = http::Request::from_parts(parts, body);
    let mut refused = Cause::Connect;
    for step in 0..count.min(ENDPOINT_TRIES_MAX) {
        let endpoint = (first + step) % count;
        for _ in 0..REUSE_TRIES_MAX {
            let ticket = match streams::acquire(upstream, endpoint, clock::monotonic()).await {
                Ok(ticket) => ticket,
                Err(cause) => {
                    refused = cause;
                    break;
                }
            };
            request = match ticket.exchange(request, watch.as_deref(), clock::monotonic()).await {
                Sent::Reply(reply) => return Ok(bring_back_h2(upstream, Held::new(ticket, seat, watch), reply)),
                Sent::Failed(error) => return Err(error),
                Sent::Unsent(unsent, cause) => {
                    refused = cause;
                    unsent
                }
                Sent::Refused(cause) => {
                    refused = cause;
                    let Some(spare) = spare.clone() else { return Err(UpstreamError::unsent(cause)) };
                    http::Request::from_parts(spare, Outgoing::new(Body::empty()).0)
                }
            };
        }
    }
    Err(UpstreamError::unsent(refused))
}

/// The same for a reply that shares its connection, which is in use until the body's end.
fn bring_back_h2(upstream: &Inner, held: Box<Held>, reply: http::Response<Incoming>) -> Response {
    let (mut parts, incoming) = reply.into_parts();
    parts.version = http::Version::HTTP_11;
    let body = Body::incoming(incoming);
    let body = if body.is_streaming() { body.idle_timeout(upstream.idle).on_end_boxed(held) } else { body };
    http::Response::from_parts(parts, body)
}
