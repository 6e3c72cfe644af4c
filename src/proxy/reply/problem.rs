//! The response to a request that is refused: a short problem document (RFC 9457), the operator's
//! own page, or gRPC's trailers.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use http::StatusCode;

use super::answer::{ReplyTo, client_gone};
use super::grpc::{self, Pushback};
use super::head::complete;
use super::page::{self, RefusalDetails};
use super::{fields, json};
use crate::plan::{Algorithm, Limit, LimitOutcome, PlanOutcome};
use crate::policy::{Denial, RefusalReply};
use crate::proxy::decide::{Decided, policy_fields};
use crate::proxy::refusal::{CallError, Refusal};
use crate::proxy::settings::FieldStyle;
use crate::wire::{Fields, Known, Response};

/// The draft's problem type for a used-up quota.
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
/// The draft's problem type for a server that can take less than usual.
const REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
/// When a client may try again whose request found no place, or could not be counted, in seconds.
/// Chosen at random, so that not all come back at the same moment.
const SHED_RETRY_AFTER_S: RangeInclusive<u64> = 1..=4;
/// The type of a problem that its status describes (RFC 9457, 4.2.1).
const ABOUT_BLANK: &str = "about:blank";

/// The message to a client that has as much in flight as it may.
const IN_FLIGHT: &str = "Too many requests are in flight.";
/// The message to a client whose allowance is not used up, but in use.
const HELD: &str = "The allowance is reserved by requests in flight.";

/// More of why limits refused than that an allowance is used up, if there is more to say. Numbers
/// only where the response's fields have them as well.
fn refused_by(
    (limits, outcome): (&[Limit], &PlanOutcome),
    shows_numbers: bool,
) -> Option<Cow<'static, str>> {
    let mut violated = outcome.violated(limits);
    let (first, &LimitOutcome { remaining, held, unmeasured, .. }) = violated.next()?;
    let is_in_flight = matches!(first.algorithm, Algorithm::Concurrency(_));
    // It is used up, which most refusals are: there is nothing more to say.
    if remaining == 0 && held == 0 && !is_in_flight {
        return None;
    }
    if outcome.is_held(limits) {
        return Some(HELD.into());
    }
    let takes_more = shows_numbers && remaining > 0 && first.cost > remaining;
    if !(is_in_flight || takes_more) || unmeasured.is_some() || violated.next().is_some() {
        return None;
    }
    if !first.is_shown() || first.algorithm.refuses_all() {
        return None;
    }
    if is_in_flight {
        return Some(IN_FLIGHT.into());
    }
    let cost = first.cost;
    Some(format!("The request takes {cost} of the allowance, of which {remaining} is left.").into())
}

