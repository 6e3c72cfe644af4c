//! The messages of Envoy's rate limit quota service, with the field numbers of its protocol
//! definition (envoy.service.rate_limit_quota.v3, envoy.type.v3). What is neither read nor sent is
//! left out.

use std::collections::BTreeMap;

use prost::{Enumeration, Message, Oneof};

use super::messages::Duration;

/// BucketQuotaUsage, without the time since the last report: Envoy cuts it to whole seconds.
#[derive(Clone, PartialEq, Message)]
pub(in crate::proxy) struct Usage {
    #[prost(message, optional, tag = "1")]
    pub(in crate::proxy) bucket: Option<BucketId>,
    #[prost(uint64, tag = "3")]
    pub(in crate::proxy) allowed: u64,
    #[prost(uint64, tag = "4")]
    pub(in crate::proxy) denied: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::proxy) struct BucketId {
    #[prost(btree_map = "string, string", tag = "1")]
    pub(in crate::proxy) bucket: BTreeMap<String, String>,
}

/// RateLimitQuotaResponse.
#[derive(Clone, PartialEq, Message)]
pub(in crate::proxy) struct Assignments {
    #[prost(message, repeated, tag = "1")]
    pub(in crate::proxy) actions: Vec<BucketAction>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::proxy) struct BucketAction {
    #[prost(message, optional, tag = "1")]
    pub(in crate::proxy) bucket: Option<BucketId>,
    #[prost(oneof = "Action", tags = "2, 3")]
    pub(in crate::proxy) action: Option<Action>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(in crate::proxy) enum Action {
    #[prost(message, tag = "2")]
    Assign(QuotaAssignment),
    #[prost(message, tag = "3")]
    Abandon(Abandon),
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::proxy) struct QuotaAssignment {
    /// Envoy reads whole seconds only.
    #[prost(message, optional, tag = "2")]
    pub(in crate::proxy) time_to_live: Option<Duration>,
    #[prost(message, optional, tag = "3")]
    pub(in crate::proxy) strategy: Option<RateLimitStrategy>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::proxy) struct Abandon {}

#[derive(Clone, PartialEq, Message)]
pub(in crate::proxy) struct RateLimitStrategy {
    #[prost(oneof = "Strategy", tags = "1, 3")]
    pub(in crate::proxy) strategy: Option<Strategy>,
}

/// Requests per time unit are left out: Envoy does not know them.
#[derive(Clone, PartialEq, Oneof)]
pub(in crate::proxy) enum Strategy {
    #[prost(enumeration = "Blanket", tag = "1")]
    Blanket(i32),
    #[prost(message, tag = "3")]
    TokenBucket(TokenBucket),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(in crate::proxy) enum Blanket {
    AllowAll = 0,
    DenyAll = 1,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::proxy) struct TokenBucket {
    #[prost(uint32, tag = "1")]
    pub(in crate::proxy) max_tokens: u32,
    #[prost(message, optional, tag = "2")]
    pub(in crate::proxy) tokens_per_fill: Option<UInt32Value>,
    #[prost(message, optional, tag = "3")]
    pub(in crate::proxy) fill_interval: Option<Duration>,
}

/// google.protobuf.UInt32Value.
#[derive(Clone, PartialEq, Message)]
pub(in crate::proxy) struct UInt32Value {
    #[prost(uint32, tag = "1")]
    pub(in crate::proxy) value: u32,
}
