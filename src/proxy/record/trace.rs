//! The trace of a request: what is kept of it until its end, and the spans that are made of it
//! then, named after the semantic conventions of OpenTelemetry. Knows nothing of how they are
//! exported.
//!
//! Queries and header fields are left out, as in the access log.

use std::time::{Duration, Instant};

use http::{Method, StatusCode, Version};
use smallvec::SmallVec;

use super::access;
use super::kept::KeptHead;
use crate::limit::KeyDigest;
use crate::otlp::{Kind, Sampling, Span, SpanId, Trace, TraceId, TraceParent, Value};
use crate::proxy::context::RequestContext;
use crate::telemetry::Label as _;
use crate::wire::{Fields, Known, Request};

/// Bytes of a host with its port that are kept, at most.
const AUTHORITY_BYTES_MAX: usize = 264;
/// Attributes of the span of a request, about.
const ATTRIBUTES: usize = 14;
/// Failures of requests whose status had been sent before.
const LATE_FAILURES: [&str; 2] = ["reply-cut", "request-timeout"];

/// What is kept of a traced request.
#[derive(Debug)]
pub(in crate::proxy) struct TraceState {
    id: TraceId,
    /// The client's span, if it has named one.
    parent: Option<TraceParent>,
    /// The span of the request.
    span: SpanId,
    /// The span of its sending.
    sending: SpanId,
    /// The host that the client named, perhaps with a port.
    authority: String,
    /// The version of HTTP.
    version: &'static str,
    /// When its route was found: the start of the span `decide`.
    pub(in crate::proxy) deciding: Option<Instant>,
}

