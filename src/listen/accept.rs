//! A worker's loop: accept, count, hand to a task of its own; on the drain stop, finish, return. Knows nothing of HTTP.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::net::{TcpListener, TcpStream};

use super::bind::BACKLOG_MAX;
use super::connection::Connection;
use super::drain::Connections;
use super::failure::Failures;
use super::pulse::Pulse;
use super::{ConnectionSettings, Drain, Handler, Listener, Security};
use crate::telemetry::{Counter, Metrics, names};

/// The first wait after an error that hits every accept, and the longest: each further one is twice as long.
const BACKOFF_FIRST_MS: u64 = 5;
const BACKOFF_LAST_MS: u64 = 500;

pub(super) async fn serve<H: Handler>(
    listener: Listener,
    handler: H,
    settings: Arc<ArcSwap<ConnectionSettings>>,
    drain: Drain,
    metrics: Metrics,
) {
    let mut acceptor = Acceptor::new(handler, listener.security, settings, &drain, &metrics);
    match TcpListener::from_std(listener.socket) {
        Ok(listener) => {
            let abandon = AbandonOnDrop(acceptor.connections.clone());
            acceptor.accept_until_drained(&listener, &drain).await;
            acceptor.accept_the_queued(listener);
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

struct Acceptor<H> {
    handler: H,
    security: Security,
    settings: Arc<ArcSwap<ConnectionSettings>>,
    connections: Connections,
    accepted: Counter,
    refused_limit: Counter,
    refused_accept: Counter,
    failed: Arc<Failures>,
    /// Errors in a row that hit every accept.
    failures: u32,
}

impl<H: Handler> Acceptor<H> {
    fn new(handler: H, security: Security, settings: Arc<ArcSwap<ConnectionSettings>>, drain: &Drain, metrics: &Metrics) -> Self {
        let open: Arc<AtomicUsize> = drain.open_under(&settings);
        Self {
            handler,
            security,
            settings,
            connections: Connections::new(open, metrics.gauge(names::CONNECTIONS_OPEN)),
            accepted: metrics.counter(names::CONNECTIONS, &[]),
            refused_limit: metrics.counter(names::CONNECTIONS_REFUSED, &["limit"]),
            refused_accept: metrics.counter(names::CONNECTIONS_REFUSED, &["accept"]),
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
                    self.open(stream, address, false);
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

    /// Counts and tells of a failed accept, and how long to wait before the next.
    fn failed(&mut self, error: &io::Error) -> Option<Duration> {
        self.refused_accept.inc();
        let wait = after_accept_error(error.kind(), self.failures)?;
        self.failures = self.failures.saturating_add(1);
        tracing::warn!(%error, wait_ms = wait.as_millis(), "accepting failed");
        Some(wait)
    }

    /// Closing a listening socket resets what the kernel has accepted for it and we have not: serve those too, a request each.
    fn accept_the_queued(&self, listener: TcpListener) {
        let listener = match listener.into_std() {
            Ok(listener) => listener,
            Err(error) => return tracing::warn!(%error, "connections that waited to be accepted are lost"),
        };
        for _ in 0..BACKLOG_MAX {
            // It does not block: "would block" is the end of the queue, and any other error would only repeat.
            let Ok((stream, address)) = listener.accept() else { return };
            let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
            match stream {
                Ok(stream) => self.open(stream, address, true),
                Err(error) => tracing::debug!(%error, "a connection was lost before it began"),
            }
        }
    }

    fn open(&self, stream: TcpStream, address: SocketAddr, draining: bool) {
        self.accepted.inc();
        let settings = self.settings.load_full();
        let pulse = Arc::<Pulse>::default();
        let Some(place) = self.connections.enter(&pulse, settings.connections_max) else {
            self.refused_limit.inc();
            return;
        };
        if draining {
            pulse.drain();
        }
        let (handler, place) = (self.handler.clone(), Arc::new(place));
        let connection = Connection { handler, address, pulse, place: Arc::clone(&place), settings };
        let (tls, failed) = (self.security.now(), Arc::clone(&self.failed));
        tokio::spawn(async move {
            // To the end of the task, so that whoever waits for it finds all said and counted.
            let _place = place;
            if let Err(failure) = connection.serve(stream, tls).await {
                failed.count(&failure);
                tracing::debug!(%address, error = %failure, "a connection failed");
            }
        });
    }
}

/// How long to wait after an accept failed `failures` times before; not at all when only that one connection was lost.
///
/// Out of descriptors or memory, the connection stays in the queue and the socket stays readable: without a wait the loop would spin.
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
        _ => Some(Duration::from_millis((BACKOFF_FIRST_MS << failures.min(16)).min(BACKOFF_LAST_MS))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_one_connection_does_not_delay_the_next() {
        for kind in [io::ErrorKind::ConnectionAborted, io::ErrorKind::Interrupted, io::ErrorKind::ConnectionReset] {
            assert_eq!(after_accept_error(kind, 0), None, "{kind}");
        }
    }

    #[test]
    fn an_error_of_every_connection_waits_twice_as_long_each_time_up_to_a_bound() {
        let out_of_descriptors = io::Error::from_raw_os_error(24).kind();
        let waits: Vec<u128> =
            (0..10).map(|failures| after_accept_error(out_of_descriptors, failures).map_or(0, |wait| wait.as_millis())).collect();
        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 320, 500, 500, 500]);
        assert_eq!(after_accept_error(out_of_descriptors, u32::MAX), Some(Duration::from_millis(500)));
    }
}
