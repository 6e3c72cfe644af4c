//! Stops a policy that keeps failing, so that its failures cost next to nothing: its requests then
//! follow the route's `on_policy_error` at once, and the guest is not called.
//!
//! A client must not be able to stop a policy for others, and any client may send what a guest
//! can't handle. So failures, however many, only make a policy suspect. It is then tried with facts
//! that it answered before, in a fresh instance. Only if it fails with these as well is it stopped:
//! what fails then is the policy, not somebody's requests. The trial runs at most once in each
//! `time`, so clients can't make it a burden either.
//!
//! A policy that has answered nothing so far has no such facts. It is tried with no facts at all. A
//! guest that traps even on those may be stopped by the first clients, for `time` and not longer:
//! without an answer to compare with, the time does not double. An error that a guest returns
//! itself is an answer of a working guest there.
//!
//! A call that succeeds reads one word of this. Everything else happens after failures.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::caps::BreakerSettings;
use super::error::Cause;
use crate::clock;

/// Maximum number of lists of facts that are kept for trials.
const SAMPLES_MAX: usize = 2;
/// Maximum size of facts that are kept, in bytes.
const SAMPLE_BYTES_MAX: usize = 64 << 10;
/// If fewer than half of this many times `failures` calls failed, counting starts again.
const RUN_CALLS: u64 = 4;

/// Facts that the policy has answered.
pub(super) type Sample = Vec<(String, String)>;

#[derive(Debug)]
pub(super) struct Breaker {
    settings: BreakerSettings,
    began: Instant,
    /// 0 while the policy runs. While it is stopped: when the next call is let through as a probe,
    /// in milliseconds since `began`.
    probe_ms: AtomicU64,
    /// Whether the facts of the next call that succeeds should be kept.
    wants_sample: AtomicBool,
    record: Mutex<Record>,
}

#[derive(Debug, Default)]
struct Record {
    /// Failures of the run: traps and other breaches,
    broke: u64,
    /// and errors that the guest returned itself.
    refused: u64,
    /// Calls that had been made when the run began.
    calls_before: u64,
    /// When the next trial may be.
    trial_ms: u64,
    /// How long the policy was stopped last, and when it ran again.
    pause: Duration,
    resumed_ms: u64,
    samples: VecDeque<Sample>,
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It is made.
    Call,
    /// It is made, and shows whether a stopped policy works again.
    Probe,
    /// It is not made.
    Stopped,
}

/// What a failure leads to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Suspicion {
    None,
    /// The policy should be tried with these facts, and the result reported to [`Breaker::tried`].
    Try(Trial),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Trial {
    /// Facts that the policy has answered; none if it has not answered yet.
    pub(super) samples: Vec<Sample>,
}

/// What a trial changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TrialChange {
    Nothing,
    /// The policy was running and is stopped now.
    Stopped(Duration),
    /// The policy stays stopped.
    StillStopped,
    /// The policy was stopped and runs now.
    Resumed,
}

impl Breaker {
    pub(super) fn new(settings: BreakerSettings) -> Self {
        let pause = settings.time;
        Self {
            settings,
            began: clock::monotonic(),
            probe_ms: AtomicU64::new(0),
            wants_sample: AtomicBool::new(true),
            record: Mutex::new(Record { pause, ..Record::default() }),
        }
    }

    /// Whether the policy is stopped.
    pub(super) fn is_stopped(&self) -> bool {
        self.probe_ms.load(Ordering::Relaxed) != 0
    }

    /// What becomes of a call now.
    pub(super) fn turn(&self) -> Turn {
        match self.probe_ms.load(Ordering::Relaxed) {
            0 => Turn::Call,
            probe_ms => self.turn_at(probe_ms, self.now_ms()),
        }
    }

    /// While stopped: one call each time the pause is over. The pause is renewed at once, so that
    /// other calls don't follow it, and the next probe comes even if this one never reports.
    #[cold]
    fn turn_at(&self, probe_ms: u64, now_ms: u64) -> Turn {
        if now_ms < probe_ms {
            return Turn::Stopped;
        }
        let next = now_ms.saturating_add(ms(self.locked().pause)).max(1);
        let won =
            self.probe_ms.compare_exchange(probe_ms, next, Ordering::Relaxed, Ordering::Relaxed);
        if won.is_ok() { Turn::Probe } else { Turn::Stopped }
    }

    /// Whether [`succeeded`](Self::succeeded) should be called for a call.
    pub(super) fn wants_success(&self, turn: Turn) -> bool {
        turn == Turn::Probe || self.wants_sample.load(Ordering::Relaxed)
    }

    /// Has the facts of the next call that succeeds replace the oldest ones that are kept.
    pub(super) fn want_sample(&self) {
        self.wants_sample.store(true, Ordering::Relaxed);
    }

