//! Shows an operator how single requests were decided: `/explain`.
//!
//! The text of a key, and of what a client sends, is shown only with `[admin] show_keys = true`.
//! Otherwise its digest is, by which `weir key` finds the counter, or nothing at all of a client's
//! credentials.

use std::cmp::Reverse;
use std::time::Duration;

use http::StatusCode;
use serde_json::{Map, Value, json};

use super::Instance;
use crate::config::setting;
use crate::insight::{Counts, Kind, Settings};
use crate::limit::Limiter;
use crate::plan::Role;
use crate::policy::Verdict;
use crate::proxy::account::{ExplainedRequest, LimitAccount, Rejection, ShownFact};

/// Maximum number of refusals that are listed.
const LISTED_MAX: usize = 100;

/// How the request with this id was decided, or without an id the newest refusals, as JSON.
pub(super) fn explain(
    running: &Instance,
    request_id: Option<&str>,
) -> Result<String, (StatusCode, String)> {
    let Some(id) = request_id else { return Ok(newest(running).to_string()) };
    let built = &running.current.load().built;
    // A proxy in front of this one may have sent an id twice: the newest is meant.
    let started = running
        .insight
        .look(usize::MAX, |request, _| request.is(id).then(|| request.started()))
        .into_iter()
        .max();
    let newest = running.insight.look(1, |request, _| {
        (request.is(id) && Some(request.started()) == started).then(|| request.clone())
    });
    match newest.into_iter().next() {
        Some(request) => {
            let request = request.explained();
            Ok(one(&request, &built.limiter, built.insight.show_keys).to_string())
        }
        None => Err((StatusCode::NOT_FOUND, missing(running, &built.insight))),
    }
}

/// Why a request may be missing.
fn missing(running: &Instance, settings: &Settings) -> String {
    let Counts { refusals, rejections, samples } = running.insight.counts();
    let Settings { refusals: refusals_max, samples: samples_max, sample_one_in, bytes, .. } =
        settings;
    format!(
        "This request is not remembered. Weir remembers {refusals} refusals, of at most \
         {refusals_max} (by a limit, the policy, the store, overload or the upstream), \
         {rejections} rejected requests, of at most {} (malformed, too large, or without a route), \
         and {samples} other requests, of at most {samples_max}, one in {sample_one_in} ({}, at \
         most {bytes} bytes in all). It may be older than these, it may have been admitted and not \
         sampled, or another process answered it. Malformed HTTP/2 frames are answered without an \
         id.",
        settings.rejections(),
        setting::EXPLAIN
    )
}

/// The newest refusals, the latest first.
fn newest(running: &Instance) -> Value {
    let mut refusals = running
        .insight
        .look(LISTED_MAX, |request, kind| (kind == Kind::Refusal).then(|| request.clone()));
    refusals.sort_by_key(|request| Reverse(request.started()));
    refusals.truncate(LISTED_MAX);
    let listed = refusals.iter().map(|request| {
        let request = request.explained();
        let account = &request.account;
        let names: Vec<&str> = account.refusing().map(|of| of.limit.name.as_str()).collect();
        json!({
            "request_id": request.request_id,
            "time": request.time,
            "route": account.route,
            "policy": account.policy,
            "status": account.status,
            "cause": request.cause,
            "limits": names,
        })
    });
    json!({ "refusals": listed.collect::<Vec<_>>() })
}