impl Refusal {
    /// The status and the text for the client.
    fn status_and_detail(&self) -> (StatusCode, Cow<'static, str>) {
        let limit =
            |what: &str, bytes: u64| format!("The {what} is larger than {bytes} bytes.").into();
        match self {
            Self::BadRequest(wrong) => (StatusCode::BAD_REQUEST, sentence(wrong.found).into()),
            Self::Call(error) => call_status(error),
            Self::Unreadable(status, _) => (*status, unreadable(*status).into()),
            Self::NotImplemented(why) => (StatusCode::NOT_IMPLEMENTED, sentence(why).into()),
            Self::ServerOptions => (StatusCode::NO_CONTENT, "".into()),
            Self::Challenge(_) => (StatusCode::OK, "".into()),
            Self::ToHttps(_) => (StatusCode::PERMANENT_REDIRECT, "".into()),
            Self::NotFound => (StatusCode::NOT_FOUND, "Nothing is served here.".into()),
            Self::MethodNotAllowed(_) => {
                (StatusCode::METHOD_NOT_ALLOWED, "This method is not allowed here.".into())
            }
            Self::BodyTooSlow => {
                (StatusCode::REQUEST_TIMEOUT, "The request's body came too slowly.".into())
            }
            Self::BodyTooLarge { limit_bytes } => {
                (StatusCode::PAYLOAD_TOO_LARGE, limit("request's body", *limit_bytes))
            }
            Self::UriTooLong { limit_bytes } => {
                (StatusCode::URI_TOO_LONG, limit("request's target", *limit_bytes as u64))
            }
            Self::TooMany => {
                (StatusCode::TOO_MANY_REQUESTS, "The allowance is used up for now.".into())
            }
            Self::Denied => (StatusCode::FORBIDDEN, "".into()),
            Self::StoreUnavailable => (
                StatusCode::SERVICE_UNAVAILABLE,
                "Allowances can't be counted at the moment.".into(),
            ),
            Self::PolicyFailed => {
                (StatusCode::SERVICE_UNAVAILABLE, "The request could not be decided.".into())
            }
            Self::PolicyOverloaded => {
                (StatusCode::SERVICE_UNAVAILABLE, "Too many requests are being decided.".into())
            }
            Self::UpstreamFailed => (
                StatusCode::BAD_GATEWAY,
                "The upstream can't be reached, or its answer can't be read.".into(),
            ),
            Self::UpstreamOverloaded => {
                (StatusCode::SERVICE_UNAVAILABLE, "The upstream is overloaded.".into())
            }
            Self::Shed => (
                StatusCode::SERVICE_UNAVAILABLE,
                "The upstream has more requests than it can take.".into(),
            ),
            Self::Overloaded => (
                StatusCode::SERVICE_UNAVAILABLE,
                "There are more requests than can be taken at the moment.".into(),
            ),
            Self::ClientOverShare => (
                StatusCode::SERVICE_UNAVAILABLE,
                "This client has too many requests in flight.".into(),
            ),
            Self::OutOfDescriptors => {
                (StatusCode::SERVICE_UNAVAILABLE, "Too many connections are open already.".into())
            }
            Self::TooMuchBuffered => (
                StatusCode::SERVICE_UNAVAILABLE,
                "Too many bytes are waiting to be read at the moment.".into(),
            ),
            Self::Maintenance => {
                (StatusCode::SERVICE_UNAVAILABLE, "This is being worked on.".into())
            }
            Self::UpstreamTooSlow => {
                (StatusCode::GATEWAY_TIMEOUT, "The upstream took too long.".into())
            }
            Self::ClientGone => (client_gone(), "The request's body ended early.".into()),
        }
    }

    /// The status that a client gets.
    pub(in crate::proxy) fn status(&self, to: ReplyTo<'_>) -> StatusCode {
        let of_policy = match self {
            Self::Denied => to.decided.and_then(Decided::denial).map(|denial| denial.status),
            Self::TooMany => to.decided.and_then(Decided::refusal_reply).and_then(|own| own.status),
            _ => None,
        };
        let of_policy = of_policy.and_then(|status| StatusCode::from_u16(status).ok());
        of_policy.unwrap_or_else(|| self.status_and_detail().0)
    }

