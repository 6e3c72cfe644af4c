//! Counts what policies say of requests, their labels and amounts, where the configuration lists
//! them under `metrics`.

use super::data::Record;
use crate::policy::Decision;
use crate::proxy::decide::admit::DerivedValues;
use crate::proxy::verdict::Verdict;
use crate::telemetry::{Counter, names};

/// Counts a request's labels and amounts.
pub(super) fn count(record: &Record<'_>) {
    let route = &record.routed.handle;
    let Some(policy) = &route.policy else { return };
    let measured = policy.policy.measured();
    let Some(decided) = record.decided.filter(|_| !measured.is_empty()) else { return };
    if matches!(decided.verdict, Some(Verdict::Failed | Verdict::Uncounted)) {
        return;
    }
    let (name, metrics) = (&policy.scope.policy, route.tally.metrics());
    let counter =
        |label: &str, value: &str| metrics.counter(names::POLICY_REQUESTS, &[name, label, value]);
    let is_listed = |(label, _): &&(String, String)| measured.labels.contains(label);
    let look_up = |(label, value): &(String, String)| counter(label, value);
    if record.settled.is_some_and(|settled| !settled.labels.is_empty()) {
        record.labels().filter(is_listed).for_each(|label| look_up(label).inc());
    } else if let Some(decision) = decided.decision.as_deref() {
        let of = |labels: &[(String, String)]| -> Vec<Counter> {
            labels.iter().filter(is_listed).map(look_up).collect()
        };
        of_decision(decision, of, |counters| counters.iter().for_each(Counter::inc));
    }
    if let Some(settled) = record.settled {
        for (amount, units) in &settled.amounts {
            if measured.amounts.contains(amount) {
                metrics.counter(names::POLICY_AMOUNTS, &[name, amount]).add(*units);
            }
        }
    }
}

/// Looked up once for each decision, and kept with it.
fn of_decision(
    decision: &Decision,
    look_up: impl FnOnce(&[(String, String)]) -> Vec<Counter>,
    use_them: impl FnOnce(&[Counter]),
) {
    if !decision.labels.is_empty() {
        DerivedValues::with(decision, |derived| {
            use_them(derived.label_counters(|| look_up(&decision.labels)));
        });
    }
}
