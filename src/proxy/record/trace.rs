//! The spans of a request that has ended, named after the semantic conventions of OpenTelemetry.
//! Knows nothing of how they are exported.
//!
//! Queries and header fields are left out, as in the access log.

use std::time::{Duration, Instant};

use http::{Method, StatusCode};
use smallvec::SmallVec;

use super::data::Record;
use super::text;
use crate::limit::KeyDigest;
use crate::otlp::{Kind, Span, SpanId, Trace, Value};
use crate::proxy::decide::Decided;
use crate::proxy::receive::trace::TraceContext;
use crate::proxy::tally::NO_ROUTE;
use crate::telemetry::Label as _;
use crate::upstream::HostAddress;

/// Attributes of the span of a request, about.
const ATTRIBUTES: usize = 14;
/// Failures of requests whose status had been sent before.
const LATE_FAILURES: [&str; 2] = ["reply-cut", "request-timeout"];

type Attributes = Vec<(&'static str, Value)>;

/// Hands over the spans of a request that has ended, if it is traced.
pub(super) fn export(record: &Record<'_>) {
    if let Some(trace) = record.received.trace.as_deref() {
        record.routed.handle.tracer.push(spans(record, trace));
    }
}

#[cold]
fn spans(record: &Record<'_>, trace: &TraceContext) -> Trace {
    let end = record.received.started + record.took;
    let mut spans = SmallVec::new();
    spans.push(of_request(record, trace, end));
    if let (Some(start), Some(decided)) = (record.routed.at, record.decided)
        && let Some(end) = decided.at
    {
        spans.push(of_decision(record, decided, trace, (start, end)));
    }
    spans.extend(of_sending(record, trace, end));
    Trace { id: trace.id, spans }
}

fn of_request(record: &Record<'_>, trace: &TraceContext, end: Instant) -> Span {
    let received = record.received;
    let (method, original) = known_method(&received.method);
    let route = &record.routed.handle;
    let routed = route.name != NO_ROUTE;
    let status = record.answer.status;
    let mut attributes: Attributes = Vec::with_capacity(ATTRIBUTES);
    attributes.push(("http.request.method", method.into()));
    if let Some(original) = original {
        attributes.push(("http.request.method_original", original.to_owned().into()));
    }
    attributes.push(("url.scheme", received.client.scheme().into()));
    attributes.push(("url.path", String::from_utf8_lossy(&received.path).into_owned().into()));
    if status != 0 {
        attributes.push(("http.response.status_code", status.into()));
    }
    if routed {
        // A domain's has none.
        if !route.path.is_empty() {
            attributes.push(("http.route", route.path.clone().into()));
        }
        attributes.push(("weir.route", route.name.clone().into()));
    }
    let (host, port) = host_and_port(&trace.authority);
    if !host.is_empty() {
        attributes.push(("server.address", host.to_owned().into()));
    }
    attributes.extend(port.map(|port| ("server.port", port.into())));
    attributes.push(("client.address", received.client.text.as_str().to_owned().into()));
    attributes.push(("network.protocol.version", trace.version.into()));
    attributes.push(("weir.request_id", received.id.as_str().to_owned().into()));
    let late = record.failure().filter(|failure| LATE_FAILURES.contains(failure));
    let failed = status >= 500 || (late.is_some() && !record.answer.refused);
    if failed {
        attributes.push(("error.type", error_type(record)));
    }
    if let Some(failure) = record.failure() {
        attributes.push(("weir.failure", failure.into()));
    }
    // A client may invent methods, but not names of spans.
    let shown = if original.is_some() { "HTTP" } else { method };
    let name = if routed { format!("{shown} {}", route.name).into() } else { shown.into() };
    Span {
        id: trace.span,
        parent: trace.parent.map(|parent| parent.span),
        parent_is_remote: trace.parent.is_some() && !trace.is_part,
        name,
        kind: if trace.is_part { Kind::Internal } else { Kind::Server },
        start: received.started,
        end,
        attributes,
        failed,
    }
}

/// What its policy and the limits decided, with the wait in a leaky bucket.
fn of_decision(
    record: &Record<'_>,
    decided: &Decided,
    trace: &TraceContext,
    (start, end): (Instant, Instant),
) -> Span {
    let mut attributes: Attributes = Vec::new();
    if let Some(verdict) = decided.verdict {
        attributes.push(("weir.decision", verdict.label().into()));
    }
    if let Some(policy) = record.routed.handle.policy_name() {
        attributes.push(("weir.policy", policy.to_owned().into()));
    }
    if let Some((limits, outcome)) = decided.limits() {
        let refusing: SmallVec<[&str; 2]> =
            outcome.violated(limits).map(|(limit, _)| limit.name.as_str()).collect();
        if let Some((limit, _)) = outcome.violated(limits).next() {
            attributes.push(("weir.limit", limit.name.clone().into()));
            attributes.push(("weir.algorithm", limit.algorithm.name().to_owned().into()));
        }
        if let Some(key) = decided.refused_keys.first() {
            attributes.push(("weir.key_digest", KeyDigest::to_string(key).into()));
        }
        if refusing.len() > 1 {
            let all = refusing.iter().map(|name| (*name).to_owned()).collect();
            attributes.push(("weir.refused_by", Value::Texts(all)));
        }
    }
    let delayed = decided.delayed();
    if delayed > Duration::ZERO {
        let ms = i64::try_from(delayed.as_millis()).unwrap_or(i64::MAX);
        attributes.push(("weir.delayed_ms", Value::Number(ms)));
    }
    if let Some(failure) = decided.store_failure {
        attributes.push(("weir.store_failure", failure.into()));
    }
    if let Some(degraded) = decided.degraded {
        attributes.push(("weir.degraded", degraded.into()));
    }
    Span {
        id: SpanId::random(),
        parent: Some(trace.span),
        parent_is_remote: false,
        name: "decide".into(),
        kind: Kind::Internal,
        start,
        end,
        attributes,
        failed: decided.store_failure.is_some(),
    }
}

/// The span from handing the request to the upstream to the head of its reply, if it was sent.
fn of_sending(record: &Record<'_>, trace: &TraceContext, end: Instant) -> Option<Span> {
    let reached = record.sent?.reached.as_ref()?;
    let start = reached.began?;
    let mut attributes: Attributes = Vec::new();
    attributes.push(("http.request.method", known_method(&record.received.method).0.into()));
    match &reached.address {
        Some(HostAddress::Ip(address)) => {
            attributes.push(("server.address", address.ip().to_string().into()));
            attributes.push(("server.port", address.port().into()));
        }
        Some(HostAddress::Unix(path)) => {
            attributes.push(("server.address", path.display().to_string().into()));
        }
        None => {}
    }
    let answer = record.answer;
    let answered = !answer.refused && answer.status != 0;
    if answered {
        attributes.push(("http.response.status_code", answer.status.into()));
    }
    let failed = !answered || answer.status >= 400;
    if failed {
        attributes.push(("error.type", error_type(record)));
    }
    Some(Span {
        id: trace.sending,
        parent: Some(trace.span),
        parent_is_remote: false,
        name: "upstream".into(),
        kind: Kind::Client,
        start,
        end: reached.took.map_or(end, |took| start + took),
        attributes,
        failed,
    })
}

/// What failed, or the status if nothing else is known.
fn error_type(record: &Record<'_>) -> Value {
    let status =
        || StatusCode::from_u16(record.answer.status).unwrap_or_default().as_str().to_owned();
    record.failure().map_or_else(|| status().into(), Value::from)
}

/// A method as attributes and names of spans show it, and the client's own word for one that is not
/// known.
fn known_method(method: &Method) -> (&'static str, Option<&str>) {
    const KNOWN: [&str; 9] =
        ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
    let written = method.as_str();
    match KNOWN.into_iter().find(|known| *known == written) {
        Some(known) => (known, None),
        None => ("_OTHER", Some(text::cut_method(written))),
    }
}

fn host_and_port(authority: &str) -> (&str, Option<u16>) {
    let split = authority.rsplit_once(':').filter(|(_, port)| !port.contains(']'));
    let (host, port) = match split {
        Some((host, port)) => (host, port.parse().ok()),
        None => (authority, None),
    };
    (host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host), port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports_are_told_apart() {
        for (authority, host, port) in [
            ("api.example", "api.example", None),
            ("api.example:8080", "api.example", Some(8_080)),
            ("[::1]:81", "::1", Some(81)),
            ("[2001:db8::1]", "2001:db8::1", None),
            ("api.example:x", "api.example", None),
            ("", "", None),
        ] {
            assert_eq!(host_and_port(authority), (host, port), "{authority}");
        }
    }

    #[test]
    fn a_method_that_a_client_invents_names_no_span() {
        assert_eq!(known_method(&Method::PATCH), ("PATCH", None));
        let invented = Method::from_bytes(b"FROB").unwrap();
        assert_eq!(known_method(&invented), ("_OTHER", Some("FROB")));
    }
}
