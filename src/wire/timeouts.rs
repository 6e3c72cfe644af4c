//! The wait for the next piece of a body, and what ends it. Knows nothing of the body but how much
//! of it has come.
//!
//! Its timer is made when the peer first lets us wait, which a body that came with its head never
//! does.

use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use super::{BodyError, Pace, Rate, Timer};
use crate::clock;

/// What bounds the waits for one body. Nothing does unless it is set.
#[derive(Debug, Default)]
pub(super) struct ReadTimeouts {
    /// A single wait.
    pub(super) idle: Option<Duration>,
    /// All waits, against what has come.
    pub(super) rate: Option<Rate>,
    /// When all must be over.
    pub(super) deadline: Option<Instant>,
    /// Made at the first wait, where there is a rate.
    pace: Option<Box<Pace>>,
    timer: Timer,
}

impl ReadTimeouts {
    /// The peer is waited for, of which `bytes` have come so far: why not any longer.
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

    /// A wait begins: its end, where it has one.
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

    /// Something has come.
    pub(super) fn end(&mut self) {
        self.timer.disarm();
        if let Some(pace) = self.pace.as_mut().filter(|pace| pace.is_waiting()) {
            pace.end_wait(clock::monotonic());
        }
    }
}
