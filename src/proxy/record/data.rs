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
    /// What failed, here or on the upstream's side.
    pub(in crate::proxy) fn failure(&self) -> Option<&'static str> {
        self.answer.failure(self.sent)
    }
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
    }
}
