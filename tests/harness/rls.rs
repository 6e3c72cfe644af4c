//! A client of Envoy's rate limit service: what Envoy sends, and all that it reads of an answer.

use std::net::SocketAddr;

use bytes::{BufMut as _, Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;

use super::TIMEOUT;

/// The codes of `overall_code` and of statuses.
pub const OK: i32 = 1;
pub const OVER_LIMIT: i32 = 2;
/// Units.
pub const MINUTE: i32 = 2;
pub const DAY: i32 = 4;

#[derive(Clone, PartialEq, Message)]
pub struct Request {
    #[prost(string, tag = "1")]
    pub domain: String,
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<Descriptor>,
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct Descriptor {
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<Pair>,
    #[prost(message, optional, tag = "2")]
    pub limit: Option<Override>,
    #[prost(message, optional, tag = "3")]
    pub hits_addend: Option<Hits>,
    #[prost(bool, tag = "4")]
    pub is_negative_hits: bool,
}

/// An entry of a descriptor, or a header field.
#[derive(Clone, PartialEq, Message)]
pub struct Pair {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Override {
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    pub unit: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct Hits {
    #[prost(uint64, tag = "1")]
    pub value: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Response {
    #[prost(int32, tag = "1")]
    pub overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    pub statuses: Vec<Status>,
    #[prost(message, repeated, tag = "3")]
    pub response_headers_to_add: Vec<Pair>,
    #[prost(message, repeated, tag = "4")]
    pub request_headers_to_add: Vec<Pair>,
    #[prost(string, tag = "5")]
    pub raw_body: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Status {
    #[prost(int32, tag = "1")]
    pub code: i32,
    #[prost(message, optional, tag = "2")]
    pub current_limit: Option<Limit>,
    #[prost(uint32, tag = "3")]
    pub limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    pub duration_until_reset: Option<Seconds>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Limit {
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    pub unit: i32,
    #[prost(string, tag = "3")]
    pub name: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Seconds {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// A failed call: gRPC's status, and its message as it was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    pub status: String,
    pub message: String,
}

impl Response {
    /// The code of each descriptor.
    pub fn codes(&self) -> Vec<i32> {
        self.statuses.iter().map(|status| status.code).collect()
    }

    /// What is left of each descriptor's limit.
    pub fn left(&self) -> Vec<u32> {
        self.statuses.iter().map(|status| status.limit_remaining).collect()
    }

    /// A field that the client gets; empty if it does not.
    pub fn field(&self, name: &str) -> &str {
        let mut all = self.response_headers_to_add.iter();
        all.find(|pair| pair.key == name).map_or("", |pair| pair.value.as_str())
    }
}

/// A descriptor with these entries.
pub fn descriptor(entries: &[(&str, &str)]) -> Descriptor {
    let pair =
        |(key, value): &(&str, &str)| Pair { key: (*key).to_owned(), value: (*value).to_owned() };
    Descriptor { entries: entries.iter().map(pair).collect(), ..Descriptor::default() }
}

/// A connection; clones share it.
#[derive(Clone)]
pub struct Client {
    sender: SendRequest<Full<Bytes>>,
    /// What each call has beside the fields of gRPC.
    metadata: Option<(&'static str, &'static str)>,
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Self {
        let stream = tokio::net::TcpStream::connect(address).await.expect("a connection");
        stream.set_nodelay(true).expect("its option");
        let (sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("HTTP/2");
        // When it ends, the next call fails.
        tokio::spawn(connection);
        Self { sender, metadata: None }
    }

    /// The same connection for calls with this field.
    pub fn with(&self, name: &'static str, value: &'static str) -> Self {
        Self { metadata: Some((name, value)), ..self.clone() }
    }

    /// Asks about descriptors of a domain.
    pub async fn ask(&self, domain: &str, descriptors: &[Descriptor]) -> Result<Response, Failed> {
        let domain = domain.to_owned();
        self.call(&Request { domain, descriptors: descriptors.to_vec(), hits_addend: 0 }).await
    }

    pub async fn call(&self, request: &Request) -> Result<Response, Failed> {
        let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        let answered = self.call_at(path, framed(&request.encode_to_vec())).await?;
        Ok(Response::decode(&answered[..]).expect("a RateLimitResponse"))
    }

    /// A unary call with these bytes, whatever they are; the message of its answer.
    pub async fn call_at(&self, path: &str, body: Bytes) -> Result<Bytes, Failed> {
        let mut request = http::Request::post(format!("http://ratelimit_cluster{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        if let Some((name, value)) = self.metadata {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(body)).expect("a request");
        let exchange = async {
            let (head, body) = self.sender.clone().send_request(request).await?.into_parts();
            Ok::<_, hyper::Error>((head, body.collect().await?))
        };
        let exchange = tokio::time::timeout(TIMEOUT, exchange).await.expect("an answer in time");
        let (head, body) = exchange.expect("an answer");
        assert_eq!(head.status, 200);
        assert_eq!(head.headers["content-type"], "application/grpc");
        let ends = body.trailers().cloned().unwrap_or(head.headers);
        let field = |name: &str| {
            ends.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
        };
        if field("grpc-status") != "0" {
            return Err(Failed { status: field("grpc-status"), message: field("grpc-message") });
        }
        let framed = body.to_bytes();
        let length = u32::from_be_bytes(framed[1..5].try_into().expect("four bytes"));
        assert_eq!((framed[0], length as usize), (0, framed.len() - 5));
        Ok(framed.slice(5..))
    }
}

/// A message in the form of gRPC.
pub fn framed(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::new();
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).expect("a short message"));
    framed.put_slice(message);
    framed.freeze()
}
