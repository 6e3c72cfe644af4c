//! Where the path of a request leaves this module: what sends it to an upstream. A trial has one of
//! its own.

use std::pin::pin;
use std::time::Instant;

use super::mirror::Mirror;
use super::sent::{RequestTimeout, Sent};
use crate::limit::Ending;
use crate::upstream::{PlacePermit, Sender, Upstream, UpstreamError};
use crate::wire::{Request, Response};

/// Sends requests on. Known at compile time, so that serving pays nothing for trials.
pub(in crate::proxy) trait Exchange {
    /// Sends an admitted request, and returns the head of its reply.
    fn send(
        &self,
        upstream: &Upstream,
        request: Request,
        dispatch: Dispatch<'_>,
        sent: &mut Sent,
    ) -> impl Future<Output = Result<Response, UpstreamError>>;
}

/// What an exchange is told of a request beside the request itself.
#[derive(Clone, Copy)]
pub(in crate::proxy) struct Dispatch<'a> {
    pub(in crate::proxy) sender: Sender<'a>,
    /// When it was decided that it is sent, from where its time counts.
    pub(in crate::proxy) began: Instant,
    /// Where it is copied to.
    pub(in crate::proxy) mirror: Option<&'a Mirror>,
}

/// Sends requests to the upstream itself.
pub(in crate::proxy) struct UpstreamExchange;

impl Exchange for UpstreamExchange {
    async fn send(
        &self,
        upstream: &Upstream,
        mut request: Request,
        Dispatch { sender, began, mirror }: Dispatch<'_>,
        sent: &mut Sent,
    ) -> Result<Response, UpstreamError> {
        let place = if upstream.may_queue() {
            Box::pin(wait(upstream, &sender, sent)).await?
        } else {
            None
        };
        if let Some(mirror) = mirror {
            mirror.copy(&mut request);
        }
        let reached = sent.reached.as_mut();
        match &sent.timeout {
            None => pin!(upstream.send_noting(request, &sender, place, began, reached)).await,
            // Boxed: few routes have a timeout, and every connection would carry its state.
            Some(timeout) => {
                let sending = upstream.send_noting(request, &sender, place, began, reached);
                match Box::pin(send_within(timeout, sending)).await {
                    Ok(reply) => reply,
                    Err(Overdue { is_uploading }) => {
                        sent.overdue(Some(began));
                        Err(upstream.overdue(is_uploading))
                    }
                }
            }
        }
    }
}

/// Waits for a place, within the time for the whole request. Nothing was done for a request that
/// ends meanwhile, in whatever way, so it pays nothing.
async fn wait(
    upstream: &Upstream,
    sender: &Sender<'_>,
    sent: &mut Sent,
) -> Result<Option<PlacePermit>, UpstreamError> {
    let ending = std::mem::replace(&mut sent.ending, Ending::Withdrawn);
    let waiting = upstream.place(sender);
    let place = match &sent.timeout {
        None => waiting.await?,
        Some(timeout) => match tokio::time::timeout_at(timeout.deadline.into(), waiting).await {
            Ok(place) => place?,
            Err(_) => {
                sent.overdue(None);
                return Err(upstream.overdue_unsent());
            }
        },
    };
    sent.ending = ending;
    Ok(place)
}

/// The time for the whole request is over.
struct Overdue {
    /// The client had not sent all of it.
    is_uploading: bool,
}

/// Waits for the upstream's reply, within the time for the whole request.
async fn send_within(
    timeout: &RequestTimeout,
    sending: impl Future<Output = Result<Response, UpstreamError>>,
) -> Result<Result<Response, UpstreamError>, Overdue> {
    // Kept alive past the deadline: to `is_uploading`, dropping the body would look like its end.
    let sending = pin!(sending);
    match tokio::time::timeout_at(timeout.deadline.into(), sending).await {
        Ok(Ok(reply)) => {
            Ok(Ok(Response { body: reply.body.with_deadline(timeout.deadline), ..reply }))
        }
        Ok(failed) => Ok(failed),
        Err(_) => Err(Overdue { is_uploading: timeout.is_uploading() }),
    }
}
