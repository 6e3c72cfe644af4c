//! Once a second is enough to say the same thing: for warnings about what fails at every request.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The least time between two that are let through.
const INTERVAL: Duration = Duration::from_secs(1);

/// Lets one through each second and counts those in between.
#[derive(Debug, Default)]
pub struct Seldom(Mutex<Since>);

#[derive(Debug, Default)]
struct Since {
    last: Option<Instant>,
    held_back: u64,
}

impl Seldom {
    /// Whether it is time to say it, and how many were held back since it was last said.
    pub fn due(&self) -> Option<u64> {
        self.due_at(super::monotonic())
    }

    fn due_at(&self, now: Instant) -> Option<u64> {
        let mut since = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if since.last.is_some_and(|last| now.saturating_duration_since(last) < INTERVAL) {
            since.held_back += 1;
            return None;
        }
        since.last = Some(now);
        Some(std::mem::take(&mut since.held_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_a_second_and_the_others_are_counted() {
        let (seldom, now) = (Seldom::default(), super::super::monotonic());
        let later = |ms| now + Duration::from_millis(ms);
        let said: Vec<_> = [0, 1, 999, 1_000, 1_500, 3_000].map(|ms| seldom.due_at(later(ms))).into();
        assert_eq!(said, [Some(0), None, None, Some(2), None, Some(1)]);
    }
}
