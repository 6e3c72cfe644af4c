//! The time limits for reading a body. Knows nothing about the body but how much of it has arrived.
//!
//! The timer is created when the reader first has to wait. A body that arrives with its head never
//! needs one.

use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use super::{BodyError, Pace, Rate, Timer};
use crate::clock;

/// The limits for one body. None is set by default.
#[derive(Debug, Default)]
pub(super) struct ReadTimeouts {
    /// The longest single wait.
    pub(super) idle: Option<Duration>,
    /// The minimum rate over all waits.
    pub(super) rate: Option<Rate>,
    /// When the body must have ended.
    pub(super) deadline: Option<Instant>,
    /// Created at the first wait, if there is a rate.
    pace: Option<Box<Pace>>,
    timer: Timer,
}

impl ReadTimeouts {
    /// Pending while the peer may still be waited for. `bytes` have arrived so far.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, bytes: u64) -> Poll<BodyError> {
        if !self.timer.is_armed() {
            let Some(until) = self.begin(bytes) else { return Poll::Pending };
            self.timer.arm(until);
        }
        ready!(self.timer.poll(cx));
        let now = clock::monotonic();
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            return Poll::Ready(BodyError::Overdue);
        }
        let slow = self.pace.as_mut().is_some_and(|pace| pace.start_wait(now, bytes) <= now);
        Poll::Ready(if slow { BodyError::Slow } else { BodyError::Idle })
    }

    /// Starts a wait and returns when it must end, if it has a limit.
    fn begin(&mut self, bytes: u64) -> Option<Instant> {
        if self.idle.is_none() && self.rate.is_none() {
            return self.deadline;
        }
        let now = clock::monotonic();
        let still = self.idle.map(|idle| now + idle);
        let slow = self.rate.map(|rate| {
            let idle = self.idle.unwrap_or(Duration::MAX);
            self.pace
                .get_or_insert_with(|| Box::new(Pace::new(rate, idle, 0)))
                .start_wait(now, bytes)
        });
        [still, slow, self.deadline].into_iter().flatten().min()
    }

    /// Ends the wait: something has arrived.
    pub(super) fn end(&mut self) {
        self.timer.disarm();
        if let Some(pace) = self.pace.as_mut().filter(|pace| pace.is_waiting()) {
            pace.end_wait(clock::monotonic());
        }
    }
}
