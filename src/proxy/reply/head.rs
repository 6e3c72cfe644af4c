//! Weir's own replies, and the fields that it adds to every reply.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;

use super::answer::ReplyTo;
use super::fields;
use crate::proxy::decide::admit::DerivedValues;
use crate::proxy::decide::policy_fields;
use crate::proxy::snapshot::DirectResponse;
use crate::wire::{Body, Fields, Known, Response};

/// A complete reply. A reply to HEAD has the length but no body.
pub(in crate::proxy) fn complete(
    is_head: bool,
    status: StatusCode,
    mut fields: Fields,
    body: impl Into<Bytes>,
) -> Response {
    let body = body.into();
    // These have no `Content-Length` (RFC 9110, 8.6).
    if status != StatusCode::NO_CONTENT && status != StatusCode::NOT_MODIFIED {
        fields::set_number(&mut fields, Known::ContentLength, body.len() as u64);
    }
    let body = if is_head { Body::empty() } else { Body::full(body) };
    Response { fields, ..Response::new(status, body) }
}

/// Adds the fields of every reply: the request id, the limits, the policy's fields, and whether a
/// check was skipped.
pub(in crate::proxy) fn add_fields(fields: &mut Fields, to: ReplyTo<'_>) {
    if let Some(decided) = to.decided {
        if let (Some((limits, outcome)), Some(decision)) = (decided.limits(), &decided.decision) {
            let style = to.routed.handle.fields;
            // Only worth keeping with a remembered decision, which the policy holds too.
            if fields::is_draft(style) && Arc::strong_count(decision) > 1 {
                DerivedValues::with(decision, |derived| {
                    let value = derived.policy_value(|| fields::policy_value(limits));
                    fields::add(fields, style, limits, outcome, Some(value))
                });
            } else {
                fields::add(fields, style, limits, outcome, None);
            }
        }
        policy_fields::set(fields, &decided.response_fields, false);
        if let Some(what) = decided.degraded {
            fields.set(Known::WeirDegraded, what);
        }
    }
    fields.set(Known::RequestId, to.received.id.as_bytes());
}

/// The route's own reply.
pub(in crate::proxy) fn redirect(status: StatusCode, location: &str, to: ReplyTo<'_>) -> Response {
    let mut fields = Fields::new();
    fields.set("location", location);
    to.routed.allow_origin(&mut fields);
    complete(to.received.is_head, status, fields, Bytes::new())
}

/// Tells the proxy that has asked that its request may pass.
pub(in crate::proxy) fn admit(to: ReplyTo<'_>) -> Response {
    complete(to.received.is_head, StatusCode::OK, Fields::new(), Bytes::new())
}

/// The route's own response.
pub(in crate::proxy) fn respond(own: &DirectResponse, to: ReplyTo<'_>) -> Response {
    let mut fields = own.fields.clone();
    to.routed.allow_origin(&mut fields);
    complete(to.received.is_head, own.status, fields, own.body.clone())
}
