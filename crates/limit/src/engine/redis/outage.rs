//! Tells an operator when a shard fails and when it serves again: one log line each, however many
//! calls fail. Shared by all workers, but touched only while a shard fails.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::engine::Cause;
use crate::telemetry::Label;

/// An outage is reported after this many failed calls in a row: a single one may be a hiccup.
const FAILURES_UNTOLD_MAX: u64 = 2;
/// Or after two that are this far apart: where few requests come, nobody would hear of it for long.
const HICCUP_MAX: Duration = Duration::from_secs(1);
/// Minimum time from the end of a shard's outage to the line about its next one, and from one line
/// about an outage to the next, if its cause has changed.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// Maximum number of shards remembered.
const SHARDS_MAX: usize = 1_024;
/// What stands for the node of a slot that has none.
pub(super) const NO_MASTER: &str = "slots without a master";
/// Begins the names of nodes of which one owns the slot, while it is not known which.
pub(super) const ONE_OF: &str = "one of ";
/// Between their names.
pub(super) const NODE_SEPARATOR: &str = ", ";

/// The outages of all shards.
#[derive(Debug, Default)]
pub(super) struct Outages {
    /// Whether some shard's last call failed, so that successes need to be recorded.
    any: AtomicBool,
    /// Whether one is of nodes of which one owns the slot.
    any_unknown: AtomicBool,
    shards: Mutex<BTreeMap<String, Outage>>,
    /// Why nodes could not be connected to.
    reasons: Mutex<BTreeMap<String, String>>,
}

/// One shard's calls that failed in a row.
#[derive(Debug)]
struct Outage {
    since: Instant,
    failed: u64,
    /// The cause that was reported, and when.
    told: Option<(Cause, Instant)>,
    /// When the last reported outage ended.
    ended: Option<Instant>,
}

/// A line for the log.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Fails,
    ServesAgain { failed: u64, away: Duration },
}

impl Outages {
    /// Whether [`Outages::succeeded`] has to be called.
    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Records why `node` could not be connected to, for the next line about it.
    pub(super) fn explain(&self, node: &str, why: String) {
        let mut reasons = self.reasons.lock().unwrap_or_else(PoisonError::into_inner);
        if reasons.len() >= SHARDS_MAX {
            reasons.clear();
        }
        reasons.insert(node.to_owned(), why);
    }

    /// Each node that could not be connected to, and why.
    pub(super) fn unreached(&self) -> Vec<(String, String)> {
        let reasons = self.reasons.lock().unwrap_or_else(PoisonError::into_inner);
        reasons.iter().map(|(node, why)| (node.clone(), why.clone())).collect()
    }

    /// Why `node` could not be connected to; of several addresses, why one of them could not.
    fn reason(&self, node: &str) -> Option<String> {
        let reasons = self.reasons.lock().unwrap_or_else(PoisonError::into_inner);
        each(node).find_map(|node| reasons.get(node).cloned())
    }

    /// Ends the outages of all nodes but these: others own their slots now. That of nodes whose
    /// slots are not known ends with the next call that succeeds, since to know them is not to
    /// reach them.
    pub(super) fn keep(&self, is_master: impl Fn(&str) -> bool, now: Instant) {
        if self.any() {
            self.end_all(|node| !is_master(node) && !is_unknown(node), now);
        }
    }

    /// Records that the owners of all slots are known and serve.
    pub(super) fn reached(&self, now: Instant) {
        if self.any_unknown.load(Ordering::Relaxed) {
            self.end_all(is_unknown, now);
        }
    }

    /// Ends the outages of the shards with these names.
    fn end_all(&self, is_over: impl Fn(&str) -> bool, now: Instant) {
        let failing = |(node, outage): (&String, &Outage)| {
            (outage.failed > 0 && is_over(node)).then(|| node.clone())
        };
        let shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        let over: Vec<String> = shards.iter().filter_map(failing).collect();
        drop(shards);
        over.iter().for_each(|node| self.log_end(node, now));
    }

