//! How many requests an upstream can use at once, learnt from the time that it takes to answer.
//! Pure: times and replies are passed in.
//!
//! In the tradition of Gradient2 (Netflix' concurrency-limits): replies are averaged over windows,
//! and while a window's latency is more than [`TOLERANCE`] times the base, the latency without a
//! queue, the limit shrinks in proportion; otherwise it grows by its square root. Gradient2 takes
//! the base from a long average, which under lasting overload rises with the queue, and the limit
//! with it. Here the base is learnt where the queue is short:
//!
//! - while the upstream has less than half of the limit, from every window;
//! - while it has all of it, from a *dip*: every two seconds, for two windows, the limit is what
//!   the upstream would do without a queue if the base were right. That is what it can do anyway,
//!   so a dip costs next to nothing. If it answers faster then, the base was too high;
//! - if latency stays though the limit has halved, the queue is not ours, and what is measured is
//!   the base: a deployment that is slower for good must not strangle the upstream.

use std::ops::Range;
use std::time::Duration;

/// Latencies up to this many times the base are no sign of a queue.
const TOLERANCE: f64 = 1.5;
/// The limit at the start, within the configured range.
const LIMIT_FIRST: f64 = 16.0;
/// How far the limit follows what is used of it, twice that, in a window in which the upstream was
/// not busy: nobody knows whether it could still take more. Not below [`LIMIT_FIRST`].
const FORGETTING: f64 = 0.05;
/// A window lasts as long as a request, within these bounds, in seconds: what a change of the limit
/// did is not seen sooner.
const WINDOW_S: (f64, f64) = (0.1, 10.0);
/// A window is longer if it has fewer replies than this, up to [`WINDOW_STRETCH`] times.
const REPLIES_MIN: u32 = 10;
const WINDOW_STRETCH: f64 = 10.0;
/// The most that one window shrinks the limit to, and how much of the difference is made at once.
const GRADIENT_MIN: f64 = 0.5;
const SHRINKING: f64 = 0.3;
/// If more than one in so many requests failed, the limit shrinks by [`ON_FAILURES`].
const FAILED_PART: u32 = 10;
const ON_FAILURES: f64 = 0.8;
/// How far the base follows a window in which the upstream was not busy: up, and down. While it is
/// busy, only down, by the first: chance makes some windows fast.
const FOLLOWING: (f64, f64) = (0.05, 0.2);
/// A latency that has not fallen below this, though the limit has halved, is not our queue's.
const UNMOVED: f64 = 0.8;
/// The same if fewer replies come than this part of those before: a queue would have kept all
/// servers busy.
const STRANGLED: f64 = 0.75;
/// Windows in which the limit then stays, until what was sent before is answered.
const HOLDING: u32 = 3;
/// Windows without a place to spare, after which there is a dip.
const DIP_AFTER: u32 = 20;
/// The same if the dip before showed that the base is too high.
const DIP_AGAIN_AFTER: u32 = 5;
/// Windows after which a dip is given up if the upstream still has more requests than it allows.
const DRAINING_MAX: u32 = 5;
/// In a dip, the limit is that without a queue divided by this: the second if the last dip found a
/// latency within [`RIGHT`] of the base.
const DIP_MARGINS: (f64, f64) = (2.0, 1.25);
const RIGHT: Range<f64> = 0.8..1.25;
/// The most that a dip raises the base by: this part of its margin, beyond which it may have had a
/// queue.
const DIP_RISE: f64 = 0.9;
/// How far the base follows a dip, unless that has found less than half of it: the second if that
/// is near.
const DIP_FOLLOWING: (f64, f64) = (0.5, 0.2);
/// How far latency and throughput follow those of one window.
const SMOOTHING: (f64, f64) = (0.5, 0.2);
/// There is no dip while latency is less than this many times the base.
const DIP_WORTH: f64 = 1.1;
/// How long to wait for the replies to requests that were sent in a dip: this many latencies, and
/// [`FIRST_S`] more. The first base is taken after the same time.
const AWAITED: f64 = 8.0;
const FIRST_S: f64 = 0.2;
/// A latency for that is at most this many times the base.
const USUAL: f64 = 3.0;

