//! Enforces a minimum rate on a transfer. Knows neither what is transferred nor in which direction.
//!
//! A peer has a credit of time for which it may be waited for. The credit starts with the grace
//! period, each byte adds the time that it may take at the rate, and waiting uses it up. It is
//! capped, so that a fast start does not pay for a long stall. Time in which the peer is not waited
//! for does not count, because then the other side is slow.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

/// The minimum average rate of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Bytes per second.
    pub bytes_per_s: NonZeroU32,
    /// How long the peer may be waited for before the rate applies, in milliseconds.
    pub grace_ms: u32,
}

impl Rate {
    /// A rate of `bytes_per_s` after `grace`; `None` if it is 0.
    #[must_use]
    pub fn new(bytes_per_s: u64, grace: Duration) -> Option<Self> {
        let bytes_per_s = NonZeroU32::new(u32::try_from(bytes_per_s).unwrap_or(u32::MAX))?;
        Some(Self { bytes_per_s, grace_ms: u32::try_from(grace.as_millis()).unwrap_or(u32::MAX) })
    }

    fn grace(self) -> Duration {
        Duration::from_millis(self.grace_ms.into())
    }

    /// How long `bytes` may take.
    fn time_of(self, bytes: u64) -> Duration {
        Duration::from_micros(bytes.saturating_mul(1_000_000) / u64::from(self.bytes_per_s.get()))
    }
}

/// The credit of one transfer.
#[derive(Debug)]
pub(crate) struct Pace {
    rate: Rate,
    credit: Duration,
    credit_max: Duration,
    /// Bytes that the credit already includes.
    bytes: u64,
    waiting_since: Option<Instant>,
}

impl Pace {
    /// The credit is capped at `idle`, or at the grace period if that is longer. `bytes` were
    /// transferred before.
    pub(crate) fn new(rate: Rate, idle: Duration, bytes: u64) -> Self {
        Self {
            rate,
            credit: rate.grace(),
            credit_max: idle.max(rate.grace()),
            bytes,
            waiting_since: None,
        }
    }

    /// Starts a wait for the peer, which has transferred `bytes` so far. Returns the time until
    /// which it may last.
    pub(crate) fn start_wait(&mut self, now: Instant, bytes: u64) -> Instant {
        self.end_wait(now);
        let earned = self.rate.time_of(bytes.saturating_sub(self.bytes));
        self.bytes = bytes;
        self.credit = self.credit.saturating_add(earned).min(self.credit_max);
        self.waiting_since = Some(now);
        now + self.credit
    }

    /// Ends the wait.
    pub(crate) fn end_wait(&mut self, now: Instant) {
        if let Some(since) = self.waiting_since.take() {
            self.credit = self.credit.saturating_sub(now.saturating_duration_since(since));
        }
    }

    /// Whether the peer is being waited for.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting_since.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_secs(30);

    fn pace() -> (Pace, Instant) {
        (
            Pace::new(Rate::new(240, Duration::from_secs(5)).unwrap(), IDLE, 0),
            crate::clock::monotonic(),
        )
    }

    /// How many seconds a peer is waited for that transfers `bytes` every `every` seconds; at most
    /// an hour.
    fn lasts(bytes: u64, every: u64) -> u64 {
        let (mut pace, start) = pace();
        for round in 0..3_600 / every {
            let now = start + Duration::from_secs(round * every);
            let until = pace.start_wait(now, round * bytes);
            if until < now + Duration::from_secs(every) {
                return until.saturating_duration_since(start).as_secs();
            }
        }
        3_600
    }

    #[test]
    fn a_peer_that_drips_is_given_up_soon_after_the_grace_and_one_at_the_rate_never() {
        assert_eq!(lasts(0, 1), 5);
        assert_eq!(lasts(1, 1), 5);
        assert_eq!(lasts(1, 29), 5);
        assert_eq!(lasts(240, 1), 3_600);
        assert_eq!(lasts(2_400, 4), 3_600);
        assert_eq!(lasts(120, 1), 9);
    }

    #[test]
    fn a_fast_beginning_pays_for_one_standstill_only() {
        let (mut pace, start) = pace();
        let until = pace.start_wait(start, 100 << 20);
        assert_eq!(until, start + IDLE);
        let later = start + Duration::from_secs(29);
        assert!(pace.is_waiting());
        assert_eq!(pace.start_wait(later, (100 << 20) + 240), later + Duration::from_secs(2));
    }

    #[test]
    fn only_waiting_counts() {
        let (mut pace, start) = pace();
        pace.start_wait(start, 0);
        pace.end_wait(start + Duration::from_secs(3));
        // The reader was busy for an hour.
        let later = start + Duration::from_secs(3_600);
        assert_eq!(pace.start_wait(later, 0), later + Duration::from_secs(2));
    }

    #[test]
    fn a_rate_of_nothing_is_none() {
        assert_eq!(Rate::new(0, IDLE), None);
        assert_eq!(Rate::new(u64::MAX, IDLE).unwrap().bytes_per_s.get(), u32::MAX);
    }
}