    /// Records that a call to the shard at `node` failed.
    pub(super) fn failed(&self, node: &str, cause: Cause, now: Instant) {
        if self.add_failure(node, cause, now) == Some(Line::Fails) {
            tracing::warn!(
                node,
                cause = cause.label(),
                error = self.reason(node),
                remedy = cause.remedy(),
                "a Redis shard is failing: the limits on it follow on_store_error"
            );
        }
    }

    /// Records that a call to the shard at `node` succeeded.
    pub(super) fn succeeded(&self, node: &str, now: Instant) {
        self.log_end(node, now);
        self.reached(now);
    }

    fn log_end(&self, node: &str, now: Instant) {
        if let Some(Line::ServesAgain { failed, away }) = self.end(node, now) {
            tracing::info!(
                node,
                failed_calls = failed,
                away_s = (away.as_secs_f64() * 1e3).round() / 1e3,
                "a Redis shard is serving again"
            );
        }
    }

    fn add_failure(&self, node: &str, cause: Cause, now: Instant) -> Option<Line> {
        let mut shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        if !shards.contains_key(node) {
            if shards.len() >= SHARDS_MAX {
                shards.retain(|_, outage| outage.failed > 0);
            }
            let fresh = Outage { since: now, failed: 0, told: None, ended: None };
            shards.insert(node.to_owned(), fresh);
        }
        self.any.store(true, Ordering::Relaxed);
        let outage = shards.get_mut(node)?;
        if outage.failed == 0 {
            outage.since = now;
        }
        outage.failed += 1;
        self.any_unknown.fetch_or(is_unknown(node), Ordering::Relaxed);
        if let Some((told, at)) = outage.told
            && (told == cause || now.duration_since(at) < LINE_EVERY)
        {
            return None;
        }
        let due = outage.ended.is_none_or(|ended| now.duration_since(ended) >= LINE_EVERY);
        let may_be_hiccup =
            outage.failed <= FAILURES_UNTOLD_MAX && now.duration_since(outage.since) < HICCUP_MAX;
        if !due || may_be_hiccup {
            return None;
        }
        outage.told = Some((cause, now));
        Some(Line::Fails)
    }

    fn end(&self, node: &str, now: Instant) -> Option<Line> {
        let mut reasons = self.reasons.lock().unwrap_or_else(PoisonError::into_inner);
        each(node).for_each(|node| _ = reasons.remove(node));
        drop(reasons);
        let mut shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        let mut line = None;
        if let Some(outage) = shards.get_mut(node).filter(|outage| outage.failed > 0) {
            if outage.told.take().is_some() {
                let away = now.duration_since(outage.since);
                line = Some(Line::ServesAgain { failed: outage.failed, away });
                outage.ended = Some(now);
            }
            outage.failed = 0;
        }
        let failing = || shards.iter().filter(|(_, outage)| outage.failed > 0);
        self.any.store(failing().next().is_some(), Ordering::Relaxed);
        self.any_unknown.store(failing().any(|(node, _)| is_unknown(node)), Ordering::Relaxed);
        line
    }
}

/// Whether the owner of a slot is not known, and this stands for it.
fn is_unknown(node: &str) -> bool {
    node.starts_with(ONE_OF)
}

