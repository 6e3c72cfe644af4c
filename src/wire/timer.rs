//! A deadline that is moved far more often than it is reached. Knows nothing of what it guards.
//!
//! Registering a timer with the runtime and taking it back costs more than 100 ns, on every
//! request, for a timeout that nearly never comes. An [`Timer`] leaves its timer where it is:
//! moving the deadline later is a store, and when the old timer fires early it is set again. Nor is
//! the timer polled while it would wake whoever asks.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Instant;

use pin_project_lite::pin_project;
use tokio::task::coop;
use tokio::time::{self, Sleep, sleep_until};

/// A deadline, and the timer behind it once one was needed.
#[derive(Debug, Default)]
pub(crate) struct Timer {
    timer: Option<Pin<Box<Timer>>>,
    deadline: Option<Instant>,
}

pin_project! {
    #[derive(Debug)]
    struct Timer {
        #[pin]
        sleep: Sleep,
        // Whom it wakes when it fires.
        waker: Option<Waker>,
    }
}

impl Timer {
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
        // Without a budget the timer is not even looked at: its task is only told to come again.
        let looked = coop::has_budget_remaining();
        let polled = timer.sleep.poll(cx);
        *timer.waker = (looked && polled.is_pending()).then(|| cx.waker().clone());
        polled
    }
}

impl Timer {
    /// Sets the deadline. Whoever waits must poll afterwards: a store wakes nobody.
    pub(crate) fn arm(&mut self, deadline: Instant) {
        self.deadline = Some(deadline);
    }

    /// Takes the deadline away. The timer may still wake its last task once, for nothing.
    pub(crate) fn disarm(&mut self) {
        self.deadline = None;
    }

    /// Whether there is a deadline.
    pub(crate) fn is_armed(&self) -> bool {
        self.deadline.is_some()
    }

    /// Ready, once, when the deadline has come; pending without one.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(deadline) = self.deadline.map(time::Instant::from_std) else {
            return Poll::Pending;
        };
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(Timer { sleep: sleep_until(deadline), waker: None }));
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
