//! A worker's loop: accept, count, hand to a task of its own; on the drain stop, finish, return.
//! Knows nothing of HTTP.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::access::Access as _;
use tokio::net::{TcpListener, TcpStream};

use super::bind::BACKLOG_MAX;
use super::connection::Connection;
use super::failure::Failures;
use super::places::{Connections, NoPlace, Place};
use super::pulse::Pulse;
use super::{ConfigSource, ConnectionSettings, Drain, Handler, Listener};
use crate::clock::{self, Seldom};
use crate::telemetry::{Counter, CounterSet, Metrics, labels, names};
use crate::wire;

/// The first wait after an error that hits every accept, and the longest: each further one is twice
/// as long.
const BACKOFF_FIRST_MS: u64 = 5;
const BACKOFF_LAST_MS: u64 = 500;
/// Time for idle connections that were told to close to do so, while a new one waits for its place.
const ROOM: Duration = Duration::from_millis(20);

pub(super) async fn serve<H: Handler>(
    listener: Listener,
    handler: H,
    config: ConfigSource,
    drain: Drain,
    metrics: Metrics,
) {
    let mut acceptor = Acceptor::new(handler, listener.index, config, &drain, &metrics);
    match TcpListener::from_std(listener.socket) {
        Ok(listener) => {
            let abandon = AbandonOnDrop(acceptor.connections.clone());
            acceptor.accept_until_drained(&listener, &drain).await;
            acceptor.accept_the_queued(listener).await;
            acceptor.connections.drain();
            tokio::select! {
                () = acceptor.connections.emptied() => {}
                () = drain.wait_cut() => {
                    acceptor.connections.abandon();
                    // Each ends at its next turn: then its requests have settled and are logged.
                    acceptor.connections.emptied().await;
                }
            }
            drop(abandon);
        }
        Err(error) => tracing::error!(%error, "can't accept on this socket"),
    }
}

/// `serve` itself was dropped: the grace is over.
struct AbandonOnDrop(Connections);

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

labels! {
    /// Why a connection was closed at once: a metric's label.
    enum Refused {
        /// There are as many connections as there may be.
        Limit = "limit",
        /// Its address has as many connections as it may have.
        Address = "address",
        /// It could not be accepted.
        Accept = "accept",
    }
}

labels! {
    /// Why an idle connection was closed: a metric's label.
    enum Reclaimed {
        /// For a new connection, as there may not be more.
        Limit = "limit",
        /// For its file descriptor.
        Descriptors = "descriptors",
    }
}

struct Acceptor<H> {
    handler: H,
    /// Of the listener.
    index: usize,
    config: ConfigSource,
    connections: Connections,
    accepted: Counter,
    refused: CounterSet<Refused>,
    reclaimed: CounterSet<Reclaimed>,
    /// Lines about an address with too many connections.
    told: Seldom,
    failed: Arc<Failures>,
    /// Errors in a row that hit every accept.
    failures: u32,
}

impl<H: Handler> Acceptor<H> {
    fn new(
        handler: H,
        index: usize,
        config: ConfigSource,
        drain: &Drain,
        metrics: &Metrics,
    ) -> Self {
        let places = drain.places_under(&config);
        Self {
            handler,
            index,
            config,
            connections: Connections::new(&places, metrics.gauge(names::CONNECTIONS_OPEN)),
            accepted: metrics.counter(names::CONNECTIONS, &[]),
            refused: metrics.counters(names::CONNECTIONS_REFUSED, &[]),
            reclaimed: metrics.counters(names::CONNECTIONS_RECLAIMED, &[]),
            told: Seldom::default(),
            failed: Arc::new(Failures::new(metrics)),
            failures: 0,
        }
    }

