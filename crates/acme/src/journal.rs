//! What is remembered of a certificate's orders, in a file beside it and in memory, so that neither
//! a process that is started again and again nor a disk that is full asks the authority too often.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::due::Issued;
use crate::error::OrderError;
use crate::folder;

/// The first pause after a failure, in seconds; each is [`PAUSE_GROWTH`] times as long as the one
/// before, up to [`PAUSE_MAX_S`]. So four tries fit into an hour, where Let's Encrypt allows five
/// that fail.
const PAUSE_FIRST_S: i64 = 120;
const PAUSE_GROWTH: i64 = 3;
const PAUSE_MAX_S: i64 = 6 * 3_600;
/// What the pause comes down to as a certificate's end comes near, in seconds: Let's Encrypt
/// forgets one of the five failures every twelve minutes.
const PAUSE_NEAR_END_S: i64 = 900;
/// The longest time that an authority's own word is taken for, in seconds.
const ASKED_MAX_S: i64 = 86_400;
/// A pause is so much longer at most, in tenths, so that many proxies don't ask at the same time.
const JITTER_TENTHS: i64 = 1;
/// A certificate is not replaced before it has lived for one in so many parts of its life, whatever
/// clock and authority say, and that is a day at most.
const HOLD_PART: i64 = 10;
const HOLD_MAX_S: i64 = 86_400;

/// What is remembered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Journal {
    /// Failures in a row.
    pub(crate) failures: u32,
    /// Proofs that have failed since a certificate was last issued: each leads to another
    /// challenge.
    pub(crate) unproven: u32,
    /// When to try again, in Unix seconds, if the last try failed.
    pub(crate) again_s: Option<i64>,
    /// Why it failed.
    pub(crate) error: Option<String>,
    /// When a certificate was last issued, in Unix seconds.
    pub(crate) issued_s: Option<i64>,
    /// The URL of the directory that it is ordered from.
    pub(crate) directory: Option<String>,
}

impl Journal {
    /// What is in the file: nothing if there is none.
    pub(crate) fn read(certificate: &Path) -> Self {
        let bytes = fs::read(folder::journal_file(certificate)).unwrap_or_default();
        serde_json::from_slice(&bytes).unwrap_or_default()
    }

    pub(crate) fn write(&self, certificate: &Path) -> io::Result<()> {
        let bytes = serde_json::to_vec_pretty(self).map_err(io::Error::other)?;
        folder::write(&folder::journal_file(certificate), &bytes)
    }

    /// Notes that an order has begun: it counts as a failure until its end is known.
    pub(crate) fn begin(&mut self, now_s: i64, issued: Option<&Issued>) {
        let pause_s = pause_s(self.failures);
        self.failures = self.failures.saturating_add(1);
        // Not longer than a quarter of the time that is left.
        let left_s = issued.map_or(i64::MAX, |issued| issued.expires_s.saturating_sub(now_s));
        let quarter_s = if left_s > 0 { (left_s / 4).max(PAUSE_NEAR_END_S) } else { PAUSE_MAX_S };
        self.again_s = Some(now_s.saturating_add(jittered(pause_s.min(quarter_s))));
        self.error = Some("the order was not finished".to_owned());
    }

    /// Notes why it failed, and how long the authority has asked to wait.
    pub(crate) fn fail(&mut self, now_s: i64, error: &OrderError, asked_s: Option<u64>) {
        if matches!(error, OrderError::Unproven { .. }) {
            self.unproven = self.unproven.saturating_add(1);
        }
        let asked_s = asked_s.map_or(0, |s| i64::try_from(s).unwrap_or(i64::MAX));
        let asked_s = now_s.saturating_add(jittered(asked_s.min(ASKED_MAX_S)));
        self.again_s = self.again_s.max(Some(asked_s));
        self.error = Some(error.to_string());
    }

    /// Notes that a certificate was issued.
    pub(crate) fn succeed(&mut self, now_s: i64) {
        let directory = self.directory.take();
        *self = Self { issued_s: Some(now_s), directory, ..Self::default() };
    }

    /// When to order, in Unix seconds: `renew_s`, if there is a certificate, but not before a
    /// failed order may be tried again, and not soon after the last one. What a clock that was
    /// wrong has left behind does not count.
    pub(crate) fn due_s(&self, now_s: i64, issued: Option<&Issued>, renew_s: Option<i64>) -> i64 {
        let again_max_s = now_s.saturating_add(longest(ASKED_MAX_S.max(PAUSE_MAX_S)));
        let again_s = self.again_s.filter(|again_s| *again_s <= again_max_s);
        let held_s = match (issued, self.issued_s) {
            (Some(issued), Some(at_s)) if at_s <= now_s => {
                at_s.saturating_add((issued.life_s / HOLD_PART).min(HOLD_MAX_S))
            }
            _ => i64::MIN,
        };
        renew_s.unwrap_or(i64::MIN).max(again_s.unwrap_or(i64::MIN)).max(held_s)
    }
}