    /// The response and its status, with what is known of limits and the policy's fields. A gRPC
    /// client gets the status in another way.
    pub(in crate::proxy) fn response(&self, to: ReplyTo<'_>) -> (StatusCode, Response) {
        let (mut status, mut detail) = self.status_and_detail();
        let mut fields = Fields::new();
        let route = &to.routed.handle;
        // A refusal's own fields take precedence over a route's.
        if let Some(extras) = &route.extras {
            extras.apply(&mut fields);
            to.routed.allow_origin(&mut fields);
        }
        let limits = to.decided.and_then(Decided::limits);
        let denial = to.decided.and_then(Decided::denial);
        let mut retry_after_s = None;
        match self {
            Self::ServerOptions => {
                let is_head = to.received.is_head;
                return (status, complete(is_head, status, fields, Vec::new()));
            }
            Self::Challenge(answer) => {
                fields.set(Known::ContentType, "application/octet-stream");
                return (status, complete(to.received.is_head, status, fields, answer.clone()));
            }
            Self::ToHttps(url) => {
                fields.set("location", url);
                let is_head = to.received.is_head;
                return (status, complete(is_head, status, fields, Vec::new()));
            }
            Self::MethodNotAllowed(methods) => fields.set(Known::Allow, methods),
            Self::Call(CallError::UnknownCaller) => fields.set("www-authenticate", "Bearer"),
            Self::TooMany => {
                if let Some((limits, outcome)) = limits {
                    retry_after_s = fields::retry_after_s(limits, outcome);
                    let shows_numbers = route.fields != FieldStyle::Off;
                    if let Some(more) = refused_by((limits, outcome), shows_numbers) {
                        detail = more;
                    }
                }
            }
            _ if self.is_passing() => retry_after_s = Some(fastrand::u64(SHED_RETRY_AFTER_S)),
            Self::Denied => {
                if let Some(denial) = denial {
                    status = denied(denial, &mut fields).unwrap_or(status);
                    detail = denial.reason.clone().into();
                    retry_after_s = denial.retry_after_ms.map(|ms| ms.div_ceil(1_000).max(1));
                }
            }
            _ => {}
        }
        if let Some(seconds) = retry_after_s {
            fields::set_number(&mut fields, Known::RetryAfter, seconds);
        }
        fields.set(Known::CacheControl, "no-store");
        if to.received.grpc {
            return (status, grpc::trailers_only(status, &detail, self.pushback(to), fields));
        }
        let page = route.extras.as_ref().and_then(|extras| extras.page(status));
        let own =
            denial.filter(|_| matches!(self, Self::Denied)).and_then(|denial| denial.body.as_ref());
        let reply =
            to.decided.and_then(Decided::refusal_reply).filter(|_| matches!(self, Self::TooMany));
        let (content_type, body) = match (page, own, reply) {
            // What the operator wrote goes before what the policy did.
            (Some(page), ..) => {
                let details = (status, &*detail, retry_after_s);
                (page.content_type.as_bytes(), self.filled(to, details, |with| page.fill(with)))
            }
            (None, Some((media_type, text)), _) => {
                (media_type.as_bytes(), text.clone().into_bytes())
            }
            (None, None, Some(reply)) => {
                let own = reply.status.and_then(|status| StatusCode::from_u16(status).ok());
                status = own.unwrap_or(status);
                let RefusalReply { media_type, body, .. } = reply;
                let details = (status, &*detail, retry_after_s);
                let fill = |with: RefusalDetails<'_>| page::fill_text(body, media_type, with);
                (media_type.as_bytes(), self.filled(to, details, fill))
            }
            (None, None, None) => {
                (b"application/problem+json".as_slice(), self.document(to, status, &detail))
            }
        };
        fields.set(Known::ContentType, content_type);
        (status, complete(to.received.is_head, status, fields, body))
    }