    async fn accept_until_drained(&mut self, listener: &TcpListener, drain: &Drain) {
        let mut drained = std::pin::pin!(drain.wait());
        loop {
            let accepted = tokio::select! {
                biased;
                () = &mut drained => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, address)) => {
                    self.failures = 0;
                    self.open(stream, address, false).await;
                }
                Err(error) => {
                    let Some(wait) = self.failed(&error) else { continue };
                    tokio::select! {
                        biased;
                        () = &mut drained => return,
                        () = tokio::time::sleep(wait) => {}
                    }
                }
            }
        }
    }

    /// Counts and logs a failed accept, and says how long to wait before the next. Where
    /// descriptors have run out, idle connections are closed.
    fn failed(&mut self, error: &io::Error) -> Option<Duration> {
        self.refused.inc(Refused::Accept);
        if wire::is_out_of_descriptors(error) {
            let reclaimed = self.connections.places().reclaim() as u64;
            self.reclaimed.add(Reclaimed::Descriptors, reclaimed);
        }
        let wait = after_accept_error(error.kind(), self.failures)?;
        self.failures = self.failures.saturating_add(1);
        tracing::warn!(%error, wait_ms = wait.as_millis(), "accepting failed");
        Some(wait)
    }

    /// Closing a listening socket resets what the kernel has accepted for it and we have not: serve
    /// those too, a request each.
    async fn accept_the_queued(&self, listener: TcpListener) {
        let listener = match listener.into_std() {
            Ok(listener) => listener,
            Err(error) => {
                return tracing::warn!(%error, "connections that waited to be accepted are lost");
            }
        };
        for _ in 0..BACKLOG_MAX {
            // It does not block: "would block" is the end of the queue, and any other error would
            // only repeat.
            let Ok((stream, address)) = listener.accept() else { return };
            let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
            match stream {
                Ok(stream) => self.open(stream, address, true).await,
                Err(error) => tracing::debug!(%error, "a connection was lost before it began"),
            }
        }
    }

    async fn open(&self, stream: TcpStream, address: SocketAddr, draining: bool) {
        self.accepted.inc();
        let (settings, tls) = {
            let config = self.config.load();
            (Arc::clone(&config.settings), config.tls_of(self.index))
        };
        let pulse = Arc::<Pulse>::default();
        let place = match self.place(&pulse, address, &settings).await {
            Ok(place) => place,
            Err(NoPlace::Full { .. }) => return self.refused.inc(Refused::Limit),
            Err(NoPlace::Address) => {
                self.refused.inc(Refused::Address);
                if let Some(held_back) = self.told.due() {
                    let bound = settings.connections_per_address_max;
                    tracing::warn!(client = %address.ip(), bound, held_back, "a client address has as many connections as it may");
                }
                return;
            }
        };
        if draining {
            pulse.drain();
        }
        let (handler, place) = (self.handler.clone(), Arc::new(place));
        let connection =
            Connection { handler, address, pulse, place: Arc::clone(&place), settings };
        let failed = Arc::clone(&self.failed);
        tokio::spawn(async move {
            // To the end of the task, so that whoever waits for it finds all said and counted.
            let _place = place;
            if let Err(failure) = connection.serve(stream, tls).await {
                failed.count(&failure);
                tracing::debug!(%address, error = %failure, "a connection failed");
            }
        });
    }

    /// A place for a connection from `address`. Where all are taken, idle connections are closed
    /// for it.
    async fn place(
        &self,
        pulse: &Arc<Pulse>,
        address: SocketAddr,
        settings: &ConnectionSettings,
    ) -> Result<Place, NoPlace> {
        let until = clock::monotonic() + ROOM;
        loop {
            let mut reclaimed = 0;
            // Before the look, so that what closes meanwhile is not missed.
            let freed = self.connections.places().freed();
            let entered = self.connections.enter(pulse, address.ip(), settings, &mut reclaimed);
            self.reclaimed.add(Reclaimed::Limit, reclaimed as u64);
            match entered {
                Err(NoPlace::Full { reclaimed }) if reclaimed > 0 => {}
                entered => return entered,
            }
            if tokio::time::timeout_at(until.into(), freed).await.is_err() {
                return Err(NoPlace::Full { reclaimed });
            }
        }
    }
}

/// How long to wait after an accept failed `failures` times before; not at all when only that one
/// connection was lost.
///
/// Out of descriptors or memory, the connection stays in the queue and the socket stays readable:
/// without a wait the loop would spin.
fn after_accept_error(kind: io::ErrorKind, failures: u32) -> Option<Duration> {
    use io::ErrorKind as K;
    match kind {
        // accept(2): "network errors already pending on the new socket" are that connection's own.
        K::ConnectionAborted
        | K::ConnectionReset
        | K::ConnectionRefused
        | K::Interrupted
        | K::WouldBlock
        | K::HostUnreachable
        | K::NetworkUnreachable
        | K::NetworkDown
        | K::TimedOut => None,
        _ => {
            Some(Duration::from_millis((BACKOFF_FIRST_MS << failures.min(16)).min(BACKOFF_LAST_MS)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_one_connection_does_not_delay_the_next() {
        for kind in [
            io::ErrorKind::ConnectionAborted,
            io::ErrorKind::Interrupted,
            io::ErrorKind::ConnectionReset,
        ] {
            assert_eq!(after_accept_error(kind, 0), None, "{kind}");
        }
    }

    #[test]
    fn an_error_of_every_connection_waits_twice_as_long_each_time_up_to_a_bound() {
        let out_of_descriptors = io::Error::from_raw_os_error(24).kind();
        let waits: Vec<u128> = (0..10)
            .map(|failures| {
                after_accept_error(out_of_descriptors, failures).map_or(0, |wait| wait.as_millis())
            })
            .collect();
        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 320, 500, 500, 500]);
        assert_eq!(
            after_accept_error(out_of_descriptors, u32::MAX),
            Some(Duration::from_millis(500))
        );
    }
}
