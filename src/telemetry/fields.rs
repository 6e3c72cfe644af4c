//! The fields of an access line, and which of them an operator has chosen. Knows no request.

use super::label::{Label as _, labels};

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
        /// From the request's headers to the end of the response.
        Duration = "duration_ms",
        /// How long the request waited in a leaky bucket.
        Delayed = "delayed_ms",
        /// The address that the request was sent to last.
        Upstream = "upstream",
        /// From handing the request to the upstream to the head of its reply, or to its failure.
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
pub struct AccessFields(u32);

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
        .and(AccessField::UserAgent);
    /// Fields about the sending of a request.
    pub const OF_SENDING: Self =
        Self::NONE.and(AccessField::Upstream).and(AccessField::UpstreamTime);

    /// With `field`.
    #[must_use]
    pub const fn and(self, field: AccessField) -> Self {
        Self(self.0 | 1 << field as u32)
    }

    /// Without `field`.
    const fn without(self, field: AccessField) -> Self {
        Self(self.0 & !(1 << field as u32))
    }

    /// Whether `field` is one of them.
    #[must_use]
    pub const fn has(self, field: AccessField) -> bool {
        self.0 & 1 << field as u32 != 0
    }

    /// Whether one of `others` is one of them.
    #[must_use]
    pub const fn meets(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }
}

impl Default for AccessFields {
    /// What holds where `proxy.toml` says nothing: all but those that show more of a client than
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
            AccessField::BytesIn,
            AccessField::Upstream,
            AccessField::UpstreamTime,
        ]
        .into_iter()
        .fold(all, Self::without)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_is_a_bit_of_its_own() {
        assert!(AccessField::ALL.len() < 32);
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
        assert_eq!(shown, AccessField::ALL.len() - 9);
    }
}
