//! Who moves a connection's bytes: whoever waits for its reply, in his own task. A task of the connection's own would be woken, polled and put to sleep
//! for each piece, only to wake the one who waits. It is given one where bytes may have to be moved while nobody waits for any. Knows nothing of requests.
//!
//! Who waits for a reply waits for the connection and for what the connection tells him, and both would wake him. So the connection has a waker of its
//! own, which passes on only what comes while he sleeps.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use tokio::task::{AbortHandle, coop};

/// What a connection does until it ends.
pub(super) type Moving = Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>;

/// Turns in a row, at most: then others have theirs first.
const TURNS_MAX: usize = 4;

/// A connection that moves, until this is dropped.
pub(super) struct Drive {
    by: By,
    relay: Arc<Relay>,
    /// The relay's.
    waker: Waker,
}

enum By {
    /// Whoever calls [`Drive::poll`].
    Callers(Moving),
    Task(AbortHandle),
    /// It has ended.
    Nobody,
}

/// Passes a connection's wake on to who sleeps.
#[derive(Default)]
struct Relay {
    state: AtomicU8,
    sleeper: Mutex<Option<Waker>>,
}

/// Something has happened since the connection was last moved, or it never was.
const WOKEN: u8 = 0;
/// Nothing has.
const QUIET: u8 = 1;
/// Nothing has, and somebody sleeps until something does.
const ASLEEP: u8 = 2;

impl Drive {
    pub(super) fn new(moving: impl Future<Output = hyper::Result<()>> + Send + 'static) -> Self {
        let relay = Arc::<Relay>::default();
        Self { by: By::Callers(Box::pin(moving)), waker: Waker::from(Arc::clone(&relay)), relay }
    }

    /// Moves what can be moved and asks `told` whether that is what the caller waits for, who is woken when it is worth another call.
    pub(super) fn poll<T>(&mut self, cx: &mut Context<'_>, mut told: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        for _ in 0..TURNS_MAX {
            if !self.turn() {
                return told(cx);
            }
            // What the connection tells it tells within its turn: nobody needs to be woken for that.
            if let Poll::Ready(told) = told(&mut Context::from_waker(Waker::noop())) {
                return Poll::Ready(told);
            }
            // The turn has used up what the runtime allows a task at once: what it told may not even have been looked at.
            if !coop::has_budget_remaining() {
                break;
            }
            if self.relay.sleep(cx.waker()) {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Whom to wake for what its next caller waits for besides: always the same one, unless it moves in a task of its own.
    pub(super) fn waker<'a>(&'a self, caller: &'a Waker) -> &'a Waker {
        if matches!(self.by, By::Callers(_)) { &self.waker } else { caller }
    }

    /// Moves what can be moved while nobody waits: a connection that was closed notices it.
    pub(super) fn look(&mut self) {
        if self.relay.state.load(Ordering::Acquire) == WOKEN {
            self.turn();
        }
    }

    /// Lets it move in a task of its own from now on.
    pub(super) fn hand_over(&mut self) {
        // One that has its task keeps it, and what ends it.
        if !matches!(self.by, By::Callers(_)) {
            return;
        }
        let By::Callers(moving) = std::mem::replace(&mut self.by, By::Nobody) else { return };
        let task = tokio::spawn(async move { ended(&moving.await) });
        self.by = By::Task(task.abort_handle());
    }

    /// Says whether it is moved here, and still goes on.
    fn turn(&mut self) -> bool {
        let By::Callers(moving) = &mut self.by else { return false };
        self.relay.state.swap(QUIET, Ordering::AcqRel);
        if let Poll::Ready(end) = moving.as_mut().poll(&mut Context::from_waker(&self.waker)) {
            ended(&end);
            // Whoever still waits for something of it is told with its end.
            self.by = By::Nobody;
            return false;
        }
        true
    }
}

fn ended(end: &hyper::Result<()>) {
    if let Err(error) = end {
        tracing::debug!(%error, "an upstream's connection failed");
    }
}

impl Relay {
    /// Passes the next wake on to `sleeper`; unless one has come already, then there is no sleep.
    fn sleep(&self, sleeper: &Waker) -> bool {
        let mut kept = self.sleeper.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *kept {
            Some(kept) => kept.clone_from(sleeper),
            none => *none = Some(sleeper.clone()),
        }
        drop(kept);
        self.state.compare_exchange(QUIET, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

impl Wake for Relay {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(WOKEN, Ordering::AcqRel) == ASLEEP {
            // Taken, so that a connection that waits for its next request holds nobody's task.
            let sleeper = self.sleeper.lock().unwrap_or_else(PoisonError::into_inner).take();
            sleeper.into_iter().for_each(Waker::wake);
        }
    }
}

impl Drop for Drive {
    /// Nothing more will come of the connection: its reply is whole or given up. A request's body may still be on its way, though, to an upstream that
    /// answered early and takes no more of it; without an end that would hold both connections for ever.
    fn drop(&mut self) {
        if let By::Task(task) = &self.by {
            task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    #[derive(Default)]
    struct Waiter(AtomicUsize);

    impl Wake for Waiter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What a connection shows of itself.
    #[derive(Default)]
    struct Shown {
        turns: AtomicUsize,
        waker: Mutex<Option<Waker>>,
        restless: AtomicBool,
    }

    fn connection() -> (Drive, Arc<Shown>) {
        let shown = Arc::<Shown>::default();
        let show = Arc::clone(&shown);
        let moving = poll_fn(move |cx| {
            show.turns.fetch_add(1, Ordering::Relaxed);
            *show.waker.lock().unwrap() = Some(cx.waker().clone());
            if show.restless.load(Ordering::Relaxed) {
                cx.waker().wake_by_ref();
            }
            Poll::Pending
        });
        (Drive::new(moving), shown)
    }

    fn wait(drive: &mut Drive, waiter: &Arc<Waiter>) {
        let waker = Waker::from(Arc::clone(waiter));
        assert!(drive.poll(&mut Context::from_waker(&waker), |_| Poll::<()>::Pending).is_pending());
    }

    #[test]
    fn who_sleeps_is_woken_once_and_who_is_gone_is_not() {
        let (mut drive, shown) = connection();
        let (first, second) = (Arc::<Waiter>::default(), Arc::<Waiter>::default());
        let wake = || shown.waker.lock().unwrap().clone().unwrap().wake();
        wait(&mut drive, &first);
        wake();
        wake();
        wait(&mut drive, &second);
        wake();
        assert_eq!((first.0.load(Ordering::Relaxed), second.0.load(Ordering::Relaxed)), (1, 1));
        // It has what it waited for, and sleeps no more.
        let told = drive.poll(&mut Context::from_waker(Waker::noop()), |_| Poll::Ready(7));
        assert_eq!(told, Poll::Ready(7));
        wake();
        assert_eq!(second.0.load(Ordering::Relaxed), 1);
        // Something has come while nobody waited: a look finds it, and the next one finds nothing new.
        let turns = || shown.turns.load(Ordering::Relaxed);
        let before = turns();
        drive.look();
        drive.look();
        assert_eq!(turns() - before, 1);
    }

    #[test]
    fn a_connection_that_always_has_more_to_do_lets_others_have_a_turn() {
        let (mut drive, shown) = connection();
        shown.restless.store(true, Ordering::Relaxed);
        let waiter = Arc::<Waiter>::default();
        wait(&mut drive, &waiter);
        assert_eq!(shown.turns.load(Ordering::Relaxed), TURNS_MAX);
        assert_eq!(waiter.0.load(Ordering::Relaxed), 1);
    }
}
