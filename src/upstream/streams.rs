//! A place for a request on one of a worker's HTTP/2 connections to a host: on one that has room,
//! on a new one, or as soon as a place is free. Knows nothing of what is sent.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use tokio::sync::Notify;
use tokio::time::timeout_at;

use super::host::Host;
use super::multi::{Multi, Ticket};
use super::{Cause, Inner, pool};

/// One worker's connections to one host.
#[derive(Default)]
pub(super) struct Streams {
    /// The oldest first: it is filled first, so that few are kept.
    connections: Vec<Arc<Multi>>,
    opening: Option<Arc<Opening>>,
    /// Told when a place has become free.
    freed: Arc<Notify>,
}

/// A connection that somebody is opening, for all who wait.
#[derive(Default)]
struct Opening {
    outcome: OnceLock<Result<(), Cause>>,
    over: Notify,
}

enum Place {
    Here(Ticket),
    /// Whoever gets this opens a connection.
    Open(Opener),
    Opening(Arc<Opening>),
    /// There may be no further connection: wait for a request to end.
    Full(Arc<Notify>),
}

/// The duty to open a connection. Dropped, also with the request that had it, it lets the others go
/// on.
struct Opener {
    opening: Arc<Opening>,
    upstream: Arc<Inner>,
    host: Arc<Host>,
}

/// A place on a connection to `host`. Waits for one no longer than a connection may take to come
/// about.
pub(super) async fn acquire(
    upstream: &Arc<Inner>,
    host: &Arc<Host>,
    now: Instant,
) -> Result<Ticket, Cause> {
    let deadline = tokio::time::Instant::from_std(now + upstream.connect);
    loop {
        let place = pool::with_streams(upstream, host, |streams| streams.place(upstream, host))
            .ok_or(Cause::Connect)?;
        match place {
            Place::Here(ticket) if ticket.is_still_open(now).await => return Ok(ticket),
            // Closed by the other side while nobody used it.
            Place::Here(_) => {}
            Place::Open(opener) => {
                if let Some(ticket) = opener.open().await? {
                    return Ok(ticket);
                }
            }
            Place::Opening(opening) => {
                timeout_at(deadline, opening.over()).await.map_err(|_| Cause::Timeout)??;
            }
            Place::Full(freed) => {
                timeout_at(deadline, freed.notified()).await.map_err(|_| Cause::Overload)?
            }
        }
    }
}

impl Streams {
    fn place(&mut self, upstream: &Arc<Inner>, host: &Arc<Host>) -> Place {
        self.connections.retain(|multi| multi.is_usable());
        if let Some(ticket) = self.connections.iter().find_map(Multi::enter) {
            return Place::Here(ticket);
        }
        if let Some(opening) = &self.opening {
            return Place::Opening(Arc::clone(opening));
        }
        if self.connections.len() >= upstream.http2.connections_per_worker {
            return Place::Full(Arc::clone(&self.freed));
        }
        let opening = Arc::<Opening>::default();
        self.opening = Some(Arc::clone(&opening));
        Place::Open(Opener { opening, upstream: Arc::clone(upstream), host: Arc::clone(host) })
    }

    /// A place on `multi` is free again.
    pub(super) fn freed(&self) {
        self.freed.notify_one();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.connections.is_empty() && self.opening.is_none()
    }

    /// Takes out what was unused for too long, for the caller to drop.
    pub(super) fn sweep(&mut self, now: Instant, old: &mut Vec<Arc<Multi>>) {
        old.extend(self.connections.extract_if(.., |multi| {
            multi.upstream.is_closed() || !multi.is_usable() || multi.is_old(now)
        }));
    }

    /// The host is gone: its connections end with what is on them.
    pub(super) fn close(&mut self, old: &mut Vec<Arc<Multi>>) {
        old.append(&mut self.connections);
    }
}

impl Opener {
    /// Opens the connection, keeps it for all, and takes a place on it.
    async fn open(self) -> Result<Option<Ticket>, Cause> {
        let opened = Multi::connect(&self.upstream, &self.host).await;
        let _ = self.opening.outcome.set(opened.as_ref().map(|_| ()).map_err(|cause| *cause));
        let multi = opened?;
        let ticket = multi.enter();
        if !self.upstream.is_closed() {
            pool::with_streams(&self.upstream, &self.host, |streams| {
                streams.connections.push(multi);
                // Whoever found all others full may find room on this one.
                streams.freed.notify_waiters();
            });
        }
        Ok(ticket)
    }
}

impl Opening {
    /// Waits until it is over. Without an outcome whoever opened it has gone away: look again.
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
    /// Requests on each connection.
    pub(super) fn loads(&self) -> Vec<usize> {
        self.connections.iter().map(|multi| multi.streams()).collect()
    }
}
