//! What the client of a caller is told of a decision that Weir made for it. Knows no call, and not
//! how it is written down.

use std::borrow::Cow;
use std::cmp::Reverse;

use bytes::Bytes;
use http::StatusCode;

use super::answer::ReplyTo;
use super::fields;
use crate::plan::{Limit, LimitOutcome, PlanOutcome};
use crate::proxy::decide::policy_fields;
use crate::proxy::refusal::Refusal;
use crate::wire::{Fields, Known};

/// Fields of Weir's own answers that are about the answer itself, or that the caller sets.
const NOT_FOR_CLIENTS: [&[u8]; 2] = [b"content-length", b"x-request-id"];

/// Whether a field of an answer is for the caller's own client.
pub(super) fn is_for_clients(name: &[u8]) -> bool {
    !NOT_FOR_CLIENTS.iter().any(|other| name.eq_ignore_ascii_case(other))
}

/// What a client gets: all of it if it is refused, and otherwise fields beside the caller's own.
pub(super) struct Told {
    pub(super) status: StatusCode,
    pub(super) fields: Fields,
    pub(super) body: Bytes,
}

/// What a client is told of what was decided. Without a refusal it was let through.
pub(super) fn told(to: ReplyTo<'_>, refusal: Option<&Refusal>) -> Told {
    let limits = to.decided.and_then(|decided| decided.limits());
    let (status, mut fields, body) = match refusal {
        None => (StatusCode::OK, Fields::new(), Bytes::new()),
        Some(refusal) => {
            let (status, response) = refusal.response(to);
            (status, response.fields, Bytes::copy_from_slice(response.body.data()))
        }
    };
    if let Some((limits, outcome)) = limits {
        let (limits, outcome) = once_each(limits, outcome);
        fields::add(&mut fields, to.routed.handle.fields, &limits, &outcome, None);
    }
    if let Some(decided) = to.decided {
        policy_fields::set(&mut fields, &decided.response_fields, false);
        if let Some(what) = decided.degraded {
            fields.set(Known::WeirDegraded, what);
        }
    }
    fields.retain(|_, name, _| is_for_clients(name));
    Told { status, fields, body }
}

/// The limits with each name once: of those with the same name, the one that clients meet first.
fn once_each<'a>(
    limits: &'a [Limit],
    outcome: &'a PlanOutcome,
) -> (Cow<'a, [Limit]>, Cow<'a, PlanOutcome>) {
    let all = || limits.iter().zip(&outcome.limits).enumerate();
    let is_hidden = |index: usize, limit: &Limit, own: &LimitOutcome| {
        all().any(|(other, (theirs, result))| {
            other != index
                && theirs.name == limit.name
                && (rank(result), other) < (rank(own), index)
        })
    };
    if !all().any(|(index, (limit, own))| is_hidden(index, limit, own)) {
        return (Cow::Borrowed(limits), Cow::Borrowed(outcome));
    }
    let shown = all().filter(|(index, (limit, own))| !is_hidden(*index, limit, own));
    let (limits, outcomes) = shown.map(|(_, (limit, outcome))| (limit.clone(), *outcome)).unzip();
    (Cow::Owned(limits), Cow::Owned(PlanOutcome { limits: outcomes, ..outcome.clone() }))
}

/// Orders limits: those that refuse first, the longest wait first; then by what is left.
pub(super) fn rank(outcome: &LimitOutcome) -> (bool, Reverse<u64>, u64) {
    let wait = if outcome.fits { 0 } else { outcome.retry_after_us.unwrap_or(u64::MAX) };
    (outcome.fits, Reverse(wait), outcome.remaining)
}
