//! Gets a stream for a request among a worker's HTTP/2 connections to a host: waits for one, or
//! opens a connection. Knows nothing of what is sent.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::Notify;
use tokio::time::timeout_at;

use super::host::Host;
use super::http2::{Http2Connection, StreamPermit};
use super::streams::{PendingConnection, Placement, StreamUse};
use super::{Cause, Inner, pool};

/// How many connections in a row may be over as soon as they are open, until the host is given up.
const UNUSABLE_MAX: u32 = 2;

/// A stream on a connection to `host`. Waits for one at most for the time to connect.
pub(super) async fn stream(
    upstream: &Arc<Inner>,
    host: &Arc<Host>,
    stream_use: StreamUse,
    now: Instant,
) -> Result<StreamPermit, Cause> {
    let deadline = tokio::time::Instant::from_std(now + upstream.settings.connect);
    let mut unusable = 0;
    loop {
        if tokio::time::Instant::now() > deadline {
            return Err(Cause::Timeout);
        }
        let placement =
            pool::with_streams(upstream, host, stream_use, |all| all.place_request(upstream))
                .ok_or(Cause::Connect)?;
        match placement {
            Placement::Ready(permit) if permit.is_still_open(now).await => return Ok(permit),
            // The other side closed it while it was idle.
            Placement::Ready(_) => {}
            Placement::Open(opening, freed) => {
                let (upstream, host) = (Arc::clone(upstream), Arc::clone(host));
                let opener = Opener { opening, freed, upstream, host, stream_use };
                if let Some(permit) = opener.open().await? {
                    return Ok(permit);
                }
                // An upstream that stops may greet and then end each connection.
                unusable += 1;
                if unusable == UNUSABLE_MAX {
                    return Err(Cause::Cut);
                }
            }
            Placement::Opening(opening) => {
                timeout_at(deadline, opening.over()).await.map_err(|_| Cause::Timeout)??;
            }
            Placement::Full(freed) => {
                timeout_at(deadline, freed.notified()).await.map_err(|_| Cause::Overload)?
            }
        }
    }
}

/// The duty to open a connection. Dropping it, also because its request was dropped, lets the
/// waiting requests continue.
struct Opener {
    opening: Arc<PendingConnection>,
    freed: Arc<Notify>,
    upstream: Arc<Inner>,
    host: Arc<Host>,
    stream_use: StreamUse,
}

impl Opener {
    /// Opens the connection, adds it to the pool, and takes a stream on it.
    async fn open(self) -> Result<Option<StreamPermit>, Cause> {
        let freed = Arc::clone(&self.freed);
        let opened =
            Http2Connection::connect(&self.upstream, &self.host, freed, pool::release_idle).await;
        self.opening.set(opened.as_ref().map(|_| ()).map_err(|cause| *cause));
        let connection = opened?;
        let permit = connection.try_acquire();
        if !self.upstream.is_closed() {
            pool::with_streams(&self.upstream, &self.host, self.stream_use, |streams| {
                streams.add(connection);
            });
        }
        Ok(permit)
    }
}

impl Drop for Opener {
    fn drop(&mut self) {
        pool::with_streams(&self.upstream, &self.host, self.stream_use, |streams| {
            streams.end_opening(&self.opening);
        });
        self.opening.end();
    }
}
