//! A worker's accept loop: accepts, takes a permit, and spawns a task for the connection. When the
//! drain starts, it stops accepting and waits for the open connections. Knows nothing about HTTP.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::access::Access as _;
use tokio::net::{TcpListener, TcpStream};

use super::bind::BACKLOG_MAX;
use super::connection::Connection;
use super::error::ErrorCounters;
use super::permits::{Connections, Permit, PermitError};
use super::state::ConnectionState;
use super::{ConfigSource, ConnectionSettings, Drain, Handler, Listener};
use crate::clock::{self, LogThrottle};
use crate::telemetry::{Counter, CounterSet, Metrics, labels, names};
use crate::wire;

/// The first and the longest pause after an error that would hit every accept. Each further error
/// doubles the pause.
const BACKOFF_FIRST_MS: u64 = 5;
const BACKOFF_LAST_MS: u64 = 500;
/// How long a new connection waits for reclaimed idle connections to close and free their permits.
const RECLAIM_WAIT: Duration = Duration::from_millis(20);

/// What the operator can do where no more files can be opened.
const DESCRIPTORS_REMEDY: &str = "raise the limit of open files: LimitNOFILE of the systemd unit, \
     or ulimit -n; or lower server.limits.connections";

pub(super) async fn serve<H: Handler>(
    listener: Listener,
    handler: H,
    config: ConfigSource,
    drain: Drain,
    metrics: Metrics,
) {
    let mut acceptor = Acceptor::new(handler, listener.index, config, &drain, &metrics);
    let handle = listener.handle;
    match TcpListener::from_std(listener.socket) {
        Ok(listener) => {
            let abort = AbortOnDrop(acceptor.connections.clone());
            loop {
                let accepting = drain.accepting();
                acceptor.accept_until_drained(&listener, &drain).await;
                drop(accepting);
                if drain.started() {
                    break;
                }
                acceptor.connections.drain();
                tokio::select! {
                    () = drain.wait() => break,
                    () = drain.paused(false) => {}
                }
            }
            if drain.is_paused() {
                drop(listener);
            } else {
                acceptor.accept_queued(listener).await;
            }
            drop(handle);
            acceptor.connections.drain();
            tokio::select! {
                () = acceptor.connections.emptied() => {}
                () = drain.wait_cut() => {
                    acceptor.connections.abort();
                    // Each ends when its task is polled next. By then its requests are settled and
                    // logged.
                    acceptor.connections.emptied().await;
                }
            }
            drop(abort);
        }
        Err(error) => tracing::error!(%error, "can't accept on this socket"),
    }
}

/// Closes the connections when the future of `serve` is dropped: the grace period is over.
struct AbortOnDrop(Connections);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

