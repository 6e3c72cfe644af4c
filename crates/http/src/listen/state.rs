//! The state that the parts of one connection share: its stream, the tasks of its HTTP/2 streams,
//! and the worker that drains it. All of them run on one worker, except that any worker may reclaim
//! an idle connection. Knows nothing about requests.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};
use std::task::Waker;
use std::time::Instant;

use crate::clock;

/// The zero point of [`ConnectionState::millis`].
static BEGAN: LazyLock<Instant> = LazyLock::new(clock::monotonic);

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct ConnectionState {
    draining: AtomicBool,
    aborted: AtomicBool,
    waker: OnceLock<Waker>,
    /// Completed writes to the socket, below TLS.
    writes: AtomicU64,
    /// HTTP/2: stream tasks that have not ended, and whether there ever was one.
    streams: AtomicUsize,
    /// HTTP/2: tunnels that have not ended.
    tunnels: AtomicUsize,
    had_streams: AtomicBool,
    /// Set when the connection was upgraded. It is then read by another task, whose waker follows.
    upgraded: AtomicBool,
    upgraded_waker: Mutex<Option<Waker>>,
    /// When the connection became idle, in [`ConnectionState::millis`]; 0 while it is busy.
    idle_since_ms: AtomicU64,
    /// Told to close to free a permit for another connection.
    reclaimed: AtomicBool,
}

impl ConnectionState {
    /// Called by the connection's own task when it runs.
    pub(super) fn set_waker(&self, waker: &Waker) {
        self.waker.get_or_init(|| waker.clone());
    }

    /// Tells the connection to close: at once if it is idle, otherwise after the current reply.
    pub(super) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
        self.wake();
    }

    /// Tells an idle connection to close, to free its permit. Unlike a drain, this also ends a
    /// handshake that has not begun.
    pub(super) fn reclaim(&self) {
        self.reclaimed.store(true, Ordering::Relaxed);
        self.drain();
    }

    /// Tells the connection to close at once.
    pub(super) fn abort(&self) {
        self.aborted.store(true, Ordering::Relaxed);
        self.wake();
    }

    fn wake(&self) {
        // No waker means that the task was never polled. Its first poll sees the flag.
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
        if self.is_upgraded() {
            let waker = self.upgraded_waker.lock().unwrap_or_else(PoisonError::into_inner).take();
            waker.into_iter().for_each(Waker::wake);
        }
    }

    /// Milliseconds since the first call, plus one, so that it is never 0.
    pub(super) fn millis(now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(*BEGAN).as_millis())
            .unwrap_or(u64::MAX)
            .saturating_add(1)
    }

    /// No request is in progress from `now` on, so the connection may be reclaimed.
    pub(super) fn mark_idle(&self, now: Instant) {
        self.idle_since_ms.store(Self::millis(now), Ordering::Relaxed);
    }

    /// A request, or its head, is in progress.
    pub(super) fn mark_busy(&self) {
        self.idle_since_ms.store(0, Ordering::Relaxed);
    }

    /// Whether no request is in progress.
    pub(super) fn is_idle(&self) -> bool {
        self.idle_since_ms.load(Ordering::Relaxed) != 0
    }

    /// When it became idle. `None` if it is busy or was told to close.
    pub(super) fn idle_since_ms(&self) -> Option<u64> {
        let since = self.idle_since_ms.load(Ordering::Relaxed);
        (since != 0 && !self.is_draining() && !self.is_aborted()).then_some(since)
    }

    /// A write to the socket has completed.
    pub(super) fn count_write(&self) {
        // There is a single writer, so this saves the bus lock of a `fetch_add`.
        self.writes.store(self.writes.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    pub(super) fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }

    /// An HTTP/2 stream has begun.
    pub(super) fn stream_opened(&self) {
        self.mark_busy();
        self.streams.fetch_add(1, Ordering::Relaxed);
        self.had_streams.store(true, Ordering::Relaxed);
    }

    /// A stream's task has ended. The connection may be waiting for this, to become idle or to read
    /// on.
    pub(super) fn stream_ended(&self) {
        self.streams.fetch_sub(1, Ordering::Relaxed);
        self.wake();
    }

    /// A stream of HTTP/2 has become a tunnel.
    pub(super) fn tunnel_opened(&self) {
        self.mark_busy();
        self.tunnels.fetch_add(1, Ordering::Relaxed);
    }

    /// It has ended. The connection may be waiting for this, to become idle.
    pub(super) fn tunnel_ended(&self) {
        self.tunnels.fetch_sub(1, Ordering::Relaxed);
        self.wake();
    }

    /// Whether a stream or a tunnel has not ended, and whether there ever was one.
    pub(super) fn has_streams(&self) -> (bool, bool) {
        let open = self.tasks() > 0 || self.tunnels.load(Ordering::Relaxed) > 0;
        (open, self.had_streams.load(Ordering::Relaxed))
    }

    /// Stream tasks that have not ended.
    pub(super) fn tasks(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    /// The connection no longer speaks HTTP, but the protocol that it was upgraded to.
    pub(super) fn mark_upgraded(&self) {
        self.upgraded.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_upgraded(&self) -> bool {
        self.upgraded.load(Ordering::Relaxed)
    }

    /// Called by the reader of an upgraded connection.
    pub(super) fn set_upgraded_waker(&self, waker: &Waker) {
        let mut kept = self.upgraded_waker.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *kept {
            Some(kept) => kept.clone_from(waker),
            kept @ None => *kept = Some(waker.clone()),
        }
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    pub(super) fn is_reclaimed(&self) -> bool {
        self.reclaimed.load(Ordering::Relaxed)
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Relaxed)
    }
}