    /// The response's body from a text of the operator's or of the policy.
    #[cold]
    fn filled(
        &self,
        to: ReplyTo<'_>,
        (status, detail, retry_after_s): (StatusCode, &str, Option<u64>),
        fill: impl FnOnce(RefusalDetails<'_>) -> Vec<u8>,
    ) -> Vec<u8> {
        let limits = to.decided.and_then(Decided::limits);
        let refused = limits.filter(|_| matches!(self, Self::TooMany));
        let limits: Vec<&str> =
            refused.iter().flat_map(|(limits, outcome)| outcome.refusing_names(limits)).collect();
        fill(RefusalDetails {
            status,
            title: status.canonical_reason().unwrap_or("Refused"),
            detail,
            request_id: to.received.id.as_str(),
            retry_after_s,
            limits: &limits.join(", "),
            route: &to.routed.handle.name,
        })
    }

    /// Whether a little later the request may well be served: Weir or the store is at fault, and
    /// not for good.
    fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::Shed
                | Self::Overloaded
                | Self::StoreUnavailable
                | Self::PolicyOverloaded
                | Self::UpstreamOverloaded
                | Self::OutOfDescriptors
                | Self::TooMuchBuffered
        )
    }

    /// When a gRPC client may try again.
    fn pushback(&self, to: ReplyTo<'_>) -> Pushback {
        match self {
            Self::TooMany => {
                let limits = to.decided.and_then(Decided::limits);
                let us = limits.and_then(|(limits, outcome)| outcome.retry_after_us(limits));
                us.map_or(Pushback::Never, |us| Pushback::After(us.div_ceil(1_000)))
            }
            Self::Denied => to
                .decided
                .and_then(Decided::denial)
                .and_then(|denial| denial.retry_after_ms)
                .map_or(Pushback::Unsaid, Pushback::After),
            _ => Pushback::Unsaid,
        }
    }

    /// The problem document.
    #[allow(
        clippy::ptr_arg,
        reason = "whether the words are our own decides whether they are escaped"
    )]
    fn document(&self, to: ReplyTo<'_>, status: StatusCode, detail: &Cow<'static, str>) -> Vec<u8> {
        let too_many = matches!(self, Self::TooMany);
        let mut out = Vec::with_capacity(256);
        let member = |out: &mut Vec<u8>, name: &[u8], text: &str| {
            out.extend_from_slice(name);
            out.extend_from_slice(text.as_bytes());
        };
        // Text of our own needs no escaping.
        let problem = match self {
            Self::TooMany => QUOTA_EXCEEDED,
            Self::Shed | Self::Overloaded => REDUCED_CAPACITY,
            _ => ABOUT_BLANK,
        };
        member(&mut out, b"{\"type\":\"", problem);
        member(&mut out, b"\",\"title\":\"", status.canonical_reason().unwrap_or("Refused"));
        if !detail.is_empty() {
            out.extend_from_slice(b"\",\"detail\":\"");
            match detail {
                Cow::Borrowed(ours) => out.extend_from_slice(ours.as_bytes()),
                Cow::Owned(theirs) => json::escaped(&mut out, theirs),
            }
        }
        out.extend_from_slice(b"\",\"request_id\":");
        json::string(&mut out, to.received.id.as_str());
        out.extend_from_slice(b",\"status\":");
        json::number(&mut out, u64::from(status.as_u16()));
        if too_many && let Some((limits, outcome)) = to.decided.and_then(Decided::limits) {
            out.extend_from_slice(b",\"violated-policies\":");
            json::strings(&mut out, outcome.refusing_names(limits));
        }
        out.extend_from_slice(b"}\n");
        out
    }
}

/// The status of a call that is not made, and the text for its caller.
fn call_status(error: &CallError) -> (StatusCode, Cow<'static, str>) {
    let status = match error {
        CallError::Malformed(_) => StatusCode::BAD_REQUEST,
        CallError::UnknownCaller => StatusCode::UNAUTHORIZED,
        CallError::OutOfScope(_) => StatusCode::FORBIDDEN,
        CallError::NoDomain | CallError::NotHeld => StatusCode::NOT_FOUND,
        CallError::HoldOver => StatusCode::CONFLICT,
        CallError::KeyReused => StatusCode::UNPROCESSABLE_ENTITY,
        CallError::TooManyHeld => StatusCode::SERVICE_UNAVAILABLE,
    };
    let found = error.found();
    (status, found.map_or("Too many decisions are held.".into(), |found| sentence(&found).into()))
}

/// Applies a policy's own status and fields. The fields were checked when it decided.
fn denied(denial: &Denial, fields: &mut Fields) -> Option<StatusCode> {
    if let Ok(wanted) = policy_fields::parse(&denial.headers) {
        policy_fields::set(fields, &wanted, false);
    }
    StatusCode::from_u16(denial.status).ok()
}

fn unreadable(status: StatusCode) -> &'static str {
    match status {
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => "The request's head is too large.",
        StatusCode::NOT_IMPLEMENTED => "Only the transfer coding chunked is known.",
        _ => "The request's head is not HTTP.",
    }
}

fn sentence(why: &str) -> String {
    let mut letters = why.chars();
    letters
        .next()
        .map(|first| format!("{}{}.", first.to_uppercase(), letters.as_str()))
        .unwrap_or_default()
}