    /// Notes that a call with these facts was answered. Returns whether a stopped policy runs
    /// again.
    #[cold]
    pub(super) fn succeeded(&self, turn: Turn, facts: &[(&str, &str)]) -> bool {
        let now_ms = self.now_ms();
        let mut record = self.locked();
        if self.wants_sample.swap(false, Ordering::Relaxed) {
            record.keep(facts);
        }
        turn == Turn::Probe && self.resume(&mut record, now_ms)
    }

    /// Notes that a call failed. `calls` have been made in all, this one included.
    #[cold]
    pub(super) fn failed(&self, turn: Turn, cause: Cause, calls: impl Fn() -> u64) -> Suspicion {
        if self.settings.failures == 0 || matches!(cause, Cause::Overload | Cause::Stopped) {
            return Suspicion::None;
        }
        self.failed_at(turn, cause, calls(), self.now_ms())
    }

    fn failed_at(&self, turn: Turn, cause: Cause, calls: u64, now_ms: u64) -> Suspicion {
        let mut record = self.locked();
        let enough = u64::from(self.settings.failures);
        if record.broke + record.refused > 0
            && calls.saturating_sub(record.calls_before) >= RUN_CALLS.saturating_mul(enough)
        {
            (record.broke, record.refused) = (0, 0);
        }
        if record.broke + record.refused == 0 {
            record.calls_before = calls.saturating_sub(1);
        }
        if cause == Cause::Guest {
            record.refused += 1;
        } else {
            record.broke += 1;
        }
        if turn == Turn::Probe {
            return Suspicion::Try(record.trial());
        }
        let made = calls.saturating_sub(record.calls_before);
        let most = record.broke >= enough && 2 * record.broke > made;
        // Errors that a guest returns are its right: it is suspect only if it does nothing else.
        let all = record.broke + record.refused;
        let only = all >= enough && all >= made && !record.samples.is_empty();
        if !(most || only) || now_ms < record.trial_ms || self.is_stopped() {
            return Suspicion::None;
        }
        record.trial_ms = now_ms.saturating_add(ms(self.settings.time));
        Suspicion::Try(record.trial())
    }

    /// Notes the result of a trial: whether the policy works.
    pub(super) fn tried(&self, turn: Turn, works: bool) -> TrialChange {
        self.tried_at(turn, works, self.now_ms())
    }

    fn tried_at(&self, turn: Turn, works: bool, now_ms: u64) -> TrialChange {
        let mut record = self.locked();
        (record.broke, record.refused) = (0, 0);
        if works {
            let resumed = turn == Turn::Probe && self.resume(&mut record, now_ms);
            return if resumed { TrialChange::Resumed } else { TrialChange::Nothing };
        }
        let calm = now_ms.saturating_sub(record.resumed_ms) >= ms(self.settings.time_max);
        let first = turn != Turn::Probe && (record.resumed_ms == 0 || calm);
        record.pause = if first || record.samples.is_empty() {
            self.settings.time
        } else {
            record.pause.saturating_mul(2).min(self.settings.time_max).max(self.settings.time)
        };
        let next = now_ms.saturating_add(ms(record.pause)).max(1);
        let before = self.probe_ms.swap(next, Ordering::Relaxed);
        if before == 0 { TrialChange::Stopped(record.pause) } else { TrialChange::StillStopped }
    }

    fn resume(&self, record: &mut Record, now_ms: u64) -> bool {
        record.resumed_ms = now_ms.max(1);
        (record.broke, record.refused) = (0, 0);
        self.probe_ms.swap(0, Ordering::Relaxed) != 0
    }

    fn now_ms(&self) -> u64 {
        ms(clock::monotonic().saturating_duration_since(self.began))
    }

