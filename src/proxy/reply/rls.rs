//! The answer to a call of Envoy's rate limit service: a code for each descriptor, and what the
//! caller's own client is told; as a message of gRPC, or as JSON. Knows no policy.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde_json::{Map, Value, json};
use smallvec::SmallVec;

use super::answer::ReplyTo;
use super::decision::{Told, rank, told};
use super::{api, grpc, metadata};
use crate::plan::{Limit, PlanOutcome};
use crate::proxy::decide::content::whole;
use crate::proxy::decide::descriptors::Share;
use crate::proxy::decide::policy_fields::PolicyFields;
use crate::proxy::receive::call::Call;
use crate::proxy::receive::call::messages::{
    Code, CurrentLimit, DescriptorStatus, Duration, HeaderValue, HealthCheckResponse,
    RateLimitResponse, Unit,
};
use crate::proxy::receive::call::rls::framed;
use crate::proxy::receive::call::structure::structure;
use crate::proxy::receive::text::latin1;
use crate::proxy::refusal::Refusal;
use crate::wire::{Fields, Known, Response};

/// The answer to a call that was decided.
pub(in crate::proxy) struct Answer {
    response: RateLimitResponse,
    /// The response's dynamic metadata.
    metadata: Option<Map<String, Value>>,
}

/// The answer to a call that was decided; `None` if it could not be read.
pub(in crate::proxy) fn answer(
    call: Option<&Call>,
    shares: &[Share],
    to: ReplyTo<'_>,
    decided: Result<&PolicyFields, &Refusal>,
) -> Answer {
    let limits = to.decided.and_then(|decided| decided.limits());
    let Told { fields, body, .. } = told(to, decided.err());
    let code = if decided.is_ok() { Code::Ok } else { Code::OverLimit };
    let upstream = decided.map(|fields| fields.as_slice()).unwrap_or_default();
    let statuses: Vec<_> = shares.iter().map(|share| status(share, limits)).collect();
    let metadata = call.and_then(|call| metadata::of(call, shares, &statuses));
    let response = RateLimitResponse {
        overall_code: code.into(),
        statuses,
        response_headers_to_add: fields.iter().map(|(name, value)| header(name, value)).collect(),
        request_headers_to_add: upstream
            .iter()
            .map(|(name, value)| header(name.as_str().as_bytes(), value.as_bytes()))
            .collect(),
        raw_body: body,
        dynamic_metadata: None,
    };
    Answer { response, metadata }
}

/// The same as gRPC's answer.
pub(in crate::proxy) fn grpc(Answer { mut response, metadata }: Answer) -> Response {
    response.dynamic_metadata = metadata.map(structure);
    message(framed(&response))
}

/// The same as JSON, in protobuf's form: what has its default is left out, and 64 bits are a text.
/// The status is envoyproxy/ratelimit's: 429 if a limit is exceeded.
pub(in crate::proxy) fn json(Answer { response, metadata }: Answer) -> Response {
    let code = |code| if code == i32::from(Code::OverLimit) { "OVER_LIMIT" } else { "OK" };
    let status = |status: &DescriptorStatus| {
        let mut out = Map::new();
        out.insert("code".to_owned(), code(status.code).into());
        if let Some(limit) = &status.current_limit {
            let mut own = Map::new();
            if !limit.name.is_empty() {
                own.insert("name".to_owned(), limit.name.as_str().into());
            }
            if limit.requests_per_unit > 0 {
                own.insert("requestsPerUnit".to_owned(), limit.requests_per_unit.into());
            }
            if limit.unit() != Unit::Unknown {
                own.insert("unit".to_owned(), limit.unit().name().into());
            }
            out.insert("currentLimit".to_owned(), own.into());
        }
        if status.limit_remaining > 0 {
            out.insert("limitRemaining".to_owned(), status.limit_remaining.into());
        }
        if let Some(wait) = &status.duration_until_reset {
            out.insert("durationUntilReset".to_owned(), format!("{}s", wait.seconds).into());
        }
        Value::from(out)
    };
    let fields = |fields: &[HeaderValue]| -> Value {
        let field = |field: &HeaderValue| json!({ "key": field.key, "value": field.value });
        fields.iter().map(field).collect()
    };
    let mut out = Map::new();
    out.insert("overallCode".to_owned(), code(response.overall_code).into());
    out.insert("statuses".to_owned(), response.statuses.iter().map(status).collect());
    for (name, all) in [
        ("responseHeadersToAdd", &response.response_headers_to_add),
        ("requestHeadersToAdd", &response.request_headers_to_add),
    ] {
        if !all.is_empty() {
            out.insert(name.to_owned(), fields(all));
        }
    }
    if !response.raw_body.is_empty() {
        let body = BASE64_STANDARD.encode(&response.raw_body);
        out.insert("rawBody".to_owned(), body.into());
    }
    if let Some(metadata) = metadata {
        out.insert("dynamicMetadata".to_owned(), metadata.into());
    }
    let mut reply = api::response(Value::from(out).to_string());
    if response.overall_code == i32::from(Code::OverLimit) {
        reply.status = StatusCode::TOO_MANY_REQUESTS;
    }
    reply
}

