//! Where the path of a request leaves this module: what sends it to an upstream. A trial has one of
//! its own, which also sees what the policy is shown.

use std::pin::pin;

use crate::clock;
use crate::proxy::context::{RequestContext, RequestTimeout};
use crate::proxy::decide::facts::Facts;
use crate::upstream::{Upstream, UpstreamError};
use crate::wire::{Network, Request, Response};

/// Sends requests on. Known at compile time, so that serving pays nothing for trials.
pub(in crate::proxy) trait Exchange {
    /// Called with what the policy is shown.
    fn note_facts(&self, _facts: &Facts<'_>) {}

    /// Called when a request to an upstream is admitted, before anything is done to send it. Where
    /// its route rewrites it, or a policy meters it, it may still be refused. Stays pending if
    /// nobody wants to know more than the decision.
    fn decided(&self, _context: &RequestContext, _rewrites: bool) -> impl Future<Output = ()> {
        std::future::ready(())
    }

    /// Sends an admitted request, and returns the head of its reply.
    fn send(
        &self,
        upstream: &Upstream,
        request: Request,
        client: Option<Network>,
        context: &mut RequestContext,
    ) -> impl Future<Output = Result<Response, UpstreamError>>;
}

/// Sends requests to the upstream itself.
pub(in crate::proxy) struct UpstreamExchange;

impl Exchange for UpstreamExchange {
    async fn send(
        &self,
        upstream: &Upstream,
        request: Request,
        client: Option<Network>,
        context: &mut RequestContext,
    ) -> Result<Response, UpstreamError> {
        // Little happens between the decision and this. Saves a look at the clock.
        let began = context.decided_at.unwrap_or_else(clock::monotonic);
        let reached = context.kept.as_deref_mut().map(|kept| &mut kept.reached);
        match &context.timeout {
            None => upstream.send_noting(request, client, began, reached).await,
            // Boxed: few routes have a timeout, and every connection would carry its state.
            Some(timeout) => {
                let sending = upstream.send_noting(request, client, began, reached);
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
