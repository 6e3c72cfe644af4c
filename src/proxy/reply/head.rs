//! Weir's own replies, and the fields that it adds to every reply. Knows no route and no upstream.

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, StatusCode};

use super::fields;
use crate::proxy::context::RequestContext;
use crate::proxy::decide::admit::DerivedValues;
use crate::proxy::forward;
use crate::proxy::forward::extras::ReplyExtras;
use crate::proxy::receive::hop;
use crate::wire::{Body, Fields, InterimFilter, Known, KnownSet, Response};

/// A complete reply. A reply to HEAD has the length but no body.
pub(in crate::proxy) fn complete(
    method: &Method,
    status: StatusCode,
    mut fields: Fields,
    body: impl Into<Bytes>,
) -> Response {
    let body = body.into();
    // These have no `Content-Length` (RFC 9110, 8.6).
    if status != StatusCode::NO_CONTENT && status != StatusCode::NOT_MODIFIED {
        fields::set_number(&mut fields, Known::ContentLength, body.len() as u64);
    }
    let body = if *method == Method::HEAD { Body::empty() } else { Body::full(body) };
    Response { fields, ..Response::new(status, body) }
}

/// What is done with an upstream's interim replies (103): what is done with its replies, as far as
/// it can be done before they come. `X-Request-Id` comes with the reply, and is Weir's.
#[derive(Debug)]
pub(in crate::proxy) struct Interim {
    extras: Option<Arc<ReplyExtras>>,
}

impl Interim {
    /// The filter of a route with these changes to its replies.
    pub(in crate::proxy) fn new(extras: Option<Arc<ReplyExtras>>) -> Self {
        Self { extras }
    }
}

impl InterimFilter for Interim {
    fn filter(&self, fields: &mut Fields) {
        const OF_REPLIES: KnownSet =
            KnownSet::of(&[Known::RequestId, Known::ContentLength, Known::Trailer]);
        hop::strip(fields);
        fields.remove_all(OF_REPLIES);
        if let Some(extras) = &self.extras {
            extras.apply_rules(fields);
        }
    }
}

/// Adds the fields of every reply: the request id, the limits, the policy's fields, and whether a
/// check was skipped.
pub(in crate::proxy) fn add_fields(fields: &mut Fields, context: &RequestContext) {
    if let (Some((limits, outcome)), Some(decision)) = (context.limits(), &context.decision) {
        let style = context.route.fields;
        // Only worth keeping with a remembered decision, which the policy holds too.
        if fields::is_draft(style) && Arc::strong_count(decision) > 1 {
            DerivedValues::with(decision, |derived| {
                fields::add(fields, style, limits, outcome, derived.policy_value(limits))
            });
        } else {
            fields::add(fields, style, limits, outcome, None);
        }
    }
    forward::set(fields, &context.response_fields, false);
    if let Some(what) = context.degraded {
        fields.set(Known::WeirDegraded, what);
    }
    fields.set(Known::RequestId, context.id.as_bytes());
}