/// The answer to a call of gRPC's health service: it serves, or does not any more.
pub(in crate::proxy) fn health(is_serving: bool) -> Response {
    message(framed(&HealthCheckResponse { status: if is_serving { 1 } else { 2 } }))
}

/// A whole answer of gRPC.
pub(super) fn message(framed: Bytes) -> Response {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
    let mut fields = Fields::new();
    fields.set(Known::ContentType, grpc::CONTENT_TYPE);
    Response { fields, ..Response::new(StatusCode::OK, whole(framed, Some(trailers))) }
}

fn header(name: &[u8], value: &[u8]) -> HeaderValue {
    HeaderValue { key: latin1(name).into_owned(), value: latin1(value).into_owned() }
}

/// What the caller is told of a descriptor: of its limits, the tightest.
fn status(share: &Share, asked: Option<(&[Limit], &PlanOutcome)>) -> DescriptorStatus {
    let nothing = DescriptorStatus {
        code: if share.is_over { Code::OverLimit } else { Code::Ok }.into(),
        current_limit: None,
        limit_remaining: 0,
        duration_until_reset: None,
    };
    let in_plan = asked.into_iter().flat_map(|(limits, outcome)| {
        let each = share.limits.iter();
        each.filter_map(|index| Some((limits.get(*index)?, outcome.limits.get(*index)?)))
    });
    let own = in_plan.chain(share.left_out.iter().map(|(limit, outcome)| (limit, outcome)));
    let own = own.filter(|(limit, outcome)| limit.is_enforced() && outcome.unmeasured.is_none());
    let own: SmallVec<[_; 2]> = own.collect();
    let is_over = share.is_over || own.iter().any(|(_, outcome)| !outcome.fits);
    let code = if is_over { Code::OverLimit } else { Code::Ok }.into();
    let shown = own.into_iter().filter(|(limit, _)| limit.is_shown());
    let Some((limit, tightest)) = shown.min_by_key(|(_, outcome)| rank(outcome)) else {
        return DescriptorStatus { code, ..nothing };
    };
    let wait_us = match tightest.retry_after_us {
        Some(us) if !tightest.fits => us,
        _ => tightest.reset_us,
    };
    DescriptorStatus {
        code,
        current_limit: limit.algorithm.policy().map(|(quota, window_s)| CurrentLimit {
            requests_per_unit: clamped(quota),
            unit: unit(window_s).into(),
            name: limit.name.clone(),
        }),
        limit_remaining: clamped(tightest.remaining),
        // Envoy cuts a fraction off, and clients would come too early.
        duration_until_reset: Some(Duration {
            seconds: i64::try_from(wait_us.div_ceil(1_000_000)).unwrap_or(i64::MAX),
        }),
    }
}

fn clamped(units: u64) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}

/// The unit with this length. Other windows have no name.
fn unit(window_s: Option<u64>) -> Unit {
    match window_s {
        Some(1) => Unit::Second,
        Some(60) => Unit::Minute,
        Some(3_600) => Unit::Hour,
        Some(86_400) => Unit::Day,
        Some(604_800) => Unit::Week,
        Some(2_592_000) => Unit::Month,
        Some(31_536_000) => Unit::Year,
        _ => Unit::Unknown,
    }
}
