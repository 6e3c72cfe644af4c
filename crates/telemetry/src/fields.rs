//! The fields of an access line, and which of them an operator has chosen. Knows no request.

use std::sync::Arc;

use super::label::Label as _;
use crate::labels;

/// The prefix of a field of a line that is a header field of the request: `header.x-api-key`.
pub const ACCESS_HEADER: &str = "header.";
/// The bit after those of all [`AccessField`]s: [`AccessHeaders`] are shown.
const HEADERS: u64 = 1 << 63;

labels! {
    /// A field of an access line, in the order in which a line has them. Adding one that is in no
    /// line by default changes nothing for anybody: see [`AccessFields::default`].
    pub enum AccessField {
        /// When the line was written, in UTC.
        Timestamp = "timestamp",
        /// The request's id, as in `X-Request-Id`.
        RequestId = "request_id",
        /// The id of the trace that the request is part of, if it is traced.
        TraceId = "trace_id",
        /// The address that limits count by.
        Client = "client",
        /// The method.
        Method = "method",
        /// The host that the client named.
        Host = "host",
        /// The path in its normal form.
        Path = "path",
        /// What followed the path's `?`.
        Query = "query",
        /// `HTTP/1.0`, `HTTP/1.1` or `HTTP/2`.
        Protocol = "protocol",
        /// `TLSv1.2` or `TLSv1.3`, of the client's connection.
        TlsVersion = "tls_version",
        /// The header field `Referer`.
        Referer = "referer",
        /// The header field `User-Agent`.
        UserAgent = "user_agent",
        /// What the listener serves that it came to, if that is not requests.
        Serves = "serves",
        /// The name of the token of a call for a decision.
        Caller = "caller",
        /// The domain that a call for a decision is about.
        Domain = "domain",
        /// The descriptors of a call for a decision.
        Descriptors = "descriptors",
        /// The units that a call for a decision takes, if they are not one for each descriptor.
        Hits = "hits",
        /// The route's name.
        Route = "route",
        /// The status of the response.
        Status = "status",
        /// Bytes of the response's body.
        Bytes = "bytes",
        /// Bytes of the request's body, if all of it came.
        BytesIn = "bytes_in",
        /// Bytes from the client through a tunnel.
        BytesUp = "bytes_up",
        /// The time from the request's headers to the end of the response.
        Duration = "duration_ms",
        /// How long the request waited in a leaky bucket.
        Delayed = "delayed_ms",
        /// The address that the request was sent to last.
        Upstream = "upstream",
        /// The time from handing the request to the upstream to the head of its reply, or to its
        /// failure.
        UpstreamTime = "upstream_ms",
        /// What was decided.
        Decision = "decision",
        /// The policy's name.
        Policy = "policy",
        /// The limits that refused.
        RefusedBy = "refused_by",
        /// The digests of their keys, in the same order.
        KeyDigest = "key_digest",
        /// Their keys, where `[admin] show_keys` says so.
        Key = "key",
        /// The shadow limits that would have refused.
        WouldRefuse = "would_refuse",
        /// What went wrong.
        Failure = "failure",
        /// Why a counter could not be reached.
        StoreFailure = "store_failure",
        /// The labels that the policy gave.
        Labels = "labels",
        /// What the request used, as its policy reckons.
        Amounts = "amounts",
    }
}

/// Some of the fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessFields(u64);

impl AccessFields {
    /// No field.
    pub const NONE: Self = Self(0);
    /// Fields whose values are read from the request's head or its connection. They are kept only
    /// where a line shows one of them.
    pub const OF_HEAD: Self = Self::NONE
        .and(AccessField::Host)
        .and(AccessField::Query)
        .and(AccessField::Protocol)
        .and(AccessField::TlsVersion)
        .and(AccessField::Referer)
        .and(AccessField::UserAgent)
        .and_headers();
    /// Fields about a call for a decision.
    pub const OF_CALLS: Self = Self::NONE
        .and(AccessField::Caller)
        .and(AccessField::Domain)
        .and(AccessField::Descriptors)
        .and(AccessField::Hits);
    /// Fields about the sending of a request.
    pub const OF_SENDING: Self =
        Self::NONE.and(AccessField::Upstream).and(AccessField::UpstreamTime);

