//! What a worker does that has more to do than it can: it turns away requests before they are
//! charged, those of the lowest priority first.
//!
//! A worker is behind if its tasks wait too long for their turn. A task of its own measures that:
//! it asks to be woken at a time, and looks how much later it runs. Of the requests of one priority
//! as many are turned away as needed, by chance, so that a client with more of them gets more
//! refusals. Requests under way, the admin pages and health checks are never touched.

use std::cell::{Cell, OnceCell};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::clock::LogThrottle;
use crate::plan::{PRIORITY_DEFAULT, PRIORITY_MAX};
use crate::telemetry::{CounterSet, Metrics, labels, names};
use crate::wire;

/// How often a worker looks how late it is.
const TICK: Duration = Duration::from_millis(100);
/// How often it looks whether it is to look again, while the setting says that nothing is too late.
const OFF_TICK: Duration = Duration::from_secs(5);
/// How many times in a row it is late until it turns requests away: a single pause of the machine
/// is no overload.
const LATE_TICKS: u32 = 3;
/// How much of what is still let through is turned away more, each time that it is late.
const RAISE: f64 = 0.15;
/// What is left of the share that is turned away, each time that it is not.
const LOWER: f64 = 0.85;
/// A smaller share is none.
const SHARE_MIN: f64 = 0.01;
/// The largest share: something is always let through, to see whether it can be done.
const SHARE_MAX: f64 = 0.95;
/// Into how many parts the requests of a priority are divided.
const PARTS: u16 = 256;
/// The priorities.
const PRIORITIES: usize = PRIORITY_MAX as usize + 1;
/// How much of `buffered_bytes` requests of priority 0 may use, in percent, and how much more each
/// priority up to the default may.
const BUFFERED_PERCENT: usize = 80;
const BUFFERED_PERCENT_STEP: usize = 5;

labels! {
    /// Why a worker turned a request away: a metric's label.
    enum ShedReason {
        /// Its tasks wait too long for their turn.
        Lag = "lag",
        /// Too many bytes are buffered for a request of such a priority.
        Buffers = "buffers",
    }
}

thread_local! {
    // Made when the program is compiled, and never dropped: each request looks at it.
    static LOAD: Load = const { Load::new() };
    static WATCH: Watch = Watch::default();
}

/// What a worker's requests tell its watch, and what it tells them.
struct Load {
    /// Requests of each priority since the last tick.
    asked: [Cell<u32>; PRIORITIES],
    /// What is below is turned away: a priority times [`PARTS`], and a part.
    threshold: Cell<u16>,
    /// Whether the watch sleeps until there is a request.
    sleeps: Cell<bool>,
}

/// What is seldom used of what they share.
#[derive(Default)]
struct Watch {
    wake: Arc<Notify>,
    shed: OnceCell<CounterSet<ShedReason>>,
}

impl Load {
    const fn new() -> Self {
        Self {
            asked: [const { Cell::new(0) }; PRIORITIES],
            threshold: Cell::new(0),
            sleeps: Cell::new(false),
        }
    }
}

/// Whether a request of this priority is turned away now.
#[inline]
pub(super) fn turns_away(priority: u8, buffered_max: usize) -> bool {
    LOAD.with(|load| {
        let priority = priority.min(PRIORITY_MAX);
        if let Some(asked) = load.asked.get(usize::from(priority)) {
            asked.set(asked.get().wrapping_add(1));
        }
        if load.sleeps.replace(false) {
            wake();
        }
        let threshold = load.threshold.get();
        (threshold > 0 || priority < PRIORITY_DEFAULT) && refuses(priority, threshold, buffered_max)
    })
}

#[cold]
fn wake() {
    WATCH.with(|watch| watch.wake.notify_one());
}

/// Decides by chance, and by how much is buffered.
#[cold]
fn refuses(priority: u8, threshold: u16, buffered_max: usize) -> bool {
    let reason = if place(priority, fastrand::u16(..PARTS)) < threshold {
        ShedReason::Lag
    } else if priority < PRIORITY_DEFAULT
        && wire::buffered_bytes() > buffered_share(priority, buffered_max)
    {
        ShedReason::Buffers
    } else {
        return false;
    };
    WATCH.with(|watch| {
        if let Some(shed) = watch.shed.get() {
            shed.inc(reason);
        }
    });
    true
}

fn place(priority: u8, part: u16) -> u16 {
    u16::from(priority) * PARTS + part
}

/// How many bytes may be buffered when a request of this priority comes.
fn buffered_share(priority: u8, max: usize) -> usize {
    let percent = BUFFERED_PERCENT + BUFFERED_PERCENT_STEP * usize::from(priority);
    max / 100 * percent.min(100)
}

