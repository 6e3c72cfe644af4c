//! Finds a stream for a request among a worker's HTTP/2 connections to a host: on one with room, on
//! a new one, or as soon as one is free. Knows nothing of what is sent.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use tokio::sync::Notify;
use tokio::time::timeout_at;

use super::host::Host;
use super::http2::{Http2Connection, StreamPermit};
use super::{Cause, Inner, pool};

/// One worker's connections to one host.
#[derive(Default)]
pub(super) struct Streams {
    /// The oldest first. It is filled first, so that few connections are kept.
    connections: Vec<Arc<Http2Connection>>,
    opening: Option<Arc<PendingConnection>>,
    /// Notified when a stream has become free.
    freed: Arc<Notify>,
}

/// A connection being opened by one request while others wait for it.
#[derive(Default)]
struct PendingConnection {
    outcome: OnceLock<Result<(), Cause>>,
    over: Notify,
}

enum Placement {
    Ready(StreamPermit),
    /// The caller opens a connection.
    Open(Opener),
    Opening(Arc<PendingConnection>),
    /// No further connection is allowed: wait for a request to end.
    Full(Arc<Notify>),
}

/// The duty to open a connection. Dropping it, also because its request was dropped, lets the
/// waiting requests continue.
struct Opener {
    opening: Arc<PendingConnection>,
    upstream: Arc<Inner>,
    host: Arc<Host>,
}

/// A stream on a connection to `host`. Waits for one at most for the time to connect.
pub(super) async fn acquire(
    upstream: &Arc<Inner>,
    host: &Arc<Host>,
    now: Instant,
) -> Result<StreamPermit, Cause> {
    let deadline = tokio::time::Instant::from_std(now + upstream.settings.connect);
    loop {
        let placement =
            pool::with_streams(upstream, host, |streams| streams.place_request(upstream, host))
                .ok_or(Cause::Connect)?;
        match placement {
            Placement::Ready(permit) if permit.is_still_open(now).await => return Ok(permit),
            // The other side closed it while it was idle.
            Placement::Ready(_) => {}
            Placement::Open(opener) => {
                if let Some(permit) = opener.open().await? {
                    return Ok(permit);
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

impl Streams {
    fn place_request(&mut self, upstream: &Arc<Inner>, host: &Arc<Host>) -> Placement {
        self.connections.retain(|connection| connection.is_usable());
        if let Some(permit) = self.connections.iter().find_map(Http2Connection::try_acquire) {
            return Placement::Ready(permit);
        }
        if let Some(opening) = &self.opening {
            return Placement::Opening(Arc::clone(opening));
        }
        if self.connections.len() >= upstream.settings.http2.connections_per_worker {
            return Placement::Full(Arc::clone(&self.freed));
        }
        let opening = Arc::<PendingConnection>::default();
        self.opening = Some(Arc::clone(&opening));
        Placement::Open(Opener { opening, upstream: Arc::clone(upstream), host: Arc::clone(host) })
    }

    /// A stream has become free.
    pub(super) fn freed(&self) {
        self.freed.notify_one();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.connections.is_empty() && self.opening.is_none()
    }

    /// Moves out the connections that were unused for too long, for the caller to drop.
    pub(super) fn sweep(&mut self, now: Instant, discarded: &mut Vec<Arc<Http2Connection>>) {
        discarded.extend(self.connections.extract_if(.., |connection| {
            connection.upstream.is_closed() || !connection.is_usable() || connection.is_expired(now)
        }));
    }

    /// The host is gone. Its connections close once the requests on them end.
    pub(super) fn close(&mut self, discarded: &mut Vec<Arc<Http2Connection>>) {
        discarded.append(&mut self.connections);
    }
}

impl Opener {
    /// Opens the connection, adds it to the pool, and takes a stream on it.
    async fn open(self) -> Result<Option<StreamPermit>, Cause> {
        let opened = Http2Connection::connect(&self.upstream, &self.host).await;
        let _ = self.opening.outcome.set(opened.as_ref().map(|_| ()).map_err(|cause| *cause));
        let connection = opened?;
        let permit = connection.try_acquire();
        if !self.upstream.is_closed() {
            pool::with_streams(&self.upstream, &self.host, |streams| {
                streams.connections.push(connection);
                // Requests that found all other connections full may find room on this one.
                streams.freed.notify_waiters();
            });
        }
        Ok(permit)
    }
}

impl PendingConnection {
    /// Waits until it is opened. If there is no outcome, the opener was dropped and the caller
    /// looks again.
    async fn over(&self) -> Result<(), Cause> {
        if self.outcome.get().is_none() {
            self.over.notified().await;
        }
        self.outcome.get().copied().unwrap_or(Ok(()))
    }
}

impl Drop for Opener {
    fn drop(&mut self) {
        pool::with_streams(&self.upstream, &self.host, |streams| {
            streams.opening.take_if(|opening| Arc::ptr_eq(opening, &self.opening));
        });
        self.opening.over.notify_waiters();
    }
}

impl std::fmt::Debug for Streams {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Streams")
            .field("connections", &self.connections.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
impl Streams {
    /// The number of requests on each connection.
    pub(super) fn loads(&self) -> Vec<usize> {
        self.connections.iter().map(|connection| connection.streams()).collect()
    }
}
