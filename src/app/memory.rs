//! Gives memory back to the system when many connections have closed or many counters have expired,
//! has expired counters dropped, and exports how many bytes buffers hold. Knows no connection and
//! no counter, only their number.
//!
//! glibc keeps freed memory in an arena of each thread, and on its own gives back only what lies at
//! the end of an arena. After a burst of thousands of connections their memory would otherwise stay
//! with the process for good.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::Running;
use crate::clock;
use crate::telemetry::names;
use crate::wire::buffered_bytes;

/// How often the open connections are counted.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often some counters in memory are checked for expiry, if there are any.
const SWEEP_EVERY: Duration = Duration::from_millis(100);
/// Looks in a row that must find few connections before memory is given back.
const FEW_LOOKS: u32 = 5;
/// The least number of closed connections that is worth walking through the arenas.
const CLOSED_MIN: i64 = 512;
/// The same of expired counters, some 4 MB. Not much more either: while memory is given back, its
/// arena is locked, for some 0.2 ms a megabyte.
const EXPIRED_MIN: i64 = 32_768;

/// Watches until it is dropped.
#[derive(Debug)]
pub(super) struct Memory {
    /// Never used to send: the thread ends when this is dropped.
    _end: Sender<std::convert::Infallible>,
}

impl Memory {
    /// Starts watching.
    ///
    /// # Errors
    /// The thread can't be started.
    pub(super) fn watch(running: &Arc<Running>) -> std::io::Result<Self> {
        let (end, ended) = channel();
        let metrics = &running.metrics;
        let open = metrics.gauge(names::CONNECTIONS_OPEN);
        let keys = metrics.gauge(names::EMBEDDED_KEYS);
        let buffered = metrics.gauge(names::BUFFERED_BYTES);
        let running = Arc::downgrade(running);
        let watch = move || {
            let (mut connections, mut counters) = (Connections::default(), Counters::default());
            let mut looked = clock::monotonic();
            loop {
                let wait = if keys.get() > 0 { SWEEP_EVERY } else { LOOK_EVERY };
                if ended.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
                if let Some(running) = running.upgrade() {
                    running.current.load().built.limiter.sweep();
                }
                let mut gives_back = counters.many_expired(keys.get());
                if looked.elapsed() >= LOOK_EVERY {
                    looked = clock::monotonic();
                    buffered.set(i64::try_from(buffered_bytes()).unwrap_or(i64::MAX));
                    gives_back |= connections.are_few(open.take_most(), open.get());
                }
                if gives_back {
                    give_back();
                }
            }
        };
        std::thread::Builder::new().name("weir-memory".into()).spawn(watch)?;
        Ok(Self { _end: end })
    }
}

/// The connections since memory was last given back.
#[derive(Debug, Default)]
struct Connections {
    /// The most that were open at once.
    most: i64,
    /// Looks in a row that found few.
    few: u32,
}

impl Connections {
    /// Whether memory should be given back: `open` connections are few after there were many, and
    /// have been for some time. `most` is the highest number since the last look. Answers yes once.
    fn are_few(&mut self, most: i64, open: i64) -> bool {
        self.most = self.most.max(most);
        let few = open <= self.most / 2 && self.most - open >= CLOSED_MIN;
        self.few = if few { self.few + 1 } else { 0 };
        if self.few < FEW_LOOKS {
            return false;
        }
        *self = Self { most: open, few: 0 };
        true
    }
}

/// The counters in memory since it was last given back.
#[derive(Debug, Default)]
struct Counters {
    most: i64,
}

impl Counters {
    /// Whether memory should be given back. In small pieces, while counters become fewer: all of it
    /// at once would hold up whoever allocates.
    fn many_expired(&mut self, now: i64) -> bool {
        self.most = self.most.max(now);
        let many = self.most - now >= EXPIRED_MIN;
        if many {
            self.most = now;
        }
        many
    }
}

/// Makes the allocator give back what it does not use.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn give_back() {
    #[allow(
        unsafe_code,
        reason = "a call of the C library without a safe wrapper: it takes a number, and touches only memory that is free"
    )]
    // SAFETY: malloc_trim may be called at any time and from any thread; it locks the arenas
    // itself.
    let some = unsafe { libc::malloc_trim(0) } != 0;
    tracing::debug!(some, "memory given back");
}

/// Other allocators give back by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn give_back() {}

#[cfg(test)]
mod tests {
    use super::*;

    /// The looks, counted from 0, at which memory is given back.
    fn given_back(looks: &[i64]) -> Vec<usize> {
        let mut seen = Connections::default();
        (0..)
            .zip(looks)
            .filter(|(_, open)| seen.are_few(**open, **open))
            .map(|(look, _)| look)
            .collect()
    }

    #[test]
    fn what_came_and_went_between_two_looks_counts() {
        let mut seen = Connections::default();
        let looks = [(8_000, 0), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0)];
        assert_eq!(
            looks.map(|(most, open)| seen.are_few(most, open)),
            [false, false, false, false, true, false]
        );
    }

    #[test]
    fn memory_is_given_back_once_after_each_time_of_many() {
        assert_eq!(given_back(&[0, 8_000, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100]), [6]);
        assert_eq!(given_back(&[8_000, 0, 0, 0, 0, 0, 600, 0, 0, 0, 0, 0, 0]), [5, 11]);
    }

    #[test]
    fn memory_of_counters_is_given_back_piece_by_piece() {
        let mut counters = Counters::default();
        let looks = [0, 100_000, 80_000, 60_000, 40_000, 70_000, 40_000, 30_000, 0];
        let given = looks.map(|now| counters.many_expired(now));
        assert_eq!(given, [false, false, false, true, false, false, false, true, false]);
    }

    #[test]
    fn what_comes_and_goes_gives_nothing_back() {
        assert_eq!(
            given_back(&[8_000, 5_000, 8_000, 5_000, 5_000, 5_000, 5_000, 5_000, 5_000]),
            [0; 0],
            "not half of them"
        );
        assert_eq!(
            given_back(&[8_000, 0, 0, 0, 0, 8_000, 0, 0, 0, 0, 8_000]),
            [0; 0],
            "not for long"
        );
        assert_eq!(given_back(&[500, 0, 0, 0, 0, 0, 0]), [0; 0], "not many");
    }
}
