//! Where the path of a request leaves this module: what sends it to an upstream. A trial has one of
//! its own.

use std::pin::pin;
use std::time::Instant;

use super::sent::{RequestTimeout, Sent};
use crate::upstream::{Sender, Upstream, UpstreamError};
use crate::wire::{Request, Response};

/// Sends requests on. Known at compile time, so that serving pays nothing for trials.
pub(in crate::proxy) trait Exchange {
    /// Sends an admitted request of `sender` at the time `began`, and returns the head of its
    /// reply.
    fn send(
        &self,
        upstream: &Upstream,
        request: Request,
        sender_and_began: (Sender, Instant),
        sent: &mut Sent,
    ) -> impl Future<Output = Result<Response, UpstreamError>>;
}

/// Sends requests to the upstream itself.
pub(in crate::proxy) struct UpstreamExchange;

impl Exchange for UpstreamExchange {
    async fn send(
        &self,
        upstream: &Upstream,
        request: Request,
        (sender, began): (Sender, Instant),
        sent: &mut Sent,
    ) -> Result<Response, UpstreamError> {
        let reached = sent.reached.as_mut();
        match &sent.timeout {
            None => pin!(upstream.send_noting(request, &sender, began, reached)).await,
            // Boxed: few routes have a timeout, and every connection would carry its state.
            Some(timeout) => {
                let sending = upstream.send_noting(request, &sender, began, reached);
                Box::pin(send_within(timeout, upstream, sending)).await
            }
        }
    }
}

/// Waits for the upstream's reply, within the time for the whole request.
async fn send_within(
    timeout: &RequestTimeout,
    upstream: &Upstream,
    sending: impl Future<Output = Result<Response, UpstreamError>>,
) -> Result<Response, UpstreamError> {
    // Kept alive past the deadline: to `is_uploading`, dropping the body would look like its end.
    let sending = pin!(sending);
    match tokio::time::timeout_at(timeout.deadline.into(), sending).await {
        Ok(Ok(reply)) => Ok(Response { body: reply.body.with_deadline(timeout.deadline), ..reply }),
        Ok(failed) => failed,
        Err(_) => Err(upstream.overdue(timeout.is_uploading())),
    }
}
