//! A timer whose deadline moves far more often than it fires. Knows nothing about what it is for.
//!
//! Registering a timer with the runtime and removing it costs more than 100 ns per request, for a
//! timeout that almost never fires. A [`Timer`] leaves the runtime's timer in place: moving the
//! deadline later only stores it, and if the runtime's timer fires too early it is set again. The
//! runtime's timer is not polled either while it would wake the same task.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Instant;

use pin_project_lite::pin_project;
use tokio::task::coop;
use tokio::time::{self, Sleep, sleep_until};

/// A deadline, and the runtime's timer once one was needed.
#[derive(Debug, Default)]
pub struct Timer {
    sleep: Option<Pin<Box<CachedSleep>>>,
    deadline: Option<Instant>,
}

pin_project! {
    #[derive(Debug)]
    struct CachedSleep {
        #[pin]
        sleep: Sleep,
        // The waker that is registered with `sleep`.
        waker: Option<Waker>,
    }
}

impl CachedSleep {
    /// Fires at `deadline`, once it is polled.
    fn reset(self: Pin<&mut Self>, deadline: time::Instant) {
        let timer = self.project();
        timer.sleep.reset(deadline);
        *timer.waker = None;
    }

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let timer = self.project();
        if timer.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()))
            && !timer.sleep.is_elapsed()
        {
            return Poll::Pending;
        }
        // Without coop budget, `Sleep` is not polled; its task is only scheduled again.
        let polls = coop::has_budget_remaining();
        let polled = timer.sleep.poll(cx);
        *timer.waker = (polls && polled.is_pending()).then(|| cx.waker().clone());
        polled
    }
}

impl Timer {
    /// Sets the deadline. It does not wake the task, which must poll afterwards.
    pub fn arm(&mut self, deadline: Instant) {
        self.deadline = Some(deadline);
    }

    /// Removes the deadline. The task may still be woken once for nothing.
    pub fn disarm(&mut self) {
        self.deadline = None;
    }

    /// Whether there is a deadline.
    #[must_use]
    #[inline]
    pub fn is_armed(&self) -> bool {
        self.deadline.is_some()
    }

    /// Ready once when the deadline has passed. Pending without a deadline.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(deadline) = self.deadline.map(time::Instant::from_std) else {
            return Poll::Pending;
        };
        let timer = self.sleep.get_or_insert_with(|| {
            Box::pin(CachedSleep { sleep: sleep_until(deadline), waker: None })
        });
        if deadline < timer.sleep.deadline() {
            timer.as_mut().reset(deadline);
        }
        loop {
            ready!(timer.as_mut().poll(cx));
            if deadline <= timer.sleep.deadline() {
                self.deadline = None;
                return Poll::Ready(());
            }
            timer.as_mut().reset(deadline);
        }
    }
}