labels! {
    /// Why a connection was closed at once: a metric's label.
    enum AcceptRefusal {
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
    enum ReclaimCause {
        /// There may be no more, and a new connection came.
        Limit = "limit",
        /// Its file descriptor was needed.
        Descriptors = "descriptors",
    }
}

struct Acceptor<H> {
    handler: H,
    /// The listener's index.
    index: usize,
    config: ConfigSource,
    connections: Connections,
    accepted: Counter,
    refused: CounterSet<AcceptRefusal>,
    reclaimed: CounterSet<ReclaimCause>,
    /// Rate-limits the warning about an address with too many connections.
    address_warnings: LogThrottle,
    errors: Arc<ErrorCounters>,
    /// Consecutive errors of the kind that hits every accept.
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
        let permits = drain.permits_under(&config);
        Self {
            handler,
            index,
            config,
            connections: Connections::new(&permits, metrics.gauge(names::CONNECTIONS_OPEN)),
            accepted: metrics.counter(names::CONNECTIONS, &[]),
            refused: metrics.counters(names::CONNECTIONS_REFUSED, &[]),
            reclaimed: metrics.counters(names::CONNECTIONS_RECLAIMED, &[]),
            address_warnings: LogThrottle::default(),
            errors: Arc::new(ErrorCounters::new(metrics)),
            failures: 0,
        }
    }

    /// Accepts until a drain starts or accepting is paused.
    async fn accept_until_drained(&mut self, listener: &TcpListener, drain: &Drain) {
        let mut drained = std::pin::pin!(async {
            tokio::select! {
                () = drain.wait() => {}
                () = drain.paused(true) => {}
            }
        });
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
                    let Some(wait) = self.accept_failed(&error) else { continue };
                    tokio::select! {
                        biased;
                        () = &mut drained => return,
                        () = tokio::time::sleep(wait) => {}
                    }
                }
            }
        }
    }

    /// Counts and logs a failed accept. Returns how long to wait before the next one. Closes idle
    /// connections if file descriptors have run out.
    fn accept_failed(&mut self, error: &io::Error) -> Option<Duration> {
        self.refused.inc(AcceptRefusal::Accept);
        let out_of_descriptors = wire::is_out_of_descriptors(error);
        if out_of_descriptors {
            let reclaimed = self.connections.permits().reclaim() as u64;
            self.reclaimed.add(ReclaimCause::Descriptors, reclaimed);
        }
        let wait = accept_backoff(error.kind(), self.failures)?;
        self.failures = self.failures.saturating_add(1);
        if let Some(held_back) = self.connections.permits().accept_warnings.due() {
            let remedy = out_of_descriptors.then_some(DESCRIPTORS_REMEDY);
            tracing::warn!(%error, remedy, held_back, "accepting failed");
        }
        Some(wait)
    }

    /// Serves the connections in the kernel's queue, one request each. Closing the listening socket
    /// would reset them.
    async fn accept_queued(&self, listener: TcpListener) {
        let listener = match listener.into_std() {
            Ok(listener) => listener,
            Err(error) => {
                return tracing::warn!(%error, "the connections in the accept queue are lost");
            }
        };
        for _ in 0..BACKLOG_MAX {
            // The socket is non-blocking: `WouldBlock` means that the queue is empty, and any other
            // error would only repeat.
            let Ok((stream, address)) = listener.accept() else { return };
            let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
            match stream {
                Ok(stream) => self.open(stream, address, true).await,
                Err(error) => tracing::debug!(%error, "a queued connection was lost"),
            }
        }
    }

    async fn open(&self, stream: TcpStream, address: SocketAddr, draining: bool) {
        self.accepted.inc();
        let (settings, tls, proxied) = {
            let config = self.config.load();
            let (settings, tls) = (Arc::clone(&config.settings), config.tls_of(self.index));
            let proxied = config.is_proxied(self.index) && !settings.counts(address.ip());
            (settings, tls, proxied)
        };
        let state = Arc::<ConnectionState>::default();
        let permit = match self.permit(&state, address, &settings).await {
            Ok(permit) => permit,
            Err(PermitError::Full { .. }) => {
                self.refused.inc(AcceptRefusal::Limit);
                if let Some(held_back) = self.connections.permits().full_warnings.due() {
                    let bound = settings.connections_max;
                    let listener = stream.local_addr().ok().map(|address| address.to_string());
                    tracing::warn!(
                        listener,
                        bound,
                        held_back,
                        "there are as many connections as may be: a new one is closed"
                    );
                }
                return;
            }
            Err(PermitError::Address) => {
                self.refused.inc(AcceptRefusal::Address);
                if let Some(held_back) = self.address_warnings.due() {
                    let bound = settings.connections_per_address_max;
                    tracing::warn!(client = %address.ip(), bound, held_back, "a client address has reached its limit of connections");
                }
                return;
            }
        };
        if draining {
            state.drain();
        }
        let (handler, permit) = (self.handler.clone(), Arc::new(permit));
        let listener = self.index;
        let permitted = Arc::clone(&permit);
        let connection = Connection {
            handler,
            address,
            state,
            permit: permitted,
            settings,
            listener,
            proxied,
            errors: Arc::clone(&self.errors),
        };
        let errors = Arc::clone(&self.errors);
        tokio::spawn(async move {
            // Held to the end of the task, so that `emptied` returns only after errors are logged
            // and counted.
            let _permit = permit;
            if let Err(error) = connection.serve(stream, tls).await {
                errors.count(&error);
                tracing::debug!(%address, %error, "a connection failed");
            }
        });
    }

    /// Takes a permit for a connection from `address`. If there is none, idle connections are
    /// closed to free one.
    async fn permit(
        &self,
        state: &Arc<ConnectionState>,
        address: SocketAddr,
        settings: &ConnectionSettings,
    ) -> Result<Permit, PermitError> {
        let until = clock::monotonic() + RECLAIM_WAIT;
        loop {
            let mut reclaimed = 0;
            // Created before the attempt, so that a connection that closes in between is not
            // missed.
            let freed = self.connections.permits().freed();
            let permit = self.connections.acquire(state, address.ip(), settings, &mut reclaimed);
            self.reclaimed.add(ReclaimCause::Limit, reclaimed as u64);
            match permit {
                Err(PermitError::Full { reclaimed }) if reclaimed > 0 => {}
                permit => return permit,
            }
            if tokio::time::timeout_at(until.into(), freed).await.is_err() {
                return Err(PermitError::Full { reclaimed });
            }
        }
    }
}

/// How long to wait after a failed accept, when `failures` others failed just before. `None` if the
/// error concerns that one connection only.
///
/// When descriptors or memory run out, the connection stays in the queue and the socket stays
/// readable. Without a pause the loop would spin.
fn accept_backoff(kind: io::ErrorKind, failures: u32) -> Option<Duration> {
    use io::ErrorKind as K;
    match kind {
        // accept(2) also reports network errors that are already pending on the new socket.
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
            assert_eq!(accept_backoff(kind, 0), None, "{kind}");
        }
    }

    #[test]
    fn an_error_of_every_connection_waits_twice_as_long_each_time_up_to_a_bound() {
        let out_of_descriptors = io::Error::from_raw_os_error(24).kind();
        let waits: Vec<u128> = (0..10)
            .map(|failures| {
                accept_backoff(out_of_descriptors, failures).map_or(0, |wait| wait.as_millis())
            })
            .collect();
        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 320, 500, 500, 500]);
        assert_eq!(accept_backoff(out_of_descriptors, u32::MAX), Some(Duration::from_millis(500)));
    }
}
