//! Which requests are remembered for the operator, and what of them.

use std::sync::Arc;

use super::data::Record;
use super::remembered::RememberedRequest;
use crate::insight::Kind;
use crate::proxy::verdict::Cause;

/// Remembers a request that has ended, if it was refused or is part of the sample.
pub(super) fn remember(record: &Record<'_>) {
    let route = &record.routed.handle;
    let (remembers, sampled) = (route.insight.remembers(), record.routed.sampled);
    let kind = match record.answer.cause {
        // As part of the sample it is kept even if no refusals are.
        Some(Cause::Request) if sampled => Kind::Sample,
        Some(Cause::Request) if remembers => Kind::Rejection,
        Some(_) if remembers => Kind::Refusal,
        _ if sampled => Kind::Sample,
        _ => return,
    };
    route.insight.remember(of(record), kind);
}

fn of(record: &Record<'_>) -> RememberedRequest {
    let Record { received, routed, decided, answer, took, .. } = *record;
    let took_us = i64::try_from(took.as_micros()).unwrap_or(i64::MAX);
    let mut request = RememberedRequest {
        at_us: routed.handle.clock.wall_us().saturating_sub(took_us),
        id: received.id.clone(),
        started: received.started,
        client: received.client.text,
        method: received.method.clone(),
        path: received.path.clone(),
        origin: Arc::clone(&routed.handle.origin),
        status: answer.status,
        verdict: decided.and_then(|decided| decided.verdict),
        cause: answer.cause,
        facts: decided.and_then(|decided| decided.facts.clone()),
        decision: decided.and_then(|decided| decided.decision.clone()),
        outcome: decided.and_then(|decided| decided.outcome.clone()),
        less: decided.and_then(|decided| decided.taken),
        failure: record.failure(),
        store_failure: decided.and_then(|decided| decided.store_failure),
        rejection: answer.rejection.clone(),
        bytes: 0,
    };
    request.bytes = request.weight();
    request
}
