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

use super::Instance;
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
/// The same for expired counters, about 7 MB. Memory is given back not while they expire, but once
/// most of them have: each time, a worker that allocates waits for about 0.15 ms per megabyte,
/// including those given back before.
const EXPIRED_MIN: i64 = 65_536;

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
    pub(super) fn watch(running: &Arc<Instance>) -> std::io::Result<Self> {
        let (end, ended) = channel();
        let metrics = &running.metrics;
        let open = metrics.gauge(names::CONNECTIONS_OPEN);
        let keys = metrics.gauge(names::EMBEDDED_KEYS);
        let buffered = metrics.gauge(names::BUFFERED_BYTES);
        let running = Arc::downgrade(running);
        let watch = move || {
            let (mut connections, mut counters) = (Peak::new(CLOSED_MIN), Peak::new(EXPIRED_MIN));
            let mut looked = clock::monotonic();
            loop {
                let wait = if keys.get() > 0 { SWEEP_EVERY } else { LOOK_EVERY };
                if ended.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
                if let Some(running) = running.upgrade() {
                    running.current.load().built.limiter.sweep();
                }
                if looked.elapsed() < LOOK_EVERY {
                    continue;
                }
                looked = clock::monotonic();
                buffered.set(i64::try_from(buffered_bytes()).unwrap_or(i64::MAX));
                let closed = connections.are_few(open.take_most(), open.get());
                if counters.are_few(keys.take_most(), keys.get()) || closed {
                    give_back();
                }
            }
        };
        std::thread::Builder::new().name("weir-memory".into()).spawn(watch)?;
        Ok(Self { _end: end })
    }
}

/// The connections, or the counters, since memory was last given back.
#[derive(Debug)]
struct Peak {
    /// The least number whose memory is worth giving back.
    min: i64,
    /// The most that there were at once.
    most: i64,
    /// Looks in a row that found few.
    few: u32,
}

impl Peak {
    fn new(min: i64) -> Self {
        Self { min, most: 0, few: 0 }
    }

    /// Whether memory should be given back: there are few `now` after there were many, and have
    /// been for some time. `most` is the highest number since the last look. Answers yes once.
    fn are_few(&mut self, most: i64, now: i64) -> bool {
        self.most = self.most.max(most);
        let few = now <= self.most / 2 && self.most - now >= self.min;
        self.few = if few { self.few + 1 } else { 0 };
        if self.few < FEW_LOOKS {
            return false;
        }
        *self = Self { most: now, few: 0, ..*self };
        true
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
        let mut seen = Peak::new(CLOSED_MIN);
        (0..)
            .zip(looks)
            .filter(|(_, open)| seen.are_few(**open, **open))
            .map(|(look, _)| look)
            .collect()
    }

    #[test]
    fn connections_that_came_and_went_between_two_looks_count() {
        let mut seen = Peak::new(CLOSED_MIN);
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
    fn short_peaks_give_no_memory_back() {
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
