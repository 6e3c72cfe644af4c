//! Replies: Weir's own, and what it adds to every one. Knows no route and no upstream.

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode};

use super::id::REQUEST_ID;
use super::visit::Visit;
use super::{fields, forward};
use crate::wire::{Body, Response};

static DEGRADED: HeaderName = HeaderName::from_static("weir-degraded");

/// A whole reply. To a HEAD it says its length and has no body.
pub(super) fn whole(method: &Method, status: StatusCode, mut headers: HeaderMap, body: impl Into<Bytes>) -> Response {
    let body = body.into();
    // Neither has a length (RFC 9110, 8.6).
    if status != StatusCode::NO_CONTENT && status != StatusCode::NOT_MODIFIED {
        headers.insert(CONTENT_LENGTH, fields::number(body.len() as u64));
    }
    let mut reply = Response::new(if *method == Method::HEAD { Body::empty() } else { Body::full(body) });
    *reply.status_mut() = status;
    *reply.headers_mut() = headers;
    reply
}

/// What every reply gets: its request's id, what is left of the limits, what the policy wants said, and whether a rule was set aside.
pub(super) fn dress(headers: &mut HeaderMap, visit: &Visit) {
    headers.reserve(4 + visit.response_fields.len());
    if let Some((limits, outcome)) = visit.limits() {
        fields::add(headers, visit.tail.fields, limits, outcome);
    }
    forward::set(headers, &visit.response_fields);
    if let Some(what) = visit.degraded {
        headers.insert(&DEGRADED, HeaderValue::from_static(what));
    }
    headers.insert(&REQUEST_ID, visit.id.clone());
}
