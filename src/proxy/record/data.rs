//! A request that has ended, as everything that observes requests reads it.

use std::time::Duration;

use super::account::Parts;
use crate::proxy::decide::Decided;
use crate::proxy::forward::Sent;
use crate::proxy::receive::Received;
use crate::proxy::reply::Answer;
use crate::proxy::route::Routed;
use crate::proxy::settle::SettlementReport;
use crate::proxy::tally::NO_ROUTE;

/// A request that has ended.
#[derive(Clone, Copy)]
pub(in crate::proxy) struct Record<'a> {
    pub(in crate::proxy) received: &'a Received,
    pub(in crate::proxy) routed: &'a Routed,
    /// None if it ended before its policy was asked, and on a route without one.
    pub(in crate::proxy) decided: Option<&'a Decided>,
    /// None if its upstream can't have got it.
    pub(in crate::proxy) sent: Option<&'a Sent>,
    pub(in crate::proxy) answer: &'a Answer,
    /// What its policy said of it when it had ended, if anything.
    pub(in crate::proxy) settled: Option<&'a SettlementReport>,
    /// The bytes of the reply's body.
    pub(in crate::proxy) bytes: u64,
    /// Bytes from the client through a tunnel, if it became one.
    pub(in crate::proxy) tunnelled_up: Option<u64>,
    /// From the request's head to the reply's last byte.
    pub(in crate::proxy) took: Duration,
}

impl Record<'_> {
    /// What its policy says of it: the labels of the decision, and those of its end. Of two with
    /// one name it is the later.
    pub(in crate::proxy) fn labels(&self) -> impl Iterator<Item = &(String, String)> {
        let decision = self.decided.and_then(|decided| decided.decision.as_deref());
        let decided = decision.map(|decision| decision.labels.as_slice()).unwrap_or_default();
        let settled = self.settled.map(|settled| settled.labels.as_slice()).unwrap_or_default();
        last_of_each(decided, settled)
    }

    /// What failed, here or on the upstream's side.
    pub(in crate::proxy) fn failure(&self) -> Option<&'static str> {
        self.answer.failure(self.sent)
    }
}

/// The labels of a decision that none of the end replaces, and those.
fn last_of_each<'a>(
    decided: &'a [(String, String)],
    settled: &'a [(String, String)],
) -> impl Iterator<Item = &'a (String, String)> {
    let is_replaced = |name: &str| settled.iter().any(|(later, _)| later == name);
    decided.iter().filter(move |(name, _)| !is_replaced(name)).chain(settled)
}

/// What an account of a request is made of.
pub(in crate::proxy) fn parts<'a>(
    routed: &'a Routed,
    decided: Option<&'a Decided>,
    answer: &'a Answer,
) -> Parts<'a> {
    let origin = &routed.handle.origin;
    Parts {
        route: Some(origin.route.as_str()).filter(|name| *name != NO_ROUTE),
        scope: origin.scope.as_ref(),
        verdict: decided.and_then(|decided| decided.verdict),
        decision: decided.and_then(|decided| decided.decision.as_ref()),
        outcome: decided.and_then(|decided| decided.outcome.as_ref()),
        less: decided.and_then(|decided| decided.taken),
        cause: answer.cause,
        rejection: answer.rejection.as_deref(),
        policy_error: decided.and_then(|decided| decided.policy_error.as_deref()),
    }
}

#[cfg(test)]
mod tests {
    use super::last_of_each;

    #[test]
    fn a_label_of_the_end_replaces_that_of_the_decision() {
        let labels = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect::<Vec<_>>()
        };
        let (decided, settled) =
            (labels(&[("model", "a"), ("plan", "gold")]), labels(&[("model", "b"), ("end", "x")]));
        let all: Vec<_> = last_of_each(&decided, &settled).cloned().collect();
        assert_eq!(all, labels(&[("plan", "gold"), ("model", "b"), ("end", "x")]));
    }
}
