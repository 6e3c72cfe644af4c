//! One route's counters, looked up once and then only incremented. Knows the names of metrics, and
//! no request.

use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::clock::LogThrottle;
use crate::policy;
use crate::proxy::verdict::{Cause, Verdict};
use crate::telemetry::{Counter, CounterSet, Histogram, Label as _, Metrics, names};

/// Maximum log lines per second about a route's failing policy.
const FAILURE_LINES_PER_SECOND_MAX: u32 = 4;
/// The label of requests that match no route.
pub(in crate::proxy) const NO_ROUTE: &str = "none";

type Codes = Box<[OnceLock<Counter>]>;
/// By cause, of those that are counted.
type Refusals = Box<[Option<Counter>]>;

/// One route's counters, shared by all workers.
#[derive(Clone)]
pub(in crate::proxy) struct Tally(Arc<Inner>);

struct Inner {
    route: String,
    metrics: Metrics,
    /// The counters by the status' first digit, then by the other two: a route uses few of the 500.
    classes: [OnceLock<Codes>; 5],
    /// None without a policy.
    decisions: Option<CounterSet<Verdict>>,
    /// None where no route was found.
    refusals: Option<Refusals>,
    request_seconds: Histogram,
    decision_seconds: Histogram,
    failures: LogThrottle,
}

impl Tally {
    pub(in crate::proxy) fn new(metrics: &Metrics, route: &str, policy: Option<&str>) -> Self {
        Self(Arc::new(Inner {
            route: route.to_owned(),
            metrics: metrics.clone(),
            classes: Default::default(),
            decisions: policy.map(|policy| metrics.counters(names::DECISIONS, &[policy])),
            refusals: (route != NO_ROUTE).then(|| refusals(metrics, route, policy.is_some())),
            request_seconds: metrics.times_of(names::REQUEST_SECONDS, &[route]),
            decision_seconds: metrics.histogram(names::DECISION_SECONDS),
            failures: LogThrottle::at_most(FAILURE_LINES_PER_SECOND_MAX),
        }))
    }

    /// Counts a response.
    pub(in crate::proxy) fn answered(&self, status: u16) {
        let codes =
            usize::from(status / 100).checked_sub(1).and_then(|class| self.0.classes.get(class));
        let counter = |code: &str| self.0.metrics.counter(names::REQUESTS, &[&self.0.route, code]);
        let Some(codes) = codes else { return counter("other").inc() };
        let codes = codes.get_or_init(|| (0..100).map(|_| OnceLock::new()).collect());
        if let Some(code) = codes.get(usize::from(status % 100)) {
            code.get_or_init(|| counter(&status.to_string())).inc();
        }
    }

    /// Whether a failure of the route's policy is to be logged. `Some` holds the number of failures
    /// not logged since the last one that was. A policy that fails at every request must not hide
    /// other log lines. All failures are counted.
    pub(in crate::proxy) fn failure_due(&self) -> Option<u64> {
        self.0.failures.due()
    }

    /// Counts a decision.
    pub(in crate::proxy) fn decided(&self, verdict: Verdict) {
        if let Some(decisions) = &self.0.decisions {
            decisions.inc(verdict);
        }
    }

    /// Counts a request that was refused for this, if Weir refused it.
    pub(in crate::proxy) fn refused(&self, cause: Cause) {
        let counters = self.0.refusals.as_deref().unwrap_or_default();
        if let Some(Some(counter)) = counters.get(cause.index()) {
            counter.inc();
        }
    }

    /// Counts an invalid answer of a policy that only this module could detect.
    #[cold]
    pub(in crate::proxy) fn policy_error(&self, policy: &str) {
        self.0.metrics.count(names::POLICY_ERRORS, &[policy, policy::Cause::Answer.label()]);
    }

    /// Times of whole requests.
    pub(in crate::proxy) fn request_seconds(&self) -> &Histogram {
        &self.0.request_seconds
    }

    /// Times of decisions.
    pub(in crate::proxy) fn decision_seconds(&self) -> &Histogram {
        &self.0.decision_seconds
    }

    pub(in crate::proxy) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }
}

fn refusals(metrics: &Metrics, route: &str, has_policy: bool) -> Refusals {
    let counter = |cause: &Cause| metrics.counter(names::ROUTE_REFUSALS, &[route, cause.label()]);
    let occurs = |cause: &Cause| cause.is_of_weir() && (has_policy || !cause.is_of_policy());
    Cause::ALL.iter().map(|cause| occurs(cause).then(|| counter(cause))).collect()
}

impl fmt::Debug for Tally {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Tally").field(&self.0.route).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_without_a_policy_counts_what_refuses_there() {
        let metrics = Metrics::new(1);
        let tallies = ["open", NO_ROUTE].map(|route| Tally::new(&metrics, route, None));
        for tally in &tallies {
            Cause::ALL.iter().for_each(|cause| tally.refused(*cause));
        }
        let text = metrics.encode();
        let counted: Vec<&str> =
            text.lines().filter(|line| line.starts_with("weir_route_refusals_total{")).collect();
        assert_eq!(
            counted,
            ["maintenance", "overload"].map(|cause| format!(
                "weir_route_refusals_total{{route=\"open\",cause=\"{cause}\"}} 1"
            ))
        );
    }

    #[test]
    fn answers_and_decisions_are_counted_under_their_labels() {
        let metrics = Metrics::new(1);
        let tally = Tally::new(&metrics, "api", Some("public"));
        for status in [200, 200, 429, 599, 100, 600, 999] {
            tally.answered(status);
        }
        Verdict::ALL.iter().for_each(|verdict| tally.decided(*verdict));
        tally.decided(Verdict::Failed);
        Cause::ALL.iter().for_each(|cause| tally.refused(*cause));
        let text = metrics.encode();
        for (code, count) in [("200", 2), ("429", 1), ("599", 1), ("100", 1), ("other", 2)] {
            assert!(
                text.contains(&format!(
                    "weir_requests_total{{route=\"api\",code=\"{code}\"}} {count}\n"
                )),
                "{code}: {text}"
            );
        }
        for cause in ["limit", "denial", "store", "policy_error", "overload"] {
            let series =
                format!("weir_route_refusals_total{{route=\"api\",cause=\"{cause}\"}} 1\n");
            assert!(text.contains(&series), "{text}");
        }
        // What no proxy could have served is no refusal of Weir's.
        assert!(!text.contains("cause=\"upstream\"") && !text.contains("cause=\"request\""));
        for (decision, count) in
            [("admitted", 1), ("refused", 1), ("unavailable", 1), ("failed", 2)]
        {
            assert!(
                text.contains(&format!(
                    "weir_decisions_total{{policy=\"public\",decision=\"{decision}\"}} {count}\n"
                )),
                "{text}"
            );
        }
    }
}