/// How long to wait after this many failures in a row and one more.
fn pause_s(failures: u32) -> i64 {
    PAUSE_FIRST_S.saturating_mul(PAUSE_GROWTH.saturating_pow(failures)).min(PAUSE_MAX_S)
}

fn jittered(pause_s: i64) -> i64 {
    fastrand::i64(pause_s..=longest(pause_s).max(pause_s))
}

fn longest(pause_s: i64) -> i64 {
    pause_s.saturating_add(pause_s / 10 * JITTER_TENTHS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400;
    const NOW: i64 = 1_800_000_000;

    fn issued(from_s: i64, life_s: i64) -> Issued {
        Issued {
            names: Vec::new(),
            expires_s: from_s + life_s,
            life_s,
            renew_s: from_s + life_s / 3 * 2,
            identifier: None,
        }
    }

    #[test]
    fn four_tries_fit_into_an_hour_and_each_counts_from_its_beginning() {
        assert_eq!([0, 1, 2, 3, 4, 99].map(pause_s), [120, 360, 1_080, 3_240, 9_720, 21_600]);
        let (mut journal, mut now_s, mut tries) = (Journal::default(), NOW, 0);
        while now_s < NOW + 3_600 {
            // The process is killed in the middle of each order.
            journal.begin(now_s, None);
            tries += 1;
            now_s = journal.due_s(now_s, None, None);
        }
        assert_eq!(tries, 4);
    }

    #[test]
    fn a_certificate_that_soon_expires_is_not_waited_for_in_hours() {
        let (mut journal, one) =
            (Journal { failures: 9, ..Journal::default() }, issued(NOW, 3_600));
        journal.begin(NOW, Some(&one));
        assert!(journal.again_s.unwrap() <= NOW + 990, "{journal:?}");
        // Nor asked for every few minutes.
        journal.begin(NOW + 3_599, Some(&one));
        assert!(journal.again_s.unwrap() >= NOW + 3_599 + 900, "{journal:?}");
    }

    #[test]
    fn an_authority_may_ask_for_a_day() {
        let mut journal = Journal::default();
        journal.begin(NOW, None);
        let error = OrderError::RateLimited("too many".into());
        journal.fail(NOW, &error, Some(7_200));
        assert!((NOW + 7_200..=NOW + 7_920).contains(&journal.due_s(NOW, None, None)));
        journal.fail(NOW, &error, Some(u64::MAX));
        let due_s = journal.due_s(NOW, None, None);
        assert!((NOW + DAY..=NOW + DAY / 10 * 11).contains(&due_s), "{due_s}");
    }

    #[test]
    fn only_a_proof_that_has_failed_leads_to_another_challenge() {
        // As it was written when only failures were counted.
        let mut journal: Journal = serde_json::from_str(r#"{"failures":3,"again_s":5}"#).unwrap();
        assert_eq!((journal.failures, journal.unproven), (3, 0));
        let unproven = OrderError::Unproven { name: "a.example".into(), why: "refused".into() };
        for error in [OrderError::Late, OrderError::Unreached("no reply".into()), unproven] {
            assert_eq!(journal.unproven, 0, "{error}");
            journal.begin(NOW, None);
            journal.fail(NOW, &error, None);
        }
        assert_eq!((journal.failures, journal.unproven), (6, 1));
        journal.succeed(NOW);
        assert_eq!((journal.failures, journal.unproven), (0, 0));
    }

    #[test]
    fn a_clock_that_was_years_ahead_keeps_nothing_from_being_ordered() {
        let mut journal = Journal::default();
        journal.begin(NOW + 3_650 * DAY, None);
        assert_eq!(journal.due_s(NOW, None, None), i64::MIN);
        journal.succeed(NOW + 3_650 * DAY);
        assert_eq!(journal.due_s(NOW, Some(&issued(NOW, 90 * DAY)), Some(5)), 5);
    }

    #[test]
    fn what_was_just_issued_is_not_ordered_again_whatever_is_suggested() {
        let mut journal = Journal::default();
        journal.succeed(NOW);
        let (long, short) = (issued(NOW, 90 * DAY), issued(NOW, 6 * DAY));
        assert_eq!(journal.due_s(NOW + 9, Some(&long), Some(0)), NOW + DAY);
        assert_eq!(journal.due_s(NOW + 9, Some(&short), Some(0)), NOW + 6 * DAY / 10);
        // But what is gone is.
        assert_eq!(journal.due_s(NOW + 9, None, None), i64::MIN);
    }

    #[test]
    fn it_is_read_back_and_what_is_no_journal_is_an_empty_one() {
        let folder = tempfile::tempdir().unwrap();
        let certificate = folder.path().join("a.pem");
        assert_eq!(Journal::read(&certificate), Journal::default());
        let mut journal = Journal::default();
        journal.begin(NOW, None);
        journal.write(&certificate).unwrap();
        assert_eq!(Journal::read(&certificate), journal);
        fs::write(folder::journal_file(&certificate), "{").unwrap();
        assert_eq!(Journal::read(&certificate), Journal::default());
        assert!(journal.write(&folder.path().join("absent/a.pem")).is_err());
    }
}
