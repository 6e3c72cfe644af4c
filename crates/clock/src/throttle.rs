//! A rate limit for log lines about things that may happen at every request.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The interval in which lines are counted.
const INTERVAL: Duration = Duration::from_secs(1);

/// Lets one line through each second, or a few, and counts the others.
#[derive(Debug)]
pub struct LogThrottle {
    most: u32,
    since: Mutex<Window>,
}

#[derive(Debug, Default)]
struct Window {
    first: Option<Instant>,
    logged: u32,
    held_back: u64,
}

impl Default for LogThrottle {
    fn default() -> Self {
        Self::at_most(1)
    }
}

impl LogThrottle {
    /// Lets `most` lines through each second.
    #[must_use]
    pub fn at_most(most: u32) -> Self {
        Self { most, since: Mutex::default() }
    }

    /// `Some` if the line may be logged, with the number of lines held back since the last one.
    pub fn due(&self) -> Option<u64> {
        self.due_at(super::monotonic())
    }

    fn due_at(&self, now: Instant) -> Option<u64> {
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        if since.first.is_none_or(|first| now.saturating_duration_since(first) >= INTERVAL) {
            (since.first, since.logged) = (Some(now), 0);
        }
        if since.logged >= self.most {
            since.held_back += 1;
            return None;
        }
        since.logged += 1;
        Some(std::mem::take(&mut since.held_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_a_second_and_the_others_are_counted() {
        let (throttle, now) = (LogThrottle::default(), super::super::monotonic());
        let later = |ms| now + Duration::from_millis(ms);
        let due: Vec<_> =
            [0, 1, 999, 1_000, 1_500, 3_000].map(|ms| throttle.due_at(later(ms))).into();
        assert_eq!(due, [Some(0), None, None, Some(2), None, Some(1)]);
    }

    #[test]
    fn a_few_a_second_and_the_others_are_counted() {
        let (throttle, now) = (LogThrottle::at_most(2), super::super::monotonic());
        let later = |ms| now + Duration::from_millis(ms);
        let due: Vec<_> =
            [0, 1, 2, 999, 1_000, 1_001, 1_002, 2_000].map(|ms| throttle.due_at(later(ms))).into();
        assert_eq!(due, [Some(0), Some(0), None, None, Some(2), Some(0), None, Some(1)]);
    }
}