    fn locked(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Record {
    fn keep(&mut self, facts: &[(&str, &str)]) {
        let bytes: usize = facts.iter().map(|(name, value)| name.len() + value.len()).sum();
        if bytes > SAMPLE_BYTES_MAX {
            return;
        }
        if self.samples.len() >= SAMPLES_MAX {
            self.samples.pop_front();
        }
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        self.samples.push_back(facts.iter().map(owned).collect());
    }

    fn trial(&self) -> Trial {
        Trial { samples: self.samples.iter().cloned().collect() }
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &[(&str, &str)] = &[("query", "well")];

    fn breaker() -> Breaker {
        Breaker::new(BreakerSettings { failures: 5, ..BreakerSettings::default() })
    }

    fn answered() -> Breaker {
        let breaker = breaker();
        assert!(breaker.wants_success(Turn::Call));
        assert!(!breaker.succeeded(Turn::Call, GOOD));
        assert!(!breaker.wants_success(Turn::Call));
        breaker
    }

    /// Failures one after another at `now_ms`, the first being the call number `first`, each
    /// `step`-th call failing: the number of the failure that makes the policy suspect.
    fn suspect(breaker: &Breaker, cause: Cause, first: u64, step: u64, now_ms: u64) -> Option<u64> {
        (0..100).find(|nth| {
            breaker.failed_at(Turn::Call, cause, first + nth * step, now_ms) != Suspicion::None
        })
    }

    #[test]
    fn failures_in_a_row_lead_to_a_trial_and_a_failed_trial_stops() {
        let breaker = answered();
        assert_eq!(suspect(&breaker, Cause::Trap, 2, 1, 10), Some(4));
        assert_eq!(breaker.turn(), Turn::Call, "not before the trial");
        let second = Duration::from_secs(1);
        assert_eq!(breaker.tried_at(Turn::Call, false, 10), TrialChange::Stopped(second));
        let stopped = |now_ms| breaker.turn_at(breaker.probe_ms.load(Ordering::Relaxed), now_ms);
        assert_eq!(stopped(1_009), Turn::Stopped);
        assert_eq!(stopped(1_010), Turn::Probe);
        assert_eq!(stopped(1_010), Turn::Stopped, "one probe at a time");
        // The probe fails, and so does the trial: the pause doubles, up to its maximum.
        let mut now_ms = 1_010;
        for pause in [2_000, 4_000, 8_000, 16_000, 30_000, 30_000] {
            assert!(matches!(
                breaker.failed_at(Turn::Probe, Cause::Trap, 99, now_ms),
                Suspicion::Try(Trial { samples }) if samples.len() == 1
            ));
            assert_eq!(breaker.tried_at(Turn::Probe, false, now_ms), TrialChange::StillStopped);
            assert_eq!(stopped(now_ms + pause - 1), Turn::Stopped);
            now_ms += pause;
            assert_eq!(stopped(now_ms), Turn::Probe);
        }
        assert!(breaker.succeeded(Turn::Probe, GOOD));
        assert_eq!(breaker.turn(), Turn::Call);
    }

    #[test]
    fn a_trial_that_succeeds_stops_nothing_and_the_next_one_has_to_wait() {
        let breaker = answered();
        assert_eq!(suspect(&breaker, Cause::Time, 2, 1, 10), Some(4));
        assert_eq!(breaker.tried_at(Turn::Call, true, 10), TrialChange::Nothing);
        assert_eq!(suspect(&breaker, Cause::Time, 7, 1, 1_009), None, "within a second");
        assert!(!breaker.is_stopped());
        assert!(suspect(&breaker, Cause::Time, 200, 1, 1_010).is_some());
    }

    #[test]
    fn failures_of_a_minority_of_the_calls_are_no_suspicion() {
        assert_eq!(suspect(&answered(), Cause::Trap, 2, 3, 10), None);
        assert_eq!(suspect(&answered(), Cause::Trap, 2, 1_000, 10), None);
        assert!(suspect(&answered(), Cause::Trap, 2, 1, 10).is_some());
    }

    #[test]
    fn errors_of_the_guest_are_suspect_only_if_it_does_nothing_else() {
        assert_eq!(suspect(&answered(), Cause::Guest, 2, 1, 10), Some(4));
        let breaker = answered();
        assert_eq!(breaker.failed_at(Turn::Call, Cause::Guest, 2, 10), Suspicion::None);
        // The call number 3 was answered. After twenty calls failures are counted afresh.
        for call in 4..21 {
            let suspicion = breaker.failed_at(Turn::Call, Cause::Guest, call, 10);
            assert_eq!(suspicion, Suspicion::None, "{call}");
        }
        // Before anything was answered, they may be all there is.
        assert_eq!(suspect(&self::breaker(), Cause::Guest, 1, 1, 10), None);
    }

    #[test]
    fn without_an_answer_to_compare_with_the_pause_does_not_double() {
        let breaker = breaker();
        assert_eq!(suspect(&breaker, Cause::Trap, 1, 1, 10), Some(4));
        assert!(matches!(breaker.tried_at(Turn::Call, false, 10), TrialChange::Stopped(_)));
        for _ in 0..3 {
            assert_eq!(breaker.tried_at(Turn::Probe, false, 10), TrialChange::StillStopped);
            assert_eq!(breaker.locked().pause, Duration::from_secs(1));
        }
    }

    #[test]
    fn overload_is_not_the_policys_fault_and_0_failures_stop_nothing() {
        let calls = || 1;
        let breaker = answered();
        for _ in 0..100 {
            assert_eq!(breaker.failed(Turn::Call, Cause::Overload, calls), Suspicion::None);
        }
        let never = Breaker::new(BreakerSettings { failures: 0, ..BreakerSettings::default() });
        for _ in 0..100 {
            assert_eq!(never.failed(Turn::Call, Cause::Trap, calls), Suspicion::None);
        }
    }

    #[test]
    fn the_facts_kept_for_trials_are_bounded() {
        let breaker = answered();
        for round in ["a", "b", "c"] {
            breaker.want_sample();
            breaker.succeeded(Turn::Call, &[("query", round)]);
        }
        breaker.want_sample();
        breaker.succeeded(Turn::Call, &[("query", &"x".repeat(SAMPLE_BYTES_MAX))]);
        let record = breaker.locked();
        let kept: Vec<&str> = record.samples.iter().map(|facts| facts[0].1.as_str()).collect();
        assert_eq!(kept, ["b", "c"]);
    }
}
