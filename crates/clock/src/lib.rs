//! Time: the only module that asks the system for it.
//!
//! There are four clocks: the wall clock (microseconds since 1970, which stores decide by), the
//! monotonic clock (durations, deadlines), the clock that goes on while the machine sleeps (leases)
//! and a thread's CPU time (a guest's budget). A [`Clock`] may be virtual, so that a test can move
//! time by hand. This module uses no other.

mod throttle;

pub use throttle::LogThrottle;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};

/// The wall clock: the system's, or a virtual one that a test moves.
#[derive(Clone, Debug, Default)]
pub struct Clock(Source);

#[derive(Clone, Debug, Default)]
enum Source {
    #[default]
    System,
    Virtual {
        now: Arc<AtomicI64>,
        /// Whoever waits does so in real time.
        waits: bool,
    },
}

impl Clock {
    /// The system's wall clock.
    #[must_use]
    pub fn system() -> Self {
        Self(Source::System)
    }

    /// A clock that stays at `unix_us` (microseconds since 1970) until [`Clock::set`] or
    /// [`Clock::step`] moves it. Clones share the time.
    #[must_use]
    pub fn virtual_at(unix_us: i64) -> Self {
        Self(Source::Virtual { now: Arc::new(AtomicI64::new(unix_us)), waits: true })
    }

    /// The same, where nothing waits for time to pass: whoever moves the clock accounts for delays.
    #[must_use]
    pub fn simulated_at(unix_us: i64) -> Self {
        Self(Source::Virtual { now: Arc::new(AtomicI64::new(unix_us)), waits: false })
    }

    /// Whether delays are waited for.
    #[must_use]
    #[inline]
    pub fn waits(&self) -> bool {
        !matches!(self.0, Source::Virtual { waits: false, .. })
    }

    /// Microseconds since 1970; 0 where the system's clock is set to an earlier time.
    #[must_use]
    #[inline]
    pub fn wall_us(&self) -> i64 {
        match &self.0 {
            Source::System => SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| i64::try_from(since.as_micros()).unwrap_or(i64::MAX)),
            Source::Virtual { now, .. } => now.load(Ordering::SeqCst),
        }
    }

    /// Microseconds on a clock that never steps: the monotonic clock's since the machine started,
    /// or the virtual one's. Only differences mean anything.
    #[must_use]
    #[inline]
    pub fn steady_us(&self) -> i64 {
        match &self.0 {
            Source::System => clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |since| {
                i64::try_from(Duration::from(since).as_micros()).unwrap_or(i64::MAX)
            }),
            Source::Virtual { now, .. } => now.load(Ordering::SeqCst),
        }
    }

    /// Moves a virtual clock to `unix_us`. The system's clock is left alone.
    pub fn set(&self, unix_us: i64) {
        if let Source::Virtual { now, .. } = &self.0 {
            now.store(unix_us, Ordering::SeqCst);
        }
    }

    /// Moves a virtual clock by `us` microseconds, back where it is negative. The system's clock is
    /// left alone.
    pub fn step(&self, us: i64) {
        if let Source::Virtual { now, .. } = &self.0 {
            now.fetch_add(us, Ordering::SeqCst);
        }
    }
}

/// The monotonic clock: for durations and deadlines, never for a decision about a limit.
#[must_use]
#[inline]
pub fn monotonic() -> Instant {
    let now = Instant::now();
    if LAST_READ.get() != LastRead::Untracked {
        LAST_READ.set(LastRead::At(now));
    }
    now
}

/// The monotonic clock as this thread last read it since it woke up. For instants that may be a
/// little too early, by the work that the thread has done meanwhile. Reading the clock takes some
/// 40 ns, and a request would do so eight times.
///
/// On a thread that does not call [`woke_up`] it is [`monotonic`].
#[must_use]
#[inline]
pub fn recent() -> Instant {
    match LAST_READ.get() {
        LastRead::At(then) => then,
        LastRead::NotSinceSleep | LastRead::Untracked => monotonic(),
    }
}

/// Makes [`recent`] read the clock again: the thread has slept since it last did. To be called each
/// time that it has waited for something to do.
#[inline]
pub fn woke_up() {
    LAST_READ.set(LastRead::NotSinceSleep);
}

thread_local! {
    static LAST_READ: Cell<LastRead> = const { Cell::new(LastRead::Untracked) };
}

/// When a thread has read the monotonic clock.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LastRead {
    /// It does not say when it sleeps.
    Untracked,
    /// Not since it woke up.
    NotSinceSleep,
    At(Instant),
}

/// Microseconds on a clock that never steps and goes on while the machine sleeps
/// (`CLOCK_BOOTTIME`): for units that were taken in advance and may be spent until a deadline. Only
/// differences mean anything.
#[must_use]
#[inline]
pub fn boottime_us() -> u64 {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let clock = ClockId::CLOCK_BOOTTIME;
    // The monotonic clock of other systems goes on.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let clock = ClockId::CLOCK_MONOTONIC;
    clock_gettime(clock).map_or(u64::MAX, |since| {
        u64::try_from(Duration::from(since).as_micros()).unwrap_or(u64::MAX)
    })
}

/// CPU time that the calling thread has used (`CLOCK_THREAD_CPUTIME_ID`).
#[must_use]
pub fn thread_cpu() -> Duration {
    // It fails only where there is no such clock. Then no guest ever exceeds its budget: epochs
    // alone don't measure it.
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// CPU time that all threads of the process have used (`CLOCK_PROCESS_CPUTIME_ID`). `None` where
/// there is no such clock.
#[must_use]
pub fn process_cpu() -> Option<Duration> {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).ok().map(Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_clock_moves_only_by_hand_and_for_all_its_clones() {
        let clock = Clock::virtual_at(1_000);
        let clone = clock.clone();
        clock.step(-400);
        assert_eq!(clone.wall_us(), 600);
        clone.set(5);
        assert_eq!(clock.wall_us(), 5);
        assert!(clock.waits() && Clock::system().waits() && !Clock::simulated_at(5).waits());
    }

    #[test]
    fn a_recent_instant_is_read_once_after_each_sleep() {
        let beside = |last: fn() -> Instant| {
            let before = Instant::now();
            last() >= before
        };
        assert!(beside(recent) && beside(recent), "a thread that does not tell when it sleeps");
        woke_up();
        assert!(beside(recent));
        let read = recent();
        assert_eq!(recent(), read);
        let later = monotonic();
        assert_eq!(recent(), later);
        assert!(later >= read);
        woke_up();
        assert!(beside(recent));
    }

    #[test]
    fn a_thread_that_works_spends_cpu_time() {
        let before = thread_cpu();
        let mut sum = 0_u64;
        while thread_cpu() < before + Duration::from_millis(2) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(sum > 0);
    }
}

/// The README's example runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
