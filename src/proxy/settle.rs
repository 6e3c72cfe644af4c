//! What a request's limits and its policy are told at its end. Knows no connection.
//!
//! `settle` is called where the policy asked for it and the request was let through: after a
//! refusal nothing was taken that it could change. When it fails, the refunds that the limits
//! declare apply as if it had said nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::HeaderMap;

use super::facts;
use super::tally::Decided;
use super::visit::{BYTES_UNKNOWN, Visit};
use crate::limit::Ending;
use crate::plan::Adjustment;
use crate::policy::{FactNames, Member, Policy, ResponseOutcome, ResponseView};
use crate::wire::Fields;

/// What is known of a request at its end.
struct End<'a> {
    request_bytes: Option<&'a AtomicU64>,
    /// Of the reply's body.
    bytes: u64,
    took: Duration,
}

/// The facts of a response that are known at its end: the name in a manifest, and how the value is
/// found.
const AT_THE_END: &[(&str, fn(&End<'_>) -> Option<u64>)] = &[
    (REQUEST_BYTES, |end| {
        let bytes = end.request_bytes?.load(Ordering::Relaxed);
        (bytes != BYTES_UNKNOWN).then_some(bytes)
    }),
    ("response.bytes", |end| Some(end.bytes)),
    ("duration-ms", |end| u64::try_from(end.took.as_millis()).ok()),
];

/// Counted only where it is asked for.
pub(super) const REQUEST_BYTES: &str = "request.bytes";

/// Fields of a reply's head, and of its trailers.
const HEADER: &str = "header";
const TRAILER: &str = "trailer";

/// The names of all facts of a response.
pub(super) fn names() -> FactNames {
    FactNames {
        single: AT_THE_END.iter().map(|(name, _)| *name).collect(),
        families: vec![(HEADER, Member::Token), (TRAILER, Member::Token)],
    }
}

/// Whether the decision asked for `settle`, and `settle` reads the response fact `name`.
pub(super) fn wants(visit: &Visit, name: &str) -> bool {
    memo(visit).is_some_and(|(policy, _)| policy.response_facts().iter().any(|fact| fact == name))
}

/// Keeps what `settle` reads of the reply's head, since the head is gone when it is called.
pub(super) fn note_reply(visit: &mut Visit, fields: &Fields) {
    let Some((policy, _)) = memo(visit) else { return };
    visit.reply_facts = of_fields(policy.response_facts(), HEADER, fields);
}

/// The same of its trailers.
pub(super) fn note_trailers(visit: &mut Visit, trailers: &HeaderMap) {
    let Some((policy, _)) = memo(visit) else { return };
    let facts = of_fields(policy.response_facts(), TRAILER, &Fields::from(trailers));
    visit.reply_facts.extend(facts);
}

/// The facts of a family, found in a head or in trailers. A repeated field is a repeated fact.
pub(super) fn of_fields(names: &[String], family: &str, fields: &Fields) -> Vec<(String, String)> {
    let names =
        names.iter().filter_map(|fact| Some((fact, fact.strip_prefix(family)?.strip_prefix('.')?)));
    let values = names.flat_map(|(fact, name)| {
        fields.get_all(name).map(|value| (fact.clone(), facts::latin1(value).into_owned()))
    });
    values.collect()
}

/// Asks the policy where it wants to be asked, and settles the grant.
pub(super) fn settle(visit: &mut Visit, ending: Ending, bytes: u64, took: Duration) {
    let adjustments = match memo(visit) {
        Some((policy, memo)) => {
            ask(visit, policy, memo, &view(visit, policy.response_facts(), ending, bytes, took))
        }
        None => Vec::new(),
    };
    if let Some(grant) = visit.grant.take() {
        grant.settle(ending, &adjustments);
    }
}

/// The policy and what it wants to be given back, where it is to be asked.
fn memo(visit: &Visit) -> Option<(&Policy, &str)> {
    if visit.grant.is_none() && visit.decided != Some(Decided::Bypassed) {
        return None;
    }
    let memo = visit.decision.as_ref()?.settle_with.as_deref()?;
    Some((&visit.tail.charge.as_ref()?.policy, memo))
}

fn ask(visit: &Visit, policy: &Policy, memo: &str, view: &ResponseView) -> Vec<Adjustment> {
    match policy.settle_for(Some(visit.id.as_bytes()), memo, view) {
        Ok(wanted) => wanted,
        Err(error) => {
            if let Some(held_back) = visit.tail.tally.failure_is_said() {
                let request_id = visit.id.as_str();
                tracing::warn!(request_id, %error, held_back, "settle failed: the declared refunds apply");
            }
            Vec::new()
        }
    }
}

/// How the request ended, as the policy is told it.
pub(super) fn view(
    visit: &Visit,
    names: &[String],
    ending: Ending,
    bytes: u64,
    took: Duration,
) -> ResponseView {
    let mut facts = visit.reply_facts.clone();
    let end = End { request_bytes: visit.request_bytes.as_deref(), bytes, took };
    for name in names {
        let known = AT_THE_END.iter().find(|(known, _)| known == name);
        let value = known.and_then(|(_, find)| find(&end));
        facts.extend(value.map(|value| (name.clone(), value.to_string())));
    }
    let limits = visit.limits().map(|(limits, outcome)| {
        limits
            .iter()
            .zip(&outcome.limits)
            .map(|(limit, outcome)| (limit.name.clone(), outcome.fits, outcome.remaining))
            .collect()
    });
    let outcome = match ending {
        Ending::Completed => ResponseOutcome::Completed,
        Ending::Unsent | Ending::UpstreamFailed => ResponseOutcome::UpstreamFailed,
        Ending::ClientGone => ResponseOutcome::ClientGone,
    };
    ResponseView { outcome, status: visit.status, facts, limits: limits.unwrap_or_default() }
}