/// See the file's head.
#[derive(Clone, Debug)]
pub(super) struct Gradient {
    min: f64,
    max: f64,
    limit: f64,
    /// The latency without a queue, in seconds.
    base: Option<f64>,
    /// The mean latency of the last window, in seconds.
    latency: f64,
    /// The replies a second while there was no place to spare, averaged.
    throughput: f64,
    /// When the first sample came.
    first: Option<Duration>,
    window: Window,
    /// Nothing was congested since the upstream was last idle, so the limit doubles.
    grows_fast: bool,
    anchor: Option<Anchor>,
    /// Windows without a place to spare since the last dip.
    full_windows: u32,
    dip: Dip,
    dip_margin: f64,
}

/// What was true when the limit last began to shrink, or had halved.
#[derive(Clone, Copy, Debug)]
struct Anchor {
    limit: f64,
    /// The highest latency since then, in seconds.
    latency: f64,
    /// The replies a second then.
    throughput: f64,
    /// Windows since the limit has halved again.
    held: u32,
}

/// Replies of a span of time.
#[derive(Clone, Debug, Default)]
struct Window {
    opened: Duration,
    replies: u32,
    failed: u32,
    seconds: f64,
    in_flight_max: usize,
    full: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Dip {
    None,
    /// The upstream still has more requests than it may.
    Draining {
        windows: u32,
    },
    /// What is sent now has next to no queue before it.
    Sending(Cohort),
    /// The limit is as before. What was sent in the dip is still answered.
    Awaiting(Cohort),
}

/// The requests that were sent in a span of time. To look at those that were *answered* in it would
/// show the fast ones only.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cohort {
    from: Duration,
    to: Duration,
    /// When to wait no longer.
    until: Duration,
    replies: u32,
    seconds: f64,
}

/// What an upstream's answer says of the time that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// From the end of the request to the head of its reply.
    After(Duration),
    /// It was not answered in time, or with a status that says that the upstream has too much to
    /// do.
    Overloaded,
    /// It was an error, which may be faster than what is asked for. It is only a reason to look at
    /// the time: an upstream that gives nothing else must not be left in a dip.
    Unclear,
}

/// What became of one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// When this is recorded, since some fixed instant.
    pub(super) now: Duration,
    pub(super) reply: Reply,
    /// The requests under way, itself included.
    pub(super) in_flight: usize,
    /// Whether a request had to wait since the last sample.
    pub(super) full: bool,
}

