//! One route's counters, looked up once and then only incremented. Knows the names of metrics, and
//! no request.

use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::clock::LogThrottle;
use crate::policy::Cause;
use crate::telemetry::{Counter, CounterSet, Histogram, Label as _, Metrics, labels, names};

/// Maximum log lines per second about a route's failing policy.
const FAILURE_LINES_PER_SECOND_MAX: u32 = 4;
/// The label of requests that match no route.
pub(in crate::proxy) const NO_ROUTE: &str = "none";

labels! {
    /// What became of a request under a policy: a metric's label and a word in the access log.
    pub(in crate::proxy) enum Decided {
        /// All limits fitted.
        Admitted = "admitted",
        /// A limit refused.
        Refused = "refused",
        /// The policy counts nothing for it.
        Bypassed = "bypassed",
        /// The policy refused without asking a limit.
        Denied = "denied",
        /// Let through uncounted, because a counter could not be reached.
        Degraded = "degraded",
        /// Admitted by this proxy's share of a limit, because its counter could not be reached.
        Local = "local",
        /// Refused, because a counter could not be reached.
        Unavailable = "unavailable",
        /// The policy itself failed.
        Failed = "failed",
    }
}

labels! {
    /// Why a request was refused: a metric's label.
    enum RefusedFor {
        Limit = "limit",
        Policy = "policy",
        Store = "store",
        Failure = "failure",
    }
}

type Codes = Box<[OnceLock<Counter>]>;

/// One route's counters, shared by all workers.
#[derive(Clone)]
pub(in crate::proxy) struct Tally(Arc<Inner>);

struct Inner {
    route: String,
    metrics: Metrics,
    /// By the status' first digit, then by the other two: a route uses few of the 500.
    classes: [OnceLock<Codes>; 5],
    /// None without a policy.
    decisions: Option<CounterSet<Decided>>,
    /// None without a policy.
    refusals: Option<CounterSet<RefusedFor>>,
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
            refusals: policy.map(|_| metrics.counters(names::ROUTE_REFUSALS, &[route])),
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
    pub(in crate::proxy) fn decided(&self, decided: Decided) {
        if let Some(decisions) = &self.0.decisions {
            decisions.inc(decided);
        }
    }

    /// Counts a request that was refused after this decision, if it was refused for it.
    pub(in crate::proxy) fn refused(&self, decided: Decided) {
        let cause = match decided {
            Decided::Refused => RefusedFor::Limit,
            Decided::Denied => RefusedFor::Policy,
            Decided::Unavailable => RefusedFor::Store,
            Decided::Failed => RefusedFor::Failure,
            Decided::Admitted | Decided::Bypassed | Decided::Degraded | Decided::Local => return,
        };
        if let Some(refusals) = &self.0.refusals {
            refusals.inc(cause);
        }
    }

    /// Counts an invalid answer of a policy that only this module could detect.
    #[cold]
    pub(in crate::proxy) fn policy_error(&self, policy: &str) {
        self.0.metrics.count(names::POLICY_ERRORS, &[policy, Cause::Answer.label()]);
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

impl fmt::Debug for Tally {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Tally").field(&self.0.route).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_and_decisions_are_counted_under_their_labels() {
        let metrics = Metrics::new(1);
        let tally = Tally::new(&metrics, "api", Some("public"));
        for status in [200, 200, 429, 599, 100, 600, 999] {
            tally.answered(status);
        }
        Decided::ALL.iter().for_each(|decided| tally.decided(*decided));
        tally.decided(Decided::Failed);
        Decided::ALL.iter().for_each(|decided| tally.refused(*decided));
        let text = metrics.encode();
        for (code, count) in [("200", 2), ("429", 1), ("599", 1), ("100", 1), ("other", 2)] {
            assert!(
                text.contains(&format!(
                    "weir_requests_total{{route=\"api\",code=\"{code}\"}} {count}\n"
                )),
                "{code}: {text}"
            );
        }
        for cause in ["limit", "policy", "store", "failure"] {
            let series =
                format!("weir_route_refusals_total{{route=\"api\",cause=\"{cause}\"}} 1\n");
            assert!(text.contains(&series), "{text}");
        }
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