    /// Adds `field`.
    #[must_use]
    pub const fn and(self, field: AccessField) -> Self {
        Self(self.0 | 1 << field as u64)
    }

    /// Adds the header fields that [`AccessHeaders`] names.
    #[must_use]
    pub const fn and_headers(self) -> Self {
        Self(self.0 | HEADERS)
    }

    /// Whether lines show header fields of [`AccessHeaders`].
    #[must_use]
    pub const fn has_headers(self) -> bool {
        self.0 & HEADERS != 0
    }

    /// Removes `field`.
    const fn without(self, field: AccessField) -> Self {
        Self(self.0 & !(1 << field as u64))
    }

    /// Whether `field` is one of them.
    #[must_use]
    pub const fn has(self, field: AccessField) -> bool {
        self.0 & 1 << field as u64 != 0
    }

    /// Whether one of `others` is one of them.
    #[must_use]
    pub const fn meets(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }
}

impl Default for AccessFields {
    /// The fields where `proxy.toml` says nothing: all but those that show more of a client than
    /// limits need, or cost a request something.
    fn default() -> Self {
        let all = AccessField::ALL.iter().fold(Self::NONE, |all, field| all.and(*field));
        [
            AccessField::Host,
            AccessField::Query,
            AccessField::Protocol,
            AccessField::TlsVersion,
            AccessField::Referer,
            AccessField::UserAgent,
            AccessField::Descriptors,
            AccessField::BytesIn,
            AccessField::Upstream,
            AccessField::UpstreamTime,
        ]
        .into_iter()
        .fold(all, Self::without)
    }
}

/// The header fields of requests that lines show. A set with
/// [`has_headers`](AccessFields::has_headers) says that there are some, so that other requests look
/// at nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessHeaders {
    /// `header.x-api-key`, in the order of a line.
    fields: Arc<[Box<str>]>,
    /// They are shown as clients sent them, and not as digests.
    pub as_text: bool,
}

impl AccessHeaders {
    /// Those with these names.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>, as_text: bool) -> Self {
        let field = |name: &str| [ACCESS_HEADER, &name.to_ascii_lowercase()].concat().into();
        Self { fields: names.into_iter().map(field).collect(), as_text }
    }

    /// The names of their fields in a line.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|field| &**field)
    }

    /// The names of the header fields, in lower case and in the same order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.fields().map(|field| field.strip_prefix(ACCESS_HEADER).unwrap_or(field))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_fields_are_a_bit_of_their_own_and_named_in_lower_case() {
        let all = AccessField::ALL.iter().fold(AccessFields::NONE, |all, field| all.and(*field));
        let headers = AccessFields::NONE.and_headers();
        assert!(!all.has_headers() && !headers.meets(all) && all.and_headers().has_headers());
        assert!(headers.meets(AccessFields::OF_HEAD) && !AccessFields::default().has_headers());
        let headers = AccessHeaders::new(["X-Api-Key", "header.x"], false);
        assert_eq!(headers.fields().collect::<Vec<_>>(), ["header.x-api-key", "header.header.x"]);
        assert_eq!(headers.names().collect::<Vec<_>>(), ["x-api-key", "header.x"]);
    }

    #[test]
    fn each_field_is_a_bit_of_its_own() {
        assert!(AccessField::ALL.len() < 64);
        for field in AccessField::ALL {
            let only = AccessFields::NONE.and(*field);
            let found: Vec<_> = AccessField::ALL.iter().filter(|one| only.has(**one)).collect();
            assert_eq!(found, [field]);
            assert!(!only.without(*field).has(*field));
        }
    }

    #[test]
    fn nothing_that_has_to_be_kept_is_in_a_line_by_default() {
        let fields = AccessFields::default();
        assert!(!fields.meets(AccessFields::OF_HEAD) && !fields.meets(AccessFields::OF_SENDING));
        assert!(!fields.has(AccessField::BytesIn));
        let shown = AccessField::ALL.iter().filter(|field| fields.has(**field)).count();
        assert_eq!(shown, AccessField::ALL.len() - 10);
    }
}
