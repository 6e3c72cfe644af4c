//! All reasons for which a request is not answered by its upstream. Any phase may end a request
//! with one; `reply` writes the response.

use std::borrow::Cow;

use http::StatusCode;

use crate::proxy::verdict::{Cause, Rejection};
use crate::telemetry::{Label as _, labels};
use crate::upstream::{self, UpstreamError};
use crate::wire::BodyError;

/// Why a request is not answered by its upstream. Which limits refused, and a policy's own denial,
/// are in what was decided.
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
    /// 200, with this text: an authority checks that a name is served here.
    Challenge(String),
    /// 308: the same over https, at this URL.
    ToHttps(String),
    /// 404.
    NotFound,
    /// 405, with the methods that have routes.
    MethodNotAllowed(String),
    /// 408: the body stalled, came too slowly, or was not complete in the request's time.
    BodyTooSlow,
    /// A call for a decision that is not made.
    Call(CallError),
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
    /// 503: the upstream has as many requests as it may, and this one has waited for a place in
    /// vain. What was charged for it is given back.
    Shed,
    /// 503: this worker has more to do than it can. Nothing was charged.
    Overloaded,
    /// 503: this client already has its share of the requests to the upstream. The same status as
    /// for a full upstream, since waiting helps in the same way. nginx's `limit_conn` uses it, too.
    ClientOverShare,
    /// 503: this process has no file descriptor left for a connection to the upstream.
    OutOfDescriptors,
    /// 503: the route is being worked on.
    Maintenance,
    /// 503: the process buffers as many bytes as it may.
    TooMuchBuffered,
    /// 504.
    UpstreamTooSlow,
    /// 499, for logs and metrics: the client went away during its body, so the response reaches
    /// nobody.
    ClientGone,
}

/// Why a call for a decision is not made.
#[derive(Debug)]
pub(in crate::proxy) enum CallError {
    /// 400: it can't be read, for this reason.
    Malformed(String),
    /// 401: it has no token that is known.
    UnknownCaller,
    /// 403: its token is not for it.
    OutOfScope(&'static str),
    /// 404: no route has its domain.
    NoDomain,
    /// 404: nothing is held under its id.
    NotHeld,
    /// 409: what its first answer holds is held no more.
    HoldOver,
    /// 422: another call had its idempotency key.
    KeyReused,
    /// 503: as many decisions are held as may be.
    TooManyHeld,
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
        /// Which proxy asks, and about what.
        Proxy = "proxy",
        /// What a call for a decision says.
        Call = "call",
    }
}

/// What is wrong with a request, and what has found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) struct RejectionDetail {
    check: Check,
    pub(in crate::proxy) found: &'static str,
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
            Self::Call => {
                "one RateLimitRequest, not compressed, with a domain, 1 to 16 descriptors with a \
                 key and a value or more, and a known unit in each limit; or a call as in \
                 /v1/openapi.json, with a token that is for it"
            }
            Self::Proxy => {
                "a question of a proxy in server.trusted_proxies, with one method, path and host of \
                 the request that it is about (listeners.serves)"
            }
        }
    }
}

impl CallError {
    /// What is wrong with the call. `None` if that is not why.
    pub(in crate::proxy) fn found(&self) -> Option<Cow<'static, str>> {
        Some(match self {
            Self::Malformed(found) => found.clone().into(),
            Self::UnknownCaller => "the token is missing or unknown".into(),
            Self::OutOfScope(found) => (*found).into(),
            Self::NoDomain => "no route has this domain".into(),
            Self::NotHeld => {
                "nothing is held under this id: it was settled, its time is over, or another \
                 process decided"
                    .into()
            }
            Self::HoldOver => {
                "what was held for this idempotency key is over: ask again with another one".into()
            }
            Self::KeyReused => "another call had the same idempotency key".into(),
            Self::TooManyHeld => return None,
        })
    }
}

impl Refusal {
    /// A call can't be read, for this reason.
    pub(in crate::proxy) fn malformed(found: String) -> Self {
        Self::Call(CallError::Malformed(found))
    }

    /// Why it is refused. `None` if nobody is refused, or nobody is left to ask.
    pub(in crate::proxy) fn cause(&self) -> Option<Cause> {
        match self {
            Self::TooMany => Some(Cause::Limit),
            Self::Denied => Some(Cause::Denial),
            Self::StoreUnavailable => Some(Cause::Store),
            Self::PolicyFailed => Some(Cause::PolicyError),
            Self::PolicyOverloaded
            | Self::UpstreamOverloaded
            | Self::Shed
            | Self::Overloaded
            | Self::ClientOverShare
            | Self::OutOfDescriptors
            | Self::Call(CallError::TooManyHeld)
            | Self::TooMuchBuffered => Some(Cause::Overload),
            Self::UpstreamFailed | Self::UpstreamTooSlow => Some(Cause::Upstream),
            Self::BadRequest(_)
            | Self::Call(_)
            | Self::Unreadable(..)
            | Self::NotImplemented(_)
            | Self::NotFound
            | Self::MethodNotAllowed(_)
            | Self::BodyTooSlow
            | Self::BodyTooLarge { .. }
            | Self::UriTooLong { .. } => Some(Cause::Request),
            Self::Maintenance => Some(Cause::Maintenance),
            Self::ServerOptions | Self::Challenge(_) | Self::ToHttps(_) | Self::ClientGone => None,
        }
    }

    /// Whether nobody is refused: the request concerns no route, and this is its answer.
    pub(in crate::proxy) fn is_answer(&self) -> bool {
        matches!(self, Self::ServerOptions | Self::Challenge(_) | Self::ToHttps(_))
    }

    /// What failed here, for the log.
    pub(in crate::proxy) fn failure(&self) -> Option<&'static str> {
        match self {
            Self::TooMuchBuffered => Some("buffered-bytes"),
            Self::Overloaded => Some("overloaded"),
            _ => None,
        }
    }

    /// What is wrong with the request itself, if that is why it is refused.
    pub(in crate::proxy) fn rejection(&self) -> Option<Rejection> {
        let (check, found): (Check, Cow<'static, str>) = match self {
            Self::BadRequest(RejectionDetail { check, found }) => (*check, (*found).into()),
            Self::Call(error) => (Check::Call, error.found()?),
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
            upstream::Cause::Shed => Self::Shed,
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
