//! All reasons for a request not to be answered by its upstream, and the response to each: a short
//! problem document (RFC 9457). Knows no route.

use std::borrow::Cow;

use http::StatusCode;

use super::grpc::{self, Pushback};
use super::page::{Page, RefusalDetails};
use super::{fields, json};
use crate::policy::{Denial, Verdict};
use crate::proxy::context::RequestContext;
use crate::proxy::forward;
use crate::proxy::route::routes::RoutingError;
use crate::proxy::verdict::{Cause, Rejection};
use crate::telemetry::{Label as _, labels};
use crate::upstream::{self, UpstreamError};
use crate::wire::{BodyError, Fields, Known, Response};

/// The draft's problem type for a used-up quota.
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
/// The type of a problem that its status describes (RFC 9457, 4.2.1).
const ABOUT_BLANK: &str = "about:blank";

/// The message to a client whose allowance is not used up, but in use.
const HELD: &str = "The allowance is reserved by requests in flight.";

/// Why a request is not answered by its upstream. Further details (limits, a denial) are in the
/// [`RequestContext`].
#[derive(Debug)]
pub(in crate::proxy) enum Refusal {
    /// 400: ambiguous or malformed.
    BadRequest(RejectionDetail),
    /// 400, 431 or 501: its head could not be read, for this reason.
    Unreadable(StatusCode, &'static str),
    /// 501: a method that is not forwarded.
    NotImplemented(&'static str),
    /// 204: `OPTIONS *` concerns no route.
    ServerOptions,
    /// 404.
    NotFound,
    /// 405, with the methods that have routes.
    MethodNotAllowed(String),
    /// 408: the body stalled, came too slowly, or was not complete in the request's time.
    BodyTooSlow,
    /// 413.
    BodyTooLarge { limit_bytes: u64 },
    /// 414.
    UriTooLong { limit_bytes: usize },
    /// 429: one or more limits refused.
    TooMany,
    /// The policy's own status, 400 to 599.
    Denied,
    /// 503: a counter could not be reached, and the configuration says to deny.
    StoreUnavailable,
    /// 503: the policy failed, and the route says to deny.
    PolicyFailed,
    /// 503: as many policies run as may.
    PolicyOverloaded,
    /// 502: the upstream can't be reached, or does not speak HTTP.
    UpstreamFailed,
    /// 503: this worker has too many requests at the upstream already.
    UpstreamOverloaded,
    /// 503: this client already has its share of the requests to the upstream. The same status as
    /// for a full upstream, since waiting helps in the same way. nginx's `limit_conn` uses it, too.
    ClientOverShare,
    /// 503: this process has no file descriptor left for a connection to the upstream.
    OutOfDescriptors,
    /// 503: the process buffers as many bytes as it may.
    TooMuchBuffered,
    /// 504.
    UpstreamTooSlow,
    /// 499, for logs and metrics: the client went away during its body, so the response reaches
    /// nobody.
    ClientGone,
}

labels! {
    /// What of a request is looked at, most of it before a policy is asked.
    pub(in crate::proxy) enum Check {
        /// Lines, fields and framing.
        Head = "head",
        /// `GET`.
        Method = "method",
        /// Path and query together.
        Target = "target",
        /// The authority that it asks for.
        Host = "host",
        /// The path in its normal form.
        Path = "path",
        /// Which route answers it.
        Route = "route",
        /// What it sends.
        Body = "body",
        /// What its route's policy reads.
        Facts = "facts",
    }
}

/// What is wrong with a request, and what has found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) struct RejectionDetail {
    check: Check,
    found: &'static str,
}

impl Check {
    /// This check has found this.
    pub(in crate::proxy) const fn wrong(self, found: &'static str) -> RejectionDetail {
        RejectionDetail { check: self, found }
    }

    fn expected(self) -> &'static str {
        match self {
            Self::Head => {
                "the head of a request as in HTTP/1.1: lines that end in CRLF, fields with a name, \
                 one length at most, no transfer coding but chunked, at most 100 fields, and \
                 server.limits.header_bytes together"
            }
            Self::Method => "a method in capitals, and neither CONNECT nor TRACE",
            Self::Target => "a path or a URI, not longer than server.limits.uri_bytes",
            Self::Host => "one host, a name or an address, perhaps with a port",
            Self::Path => "a path in one spelling that all servers read alike (server.paths)",
            Self::Route => "host, path and method of a route",
            Self::Body => {
                "a body within its route's limits, in the form that it declares, which keeps coming \
                 (server.timeouts.body_idle, server.limits.body_rate)"
            }
            Self::Facts => {
                "each header field, cookie, parameter and value of a body that the route's policy \
                 reads 100 times at most"
            }
        }
    }
}

/// nginx's code for a client that went away. Only seen in logs and metrics.
pub(in crate::proxy) const CLIENT_GONE: u16 = 499;

/// The status in logs and metrics of a request cut by a shutdown before it was answered.
pub(in crate::proxy) const SHUTDOWN: u16 = 503;

