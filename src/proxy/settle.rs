//! The end of a request: settles its grant and calls the policy's `settle`. Knows no connection.
//!
//! `settle` is called if the policy asked for it and the request was let through. After a refusal
//! nothing was taken that it could change. If it fails, the refunds that the limits declare apply,
//! as if it had returned nothing.

use std::sync::atomic::Ordering;
use std::time::Duration;

use http::HeaderMap;

use super::context::{BYTES_UNKNOWN, RequestContext};
use super::facts;
use super::tally::Decided;
use crate::limit::Ending;
use crate::plan::Adjustment;
use crate::policy::{Policy, ResponseOutcome, ResponseView};
use crate::wire::Fields;

/// Whether the decision asked for `settle`, and `settle` reads the response fact `name`.
pub(super) fn wants(context: &RequestContext, name: &str) -> bool {
    memo(context).is_some_and(|(policy, _)| policy.response_facts().iter().any(|fact| fact == name))
}

/// Keeps the facts of the reply's head that `settle` reads, since the head is gone when it is
/// called.
pub(super) fn note_reply(context: &mut RequestContext, fields: &Fields) {
    let Some((policy, _)) = memo(context) else { return };
    context.reply_facts = of_fields(policy.response_facts(), "header.", fields);
}

/// Like [`note_reply`], for the trailers.
pub(super) fn note_trailers(context: &mut RequestContext, trailers: &HeaderMap) {
    let Some((policy, _)) = memo(context) else { return };
    let facts = of_fields(policy.response_facts(), "trailer.", &Fields::from(trailers));
    context.reply_facts.extend(facts);
}

/// The facts of a head or of trailers. A repeated field yields repeated facts.
pub(super) fn of_fields(names: &[String], prefix: &str, fields: &Fields) -> Vec<(String, String)> {
    let names = names.iter().filter_map(|fact| Some((fact, fact.strip_prefix(prefix)?)));
    let values = names.flat_map(|(fact, name)| {
        fields.get_all(name).map(|value| (fact.clone(), facts::latin1(value).into_owned()))
    });
    values.collect()
}

/// Calls the policy's `settle` if it asked for it, and settles the grant.
pub(super) fn settle(context: &mut RequestContext, ending: Ending, bytes: u64, took: Duration) {
    let adjustments = match memo(context) {
        Some((policy, memo)) => {
            ask(context, policy, memo, &view(context, policy.response_facts(), ending, bytes, took))
        }
        None => Vec::new(),
    };
    if let Some(grant) = context.grant.take() {
        grant.settle(ending, &adjustments);
    }
}

/// The policy and the memo to return to it, if its `settle` is to be called.
fn memo(context: &RequestContext) -> Option<(&Policy, &str)> {
    if context.grant.is_none() && context.decided != Some(Decided::Bypassed) {
        return None;
    }
    let memo = context.decision.as_ref()?.settle_with.as_deref()?;
    Some((&context.route.policy.as_ref()?.policy, memo))
}

fn ask(
    context: &RequestContext,
    policy: &Policy,
    memo: &str,
    view: &ResponseView,
) -> Vec<Adjustment> {
    match policy.settle_for(Some(context.id.as_bytes()), memo, view) {
        Ok(wanted) => wanted,
        Err(error) => {
            if let Some(held_back) = context.route.tally.failure_due() {
                let request_id = context.id.as_str();
                tracing::warn!(request_id, %error, held_back, "settle failed: the declared refunds apply");
            }
            Vec::new()
        }
    }
}

/// The end of the request as the policy sees it.
pub(super) fn view(
    context: &RequestContext,
    names: &[String],
    ending: Ending,
    bytes: u64,
    took: Duration,
) -> ResponseView {
    let mut facts = context.reply_facts.clone();
    for name in names {
        let value = match name.as_str() {
            "request.bytes" => context
                .request_bytes
                .as_ref()
                .map(|bytes| bytes.load(Ordering::Relaxed))
                .filter(|bytes| *bytes != BYTES_UNKNOWN),
            "response.bytes" => Some(bytes),
            "duration-ms" => u64::try_from(took.as_millis()).ok(),
            _ => None,
        };
        facts.extend(value.map(|value| (name.clone(), value.to_string())));
    }
    let limits = context.limits().map(|(limits, outcome)| {
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
    ResponseView { outcome, status: context.status, facts, limits: limits.unwrap_or_default() }
}
