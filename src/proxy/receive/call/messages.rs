//! The messages of Envoy's rate limit service, with the field numbers of its protocol definition
//! (envoy.service.ratelimit.v3, envoy.extensions.common.ratelimit.v3 and envoy.config.core.v3).
//! What is neither read nor sent is left out.

use prost::{Enumeration, Message};

#[derive(Clone, PartialEq, Message)]
pub(in crate::proxy) struct RateLimitRequest {
    #[prost(string, tag = "1")]
    pub(in crate::proxy) domain: String,
    #[prost(message, repeated, tag = "2")]
    pub(in crate::proxy) descriptors: Vec<RateLimitDescriptor>,
    /// Of each descriptor without its own; 0 stands for 1.
    #[prost(uint32, tag = "3")]
    pub(in crate::proxy) hits_addend: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::proxy) struct RateLimitDescriptor {
    #[prost(message, repeated, tag = "1")]
    pub(in crate::proxy) entries: Vec<Entry>,
    #[prost(message, optional, tag = "2")]
    pub(in crate::proxy) limit: Option<RateLimitOverride>,
    #[prost(message, optional, tag = "3")]
    pub(in crate::proxy) hits_addend: Option<UInt64Value>,
    #[prost(bool, tag = "4")]
    pub(in crate::proxy) is_negative_hits: bool,
}

/// Bytes, as Envoy copies what clients send, which may be no text.
#[derive(Clone, PartialEq, Message)]
pub(in crate::proxy) struct Entry {
    #[prost(bytes = "vec", tag = "1")]
    pub(in crate::proxy) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(in crate::proxy) value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::proxy) struct RateLimitOverride {
    #[prost(uint32, tag = "1")]
    pub(in crate::proxy) requests_per_unit: u32,
    #[prost(enumeration = "Unit", tag = "2")]
    pub(in crate::proxy) unit: i32,
}

/// google.protobuf.UInt64Value.
#[derive(Clone, PartialEq, Message)]
pub(in crate::proxy) struct UInt64Value {
    #[prost(uint64, tag = "1")]
    pub(in crate::proxy) value: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(in crate::proxy) enum Unit {
    Unknown = 0,
    Second = 1,
    Minute = 2,
    Hour = 3,
    Day = 4,
    Month = 5,
    Year = 6,
    Week = 7,
}

impl Unit {
    /// Their names in the protocol.
    const NAMES: [(Self, &'static str); 8] = [
        (Self::Unknown, "UNKNOWN"),
        (Self::Second, "SECOND"),
        (Self::Minute, "MINUTE"),
        (Self::Hour, "HOUR"),
        (Self::Day, "DAY"),
        (Self::Month, "MONTH"),
        (Self::Year, "YEAR"),
        (Self::Week, "WEEK"),
    ];

    /// The unit of a name.
    pub(in crate::proxy) fn named(name: &str) -> Option<Self> {
        Self::NAMES.into_iter().find(|(_, own)| *own == name).map(|(unit, _)| unit)
    }

    /// Its name.
    pub(in crate::proxy) fn name(self) -> &'static str {
        Self::NAMES.into_iter().find(|(unit, _)| *unit == self).map_or("UNKNOWN", |(_, name)| name)
    }
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::proxy) struct RateLimitResponse {
    #[prost(enumeration = "Code", tag = "1")]
    pub(in crate::proxy) overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    pub(in crate::proxy) statuses: Vec<DescriptorStatus>,
    #[prost(message, repeated, tag = "3")]
    pub(in crate::proxy) response_headers_to_add: Vec<HeaderValue>,
    #[prost(message, repeated, tag = "4")]
    pub(in crate::proxy) request_headers_to_add: Vec<HeaderValue>,
    #[prost(bytes = "bytes", tag = "5")]
    pub(in crate::proxy) raw_body: bytes::Bytes,
    #[prost(message, optional, tag = "6")]
    pub(in crate::proxy) dynamic_metadata: Option<prost_types::Struct>,
}

/// `Unknown` is never sent: Envoy lets a request with it pass, even when it is told to deny those
/// whose call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(in crate::proxy) enum Code {
    Unknown = 0,
    Ok = 1,
    OverLimit = 2,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::proxy) struct DescriptorStatus {
    #[prost(enumeration = "Code", tag = "1")]
    pub(in crate::proxy) code: i32,
    #[prost(message, optional, tag = "2")]
    pub(in crate::proxy) current_limit: Option<CurrentLimit>,
    #[prost(uint32, tag = "3")]
    pub(in crate::proxy) limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    pub(in crate::proxy) duration_until_reset: Option<Duration>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::proxy) struct CurrentLimit {
    #[prost(uint32, tag = "1")]
    pub(in crate::proxy) requests_per_unit: u32,
    #[prost(enumeration = "Unit", tag = "2")]
    pub(in crate::proxy) unit: i32,
    #[prost(string, tag = "3")]
    pub(in crate::proxy) name: String,
}

/// google.protobuf.Duration.
#[derive(Clone, PartialEq, Message)]
pub(in crate::proxy) struct Duration {
    #[prost(int64, tag = "1")]
    pub(in crate::proxy) seconds: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::proxy) struct HeaderValue {
    #[prost(string, tag = "1")]
    pub(in crate::proxy) key: String,
    #[prost(string, tag = "2")]
    pub(in crate::proxy) value: String,
}

/// grpc.health.v1.HealthCheckRequest.
#[derive(Clone, PartialEq, Message)]
pub(in crate::proxy) struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    pub(in crate::proxy) service: String,
}

/// grpc.health.v1.HealthCheckResponse.
#[derive(Clone, PartialEq, Message)]
pub(in crate::proxy) struct HealthCheckResponse {
    /// 1: serving; 2: not serving.
    #[prost(int32, tag = "1")]
    pub(in crate::proxy) status: i32,
}
