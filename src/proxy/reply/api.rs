//! The answers of the HTTP API: decisions, and what became of them. Knows no policy.

use std::borrow::Cow;

use bytes::Bytes;
use http::StatusCode;
use serde::Serialize;

use super::answer::ReplyTo;
use super::decision::{Told, told};
use crate::plan::{Limit, LimitOutcome};
use crate::proxy::decide::policy_fields::PolicyFields;
use crate::proxy::receive::text::latin1;
use crate::proxy::refusal::Refusal;
use crate::wire::{Body, Fields, Known, Response};

/// The content type of all answers but problems.
pub(in crate::proxy) const JSON: &str = "application/json";

/// The answer to what was settled.
pub(in crate::proxy) const SETTLED: &[u8] = b"{\"settled\":true}";

/// The answer to what is held for longer.
pub(in crate::proxy) const RENEWED: &[u8] = b"{\"renewed\":true}";

/// A field's name and value.
type Field<'a> = (Cow<'a, str>, Cow<'a, str>);

/// A decision, as docs/openapi.json has it.
#[derive(Serialize)]
struct Decision<'a> {
    allowed: bool,
    request_id: &'a str,
    status: u16,
    fields: Vec<Field<'a>>,
    request_fields: Vec<Field<'a>>,
    limits: Vec<LimitState<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    refused_by: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    degraded: Option<&'static str>,
}

/// A limit after the decision.
#[derive(Serialize)]
struct LimitState<'a> {
    name: &'a str,
    fits: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    quota: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    window_s: Option<u64>,
    remaining: u64,
    resets_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
}

/// A decision as JSON. `id` is what it is held under.
pub(in crate::proxy) fn decision(
    to: ReplyTo<'_>,
    decided: Result<&PolicyFields, &Refusal>,
    id: Option<&str>,
) -> Vec<u8> {
    let Told { status, fields, body } = told(to, decided.err());
    let limits = to.decided.and_then(|decided| decided.limits());
    let upstream = decided.map(|fields| fields.as_slice()).unwrap_or_default();
    let refused = limits.filter(|_| matches!(decided, Err(Refusal::TooMany)));
    let shown = limits.iter().flat_map(|(limits, outcome)| limits.iter().zip(&outcome.limits));
    let denial = to.decided.and_then(|decided| decided.denial());
    let decision = Decision {
        allowed: decided.is_ok(),
        request_id: to.received.id.as_str(),
        status: status.as_u16(),
        fields: fields.iter().map(|(name, value)| (latin1(name), latin1(value))).collect(),
        request_fields: upstream
            .iter()
            .map(|(name, value)| (name.as_str().into(), latin1(value.as_bytes())))
            .collect(),
        limits: shown.filter_map(|(limit, outcome)| LimitState::of(limit, outcome)).collect(),
        body: decided.is_err().then(|| String::from_utf8_lossy(&body)),
        retry_after_ms: match refused {
            Some((limits, outcome)) => {
                outcome.retry_after_us(limits).map(|us| us.div_ceil(1_000).max(1))
            }
            None => denial.and_then(|denial| denial.retry_after_ms),
        },
        refused_by: refused
            .iter()
            .flat_map(|(limits, outcome)| outcome.refusing_names(limits))
            .collect(),
        id,
        degraded: to.decided.and_then(|decided| decided.degraded),
    };
    // Numbers and texts can be written.
    serde_json::to_vec(&decision).unwrap_or_default()
}

impl<'a> LimitState<'a> {
    /// `None` if clients are not told of it.
    fn of(limit: &'a Limit, outcome: &LimitOutcome) -> Option<Self> {
        if !limit.is_shown() || !limit.is_enforced() || outcome.unmeasured.is_some() {
            return None;
        }
        let (quota, window_s) = limit.algorithm.policy().unzip();
        Some(Self {
            name: &limit.name,
            fits: outcome.fits,
            quota,
            window_s: window_s.flatten(),
            remaining: outcome.remaining,
            resets_ms: outcome.reset_us.div_ceil(1_000),
            retry_after_ms: outcome.retry_after_us.map(|us| us.div_ceil(1_000)),
        })
    }
}

/// A problem in its place among the answers of several calls. `document` is a problem document;
/// what is none is shown as a text.
pub(in crate::proxy) fn error(status: StatusCode, document: &[u8]) -> Vec<u8> {
    let mut out = b"{\"error\":".to_vec();
    if serde_json::from_slice::<serde::de::IgnoredAny>(document).is_ok() {
        out.extend_from_slice(document.trim_ascii_end());
    } else {
        let title = status.canonical_reason().unwrap_or("Refused");
        let detail = String::from_utf8_lossy(document);
        let (kind, status) = ("about:blank", status.as_u16());
        let problem = serde_json::json!({
            "type": kind, "status": status, "title": title, "detail": detail
        });
        out.extend_from_slice(problem.to_string().as_bytes());
    }
    out.push(b'}');
    out
}

/// The answers of several calls.
pub(in crate::proxy) fn list(answers: &[Bytes]) -> Vec<u8> {
    let bytes = answers.iter().map(|answer| answer.len() + 1).sum::<usize>();
    let mut out = Vec::with_capacity(bytes + 1);
    out.push(b'[');
    for (index, answer) in answers.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(answer);
    }
    out.push(b']');
    out
}

/// An answer that is JSON.
pub(in crate::proxy) fn response(body: impl Into<Bytes>) -> Response {
    let mut fields = Fields::new();
    fields.set(Known::ContentType, JSON);
    fields.set(Known::CacheControl, "no-store");
    Response { fields, ..Response::new(StatusCode::OK, Body::full(body.into())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_document_is_a_text_in_a_list() {
        let problem = error(StatusCode::NOT_FOUND, b"{\"status\":404}\n");
        let page = error(StatusCode::SERVICE_UNAVAILABLE, b"<p>\"later\"</p>");
        let all = list(&[problem.into(), page.into(), Bytes::from_static(SETTLED)]);
        let all: serde_json::Value = serde_json::from_slice(&all).unwrap();
        assert_eq!(all[0]["error"]["status"], 404);
        assert_eq!(all[1]["error"]["detail"], "<p>\"later\"</p>");
        assert_eq!(all[2]["settled"], true);
        assert_eq!(list(&[]), b"[]");
    }
}
