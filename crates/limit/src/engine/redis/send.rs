//! Sends a command: the rules by which it finds its node, and when it is sent again. Must not know
//! what the command does.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ::redis::Value;
use tokio::time::sleep;

use super::failure::{self, ErrorAction};
use super::link::Link;
use super::owners;
use super::topology::address_of;
use crate::clock;
use crate::engine::{Cause, EngineError, Execution};

/// MOVED and ASK that one call follows.
const REDIRECTS_MAX: usize = 5;
/// How often one call is sent again because the node can't serve it yet.
const RETRIES_MAX: usize = 2;
/// Pause before the first of these retries.
const NOT_YET_WAIT: Duration = Duration::from_millis(5);
/// Pause before a key is asked for again while its slot moves. It doubles each time, and only the
/// deadline ends it: one slot moves within milliseconds.
const MOVING_WAIT: Duration = Duration::from_millis(1);
/// A node that can't serve any of its slots is left alone for this long.
const REST: Duration = Duration::from_millis(100);

impl Link {
    /// Sends a command to the owner of `slot`, and again after an answer that proves that nothing
    /// ran, at most until `until`. `command` writes it; it is told whether a script's text is
    /// needed.
    pub(super) async fn send(
        self: &Arc<Self>,
        slot: u16,
        until: Instant,
        command: impl Fn(bool, &mut Vec<u8>),
    ) -> Result<Value, EngineError> {
        let (mut with_text, mut asks, mut redirects) = (false, None, 0);
        let (mut retries, mut waits) = (0, 0);
        loop {
            let (pipeline, node, asking) = match asks.take() {
                Some(node) => (self.pipeline(&node)?, node, true),
                None => {
                    let node = self.owner(slot, until).await?;
                    (self.pipeline(&node)?, node, false)
                }
            };
            let reply = pipeline.call(until, asking, |out| command(with_text, out)).await?;
            let error = match reply.extract_error() {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            let not_run = Err(EngineError { cause: Cause::Cluster, ran: Execution::No });
            match failure::next(&error) {
                ErrorAction::SendText if with_text => {
                    return Err(EngineError { cause: Cause::Script, ran: Execution::No });
                }
                ErrorAction::SendText => with_text = true,
                ErrorAction::Moved { .. } | ErrorAction::Ask { .. }
                    if !self.connector.is_cluster() =>
                {
                    return Err(EngineError { cause: Cause::NotSingle, ran: Execution::No });
                }
                ErrorAction::Moved { host, port } | ErrorAction::Ask { host, port }
                    if redirects == REDIRECTS_MAX =>
                {
                    tracing::debug!(slot, host, port, "redirected too often");
                    return not_run;
                }
                ErrorAction::Moved { host, port } => {
                    redirects += 1;
                    owners::moved(self, slot, &address_of(&host, &port, &node));
                }
                ErrorAction::Ask { host, port } => {
                    redirects += 1;
                    asks = Some(Arc::from(address_of(&host, &port, &node)));
                }
                ErrorAction::WaitForSlot => {
                    if !pause(MOVING_WAIT * 2_u32.saturating_pow(waits), until).await {
                        return not_run;
                    }
                    waits += 1;
                    // Asked again, the owner redirects again.
                    redirects = 0;
                }
                // Its address leads to another server by now, or will soon. The connection would
                // stay with this one.
                ErrorAction::Demoted if self.connector.is_single() => {
                    let failed = failure::engine_error(&error);
                    pipeline.leave(failed.cause);
                    return Err(failed);
                }
                ErrorAction::WaitForNode | ErrorAction::Demoted => {
                    let failed = failure::engine_error(&error);
                    if retries == RETRIES_MAX {
                        pipeline.rest(failed.cause, REST);
                        return Err(failed);
                    }
                    retries += 1;
                    if !pause(NOT_YET_WAIT, until).await {
                        return Err(failed);
                    }
                }
                ErrorAction::Fail(error) => return Err(error),
            }
        }
    }

    async fn owner(self: &Arc<Self>, slot: u16, until: Instant) -> Result<Arc<str>, EngineError> {
        let topology = match self.watch.topology() {
            Some(topology) => topology,
            None => owners::known(self, until).await?,
        };
        match topology.owner(slot) {
            Some(owner) => Ok(Arc::clone(&owner.address)),
            None => Err(EngineError { cause: Cause::Cluster, ran: Execution::No }),
        }
    }
}

/// Waits for `span`. Returns false at once if that would be later than `until`.
async fn pause(span: Duration, until: Instant) -> bool {
    if clock::monotonic() + span >= until {
        return false;
    }
    sleep(span).await;
    true
}
