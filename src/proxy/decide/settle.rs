//! The end of a request: settles its grant and calls the policy's `settle`. Knows no connection.
//!
//! `settle` is called if the policy asked for it and the request was let through. After a refusal,
//! of which nothing was taken, it is called only if the policy asked for that, too. If it fails,
//! the refunds that the limits declare apply, as if it had returned nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::HeaderMap;

use super::facts;
use super::keys::{self, CountedUnits};
use crate::limit::Ending;
use crate::policy::{
    FactNames, LimitResult, Member, Policy, ResponseOutcome, ResponseView, Settlement,
};
use crate::proxy::context::{BYTES_UNKNOWN, RequestContext};
use crate::proxy::verdict::Verdict;
use crate::telemetry::Label as _;
use crate::upstream::Cause;
use crate::wire::Fields;

/// What is known of a request at its end.
struct End<'a> {
    request_bytes: Option<&'a AtomicU64>,
    /// The bytes of the reply's body.
    bytes: u64,
    took: Duration,
}

/// What a policy said of a request when it had ended.
#[derive(Debug)]
pub(in crate::proxy) struct SettlementReport {
    pub(in crate::proxy) labels: Vec<(String, String)>,
    pub(in crate::proxy) amounts: Vec<(String, u64)>,
}

/// How a fact is found; `None` where it does not exist.
type Find = fn(&End<'_>) -> Option<u64>;

/// The facts of a response that are known at its end: the name in a manifest, and how the value is
/// found.
const AT_THE_END: &[(&str, Find)] = &[
    (REQUEST_BYTES, |end| {
        let bytes = end.request_bytes?.load(Ordering::Relaxed);
        (bytes != BYTES_UNKNOWN).then_some(bytes)
    }),
    ("response.bytes", |end| Some(end.bytes)),
    ("duration-ms", |end| u64::try_from(end.took.as_millis()).ok()),
];

/// Counted only where it is asked for.
pub(in crate::proxy) const REQUEST_BYTES: &str = "request.bytes";

/// The failure of a request whose time was over before its reply was whole.
pub(in crate::proxy) const REQUEST_TIMEOUT: &str = "request-timeout";

/// How the names of facts begin: fields of a reply's head, and of its trailers.
const HEADER: &str = "header.";
const TRAILER: &str = "trailer.";

/// The names of all facts of a response.
pub(in crate::proxy) fn names() -> FactNames {
    FactNames {
        single: AT_THE_END.iter().map(|(name, _)| *name).collect(),
        families: vec![(HEADER, Member::Token), (TRAILER, Member::Token)],
    }
}

/// Whether the decision asked for `settle`, and `settle` reads the response fact `name`.
pub(in crate::proxy) fn wants(context: &RequestContext, name: &str) -> bool {
    memo(context).is_some_and(|(policy, _)| policy.response_facts().iter().any(|fact| fact == name))
}

/// Keeps what `settle` reads of the reply's head, since the head is gone when it is called.
pub(in crate::proxy) fn note_reply(context: &mut RequestContext, fields: &Fields) {
    let Some((policy, _)) = memo(context) else { return };
    context.reply_facts = of_fields(policy.response_facts(), HEADER, fields);
}

/// The same of its trailers.
pub(in crate::proxy) fn note_trailers(context: &mut RequestContext, trailers: &HeaderMap) {
    let Some((policy, _)) = memo(context) else { return };
    let facts = of_fields(policy.response_facts(), TRAILER, &Fields::from(trailers));
    context.reply_facts.extend(facts);
}

/// The facts of a family, found in a head or in trailers. A repeated field is a repeated fact.
pub(in crate::proxy) fn of_fields(
    names: &[String],
    family: &str,
    fields: &Fields,
) -> Vec<(String, String)> {
    let names = names.iter().filter_map(|fact| Some((fact, fact.strip_prefix(family)?)));
    let values = names.flat_map(|(fact, name)| {
        fields.get_all(name).map(|value| (fact.clone(), facts::latin1(value).into_owned()))
    });
    values.collect()
}

/// Calls the policy's `settle` if it asked for it, and settles the grant.
pub(in crate::proxy) fn settle(
    context: &mut RequestContext,
    ending: Ending,
    bytes: u64,
    took: Duration,
) {
    let settlement = match memo(context) {
        Some((policy, memo)) => {
            ask(context, policy, memo, &view(context, policy.response_facts(), ending, bytes, took))
        }
        None => Settlement::default(),
    };
    let Settlement { adjustments, labels, amounts } = settlement;
    if !(labels.is_empty() && amounts.is_empty()) {
        context.settled = Some(Box::new(SettlementReport { labels, amounts }));
    }
    let now = context.started + took;
    let adjustments = match &context.usage {
        Some(usage) => {
            let route = Arc::clone(&context.route);
            usage.settle_steps(adjustments, move |grant, adjustments| {
                keys::settle(&route, now, (grant, CountedUnits::Nothing), ending, adjustments);
            })
        }
        None => adjustments,
    };
    if let Some(grant) = context.grant.take() {
        keys::settle(&context.route, now, (grant, CountedUnits::Decided), ending, &adjustments);
    }
}

/// The policy and the memo to return to it, if its `settle` is to be called.
fn memo(context: &RequestContext) -> Option<(&Policy, &str)> {
    if context.grant.is_none() && context.verdict != Some(Verdict::Bypassed) {
        return None;
    }
    let memo = context.decision.as_ref()?.settle_with.as_deref()?;
    Some((&context.route.policy.as_ref()?.policy, memo))
}

fn ask(context: &RequestContext, policy: &Policy, memo: &str, view: &ResponseView) -> Settlement {
    match policy.settle_for(Some(context.id.as_bytes()), memo, view) {
        Ok(wanted) => wanted,
        Err(error) => {
            if let Some(held_back) = context.route.tally.failure_due() {
                let request_id = context.id.as_str();
                tracing::warn!(request_id, %error, held_back, "settle failed: the declared refunds apply");
            }
            Settlement::default()
        }
    }
}

/// The end of the request as the policy sees it.
pub(in crate::proxy) fn view(
    context: &RequestContext,
    names: &[String],
    ending: Ending,
    bytes: u64,
    took: Duration,
) -> ResponseView {
    let mut facts = context.reply_facts.clone();
    let end = End { request_bytes: context.request_bytes.as_deref(), bytes, took };
    for name in names {
        let known = AT_THE_END.iter().find(|(known, _)| known == name);
        let value = known.and_then(|(_, find)| find(&end));
        facts.extend(value.map(|value| (name.clone(), value.to_string())));
    }
    facts.extend(context.usage.iter().flat_map(|usage| usage.facts()));
    let limits = context.limits().map(|(limits, outcome)| {
        limits
            .iter()
            .zip(&outcome.limits)
            .map(|(limit, outcome)| LimitResult {
                name: limit.name.clone(),
                fits: outcome.fits,
                remaining: outcome.remaining,
                resets_ms: outcome.unmeasured.is_none().then(|| outcome.reset_us.div_ceil(1_000)),
            })
            .collect()
    });
    ResponseView {
        outcome: outcome(context, ending),
        status: context.status,
        by_upstream: context.by_upstream,
        facts,
        limits: limits.unwrap_or_default(),
    }
}

/// What became of the request, in the words of the contract.
fn outcome(context: &RequestContext, ending: Ending) -> ResponseOutcome {
    if context.verdict == Some(Verdict::Refused) {
        return ResponseOutcome::Refused;
    }
    let late = [Cause::Timeout.label(), REQUEST_TIMEOUT];
    let is_late = context.failure.is_some_and(|failure| late.contains(&failure));
    match ending {
        Ending::Completed => ResponseOutcome::Completed,
        Ending::Unsent => ResponseOutcome::Unsent,
        Ending::UpstreamFailed if is_late => ResponseOutcome::TimedOut,
        Ending::UpstreamFailed => ResponseOutcome::UpstreamFailed,
        Ending::ClientGone if is_late => ResponseOutcome::Overdue,
        Ending::ClientGone => ResponseOutcome::ClientGone,
    }
}
