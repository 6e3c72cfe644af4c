//! A request and a reply, whichever version of HTTP they arrive with and are sent on with. Knows
//! nothing about connections.

use std::fmt;
use std::sync::Arc;

use http::{Method, StatusCode, Version};
use tokio::io::{AsyncRead, AsyncWrite};

use super::Body;
use super::fields::{Fields, Span};

/// A request.
pub struct Request {
    /// Its method.
    pub method: Method,
    /// The version that it arrived with: 1.0, 1.1 or 2.
    pub version: Version,
    /// Its header fields.
    pub fields: Fields,
    /// Its body.
    pub body: Body,
    /// Whether it may switch to another protocol, as its `Upgrade` field asks.
    pub upgrade: bool,
    /// Sends interim replies (103) to the client, if its version has them.
    pub interim: Option<Arc<dyn InterimSender>>,
    /// Changes the fields of interim replies before they are sent.
    pub interim_filter: Option<Arc<dyn InterimFilter>>,
    target: Span,
    authority: Option<Span>,
}

/// A reply.
pub struct Response {
    /// Its status.
    pub status: StatusCode,
    /// Its reason phrase, if it is not the standard one.
    pub reason: Option<Box<[u8]>>,
    /// Its header fields.
    pub fields: Fields,
    /// Its body.
    pub body: Body,
    /// Set on a 101 reply.
    pub upgrade: Option<Upgrade>,
}

/// What happens with the connections after a 101.
pub enum Upgrade {
    /// The upgraded connection, in an upstream's reply.
    Stream(Box<dyn Stream>),
    /// The callback, in a reply to a client: called with the client's connection once the 101 is
    /// written.
    Callback(Box<dyn FnOnce(Box<dyn Stream>) + Send>),
}

/// An upgraded connection, including the bytes that were read ahead.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Sends interim replies to a client.
pub trait InterimSender: Send + Sync {
    /// Sends an interim reply as soon as the client takes it.
    fn send(&self, status: StatusCode, fields: &Fields);
}

/// Changes the fields of interim replies.
pub trait InterimFilter: Send + Sync {
    /// Changes them before they are sent to the client.
    fn filter(&self, fields: &mut Fields);
}

impl Request {
    /// A request whose target is stored in `fields`, with its authority if the target has one.
    pub(crate) fn new(
        method: Method,
        version: Version,
        fields: Fields,
        target: Span,
        authority: Option<Span>,
    ) -> Self {
        Self {
            method,
            version,
            fields,
            body: Body::empty(),
            upgrade: false,
            interim: None,
            interim_filter: None,
            target,
            authority,
        }
    }

    /// A request for a path and query, or for `*`.
    #[must_use]
    pub fn for_target(method: Method, version: Version, mut fields: Fields, target: &str) -> Self {
        let target = fields.keep(target.as_bytes());
        Self::new(method, version, fields, target, None)
    }

    /// A request with the same head, and no body. Nobody is told of interim replies to it.
    #[must_use]
    pub fn head(&self) -> Self {
        let (target, authority) = (self.target, self.authority);
        Self::new(self.method.clone(), self.version, self.fields.clone(), target, authority)
    }

    /// The path and query, or `*`. Empty if the target is only an authority.
    #[must_use]
    #[inline]
    pub fn target(&self) -> &str {
        std::str::from_utf8(self.fields.kept(self.target)).unwrap_or_default()
    }

    /// [`target`](Self::target) as bytes, which saves the check for UTF-8.
    #[must_use]
    #[inline]
    pub fn target_bytes(&self) -> &[u8] {
        self.fields.kept(self.target)
    }

    /// The authority, if the target itself contains one.
    #[must_use]
    #[inline]
    pub fn authority(&self) -> Option<&str> {
        self.authority
            .map(|authority| std::str::from_utf8(self.fields.kept(authority)).unwrap_or_default())
    }

    /// Replaces the target by another path and query.
    pub fn set_target(&mut self, target: &str) {
        self.target = self.fields.keep(target.as_bytes());
    }

    /// Converts the head of an HTTP/2 request, with another body.
    #[must_use]
    pub fn from_parts(head: &http::request::Parts, body: Body) -> Self {
        let mut fields = Fields::from(&head.headers);
        fields.merge_lengths();
        let target = fields
            .keep(head.uri.path_and_query().map_or("", http::uri::PathAndQuery::as_str).as_bytes());
        let authority =
            head.uri.authority().map(|authority| fields.keep(authority.as_str().as_bytes()));
        Self { body, ..Self::new(head.method.clone(), head.version, fields, target, authority) }
    }
}

impl Response {
    /// A reply without header fields.
    #[must_use]
    #[inline]
    pub fn new(status: StatusCode, body: Body) -> Self {
        Self { status, reason: None, fields: Fields::new(), body, upgrade: None }
    }

    /// Converts it for HTTP/2.
    #[must_use]
    pub fn into_http(self) -> http::Response<Body> {
        let mut reply = http::Response::new(self.body);
        *reply.status_mut() = self.status;
        *reply.headers_mut() = self.fields.to_map();
        reply
    }
}

impl From<http::Request<Body>> for Request {
    fn from(request: http::Request<Body>) -> Self {
        let (head, body) = request.into_parts();
        Self::from_parts(&head, body)
    }
}

impl From<http::Response<Body>> for Response {
    fn from(reply: http::Response<Body>) -> Self {
        let (head, body) = reply.into_parts();
        let mut fields = Fields::from(&head.headers);
        fields.merge_lengths();
        Self { fields, ..Self::new(head.status, body) }
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { method, version, fields, .. } = self;
        out.debug_struct("Request")
            .field("method", method)
            .field("version", version)
            .field("fields", fields)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Response {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, fields, body, .. } = self;
        out.debug_struct("Response")
            .field("status", status)
            .field("fields", fields)
            .field("body", body)
            .finish_non_exhaustive()
    }
}