/// The nodes that this stands for.
fn each(node: &str) -> impl Iterator<Item = &str> {
    node.strip_prefix(ONE_OF).unwrap_or(node).split(NODE_SEPARATOR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::monotonic;

    #[test]
    fn an_outage_is_one_line_and_its_end_another() {
        let (outages, began) = (Outages::default(), monotonic());
        let at = |ms| began + Duration::from_millis(ms);
        assert!(!outages.any());
        let lines: Vec<_> =
            (0..500).filter_map(|n| outages.add_failure("a:1", Cause::Timeout, at(n))).collect();
        assert_eq!((lines, outages.any()), (vec![Line::Fails], true));
        assert_eq!(outages.end("b:1", at(600)), None, "another shard");
        let away = Duration::from_millis(700);
        assert_eq!(outages.end("a:1", at(700)), Some(Line::ServesAgain { failed: 500, away }));
        assert_eq!((outages.end("a:1", at(701)), outages.any()), (None, false));
    }

    #[test]
    fn the_outage_of_a_node_that_was_replaced_ends() {
        let (outages, now) = (Outages::default(), monotonic());
        for node in ["a:1", "b:1"] {
            (0..5).for_each(|_| _ = outages.add_failure(node, Cause::Timeout, now));
        }
        outages.keep(|node| node == "b:1", now);
        assert_eq!(outages.end("a:1", now), None, "it has ended");
        assert!(outages.any() && outages.end("b:1", now).is_some());
        assert!(!outages.any());
    }

    #[test]
    fn that_the_owners_are_known_ends_no_outage() {
        let (outages, now) = (Outages::default(), monotonic());
        let unknown = format!("{ONE_OF}a:1");
        for node in [unknown.as_str(), NO_MASTER] {
            (0..5).for_each(|_| _ = outages.add_failure(node, Cause::Cluster, now));
        }
        // Slots have no master, and then they have.
        outages.keep(|node| node == NO_MASTER, now);
        assert!(outages.shards.lock().unwrap().values().all(|outage| outage.failed == 5));
        outages.keep(|node| node == "a:1", now);
        assert_eq!(outages.end(NO_MASTER, now), None, "it has ended");
        assert!(outages.any());
        outages.succeeded("a:1", now);
        assert!(!outages.any() && !outages.any_unknown.load(Ordering::Relaxed));
        (0..5).for_each(|_| _ = outages.add_failure(&unknown, Cause::Cluster, now));
        outages.explain("a:1", "why".to_owned());
        outages.reached(now);
        assert!(!outages.any() && outages.unreached().is_empty());
    }

    #[test]
    fn single_failures_are_not_reported() {
        let (outages, now) = (Outages::default(), monotonic());
        for _ in 0..100 {
            for _ in 0..FAILURES_UNTOLD_MAX {
                assert_eq!(outages.add_failure("a:1", Cause::Timeout, now), None);
            }
            assert_eq!(outages.end("a:1", now), None);
        }
    }

    #[test]
    fn two_failures_that_are_far_apart_are_reported() {
        let (outages, now) = (Outages::default(), monotonic());
        assert_eq!(outages.add_failure("a:1", Cause::Timeout, now), None);
        assert_eq!(outages.add_failure("a:1", Cause::Timeout, now + HICCUP_MAX), Some(Line::Fails));
        assert_eq!(outages.add_failure("a:1", Cause::Timeout, now + 2 * HICCUP_MAX), None, "once");
    }

    #[test]
    fn a_shard_that_comes_and_goes_is_reported_every_ten_seconds() {
        let (outages, began) = (Outages::default(), monotonic());
        let mut lines = 0;
        for second in 0..60 {
            let now = began + Duration::from_secs(second);
            lines += (0..5)
                .filter(|_| outages.add_failure("a:1", Cause::Timeout, now).is_some())
                .count();
            outages.end("a:1", now);
        }
        assert_eq!(lines, 6);
    }

    #[test]
    fn a_cause_that_changes_is_reported_once_in_ten_seconds() {
        let (outages, began) = (Outages::default(), monotonic());
        let told = |cause, ms| {
            let now = began + Duration::from_millis(ms);
            (0..5).filter(|_| outages.add_failure("a:1", cause, now).is_some()).count()
        };
        assert_eq!(told(Cause::Connection, 0), 1);
        assert_eq!(told(Cause::NoPermission, 9_000), 0, "too early");
        assert_eq!(told(Cause::Connection, 10_000), 0, "the same");
        assert_eq!(told(Cause::NoPermission, 10_001), 1);
        assert_eq!(told(Cause::Connection, 11_000), 0, "too early again");
        let end = outages.end("a:1", began + Duration::from_secs(12));
        assert!(matches!(end, Some(Line::ServesAgain { failed: 25, .. })), "{end:?}");
    }
}