fn one(request: &ExplainedRequest, limiter: &Limiter, show_keys: bool) -> Value {
    let account = &request.account;
    let limits = account.limits.iter().map(|of| limit(of, limiter, show_keys));
    let labels = account.decision.iter().flat_map(|decision| &decision.labels);
    let labels: Map<String, Value> =
        labels.map(|(name, value)| (name.clone(), value.as_str().into())).collect();
    let reason = account.decision.as_ref().and_then(|decision| match &decision.verdict {
        Verdict::Deny(denial) => Some(denial.reason.as_str()),
        Verdict::Bypass | Verdict::Check(_) => None,
    });
    json!({
        "request_id": request.request_id,
        "time": request.time,
        "client": request.client,
        "method": request.method,
        "path": request.path,
        "route": account.route,
        "policy": account.policy,
        "decision": request.decision,
        "status": account.status,
        "cause": request.cause,
        "reason": reason,
        "rejection": account.rejection.as_ref().map(rejection_json),
        "failure": request.failure,
        "store_failure": request.store_failure,
        "facts": facts(&request.facts, limiter, show_keys),
        "labels": labels,
        "limits": limits.collect::<Vec<_>>(),
        "delay_ms": milliseconds(account.delay),
        "retry_after_ms": account.retry_after.map(milliseconds),
    })
}

/// What is wrong with a request, for `/explain` and `weir explain`.
#[must_use]
pub fn rejection_json(rejection: &Rejection) -> Value {
    let Rejection { check, found, expected } = rejection;
    json!({ "check": check, "found": found, "expected": expected })
}

/// Whole milliseconds, rounded up.
fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}

fn limit(of: &LimitAccount, limiter: &Limiter, show_keys: bool) -> Value {
    let LimitAccount { limit, outcome, took } = of;
    let allowance =
        if outcome.is_local { limiter.local_allowance(limit) } else { limit.algorithm.capacity() };
    let passes_after = outcome.retry_after_us.filter(|_| !outcome.fits);
    json!({
        "name": limit.name,
        "key": show_keys.then_some(&limit.key),
        "tag": limit.tag.as_ref().filter(|_| show_keys),
        "digest": limiter.digest(&limit.key, limit.tag.as_deref()).to_string(),
        "algorithm": limit.algorithm.name(),
        "allowance": allowance,
        "had": of.had(),
        "asked": if *took > 0 { *took } else { limit.cost },
        "fits": outcome.fits,
        "enforced": limit.is_enforced(),
        "role": role(limit.role),
        "measured": outcome.unmeasured.is_none(),
        "local": outcome.is_local,
        "leased": outcome.is_leased,
        "held": outcome.held,
        "remaining": outcome.remaining,
        "passes_after_ms": passes_after.map(|us| milliseconds(Duration::from_micros(us))),
    })
}

/// What the limit is to others; nothing if it counts by itself.
fn role(role: Role) -> Option<&'static str> {
    match role {
        Role::Alone => None,
        Role::Child { .. } => Some("child"),
        Role::Assured => Some("assured"),
        Role::Parent => Some("parent"),
    }
}

/// Facts by name. The values of one that occurs several times are a list.
fn facts(facts: &[ShownFact], limiter: &Limiter, show_keys: bool) -> Map<String, Value> {
    let mut shown = Map::new();
    for fact in facts {
        let value = Value::String(fact_text(fact, limiter, show_keys));
        match shown.get_mut(&fact.name) {
            None => drop(shown.insert(fact.name.clone(), value)),
            Some(Value::Array(values)) => values.push(value),
            Some(first) => *first = Value::Array(vec![first.take(), value]),
        }
    }
    shown
}

/// What is shown of a fact. The digest of one that is a key of its own is that key's. Without a
/// secret in it, a digest would reveal what it stands for to anybody who tries likely texts.
fn fact_text(fact: &ShownFact, limiter: &Limiter, show_keys: bool) -> String {
    let of_bytes = fact.cut_from.map(|bytes| format!(" ({bytes} bytes)")).unwrap_or_default();
    if !fact.is_credentials() && (show_keys || !fact.may_be_secret()) {
        let more = if fact.cut_from.is_some() { "..." } else { "" };
        return format!("{}{more}{of_bytes}", fact.shown());
    }
    if fact.is_credentials() || fact.cut_from.is_some() || !limiter.has_keyed_digests() {
        return format!("hidden{of_bytes}");
    }
    format!("digest:{}", limiter.digest(&fact.value, None))
}
