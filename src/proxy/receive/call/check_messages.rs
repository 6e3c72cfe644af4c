//! The messages of Envoy's external authorization, with the field numbers of its protocol
//! definition (envoy.service.auth.v3 and envoy.config.core.v3). What is neither read nor sent is
//! left out.

use std::collections::HashMap;

use bytes::Bytes;
use prost::{Enumeration, Message, Oneof};

use super::messages::HeaderValue;

#[derive(Clone, PartialEq, Message)]
pub(in crate::proxy) struct CheckRequest {
    #[prost(message, optional, tag = "1")]
    pub(in crate::proxy) attributes: Option<Attributes>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::proxy) struct Attributes {
    #[prost(message, optional, tag = "4")]
    pub(in crate::proxy) request: Option<AttributesRequest>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::proxy) struct AttributesRequest {
    #[prost(message, optional, tag = "2")]
    pub(in crate::proxy) http: Option<HttpRequest>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::proxy) struct HttpRequest {
    /// Bytes, as everything that Envoy copies of what clients send.
    #[prost(bytes = "vec", tag = "2")]
    pub(in crate::proxy) method: Vec<u8>,
    /// Several fields of one name are joined.
    #[prost(map = "string, bytes", tag = "3")]
    pub(in crate::proxy) headers: HashMap<String, Vec<u8>>,
    #[prost(bytes = "vec", tag = "4")]
    pub(in crate::proxy) path: Vec<u8>,
    #[prost(bytes = "vec", tag = "5")]
    pub(in crate::proxy) host: Vec<u8>,
    #[prost(bytes = "bytes", tag = "11")]
    pub(in crate::proxy) body: Bytes,
    #[prost(bytes = "bytes", tag = "12")]
    pub(in crate::proxy) raw_body: Bytes,
    /// Instead of `headers`, with `encode_raw_headers`.
    #[prost(message, optional, tag = "13")]
    pub(in crate::proxy) header_map: Option<HeaderMap>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::proxy) struct HeaderMap {
    #[prost(message, repeated, tag = "1")]
    pub(in crate::proxy) headers: Vec<RawHeader>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::proxy) struct RawHeader {
    #[prost(string, tag = "1")]
    pub(in crate::proxy) key: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(in crate::proxy) value: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    pub(in crate::proxy) raw_value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::proxy) struct CheckResponse {
    #[prost(message, optional, tag = "1")]
    pub(in crate::proxy) status: Option<Status>,
    #[prost(oneof = "HttpResponse", tags = "2, 3")]
    pub(in crate::proxy) http_response: Option<HttpResponse>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(in crate::proxy) enum HttpResponse {
    #[prost(message, tag = "2")]
    Denied(DeniedResponse),
    #[prost(message, tag = "3")]
    Ok(OkResponse),
}

/// google.rpc.Status.
#[derive(Clone, PartialEq, Message)]
pub(in crate::proxy) struct Status {
    /// 0: the request may pass.
    #[prost(int32, tag = "1")]
    pub(in crate::proxy) code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::proxy) struct DeniedResponse {
    #[prost(message, optional, tag = "1")]
    pub(in crate::proxy) status: Option<HttpStatus>,
    #[prost(message, repeated, tag = "2")]
    pub(in crate::proxy) headers: Vec<HeaderValueOption>,
    #[prost(bytes = "vec", tag = "3")]
    pub(in crate::proxy) body: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::proxy) struct OkResponse {
    /// For the request that is passed on.
    #[prost(message, repeated, tag = "2")]
    pub(in crate::proxy) headers: Vec<HeaderValueOption>,
    /// For its client.
    #[prost(message, repeated, tag = "6")]
    pub(in crate::proxy) response_headers_to_add: Vec<HeaderValueOption>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::proxy) struct HttpStatus {
    #[prost(int32, tag = "1")]
    pub(in crate::proxy) code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::proxy) struct HeaderValueOption {
    #[prost(message, optional, tag = "1")]
    pub(in crate::proxy) header: Option<HeaderValue>,
    #[prost(enumeration = "AppendAction", tag = "3")]
    pub(in crate::proxy) append_action: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(in crate::proxy) enum AppendAction {
    Append = 0,
    Overwrite = 2,
}
