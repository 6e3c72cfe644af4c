//! What the parts of one connection tell each other: its stream, its streams' tasks, and the worker
//! that drains it. All of them run on one worker, but for one that reclaims places: it may come
//! from another. Knows nothing of requests.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};
use std::task::Waker;
use std::time::Instant;

use crate::clock;

/// Where [`ConnectionState::millis`] counts from.
static BEGAN: LazyLock<Instant> = LazyLock::new(clock::monotonic);

/// See the file's head.
#[derive(Debug, Default)]
pub(super) struct ConnectionState {
    draining: AtomicBool,
    aborted: AtomicBool,
    waker: OnceLock<Waker>,
    /// Writes below TLS that went out.
    writes: AtomicU64,
    /// HTTP/2: streams whose tasks have not ended, and whether there ever was one.
    streams: AtomicUsize,
    had_streams: AtomicBool,
    /// It is no HTTP connection any more, and read by whoever asked for the upgrade: woken through
    /// this.
    upgraded: AtomicBool,
    upgraded_waker: Mutex<Option<Waker>>,
    /// Since when it waits for a request, in [`ConnectionState::millis`]; 0: it does not.
    idle_since_ms: AtomicU64,
    /// It was told to close for another connection's sake.
    reclaimed: AtomicBool,
}

impl ConnectionState {
    /// From the connection's own task, once it runs.
    pub(super) fn set_waker(&self, waker: &Waker) {
        self.waker.get_or_init(|| waker.clone());
    }

    /// Close when it suits: now where the connection is idle, else after the reply that is under
    /// way.
    pub(super) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
        self.wake();
    }

    /// Close if idle, since another connection needs the place. Unlike a drain this does not wait
    /// for a handshake that has not begun.
    pub(super) fn reclaim(&self) {
        self.reclaimed.store(true, Ordering::Relaxed);
        self.drain();
    }

    /// Close at once.
    pub(super) fn abort(&self) {
        self.aborted.store(true, Ordering::Relaxed);
        self.wake();
    }

    fn wake(&self) {
        // Without a waker the task was never polled: its first poll sees the flag.
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
        if self.is_upgraded() {
            let waker = self.upgraded_waker.lock().unwrap_or_else(PoisonError::into_inner).take();
            waker.into_iter().for_each(Waker::wake);
        }
    }

    /// Milliseconds from the first call on, and one more: never 0.
    pub(super) fn millis(now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(*BEGAN).as_millis())
            .unwrap_or(u64::MAX)
            .saturating_add(1)
    }

    /// Nothing is under way since `now`: it may be closed to make room.
    pub(super) fn mark_idle(&self, now: Instant) {
        self.idle_since_ms.store(Self::millis(now), Ordering::Relaxed);
    }

    /// Something is under way.
    pub(super) fn mark_busy(&self) {
        self.idle_since_ms.store(0, Ordering::Relaxed);
    }

    /// Whether nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.idle_since_ms.load(Ordering::Relaxed) != 0
    }

    /// Since when nothing is under way, unless it was told to close already.
    pub(super) fn idle_since_ms(&self) -> Option<u64> {
        let since = self.idle_since_ms.load(Ordering::Relaxed);
        (since != 0 && !self.is_draining() && !self.is_aborted()).then_some(since)
    }

    /// Bytes went out below TLS.
    pub(super) fn count_write(&self) {
        // One writer: no need for the bus lock of a fetch_add.
        self.writes.store(self.writes.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    pub(super) fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }

    /// An HTTP/2 stream begins.
    pub(super) fn stream_opened(&self) {
        self.mark_busy();
        self.streams.fetch_add(1, Ordering::Relaxed);
        self.had_streams.store(true, Ordering::Relaxed);
    }

    /// Its task has ended. The connection may wait for just that: to be idle, or to read on.
    pub(super) fn stream_ended(&self) {
        self.streams.fetch_sub(1, Ordering::Relaxed);
        self.wake();
    }

    /// Streams whose tasks have not ended, and whether there ever was one.
    pub(super) fn streams(&self) -> (usize, bool) {
        (self.streams.load(Ordering::Relaxed), self.had_streams.load(Ordering::Relaxed))
    }

    /// From now on it is what its first bytes agreed on, and no HTTP.
    pub(super) fn mark_upgraded(&self) {
        self.upgraded.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_upgraded(&self) -> bool {
        self.upgraded.load(Ordering::Relaxed)
    }

    /// From whoever reads an upgraded connection.
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
