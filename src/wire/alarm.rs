//! A deadline that is moved far more often than it is reached. Knows nothing of what it guards.
//!
//! Registering a timer with the runtime and taking it back costs more than 100 ns, on every request, for a timeout that nearly never comes. An
//! [`Alarm`] leaves its timer where it is: moving the deadline later is a store, and when the old timer fires early it is set again.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tokio::time::{self, Sleep, sleep_until};

/// A deadline, and the timer behind it once one was needed.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    sleep: Option<Pin<Box<Sleep>>>,
    deadline: Option<Instant>,
}

impl Alarm {
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
        let Some(deadline) = self.deadline.map(time::Instant::from_std) else { return Poll::Pending };
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if deadline < sleep.deadline() {
            sleep.as_mut().reset(deadline);
        }
        loop {
            ready!(sleep.as_mut().poll(cx));
            if deadline <= sleep.deadline() {
                self.deadline = None;
                return Poll::Ready(());
            }
            sleep.as_mut().reset(deadline);
        }
    }
}