type Attributes = Vec<(&'static str, Value)>;

/// Decides whether the request is traced. A client can't have its requests traced: only what a
/// trusted proxy has decided is followed.
pub(in crate::proxy) fn begin(context: &mut RequestContext, sampling: Sampling, request: &Request) {
    let told = context.client.trusted && request.fields.has(Known::TraceParent);
    if told || sampling.hits() {
        begin_cold(context, told.then_some(sampling), request);
    }
}

/// The part of [`begin`] for requests that may be traced. `sampling` is `None` if it has already
/// decided for the request.
#[cold]
fn begin_cold(context: &mut RequestContext, sampling: Option<Sampling>, request: &Request) {
    let parent = parent(&request.fields);
    // One that is not valid says nothing.
    let hits = || sampling.is_none_or(Sampling::hits);
    let told = parent.filter(|_| sampling.is_some());
    if !told.map_or_else(hits, |parent| parent.sampled) {
        return;
    }
    let authority = match request.authority() {
        Some(authority) => authority.as_bytes(),
        None => request.fields.get(Known::Host).unwrap_or_default(),
    };
    let plain =
        authority.len() <= AUTHORITY_BYTES_MAX && authority.iter().all(u8::is_ascii_graphic);
    context.kept.get_or_insert_with(KeptHead::without_head);
    context.trace = Some(Box::new(TraceState {
        id: parent.map_or_else(TraceId::random, |parent| parent.trace),
        parent,
        span: SpanId::random(),
        sending: SpanId::random(),
        authority: String::from_utf8_lossy(if plain { authority } else { b"" }).into_owned(),
        version: match request.version {
            Version::HTTP_10 => "1.0",
            Version::HTTP_11 => "1.1",
            _ => "2",
        },
        deciding: None,
    }));
}

/// The client's span. Several fields are as good as none.
fn parent(fields: &Fields) -> Option<TraceParent> {
    let mut values = fields.get_all(Known::TraceParent);
    let only = values.next().filter(|_| values.next().is_none())?;
    TraceParent::read(only)
}

impl TraceState {
    /// The trace.
    pub(in crate::proxy) fn id(&self) -> TraceId {
        self.id
    }

    /// Tells the upstream of the trace. A `tracestate` is passed on as it came, if it belongs to
    /// this trace.
    pub(in crate::proxy) fn pass_on(&self, fields: &mut Fields) {
        let parent = TraceParent { trace: self.id, span: self.sending, sampled: true };
        fields.set(Known::TraceParent, parent.text().as_bytes());
        if self.parent.is_none() {
            fields.remove("tracestate");
        }
    }
}

/// Hands over the spans of a request that has ended.
pub(in crate::proxy) fn finish(context: &mut RequestContext, took: Duration) {
    if let Some(state) = context.trace.take() {
        let trace = spans(context, &state, context.started + took);
        context.route.tracer.push(trace);
    }
}

#[cold]
fn spans(context: &RequestContext, state: &TraceState, end: Instant) -> Trace {
    let mut spans = SmallVec::new();
    spans.push(of_request(context, state, end));
    let times = state.deciding.zip(context.decided_at);
    spans.extend(times.map(|(start, end)| of_decision(context, state, start, end)));
    spans.extend(of_sending(context, state, end));
    Trace { id: state.id, spans }
}

fn of_request(context: &RequestContext, state: &TraceState, end: Instant) -> Span {
    let (method, original) = known_method(&context.method);
    let route = &context.route;
    let routed = !route.path.is_empty();
    let mut attributes: Attributes = Vec::with_capacity(ATTRIBUTES);
    attributes.push(("http.request.method", method.into()));
    if let Some(original) = original {
        attributes.push(("http.request.method_original", original.to_owned().into()));
    }
    attributes.push(("url.scheme", context.client.scheme().into()));
    attributes.push(("url.path", String::from_utf8_lossy(&context.path).into_owned().into()));
    if context.status != 0 {
        attributes.push(("http.response.status_code", context.status.into()));
    }
    if routed {
        attributes.push(("http.route", route.path.clone().into()));
        attributes.push(("weir.route", route.name.clone().into()));
    }
    let (host, port) = host_and_port(&state.authority);
    if !host.is_empty() {
        attributes.push(("server.address", host.to_owned().into()));
    }
    attributes.extend(port.map(|port| ("server.port", port.into())));
    attributes.push(("client.address", context.client.text.as_str().to_owned().into()));
    attributes.push(("network.protocol.version", state.version.into()));
    attributes.push(("weir.request_id", context.id.as_str().to_owned().into()));
    let late = context.failure.filter(|failure| LATE_FAILURES.contains(failure));
    let failed = context.status >= 500 || late.is_some();
    if failed {
        attributes.push(("error.type", error_type(context)));
    }
    if let Some(failure) = context.failure {
        attributes.push(("weir.failure", failure.into()));
    }
    // A client may invent methods, but not names of spans.
    let shown = if original.is_some() { "HTTP" } else { method };
    let name = if routed { format!("{shown} {}", route.name).into() } else { shown.into() };
    Span {
        id: state.span,
        parent: state.parent.map(|parent| parent.span),
        parent_is_remote: state.parent.is_some(),
        name,
        kind: Kind::Server,
        start: context.started,
        end,
        attributes,
        failed,
    }
}

/// What its policy and the limits decided, with the wait in a leaky bucket.
fn of_decision(context: &RequestContext, state: &TraceState, start: Instant, end: Instant) -> Span {
    let mut attributes: Attributes = Vec::new();
    if let Some(verdict) = context.verdict {
        attributes.push(("weir.decision", verdict.label().into()));
    }
    if let Some(policy) = context.route.policy_name() {
        attributes.push(("weir.policy", policy.to_owned().into()));
    }
    if let Some((limits, outcome)) = context.limits() {
        let refusing: SmallVec<[&str; 2]> =
            outcome.violated(limits).map(|(limit, _)| limit.name.as_str()).collect();
        if let Some((limit, _)) = outcome.violated(limits).next() {
            attributes.push(("weir.limit", limit.name.clone().into()));
            attributes.push(("weir.algorithm", limit.algorithm.name().to_owned().into()));
        }
        if let Some(key) = context.refused_keys.first() {
            attributes.push(("weir.key_digest", KeyDigest::to_string(key).into()));
        }
        if refusing.len() > 1 {
            let all = refusing.iter().map(|name| (*name).to_owned()).collect();
            attributes.push(("weir.refused_by", Value::Texts(all)));
        }
    }
    let delayed = context.delayed();
    if delayed > Duration::ZERO {
        let ms = i64::try_from(delayed.as_millis()).unwrap_or(i64::MAX);
        attributes.push(("weir.delayed_ms", Value::Number(ms)));
    }
    if let Some(failure) = context.store_failure {
        attributes.push(("weir.store_failure", failure.into()));
    }
    if let Some(degraded) = context.degraded {
        attributes.push(("weir.degraded", degraded.into()));
    }
    Span {
        id: SpanId::random(),
        parent: Some(state.span),
        parent_is_remote: false,
        name: "decide".into(),
        kind: Kind::Internal,
        start,
        end,
        attributes,
        failed: context.store_failure.is_some(),
    }
}

/// The span from handing the request to the upstream to the head of its reply, if it was sent.
fn of_sending(context: &RequestContext, state: &TraceState, end: Instant) -> Option<Span> {
    let reached = context.kept.as_deref()?.reached;
    let start = reached.began?;
    let mut attributes: Attributes = Vec::new();
    attributes.push(("http.request.method", known_method(&context.method).0.into()));
    if let Some(address) = reached.address {
        attributes.push(("server.address", address.ip().to_string().into()));
        attributes.push(("server.port", address.port().into()));
    }
    let answered = !context.refused && context.status != 0;
    if answered {
        attributes.push(("http.response.status_code", context.status.into()));
    }
    let failed = !answered || context.status >= 400;
    if failed {
        attributes.push(("error.type", error_type(context)));
    }
    Some(Span {
        id: state.sending,
        parent: Some(state.span),
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
fn error_type(context: &RequestContext) -> Value {
    let status = || StatusCode::from_u16(context.status).unwrap_or_default().as_str().to_owned();
    context.failure.map_or_else(|| status().into(), Value::from)
}

/// A method as attributes and names of spans show it, and the client's own word for one that is not
/// known.
fn known_method(method: &Method) -> (&'static str, Option<&str>) {
    const KNOWN: [&str; 9] =
        ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
    let written = method.as_str();
    match KNOWN.into_iter().find(|known| *known == written) {
        Some(known) => (known, None),
        None => ("_OTHER", Some(access::cut_method(written))),
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