impl Refusal {
    /// Why it is refused. `None` if nobody is refused, or nobody is left to ask.
    pub(in crate::proxy) fn cause(&self) -> Option<Cause> {
        match self {
            Self::TooMany => Some(Cause::Limit),
            Self::Denied => Some(Cause::Denial),
            Self::StoreUnavailable => Some(Cause::Store),
            Self::PolicyFailed => Some(Cause::PolicyError),
            Self::PolicyOverloaded
            | Self::UpstreamOverloaded
            | Self::ClientOverShare
            | Self::OutOfDescriptors
            | Self::TooMuchBuffered => Some(Cause::Overload),
            Self::UpstreamFailed | Self::UpstreamTooSlow => Some(Cause::Upstream),
            Self::BadRequest(_)
            | Self::Unreadable(..)
            | Self::NotImplemented(_)
            | Self::NotFound
            | Self::MethodNotAllowed(_)
            | Self::BodyTooSlow
            | Self::BodyTooLarge { .. }
            | Self::UriTooLong { .. } => Some(Cause::Request),
            Self::ServerOptions | Self::ClientGone => None,
        }
    }

    /// What is wrong with the request itself, if that is why it is refused.
    pub(in crate::proxy) fn rejection(&self) -> Option<Rejection> {
        let (check, found): (Check, Cow<'static, str>) = match self {
            Self::BadRequest(RejectionDetail { check, found }) => (*check, (*found).into()),
            Self::Unreadable(_, found) => (Check::Head, (*found).into()),
            Self::NotImplemented(found) => (Check::Method, (*found).into()),
            Self::NotFound => (Check::Route, "no route has its host and path".into()),
            Self::MethodNotAllowed(methods) => {
                (Check::Route, format!("the routes of its path are for {methods}").into())
            }
            Self::BodyTooSlow => (Check::Body, "it came too slowly".into()),
            Self::BodyTooLarge { limit_bytes } => {
                (Check::Body, format!("it is larger than {limit_bytes} bytes").into())
            }
            Self::UriTooLong { limit_bytes } => {
                (Check::Target, format!("it is longer than {limit_bytes} bytes").into())
            }
            _ => return None,
        };
        Some(Rejection { check: check.label(), found, expected: check.expected() })
    }