/// Watches how late this worker is, for ever. `lag_max` is how late it may be now.
pub(super) async fn watch(lag_max: impl Fn() -> Option<Duration>, metrics: &Metrics) {
    let wake = WATCH.with(|watch| {
        // The first one stays: a worker is watched once.
        let _ = watch.shed.set(metrics.counters(names::WORKER_SHED, &[]));
        Arc::clone(&watch.wake)
    });
    let (mut share, log) = (Share::default(), LogThrottle::default());
    loop {
        let max = lag_max();
        let due = Instant::now() + if max.is_some() { TICK } else { OFF_TICK };
        sleep_until(due).await;
        let lag = Instant::now().saturating_duration_since(due);
        let was = share.of;
        share.tick(lag, max);
        let is_idle = LOAD.with(|load| {
            let asked = load.asked.each_ref().map(|asked| asked.replace(0));
            load.threshold.set(threshold(share.of, &asked));
            let is_idle = share.of == 0.0 && asked.iter().all(|asked| *asked == 0);
            load.sleeps.set(is_idle);
            is_idle
        });
        if was == 0.0
            && share.of > 0.0
            && let Some(held_back) = log.due()
        {
            let lag_ms = u64::try_from(lag.as_millis()).unwrap_or(u64::MAX);
            tracing::warn!(
                lag_ms,
                held_back,
                "a worker has more to do than it can: it turns requests away"
            );
        }
        if is_idle {
            wake.notified().await;
        }
    }
}

/// The share of requests that is turned away.
#[derive(Debug, Default)]
struct Share {
    of: f64,
    /// How many times in a row the worker was late.
    late: u32,
}

impl Share {
    /// Takes note of how late the worker is. Without `max` nothing is too late.
    fn tick(&mut self, lag: Duration, max: Option<Duration>) {
        match max {
            None => *self = Self::default(),
            Some(max) if lag > max => {
                self.late += 1;
                if self.late >= LATE_TICKS {
                    self.of = (self.of + RAISE * (1.0 - self.of)).min(SHARE_MAX);
                }
            }
            Some(max) => {
                self.late = 0;
                // Between the two it stays as it is.
                if lag < max / 2 {
                    self.of *= LOWER;
                    if self.of < SHARE_MIN {
                        self.of = 0.0;
                    }
                }
            }
        }
    }
}

/// Where the requests of the next tick are divided, if they are like those of the last one: the
/// lowest priorities as a whole, and a part of the next.
fn threshold(share: f64, asked: &[u32; PRIORITIES]) -> u16 {
    let total: u64 = asked.iter().map(|asked| u64::from(*asked)).sum();
    let mut cut = total as f64 * share;
    if cut <= 0.0 {
        return 0;
    }
    for (priority, asked) in (0_u8..).zip(asked) {
        let asked = f64::from(*asked);
        if cut < asked {
            return place(priority, (f64::from(PARTS) * cut / asked) as u16);
        }
        cut -= asked;
    }
    place(PRIORITY_MAX, (f64::from(PARTS) * SHARE_MAX) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Option<Duration> = Some(Duration::from_millis(100));

    fn late(share: &mut Share, ms: u64, ticks: usize) -> f64 {
        (0..ticks).for_each(|_| share.tick(Duration::from_millis(ms), MAX));
        share.of
    }

    #[test]
    fn a_worker_that_stays_late_turns_away_more_and_lets_all_through_when_it_is_not() {
        let mut share = Share::default();
        assert_eq!(late(&mut share, 500, 2), 0.0, "a pause");
        assert_eq!(late(&mut share, 1, 1), 0.0);
        assert_eq!(late(&mut share, 500, 2), 0.0, "another one");
        let first = late(&mut share, 500, 1);
        assert!(first > 0.1, "{first}");
        let more = late(&mut share, 101, 5);
        assert!(more > 0.5, "{more}");
        assert_eq!(late(&mut share, 75, 9), more, "neither");
        assert!(late(&mut share, 5_000, 100) <= SHARE_MAX);
        // Five seconds of ticks.
        assert_eq!(late(&mut share, 10, 50), 0.0);
        late(&mut share, 500, 9);
        share.tick(Duration::from_secs(9), None);
        assert_eq!(share.of, 0.0);
    }

    #[test]
    fn the_lowest_priorities_go_first_and_the_highest_only_with_all_others() {
        let asked = [0, 100, 0, 0, 200, 0, 0, 100];
        for (share, expected) in [
            (0.0, 0),
            (0.125, place(1, PARTS / 2)),
            (0.25, place(4, 0)),
            (0.5, place(4, PARTS / 2)),
            (0.75, place(7, 0)),
            (0.875, place(7, PARTS / 2)),
        ] {
            assert_eq!(threshold(share, &asked), expected, "{share}");
        }
        assert_eq!(threshold(0.9, &[0; PRIORITIES]), 0, "nobody has asked");
    }

    #[test]
    fn requests_below_the_default_leave_room_in_the_buffers() {
        assert_eq!([0, 1, 3].map(|priority| buffered_share(priority, 1_000)), [800, 850, 950]);
    }
}
