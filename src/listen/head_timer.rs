//! The two waits of an HTTP/1 connection, told apart: for the next request (`keep_alive`) and for the rest of a request's head
//! (`request_header`). hyper knows one `header_read_timeout` for both, but asks a [`Timer`] for it: this timer answers by what was read.
//!
//! hyper makes a new sleep for every request. Ours registers nothing: it notes the deadline in the connection's [`Pulse`], and the connection's one
//! [`Alarm`](crate::wire::Alarm) watches it. Knows nothing of requests.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};

use crate::clock;

const NO_DEADLINE: u64 = u64::MAX;

/// What the parts of one connection tell each other: its stream, its timer, its service, and the worker that drains it. All of them run on
/// one worker, so that nothing here is contended.
#[derive(Debug)]
pub(super) struct Pulse {
    started: Instant,
    /// Reads that brought bytes.
    reads: AtomicU64,
    /// Milliseconds after `started` at which waiting for a head ends.
    deadline_ms: AtomicU64,
    expired: AtomicBool,
    /// Whether hyper waits for a head, and the reads before it began to.
    in_head: AtomicBool,
    reads_before_head: AtomicU64,
    /// Whether the last request had a body: more of it may still come when we close.
    had_body: AtomicBool,
    draining: AtomicBool,
    abandoned: AtomicBool,
    waker: OnceLock<Waker>,
    /// Writes below TLS that went out.
    writes: AtomicU64,
    /// HTTP/2: streams whose tasks have not ended, and whether there ever was one.
    streams: AtomicUsize,
    had_streams: AtomicBool,
    /// It is no HTTP connection any more, and read by whoever asked for the upgrade: woken through this.
    upgraded: AtomicBool,
    upgraded_waker: Mutex<Option<Waker>>,
}

impl Pulse {
    pub(super) fn new() -> Self {
        Self {
            started: clock::monotonic(),
            reads: AtomicU64::new(0),
            deadline_ms: AtomicU64::new(NO_DEADLINE),
            expired: AtomicBool::new(false),
            in_head: AtomicBool::new(false),
            reads_before_head: AtomicU64::new(0),
            had_body: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            waker: OnceLock::new(),
            writes: AtomicU64::new(0),
            streams: AtomicUsize::new(0),
            had_streams: AtomicBool::new(false),
            upgraded: AtomicBool::new(false),
            upgraded_waker: Mutex::new(None),
        }
    }

    /// Bytes came in.
    pub(super) fn read(&self) {
        // One writer: no need for the bus lock of a fetch_add.
        self.reads.store(self.reads.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// A request begins.
    pub(super) fn request(&self, has_body: bool) {
        self.had_body.store(has_body, Ordering::Relaxed);
    }

    /// Whether the client may still be sending what nobody will read: the rest of a head or of a body.
    pub(super) fn expects_more(&self) -> bool {
        let mid_head =
            self.in_head.load(Ordering::Relaxed) && self.reads.load(Ordering::Relaxed) != self.reads_before_head.load(Ordering::Relaxed);
        mid_head || self.had_body.load(Ordering::Relaxed)
    }

    /// Whether hyper waits for a head, or could not read the one that came.
    pub(super) fn in_head(&self) -> bool {
        self.in_head.load(Ordering::Relaxed)
    }

    /// When the wait for a head ends; none while a request is served.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.deadline_ms.load(Ordering::Relaxed) {
            NO_DEADLINE => None,
            ms => Some(self.started + Duration::from_millis(ms)),
        }
    }

    /// That deadline has come: hyper's next look at its timer ends the connection.
    pub(super) fn expire(&self) {
        self.expired.store(true, Ordering::Relaxed);
    }

    /// From the connection's own task, once it runs.
    pub(super) fn wake_with(&self, waker: &Waker) {
        self.waker.get_or_init(|| waker.clone());
    }

    pub(super) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
        self.wake();
    }

    pub(super) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
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

    /// Bytes went out below TLS.
    pub(super) fn wrote(&self) {
        self.writes.store(self.writes.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    pub(super) fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }

    /// An HTTP/2 stream begins.
    pub(super) fn stream_opened(&self) {
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
    pub(super) fn upgrade(&self) {
        self.upgraded.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_upgraded(&self) -> bool {
        self.upgraded.load(Ordering::Relaxed)
    }

    /// From whoever reads an upgraded connection.
    pub(super) fn wake_upgraded_with(&self, waker: &Waker) {
        let mut kept = self.upgraded_waker.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *kept {
            Some(kept) => kept.clone_from(waker),
            kept @ None => *kept = Some(waker.clone()),
        }
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    fn ms_at(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.started).as_millis()).unwrap_or(NO_DEADLINE - 1)
    }
}

/// Hands hyper its sleeps.
#[derive(Debug)]
pub(super) struct HeadTimer {
    pub(super) pulse: Arc<Pulse>,
    pub(super) request_header: Duration,
    pub(super) keep_alive: Duration,
}

impl Timer for HeadTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(clock::monotonic() + duration)
    }

    /// hyper asks when it begins to wait for a head, with `now` + `request_header`.
    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        let pulse = Arc::clone(&self.pulse);
        let reads = pulse.reads.load(Ordering::Relaxed);
        pulse.reads_before_head.store(reads, Ordering::Relaxed);
        pulse.in_head.store(true, Ordering::Relaxed);
        pulse.expired.store(false, Ordering::Relaxed);
        // A new connection has to show its first head in time: it has not earned the longer wait.
        let head_ms = (reads == 0).then(|| pulse.ms_at(deadline));
        let idle_ms = pulse.ms_at(deadline + self.keep_alive).saturating_sub(ms(self.request_header));
        Box::pin(HeadSleep { pulse, reads, head_ms, idle_ms, request_header: self.request_header })
    }

    fn now(&self) -> Instant {
        clock::monotonic()
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(NO_DEADLINE - 1)
}

/// One wait for a head.
struct HeadSleep {
    pulse: Arc<Pulse>,
    reads: u64,
    /// The deadline once the head has begun.
    head_ms: Option<u64>,
    /// The deadline until then.
    idle_ms: u64,
    request_header: Duration,
}

impl Future for HeadSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<()> {
        if self.pulse.expired.load(Ordering::Relaxed) {
            return Poll::Ready(());
        }
        if self.head_ms.is_none() && self.pulse.reads.load(Ordering::Relaxed) != self.reads {
            self.head_ms = Some(self.pulse.ms_at(clock::monotonic() + self.request_header));
        }
        // The connection's alarm wakes this task; see `connection`.
        self.pulse.deadline_ms.store(self.head_ms.unwrap_or(self.idle_ms), Ordering::Relaxed);
        Poll::Pending
    }
}

impl Sleep for HeadSleep {}

impl Drop for HeadSleep {
    fn drop(&mut self) {
        self.pulse.deadline_ms.store(NO_DEADLINE, Ordering::Relaxed);
        self.pulse.in_head.store(false, Ordering::Relaxed);
    }
}
