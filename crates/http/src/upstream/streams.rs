//! A worker's HTTP/2 connections to a host, and where a request may get a stream: on one with room,
//! on a new one, or as soon as one is free. Knows neither how it is waited for nor what is sent.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use tokio::sync::Notify;

use super::http2::{Http2Connection, StreamPermit};
use super::{Cause, Inner};

/// What streams are for. Tunnels last, so they have connections of their own: however many there
/// are, requests find their streams.
#[derive(Clone, Copy, Debug)]
pub(super) enum StreamUse {
    Requests,
    Tunnels,
}

/// One worker's connections to one host, for one use.
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
pub(super) struct PendingConnection {
    outcome: OnceLock<Result<(), Cause>>,
    over: Notify,
}

/// Where a request may get a stream.
pub(super) enum Placement {
    Ready(StreamPermit),
    /// The caller opens a connection, which notifies the second when a stream on it becomes free.
    Open(Arc<PendingConnection>, Arc<Notify>),
    Opening(Arc<PendingConnection>),
    /// No further connection is allowed: wait for a request to end.
    Full(Arc<Notify>),
}

impl Streams {
    pub(super) fn place_request(&mut self, upstream: &Inner) -> Placement {
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
        Placement::Open(opening, Arc::clone(&self.freed))
    }

    /// Adds a connection that was opened.
    pub(super) fn add(&mut self, connection: Arc<Http2Connection>) {
        self.connections.push(connection);
        // Requests that found all other connections full may find room on this one.
        self.freed.notify_waiters();
    }

    /// Another request may open the next connection.
    pub(super) fn end_opening(&mut self, ended: &Arc<PendingConnection>) {
        self.opening.take_if(|opening| Arc::ptr_eq(opening, ended));
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

    /// Moves out the connections that carry no request, for the caller to drop.
    pub(super) fn release_idle(&mut self, discarded: &mut Vec<Arc<Http2Connection>>) {
        discarded.extend(self.connections.extract_if(.., |connection| connection.is_idle()));
    }

    /// The host is gone. Its connections close once the requests on them end.
    pub(super) fn close(&mut self, discarded: &mut Vec<Arc<Http2Connection>>) {
        discarded.append(&mut self.connections);
    }
}

impl PendingConnection {
    /// The connection was opened, or could not be.
    pub(super) fn set(&self, outcome: Result<(), Cause>) {
        let _ = self.outcome.set(outcome);
    }

    /// Lets the waiting requests continue.
    pub(super) fn end(&self) {
        self.over.notify_waiters();
    }

    /// Waits until it is opened. If there is no outcome, the opener was dropped and the caller
    /// looks again.
    pub(super) async fn over(&self) -> Result<(), Cause> {
        if self.outcome.get().is_none() {
            self.over.notified().await;
        }
        self.outcome.get().copied().unwrap_or(Ok(()))
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
