//! Limits how long the rest of a body is read whose reader has gone, because somebody else wants to
//! know what it says, and how many such bodies there are. Knows nothing about bodies.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// Maximum number of bodies that this process reads on at the same time. Others are dropped with
/// their reader.
const READ_ON_MAX: usize = 4_096;
/// How often a body that is read on asks whether it still may be.
const ASK_EVERY: Duration = Duration::from_millis(100);

static READ_ON: AtomicUsize = AtomicUsize::new(0);
/// Notified when no body is read on any more.
static NONE_LEFT: Notify = Notify::const_new();

/// How long the rest of a body is read, if its reader goes away.
pub struct ReadOn {
    /// The longest time. Zero: not at all.
    pub wait: Duration,
    /// Whether it may go on: not any more once a shutdown cuts what is under way.
    pub may: Box<dyn Fn() -> bool + Send>,
}

impl ReadOn {
    /// Whether to begin.
    pub(super) fn is_wanted(&self) -> bool {
        !self.wait.is_zero() && (self.may)()
    }
}

/// One of the places for bodies that are read on.
pub(super) struct ReadOnPlace(());

/// A place, unless all are taken.
pub(super) fn place() -> Option<ReadOnPlace> {
    let place = ReadOnPlace(());
    (READ_ON.fetch_add(1, Ordering::Relaxed) < READ_ON_MAX).then_some(place)
}

impl Drop for ReadOnPlace {
    fn drop(&mut self) {
        if READ_ON.fetch_sub(1, Ordering::Relaxed) == 1 {
            NONE_LEFT.notify_waiters();
        }
    }
}

/// Waits until no body is read on in this process. For a shutdown: what they report is settled
/// then.
pub async fn wait_for_read_on() {
    loop {
        let mut none_left = pin!(NONE_LEFT.notified());
        // From here on a notification is not missed.
        none_left.as_mut().enable();
        if READ_ON.load(Ordering::Relaxed) == 0 {
            return;
        }
        none_left.await;
    }
}

/// Waits for `reading`, which reads a body to its end, as long as it may go on.
pub(super) async fn limited(reading: impl Future<Output = ()>, read_on: ReadOn) {
    let until = Instant::now() + read_on.wait;
    let mut reading = pin!(reading);
    loop {
        let next = Instant::now() + ASK_EVERY;
        let ended = timeout_at(next.min(until), reading.as_mut()).await.is_ok();
        if ended || next >= until || !(read_on.may)() {
            break;
        }
    }
}
