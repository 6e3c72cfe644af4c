//! Tunnels to an upstream on streams of HTTP/2: an extended CONNECT (RFC 8441) for a request that
//! asks to become a WebSocket. To its caller the reply is the 101 that it would be over HTTP/1.1.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Method, StatusCode};
use hyper::ext::Protocol;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::http2::StreamPermit;
use super::outgoing::Outgoing;
use super::requests::RequestPermit;
use crate::wire::websocket::{ACCEPT, KEY, WEBSOCKET, accept_of};
use crate::wire::{Body, Fields, Known, Request, Response, Upgrade, delegate_write};

/// Whether HTTP/2 has a way to ask for what a request wants to become.
pub(super) fn has_tunnel(request: &Request) -> bool {
    let wanted = request.fields.get(Known::Upgrade);
    request.upgrade && wanted.is_some_and(|it| it.eq_ignore_ascii_case(WEBSOCKET.as_bytes()))
}

/// Turns the request for an upgrade into the one for a tunnel.
pub(super) fn ask(request: &mut http::Request<Outgoing>) {
    *request.method_mut() = Method::CONNECT;
    request.headers_mut().remove(KEY);
    request.extensions_mut().insert(Protocol::from_static(WEBSOCKET));
}

/// The reply to the upgrade that `request` asks for, once its tunnel is there. The tunnel holds its
/// stream and its request's permit as long as it lives.
pub(super) fn reply(
    request: &Request,
    head: &http::Response<hyper::body::Incoming>,
    upgraded: Upgraded,
    held: (StreamPermit, RequestPermit),
) -> Response {
    let mut fields = Fields::from(head.headers());
    fields.set(Known::Connection, "upgrade");
    fields.set(Known::Upgrade, WEBSOCKET);
    if let Some(key) = request.fields.get(KEY) {
        let accept = accept_of(key);
        fields.remove(ACCEPT);
        fields.append(ACCEPT, &accept);
    }
    let stream = TunnelStream { stream: TokioIo::new(upgraded), _held: held };
    Response {
        fields,
        upgrade: Some(Upgrade::Stream(Box::new(stream))),
        ..Response::new(StatusCode::SWITCHING_PROTOCOLS, Body::empty())
    }
}

/// The upstream's end of a tunnel.
struct TunnelStream {
    stream: TokioIo<Upgraded>,
    _held: (StreamPermit, RequestPermit),
}

impl AsyncRead for TunnelStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for TunnelStream {
    delegate_write! { this => this.stream }
}