impl Gradient {
    pub(super) fn new(min: usize, max: usize) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "limits are far below 2^52")]
        let (min, max) = (min as f64, max as f64);
        Self {
            min,
            max,
            limit: LIMIT_FIRST.clamp(min, max),
            base: None,
            latency: 0.0,
            throughput: 0.0,
            first: None,
            window: Window::default(),
            grows_fast: true,
            anchor: None,
            full_windows: DIP_AFTER - DIP_AGAIN_AFTER,
            dip: Dip::None,
            dip_margin: DIP_MARGINS.0,
        }
    }

    /// The same between other bounds.
    pub(super) fn within(self, min: usize, max: usize) -> Self {
        let Self { min, max, .. } = Self::new(min, max);
        Self { min, max, limit: self.limit.clamp(min, max), ..self }
    }

    /// The requests that the upstream may have now.
    pub(super) fn limit(&self) -> usize {
        let limit = match (self.dip, self.base) {
            // Little's law: what is under way is the rate times the latency.
            (Dip::Draining { .. } | Dip::Sending(_), Some(base)) => {
                (self.throughput * base / self.dip_margin).clamp(self.min, self.limit)
            }
            _ => self.limit,
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between `min` and `max`"
        )]
        let whole = limit.floor() as usize;
        whole.max(1)
    }

    /// Whether the limit is lower for a moment than what the upstream can use.
    pub(super) fn is_in_dip(&self) -> bool {
        matches!(self.dip, Dip::Draining { .. } | Dip::Sending(_))
    }

    /// The latency without a queue, as far as it is known.
    pub(super) fn base(&self) -> Option<Duration> {
        self.base.map(Duration::from_secs_f64)
    }

    /// Records a request that has ended. Returns whether the limit may have changed.
    pub(super) fn record(&mut self, sample: Sample) -> bool {
        let Sample { now, reply, in_flight, full } = sample;
        self.first.get_or_insert(now);
        let moved = self.move_dip(sample);
        let length = self.window_s();
        let window = &mut self.window;
        match reply {
            Reply::After(latency) => {
                window.replies += 1;
                window.seconds += latency.as_secs_f64();
            }
            Reply::Overloaded => window.failed += 1,
            Reply::Unclear => {}
        }
        window.in_flight_max = window.in_flight_max.max(in_flight);
        window.full |= full;
        let lasted = now.saturating_sub(window.opened).as_secs_f64();
        let enough = window.replies + window.failed >= REPLIES_MIN;
        if lasted < length || (!enough && lasted < length * WINDOW_STRETCH) {
            return moved;
        }
        let closed = std::mem::replace(&mut self.window, Window::open(now));
        self.close(&closed, lasted);
        true
    }

    fn close(&mut self, window: &Window, lasted_s: f64) {
        // Errors of one part of the upstream say nothing of the rest while that answers as fast as
        // ever.
        let mean = window.seconds / f64::from(window.replies.max(1));
        let is_fast = window.replies >= REPLIES_MIN / 2
            && self.base.is_some_and(|base| mean < base * DIP_WORTH);
        if window.failed * FAILED_PART > window.failed + window.replies && !is_fast {
            self.limit = (self.limit * ON_FAILURES).max(self.min);
            (self.grows_fast, self.anchor, self.dip) = (false, None, Dip::None);
            return;
        }
        if window.replies == 0 {
            if self.is_in_dip() {
                // There is nothing to learn from it.
                (self.dip, self.full_windows) = (Dip::None, 0);
            }
            return;
        }
        let latency = window.seconds / f64::from(window.replies);
        self.latency = match self.base {
            None => latency,
            Some(_) => self.latency + SMOOTHING.0 * (latency - self.latency),
        };
        let latency = self.latency;
        let Some(base) = self.base else {
            // The first replies are those of the fast requests.
            let since = window.opened.saturating_sub(self.first.unwrap_or_default());
            if since.as_secs_f64() >= FIRST_S + latency * AWAITED {
                self.base = Some(latency);
            }
            return;
        };
        match self.dip {
            Dip::None => {}
            Dip::Draining { windows } if windows >= DRAINING_MAX => {
                (self.dip, self.full_windows) = (Dip::None, 0);
                return;
            }
            Dip::Draining { windows } => {
                self.dip = Dip::Draining { windows: windows + 1 };
                return;
            }
            Dip::Sending(_) | Dip::Awaiting(_) => return,
        }
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let in_flight_max = window.in_flight_max as f64;
        if !window.full && in_flight_max * 2.0 < self.limit {
            let follow = if latency > base { FOLLOWING.0 } else { FOLLOWING.1 };
            self.base = Some(base + follow * (latency - base));
            (self.anchor, self.full_windows) = (None, 0);
            let aim = (in_flight_max * 2.0).max(LIMIT_FIRST.clamp(self.min, self.max));
            if aim < self.limit {
                self.limit += FORGETTING * (aim - self.limit);
                self.grows_fast = true;
            }
            return;
        }
        let base = base + FOLLOWING.0 * (latency - base).min(0.0);
        self.base = Some(base);
        let throughput = f64::from(window.replies) / lasted_s;
        self.throughput = if self.throughput == 0.0 {
            throughput
        } else {
            self.throughput + SMOOTHING.1 * (throughput - self.throughput)
        };
        let gradient = (TOLERANCE * base / latency).clamp(GRADIENT_MIN, 1.0);
        if gradient < 1.0 {
            self.shrink(gradient, latency);
        } else {
            self.anchor = None;
            if window.full || in_flight_max >= self.limit * 0.9 {
                // What is late came before the limit grew, and the next window will show it.
                let is_clear = self.grows_fast && latency < base * DIP_WORTH;
                let growth = if is_clear { self.limit } else { self.limit.sqrt() };
                self.limit = (self.limit + growth).min(self.max);
            }
        }
        self.full_windows = if window.full { self.full_windows + 1 } else { 0 };
        if self.full_windows >= DIP_AFTER && latency > base * DIP_WORTH {
            self.dip = Dip::Draining { windows: 0 };
        }
    }

    fn shrink(&mut self, gradient: f64, latency: f64) {
        self.grows_fast = false;
        let here = Anchor { limit: self.limit, latency, throughput: self.throughput, held: 0 };
        let mut anchor = self.anchor.unwrap_or(here);
        if self.limit <= anchor.limit * 0.5 {
            anchor.held += 1;
            if anchor.held <= HOLDING {
                self.anchor = Some(anchor);
                return;
            }
            // Both say the same, and either may be hidden by chance.
            if latency >= anchor.latency * UNMOVED
                || self.throughput <= anchor.throughput * STRANGLED
            {
                (self.base, self.anchor) = (Some(latency), None);
                self.distrust_base();
                return;
            }
            anchor = here;
        }
        anchor.latency = anchor.latency.max(latency);
        self.anchor = Some(anchor);
        let aim = self.limit * gradient + self.limit.sqrt();
        self.limit = (self.limit + SHRINKING * (aim - self.limit)).clamp(self.min, self.max);
    }

    /// Goes on with a dip, if there is one. Returns whether the limit has changed.
    fn move_dip(&mut self, sample: Sample) -> bool {
        let Sample { now, reply, in_flight, .. } = sample;
        let noted = |mut cohort: Cohort| {
            if let Reply::After(latency) = reply
                && (cohort.from..cohort.to).contains(&now.saturating_sub(latency))
            {
                cohort.replies += 1;
                cohort.seconds += latency.as_secs_f64();
            }
            cohort
        };
        match self.dip {
            Dip::Draining { .. } if in_flight <= self.limit() => {
                let span = Duration::from_secs_f64(self.window_s());
                let usual = self.base.map_or(self.latency, |base| self.latency.min(base * USUAL));
                let wait = Duration::from_secs_f64(FIRST_S + usual * AWAITED);
                let (to, until) = (now + span, now + span + wait);
                self.dip = Dip::Sending(Cohort { from: now, to, until, replies: 0, seconds: 0.0 });
                false
            }
            Dip::Sending(cohort) if now >= cohort.to => {
                self.dip = Dip::Awaiting(noted(cohort));
                true
            }
            Dip::Sending(cohort) => {
                self.dip = Dip::Sending(noted(cohort));
                false
            }
            Dip::Awaiting(cohort) if now >= cohort.until => {
                self.end_dip(cohort);
                true
            }
            Dip::Awaiting(cohort) => {
                self.dip = Dip::Awaiting(noted(cohort));
                false
            }
            Dip::None | Dip::Draining { .. } => false,
        }
    }

    fn end_dip(&mut self, cohort: Cohort) {
        (self.dip, self.anchor, self.full_windows) = (Dip::None, None, 0);
        let Some(base) = self.base.filter(|_| cohort.replies > 0) else { return };
        let latency = cohort.seconds / f64::from(cohort.replies);
        let is_far_lower = latency < base * 0.5;
        let is_right = RIGHT.contains(&(latency / base));
        let follow = match (is_far_lower, is_right) {
            (true, _) => 1.0,
            (false, false) => DIP_FOLLOWING.0,
            (false, true) => DIP_FOLLOWING.1,
        };
        let most = base * self.dip_margin * DIP_RISE;
        self.base = Some((base + follow * (latency - base)).min(most));
        if is_right {
            (self.dip_margin, self.full_windows) = (DIP_MARGINS.1, 0);
        } else {
            self.distrust_base();
        }
    }

    /// The base may be far from right, so the next dip comes soon, and is deep.
    fn distrust_base(&mut self) {
        (self.dip_margin, self.full_windows) = (DIP_MARGINS.0, DIP_AFTER - DIP_AGAIN_AFTER);
    }

    fn window_s(&self) -> f64 {
        self.latency.clamp(WINDOW_S.0, WINDOW_S.1)
    }
}

impl Window {
    fn open(now: Duration) -> Self {
        Self { opened: now, ..Self::default() }
    }
}

#[cfg(test)]
mod tests;