    /// The status and the text for the client.
    fn status_and_detail(&self) -> (StatusCode, Cow<'static, str>) {
        let limit =
            |what: &str, bytes: u64| format!("The {what} is larger than {bytes} bytes.").into();
        match self {
            Self::BadRequest(wrong) => (StatusCode::BAD_REQUEST, sentence(wrong.found).into()),
            Self::Unreadable(status, _) => (*status, unreadable(*status).into()),
            Self::NotImplemented(why) => (StatusCode::NOT_IMPLEMENTED, sentence(why).into()),
            Self::ServerOptions => (StatusCode::NO_CONTENT, "".into()),
            Self::NotFound => (StatusCode::NOT_FOUND, "Nothing is served here.".into()),
            Self::MethodNotAllowed(_) => {
                (StatusCode::METHOD_NOT_ALLOWED, "Other methods are served here.".into())
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
            Self::UpstreamTooSlow => {
                (StatusCode::GATEWAY_TIMEOUT, "The upstream took too long.".into())
            }
            Self::ClientGone => (
                StatusCode::from_u16(CLIENT_GONE).unwrap_or(StatusCode::BAD_REQUEST),
                "The request's body ended early.".into(),
            ),
        }
    }

    /// The response, with what `context` knows of limits and the policy's fields, and its status. A
    /// gRPC client gets the status in another way.
    pub(in crate::proxy) fn response(&self, context: &RequestContext) -> (StatusCode, Response) {
        let (mut status, mut detail) = self.status_and_detail();
        let mut fields = Fields::new();
        // A refusal's own fields take precedence over a route's.
        if let Some(extras) = &context.route.extras {
            extras.apply(&mut fields);
            context.allow_origin(&mut fields);
        }
        let mut retry_after_s = None;
        match self {
            Self::ServerOptions => {
                return (status, super::complete(&context.method, status, fields, Vec::new()));
            }
            Self::MethodNotAllowed(methods) => fields.set(Known::Allow, methods),
            Self::TooMany => {
                if let Some((limits, outcome)) = context.limits() {
                    retry_after_s = fields::retry_after_s(limits, outcome);
                    if outcome.is_held(limits) {
                        detail = HELD.into();
                    }
                }
            }
            Self::Denied => {
                if let Some(denial) = context.denial() {
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
        if context.grpc {
            return (status, grpc::trailers_only(status, &detail, self.pushback(context), fields));
        }
        let page = context.route.extras.as_ref().and_then(|extras| extras.page(status));
        let denial = context.denial().filter(|_| matches!(self, Self::Denied));
        let own = denial.and_then(|denial| denial.body.as_ref());
        let (content_type, body) = match (page, own) {
            // What the operator wrote goes before what the policy did.
            (Some(page), _) => (
                page.content_type.as_bytes(),
                self.page(page, context, (status, &detail, retry_after_s)),
            ),
            (None, Some((media_type, text))) => (media_type.as_bytes(), text.clone().into_bytes()),
            (None, None) => {
                (b"application/problem+json".as_slice(), self.document(context, status, &detail))
            }
        };
        fields.set(Known::ContentType, content_type);
        (status, super::complete(&context.method, status, fields, body))
    }

    /// The response's body from the operator's own page.
    #[cold]
    fn page(
        &self,
        page: &Page,
        context: &RequestContext,
        (status, detail, retry_after_s): (StatusCode, &str, Option<u64>),
    ) -> Vec<u8> {
        let refused = context.limits().filter(|_| matches!(self, Self::TooMany));
        let limits: Vec<&str> = refused
            .iter()
            .flat_map(|(limits, outcome)| outcome.violated(limits))
            .map(|(limit, _)| limit.name.as_str())
            .collect();
        page.fill(RefusalDetails {
            status,
            title: status.canonical_reason().unwrap_or("Refused"),
            detail,
            request_id: context.id.as_str(),
            retry_after_s,
            limits: &limits.join(", "),
            route: &context.route.name,
        })
    }

    /// When a gRPC client may try again.
    fn pushback(&self, context: &RequestContext) -> Pushback {
        match self {
            Self::TooMany => {
                let us =
                    context.limits().and_then(|(limits, outcome)| outcome.retry_after_us(limits));
                us.map_or(Pushback::Never, |us| Pushback::After(us.div_ceil(1_000)))
            }
            Self::Denied => context
                .denial()
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
    fn document(
        &self,
        context: &RequestContext,
        status: StatusCode,
        detail: &Cow<'static, str>,
    ) -> Vec<u8> {
        let too_many = matches!(self, Self::TooMany);
        let mut out = Vec::with_capacity(256);
        let member = |out: &mut Vec<u8>, name: &[u8], text: &str| {
            out.extend_from_slice(name);
            out.extend_from_slice(text.as_bytes());
        };
        // Text of our own needs no escaping.
        member(&mut out, b"{\"type\":\"", if too_many { QUOTA_EXCEEDED } else { ABOUT_BLANK });
        member(&mut out, b"\",\"title\":\"", status.canonical_reason().unwrap_or("Refused"));
        if !detail.is_empty() {
            out.extend_from_slice(b"\",\"detail\":\"");
            match detail {
                Cow::Borrowed(ours) => out.extend_from_slice(ours.as_bytes()),
                Cow::Owned(theirs) => json::escaped(&mut out, theirs),
            }
        }
        out.extend_from_slice(b"\",\"request_id\":");
        json::string(&mut out, context.id.as_str());
        out.extend_from_slice(b",\"status\":");
        json::number(&mut out, u64::from(status.as_u16()));
        if too_many && let Some((limits, outcome)) = context.limits() {
            out.extend_from_slice(b",\"violated-policies\":");
            json::strings(&mut out, outcome.violated(limits).map(|(limit, _)| limit.name.as_str()));
        }
        out.extend_from_slice(b"}\n");
        out
    }
}

/// Applies a policy's own status and fields. The fields were checked when it decided.
fn denied(denial: &Denial, fields: &mut Fields) -> Option<StatusCode> {
    if let Ok(wanted) = forward::policy_fields(&denial.headers) {
        forward::set(fields, &wanted, false);
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

impl RequestContext {
    /// The policy's own refusal.
    fn denial(&self) -> Option<&Denial> {
        match &self.decision.as_ref()?.verdict {
            Verdict::Deny(denial) => Some(denial),
            Verdict::Bypass | Verdict::Check(_) => None,
        }
    }
}

impl From<RoutingError> for Refusal {
    fn from(unrouted: RoutingError) -> Self {
        match unrouted {
            RoutingError::NotFound => Self::NotFound,
            RoutingError::MethodNotAllowed(methods) => Self::MethodNotAllowed(methods),
        }
    }
}

impl From<&UpstreamError> for Refusal {
    fn from(error: &UpstreamError) -> Self {
        if let Some(error) = &error.body {
            return Self::from(error);
        }
        match error.cause {
            upstream::Cause::Body => Self::ClientGone,
            upstream::Cause::Connect
            | upstream::Cause::Tls
            | upstream::Cause::Cut
            | upstream::Cause::Protocol => Self::UpstreamFailed,
            upstream::Cause::Overload => Self::UpstreamOverloaded,
            upstream::Cause::Share => Self::ClientOverShare,
            upstream::Cause::Descriptors => Self::OutOfDescriptors,
            upstream::Cause::Timeout => Self::UpstreamTooSlow,
        }
    }
}

/// Converts the failure of a request's own body.
impl From<&BodyError> for Refusal {
    fn from(error: &BodyError) -> Self {
        match error {
            BodyError::TooLarge { limit_bytes } => Self::BodyTooLarge { limit_bytes: *limit_bytes },
            BodyError::Idle | BodyError::Slow | BodyError::Overdue => Self::BodyTooSlow,
            BodyError::Malformed => {
                Self::BadRequest(Check::Body.wrong("the body's chunks are broken"))
            }
            BodyError::Cut(_) | BodyError::Reset => Self::ClientGone,
        }
    }
}

impl From<BodyError> for Refusal {
    fn from(error: BodyError) -> Self {
        Self::from(&error)
    }
}
